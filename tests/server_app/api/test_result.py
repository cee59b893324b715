"""Test the Python access to a run's records: frames, figures, audit and model."""

import json
import math
import shutil
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fedquorum.audit.cli import format_summary_line
from fedquorum.errors import ParameterError, RunError
from fedquorum.records.round_record import RoundRecord
from fedquorum.records.tables import CLIENTS_SCHEMA, EVALUATIONS_SCHEMA
from safetensors.torch import load_file

from conf.compose import compose_settings
from server_app.api.result import RunResult
from server_app.runs.job import run_in_process
from tests.builders_runs import read_rows
from tests.fedquorum.records.made import make_round_line, make_run, write_table
from tests.server_app.made_runs import make_real_run

TYPES_OF_CLIENTS = {
    **dict.fromkeys(("round", "client"), "int32"),
    "priority": "bool",
    **dict.fromkeys(("status", "reason"), "string"),
    "num_examples": "Int64",
    **dict.fromkeys(("num_draws", "start_round", "staleness"), "Int32"),
}


@pytest.fixture(scope="module")
def fedalign(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Return a short run in which some clients decline."""
    directory = tmp_path_factory.mktemp("runs") / "fedalign"
    make_real_run(directory, "evaluation.every=2")
    return RunResult.read(directory)


def test_every_field_of_a_round_is_a_column(fedalign: RunResult) -> None:
    """Counts are integers, numbers are float64 with NaN for null, and ``test`` has dotted names."""
    rounds = fedalign.rounds
    lines = (fedalign.directory / "rounds.jsonl").read_text().splitlines()
    records = [json.loads(text) for text in lines]
    assert list(rounds["round"]) == [1, 2, 3, 4, 5]
    scalar_fields = {item.name for item in fields(RoundRecord)} - {"test"}
    assert set(rounds) - scalar_fields == {
        f"test.{group}.{name}" for group, values in records[1]["test"].items() for name in values
    }
    assert rounds["selected"].dtype == np.int64
    assert rounds["global_loss"].dtype == rounds["theta"].dtype == np.float64
    assert list(rounds["global_loss"]) == [record["global_loss"] for record in records]
    worst = [(r["test"] or {}).get("all", {}).get("worst", math.nan) for r in records]
    np.testing.assert_array_equal(rounds["test.all.worst"], worst)
    assert rounds["test.all.worst"].isna().tolist() == [True, False, True, False, False]


def test_the_tables_are_frames_with_documented_types(fedalign: RunResult) -> None:
    """They have the columns of the schemas; a column that may be null has a nullable type."""
    assert list(fedalign.clients) == CLIENTS_SCHEMA.names
    assert list(fedalign.evaluations) == EVALUATIONS_SCHEMA.names
    types = {name: str(kind) for name, kind in fedalign.clients.dtypes.items()}
    assert types == {name: TYPES_OF_CLIENTS.get(name, "float64") for name in CLIENTS_SCHEMA.names}
    rows = read_rows(fedalign.directory)
    assert len(rows) == len(fedalign.clients)
    for row, (_, frame_row) in zip(rows, fedalign.clients.iterrows(), strict=True):
        for name, value in row.items():
            assert pd.isna(frame_row[name]) if value is None else frame_row[name] == value
    declined = fedalign.clients[fedalign.clients["status"] == "declined"]
    assert len(declined)
    assert declined["num_examples"].isna().all()


def test_a_run_without_rounds_has_empty_frames(tmp_path: Path) -> None:
    """The frames have their columns and types, and there is nothing to plot."""
    directory = make_run(tmp_path / "run", [], status="running")
    for name in ("clients", "evaluations"):
        (directory / name).mkdir(exist_ok=True)
    run = RunResult.read(directory)
    for frame in (run.rounds, run.clients, run.evaluations):
        assert len(frame) == 0
        assert frame["round"].dtype.kind == "i"
    assert run.charts == ()
    with pytest.raises(RunError, match="at least one complete round to plot"):
        run.plot()
    assert "running, 0 of" in run._repr_html_()


def test_records_are_read_on_demand(fedalign: RunResult, tmp_path: Path) -> None:
    """Each record is read once, and the result is immutable."""
    run = RunResult.read(Path(shutil.copytree(fedalign.directory, tmp_path / "run")))
    (tmp_path / "run" / "clients" / "part-00000.parquet").write_bytes(b"damaged")
    assert len(run.rounds) == 5
    with pytest.raises(RunError, match=r"part-00000\.parquet"):
        _ = run.clients
    assert run.rounds is run.rounds
    with pytest.raises(FrozenInstanceError):
        run.trusted = True  # type: ignore[misc]


def test_the_model_has_the_trained_weights(fedalign: RunResult) -> None:
    """Its state_dict equals the saved file, and it is in evaluation mode."""
    model = fedalign.load_model()
    assert not model.training
    saved = load_file(fedalign.directory / "model.safetensors")
    assert model.state_dict().keys() == saved.keys()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("overrides", "trust"),
    [
        (("data.priority=[0,1]", "data.priority_weights={1:0.5}"), False),
        (("data.priority=[0,1]", "data.priority_weights={0:1e-3,1:1e-05}"), False),
        (("client.class_weights=[1,2,3,1,1,1,1,1,1,1e-3]",), False),
        (("evaluation.requirement={0:0.5,1:inf}", "strategy=maxfl"), False),
        (("model=module", "model.path={net}:Net", "model.args={}"), True),
        (
            (
                "model=module",
                "model.path={net}:Net",
                "model.args={a:1e-3,b:inf,c:null,d:[{x:1},{y:[]}],e:{f:{g:nan},h:'1e5'},i:{}}",
            ),
            True,
        ),
    ],
    ids=str,
)
def test_the_model_of_a_run_with_mappings_in_its_settings(
    tmp_path: Path, overrides: tuple[str, ...], trust: bool
) -> None:
    """A new run composes to its recorded settings, whatever values their mappings have."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self, **args):\n        super().__init__()\n"
        "        self.layer = nn.Linear(60, 10)\n\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
    )
    formatted = [item.replace("{net}", str(tmp_path / "net.py")) for item in overrides]
    make_real_run(tmp_path / "run", *formatted, "rounds=1")
    model = RunResult.read(tmp_path / "run", trust=trust).load_model()
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())


