"""Refuse to resume a run with other data than it has trained on so far."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedquorum.errors import SettingsError
from fedquorum.records.checkpoint import Checkpoint
from fedquorum.records.client_names import ClientNames
from fedquorum.records.data_fingerprint import (
    FINGERPRINT,
    get_fingerprint,
    has_other_times,
    list_data_changes,
)
from fedquorum.records.reader import read_client_names

from client_app.data import FederatedData
from client_app.data.fingerprint import compute_fingerprint
from client_app.data.summary import DataSummary
from conf.schema.data import DataSettings

UNKNOWN = "The records have no fingerprint of the data: a change of it would not be noticed"
OTHER_TIMES = (
    "The data's files have other times than before, and the same names and sizes: taken as the "
    "same data"
)


def get_recorded_fingerprint(start: Checkpoint, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fingerprint of the data so far; empty if an earlier version wrote the records.

    The checkpoint's is the one that its checksum protects.
    """
    return start.data or get_fingerprint(manifest)


def build_data_entry(
    settings: DataSettings, data: FederatedData, summary: DataSummary
) -> dict[str, Any]:
    """Return the manifest's entry ``data``: how the run interpreted it, and its fingerprint."""
    fingerprint = compute_fingerprint(settings, data)
    return summary.to_dict() | ({FINGERPRINT: fingerprint} if fingerprint else {})


def check_same_data(
    run: Path, recorded: Mapping[str, Any], settings: DataSettings, data: FederatedData
) -> str | None:
    """Refuse other data; return a line about what cannot be compared, None for nothing.

    Parameters
    ----------
    run : Path
        The run's directory, whose records have the clients' names.
    recorded : mapping
        The fingerprint of the data so far.
    settings : DataSettings
    data : FederatedData
        The data of the settings, now.

    Raises
    ------
    SettingsError
        If the data has changed; the message names what differs and what to type.
    """
    now = compute_fingerprint(settings, data)
    if not now:
        return None
    if not recorded:
        return UNKNOWN
    names = ClientNames.from_list(data.client_names, recorded=settings.names)
    changes = list_data_changes(recorded, now, read_client_names(run), names)
    if changes:
        key = "path" if hasattr(settings, "path") else "root"
        given = getattr(settings, key, settings.name)
        raise SettingsError(
            f"data.{key} must lead to the data of the run so far, got {given} with other data: "
            f"{'; '.join(changes)}. Bring that data back (data.{key}=PLACE if it has moved), or "
            f"start a new run without resume={run}"
        )
    return OTHER_TIMES if has_other_times(recorded, now) else None
