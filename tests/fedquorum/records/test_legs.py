"""Tests of the legs of a run: which settings decided which round."""

import json
from pathlib import Path
from typing import Any

import pytest
from fedquorum.errors import RunError
from fedquorum.records.checkpoint import Checkpoint, CheckpointStore
from fedquorum.records.legs import Leg, Resume, build_legs, find_changed_settings
from fedquorum.records.reader import load_run
from fedquorum.records.writer import RunWriter

from tests.fedquorum.records.made import CONFIG, IDENTITY, add, make_round_line, make_run

NOW = {"rounds": 30, "seed": 1, "engine": {"quorum": 0.5, "name": "ray"}}


@pytest.mark.parametrize(
    ("resumed", "expected"),
    [
        ([], [(1, 30, 0.5)]),
        ([Resume(4)], [(1, 30, 0.5)]),
        ([Resume(4, {"rounds": 10})], [(1, 10, 0.5), (5, 30, 0.5)]),
        (
            [Resume(4, {"rounds": 10}), Resume(8), Resume(12, {"rounds": 20, "engine.quorum": 3})],
            [(1, 10, 3), (5, 20, 3), (13, 30, 0.5)],
        ),
        # The second leg started after round 8, and the third repeated all of its rounds.
        (
            [Resume(8, {"rounds": 10}), Resume(6, {"rounds": 10})],
            [(1, 10, 0.5), (7, 30, 0.5)],
        ),
        (
            [Resume(2, {"rounds": 10}), Resume(9, {"rounds": 15}), Resume(9, {"rounds": 15})],
            [(1, 10, 0.5), (3, 15, 0.5), (10, 30, 0.5)],
        ),
        ([Resume(5, {"rounds": 10}), Resume(0, {"rounds": 20})], [(1, 30, 0.5)]),
    ],
)
def test_a_round_belongs_to_the_last_leg_that_started_before_it(
    resumed: list[Resume], expected: list[tuple[Any, ...]]
) -> None:
    """Rounds removed by a later resume do not count; legs with the same settings are one."""
    legs = build_legs(NOW, resumed)
    found = [
        (leg.first_round, leg.config["rounds"], leg.config["engine"]["quorum"]) for leg in legs
    ]
    assert found == expected
    assert all(leg.settings["engine.name"] == "ray" for leg in legs)
    assert NOW["rounds"] == 30


def test_settings_that_only_one_side_has_are_not_compared() -> None:
    """They belong to another option or version; NaN equals itself."""
    nan = float("nan")
    before = {"rounds": 5, "a": nan, "b": 1, "tracker.uri": "x", "same": [1]}
    now = {"rounds": 7, "a": nan, "b": 1.0, "client.threads_per_op": 1, "same": [1]}
    assert find_changed_settings(before, now) == {"rounds": 5}


def test_the_manifest_has_what_a_resume_changed(tmp_path: Path) -> None:
    """config.yaml has the latest settings, and the run returns those of each round."""
    settings = {"seed": 7, "client.lr": 0.05, "engine.grace_seconds": float("inf"), "rounds": 2}
    text = "client:\n  lr: 0.05\nseed: 7\nrounds: {}\nengine:\n  grace_seconds: {}\n"
    with RunWriter(tmp_path / "run", IDENTITY, text.format(2, ".inf")) as records:
        add(records, 1)
        start = Checkpoint(
            1, {}, {}, records.get_summary_state(), {}, records.flush_and_get_offsets(), settings
        )
        CheckpointStore(tmp_path / "run").save(start)
    with RunWriter(tmp_path / "run", IDENTITY, text.format(4, 1.0), resumed=start) as records:
        add(records, 2)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [entry["before"] for entry in manifest["resumed"]] == [
        {"engine.grace_seconds": "inf", "rounds": 2}
    ]
    run = load_run(tmp_path / "run")
    assert [run.find_leg(number).settings["rounds"] for number in range(4)] == [2, 2, 4, 4]
    assert run.settings["rounds"] == 4
    assert run.find_leg(2).settings["engine.grace_seconds"] == 1.0


def test_a_failed_resume_leaves_the_settings_of_earlier_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier rounds retain the settings that decided them."""
    settings = {"seed": 7, "client.lr": 0.05, "rounds": 2}
    with RunWriter(tmp_path / "run", IDENTITY, f"{CONFIG}rounds: 2\n") as records:
        add(records, 1)
        start = Checkpoint(
            1, {}, {}, records.get_summary_state(), {}, records.flush_and_get_offsets(), settings
        )

    def raise_no_space(_records: RunWriter, _config: str) -> None:
        raise RunError("no space")

    monkeypatch.setattr(RunWriter, "_write_settings", raise_no_space)
    with pytest.raises(RunError, match="no space"):
        RunWriter(tmp_path / "run", IDENTITY, f"{CONFIG}rounds: 4\n", resumed=start)
    monkeypatch.undo()
    run = load_run(tmp_path / "run")
    assert (run.status, run.error) == ("failed", "RunError: no space")
    assert run.find_leg(1).settings["rounds"] == 2
    with RunWriter(tmp_path / "run", IDENTITY, f"{CONFIG}rounds: 6\n", resumed=start) as records:
        add(records, 2)
    run = load_run(tmp_path / "run")
    assert [run.find_leg(number).settings["rounds"] for number in (1, 2)] == [2, 6]


@pytest.mark.parametrize(
    ("resumed", "problem"),
    [
        ([3], "resumed must be a JSON object, got 3"),
        ([{}], "round is missing"),
        ([{"round": -1}], "round must be a whole number >= 0, got -1"),
        ([{"round": 1, "before": [1]}], "before must be a JSON object, got [1]"),
    ],
)
def test_an_invalid_resume_is_named(tmp_path: Path, resumed: Any, problem: str) -> None:
    """The error names the file and the field."""
    run = make_run(tmp_path / "run", [make_round_line(1)], resumed=resumed)
    with pytest.raises(RunError) as refused:
        load_run(run)
    assert str(refused.value) == f"{run}/manifest.json: {problem}"


def test_a_resume_without_changes_makes_no_leg(tmp_path: Path) -> None:
    """Its entry in the manifest has the round only."""
    run = load_run(make_run(tmp_path / "run", [make_round_line(1)], resumed=[{"round": 1}]))
    assert run.legs == (Leg(1, run.config),)
