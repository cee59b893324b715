"""Test that evaluations count on any number of nodes, and that failed ones are missing."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.errors import RunError
from fedquorum.flower.codec import EvaluateResult, EvaluateTask

import client_app.app
from client_app.node.client import FederatedClient
from client_app.training.local_sgd import Arrays
from tests.builders_runs import make_client_overrides, read_rounds, read_rows, run_here

SIZES = {"all large": (30, 30, 30, 30), "one small": (30, 30, 30, 2)}
GATED = (
    "experiment=custom",
    "data=csv",
    "data.client_column=site",
    "data.target=ill",
    "data.priority=[0,1]",
    "data.validation_fraction=0.2",
    "model=logistic_regression",
    "strategy=fedalign",
    "strategy.epsilon=5.0",
    "rounds=5",
)
CHOOSING = (
    "experiment=custom",
    "data=synth",
    "data.num_clients=3",
    "data.num_priority=1",
    "data.priority=heterogeneous",
    "data.sizes=equal",
    "data.samples_per_client=40",
    "model=logistic_regression",
    "strategy=composed",
    "strategy/selection=power_of_choice",
    "strategy/weighting=data_fraction",
    "evaluation.clients=priority",
    "rounds=3",
    "seed=963",
)
FAILING = (
    *make_client_overrides(4, 2),
    "engine.checkpoint_every=1",
    "rounds=4",
)


def write_table(directory: Path, sizes: Sequence[int]) -> Path:
    """Write a CSV file with these numbers of rows per site, and return its path."""
    rng, path = np.random.default_rng(0), directory / "write_table.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["site", "a", "b", "ill"])
        for site, size in enumerate(sizes):
            for i in range(size):
                numbers = round(rng.normal() + i % 2, 3), round(rng.normal(), 3)
                rows.writerow([site, *numbers, i % 2])
    return path


def run(directory: Path, *overrides: str) -> list[dict[str, Any]]:
    """Return the rounds of a run, without fields that depend on messages or machine."""
    return read_rounds(run_here(directory, *overrides))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
def test_a_client_without_validation_rows_does_not_affect_others(
    tmp_path: Path, sizes: str
) -> None:
    """A client with two rows has a NaN metric, which its node sends in a valid reply."""
    path = write_table(tmp_path, SIZES[sizes])
    runs = []
    for nodes in (1, 2, 4):
        directory = tmp_path / str(nodes)
        runs.append(run(directory, *GATED, f"data.path={path}", f"engine.num_supernodes={nodes}"))
        assert audit_run(directory).mismatches == ()
    one, *others = runs
    assert [line["admitted"] for line in one] == [2, 4, 4, 4, 4]
    assert all(line["test"]["all"] and line["validation"]["all"] for line in one)
    assert others == [one] * len(others)
    rows = read_rows(tmp_path / "1", "evaluations")
    last = {row["client"]: row for row in rows if row["round"] == 5}
    assert sorted(last) == [0, 1, 2, 3]
    without = [k for k, row in last.items() if row["validation_num_examples"] is None]
    assert without == ([3] if sizes == "one small" else [])


@pytest.mark.slow
def test_power_of_choice_selects_the_same_clients_on_any_number_of_nodes(tmp_path: Path) -> None:
    """All clients evaluate F_k, but only one of them evaluates its test split, too."""
    runs = [
        run(tmp_path / str(nodes), *CHOOSING, f"engine.num_supernodes={nodes}")
        for nodes in (1, 2, 3)
    ]
    assert [line["selected"] for line in runs[0]] == [3, 3, 3]
    assert runs[1:] == [runs[0]] * 2


ShouldFail = Callable[[int, EvaluateTask], bool]


def fail_evaluations(monkeypatch: pytest.MonkeyPatch, should_fail: ShouldFail) -> None:
    """Make the evaluations of some clients fail."""
    evaluate = FederatedClient.evaluate_task

    def evaluate_or_fail(
        client: FederatedClient, parameters: Arrays, task: EvaluateTask
    ) -> EvaluateResult:
        if should_fail(client.client_id, task):
            raise ArithmeticError("no such number")
        return evaluate(client, parameters, task)

    monkeypatch.setattr(FederatedClient, "evaluate_task", evaluate_or_fail)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("failed", [0, 1, 3, 4])
def test_an_evaluation_that_fails_everywhere_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, failed: int
) -> None:
    """The failed evaluation is before round 1 or after any round; the run can be resumed."""
    overrides = (*FAILING, "strategy=fedalign", f"engine.num_supernodes={nodes}")
    model = f"the model after round {failed}" if failed else "the first model"
    count = 4 if failed else 2  # F(w_0) is of the priority clients
    reason = f"none of {count} clients could measure {model}: ArithmeticError: no such number"
    with monkeypatch.context() as patch:
        fail_evaluations(patch, lambda _, task: task.server_round == failed)
        with pytest.raises(RunError, match=f"^{reason}$"):
            run(tmp_path / "run", *overrides)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["status"], manifest["rounds_completed"]) == ("failed", max(0, failed - 1))
    assert reason in manifest["error"]
    whole = run(tmp_path / "whole", *overrides)
    assert read_rounds(tmp_path / "run") == whole[: max(0, failed - 1)]
    assert run(tmp_path / "run", f"resume={tmp_path / 'run'}", *overrides) == whole
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert models[0] == models[1]


def test_a_reply_that_cannot_be_encoded_is_a_failed_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the run of several clients, also with FedAvg, which needs no F."""

    def raise_type_error(results: Sequence[EvaluateResult]) -> None:
        raise TypeError("All values in a list must be of the same valid type")

    monkeypatch.setattr(client_app.app, "encode_evaluate_reply", raise_type_error)
    with pytest.raises(RunError, match=r"the first model: TypeError: .* same valid type"):
        run(tmp_path / "run", *FAILING, "strategy=fedavg", "engine.num_supernodes=2")


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 4])
def test_a_priority_client_whose_evaluation_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """The next round names it, and its F is that of the other one, also after a resume."""
    overrides = (*FAILING, "strategy=fedalign", f"engine.num_supernodes={nodes}")
    run(tmp_path / "sound", *overrides)
    rows = read_rows(tmp_path / "sound")
    first, second = sorted({row["client"] for row in rows if row["priority"]})
    fail_evaluations(
        monkeypatch, lambda client, task: client == first and task.server_round in (0, 2)
    )
    rounds = run(tmp_path / "whole", *overrides)
    assert [line["unmeasured"] for line in rounds] == [[first], [], [first], []]
    assert [line["stale_clients"] for line in rounds] == [[]] * 4
    rows = read_rows(tmp_path / "whole", "evaluations")
    (other,) = (row for row in rows if (row["round"], row["client"]) == (2, second))
    assert rounds[2]["global_loss"] == pytest.approx(other["loss"], rel=1e-12)
    assert audit_run(tmp_path / "whole").mismatches == ()
    directory = tmp_path / "resumed"
    run(directory, *overrides, "engine.stop_after_round=2")
    assert run(directory, f"resume={directory}", *overrides) == rounds
