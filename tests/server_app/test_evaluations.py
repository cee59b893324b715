"""What clients measure counts on any number of nodes, and is missed where it fails."""

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
from client_app.arrays import Arrays
from client_app.client import FederatedClient
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


def table(directory: Path, sizes: Sequence[int]) -> Path:
    """Return a file with so many rows of each site."""
    rng, path = np.random.default_rng(0), directory / "table.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["site", "a", "b", "ill"])
        for site, size in enumerate(sizes):
            for i in range(size):
                numbers = round(rng.normal() + i % 2, 3), round(rng.normal(), 3)
                rows.writerow([site, *numbers, i % 2])
    return path


def run(directory: Path, *words: str) -> list[dict[str, Any]]:
    """Return the rounds of a run, without what depends on the messages and the machine."""
    return read_rounds(run_here(directory, *words))


@pytest.mark.parametrize("sizes", SIZES)
def test_a_client_without_validation_rows_takes_nobodys_evaluation_with_it(
    tmp_path: Path, sizes: str
) -> None:
    """One client has two rows: its node said an int beside NaN, and Flower refused the reply."""
    path = table(tmp_path, SIZES[sizes])
    found = []
    for nodes in (1, 2, 4):
        directory = tmp_path / str(nodes)
        found.append(run(directory, *GATED, f"data.path={path}", f"engine.num_supernodes={nodes}"))
        assert audit_run(directory).mismatches == ()
    one, *others = found
    assert [line["admitted"] for line in one] == [2, 4, 4, 4, 4]
    assert all(line["test"]["all"] and line["validation"]["all"] for line in one)
    assert others == [one] * len(others)
    rows = read_rows(tmp_path / "1", "evaluations")
    last = {row["client"]: row for row in rows if row["round"] == 5}
    assert sorted(last) == [0, 1, 2, 3]
    without = [k for k, row in last.items() if row["validation_num_examples"] is None]
    assert without == ([3] if sizes == "one small" else [])


def test_power_of_choice_selects_the_same_clients_on_any_number_of_nodes(tmp_path: Path) -> None:
    """Only one of the clients that measure F_k measures its test part beside."""
    found = [
        run(tmp_path / str(nodes), *CHOOSING, f"engine.num_supernodes={nodes}")
        for nodes in (1, 2, 3)
    ]
    assert [line["selected"] for line in found[0]] == [3, 3, 3]
    assert found[1:] == [found[0]] * 2


Failing = Callable[[int, EvaluateTask], bool]


def fail(monkeypatch: pytest.MonkeyPatch, failing: Failing) -> None:
    """Have clients fail to measure."""
    measure = FederatedClient.evaluate_task

    def failing_measure(
        client: FederatedClient, parameters: Arrays, task: EvaluateTask
    ) -> EvaluateResult:
        if failing(client.client_id, task):
            raise ArithmeticError("no such number")
        return measure(client, parameters, task)

    monkeypatch.setattr(FederatedClient, "evaluate_task", failing_measure)


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("failed", [0, 1, 3, 4])
def test_an_evaluation_that_fails_everywhere_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, failed: int
) -> None:
    """Before the first round, after it, in between, after the last; the run can be resumed."""
    words = (*FAILING, "strategy=fedalign", f"engine.num_supernodes={nodes}")
    model = f"the model after round {failed}" if failed else "the first model"
    count = 4 if failed else 2  # F(w_0) is of the priority clients
    reason = f"none of {count} clients could measure {model}: ArithmeticError: no such number"
    with monkeypatch.context() as patched:
        fail(patched, lambda _, task: task.server_round == failed)
        with pytest.raises(RunError, match=f"^{reason}$"):
            run(tmp_path / "run", *words)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["status"], manifest["rounds_completed"]) == ("failed", max(0, failed - 1))
    assert reason in manifest["error"]
    whole = run(tmp_path / "whole", *words)
    assert read_rounds(tmp_path / "run") == whole[: max(0, failed - 1)]
    assert run(tmp_path / "run", f"resume={tmp_path / 'run'}", *words) == whole
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert models[0] == models[1]


def test_a_reply_that_cannot_be_made_is_an_evaluation_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any number of clients; FedAvg needs no F, and its run ends as well."""

    def broken(answers: Sequence[EvaluateResult]) -> None:
        raise TypeError("All values in a list must be of the same valid type")

    monkeypatch.setattr(client_app.app, "encode_evaluate_reply", broken)
    with pytest.raises(RunError, match=r"the first model: TypeError: .* same valid type"):
        run(tmp_path / "run", *FAILING, "strategy=fedavg", "engine.num_supernodes=2")


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_priority_client_whose_evaluation_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """F is of the other one, in the round that is told of it; also where the run was resumed."""
    words = (*FAILING, "strategy=fedalign", f"engine.num_supernodes={nodes}")
    run(tmp_path / "sound", *words)
    rows = read_rows(tmp_path / "sound")
    first, second = sorted({row["client"] for row in rows if row["priority"]})
    fail(monkeypatch, lambda client, task: client == first and task.server_round in (0, 2))
    found = run(tmp_path / "whole", *words)
    assert [line["unmeasured"] for line in found] == [[first], [], [first], []]
    assert [line["stale_clients"] for line in found] == [[]] * 4
    rows = read_rows(tmp_path / "whole", "evaluations")
    (left,) = (row for row in rows if (row["round"], row["client"]) == (2, second))
    assert found[2]["global_loss"] == pytest.approx(left["loss"], rel=1e-12)
    assert audit_run(tmp_path / "whole").mismatches == ()
    directory = tmp_path / "resumed"
    run(directory, *words, "engine.stop_after_round=2")
    assert run(directory, f"resume={directory}", *words) == found
