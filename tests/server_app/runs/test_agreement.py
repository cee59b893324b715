"""Devices agree on the scales of their numbers, through the messages of a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.audit.cli import main as audit
from fedquorum.errors import ClientsMissingError, ProtocolError, SettingsError
from fedquorum.flower.codec import encode_query
from flwr.app import ConfigRecord, Message, RecordDict

from client_app.app import app
from client_app.data import load
from client_app.data.moments import Moments
from client_app.node.agreement import (
    QUERY_TYPE,
    STATISTICS,
    decode_scales,
    decode_statistics,
    encode_statistics,
    encode_statistics_query,
)
from conf import compose_settings
from server_app.engines.in_process import InProcessGrid
from server_app.runs.loop import run_rounds
from tests.builders_runs import read_rounds, read_rows

ALLOWED = "statistics: true\n"
COLUMNS = "data.columns={numbers:[age,dose]} data.regression=true data.target=y"
RUN = "data=csv strategy=fedavg rounds=2 client.local_epochs=1 data.scaling=agreed " + COLUMNS


def write_tables(folder: Path, policies: Mapping[int, str]) -> Path:
    """Write the table of three clients, and a folder for each device with its part of it."""
    rng = np.random.default_rng(0)
    lines = []
    for client in range(3):
        rows = [
            f"{age:.1f},{'' if i == 3 else round(age / 9 + i % 3, 2)},{150000 + 3000 * age:.0f}"
            for i, age in enumerate(rng.normal(40 + 10 * client, 15, 20 + client).tolist())
        ]
        lines += [f"{client},{row}" for row in rows]
        device = folder / str(client)
        device.mkdir()
        (device / "own.csv").write_text("\n".join(["age,dose,y", *rows]))
        if policy := policies.get(client):
            (device / "node.yaml").write_text(policy)
    path = folder / "all.csv"
    path.write_text("\n".join(["client,age,dose,y", *lines]))
    return path


def run_devices(folder: Path, directory: Path, words: str = "", absent: int = 0) -> Path:
    """Run the clients of a folder on a node each; the last ``absent`` ones are not there."""
    overrides = f"{RUN} data.client_column=null data.path=nowhere.csv data.num_clients=3 {words}"
    composed = compose_settings("custom", overrides)
    grid = InProcessGrid(app, composed.run_config | {"output-dir": ""}, 3 - absent)
    for node, context in grid._contexts.items():
        data = str(folder / str(node - 1) / "own.csv")
        context.node_config = {"client-id": node - 1, "data-path": data}
    return run_rounds(grid, composed, str(directory), engine="flower")


def run_table(path: Path, directory: Path, nodes: int) -> Path:
    """Run the same clients from one table, in this process."""
    overrides = f"{RUN} data.client_column=client data.path={path}"
    composed = compose_settings("custom", overrides)
    grid = InProcessGrid(app, composed.run_config | {"output-dir": ""}, nodes)
    return run_rounds(grid, composed, str(directory), engine="in-process")


def read_scales(directory: Path) -> dict[str, Any]:
    manifest = json.loads((directory / "manifest.json").read_text())
    scales: dict[str, Any] = manifest["data"]["scales"]
    return scales


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_devices_get_the_bits_of_one_process(folder: Path) -> None:
    """One table on one node or two, and a device for each client, train the same model."""
    path = write_tables(folder, dict.fromkeys(range(3), ALLOWED))
    runs = [
        run_table(path, folder / "one", 1),
        run_table(path, folder / "two", 2),
        run_devices(folder, folder / "devices"),
    ]
    scales = [read_scales(run) for run in runs]
    assert list(scales[0]["numbers"]) == ["age", "dose"]
    assert scales[0] == scales[1] == scales[2]
    models = [(run / "model.safetensors").read_bytes() for run in runs]
    assert models[0] == models[1] == models[2]
    rows = [read_rows(run, "evaluations") for run in runs]
    assert rows[0] == rows[1] == rows[2]
    assert read_rounds(runs[2])[-1]["test"]["all"]["r2"] <= 1
    assert audit([str(runs[2])]) == 0


def test_an_owner_who_shares_no_statistics(folder: Path) -> None:
    """The client takes no part, with a reason that names the word; the others agree."""
    write_tables(folder, {0: ALLOWED, 1: "withhold: []\n", 2: ALLOWED})
    run = run_devices(folder, folder / "run")
    (row, *_) = [row for row in read_rows(run) if row["client"] == 1]
    assert row["status"] == "unavailable"
    assert row["reason"] == (
        "its node takes no part: data.scaling=agreed needs sums of its numbers, which node.yaml "
        "allows by statistics: true"
    )
    assert {row["status"] for row in read_rows(run) if row["client"] != 1} == {"trained"}


def test_nobody_shares_statistics(folder: Path) -> None:
    """The run does not start, and says why."""
    write_tables(folder, {})
    with pytest.raises(ClientsMissingError, match=r"client 0: its node takes .*statistics: true"):
        run_devices(folder, folder / "run")
    assert not (folder / "run").exists()


@pytest.mark.slow
def test_a_resumed_run_keeps_its_scales(folder: Path) -> None:
    """Devices are not asked again, even if a client has come back meanwhile."""
    write_tables(folder, dict.fromkeys(range(3), ALLOWED))
    late = "engine.startup_clients=2"
    whole = run_devices(folder, folder / "whole", late, absent=1)
    run = run_devices(folder, folder / "run", f"{late} engine.stop_after_round=1", absent=1)
    before = read_scales(run)
    resumed = f"{late} resume={run}"
    run_devices(folder, run, resumed)  # client 2 joins late, with the scales of the others
    assert read_scales(run) == before == read_scales(whole)
    last = [row for row in read_rows(run) if (row["client"], row["round"]) == (2, 2)]
    assert [row["status"] for row in last] == ["trained"]


def test_a_resumed_run_refuses_other_data(folder: Path) -> None:
    """In one process the scales follow from the data, which must not have changed."""
    path = write_tables(folder, {})

    def run(words: str) -> None:
        overrides = f"{RUN} data.client_column=client data.path={path} {words}"
        composed = compose_settings("custom", overrides)
        grid = InProcessGrid(app, composed.run_config | {"output-dir": ""}, 1)
        run_rounds(grid, composed, str(folder / "run"), engine="in-process")

    run("engine.stop_after_round=1")
    path.write_text(f"{path.read_text()}\n2,50,5,9999999")
    load._last.clear()  # as in another process
    with pytest.raises(SettingsError, match=r"data\.path must lead to the data of the run"):
        run(f"resume={folder / 'run'}")


def ask(folder: Path, content: RecordDict, kind: str = QUERY_TYPE) -> Message:
    """Return the reply of the first client's device."""
    overrides = f"{RUN} data.client_column=null data.path=nowhere.csv data.num_clients=3"
    config = compose_settings("custom", overrides).run_config | {"output-dir": ""}
    grid = InProcessGrid(app, config, 1)
    data = str(folder / "0" / "own.csv")
    grid._contexts[1].node_config = {"client-id": 0, "data-path": data}
    (reply,) = grid.send_and_receive([Message(content, 1, kind)])
    return reply


