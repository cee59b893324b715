"""The folder that is watched: which runs are in it, and which of them is shown."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from fedquorum.errors import RunError
from fedquorum.intake import shown
from fedquorum.records.folder import RunFolder

from server_app.report.watch.run import MANIFEST, FollowedRun, Manifest

MOST_FOLDERS = 20_000
MOST_FOLLOWED = 4
SCAN_SHARE = 0.02  # of the time, for looking for runs


class WatchedFolder:
    """A run, or a folder with runs at any depth; no link below it is followed.

    Parameters
    ----------
    root : Path
        The folder.

    Attributes
    ----------
    manifests : dict of Manifest
        The manifests of all runs found, by name: the path below the folder.
    problem : str
        Why not all runs may have been found, else empty.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parts: dict[str, tuple[str, ...]] = {}
        self._followed: dict[str, FollowedRun] = {}
        self._next_scan = 0.0
        self.manifests: dict[str, Manifest] = {}
        self.problem = ""

    def scan(self) -> None:
        """Look for runs and their status, unless that was done a moment ago."""
        if time.monotonic() < self._next_scan:
            return
        begun = time.thread_time()  # on a machine that trains, the clock says little of the work
        self.problem = ""
        self._parts = {shown("/".join(parts)) or ".": parts for parts in self._find()}
        known = self.manifests
        self.manifests = {
            name: known.get(name) or Manifest(RunFolder(self._root, parts))
            for name, parts in self._parts.items()
        }
        for manifest in self.manifests.values():
            manifest.read()
        self._next_scan = time.monotonic() + (time.thread_time() - begun) / SCAN_SHARE

    def _find(self) -> Iterator[tuple[str, ...]]:
        """Yield the names from the folder to each run's directory."""
        walk = os.walk(self._root, onerror=self._note)
        for count, (folder, subfolders, files) in enumerate(walk):
            if count == MOST_FOLDERS:
                self.problem = f"only the first {MOST_FOLDERS:,} folders were searched for runs"
                return
            subfolders.sort()
            if MANIFEST in files:
                subfolders.clear()
                yield Path(folder).relative_to(self._root).parts

    def _note(self, error: OSError) -> None:
        self.problem = shown(f"{error.filename} cannot be read: {error.strerror}")

    def newest(self) -> str | None:
        """Return the run to show: of those that run, else of all, the one that began last."""

        def rank(name: str) -> tuple[bool, str, str]:
            manifest = self.manifests[name]
            return manifest.status == "running", manifest.started, name

        return max(self.manifests, key=rank, default=None)

    def follow(self, name: str | None, seconds: float) -> tuple[str, FollowedRun]:
        """Return a run with what is new in it, by default the newest, and its name.

        Raises
        ------
        RunError
            If there is no such run.
        """
        self.scan()
        chosen = name or self.newest()
        if chosen is None:
            raise RunError(f"no run has begun below {self._root} yet")
        if chosen not in self._parts:
            raise RunError(f"there is no run {shown(chosen)} below {self._root}")
        run = self._followed.pop(chosen, None)
        if run is None:
            run = FollowedRun(RunFolder(self._root, self._parts[chosen]))
        self._followed[chosen] = run  # last: those that nobody asked for longest are forgotten
        while len(self._followed) > MOST_FOLLOWED:
            del self._followed[next(iter(self._followed))]
        run.refresh(seconds)
        return chosen, run
