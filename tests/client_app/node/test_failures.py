"""Test reported failures: a real machine sends the class of the error and no data."""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from fedquorum.flower.codec import (
    EvaluateRequest,
    TrainRequest,
    decode_evaluate_reply,
    decode_train_reply,
    encode_arrays,
    encode_evaluate_request,
    encode_train_request,
)
from fedquorum.rules.types import Objective, RoundPlan
from flwr.app import Message, RecordDict
from PIL import Image

from client_app import app as client_app
from client_app.node.node import SUPERNODE_MODULE
from client_app.node.policy import may_send_reasons
from server_app.engines.in_process import InProcessGrid
from tests.cases import sample_cases

SECRETS = ("Borreliosis", "Lovelace", "31415", "-27182")
"""Values of the data below, of which the server may hear none."""

NodeConfig = Mapping[str, str | int]
DEVICE: NodeConfig = {"client-id": 2}
SIMULATED: NodeConfig = {"partition-id": 0, "num-partitions": 1}
MODEL = {"linear.weight": np.zeros((2, 2), np.float32), "linear.bias": np.zeros(2, np.float32)}
ARRAYS = "data=npz data.partition=device data.num_classes=2 data.input_shape=[2]"
TABLE = (
    "data=csv data.client_column=null data.target=ill "
    "data.columns={numbers:[age],classes:['no','yes']}"
)
IMAGES = (
    "data=npz data.partition=device data.num_classes=2 data.input_shape=[3,4,4] "
    "client.augmentation=cifar100 model=mlp"
)


pytestmark = pytest.mark.usefixtures("no_node_from_before")


@dataclass(frozen=True)
class Broken:
    """Data that cannot be used: how to write it, the settings that it does not fit, the reason."""

    write: Callable[[Path], object]
    overrides: str
    reason_pattern: str = r"\w+Error: the log of the node has the text"


def arrays(path: Path, inputs: object, labels: object) -> None:
    results = {f"x_{result}": np.asarray(inputs, np.float32) for result in ("train", "test")}
    results |= {f"y_{result}": np.asarray(labels) for result in ("train", "test")}
    with path.open("wb") as file:
        np.savez(file, **results)  # type: ignore[arg-type]


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def image(path: Path) -> None:
    path.mkdir()
    for name in ("Borreliosis", "Lovelace"):
        (path / name).mkdir()
        Image.new("RGB", (4, 4)).save(path / name / "31415.png")


BROKEN = {
    "a label of no class": Broken(
        lambda path: arrays(path, [[0, 1]] * 4, [0, 1, 0, 31415]), ARRAYS
    ),
    "labels that are text": Broken(
        lambda path: arrays(path, [[0, 1]] * 2, ["Borreliosis", "Lovelace"]), ARRAYS
    ),
    "an input that is not finite": Broken(
        lambda path: arrays(path, [[31415, np.nan], [-27182, 1]], [0, 1]), ARRAYS
    ),
    "pixels beyond 1": Broken(
        lambda path: arrays(path, np.linspace(-27182, 31415, 96).reshape(2, 3, 4, 4), [0, 1]),
        IMAGES,
        "client.augmentation must be none, crop or crop_flip where pixels are not in .0, 1., .*"
        "|DataError: the log of the node has the text",
    ),
    "no file of arrays": Broken(text("Lovelace,31415\n"), ARRAYS),
    "a word among numbers": Broken(text("age,ill\n31415,no\nBorreliosis,yes\n-27182,no\n"), TABLE),
    "a class that was not agreed on": Broken(text("age,ill\n1,no\n2,Borreliosis\n3,no\n"), TABLE),
    "a column that was not agreed on": Broken(text("Lovelace,ill\n31415,no\n2,yes\n"), TABLE),
    "lines of unlike length": Broken(text("age,ill\n31415,no,Lovelace\n2\n"), TABLE),
    "folders of other classes": Broken(
        image,
        "data=image_folder data.partition=device data.image_size=[4,4] data.classes=[cat,dog]",
    ),
}
REQUESTS = {
    "query": RecordDict(),
    "train": encode_train_request(
        encode_arrays(MODEL), TrainRequest(1, RoundPlan((2,)), (True,), Objective(1.0, 0.5))
    ),
    "evaluate": encode_evaluate_request(
        encode_arrays(MODEL), EvaluateRequest(1, (2,), (True,), (True,))
    ),
}


def get_error_reason(kind: str, overrides: str, node_config: NodeConfig) -> str:
    """Return the reason of a node's failure."""
    common = "data.num_clients=3 data.priority=all client.local_epochs=1 client.device=cpu"
    config = {"experiment": "custom", "overrides": f"{overrides} {common}", "output-dir": ""}
    grid = InProcessGrid(client_app.app, config, 1)
    (node,) = grid.get_node_ids()
    grid._contexts[node].node_config = dict(node_config)
    (reply,) = grid.send_and_receive([Message(REQUESTS[kind], node, kind)])
    if reply.has_error():
        return str(reply.error.reason)
    decode = decode_train_reply if kind == "train" else decode_evaluate_reply
    (result,) = decode(reply.content)
    return str(result.reason)


