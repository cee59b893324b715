"""Tests of the methods for each goal and their search spaces."""

import math

import pytest
from fedquorum.errors import SettingsError
from fedquorum.registry import NAMED_STRATEGIES
from fedquorum.rules.description import Goal
from fedquorum.rules.parameters import Choices, FloatRange, RelativeRange
from fedquorum.rules.rule import get_parameters
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS

from conf.compose import compose_overrides
from server_app.study.methods import build_search_space, get_current_values, select_methods
from server_app.study.settings import STUDY_GOALS, StudySettings
from server_app.study.text import format_method_name


@pytest.mark.parametrize("goal", STUDY_GOALS)
def test_a_goal_has_one_reference_and_all_methods_that_serve_it(goal: Goal) -> None:
    """The declarations of strategies name both."""
    references = [key for key, entry in NAMED_STRATEGIES.items() if goal in entry.reference_for]
    assert len(references) == 1
    methods = select_methods(StudySettings(goal.value, "1h"))
    assert methods[0].overrides == (f"strategy={references[0]}",)
    named = {method.name for method in methods if "=" not in method.name}
    serving = {key for key, entry in NAMED_STRATEGIES.items() if entry.goal == goal}
    assert serving <= named | set(references)
    assert len({method.overrides for method in methods}) == len(methods)


def test_server_optimizers_serve_the_goal_average() -> None:
    """Each is combined with the reference strategy, beside FedProx."""
    names = {method.name for method in select_methods(StudySettings("average", "1h"))}
    assert {f"fedavg server_optimizer={key}" for key in SERVER_OPTIMIZERS if key != "sgd"} < names
    assert "fedprox" in names


def test_methods_by_name() -> None:
    """With their settings, each once, and never the baseline."""
    study = StudySettings(
        "average", "1h", methods=["term strategy.tilt=2", "fedau", "fedau", "mifa"], baseline="mifa"
    )
    assert [method.overrides for method in select_methods(study)] == [
        ("strategy=mifa",),
        ("strategy=term", "strategy.tilt=2"),
        ("strategy=fedau",),
    ]


@pytest.mark.parametrize("goal", STUDY_GOALS)
def test_names_are_accepted_as_a_study_prints_them(goal: Goal) -> None:
    """Those of ``study.json`` and those of the page, in any case, alone and with settings."""
    _, *others = select_methods(StudySettings(goal.value, "1h"))
    for method in others:
        title = format_method_name(method.name)
        for name in (method.name, title, title if "=" in title else title.upper()):
            study = StudySettings(goal.value, "1h", methods=[name])
            _, one = select_methods(study)
            assert (one.name, one.overrides) == (method.name, method.overrides)
            chosen = StudySettings(goal.value, "1h", methods=[f"{name} client.lr=0.1"])
            _, one = select_methods(chosen)
            assert one.overrides == (*method.overrides, "client.lr=0.1")


@pytest.mark.parametrize(
    ("phrase", "message"),
    [
        ("fedprx", r"methods must begin with a strategy .* \(did you mean fedprox\?\)"),
        ("fedal", "methods must begin with a strategy .* got fedal.*fedalign"),
        ("fedau cutoff", "methods must have settings KEY=VALUE after a strategy, got cutoff"),
    ],
)
def test_mistakes(phrase: str, message: str) -> None:
    """One line suggests the nearest name."""
    with pytest.raises(SettingsError, match=message):
        select_methods(StudySettings("average", "1h", methods=[phrase]))


def test_the_search_space_of_a_method() -> None:
    """It is around the settings' learning rate and as rules declare; learning rates come first."""
    settings = compose_overrides(("experiment=custom", "strategy=fedau", "client.lr=0.3")).settings
    space = build_search_space(settings, ())
    assert [*space][:2] == ["client.lr", "strategy.server_lr"]
    assert space["client.lr"] == FloatRange(0.03, 3.0)
    assert isinstance(space["strategy.cutoff"], Choices)
    assert get_current_values(settings, space)["strategy.cutoff"] == math.inf


def test_settings_of_the_user_are_not_tuned() -> None:
    """Neither is a value outside of its search space."""
    overrides = ("experiment=custom", "strategy=qfedavg", "strategy.q=0")
    assert "strategy.q" not in build_search_space(compose_overrides(overrides).settings, ())
    assert "client.proximal_mu" not in build_search_space(compose_overrides(overrides).settings, ())
    assert "client.lr" not in build_search_space(
        compose_overrides(overrides).settings, ("client.lr",)
    )
    prox = compose_overrides(("experiment=custom", "client.proximal_mu=0.01")).settings
    assert "client.proximal_mu" in build_search_space(prox, ())


def test_search_spaces_hold_only_valid_values() -> None:
    """Both ends, or each choice, of every rule's parameter are allowed."""
    rules = [*(rule for entry in NAMED_STRATEGIES.values() for rule in entry.rule_classes)]
    found = 0
    for rule in {*rules, *SERVER_OPTIMIZERS.values()}:
        for item in get_parameters(rule):
            search = item.metadata["search"]
            assert not isinstance(search, RelativeRange)
            ends = () if search is None else _list_ends(search)
            assert all(item.metadata["allowed"].contains(end) for end in ends), (rule, item.name)
            found += bool(ends)
    assert found >= 12


def _list_ends(search: Choices | FloatRange) -> tuple[float, ...]:
    return search.choices if isinstance(search, Choices) else (search.low, search.high)
