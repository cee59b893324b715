"""Test the models that clients train for themselves after the last round, and then discard."""

import math
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.errors import RunError, SettingsError
from fedquorum.flower.strategy import ComposedStrategy
from fedquorum.records.reader import load_run
from fedquorum.report.final_metrics import compute_client_metrics, list_evaluated_groups
from fedquorum.report.seed_groups import group_runs
from fedquorum.rng import make_generator
from safetensors.numpy import load_file

from client_app.data import load_data
from client_app.evaluation.evaluator import CachedEvaluator
from client_app.node.client import FederatedClient
from client_app.training import trainer
from conf.compose import compose_overrides
from server_app.api.result import RunResult
from server_app.runs.build import build_initial_arrays
from tests.builders_runs import (
    assert_same_results,
    make_client_overrides,
    read_lines,
    read_rows,
    run_here,
)
from tests.reference import sgd

SEED = 3
COMMON = (
    *make_client_overrides(5, 2),
    *("model=logistic_regression", "strategy=fedavg", "client.batch_size=7"),
    *("client.momentum=0.5", "client.proximal_mu=0.3", "client.lr_schedule=exponential"),
    *("client.lr_decay=0.5", "data.validation_fraction=0.2", f"seed={SEED}", "rounds=3"),
)
PERSONAL = ("evaluation.finetune_epochs=2", "evaluation.alone_epochs=4")
METRICS = ("test_loss", "test_accuracy", "validation_loss", "validation_accuracy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with both personal models."""
    return run_here(tmp_path_factory.mktemp("runs") / "run", *COMMON, *PERSONAL)


def get_last_rows(run: Path) -> list[dict[str, Any]]:
    rows = read_rows(run, "evaluations")
    last = max(row["round"] for row in rows)
    return sorted((row for row in rows if row["round"] == last), key=lambda row: row["client"])


@pytest.mark.parametrize(
    ("model", "epochs", "after", "rate"), [("finetuned", 2, 3, 0.1 * 0.5**3), ("alone", 4, 0, 0.1)]
)
def test_the_numbers_are_those_of_training_by_the_formula(
    run: Path, model: str, epochs: int, after: int, rate: float
) -> None:
    """SGD from the last or the first model, at the rate of the next round, without FedProx's term.

    The batches follow from (seed, finetune-batches, round, client).
    """
    settings = compose_overrides(COMMON).settings
    data = load_data(settings.data, SEED)
    first = build_initial_arrays(settings, data)
    arrays = {
        "alone": [first[name].numpy() for name in ("linear.weight", "linear.bias")],
        "finetuned": [
            load_file(run / "model.safetensors")[name] for name in ("linear.weight", "linear.bias")
        ],
    }[model]
    for row in get_last_rows(run):
        client = data.get_client(row["client"])
        trained = sgd.train(
            sgd.read(arrays),
            client.x_train,
            client.y_train,
            make_generator(SEED, "finetune-batches", after + 1, row["client"]),
            rates=repeat(rate),
            batch_size=7,
            local_epochs=epochs,
            momentum=0.5,
        )
        loss, accuracy = sgd.measure(trained, client.x_test, client.y_test)
        assert row[f"{model}_epochs"] == epochs
        assert row[f"{model}_test_loss"] == pytest.approx(loss, rel=1e-4)
        training_loss, _ = sgd.measure(trained, client.x_train, client.y_train)
        assert row[f"{model}_loss"] == pytest.approx(training_loss, rel=1e-4)
        assert row[f"{model}_test_accuracy"] == pytest.approx(accuracy)
        assert row[f"{model}_test_loss"] != row["test_loss"]
        assert row[f"{model}_test_metric"] is None


def test_nothing_else_of_the_run_changes(run: Path, tmp_path: Path) -> None:
    """The model, the rounds and all other columns have the bits of a run without such models."""
    plain = run_here(tmp_path / "plain", *COMMON)
    assert (plain / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    for without, with_models in zip(read_lines(plain), read_lines(run), strict=True):
        for split in ("test", "validation"):
            for model in ("finetuned", "alone"):
                assert (with_models[split].pop(model, None) is None) == (without["round"] < 3)
        sizes = [(line.pop("bytes_down"), line.pop("bytes_up")) for line in (without, with_models)]
        assert (sizes[0] < sizes[1]) == (without["round"] == 3)
        assert without == with_models
    rows = [
        {name: value for name, value in row.items() if not name.startswith(("finetuned", "alone"))}
        for row in read_rows(run, "evaluations")
    ]
    assert rows == read_rows(plain, "evaluations")
    assert read_rows(run) == read_rows(plain)


@pytest.mark.parametrize("overrides", [("engine.num_supernodes=1",), ("engine.num_supernodes=3",)])
def test_the_same_bits_for_any_grouping(
    run: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    """Nodes with one client, or with all."""
    other = run_here(tmp_path / "other", *COMMON, *PERSONAL, *overrides)
    assert get_last_rows(other) == get_last_rows(run)
    for name in ("test", "validation"):
        assert read_lines(other)[-1][name] == read_lines(run)[-1][name]


def test_clients_that_train_one_by_one_have_the_same_bits(tmp_path: Path) -> None:
    """A small memory for models trains one client at a time."""
    overrides = (*COMMON, *PERSONAL, "client.batching=sequential")
    whole = run_here(tmp_path / "whole", *overrides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "MAX_FINETUNING_BYTES", 1)
        parts = run_here(tmp_path / "parts", *overrides)
    assert_same_results(whole, parts)


@pytest.mark.slow
def test_of_several_numbers_of_epochs_the_best_on_validation_counts(tmp_path: Path) -> None:
    """Each number gives what a run with it alone gives; 0 is the model itself."""
    candidates = (0, 1, 6)
    single = {
        n: get_last_rows(run_here(tmp_path / str(n), *COMMON, f"evaluation.finetune_epochs=[{n}]"))
        for n in candidates
    }
    for row in single[0]:
        assert [row[f"finetuned_{name}"] for name in METRICS] == [row[name] for name in METRICS]
    listed = run_here(tmp_path / "all", *COMMON, "evaluation.finetune_epochs=[6,0,1]")
    rows = get_last_rows(listed)
    (chosen,) = {row["finetuned_epochs"] for row in rows}
    assert rows == single[chosen]

    def average(n: int) -> float:
        data = [row["num_examples"] for row in get_rows_with_data(single[n])]
        values = [row["finetuned_validation_accuracy"] for row in single[n]]
        return float(np.average(values, weights=data))

    assert average(chosen) == max(map(average, candidates))
    assert read_lines(listed)[-1]["test"]["finetuned"]["epochs"] == chosen


def get_rows_with_data(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert all(row["num_examples"] for row in rows)
    return rows


@pytest.mark.slow
def test_a_run_that_stops_before_has_none_and_a_resume_has_them(run: Path, tmp_path: Path) -> None:
    """The last round is complete only with them, so no run can lose them; more rounds repeat it."""
    stopped = run_here(tmp_path / "run", *COMMON, *PERSONAL, "engine.stop_after_round=2")
    assert all(row["finetuned_epochs"] is None for row in read_rows(stopped, "evaluations"))
    run_here(stopped, *COMMON, *PERSONAL, f"resume={stopped}")
    assert_same_results(stopped, run)
    longer = (*COMMON[:-1], "rounds=4", *PERSONAL)
    run_here(stopped, *longer, f"resume={stopped}")
    rounds = {row["round"] for row in read_rows(stopped, "evaluations") if row["finetuned_epochs"]}
    assert rounds == {3, 4}
    whole = run_here(tmp_path / "whole", *longer)
    assert get_last_rows(stopped) == get_last_rows(whole)
    assert audit_run(stopped).mismatches == ()


def test_a_crash_while_clients_train_repeats_the_round(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round before it is the last one in the records."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RunError("the power is out")

    other = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(ComposedStrategy, "aggregate_finetune", fail)
        with pytest.raises(RunError, match="the power is out"):
            run_here(other, *COMMON, *PERSONAL, "engine.checkpoint_every=1")
    assert len(load_run(other).rounds) == 2
    run_here(other, *COMMON, *PERSONAL, "engine.checkpoint_every=1", f"resume={other}")
    assert_same_results(other, run)


def test_the_groups_are_in_metrics_frames_and_report(run: Path) -> None:
    """They stand beside the common model's."""
    records = load_run(run)
    (group,) = group_runs([records])
    assert list_evaluated_groups(group) == (
        *("priority", "non_priority", "all", "finetuned", "alone"),
    )
    result = RunResult.read(run)
    last = result.rounds.iloc[-1]
    assert last["test.finetuned.epochs"] == 2
    assert compute_client_metrics(records, "alone")["test"] == last["test.alone.accuracy"]
    assert math.isnan(result.rounds.iloc[0]["test.finetuned.accuracy"])
    frame = result.evaluations
    assert frame.finetuned_epochs.dtype == pd.Int64Dtype()
    assert frame.finetuned_epochs.isna().sum() == len(frame) - 5
    assert audit_run(run).mismatches == ()


def test_held_out_clients_train_no_model(tmp_path: Path) -> None:
    """They are evaluated on the common model alone."""
    overrides = (*COMMON, *PERSONAL, "data.holdout_client_fraction=0.4")
    rows = get_last_rows(run_here(tmp_path / "run", *overrides))
    assert {row["held_out"] for row in rows} == {True, False}
    for row in rows:
        assert (row["finetuned_epochs"] is None) == row["held_out"]
    assert audit_run(tmp_path / "run").mismatches == ()


RANGE = "must be a whole number >= 0, or a list of such numbers, each once, got"
REFUSED = {
    "evaluation.finetune_epochs=-1": f"evaluation.finetune_epochs {RANGE} -1",
    "evaluation.alone_epochs=[1,1]": f"evaluation.alone_epochs {RANGE} [1, 1]",
    "evaluation.alone_epochs=[]": f"evaluation.alone_epochs {RANGE} []",
    "evaluation.alone_epochs=1.5": f"evaluation.alone_epochs {RANGE} 1.5",
    "evaluation.finetune_epochs=[0,1] data.validation_fraction=0": (
        "evaluation.finetune_epochs must be one number without validation splits, got [0, 1] "
        "(data.validation_fraction=0.2 makes them)"
    ),
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_cannot_be_is_refused(overrides: str) -> None:
    """In one line, before a run starts."""
    with pytest.raises(SettingsError) as caught:
        compose_overrides((*COMMON, *overrides.split()))
    assert str(caught.value) == REFUSED[overrides]


def test_a_client_without_rows_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have their models, and the client's reason is logged."""
    count = CachedEvaluator.count

    def count_none(self: CachedEvaluator, split: Any, client: int) -> int:
        return 0 if (split, client) == ("train", 1) else count(self, split, client)

    path = tmp_path / "run"
    check = FederatedClient.check_rows

    def check_none(self: FederatedClient) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(CachedEvaluator, "count", count_none)
            check(self)

    def train_anyway(self: FederatedClient, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(FederatedClient, "check_rows", lambda _: None)
            return decide(self, *arguments)

    decide = FederatedClient.evaluate_and_decide
    monkeypatch.setattr(FederatedClient, "evaluate_and_decide", train_anyway)
    monkeypatch.setattr(FederatedClient, "check_rows", check_none)
    run_here(path, *COMMON, *PERSONAL)
    rows = get_last_rows(path)
    assert [row["client"] for row in rows if row["finetuned_epochs"] is None] == [1]
    test = read_lines(path)[-1]["test"]
    assert (test["all"]["evaluated"], test["alone"]["evaluated"]) == (5, 4)
