"""Test a process on a device: its data, and the failures that it reports."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.flower.codec import (
    Status,
    TrainRequest,
    TrainResult,
    decode_hosted_clients,
    decode_train_reply,
    encode_arrays,
    encode_train_request,
)
from fedquorum.rules.types import Objective, RoundPlan
from flwr.app import Message, RecordDict

from client_app.app import app
from conf import compose_settings
from server_app.engines.in_process import InProcessGrid

WORDS = "data=npz data.partition=device data.path=nowhere.npz data.num_clients=3 data.priority=all "
WORDS += "data.input_shape=[2] data.num_classes=2 client.local_epochs=1"


def write(path: Path, **change: Any) -> Path:
    arrays = {
        "x_train": np.arange(12, dtype=np.float32).reshape(6, 2),
        "y_train": np.array([0, 1, 0, 1, 0, 1]),
        "x_test": np.ones((2, 2), dtype=np.float32),
        "y_test": np.array([1, 0]),
    }
    np.savez(path, **(arrays | change))
    return path


def send_message(
    content: RecordDict, kind: str, overrides: str = WORDS, **node_config: Any
) -> Message:
    """Return the reply of a node with this config."""
    grid = InProcessGrid(
        app, compose_settings("custom", overrides).run_config | {"output-dir": ""}, 1
    )
    (node,) = grid.get_node_ids()
    context = grid._contexts[node]
    context.node_config = {"client-id": 2, **node_config}
    (reply,) = grid.send_and_receive([Message(content, node, kind)])
    return reply


def train_request() -> RecordDict:
    model = {"linear.weight": np.zeros((2, 2), np.float32), "linear.bias": np.zeros(2, np.float32)}
    request = TrainRequest(1, RoundPlan((2,)), (True,), Objective(1.0, 0.5))
    return encode_train_request(encode_arrays(model), request)


def decode_result(reply: Message) -> TrainResult:
    (result,) = decode_train_reply(reply.content)
    return result


def test_a_device_reads_where_its_node_config_says(tmp_path: Path) -> None:
    """``data-path`` takes the place of ``data.path``, which leads nowhere here."""
    path = write(tmp_path / "own data.npz")
    reply = send_message(RecordDict(), "query", **{"data-path": str(path)})
    assert decode_hosted_clients(reply.content) == (2,)
    reply = send_message(train_request(), "train", **{"data-path": str(path)})
    assert decode_result(reply).num_examples == 6


def test_shared_data_is_where_the_settings_say(tmp_path: Path) -> None:
    """A data set that every device has whole has no other place on one of them."""
    overrides = "data=synth data.num_clients=5 data.num_priority=2"
    reply = send_message(
        RecordDict(), "query", overrides, **{"data-path": str(tmp_path / "none.npz")}
    )
    assert decode_hosted_clients(reply.content) == (2,)


@pytest.mark.parametrize("kind", ["query", "train"])
def test_data_errors_stay_on_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """The server learns only that the data is invalid; the node's log has the wrong label."""
    path = write(tmp_path / "own.npz", y_test=np.array([1, 77]))
    content = train_request() if kind == "train" else RecordDict()
    reply = send_message(content, kind, **{"data-path": str(path)})
    reason = reply.error.reason if reply.has_error() else decode_result(reply).reason
    assert reason == "DataError: the log of the node has the text"
    assert "got 1 to 77" in caplog.text


def test_status_of_a_client_whose_data_is_gone(tmp_path: Path) -> None:
    """It has failed; the others of a node would go on."""
    reply = send_message(train_request(), "train", **{"data-path": str(tmp_path / "gone.npz")})
    assert decode_result(reply).status is Status.FAILED
