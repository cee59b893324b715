"""Compare the data of a run with that of its earlier rounds, by their fingerprints.

A fingerprint is the entry ``fingerprint`` of the manifest's ``data``, and of a checkpoint:

``inputs``     ``by``: how the inputs are known: ``content`` or ``listing`` of files, the
               ``settings`` that generate them, or ``published`` data by its name; the number of
               ``files``, their ``sha256``, and a hash of their ``times``
``clients``    the number of clients, ``rows`` and ``targets``: the rows of all, a hash of the
               targets
``by_client``  the ``rows``, the number of ``classes`` and a hash of the ``targets``, by client id

Data that its settings generate has ``inputs`` only, data of more than 1,000 clients no
``by_client``. A fingerprint may come from another machine: whatever is not of this form is unknown.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..sanitize import abbreviate, sanitize
from .client_names import NO_NAMES, ClientNames
from .safe_files import SafeRunDir

FINGERPRINT = "fingerprint"

MAX_CLIENTS_SHOWN = 5
MAX_HASH_SHOWN = 12
MAX_ID_DIGITS = 18
MAX_HEADER_BYTES = 2**26

_INPUT_TEXTS = {
    "content": "the content of {}",
    "listing": "the names and sizes of {}",
    "published": "published data",
}


def get_fingerprint(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fingerprint of the data in a manifest, empty without one."""
    return _read_mapping(_read_mapping(manifest, "data"), FINGERPRINT)


def list_data_changes(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    names_before: ClientNames = NO_NAMES,
    names: ClientNames = NO_NAMES,
) -> tuple[str, ...]:
    """Return what differs between the data of a run so far and the data now, in words.

    Names and sizes of listed files decide, and not their times: a copy restored from a backup has
    other times and is the same data. Clients are compared by name if both sides have names, since
    one more client shifts the ids.

    Parameters
    ----------
    before, now : mapping
        The fingerprints; one that is empty is unknown, which is no change.
    names_before, names : ClientNames
        The clients' names so far, and now.
    """
    if not before or not now:
        return ()
    changes = (
        *_list_client_changes(before, now, names_before, names),
        *_list_pooled_changes(before, now),
    ) or _list_input_changes(before, now)
    return tuple(map(sanitize, changes))


def is_published(fingerprint: Mapping[str, Any]) -> bool:
    """Say whether the data is known by its published name, and not by files of the user."""
    return _read_mapping(fingerprint, "inputs").get("by") == "published"


def has_other_times(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Say whether listed files have other times than before."""
    old, new = (_read_mapping(given, "inputs").get("times") for given in (before, now))
    return None not in (old, new) and old != new


def describe_fingerprint(fingerprint: Mapping[str, Any]) -> str:
    """Return a fingerprint as one line, "" without one and for generated data."""
    inputs = _read_mapping(fingerprint, "inputs")
    if str(inputs.get("by")) not in _INPUT_TEXTS:  # among them generated data: nothing to compare
        return ""
    files, digest = inputs.get("files"), str(inputs.get("sha256") or "")
    text = _INPUT_TEXTS[inputs["by"]].format(_format_count(files, "file"))
    text += f" (SHA-256 {digest[:MAX_HASH_SHOWN]})" if digest else ""
    rows, clients = fingerprint.get("rows"), fingerprint.get("clients")
    if isinstance(rows, int) and isinstance(clients, int):
        counts = f"{_format_count(rows, 'row')} of {_format_count(clients, 'client')}"
        text += f", {counts}, targets {str(fingerprint.get('targets'))[:MAX_HASH_SHOWN]}"
    return sanitize(text)


def read_checkpoint_fingerprint(run: Path, folder: str, name: str) -> Mapping[str, Any]:
    """Return the fingerprint in a checkpoint without reading its arrays, empty without one."""
    with SafeRunDir(run).open(folder, name) as file:
        if file is None:
            return {}
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= MAX_HEADER_BYTES else b""
    try:
        metadata = json.loads(json.loads(header)["__metadata__"]["checkpoint"])
        return dict(metadata.get("data") or {})
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise RunError(f"{run / folder / name}: expected a checkpoint") from None


def _list_client_changes(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    names_before: ClientNames,
    names: ClientNames,
) -> tuple[str, ...]:
    old, new = _read_clients(before), _read_clients(now)
    if not old or not new:
        return ()
    changes = []
    by_name = names_before.names and names.names
    old_ids = _index_clients(old, names_before if by_name else NO_NAMES)
    new_ids = _index_clients(new, names if by_name else NO_NAMES)
    if by_name:
        gone, added = ([*a.keys() - b.keys()] for a, b in ((old_ids, new_ids), (new_ids, old_ids)))
        changes += [f"client{_list(sorted(gone))} gone"] if gone else []
        changes += [f"client{_list(sorted(added))} new"] if added else []
    elif len(old) != len(new):
        return (f"clients {len(old):,} -> {len(new):,}",)
    rows, targets = [], []
    for key in (key for key in old_ids if key in new_ids):
        was, found = old[old_ids[key]], new[new_ids[key]]
        label = names.format(int(new_ids[key])) if by_name else key
        if was.get("rows") != found.get("rows"):
            rows.append(f"{label} {was.get('rows')} -> {found.get('rows')}")
        elif was.get("targets") != found.get("targets"):
            targets.append(label)
    changes += [f"rows of client{_list(rows)}"] if rows else []
    changes += [f"targets of client{_list(targets)} changed"] if targets else []
    return tuple(changes)


def _list(labels: Sequence[str]) -> str:
    """Return labels of clients for the end of the word client."""
    return f"{'s' if len(labels) > 1 else ''} {abbreviate(labels, MAX_CLIENTS_SHOWN)}"


def _list_pooled_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the changes of data whose single clients are unknown."""
    if _read_clients(before) and _read_clients(now):
        return ()
    for name in ("clients", "rows"):
        old, new = before.get(name), now.get(name)
        if old != new:
            return (f"{name} {sanitize(old)} -> {sanitize(new)}",)
    return ("targets changed",) if before.get("targets") != now.get("targets") else ()


def _list_input_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    old, new = _read_mapping(before, "inputs"), _read_mapping(now, "inputs")
    if old.get("by") != new.get("by"):
        return (f"inputs by {sanitize(old.get('by'))} -> {sanitize(new.get('by'))}",)
    if old.get("files") != new.get("files"):
        return (f"files {sanitize(old.get('files'))} -> {sanitize(new.get('files'))}",)
    if old.get("sha256") == new.get("sha256"):
        return ()
    if new.get("by") == "listing":
        return ("inputs (names or sizes of its files changed)",)
    files = "the file's" if new.get("files") == 1 else "the files'"
    return (f"inputs ({files} content changed)",)


def _index_clients(clients: Mapping[str, Any], names: ClientNames) -> dict[str, str]:
    """Return the ids of clients by their names, or by themselves."""
    return {names.names.get(int(key), key) if names.names else key: key for key in clients}


def _read_clients(fingerprint: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    clients = _read_mapping(fingerprint, "by_client")
    return {
        key: value
        for key, value in clients.items()
        if isinstance(value, Mapping) and key.isdecimal() and len(key) <= MAX_ID_DIGITS
    }


def _read_mapping(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = given.get(name)
    return value if isinstance(value, Mapping) else {}


def _format_count(count: Any, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}" if isinstance(count, int) else noun
