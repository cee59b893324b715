"""Test a worker without Ray."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.errors import RunError
from fedquorum.flower.codec import decode_arrays, encode_arrays, view_arrays
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from client_app.data import load_data
from conf import compose_settings
from server_app.engines.ray import worker
from server_app.engines.ray.worker import SharedData, Worker, WorkerConfig, pack, unpack
from server_app.provenance import collect_code_facts


def make_summing_app() -> ClientApp:
    """Return an app that sums the arrays of its messages, and counts the messages."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = decode_arrays(message.content.array_records["arrays"])
        assert message.content.config_records["config"]["x"] == 1
        context.state[f"call {len(context.state)}"] = ConfigRecord()
        total = arrays["a"] + arrays["b"] + context.node_id
        return Message(RecordDict({"arrays": encode_arrays({"sum": total})}), reply_to=message)

    return app


CONFIG = WorkerConfig(make_summing_app(), {}, num_nodes=4, device="cpu", code=collect_code_facts())


@pytest.fixture
def ray_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """Yield a worker with one thread, as Ray creates it; restore the level of Flower's log."""
    log = logging.getLogger("flwr")
    level = log.level
    monkeypatch.setattr(worker, "register_serializer", lambda *_, **__: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    yield Worker(1)
    log.setLevel(level)


def make_bare_message(node: int) -> tuple[Message, ArrayRecord]:
    """Return a message without its arrays, and the arrays."""
    content = RecordDict({"config": ConfigRecord({"x": 1})})
    arrays = encode_arrays({"a": np.arange(3.0), "b": np.ones(3)})
    return Message(content, node, MessageType.TRAIN), arrays


def test_a_worker_handles_the_messages_of_its_nodes(ray_worker: Worker) -> None:
    """Separately passed arrays are part of a message, and its states are those of its nodes."""
    assert ray_worker.host(CONFIG, (2, 4), {}) == "cpu"
    for node in (2, 4, 4):
        message, arrays = make_bare_message(node)
        reply = ray_worker.handle(message, ["arrays"], arrays)
        total = decode_arrays(reply.content.array_records["arrays"])["sum"]
        assert total.tolist() == [1.0 + node, 2.0 + node, 3.0 + node]
        assert reply.metadata.src_node_id == node
    states = ray_worker.get_states()
    assert set(states) == {"2", "4"}
    restored = Worker(1)
    restored.host(CONFIG, (2, 4), states)
    assert {node: state.tobytes() for node, state in restored.get_states().items()} == {
        node: state.tobytes() for node, state in states.items()
    }
    restored.restore({"2": states["4"]})
    assert restored.get_states()["2"].tobytes() == states["4"].tobytes()


def test_other_code_is_refused(ray_worker: Worker) -> None:
    """The error is one line with both versions and the machine."""
    code = {**collect_code_facts(), "torch": "1.0"}
    message = (
        r"^all workers must have the code of the run's process: torch is \S+ on \S+, and 1\.0 th"
    )
    with pytest.raises(RunError, match=message):
        ray_worker.host(replace(CONFIG, code=code), (1,), {})


def test_shared_data_is_not_read_again(ray_worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """``load_data`` returns the data in the worker's config."""
    settings = compose_settings("", "data.num_clients=3 data.num_priority=1").settings
    monkeypatch.setattr("client_app.data.load._last", {})
    data: Any = object()
    ray_worker.host(replace(CONFIG, data=SharedData(settings.data, settings.seed, data)), (1,), {})
    assert load_data(settings.data, settings.seed) is data


def test_arrays_are_sent_without_copies() -> None:
    """Both sides use the bytes of the array itself, and read the same values."""
    record = encode_arrays({"w": np.arange(6, dtype=np.float32).reshape(2, 3), "s": np.array(2)})
    arrived = ArrayRecord()
    for name, array in record.items():
        arrived[name] = unpack(pack(array))
        packed = pack(array)
        address = np.frombuffer(array.data, np.uint8).ctypes.data
        assert packed[-1].ctypes.data == address
        assert np.frombuffer(unpack(packed).data, np.uint8).ctypes.data == address
    assert arrived.count_bytes() == record.count_bytes()
    for name, view in view_arrays(arrived).items():
        assert np.array_equal(view, view_arrays(record)[name])
        assert np.array_equal(arrived[name].numpy(), record[name].numpy())


def test_any_flower_array_arrives_unchanged() -> None:
    """Arrays in Fortran order and empty arrays arrive unchanged, too."""
    for values in (np.zeros((0, 3)), np.asfortranarray(np.arange(6.0).reshape(2, 3))):
        array = Array(values)
        arrived = unpack(pack(array))
        assert (arrived.dtype, arrived.shape, arrived.stype) == (
            array.dtype,
            array.shape,
            array.stype,
        )
        assert np.array_equal(arrived.numpy(), values)
