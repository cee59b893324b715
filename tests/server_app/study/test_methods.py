"""Which methods answer a question, and where their parameters are looked for."""

import math

import pytest
from fedquorum.errors import SettingsError
from fedquorum.named import NAMED_STRATEGIES
from fedquorum.rule import Goal, get_parameters
from fedquorum.search import Choices, FloatRange, RelativeRange
from fedquorum.server_optimizer import SERVER_OPTIMIZERS

from conf.compose import compose_overrides
from server_app.study.methods import build_search_space, get_current_values, select_methods
from server_app.study.settings import STUDY_GOALS, StudySettings


@pytest.mark.parametrize("question", STUDY_GOALS)
def test_all_that_answer_the_question_and_one_plain_method(question: Goal) -> None:
    """The declarations say both; every question has one plain method."""
    plain = [key for key, named in NAMED_STRATEGIES.items() if question in named.reference_for]
    assert len(plain) == 1
    methods = select_methods(StudySettings(question.value, "1h"))
    assert methods[0].overrides == (f"strategy={plain[0]}",)
    named = {method.name for method in methods if "=" not in method.name}
    answering = {key for key, named in NAMED_STRATEGIES.items() if named.goal == question}
    assert answering <= named | set(plain)
    assert len({method.overrides for method in methods}) == len(methods)


def test_server_optimizers_answer_the_question_of_averages() -> None:
    """Each with the plain strategy, beside FedProx."""
    names = {method.name for method in select_methods(StudySettings("average", "1h"))}
    assert {f"fedavg server_optimizer={key}" for key in SERVER_OPTIMIZERS if key != "sgd"} < names
    assert "fedprox" in names


def test_methods_by_name() -> None:
    """With what goes with them, each once, and never the baseline."""
    study = StudySettings(
        "average", "1h", methods=["term strategy.tilt=2", "fedau", "fedau", "mifa"], baseline="mifa"
    )
    assert [method.overrides for method in select_methods(study)] == [
        ("strategy=mifa",),
        ("strategy=term", "strategy.tilt=2"),
        ("strategy=fedau",),
    ]


@pytest.mark.parametrize(
    ("phrase", "message"),
    [
        ("fedal", "methods must begin with a strategy .* got fedal.*fedalign"),
        ("fedau cutoff", "methods must have settings KEY=VALUE after a strategy, got cutoff"),
    ],
)
def test_mistakes(phrase: str, message: str) -> None:
    """One line, with the nearest name."""
    with pytest.raises(SettingsError, match=message):
        select_methods(StudySettings("average", "1h", methods=[phrase]))


def test_where_values_are_looked_for() -> None:
    """Around the learning rate of the settings, and where rules say; learning rates come first."""
    settings = compose_overrides(("experiment=custom", "strategy=fedau", "client.lr=0.3")).settings
    space = build_search_space(settings, ())
    assert [*space][:2] == ["client.lr", "strategy.server_lr"]
    assert space["client.lr"] == FloatRange(0.03, 3.0)
    assert isinstance(space["strategy.cutoff"], Choices)
    assert get_current_values(settings, space)["strategy.cutoff"] == math.inf


def test_what_the_user_says_is_left_as_it_is() -> None:
    """A setting that is given, and a value outside of where values are looked for."""
    words = ("experiment=custom", "strategy=qfedavg", "strategy.q=0")
    assert "strategy.q" not in build_search_space(compose_overrides(words).settings, ())
    assert "client.proximal_mu" not in build_search_space(compose_overrides(words).settings, ())
    assert "client.lr" not in build_search_space(compose_overrides(words).settings, ("client.lr",))
    prox = compose_overrides(("experiment=custom", "client.proximal_mu=0.01")).settings
    assert "client.proximal_mu" in build_search_space(prox, ())


def test_search_spaces_hold_only_valid_values() -> None:
    """Both ends, or each choice, of every rule's parameter."""
    rules = [*(part for named in NAMED_STRATEGIES.values() for part in named.rule_classes)]
    found = 0
    for rule in {*rules, *SERVER_OPTIMIZERS.values()}:
        for item in get_parameters(rule):
            search = item.metadata["search"]
            assert not isinstance(search, RelativeRange)
            ends = () if search is None else _ends(search)
            assert all(item.metadata["allowed"].contains(end) for end in ends), (rule, item.name)
            found += bool(ends)
    assert found >= 12


def _ends(search: Choices | FloatRange) -> tuple[float, ...]:
    return search.choices if isinstance(search, Choices) else (search.low, search.high)
