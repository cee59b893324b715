"""A run in several legs: each round is checked with the settings that decided it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fedquorum.audit.check import audit_run
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input, replay_rounds
from fedquorum.records.reader import load_run
from fedquorum.rules.selection import EpsilonGate

import fedquorum_app
from tests.builders_runs import run_here
from tests.cases import sample_cases
from tests.fedquorum.audit.runs import OVERRIDES
from tests.server_app.made_runs import SMALL

EVERY_ROUND = ("engine.checkpoint_every=1",)


def start_or_resume(run: Path, name: str, *overrides: str) -> Path:
    """Start a run of a configuration, or resume the existing one."""
    resume = (f"resume={run}",) if run.exists() else ()
    return run_here(run, *SMALL, *OVERRIDES[name], *EVERY_ROUND, *overrides, *resume)


def list_mismatches(run: Path) -> list[str]:
    return [str(problem) for problem in audit_run(run).mismatches]


@pytest.mark.slow
def test_a_resumed_run_with_more_rounds_has_no_mismatches(tmp_path: Path) -> None:
    """With ten and then twenty rounds, FedALIGN's default warm-up is a tenth of either."""
    small: dict[str, Any] = {
        "data.num_clients": 8,
        "data.num_priority": 3,
        "data.priority": "heterogeneous",
        "data.sizes": "equal",
        "data.samples_per_client": 40,
    }
    settings = {"data": "synth", "strategy": "fedalign", "model": "logistic_regression"}
    run = tmp_path / "run"
    fedquorum_app.run("custom", output=run, verbose=False, rounds=10, **settings, **small)
    assert list_mismatches(run) == []
    fedquorum_app.run(verbose=False, resume=str(run), rounds=20)
    assert list_mismatches(run) == []
    assert audit_run(run).num_rounds == 20
    gates = [replayed.rules.selection for replayed in replay_rounds(read_audit_input(run))]
    horizons = [gate.num_rounds for gate in gates if isinstance(gate, EpsilonGate)]
    assert horizons == [10] * 10 + [20] * 10


@pytest.mark.slow
@pytest.mark.parametrize("name", sample_cases([*OVERRIDES], 8))
def test_every_leg_is_replayed_with_its_own_settings(tmp_path: Path, name: str) -> None:
    """Of three legs, the second stopped before its last round."""
    run = start_or_resume(tmp_path / "run", name, "rounds=4")
    start_or_resume(run, name, "rounds=7", "engine.stop_after_round=6")
    start_or_resume(run, name, "rounds=12", "engine.checkpoint_every=5")
    assert list_mismatches(run) == []
    assert audit_run(run).num_rounds == 12
    manifest = json.loads((run / "manifest.json").read_text())
    resumes = [(entry["round"], entry["before"]) for entry in manifest["resumed"]]
    every = {"engine.checkpoint_every": 1}
    assert resumes == [(4, {"rounds": 4}), (6, {"rounds": 7, **every})]


@pytest.mark.slow
def test_repeated_rounds_are_replayed_with_the_leg_that_repeated_them(
    tmp_path: Path,
) -> None:
    """The newest checkpoint is lost twice, so no round of the second leg is left."""
    run = start_or_resume(tmp_path / "run", "accuracy", "rounds=4")
    damage_checkpoint(run, 4)
    start_or_resume(
        run, "accuracy", "rounds=8", "engine.stop_after_round=5", "engine.checkpoint_every=100"
    )
    assert list_mismatches(run) == []
    assert list_legs(run) == [(1, 4), (4, 8)]
    damage_checkpoint(run, 5)
    start_or_resume(run, "accuracy", "rounds=12", "engine.stop_after_round=9")
    assert list_mismatches(run) == []
    assert list_legs(run) == [(1, 4), (4, 12)]
    start_or_resume(run, "accuracy", "rounds=14")
    assert list_mismatches(run) == []
    assert list_legs(run) == [(1, 4), (4, 12), (10, 14)]


def damage_checkpoint(run: Path, number: int) -> None:
    """Damage a checkpoint, so that a resume starts from the previous one."""
    (run / "checkpoints" / f"round-{number:06d}.safetensors").write_bytes(b"damaged")


def list_legs(run: Path) -> list[tuple[int, Any]]:
    return [(leg.first_round, leg.settings["rounds"]) for leg in load_run(run).legs]


@pytest.mark.slow
def test_a_decision_is_explained_with_the_settings_of_its_leg(tmp_path: Path) -> None:
    """A warm-up of half of the rounds is over in round 3 of 4, but not in round 5 of 12."""
    run = start_or_resume(tmp_path / "run", "fedalign", "rounds=4", "strategy.warmup_fraction=0.5")
    start_or_resume(run, "fedalign", "rounds=12", "strategy.warmup_fraction=0.5")
    recorded = read_audit_input(run)
    selections = [describe_decision(recorded, 7, number)[1] for number in (2, 3, 5, 7)]
    assert "rounds 1 to 2 are warm-up" in selections[0]
    assert "rounds 1 to 6 are warm-up" in selections[2]
    assert [text.startswith("asked: yes") for text in selections] == [False, True, False, True]


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ({"strategy.epsilon": 5.0}, "run: the resume after round 3 changed strategy.epsilon, "),
        ({"seed": 2}, "run: the resume after round 3 changed seed, which no resume may"),
        ({"rounds_": 2}, "run: the resume after round 3 changed rounds_, which no resume may"),
        ({"rounds": 9}, "round 4: fewer rounds are planned than before: 5 after 9"),
    ],
)
def test_settings_that_no_resume_may_change_are_found(
    run_copy: Callable[[str], Path], before: dict[str, Any], problem: str
) -> None:
    """Otherwise a manifest could excuse any decision."""
    run = run_copy("fedalign")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["resumed"] = [{"round": 3, "before": before}]
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert any(text.startswith(problem) for text in list_mismatches(run))


@pytest.mark.slow
def test_an_engine_without_known_rates_has_no_weight_error(tmp_path: Path) -> None:
    """Under a quorum on the machine's clock, nobody knows how often a client counts."""
    run = start_or_resume(tmp_path / "run", "fedau", "engine.stop_after_round=2")
    start_or_resume(run, "fedau", "engine=ray", "engine.quorum=0.5")
    errors = [record.weight_error for record in load_run(run).rounds]
    assert [error is None for error in errors[:3]] == [False, False, True]
    assert list_mismatches(run) == []
