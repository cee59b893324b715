"""The in-process Grid behaves as Flower's."""

import time
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import RunError
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from server_app.in_process import InProcessGrid


def counting_app() -> ClientApp:
    """Return a ClientApp that counts its calls in the node's state, or fails when told to."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        told: dict[str, Any] = dict(message.content.config_records.get("config", {}))
        if told.get("fail"):
            raise ValueError("as told")
        time.sleep(float(told.get("sleep", 0)))
        calls = len(context.state) + 1
        context.state[f"call {calls}"] = ConfigRecord()
        content = ConfigRecord({"calls": calls, "partition": context.node_config["partition-id"]})
        return Message(RecordDict({"answer": content}), reply_to=message)

    return app


def make_query(grid: InProcessGrid, node: int, **told: Any) -> Message:
    content = RecordDict({"config": ConfigRecord(told)})
    return Message(content, node, MessageType.QUERY)


def test_each_node_keeps_its_own_state() -> None:
    """State lives in the node's context, between messages and apart from other nodes."""
    grid = InProcessGrid(counting_app(), {}, 2)
    first, second = grid.get_node_ids()
    answers = []
    for node in (first, first, second):
        (reply,) = grid.send_and_receive([make_query(grid, node)])
        answers.append(dict(reply.content.config_records["answer"]))
        assert reply.metadata.src_node_id == node
    assert [a["calls"] for a in answers] == [1, 2, 1]
    assert [a["partition"] for a in answers] == [0, 0, 1]


def test_states_come_back_and_what_is_none_is_refused() -> None:
    """A checkpoint may be from anybody."""
    grid = InProcessGrid(counting_app(), {}, 2)
    list(grid.send_and_receive([make_query(grid, 1)]))
    other = InProcessGrid(counting_app(), {}, 2)
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


def test_a_client_app_that_raises_becomes_an_error_reply() -> None:
    """As in Flower's simulation, the server sees an error and goes on."""
    grid = InProcessGrid(counting_app(), {}, 1)
    (reply,) = grid.send_and_receive([make_query(grid, 1, fail=True)])
    assert reply.has_error()
    assert reply.error.reason == "ValueError: as told"


def test_push_and_pull() -> None:
    """Answers wait until they are pulled, and are handed out once."""
    grid = InProcessGrid(counting_app(), {}, 1)
    ids = list(grid.push_messages([make_query(grid, 1)]))
    assert len(list(grid.pull_messages(ids))) == 1
    assert list(grid.pull_messages(ids)) == []


def test_nodes_beyond_the_timeout_are_left_out() -> None:
    """Nodes answer one after the other; those not reached in time do not answer."""
    grid = InProcessGrid(counting_app(), {}, 3)
    messages = [make_query(grid, node, sleep=0.2) for node in grid.get_node_ids()]
    assert len(list(grid.send_and_receive(messages, timeout=0.1))) == 1


def test_run_information() -> None:
    """The run is an empty one."""
    grid = InProcessGrid(counting_app(), {}, 1)
    assert grid.run.run_id == 0
    grid.set_run(grid.run)
    assert [node.node_id for node in grid.get_nodes()] == [1]
    with pytest.raises(KeyError):
        grid.push_messages([make_query(grid, 9)])