@pytest.mark.parametrize("content", [encode_statistics_query([1]), encode_query(), RecordDict()])
def test_a_query_for_others_statistics_is_refused(folder: Path, content: RecordDict) -> None:
    """It must name clients of the node."""
    write_tables(folder, {0: ALLOWED})
    assert "must name clients of this node" in str(ask(folder, content).error.reason)


SIZES = {"target": 1}
FOUND = {3: {"target": Moments.measure(np.array([[0.1], [1e300], [-7.0]]))}}


def test_statistics_survive_the_wire() -> None:
    """Every bit does."""
    assert decode_statistics(encode_statistics(FOUND), [3], SIZES) == FOUND


@pytest.mark.parametrize(
    "target",
    [
        {"counts": [2], "sums": ["4"], "squares": ["7"]},  # a variance below 0
        {"counts": [0], "sums": ["0"], "squares": ["1"]},
        {"counts": [0], "sums": ["1"], "squares": ["1"]},
        {"counts": [-1], "sums": ["0"], "squares": ["0"]},
        {"counts": [True], "sums": ["0"], "squares": ["0"]},
        {"counts": [1.5], "sums": ["0"], "squares": ["0"]},
        {"counts": [1, 1], "sums": ["0", "0"], "squares": ["0", "0"]},
        {"counts": [1], "sums": ["nan"], "squares": ["0"]},
        {"counts": [1], "sums": ["1/0"], "squares": ["1"]},
        {"counts": [1], "sums": ["9" * 5000], "squares": ["1"]},
        {"counts": [1], "sums": ["1" + "0" * 400], "squares": ["1" + "0" * 800]},
        {"counts": [1], "sums": [1], "squares": ["1"]},
        {"counts": [1], "sums": ["1"]},
        {"counts": 1, "sums": ["1"], "squares": ["1"]},
        3,
    ],
)
def test_hostile_statistics_are_refused(target: Any) -> None:
    """A device cannot spoil the scale of all by sums that belong to no numbers."""
    content = RecordDict(
        {STATISTICS: ConfigRecord({STATISTICS: json.dumps({"3": {"target": target}})})}
    )
    with pytest.raises(ProtocolError, match="its statistics cannot be used"):
        decode_statistics(content, [3], SIZES)


@pytest.mark.parametrize(
    "text", ["[]", "{}", "nothing", '{"3": {}}', '{"4": {}}', '{"3": {"x": {}}}']
)
def test_statistics_of_others_are_refused(text: str) -> None:
    """A reply must have the clients and the columns that were asked for."""
    content = RecordDict({STATISTICS: ConfigRecord({STATISTICS: text})})
    for given in (content, RecordDict()):
        with pytest.raises(ProtocolError, match="its statistics cannot be used"):
            decode_statistics(given, [3], SIZES)


def test_a_request_without_scales() -> None:
    """Damaged scales are refused, missing ones are none."""
    assert decode_scales(RecordDict()) is None
    content = RecordDict({"config": ConfigRecord({"agreed-scales": '{"target": 3}'})})
    with pytest.raises(ProtocolError, match="scales"):
        decode_scales(content)
