"""Test that a device refuses a resumed run with other data than that of the run so far."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.flower.codec import (
    EvaluateRequest,
    Status,
    TrainRequest,
    decode_evaluate_reply,
    decode_hosted_clients,
    decode_train_reply,
    encode_arrays,
    encode_evaluate_request,
    encode_train_request,
)
from fedquorum.rules.types import Objective, RoundPlan
from flwr.app import Message, RecordDict

from client_app.app import _build_node, app
from client_app.data import load
from client_app.node.agreement import QUERY_TYPE
from client_app.node.own_data import DATA_FILE, MAX_ENTRIES, REASON
from conf import compose_settings
from server_app.engines.in_process import InProcessGrid

WORDS = "data=npz data.partition=device data.path=nowhere.npz data.num_clients=3 data.priority=all "
WORDS += "data.input_shape=[2] data.num_classes=2 client.local_epochs=1 strategy=fedavg"
MODEL = {"linear.weight": np.zeros((2, 2), np.float32), "linear.bias": np.zeros(2, np.float32)}
TRAIN = encode_train_request(
    encode_arrays(MODEL), TrainRequest(1, RoundPlan((2,)), (True,), Objective(1.0, 0.5))
)
EVALUATE = encode_evaluate_request(encode_arrays(MODEL), EvaluateRequest(1, (2,), (True,), (True,)))
FOLDER = "/srv/outputs/run"


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one client's data, which is Flower's home too."""
    write_data(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    return tmp_path


def write_data(device: Path, rows: int = 6, flipped: bool = False) -> None:
    y = np.arange(rows) % 2
    np.savez(
        device / "own.npz",
        x_train=np.arange(2 * rows, dtype=np.float32).reshape(rows, 2),
        y_train=1 - y if flipped else y,
        x_test=np.ones((2, 2), dtype=np.float32),
        y_test=np.array([1, 0]),
    )


def send_message(
    device: Path,
    overrides: str = "",
    content: RecordDict = TRAIN,
    kind: str = "train",
    *,
    run_id: int = 1,
    folder: str = FOLDER,
) -> Message:
    """Return the reply of a device in a new process, in a run of Flower."""
    load._last.clear()
    _build_node.cache_clear()
    composed = compose_settings("custom", f"{WORDS} {overrides}")
    grid = InProcessGrid(app, composed.run_config | {"output-dir": folder}, 1)
    (node,) = grid.get_node_ids()
    context = grid._contexts[node]
    context.node_config = {"client-id": 2, "data-path": str(device / "own.npz")}
    context.run_id = run_id
    (reply,) = grid.send_and_receive([Message(content, node, kind)])
    return reply


def get_train_result(reply: Message) -> tuple[Status, str | None]:
    (result,) = decode_train_reply(reply.content)
    return result.status, result.reason


RESUME = f"resume={FOLDER}"
REFUSED = (Status.UNAVAILABLE, f"its node takes no part: {REASON}")


@pytest.mark.parametrize("folder", [FOLDER, ""], ids=["known-folder", "folder-of-the-server"])
def test_a_resume_with_other_data_is_refused(
    device: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
) -> None:
    """The server learns that the data changed; the node's log says how."""
    assert get_train_result(send_message(device, folder=folder))[0] is Status.DONE
    write_data(device, rows=5)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        reply = send_message(device, RESUME, run_id=2, folder=folder)
    assert get_train_result(reply) == REFUSED
    assert "rows of client 2 8 -> 7" in caplog.text
    assert str(device / DATA_FILE) in caplog.text
    write_data(device, flipped=True)
    assert get_train_result(send_message(device, RESUME, run_id=3, folder=folder)) == REFUSED
    write_data(device)
    again = send_message(device, f"{RESUME} rounds=99", run_id=4, folder=folder)
    assert get_train_result(again)[0] is Status.DONE


def test_every_message_is_refused(device: Path) -> None:
    """A query returns the client's id, so that the records have the reason."""
    send_message(device)
    write_data(device, rows=5)
    reply = send_message(device, RESUME, EVALUATE, "evaluate", run_id=2)
    (measured,) = decode_evaluate_reply(reply.content)
    assert (measured.status, measured.reason) == REFUSED
    asked = send_message(device, RESUME, RecordDict(), "query", run_id=2)
    assert decode_hosted_clients(asked.content) == (2,)
    refusal = send_message(device, RESUME, RecordDict(), QUERY_TYPE, run_id=2)
    assert REASON in str(refusal.error.reason)


def test_a_new_run_may_have_other_data(device: Path) -> None:
    """Only a resume is compared, also where runs have one folder or the same settings."""
    send_message(device)
    write_data(device, rows=5)
    assert get_train_result(send_message(device, run_id=2))[0] is Status.DONE
    assert get_train_result(send_message(device, RESUME, run_id=3))[0] is Status.DONE
    assert get_train_result(send_message(device, f"{RESUME}-2", run_id=4))[0] is Status.DONE


def test_other_runs_are_not_compared(device: Path) -> None:
    """A run of other settings in an unknown folder says nothing about this one."""
    send_message(device, "client.lr=0.2", folder="")
    write_data(device, rows=5)
    assert get_train_result(send_message(device, RESUME, run_id=2, folder=""))[0] is Status.DONE


def test_the_fingerprint_stays_on_the_device(device: Path) -> None:
    """No reply has a hash of the data; the device's file has all."""
    replies = [
        send_message(device, content=content, kind=kind)
        for content, kind in ((TRAIN, "train"), (EVALUATE, "evaluate"), (RecordDict(), "query"))
    ]
    (entry,) = json.loads((device / DATA_FILE).read_text())
    hashes = [entry["data"]["inputs"]["sha256"], entry["data"]["targets"]]
    texts = [str(reply.content) for reply in replies]
    assert not [text for text in texts for digest in hashes if digest in text]


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"x": 1}]', "[3]"])
def test_a_damaged_file_is_replaced(device: Path, text: str) -> None:
    """A node without a memory takes part, and begins one."""
    (device / DATA_FILE).write_text(text)
    assert get_train_result(send_message(device, RESUME))[0] is Status.DONE
    assert len(json.loads((device / DATA_FILE).read_text())) == 1


def test_the_file_stays_small(device: Path) -> None:
    """The oldest runs are forgotten."""
    entry: dict[str, Any] = {"client": 2, "run_id": 9, "folder": "", "settings": "", "data": {}}
    (device / DATA_FILE).write_text(json.dumps([entry] * MAX_ENTRIES))
    send_message(device)
    assert len(json.loads((device / DATA_FILE).read_text())) == MAX_ENTRIES


def test_a_home_that_cannot_be_written(
    device: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node takes part, and its log says that a resume cannot notice other data."""
    (device / DATA_FILE).mkdir()
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        assert get_train_result(send_message(device))[0] is Status.DONE
    assert "cannot be written" in caplog.text
