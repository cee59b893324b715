"""Let a device refuse a resumed run if its data is not that of the run so far.

A device keeps the fingerprint of its client's data in ``node-data.json`` in Flower's home. The file
and the fingerprint never leave the device, because the hash of a few rows can be guessed: the
server learns that the node takes no part, and the node's log names the difference.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any

from fedquorum.flower.codec import CLIENT_ID
from fedquorum.records.data_fingerprint import list_data_changes
from fedquorum.records.legs import CHANGEABLE_PREFIXES, EXTENDABLE_SETTINGS
from fedquorum.records.settings import DATA_LOCATION_KEYS, flatten_settings
from filelock import lock_descriptor
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.logger import log
from flwr.supercore.utils import get_flwr_home

from client_app.node.policy import refuse_message
from conf import ComposedConfig, Settings

DATA_FILE = "node-data.json"
REASON = "its data is not that of the run so far"
MAX_ENTRIES = 100
"""The runs that a device remembers."""

_FREE_PREFIXES = (*CHANGEABLE_PREFIXES, *DATA_LOCATION_KEYS, *EXTENDABLE_SETTINGS)
"""The settings by which one leg of a run may differ from another, and those of another device."""


@dataclass(frozen=True)
class RunEntry:
    """A run in which a client took part.

    Parameters
    ----------
    client : int
    run_id : int
        Flower's, which a resume does not keep.
    folder : str
        The folder of the records on the server; empty if the server chose it after the start.
    settings : str
        A hash of the settings that no resume changes.
    data : mapping
        The fingerprint of the client's data.
    """

    client: int
    run_id: int
    folder: str
    settings: str
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_run(cls, client: int, context: Context, settings: Settings) -> "RunEntry":
        """Return the entry of a client for the run of a context, without a fingerprint."""
        folder = settings.resume or str(context.run_config.get("output-dir", ""))
        flat = flatten_settings(asdict(settings))
        fixed = {k: v for k, v in sorted(flat.items()) if not k.startswith(_FREE_PREFIXES)}
        digest = hashlib.sha256(json.dumps(fixed, default=str).encode()).hexdigest()
        return cls(client, context.run_id, folder, digest)

    def find_legs(self, entries: Sequence["RunEntry"]) -> list["RunEntry"]:
        """Return the client's entries of this run's earlier legs.

        They have its folder. A leg whose folder is unknown has its settings.
        """
        own = [entry for entry in entries if entry.client == self.client]
        return [entry for entry in own if entry.folder and entry.folder == self.folder] or [
            entry for entry in own if not entry.folder and entry.settings == self.settings
        ]


@dataclass(frozen=True)
class DataMod:
    """A Flower mod that lets a device take part in a resumed run only with its data so far.

    The data is compared once in a run of Flower, at the first message.

    Parameters
    ----------
    compose : callable
        Returns the settings of the run of a context.
    compute_fingerprint : callable
        Returns the fingerprint of the data of the client of a context.
    """

    compose: Callable[[Context], ComposedConfig]
    compute_fingerprint: Callable[[Context], Mapping[str, Any]]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Check one message, and return the reply."""
        client, path = int(context.node_config[CLIENT_ID]), get_flwr_home() / DATA_FILE
        settings = self.compose(context).settings
        entry = RunEntry.from_run(client, context, settings)
        if self._is_known(path, entry):
            return call_next(message, context)
        try:
            entry = RunEntry(**{**asdict(entry), "data": dict(self.compute_fingerprint(context))})
        except Exception:  # the data cannot be used: what handles the message says so
            return call_next(message, context)
        try:
            changes = _compare_and_store(path, entry, resumes=settings.resume is not None)
        except OSError as error:
            log(
                WARNING, "%s cannot be written (%s): a resume cannot notice other data", path, error
            )
            changes = ()
        if not changes:
            return call_next(message, context)
        log(
            WARNING,
            "Refused: the data of client %d is not that of the run so far: %s. Bring that data "
            "back; to take part with other data, remove %s",
            client,
            "; ".join(changes),
            path,
        )
        return refuse_message(message, client, REASON)

    def _is_known(self, path: Path, entry: RunEntry) -> bool:
        """Say whether the client's data was compared at an earlier message of this run."""
        try:
            entries = _parse(path.read_text(encoding="utf-8"))
        except OSError:
            return False
        known = (entry.client, entry.run_id, entry.folder, entry.settings)
        return known in [(one.client, one.run_id, one.folder, one.settings) for one in entries]


def _compare_and_store(path: Path, entry: RunEntry, *, resumes: bool) -> tuple[str, ...]:
    """Store the data of a client, or return how it differs from that of a run that it resumes.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    with path.open("a+", encoding="utf-8") as file:
        lock_descriptor(file.fileno())
        file.seek(0)
        entries = _parse(file.read())
        legs = entry.find_legs(entries) if resumes else []
        changes = [list_data_changes(leg.data, entry.data) for leg in legs]
        if changes and all(changes):
            return changes[-1]
        kept = [
            one
            for one in entries
            if (one.client, one.folder) != (entry.client, entry.folder or None)
        ]
        file.truncate(0)
        file.write(json.dumps([asdict(one) for one in [*kept, entry][-MAX_ENTRIES:]]))
    return ()


def _parse(text: str) -> list[RunEntry]:
    """Return the entries in the file's text; none of a damaged file."""
    try:
        return [RunEntry(**entry) for entry in json.loads(text)] if text else []
    except (TypeError, ValueError):
        return []
