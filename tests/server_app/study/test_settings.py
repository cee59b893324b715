"""Tests of a study's settings."""

from typing import Any

import pytest
from fedquorum.errors import SettingsError
from fedquorum.rules.metrics import METRICS

from server_app.study.settings import Budget, StudySettings


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("90s", "seconds", 90),
        ("20min", "seconds", 1200),
        ("1.5h", "seconds", 5400),
        ("200runs", "rounds", 6000),
        ("5000rounds", "rounds", 5000),
        ("12 minutes", "seconds", 720),
        ("2.5 hours", "seconds", 9000),
        ("1,200 rounds", "rounds", 1200),
    ],
)
def test_budgets(text: str, unit: str, amount: float) -> None:
    """In time, or in runs of 30 rounds; also as a study prints the budget that would decide it."""
    assert Budget.from_text(text, 30) == Budget(text, unit, amount)  # type: ignore[arg-type]


def test_amounts_are_formatted() -> None:
    """As clock time or rounds."""
    assert Budget.from_text("1h", 1).format_amount(754) == "12:34 min"
    assert Budget.from_text("2h", 1).format_amount(3725) == "1:02:05 h"
    assert Budget.from_text("9rounds", 1).format_amount(7.0) == "7 rounds"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"goal": "speed"}, "goal must be one of priority, participation, fairness, avera"),
        ({"goal": "fairnes"}, r"got 'fairnes' \(did you mean fairness\?\)"),
        ({"goal": None}, "goal must be one of .*, got nothing"),
        ({"budget": None}, "budget must be a number above 0 with s, min, h, .* got nothing"),
        ({"budget": "20"}, "budget must be a number above 0 with s, min, h, runs or rounds"),
        ({"budget": "0min"}, "budget must be a number above 0"),
        ({"seeds": 4}, "seeds must be a whole number >= 5, got 4"),
        ({"trials": -1}, "trials must be a whole number >= 0, got -1"),
        ({"min_effect": -0.1}, "min_effect must be a number >= 0, got -0.1"),
        ({"confidence": 1.0}, "confidence must be a number >= 0.5 and < 1, got 1.0"),
        ({"methods": "fedau"}, "methods must be a list of .* a strategy"),
        ({"methods": []}, "methods must be a list of at least one"),
        ({"baseline": " "}, "baseline must be a strategy"),
    ],
)
def test_mistakes(wrong: dict[str, Any], message: str) -> None:
    """One line names the setting, the allowed values and the given one."""
    with pytest.raises(SettingsError, match=message):
        StudySettings(**{"goal": "fairness", "budget": "20min", **wrong})


def test_the_goal_chooses_the_compared_number() -> None:
    """Unless the user sets ``metric_key``."""
    scores = {
        goal: StudySettings(goal, "1h").resolve_metric_key("auroc")
        for goal in ("priority", "participation", "fairness", "average")
    }
    assert scores == {
        "priority": "priority.auroc",
        "participation": "all.average",
        "fairness": "all.worst10",
        "average": "all.auroc",
    }
    assert (
        StudySettings("fairness", "1h", metric_key="all.gini").resolve_metric_key("auroc")
        == "all.gini"
    )


def test_margins() -> None:
    """A point of a fraction, else a hundredth of the baseline's score, or the given value."""
    study = StudySettings("average", "1h")
    assert study.resolve_min_effect(METRICS["accuracy"], 0.8) == 0.01
    assert study.resolve_min_effect(METRICS["rmse"], -250.0) == 2.5
    assert study.resolve_min_effect(METRICS["loss"], -0.5) == 0.005
    assert [study.resolve_min_effect(METRICS["r2"], one) for one in (0.4, 0.0, -3.0)] == [0.01] * 3
    assert (
        StudySettings("average", "1h", min_effect=3.0).resolve_min_effect(METRICS["rmse"], -250.0)
        == 3.0
    )


def test_settings_become_overrides() -> None:
    """Defaults are left out."""
    study = StudySettings(
        "average", "1.5h", methods=["fedau", "fedavg client.proximal_mu=0.1"], seeds=7
    )
    assert study.overrides == (
        "budget=1.5h",
        "goal=average",
        "methods=[fedau,'fedavg client.proximal_mu=0.1']",
        "seeds=7",
    )
