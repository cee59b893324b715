"""End a run in which no client trains with success."""

import json
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fedquorum.errors import RunError

from client_app.training.trainer import Trainer
from tests.builders_runs import read_rows, run_here

SYNTH = (
    *("data=synth", "data.num_clients=4", "data.num_priority=2", "data.sizes=equal"),
    *(
        "data.samples_per_client=30",
        "client.local_epochs=1",
        "strategy=fedavg",
        "data.priority=all",
    ),
)
ALONE = "no client trained with success in "

MODELS = """
import torch
from pathlib import Path


class Raises(torch.nn.Linear):
    def __init__(self):
        super().__init__(60, 10)

    def forward(self, x):
        if torch.is_grad_enabled() and not Path(__file__).with_name("mended").exists():
            raise RuntimeError("shape mismatch in my layer")
        return super().forward(x)


class Differs(Raises):
    def forward(self, x):
        if torch.is_grad_enabled():
            raise RuntimeError("abcdefghijklmnopqrstuvwxyz"[int(x.sum().abs() * 1e4) % 26])
        return torch.nn.Linear.forward(self, x)


class NotANumber(torch.nn.Linear):
    def __init__(self):
        super().__init__(60, 10)

    def forward(self, x):
        return super().forward(x) / (x.sum() * 0)
"""

RULE = """
from dataclasses import dataclass

import numpy as np
from fedquorum.rules.types import AggregationWeights
from fedquorum.rules.weighting import Weighting


@dataclass(frozen=True)
class Constant(Weighting[None]):
    value: float = 0.0

    def init(self, population):
        return None

    def weigh(self, state, plan, updates, admitted_fraction):
        return None, AggregationWeights(np.full(len(updates.client), self.value))
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Return the file with the models, as users bring them."""
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


def use(models: Path, name: str) -> Sequence[str]:
    return *SYNTH, "model=module", f"model.path={models}:{name}"


def use_rule(folder: Path, value: str) -> Sequence[str]:
    (folder / "rule.py").write_text(RULE)
    path = f"strategy.path={folder / 'rule.py'}:Constant"
    return *SYNTH, "strategy=custom", path, f"strategy.args={{value: {value}}}"


def read_manifest(run: Path) -> dict[str, str]:
    manifest: dict[str, str] = json.loads((run / "manifest.json").read_text())
    return manifest


