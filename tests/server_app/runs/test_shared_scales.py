"""Devices share the scales of their numbers with the model card, if their owners allow it."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedquorum.errors import DataError, SettingsError
from fedquorum.records.client_names import NO_NAMES, ClientNames
from flwr.app import ConfigRecord

from client_app.app import app
from client_app.data.coding.table import ClientScale
from client_app.data.scaling import NumberScale
from client_app.node import policy
from client_app.node.shared_scale import encode_scale
from conf import compose_settings
from server_app.api.result import RunResult
from server_app.engines.in_process import InProcessGrid
from server_app.runs.loop import run_rounds
from server_app.runs.shared_scales import decode_scales, merge_scales, read_earlier_scales

WORDS = (
    "data=csv strategy=fedavg rounds=1 client.local_epochs=1 data.client_column=null "
    "data.path=nowhere.csv data.num_clients=3 data.target=ill"
)
COLUMNS = "data.columns={numbers:[age,dose],classes:[no,yes]}"
SHARED = "scales: true\n"
ROWS = pd.DataFrame({"age": [50, 61], "dose": [3, None]})


def make_scale(client: int, rows: int, mean: float, name: str | None = None) -> ClientScale:
    return ClientScale(client, rows, NumberScale(*np.array([[mean], [mean], [2.0]])), name)


# --- the parts -----------------------------------------------------------------------------------


def test_a_bad_scale_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """One warning names its client; the others count."""
    hostile = ConfigRecord({**encode_scale(make_scale(1, 7, 3.0)), "deviation": [-1.0]})
    reported = {0: encode_scale(make_scale(0, 5, 1.0)), 1: hostile, 2: ConfigRecord()}
    with caplog.at_level(logging.WARNING, "flwr"):
        (found,) = decode_scales(reported, 1, ClientNames({0: "North", 1: "South"}))
    assert (found.client, found.rows, found.name) == (0, 5, "North")
    assert [record.getMessage() for record in caplog.records] == [
        "Without the scale of client South: 'deviation' must be above 0",
        "Without the scale of client 2: 'rows' must be a whole number from 1 to 1000000000000",
    ]
    assert decode_scales({0: reported[0]}, 1, NO_NAMES)[0].name is None


def test_scales_of_two_legs() -> None:
    """A client's newest counts, and a name that two devices gave is nobody's."""
    earlier = [make_scale(2, 5, 1.0, "North"), make_scale(0, 5, 1.0, "South")]
    now = [make_scale(1, 5, 1.0, "North"), make_scale(0, 9, 1.0, "South")]
    found = merge_scales(earlier, now)
    assert [(known.client, known.rows, known.name) for known in found] == [
        (0, 9, "South"),
        (1, 5, None),
        (2, 5, None),
    ]


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"inputs": {"scaling": {"kind": "x"}}}'])
def test_a_damaged_card_has_no_earlier_scales(tmp_path: Path, text: str | None) -> None:
    """The run continues, and writes the card anew."""
    if text is not None:
        (tmp_path / "model_card.json").write_text(text)
    assert read_earlier_scales(tmp_path, 1) == ()


# --- runs ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the tables of three devices."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    rng = np.random.default_rng(0)
    for client in range(3):
        device = tmp_path / str(client)
        device.mkdir()
        rows = [
            f"{age:.1f},{'' if i == 3 else i % 4 + client},{'yes' if age > 45 else 'no'}"
            for i, age in enumerate(rng.normal(40 + 10 * client, 15, 20 + 10 * client).tolist())
        ]
        (device / "own.csv").write_text("\n".join(["age,dose,ill", *rows]))
    return tmp_path


def run_devices(
    folder: Path,
    policies: dict[int, str],
    words: str = "",
    *,
    columns: str = COLUMNS,
    absent: int = 0,
) -> RunResult:
    """Run the clients on a node each; the last ``absent`` ones are not there."""
    for client in range(3):
        (folder / str(client) / "node.yaml").write_text(policies.get(client, "withhold: []\n"))
    composed = compose_settings("custom", f"{WORDS} {columns} {words}")
    grid = InProcessGrid(app, composed.run_config | {"output-dir": ""}, 3 - absent)
    for node, context in grid._contexts.items():
        data = str(folder / str(node - 1) / "own.csv")
        context.node_config = {"client-id": node - 1, "data-path": data}
    return RunResult.read(run_rounds(grid, composed, str(folder / "run"), engine="flower"))


def read_scaling(result: RunResult) -> dict[str, Any]:
    card = json.loads((result.directory / "model_card.json").read_text())
    scaling: dict[str, Any] = card["inputs"]["scaling"]
    return scaling


@pytest.mark.slow
def test_devices_share_their_scales(folder: Path) -> None:
    """Predictions for the clients that share are those on their devices; others are refused."""
    result = run_devices(folder, {0: SHARED + "client_name: North\n", 2: SHARED})
    scaling = read_scaling(result)
    assert scaling["kind"] == "device"
    assert [(one["id"], one["name"], one["rows"]) for one in scaling["clients"]] == [
        (0, "North", 16),
        (2, None, 32),
    ]
    first, second = scaling["clients"]
    for name in ("fill", "mean", "deviation"):
        mean = (16 * np.array(first[name]) + 32 * np.array(second[name])) / 48
        np.testing.assert_allclose(scaling["common"][name], mean)
    for client in (0, 2):
        here = result.predict(ROWS, client=client)
        there = result.predict(ROWS, client=client, data=folder / str(client) / "own.csv")
        assert here.equals(there)
    assert result.predict(ROWS, client="North").equals(result.predict(ROWS, client=0))
    assert not result.predict(ROWS, client=2).equals(result.predict(ROWS, client=0))
    with pytest.warns(UserWarning, match="of the 2 clients whose devices share them"):
        result.predict(ROWS)
    problem = r"a name \(North\) or an id of those whose devices share their scales \(0, 2\), got 1"
    with pytest.raises(SettingsError, match=problem):
        result.predict(ROWS, client=1)


def test_no_scale_leaves_by_itself(folder: Path) -> None:
    """Without the key the card has none, and says how to predict."""
    result = run_devices(folder, {0: "statistics: true\n", 1: "scales: false\n"})
    assert read_scaling(result) == {"kind": "device", "common": None, "clients": []}
    for client in (None, 0):
        with pytest.raises(DataError, match="stayed on the clients' devices: predict on a device"):
            result.predict(ROWS, client=client)


@pytest.mark.slow
def test_a_private_run_has_no_scales(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay on the node, which says so in one line."""
    lines: list[str] = []
    monkeypatch.setattr(policy, "log", lambda _, text, *values: lines.append(text % values))
    words = "privacy=dp_fixed_server strategy=average_all"
    result = run_devices(folder, dict.fromkeys(range(3), SHARED), words)
    assert read_scaling(result)["clients"] == []
    assert lines[0] == "The scale of client 0 stays here: the run has privacy=dp_fixed_server"
    assert len(lines) == 3


