"""Compute the fingerprint of a run's data, by which a resume recognizes other data.

The form is that of ``fedquorum.records.data_fingerprint``. Everything is cheap: files that are read
anyway are hashed as they are, whatever their format; of folders of images, LEAF's and Hugging
Face's only the names, sizes and times are listed; generated data is known by its settings.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from fedquorum.errors import DataError
from numpy.typing import NDArray

from client_app.data.base import FederatedData, RowIndex, Targets
from client_app.data.partitioned import PartitionedData
from client_app.data.single_client import SingleClientData
from client_app.data.sources.find_files import HIDDEN, find_files
from client_app.data.split import Rows
from conf.schema.data import (
    CsvSettings,
    DataSettings,
    HfSettings,
    ImageFolderSettings,
    LeafSettings,
    NpzSettings,
    SynthSettings,
    TextSettings,
)

MAX_CLIENTS = 1000
"""The rows of more clients have one hash: single ones would take longer than the data."""

SHORT = 16
"""The digits of a hash of targets."""

Files = Sequence[tuple[str, Path]]
"""Files with the names that tell them apart; the only file of a path has none."""

_known: WeakKeyDictionary[FederatedData, dict[str, Any]] = WeakKeyDictionary()


def compute_fingerprint(settings: DataSettings, data: FederatedData) -> dict[str, Any]:
    """Return the fingerprint of data of which this process has all clients.

    It is computed once for data in memory, as ``load_data`` caches it. Data on the clients' devices
    has none, because nobody may compare it elsewhere.
    """
    if isinstance(data, SingleClientData):
        return {}
    if data not in _known:
        _known[data] = _compute(settings, data)
    return _known[data]


def compute_device_fingerprint(
    settings: DataSettings, data: FederatedData, client: int
) -> dict[str, Any]:
    """Return the fingerprint of the data on a client's device, which never leaves it."""
    if not isinstance(data, SingleClientData):
        return compute_fingerprint(settings, data)
    targets = _select_targets(data.read_targets(client))
    return {"inputs": _describe_inputs(settings)} | _describe_targets({client: targets})


def _compute(settings: DataSettings, data: FederatedData) -> dict[str, Any]:
    inputs = {"inputs": _describe_inputs(settings)}
    if not isinstance(data, PartitionedData):
        return inputs
    splits = data.list_targets()
    if data.num_clients > MAX_CLIENTS:
        return inputs | _describe_pooled_targets(data.num_clients, splits)
    clients = {
        client: _select_targets([(y, rows[client]) for y, rows in splits if client in rows])
        for client in range(data.num_clients)
    }
    return inputs | _describe_targets(clients)


# --- targets ------------------------------------------------------------------------------------


def _describe_targets(clients: dict[int, Targets]) -> dict[str, Any]:
    """Return rows and hashes of the targets of clients, (n,) or (n, length) of each."""
    by_client = {
        str(client): {
            "rows": len(y),
            **({"classes": len(np.unique(y))} if y.ndim == 1 and y.dtype.kind == "i" else {}),
            "targets": _hash_arrays([y]),
        }
        for client, y in clients.items()
    }
    return {
        "clients": len(clients),
        "rows": sum(len(y) for y in clients.values()),
        "targets": _hash_texts(str(known["targets"]) for known in by_client.values()),
        "by_client": by_client,
    }


def _describe_pooled_targets(
    num_clients: int, splits: Sequence[tuple[Targets, RowIndex]]
) -> dict[str, Any]:
    arrays = [part for y, rows in splits for part in (rows.clients, rows.counts, y[rows.flat])]
    return {
        "clients": num_clients,
        "rows": sum(len(rows.flat) for _, rows in splits),
        "targets": _hash_arrays(arrays),
    }


def _select_targets(splits: Sequence[tuple[Targets, Rows]]) -> Targets:
    """Return a client's targets of all splits, those of one array in the order of its rows.

    The division into splits depends on the client's id, which one more client shifts.
    """
    arrays = {id(y): y for y, _ in splits}
    rows = {key: [own for y, own in splits if id(y) == key] for key in arrays}
    parts = [y[np.sort(np.concatenate(rows[key]))] for key, y in arrays.items()]
    selected: Targets = np.concatenate(parts)
    return selected


def _hash_arrays(arrays: Iterable[NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:SHORT]


def _hash_texts(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:SHORT]


# --- inputs -------------------------------------------------------------------------------------


def _describe_inputs(settings: DataSettings) -> dict[str, Any]:
    if isinstance(settings, SynthSettings):
        return {"by": "settings"}
    try:
        files = _list_read_files(settings)
        if files is not None:
            digests = [(name, _hash_file(file)) for name, file in files]
            whole = _combine(digests)
            return {"by": "content", "files": len(files), "sha256": whole, "times": None}
        listed = _list_folder(settings)
    except (OSError, ValueError) as error:
        raise DataError(f"data.path must stay readable during the start, got {error}") from None
    if listed is None:
        return {"by": "published"}
    known = [(name, file.stat()) for name, file in listed]
    return {
        "by": "listing",
        "files": len(known),
        "sha256": _combine([(name, str(found.st_size)) for name, found in known]),
        "times": _hash_texts(str(found.st_mtime_ns) for _, found in known),
    }


def _list_read_files(settings: DataSettings) -> Files | None:
    """Return the files of data that is read whole; None for other data."""
    if isinstance(settings, CsvSettings):
        test = [] if settings.test_path is None else _list_tables(settings.test_path)
        return [*_list_tables(settings.path), *((f"test:{name}", file) for name, file in test)]
    if isinstance(settings, TextSettings):
        tokenizer = () if settings.tokenizer is None else _walk(_resolve(settings.tokenizer))
        return [("", _resolve(settings.path)), *((f"tokenizer:{n}", f) for n, f in tokenizer)]
    return [("", _resolve(settings.path))] if isinstance(settings, NpzSettings) else None


def _list_tables(path: str) -> Files:
    """Return the files of a table; the name of a file matters only among several."""
    resolved = _resolve(path)
    found = find_files(resolved).files
    return [("" if file.path == resolved else file.name, file.path) for file in found]


def _list_folder(settings: DataSettings) -> Files | None:
    """Return the files in the folder of the data; None if it is no folder of the user's."""
    if isinstance(settings, LeafSettings):
        return [item for item in _walk(_resolve(settings.path)) if item[0].endswith(".json")]
    if not isinstance(settings, ImageFolderSettings | HfSettings):
        return None
    folder = _resolve(settings.path)
    return [*_walk(folder)] if folder.is_dir() else None


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield all files below a folder in the order of their names, without hidden ones."""
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not HIDDEN.match(name))
        for name in sorted(names):
            if not HIDDEN.match(name):
                file = Path(path, name)
                yield file.relative_to(folder).as_posix(), file


def _resolve(path: str) -> Path:
    return Path(path).expanduser().resolve()


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _combine(named: Sequence[tuple[str, str]]) -> str:
    """Return one hash of files; that of the only file is its own, as ``sha256sum`` prints it."""
    if len(named) == 1 and not named[0][0]:
        return named[0][1]
    lines = "".join(f"{text}  {name}\n" for name, text in named)
    return hashlib.sha256(lines.encode()).hexdigest()
