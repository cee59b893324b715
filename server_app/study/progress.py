"""Store a study's progress beside the records of its runs: ``progress.json``.

It has only what the records lack: the time spent, the number of trials that the time allowed, and
the study's identity.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedquorum.errors import RunError
from fedquorum.io import atomic_write
from fedquorum.sanitize import sanitize

from server_app.study.looks import Look

PROGRESS_FILE = "progress.json"


@dataclass(frozen=True)
class Progress:
    """The progress of a study.

    Parameters
    ----------
    study : mapping
        The study's identity, which another call must match.
    seconds : float
        The time spent on runs.
    once : float or None
        The cost of one run of every method, in the budget's unit; None if still unknown.
    trials : int or None
        The final number of trials of each method; None during the tuning.
    looks : tuple of Look
        The looks at the scores so far.
    """

    study: Mapping[str, Any]
    seconds: float = 0.0
    once: float | None = None
    trials: int | None = None
    looks: tuple[Look, ...] = ()


class ProgressFile:
    """The progress of the study in a folder, with a stopwatch.

    Parameters
    ----------
    directory : Path
        The study's folder.
    study : mapping
        The study's identity.

    Raises
    ------
    RunError
        If the folder belongs to another study, or its progress cannot be read.
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
        """The time spent, in this call and in earlier ones."""
        return self._before + time.monotonic() - self._started

    @property
    def once(self) -> float | None:
        """See ``Progress``."""
        return self._progress.once

    @property
    def trials(self) -> int | None:
        """See ``Progress``."""
        return self._progress.trials

    @property
    def looks(self) -> tuple[Look, ...]:
        """See ``Progress``."""
        return self._progress.looks

    def save(self, **changes: Any) -> None:
        """Write the time spent and the changes."""
        self._progress = replace(self._progress, seconds=self.seconds, **changes)
        with atomic_write(self._path) as part:
            part.write_text(json.dumps(asdict(self._progress), indent=2) + "\n", encoding="utf-8")


def _describe_change(before: Any, now: Any) -> str:
    """Describe the difference of two values, lists in any order; "" if there is none."""
    if not (isinstance(before, list) and isinstance(now, list)):
        return "" if before == now else f"is {sanitize(before)} and not {sanitize(now)}"
    removed = [one for one in before if one not in now]
    added = [one for one in now if one not in before]
    kinds = (("have", removed), ("do not have", added))
    return " and ".join(f"{verb} {sanitize(', '.join(ones))}" for verb, ones in kinds if ones)


def _read_progress(path: Path) -> Progress | None:
    if not path.exists():
        return None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        looks = tuple(Look(**look) for look in fields.pop("looks"))
        return Progress(**fields, looks=looks)
    except (OSError, LookupError, AttributeError, ValueError, TypeError) as error:
        raise RunError(f"{path} must be what a study wrote there, got {error}") from None
