"""Test that the in-process Grid behaves like Flower's."""

import time
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import RunError
from fedquorum.flower.codec.secure import encode_state
from fedquorum.flower.secure.keys import RoundId
from fedquorum.flower.secure.node import make_keys
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto

from server_app.engines.in_process import InProcessGrid


def make_counting_app() -> ClientApp:
    """Return a ClientApp that counts its calls in the node's state; the config may make it fail."""
    app = ClientApp()

    @app.query()
    def handle_query(message: Message, context: Context) -> Message:
        config: dict[str, Any] = dict(message.content.config_records.get("config", {}))
        if config.get("fail"):
            raise ValueError("as configured")
        time.sleep(float(config.get("sleep", 0)))
        calls = len(context.state) + 1
        context.state[f"call {calls}"] = ConfigRecord()
        content = ConfigRecord({"calls": calls, "partition": context.node_config["partition-id"]})
        return Message(RecordDict({"answer": content}), reply_to=message)

    return app


def make_query(grid: InProcessGrid, node: int, **config: Any) -> Message:
    content = RecordDict({"config": ConfigRecord(config)})
    return Message(content, node, MessageType.QUERY)


def test_each_node_keeps_its_own_state() -> None:
    """The state is in the node's context, between messages and separate from other nodes."""
    grid = InProcessGrid(make_counting_app(), {}, 2)
    first, second = grid.get_node_ids()
    results = []
    for node in (first, first, second):
        (reply,) = grid.send_and_receive([make_query(grid, node)])
        results.append(dict(reply.content.config_records["answer"]))
        assert reply.metadata.src_node_id == node
    assert [result["calls"] for result in results] == [1, 2, 1]
    assert [result["partition"] for result in results] == [0, 0, 1]


def test_states_are_restored_and_damaged_ones_are_refused() -> None:
    """A checkpoint may come from an untrusted source."""
    grid = InProcessGrid(make_counting_app(), {}, 2)
    list(grid.send_and_receive([make_query(grid, 1)]))
    other = InProcessGrid(make_counting_app(), {}, 2)
    other.restore_node_states(grid.get_node_states())
    calls = []
    for node in (1, 2):
        (reply,) = other.send_and_receive([make_query(other, node)])
        calls.append(reply.content.config_records["answer"]["calls"])
    assert calls == [2, 1]
    garbage = np.frombuffer(b"\xff" * 9, dtype=np.uint8)
    for states in ({"1": garbage, "2": garbage}, {"1": garbage, "../2": garbage}):
        with pytest.raises(RunError, match="nodes' states in the checkpoint cannot be read"):
            other.restore_node_states(states)


def test_no_checkpoint_has_the_secrets_of_masks() -> None:
    """Neither those that a run writes, nor those that it reads."""
    grid = InProcessGrid(make_counting_app(), {}, 2)
    list(grid.send_and_receive([make_query(grid, 1)]))
    before = grid.get_node_states()
    state, _ = make_keys(1, RoundId("0", 3))
    records = encode_state(state)
    grid._contexts[1].state.update(records)
    states = grid.get_node_states()
    assert {node: one.tobytes() for node, one in states.items()} == {
        node: one.tobytes() for node, one in before.items()
    }
    assert not any(state.own_secret in one.tobytes() for one in states.values())
    assert records.keys() < grid._contexts[1].state.keys()  # the node itself still has them
    written = recorddict_to_proto(grid._contexts[1].state).SerializeToString()
    assert state.own_secret in written
    grid.restore_node_states({**states, "1": np.frombuffer(written, np.uint8)})
    assert grid._contexts[1].state.keys() == {"call 1"}


def test_a_client_app_that_raises_becomes_an_error_reply() -> None:
    """As in Flower's simulation, the server receives an error and the run continues."""
    grid = InProcessGrid(make_counting_app(), {}, 1)
    (reply,) = grid.send_and_receive([make_query(grid, 1, fail=True)])
    assert reply.has_error()
    assert reply.error.reason == "ValueError: as configured"


def test_pushed_messages_are_pulled_once() -> None:
    """Replies wait until they are pulled, and each is returned once."""
    grid = InProcessGrid(make_counting_app(), {}, 1)
    ids = list(grid.push_messages([make_query(grid, 1)]))
    assert len(list(grid.pull_messages(ids))) == 1
    assert list(grid.pull_messages(ids)) == []


def test_nodes_beyond_the_timeout_are_left_out() -> None:
    """Nodes reply one after the other; a node that is not reached in time does not reply."""
    grid = InProcessGrid(make_counting_app(), {}, 3)
    messages = [make_query(grid, node, sleep=0.2) for node in grid.get_node_ids()]
    assert len(list(grid.send_and_receive(messages, timeout=0.1))) == 1


def test_the_grid_has_an_empty_run() -> None:
    """The grid also lists its nodes, and refuses a message to an unknown node."""
    grid = InProcessGrid(make_counting_app(), {}, 1)
    assert grid.run.run_id == 0
    grid.set_run(grid.run)
    assert [node.node_id for node in grid.get_nodes()] == [1]
    with pytest.raises(KeyError):
        grid.push_messages([make_query(grid, 9)])