def test_a_model_that_raises_ends_the_run_in_round_1(
    models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has failed, with the reason once; the log has one trace, not one per client."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    reason = r"RuntimeError: shape mismatch in my layer \(4 clients, such as 0\)"
    with pytest.raises(RunError, match=f"^{ALONE}round 1, so .*: {reason}; the run stops"):
        run_here(tmp_path / "run", *use(models, "Raises"), "rounds=200")
    manifest = read_manifest(tmp_path / "run")
    assert (manifest["status"], len(read_rows(tmp_path / "run"))) == ("failed", 4)
    assert manifest["error"].count("shape mismatch") == 1
    assert sum(entry.exc_info is not None for entry in caplog.records) == 1
    assert len(caplog.records) <= 3


@pytest.mark.parametrize(
    ("name", "reason"), [("NotANumber", "array 'weight' holds NaN or Inf"), ("lr", "array 'lin")]
)
def test_a_model_that_diverges_ends_the_run_in_round_1(
    models: Path, tmp_path: Path, name: str, reason: str
) -> None:
    """By itself, or by its learning rate, which the message names."""
    overrides = (*SYNTH, "client.lr=1e38") if name == "lr" else use(models, name)
    with pytest.raises(RunError, match=f"^{ALONE}round 1, .*{reason}.*a smaller client.lr helps"):
        run_here(tmp_path / "run", *overrides, "rounds=9")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_rule_whose_weights_are_not_finite_ends_the_run(tmp_path: Path, value: str) -> None:
    """The server refuses the model, in every round."""
    match = (
        f"^{ALONE}round 1, .*: the model would not be finite \\(4 clients, .*the strategy's weights"
    )
    with pytest.raises(RunError, match=match):
        run_here(tmp_path / "run", *use_rule(tmp_path, value), "rounds=9")
    assert read_manifest(tmp_path / "run")["status"] == "failed"


def test_a_rule_that_aggregates_nothing_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clients trained with success."""
    run_here(tmp_path / "run", *use_rule(tmp_path, "0.0"), "rounds=3")
    assert read_manifest(tmp_path / "run")["status"] == "completed"
    assert "failed" not in capsys.readouterr().out


def test_rounds_without_anybody_are_no_failure_and_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says how many."""
    (tmp_path / "trace.csv").write_text("round,client,available\n1,0,0\n2,0,1\n3,0,0\n")
    trace = ("availability=trace", f"availability.path={tmp_path / 'trace.csv'}")
    run_here(tmp_path / "run", *SYNTH, *trace, "rounds=3")
    assert read_manifest(tmp_path / "run")["status"] == "completed"
    line = "In 2 of 3 rounds none of the selected clients was available\n"
    assert line in capsys.readouterr().out


def test_failures_that_differ_end_the_run_at_its_end(models: Path, tmp_path: Path) -> None:
    """Each distinct one is in the message once, the most frequent five by name."""
    with pytest.raises(RunError, match=f"^{ALONE}any of 4 rounds, ") as caught:
        run_here(tmp_path / "run", *use(models, "Differs"), "rounds=4")
    named = re.findall(r"RuntimeError: (\w) \(", str(caught.value))
    assert len(named) == len(set(named)) == 5
    assert re.search(r"; and \d+ more \(\d+ times\)$", str(caught.value))


def test_a_run_in_which_some_fail_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a row of the table and a line below it; also after a resume, with the earlier rounds."""
    fail_for(monkeypatch, {2})
    run_here(tmp_path / "run", *SYNTH, "rounds=4", "engine.stop_after_round=2")
    assert re.search(r"clients failed +│ +1 of 4, 2 times ", capsys.readouterr().out)
    run_here(tmp_path / "run", *SYNTH, "rounds=4", f"resume={tmp_path / 'run'}")
    output = capsys.readouterr().out
    assert re.search(r"clients failed +│ +1 of 4, 4 times ", output)
    assert "\nClients failed: ValueError: bad data of 2 (client 2, 4 times)\n" in output


def test_one_broken_client_of_many_does_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a round selects a single one, the next may be able to train."""
    one = ("strategy.fraction=0.25", "rounds=8")
    run_here(tmp_path / "whole", *SYNTH, *one)
    first = next(row["client"] for row in read_rows(tmp_path / "whole"))
    fail_for(monkeypatch, {first})
    run_here(tmp_path / "run", *SYNTH, *one)
    assert read_rows(tmp_path / "run")[0]["status"] == "failed"
    fail_for(monkeypatch, range(4))
    with pytest.raises(RunError, match=f"^{ALONE}(round 1|any of \\d rounds), .*ValueError"):
        run_here(tmp_path / "broken", *SYNTH, *one)
    assert {row["client"] for row in read_rows(tmp_path / "broken")} > {first}


def test_failed_priority_clients_fail_the_run_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The updates of others, which the gate refuses without a priority update, change nothing."""
    fail_for(monkeypatch, {0, 1})
    gate = ("strategy=fedalign", "data.priority=[0,1]", "strategy.warmup_fraction=0.0")
    with pytest.raises(RunError, match=f"^{ALONE}any of 3 rounds, .*bad data of 0 .2 clients"):
        run_here(tmp_path / "run", *SYNTH, *gate, "strategy.epsilon=100", "rounds=3")
    trained = [row for row in read_rows(tmp_path / "run") if row["num_examples"]]
    assert trained


@pytest.mark.slow
def test_a_resumed_run_counts_the_earlier_rounds(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A success of these is enough; a repaired model trains on after a failed run."""
    run, broken = tmp_path / "run", tmp_path / "broken"
    run_here(run, *SYNTH, "rounds=4", "engine.stop_after_round=1")
    with pytest.raises(RunError, match=ALONE):
        run_here(broken, *use(models, "Raises"), "rounds=3")
    fail_for(monkeypatch, range(4))
    run_here(run, *SYNTH, "rounds=4", f"resume={run}")
    assert read_manifest(run)["status"] == "completed"
    monkeypatch.undo()
    models.with_name("mended").touch()
    run_here(broken, *use(models, "Raises"), "rounds=3", f"resume={broken}")
    assert read_manifest(broken)["status"] == "completed"


def fail_for(monkeypatch: pytest.MonkeyPatch, clients: Collection[int]) -> None:
    """Let the training of these clients raise an error."""
    train = Trainer.train_clients

    def train_some(
        trainer: Trainer, arrays: Any, given: Any, t: int, use: Any, **options: Any
    ) -> Iterator[Any]:
        for index, client in enumerate(given):
            if client in clients:
                yield [index], ValueError(f"bad data of {client}")
                continue

            def use_one(_: Any, models: Any, index: int = index) -> Any:
                return use([index], models)

            for _, result in train(trainer, arrays, [client], t, use_one, **options):
                yield [index], result

    monkeypatch.setattr(Trainer, "train_clients", train_some)