def test_a_hostile_scale(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out with a warning, and the run ends well."""

    def encode(known: ClientScale) -> ConfigRecord:
        record = encode_scale(known)
        if known.client == 1:
            record["mean"] = [float("inf")] * 2
        return record

    monkeypatch.setattr(policy, "encode_scale", encode)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = run_devices(folder, dict.fromkeys(range(3), SHARED))
    assert [one["id"] for one in read_scaling(result)["clients"]] == [0, 2]
    (line,) = [r.getMessage() for r in caplog.records if "Without the scale" in r.getMessage()]
    assert line == "Without the scale of client 1: 'mean' must have finite numbers up to 1e+280"


def test_a_resumed_run_keeps_scales(folder: Path) -> None:
    """Also of a device that is away after the resume; data.names=false keeps names out."""
    policies = dict.fromkeys(range(3), SHARED + "client_name: North\n")
    words = "rounds=2 engine.startup_clients=2 data.names=false"
    before = run_devices(folder, policies, f"{words} engine.stop_after_round=1")
    scaling = read_scaling(before)
    assert [(one["id"], one["name"]) for one in scaling["clients"]] == [
        (0, None),
        (1, None),
        (2, None),
    ]
    after = run_devices(folder, policies, f"{words} resume={before.directory}", absent=1)
    assert read_scaling(after) == scaling


@pytest.mark.parametrize(
    ("words", "columns", "kind"),
    [
        ("data.scaling=agreed", COLUMNS, "agreed"),
        ("", "data.columns={categories:{dose:[0,1,2,3,4,5,null]},classes:[no,yes]}", "none"),
    ],
)
def test_a_run_without_own_scales(folder: Path, words: str, columns: str, kind: str) -> None:
    """Nothing is shared where all clients have one scale, or no numbers; so anybody predicts."""
    policies = dict.fromkeys(range(3), SHARED + "statistics: true\n")
    result = run_devices(folder, policies, words, columns=columns)
    scaling = read_scaling(result)
    assert (scaling["kind"], scaling["clients"]) == (kind, [])
    assert len(result.predict(ROWS)) == 2
