"""A newcomer's way: an own app on three devices, with FedALIGN or with secure sums."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fedquorum.audit.check import audit_run

from tests.integration.deployed import Deployment, start_deployment
from tests.integration.test_deployment import key_fingerprint

pytestmark = [pytest.mark.slow, pytest.mark.flower]

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "own-app"
version = "1.0.0"
description = "An app that knows nothing of this repository."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "own.server:app"
clientapp = "own.client:app"

[tool.flwr.app.config]
records = ""
key = ""
model = ""
"""
SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from fedquorum import FedALIGN, FedAU

app = ServerApp()

@app.main()
def main(grid, context):
    if path := context.run_config["model"]:
        strategy = FedAU(
            fraction_evaluate=0.0, min_available_nodes=3, secure_aggregation="masks"
        )
        result = strategy.start(grid, ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=1)
        np.save(path, result.arrays["w"].numpy())
        return
    key = context.run_config["key"]
    named = {"clients_by_key": {key: 0, "north": 1, "south": 2}} if key else {}
    strategy = FedALIGN(
        priority=[0],
        num_rounds=1,
        warmup_rounds=0,
        epsilon=0.3,
        fraction_evaluate=0.0,
        min_available_nodes=3,
        records=context.run_config["records"],
        **named,
    )
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=1)
"""
CLIENT = """
from fedquorum.flower.mods import SecureSumMod, StandardAppMod
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp(mods=[SecureSumMod(), StandardAppMod()])

@app.train()
def train(message, context):
    device = context.node_config["client-id"]
    metrics = MetricRecord({"num-examples": 10 + device, "loss": 0.2 * device})
    model = message.content["arrays"]["w"].numpy()
    arrays = ArrayRecord({"w": Array(model + 0.1 * (device + 1) ** 3)})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content, reply_to=message)
"""
DEVICES = ("north", "south", "west")


def write_app(folder: Path) -> Path:
    """Write an app for Flower's own strategies, with FedALIGN in their place."""
    (folder / "own").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    for name, code in (("__init__", ""), ("server", SERVER), ("client", CLIENT)):
        (folder / "own" / f"{name}.py").write_text(code)
    return folder


def submit(deployment: Deployment, app: Path, **config: object) -> str:
    """Run the app on the deployment; return what its server printed."""
    words = " ".join(f'{key}="{value}"' for key, value in config.items())
    done = deployment.run_flwr("run", str(app), "deployment", "--stream", "--run-config", words)
    return done.stdout + done.stderr


def test_the_named_device_has_priority(tmp_path: Path, ssh_keygen: str) -> None:
    """Unnamed, the run ends before a message; named by its key, the right device is client 0.

    The app's mods change nothing there. In a run with masks they give the mean of the updates.
    """
    with start_deployment(tmp_path / "deployment") as deployment:
        deployment.register_clients(DEVICES)
        for device, name in enumerate(DEVICES):
            deployment.start_node(name, device, preload=False)
        app, run = write_app(tmp_path / "app"), tmp_path / "run"
        printed = submit(deployment, app, records=run)
        assert "client_ids must be given in a deployment with priority clients" in printed
        keys = {name: key_fingerprint(ssh_keygen, deployment.make_key(name)) for name in DEVICES}
        for name, key in keys.items():
            assert f"({name}) with key {key}" in printed
        assert json.loads((run / "manifest.json").read_text())["status"] == "failed"
        # The folder of the failed start is free.
        printed = submit(deployment, app, records=run, key=keys["west"])
        assert f"(west) with key {keys['west']}" in printed
        assert json.loads((run / "manifest.json").read_text())["status"] == "completed"
        printed = submit(deployment, app, model=tmp_path / "model.npy")
    check_masked_mean(tmp_path / "model.npy", printed)
    rows = pq.read_table(run / "population.parquet").to_pylist()
    assert [(row["client"], row["priority"], row["node_key"]) for row in rows] == [
        (0, True, keys["west"]),
        (1, False, keys["north"]),
        (2, False, keys["south"]),
    ]
    assert len({row["node"] for row in rows}) == 3
    answers = pq.read_table(run / "clients").to_pylist()
    statuses = {row["client"]: row["status"] for row in answers}
    assert statuses == {0: "trained", 1: "rejected", 2: "trained"}
    # The examples tell the devices apart; north's loss is more than epsilon from west's.
    assert {row["client"]: row["num_examples"] for row in answers} == {0: 12, 1: 10, 2: 11}
    assert not audit_run(run).mismatches


def check_masked_mean(path: Path, printed: str) -> None:
    """Compare the model of a round with masks with the mean of the devices' updates."""
    assert "Masks: each of 3 nodes masks its sum with 2 others" in printed
    moves = [0.1 * (device + 1) ** 3 for device in range(len(DEVICES))]
    np.testing.assert_allclose(np.load(path), np.mean(moves), rtol=1e-12)
