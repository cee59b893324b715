"""Run nodes in a worker of ``engine=ray``, with the code of the engine in process.

Ray imports this module first in a worker. The number of torch's threads must be set before
``client_app.training.workers`` reads it, so the app is imported later, with the worker's config.
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

from server_app.engines.in_process import HostedNodes, NodeStates
from server_app.provenance import check_same_code


@dataclass(frozen=True)
class SharedData:
    """Data that workers receive instead of reading it, with its cache key: settings and seed."""

    settings: Any
    seed: int
    data: Any


@dataclass(frozen=True)
class WorkerConfig:
    """The inputs of all workers of a run.

    Parameters
    ----------
    client_app, run_config, num_nodes : ClientApp, mapping, int
        As in ``HostedNodes``.
    device : str
        ``client.device``.
    code : mapping
        The versions that a worker must have; see ``collect_code_facts``.
    data : SharedData, optional
        The clients' data; by default each worker reads it.
    """

    client_app: ClientApp
    run_config: Mapping[str, Any]
    num_nodes: int
    device: str
    code: Mapping[str, str | None]
    data: SharedData | None = None


class Worker:
    """Hosts nodes, and handles one message after the other.

    Parameters
    ----------
    threads : int
        The number of cores that the worker divides its clients among.
    """

    _nodes: HostedNodes

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        logging.getLogger("flwr").setLevel(logging.WARNING)
        register_array_serializer()

    def host(self, config: WorkerConfig, nodes: Sequence[int], states: NodeStates) -> str:
        """Start to host nodes with their clients' states; return the type of the device.

        Raises
        ------
        RunError
            If the code of this process differs from that of the run's process.
        SettingsError
            If the device does not exist here.
        """
        check_same_code(config.code)
        from client_app.data.load import cache_data
        from client_app.node.node import resolve_device

        if (shared := config.data) is not None:
            cache_data(shared.settings, shared.seed, shared.data)
        self._nodes = HostedNodes(config.client_app, config.run_config, nodes, config.num_nodes)
        self._nodes.restore(states)
        return resolve_device(config.device).type

    def handle(self, message: Message, names: Sequence[str], *records: ArrayRecord) -> Message:
        """Return a node's reply to a message, whose array records are passed separately."""
        content = RecordDict({**dict(zip(names, records, strict=True)), **message.content})
        return self._nodes.handle(make_message(metadata=message.metadata, content=content))

    def get_states(self) -> dict[str, NDArray[np.uint8]]:
        """Return the states of these nodes' clients between rounds."""
        return self._nodes.get_states()

    def restore(self, states: NodeStates) -> None:
        """Restore the states that ``get_states`` returned."""
        self._nodes.restore(states)


PackedArray = tuple[str, tuple[int, ...], str, NDArray[np.uint8]]


def register_array_serializer() -> None:
    """Send Flower's arrays to other processes without copying them twice.

    Ray stores the bytes of a NumPy array separately from its pickle, in memory that all processes
    of a machine share. The receiving process reads them there without a copy.
    """
    register_serializer(Array, serializer=pack, deserializer=unpack)


def pack(array: Array) -> PackedArray:
    """Convert the bytes of a message's array to a NumPy array, which Ray does not copy."""
    return array.dtype, array.shape, array.stype, np.frombuffer(array.data, np.uint8)


def unpack(packed: PackedArray) -> Array:
    """Restore an array from the result of ``pack``; its data is a view."""
    dtype, shape, stype, content = packed
    array = Array(dtype, shape, stype, b"")
    vars(array)["data"] = content.data  # Flower's constructor accepts only bytes, a copy
    return array
