"""The runs that are watched, as answers to what is asked of them."""

import time
from dataclasses import asdict
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from fedquorum.errors import RunError

from server_app.report.charts import LineChart
from server_app.report.interactive import specification
from server_app.report.tables import TextTable
from server_app.report.watch.charts import charts
from server_app.report.watch.folder import WatchedFolder
from server_app.report.watch.run import FollowedRun
from server_app.report.watch.view import clients_table, run_view, runs_table

PAGE_SECONDS = 0.5  # of reading, for one answer to the page
METRICS_SECONDS = 5.0
DRAWING_SHARE = 0.05  # of the time, for drawing


class Watch:
    """Follows the runs of a folder; may be asked by several threads.

    Parameters
    ----------
    root : Path
        A run, or a folder with runs.
    """

    def __init__(self, root: Path) -> None:
        self._folder = WatchedFolder(root)
        self._lock = Lock()
        self._presented = WeakKeyDictionary[FollowedRun, _Presented]()

    def data(self, name: str | None, drawn: str) -> dict[str, Any]:
        """Return what the page shows, as JSON has it.

        Parameters
        ----------
        name : str, optional
            The run that is asked for, by default the newest.
        drawn : str
            The version of the charts that the page has.
        """
        with self._lock:
            try:
                name, run = self._folder.follow(name, PAGE_SECONDS)
            except RunError as error:
                return {"run": None, "waiting": str(error), "runs": self._runs("")}
            presented = self._presented.setdefault(run, _Presented(run))
            presented.draw()
            return {
                "run": name,
                **run_view(run),
                "complete": run.complete,
                "drawn": presented.drawn,
                "charts": None if presented.drawn == drawn else presented.charts,
                "clients": asdict(presented.clients()),
                "runs": self._runs(name),
            }

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the figures of the newest run for Prometheus, and their content type.

        Parameters
        ----------
        accept : str
            The header ``Accept`` of the request.
        """
        from server_app.report.watch.metrics import RunCollector, exposition

        with self._lock:
            try:
                found = self._folder.follow(None, METRICS_SECONDS)
            except RunError:
                found = None
            return exposition(RunCollector(self._folder, found), accept)

    def _runs(self, name: str) -> dict[str, Any] | None:
        """Return the table of runs; None for a folder that is itself a run."""
        if list(self._folder.manifests) == ["."]:
            return None
        return {**asdict(runs_table(self._folder, name)), "problem": self._folder.problem}


class _Presented:
    """The charts and the table of clients of a run, made again only if something is new.

    Attributes
    ----------
    charts : list
        What the page draws.
    drawn : str
        Another text after every change of the charts.
    """

    _versions = count(1)

    def __init__(self, run: FollowedRun) -> None:
        self._run = run
        self._rounds = -1
        self._next_drawing = 0.0
        self._listed = (-1, -1)
        self._table = TextTable("", (), ())
        self.charts: list[dict[str, Any]] = []
        self.drawn = ""

    def draw(self) -> None:
        """Draw the rounds that are new, if drawing has not taken its share of the time."""
        rounds, begun = self._run.rounds, time.thread_time()
        if rounds.version == self._rounds or time.monotonic() < self._next_drawing:
            return
        self.charts = [_specification(chart) for chart in charts(rounds, self._run.metric)]
        self.drawn, self._rounds = str(next(self._versions)), rounds.version
        self._next_drawing = time.monotonic() + (time.thread_time() - begun) / DRAWING_SHARE

    def clients(self) -> TextTable:
        """Return the table of clients."""
        version = (self._run.clients.version, self._run.rounds.late_replies)
        if version != self._listed:
            self._listed, self._table = version, clients_table(self._run)
        return self._table


def _specification(chart: LineChart) -> dict[str, Any]:
    """Return a chart as the page draws it."""
    return {
        "id": chart.name,
        "title": chart.title,
        "note": chart.note,
        **specification(chart),
    }