@pytest.mark.parametrize(
    ("name", "kind", "has_data_path"), sample_cases([*product(BROKEN, REQUESTS, (True, False))], 20)
)
def test_a_device_quotes_no_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, kind: str, *, has_data_path: bool
) -> None:
    """A device reports no data, from any source; its log has the text."""
    broken, path = BROKEN[name], tmp_path / "data"
    broken.write(path)
    elsewhere = {"data-path": str(path)} if has_data_path else {}
    overrides = f"{broken.overrides} data.path={tmp_path / 'nothing' if has_data_path else path}"
    reason = get_error_reason(kind, overrides, {**DEVICE, **elsewhere})
    assert not [secret for secret in SECRETS if secret in reason], reason
    assert re.fullmatch(broken.reason_pattern, reason), reason
    assert re.search(r"(used|failed): [a-z]+\.\w+ must ", caplog.text)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize(
    ("policy", "allowed"), [("reasons: true", True), ("reasons: false", False)]
)
def test_an_owner_may_let_the_text_leave(
    tmp_path: Path, kind: str, policy: str, *, allowed: bool
) -> None:
    """With ``reasons: true`` in node.yaml."""
    BROKEN["a label of no class"].write(tmp_path / "data")
    (tmp_path / "node.yaml").write_text(policy)
    reason = get_error_reason(
        kind, f"{ARRAYS} data.path=nowhere", {**DEVICE, "data-path": str(tmp_path / "data")}
    )
    assert ("31415" in reason) == allowed
    assert "\n" not in reason


@pytest.mark.parametrize("text", ["", "color: 1", "reasons: 1", "reasons: [", None])
def test_without_a_usable_policy_no_text_leaves(tmp_path: Path, text: str | None) -> None:
    """An owner must say so."""
    if text is not None:
        (tmp_path / "node.yaml").write_text(text)
    assert not may_send_reasons({"data-path": str(tmp_path / "data")})
    assert not may_send_reasons({})


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_simulation_shows_the_error_text(tmp_path: Path, kind: str) -> None:
    """A simulation reports the text, because its data belong to the user."""
    BROKEN["a label of no class"].write(tmp_path / "data")
    assert "31415" in get_error_reason(kind, f"{ARRAYS} data.path={tmp_path / 'data'}", SIMULATED)


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_supernode_of_several_clients_quotes_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its node config is that of a simulation, but Flower's module for SuperNodes is loaded."""
    monkeypatch.setitem(sys.modules, SUPERNODE_MODULE, ModuleType(SUPERNODE_MODULE))
    BROKEN["a label of no class"].write(tmp_path / "data")
    reason = get_error_reason(kind, f"{ARRAYS} data.path={tmp_path / 'data'}", SIMULATED)
    assert reason == "DataError: the log of the node has the text"


@pytest.mark.slow
def test_which_flower_loads_the_module() -> None:
    """The command that runs an app on a SuperNode does, and what simulates nodes does not."""
    code = "import sys, {}; print({!r} in sys.modules)"
    for module, deployed in (
        ("flwr.supernode.cli.flwr_clientapp", True),
        ("flwr.simulation.ray_transport.ray_actor, flwr.simulation.app", False),
        ("server_app.app, server_app.engines.in_process, server_app.engines.ray.worker", False),
    ):
        command = [sys.executable, "-c", code.format(module, SUPERNODE_MODULE)]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert said.stdout.splitlines()[-1] == str(deployed), module


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("data.color=red", "data.color"),
        ("client.augmentation=crop", "client.augmentation must be"),
        ("client.loss=binary evaluation.metric=top5", "evaluation.metric=top5"),
    ],
)
def test_errors_in_settings_are_reported(
    tmp_path: Path, kind: str, overrides: str, expected: str
) -> None:
    """They are the server's, and their texts have nothing of the data."""
    arrays(tmp_path / "data.npz", [[0, 1]] * 4, [0, 1, 0, 1])
    data = {"data-path": str(tmp_path / "data.npz")}
    reason = get_error_reason(kind, f"{ARRAYS} data.path=nowhere {overrides}", {**DEVICE, **data})
    assert reason.startswith(expected)


def test_a_node_config_is_not_quoted() -> None:
    """It has the path of the data, which may name a person."""
    reason = get_error_reason("query", "data=synth", {"data-path": "/home/Lovelace"})
    assert reason.endswith("must hold client-id, or partition-id and num-partitions, got data-path")
