"""A run as frames, figures and answers: what its records hold, and nothing else."""

import json
import math
import shutil
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fedquorum.audit.command_line import format_summary_line
from fedquorum.errors import ParameterError, RunError
from fedquorum.records.round_record import RoundRecord
from fedquorum.records.tables import CLIENTS_SCHEMA, EVALUATIONS_SCHEMA
from safetensors.torch import load_file

from conf.compose import compose_settings
from server_app.api.result import RunResult
from server_app.job import run_in_process
from tests.builders_runs import read_rows
from tests.fedquorum.records.made import make_round_line, make_run, write_table
from tests.server_app.made_runs import make_real_run

TYPES_OF_CLIENTS = {
    **dict.fromkeys(("round", "client"), "int32"),
    "priority": "bool",
    **dict.fromkeys(("status", "reason"), "string"),
    "num_examples": "Int64",
    "num_draws": "Int32",
}


@pytest.fixture(scope="module")
def fedalign(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Return a short run in which clients decline."""
    directory = tmp_path_factory.mktemp("runs") / "fedalign"
    make_real_run(directory, "evaluation.every=2")
    return RunResult.read(directory)


def test_every_field_of_a_round_is_a_column(fedalign: RunResult) -> None:
    """Counts are whole numbers, numbers float64 with NaN for null, ``test`` by dotted names."""
    rounds = fedalign.rounds
    lines = (fedalign.directory / "rounds.jsonl").read_text().splitlines()
    records = [json.loads(text) for text in lines]
    assert list(rounds["round"]) == [1, 2, 3, 4, 5]
    known = {item.name for item in fields(RoundRecord)} - {"test"}
    assert set(rounds) - known == {
        f"test.{group}.{name}" for group, values in records[1]["test"].items() for name in values
    }
    assert rounds["selected"].dtype == np.int64
    assert rounds["global_loss"].dtype == rounds["theta"].dtype == np.float64
    assert list(rounds["global_loss"]) == [record["global_loss"] for record in records]
    worst = [(r["test"] or {}).get("all", {}).get("worst", math.nan) for r in records]
    np.testing.assert_array_equal(rounds["test.all.worst"], worst)
    assert rounds["test.all.worst"].isna().tolist() == [True, False, True, False, False]


def test_the_tables_are_frames_of_documented_types(fedalign: RunResult) -> None:
    """The columns of the schemas; what may be null is of a type that can say so."""
    assert list(fedalign.clients) == CLIENTS_SCHEMA.names
    assert list(fedalign.evaluations) == EVALUATIONS_SCHEMA.names
    types = {name: str(kind) for name, kind in fedalign.clients.dtypes.items()}
    assert types == {name: TYPES_OF_CLIENTS.get(name, "float64") for name in CLIENTS_SCHEMA.names}
    rows = read_rows(fedalign.directory)
    assert len(rows) == len(fedalign.clients)
    for row, (_, of_frame) in zip(rows, fedalign.clients.iterrows(), strict=True):
        for name, value in row.items():
            assert pd.isna(of_frame[name]) if value is None else of_frame[name] == value
    silent = fedalign.clients[fedalign.clients["status"] == "declined"]
    assert len(silent)
    assert silent["num_examples"].isna().all()


def test_a_run_without_rounds_has_empty_frames(tmp_path: Path) -> None:
    """With their columns and types, and nothing to plot."""
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
    """Once, into a value that does not change."""
    run = RunResult.read(Path(shutil.copytree(fedalign.directory, tmp_path / "run")))
    (tmp_path / "run" / "clients" / "part-00000.parquet").write_bytes(b"damaged")
    assert len(run.rounds) == 5
    with pytest.raises(RunError, match=r"part-00000\.parquet"):
        _ = run.clients
    assert run.rounds is run.rounds
    with pytest.raises(FrozenInstanceError):
        run.trusted = True  # type: ignore[misc]


def test_the_model_has_the_weights_that_were_trained(fedalign: RunResult) -> None:
    """Its loss on the priority clients' test parts is the one that is recorded."""
    model = fedalign.load_model()
    assert not model.training
    saved = load_file(fedalign.directory / "model.safetensors")
    assert model.state_dict().keys() == saved.keys()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("words", "trust"),
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
def test_the_model_of_a_run_whose_settings_are_mappings(
    tmp_path: Path, words: tuple[str, ...], trust: bool
) -> None:
    """Whatever values a mapping has, a run just made composes to the settings that it records."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self, **args):\n        super().__init__()\n"
        "        self.layer = nn.Linear(60, 10)\n\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
    )
    made = [word.replace("{net}", str(tmp_path / "net.py")) for word in words]
    make_real_run(tmp_path / "run", *made, "rounds=1")
    model = RunResult.read(tmp_path / "run", trust=trust).load_model()
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())


def test_the_model_of_a_run_of_the_preset_with_columns(tmp_path: Path, real_data: Path) -> None:
    """``aaggff/heart`` names the columns of its table in a mapping."""
    words = f"rounds=1 data.path={real_data / 'heart_uci.csv'}"
    run_in_process(compose_settings("aaggff/heart", words), str(tmp_path / "run"))
    assert RunResult.read(tmp_path / "run").load_model().state_dict()


@pytest.mark.parametrize("damage", ["missing", "pickle", "shape"])
def test_a_model_that_does_not_fit_is_one_line(
    fedalign: RunResult, tmp_path: Path, damage: str
) -> None:
    """Nothing is unpickled."""
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


def test_code_that_records_name_needs_trust(tmp_path: Path) -> None:
    """The model, the audit and an explanation; loaded runs are not trusted unless one says so."""
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
        "from dataclasses import dataclass\n\nfrom fedquorum.weighting import AverageAll\n"
        "\n\n@dataclass(frozen=True)\nclass Rule(AverageAll):\n    pass\n"
    )
    rule = f"strategy.path={tmp_path / 'rule.py'}:Rule"
    make_real_run(tmp_path / "custom", "strategy=custom", rule, "rounds=1")
    untrusted, trusted = (
        RunResult.read(tmp_path / "custom", trust=trust) for trust in (False, True)
    )
    for ask in (untrusted.audit, lambda: untrusted.explain(1, 0)):
        with pytest.raises(RunError, match="trust"):
            ask()
    assert trusted.audit().is_consistent
    assert trusted.explain(1, 0)


def test_an_audit_fits_or_says_what_does_not(fedalign: RunResult, tmp_path: Path) -> None:
    """A weight that was changed is found, by round and client."""
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
    """In the words of the audit's command."""
    row = fedalign.clients[fedalign.clients["weight"] > 0].iloc[-1]
    text = fedalign.explain(int(row["round"]), int(row["client"]))
    assert text.startswith(f"round {row['round']}, client {row['client']} (")
    assert text.splitlines()[-1].startswith("weight recorded: ")
    with pytest.raises(RunError, match="round must be from 1 to 5"):
        fedalign.explain(6, 0)


def test_the_charts_are_the_reports(fedalign: RunResult) -> None:
    """By name, drawn for a notebook; an unknown name is answered with the known ones."""
    assert fedalign.charts[0] == "training"
    figure = fedalign.plot("participation")
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [axes.get_ylabel() for axes in fedalign.plot().axes] == [
        axes.get_ylabel() for axes in fedalign.plot("training").axes
    ]
    with pytest.raises(ParameterError, match=r"chart must be one of training, .*, got 'loss'"):
        fedalign.plot("loss")


def test_a_notebook_shows_facts_and_a_picture(tmp_path: Path) -> None:
    """Whatever a record has put into them is text, and no markup."""
    make_run(tmp_path / "run", [make_round_line(1)], experiment="<script>alert(1)</script>")
    shown = RunResult.read(tmp_path / "run")._repr_html_()
    assert "<img src='data:image/png;base64," in shown
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_a_folder_is_shown_as_seen_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook that is passed on does not tell where its author's files lie."""
    make_run(tmp_path / "a" / "run", [make_round_line(1)])
    monkeypatch.chdir(tmp_path)
    run = RunResult.read(Path("a/run"))
    assert run.directory == tmp_path / "a" / "run"
    assert "a/run" in repr(run)
    assert str(tmp_path) not in repr(run) + run._repr_html_()