def test_the_model_of_a_run_with_the_preset_that_names_columns(
    tmp_path: Path, real_data: Path
) -> None:
    """``aaggff/heart`` names the columns of its table in a mapping."""
    overrides = f"rounds=1 data.path={real_data / 'heart_uci.csv'}"
    run_in_process(compose_settings("aaggff/heart", overrides), str(tmp_path / "run"))
    assert RunResult.read(tmp_path / "run").load_model().state_dict()


@pytest.mark.parametrize("damage", ["missing", "pickle", "shape"])
def test_a_damaged_model_is_a_one_line_error(
    fedalign: RunResult, tmp_path: Path, damage: str
) -> None:
    """No file is unpickled."""
    run = RunResult.read(Path(shutil.copytree(fedalign.directory, tmp_path / "run")))
    path = tmp_path / "run" / "model.safetensors"
    if damage == "missing":
        path.unlink()
    elif damage == "pickle":
        torch.save({"linear.weight": torch.zeros(1)}, path)
    else:
        from safetensors.torch import save_file

        save_file({"linear.weight": torch.zeros(1, 2)}, path)
    with pytest.raises(RunError, match=r"model\.safetensors: cannot be read") as error:
        run.load_model()
    assert "\n" not in str(error.value)


def test_code_named_by_records_needs_trust(tmp_path: Path) -> None:
    """Model, audit and explanation refuse it, unless the run was loaded with trust."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.layer = nn.Linear(60, 10)\n\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
    )
    make_real_run(
        tmp_path / "run", "model=module", f"model.path={tmp_path / 'net.py'}:Net", "rounds=1"
    )
    with pytest.raises(RunError, match=r"model\.path is code"):
        RunResult.read(tmp_path / "run").load_model()
    assert "layer.weight" in RunResult.read(tmp_path / "run", trust=True).load_model().state_dict()
    (tmp_path / "rule.py").write_text(
        "from dataclasses import dataclass\n\nfrom fedquorum.rules.weighting import AverageAll\n"
        "\n\n@dataclass(frozen=True)\nclass Rule(AverageAll):\n    pass\n"
    )
    rule = f"strategy.path={tmp_path / 'rule.py'}:Rule"
    make_real_run(tmp_path / "custom", "strategy=custom", rule, "rounds=1")
    untrusted, trusted = (
        RunResult.read(tmp_path / "custom", trust=trust) for trust in (False, True)
    )
    for replay in (untrusted.audit, lambda: untrusted.explain(1, 0)):
        with pytest.raises(RunError, match="trust"):
            replay()
    assert trusted.audit().is_consistent
    assert trusted.explain(1, 0)


def test_an_audit_finds_a_changed_weight(fedalign: RunResult, tmp_path: Path) -> None:
    """The mismatch has the round and the client; the original run is consistent."""
    audit = fedalign.audit()
    assert audit.is_consistent
    assert (audit.rounds, audit.decisions) == (5, len(fedalign.clients))
    assert format_summary_line(0) in repr(audit)
    directory = Path(shutil.copytree(fedalign.directory, tmp_path / "run"))
    rows = read_rows(directory)
    changed = next(row for row in rows if row["weight"] > 0)
    changed["weight"] *= 2
    shutil.rmtree(directory / "clients")
    write_table(directory, "clients", rows)
    audit = RunResult.read(directory).audit()
    assert not audit.is_consistent
    (problem,) = audit.problems.to_dict("records")
    assert (problem["round"], problem["client"]) == (changed["round"], changed["client"])
    assert "weight is" in repr(audit)


def test_one_decision_is_explained(fedalign: RunResult) -> None:
    """The text is that of ``fedquorum audit``."""
    row = fedalign.clients[fedalign.clients["weight"] > 0].iloc[-1]
    text = fedalign.explain(int(row["round"]), int(row["client"]))
    assert text.startswith(f"round {row['round']}, client {row['client']} (")
    assert text.splitlines()[-1].startswith("weight recorded: ")
    with pytest.raises(RunError, match="round must be from 1 to 5"):
        fedalign.explain(6, 0)


def test_the_charts_are_those_of_the_report(fedalign: RunResult) -> None:
    """They are drawn for a notebook by name; the error for an unknown name lists the others."""
    assert fedalign.charts[0] == "training"
    figure = fedalign.plot("participation")
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [axes.get_ylabel() for axes in fedalign.plot().axes] == [
        axes.get_ylabel() for axes in fedalign.plot("training").axes
    ]
    with pytest.raises(ParameterError, match=r"chart must be one of training, .*, got 'loss'"):
        fedalign.plot("loss")


@pytest.mark.slow
def test_a_notebook_shows_facts_and_a_figure(tmp_path: Path) -> None:
    """The text of records is escaped."""
    make_run(tmp_path / "run", [make_round_line(1)], experiment="<script>alert(1)</script>")
    page = RunResult.read(tmp_path / "run")._repr_html_()
    assert "<img src='data:image/png;base64," in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_folder_is_shown_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared notebook does not reveal its author's folders."""
    make_run(tmp_path / "a" / "run", [make_round_line(1)])
    monkeypatch.chdir(tmp_path)
    run = RunResult.read(Path("a/run"))
    assert run.directory == tmp_path / "a" / "run"
    assert "a/run" in repr(run)
    assert str(tmp_path) not in repr(run) + run._repr_html_()
