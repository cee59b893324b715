"""Watch runs: render their report again whenever their records change."""

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from ..errors import FedQuorumError, RunError
from ..records.reader import check_tables, find_runs, load_run
from ..records.safe_files import FileId, SafeRunDir
from ..sanitize import sanitize
from .client_status import ClientStatusTable
from .experiment import build_experiments
from .page import render_content
from .seed_groups import group_runs
from .tables import check_run_metric
from .watched_run import WatchedRun

MIN_INTERVAL_SECONDS = 1.0
MAX_DRAWING_FRACTION = 0.05  # fraction of the time for reading and drawing
RECORD_FILES = ("manifest.json", "rounds.jsonl", "config.yaml", "population.parquet")
RECORD_TABLES = ("clients", "evaluations")
MAX_PROBLEM_LENGTH = 400

FileIds = tuple[FileId | str | None, ...]


class RunWatcher:
    """Draws the report of a folder's runs while they run; other threads read the result.

    Parameters
    ----------
    root : Path
        A run, or a folder with runs; an absolute path.

    Attributes
    ----------
    content : str
        The page's content as HTML.
    metrics : bytes or None
        The newest run's metrics for Prometheus; None before the first reading, and without the
        package ``prometheus_client``.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[Path, tuple[FileIds, WatchedRun | str]] = {}
        self._drawn: object = None
        self.content = render_content((), (), ("Reading the records ...",))
        self.metrics: bytes | None = None

    def draw_forever(self) -> NoReturn:
        """Draw repeatedly, for at most a twentieth of the time."""
        while True:
            start = time.thread_time()  # wall time would count the training on this machine
            self.draw()
            time.sleep(
                max(MIN_INTERVAL_SECONDS, (time.thread_time() - start) / MAX_DRAWING_FRACTION)
            )

    def draw(self) -> None:
        """Read and draw the runs, if their records changed."""
        problems = self._read_runs()
        runs = [one for _, one in self._read.values() if isinstance(one, WatchedRun)]
        killed = [one.run.directory for one in runs if one.seems_killed]
        state = ([file_ids for file_ids, _ in self._read.values()], killed, problems)
        if state == self._drawn:
            return
        self._drawn = state
        try:
            self._draw(runs, problems)
        except FedQuorumError as error:  # a table was replaced meanwhile
            self._drawn = None
            self.content = render_content((), (*problems, sanitize(error, MAX_PROBLEM_LENGTH)))
        except Exception as error:
            problem = f"the records cannot be drawn ({type(error).__name__})"
            self.content = render_content((), (*problems, problem))

    def _read_runs(self) -> list[str]:
        """Read the runs with new records, and return the problems of unreadable ones."""
        problems: list[str] = []
        try:
            found = find_runs([self._root], lambda error: problems.append(str(error)))
        except RunError as error:
            found = ()
            problems.append(f"no run yet: {error}")
        cached, self._read = self._read, {}
        for directory in found:
            file_ids = _read_file_ids(directory)
            if directory in cached and cached[directory][0] == file_ids:
                self._read[directory] = cached[directory]
            else:
                self._read[directory] = (file_ids, _read_run(directory, file_ids))
        return problems + [one for _, one in self._read.values() if isinstance(one, str)]

    def _draw(self, runs: Sequence[WatchedRun], problems: Sequence[str]) -> None:
        newest = max(runs, key=_rank, default=None)
        clients = None if newest is None else ClientStatusTable(newest.run)
        if find_spec("prometheus_client") is not None:
            from .prometheus import format_metrics

            name = "" if newest is None else sanitize(newest.run.directory.relative_to(self._root))
            self.metrics = format_metrics(runs, newest, name, clients, len(problems))
        experiments = build_experiments(group_runs(one.run for one in runs))
        progress = [one.describe_progress() for one in runs if one.is_running]
        tables = [] if newest is None or clients is None else [clients.to_text_table(newest.title)]
        self.content = render_content(experiments, problems, progress, *tables)


def _read_file_ids(directory: Path) -> FileIds:
    """Return the ids of a run's files, which change with its records."""
    folder = SafeRunDir(directory)
    try:
        return tuple(folder.get_file_id(name) for name in (*RECORD_FILES, *RECORD_TABLES))
    except RunError as error:
        return (str(error),)


def _read_run(directory: Path, file_ids: FileIds) -> WatchedRun | str:
    """Read a run, or return the reason why it cannot be read."""
    try:
        run = load_run(directory)
        check_tables(directory)
        check_run_metric(run)
    except (RunError, OSError) as error:
        return sanitize(error, MAX_PROBLEM_LENGTH)
    written = [one.mtime_ns / 1e9 for one in file_ids[:2] if isinstance(one, FileId)]
    return WatchedRun(run, max(written, default=0.0))


def _rank(watched: WatchedRun) -> tuple[bool, str, Path]:
    """Return a key that ranks running runs above others, then newer above older."""
    return watched.is_running, watched.run.started, watched.run.directory
