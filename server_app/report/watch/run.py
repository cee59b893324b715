"""One run that is followed: manifest, settings, rounds and clients."""

import math
import time
from collections.abc import Mapping
from typing import Any

from fedquorum.errors import RunError
from fedquorum.intake import shown
from fedquorum.records.folder import Identity, RunFolder
from fedquorum.records.reader import checked_manifest
from fedquorum.records.settings import DamagedSettingsError, load_settings

from server_app.report.tables import METRIC_NAMES
from server_app.report.watch.clients import Clients
from server_app.report.watch.rounds import Rounds

MANIFEST = "manifest.json"
SETTINGS = "config.yaml"
_KEPT = ("status", "experiment", "strategy", "seed", "started", "planned", "error")
MOST_ROUNDS = 10**12
PATIENCE_SECONDS = 60.0
PATIENCE_ROUNDS = 10.0


class Manifest:
    """A run's manifest, read again when it was written anew.

    Attributes
    ----------
    fields : mapping
        Some of what ``Run`` has of it; empty where there is none, or it is damaged.
    problem : str
        Why it cannot be read, else empty.
    written : float or None
        When it was written, in seconds since 1970.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._identity: Identity | None = None
        self.fields: Mapping[str, Any] = {}
        self.problem = ""
        self.written: float | None = None

    def read(self) -> None:
        """Read it, if it is not what it was."""
        try:
            identity = self._folder.identity(MANIFEST)
            if identity is not None and identity == self._identity:
                return
            content = self._folder.content(MANIFEST)
            path = self._folder.path / MANIFEST
            found = {} if content is None else checked_manifest(content, path)
            self.fields = {name: value for name, value in found.items() if name in _KEPT}
            self.problem = ""
        except (RunError, OSError) as error:
            self.fields, self.problem = {}, shown(error, 400)
        else:
            self._identity = identity
            self.written = None if identity is None else identity.changed / 1e9

    @property
    def status(self) -> str:
        """How the run ended, ``running``, or empty where no manifest says so."""
        return str(self.fields.get("status", ""))

    @property
    def started(self) -> str:
        """When the run began."""
        return shown(self.fields.get("started", ""))

    def text(self, name: str) -> str:
        """Return a field in words."""
        return shown(self.fields.get(name, ""))


class FollowedRun:
    """What is known of a run by now; ``refresh`` reads what is new."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._settings: Identity | None = None
        self._settings_problem = ""
        self.path = folder.path
        self.manifest = Manifest(folder)
        self.rounds = Rounds(folder)
        self.clients = Clients(folder)
        self.metric = "accuracy"
        """The setting ``evaluation.metric``."""
        self.complete = False
        """Whether all that there is has been read."""

    def refresh(self, seconds: float) -> None:
        """Read what is new, for about so long at most."""
        until = time.monotonic() + seconds
        self.manifest.read()
        self._read_settings()
        # each gets further at every refresh, even if the other one takes long
        rounds = self.rounds.read(until)
        clients = self.clients.read(until)
        self.complete = rounds and clients

    def _read_settings(self) -> None:
        """Read the one setting that is needed, if the settings are not what they were."""
        try:
            identity = self._folder.identity(SETTINGS)
            if identity == self._settings:
                return
            self._settings, self._settings_problem = identity, ""
            content = self._folder.content(SETTINGS) or b""
            evaluation = load_settings(content.decode()).get("evaluation")
            name = evaluation.get("metric") if isinstance(evaluation, dict) else None
            if isinstance(name, str) and name in METRIC_NAMES:
                self.metric = name
        except (RunError, OSError, UnicodeDecodeError) as error:
            line = error.line if isinstance(error, DamagedSettingsError) else None
            place = "" if line is None else f", line {line}"
            self._settings_problem = shown(f"{self.path / SETTINGS}{place}: {error}", 400)

    @property
    def problems(self) -> list[str]:
        """What cannot be read, one line each."""
        further = self.rounds.damaged - 1
        more = f" (and {further} more)" if further > 0 else ""
        found = (
            self.manifest.problem,
            self._settings_problem,
            self.rounds.problem and self.rounds.problem + more,
            self.clients.problem,
        )
        return [problem for problem in found if problem]

    @property
    def planned(self) -> int:
        """How many rounds the run is to have, 0 where nothing says so."""
        return min(int(self.manifest.fields.get("planned", 0)), MOST_ROUNDS)

    @property
    def silent_for(self) -> float:
        """For how many seconds a running run has recorded nothing; 0 for one that has ended."""
        written = [t for t in (self.rounds.written, self.manifest.written) if t is not None]
        if self.manifest.status != "running" or not written:
            return 0.0
        return max(0.0, time.time() - max(written))

    @property
    def seems_killed(self) -> bool:
        """Whether a running run has been silent for much longer than its rounds take."""
        usual = self.rounds.recent_seconds()
        rounds = 0.0 if math.isnan(usual) else PATIENCE_ROUNDS * usual
        return self.silent_for > max(PATIENCE_SECONDS, rounds)
