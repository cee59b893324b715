"""What a study remembers of itself beside the records of its runs: ``progress.json``.

Whatever follows from the records is read from them again. Here is what does not: the time spent,
how many trials that time allowed, and which study it is.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedquorum.errors import RunError
from fedquorum.records.files import atomic_write
from fedquorum.sanitize import sanitize

PROGRESS_FILE = "progress.json"


@dataclass(frozen=True)
class Progress:
    """How far a study is.

    Parameters
    ----------
    study : mapping
        What it was asked, for another call to be the same study.
    seconds : float
        The time that its runs have taken.
    once : float or None
        What one run of every method takes, in the budget's unit; None if that is not known yet.
    trials : int or None
        How many trials each method has in all; None while the tuning goes on.
    """

    study: Mapping[str, Any]
    seconds: float = 0.0
    once: float | None = None
    trials: int | None = None


class ProgressFile:
    """The progress of the study in a folder, and the stopwatch that adds to it.

    Parameters
    ----------
    directory : Path
        The study's folder.
    study : mapping
        What the study is asked.

    Raises
    ------
    RunError
        If the folder is another study's, or its progress cannot be read.
    """

    def __init__(self, directory: Path, study: Mapping[str, Any]) -> None:
        self._path = directory / PROGRESS_FILE
        self._progress = _read_progress(self._path) or Progress(study)
        for key, before in self._progress.study.items():
            if difference := _describe_change(before, study.get(key)):
                raise RunError(
                    f"output must be a new folder or one of the same study, got {directory}, where "
                    f"{key} {difference}"
                )
        self._before = self._progress.seconds
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time spent, in this call and in those before."""
        return self._before + time.monotonic() - self._started

    @property
    def once(self) -> float | None:
        """See ``Progress``."""
        return self._progress.once

    @property
    def trials(self) -> int | None:
        """See ``Progress``."""
        return self._progress.trials

    def save(self, **changes: Any) -> None:
        """Write the time spent, and what else has changed."""
        self._progress = replace(self._progress, seconds=self.seconds, **changes)
        with atomic_write(self._path) as part:
            part.write_text(json.dumps(asdict(self._progress), indent=2) + "\n", encoding="utf-8")


def _describe_change(before: Any, now: Any) -> str:
    """Return in words how two values differ, lists whatever their order; "" if they do not."""
    if not (isinstance(before, list) and isinstance(now, list)):
        return "" if before == now else f"is {sanitize(before)} and not {sanitize(now)}"
    gone = [one for one in before if one not in now]
    new = [one for one in now if one not in before]
    kinds = (("have", gone), ("do not have", new))
    return " and ".join(f"{verb} {sanitize(', '.join(ones))}" for verb, ones in kinds if ones)


def _read_progress(path: Path) -> Progress | None:
    if not path.exists():
        return None
    try:
        return Progress(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} must be what a study wrote there, got {error}") from None
