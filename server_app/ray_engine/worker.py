"""Run nodes in a worker of ``engine=ray``, with the code of the engine in process.

Ray unpickles this module first in a worker, and the number of torch's threads has to be set
before ``client_app.workers`` looks at it: so the app is imported with what a worker is to host.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from ray.util import register_serializer

from server_app.in_process import HostedNodes, NodeStates
from server_app.provenance import check_same_code


@dataclass(frozen=True)
class SharedData:
    """Data that workers get instead of reading it, and what ``load_data`` knows it by."""

    settings: Any
    seed: int
    data: Any


@dataclass(frozen=True)
class WorkerConfig:
    """The inputs of all workers of a run.

    Parameters
    ----------
    client_app, run_config, num_nodes : ClientApp, mapping, int
        As of ``HostedNodes``.
    device : str
        ``client.device``.
    code : mapping
        The versions that a worker must have, see ``collect_code_facts``.
    data : SharedData, optional
        The clients' data; by default workers read it.
    """

    client_app: ClientApp
    run_config: Mapping[str, Any]
    num_nodes: int
    device: str
    code: Mapping[str, str | None]
    data: SharedData | None = None


class Worker:
    """Hosts nodes, and answers one message after the other.

    Parameters
    ----------
    threads : int
        Among how many cores it divides its clients.
    """

    _nodes: HostedNodes

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        logging.getLogger("flwr").setLevel(logging.WARNING)
        register_array_serializer()

    def host(self, config: WorkerConfig, nodes: Sequence[int], states: NodeStates) -> str:
        """Begin to host nodes with their clients' states; return the kind of device.

        Raises
        ------
        RunError
            If the code here is not that of the run's process.
        SettingsError
            If there is no such device.
        """
        check_same_code(config.code)
        from client_app.data.load import cache_data
        from client_app.node import resolve_device

        if (handed := config.data) is not None:
            cache_data(handed.settings, handed.seed, handed.data)
        self._nodes = HostedNodes(config.client_app, config.run_config, nodes, config.num_nodes)
        self._nodes.restore(states)
        return resolve_device(config.device).type

    def handle(self, message: Message, names: Sequence[str], *records: ArrayRecord) -> Message:
        """Return a node's reply to a message, whose array records come beside it."""
        content = RecordDict({**dict(zip(names, records, strict=True)), **message.content})
        return self._nodes.handle(make_message(metadata=message.metadata, content=content))

    def get_states(self) -> dict[str, NDArray[np.uint8]]:
        """Return the states of these nodes' clients between rounds."""
        return self._nodes.get_states()

    def restore(self, states: NodeStates) -> None:
        """Restore what ``get_states`` returned."""
        self._nodes.restore(states)


PackedArray = tuple[str, tuple[int, ...], str, NDArray[np.uint8]]


def register_array_serializer() -> None:
    """Let Flower's arrays leave this process without being copied twice.

    Ray lays the bytes of a NumPy array beside what it pickles, in memory that all processes of a
    machine share. The process that gets the array sees them there, read-only.
    """
    register_serializer(Array, serializer=pack, deserializer=unpack)


def pack(array: Array) -> PackedArray:
    """Return an array of a message with its bytes as NumPy's, which Ray does not copy."""
    return array.dtype, array.shape, array.stype, np.frombuffer(array.data, np.uint8)


def unpack(packed: PackedArray) -> Array:
    """Return the array that was packed; its data is a view."""
    dtype, shape, stype, content = packed
    array = Array(dtype, shape, stype, b"")
    vars(array)["data"] = content.data  # Flower's constructor takes bytes alone: a copy
    return array
