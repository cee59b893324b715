"""Named strategies: each is a combination of rules, and ``build_rules`` builds them all."""

from typing import Any

import pytest
from fedquorum.errors import ParameterError
from fedquorum.registry import (
    ALL_SELECTIONS,
    ALL_WEIGHTINGS,
    COMPOSED,
    CUSTOM,
    NAMED_STRATEGIES,
    NONE,
    build_rules,
)
from fedquorum.rules.composition import RuleSet, UpdateMemoryConfig
from fedquorum.rules.description import Goal
from fedquorum.rules.participation import (
    PARTICIPATIONS,
    EmpiricalCorrection,
    FedAUCorrection,
    KnownRatesCorrection,
)
from fedquorum.rules.rule import RunContext, get_parameters
from fedquorum.rules.selection import (
    AfterWarmup,
    AllClients,
    EpsilonGate,
    PriorityOnly,
    Sampling,
)
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS, SGD, Adam
from fedquorum.rules.weighting import (
    AverageAll,
    AverageParticipating,
    DataFraction,
    QFedAvgWeighting,
    TERMWeighting,
)

CONTEXT = RunContext(num_rounds=10, seed=3, rates={0: 0.5, 1: 1.0}, clients=(0, 1))
ALL_CLIENTS = Sampling(seed=3)
PLAIN = {"name": "sgd"}


def build_named(name: str, **options: Any) -> RuleSet:
    return build_rules({"name": name, **options}, PLAIN, CONTEXT)


OPTIONS: dict[str, dict[str, Any]] = {"maxfl": {"requirement": 1.0}}
"""The options of a strategy that has required ones."""

EXPECTED = {
    "fedalign": RuleSet(EpsilonGate(num_rounds=10, sampling=ALL_CLIENTS), DataFraction()),
    "fedavg": RuleSet(AfterWarmup(10, sampling=ALL_CLIENTS), DataFraction()),
    "fedavg_priority": RuleSet(PriorityOnly(ALL_CLIENTS), DataFraction()),
    "fedau": RuleSet(AllClients(ALL_CLIENTS), FedAUCorrection()),
    "empirical": RuleSet(AllClients(ALL_CLIENTS), EmpiricalCorrection()),
    "known_statistics": RuleSet(AllClients(ALL_CLIENTS), KnownRatesCorrection({0: 0.5, 1: 1.0})),
    "fedvarp": RuleSet(
        AllClients(ALL_CLIENTS), AverageParticipating(), memory=UpdateMemoryConfig()
    ),
    "mifa": RuleSet(
        AllClients(ALL_CLIENTS), AverageAll(), memory=UpdateMemoryConfig(steps_without_updates=True)
    ),
} | {
    key: RuleSet(AllClients(ALL_CLIENTS), rule(**OPTIONS.get(key, {})))
    for key, rule in ALL_WEIGHTINGS.items()
    if rule.description.is_strategy
}


@pytest.mark.parametrize("name", NAMED_STRATEGIES)
def test_a_named_strategy_is_its_rules(name: str) -> None:
    """With all defaults; the table here is complete, and every option is a rule's parameter."""
    assert EXPECTED.keys() == NAMED_STRATEGIES.keys()
    assert build_named(name, **OPTIONS.get(name, {})) == EXPECTED[name]
    named = NAMED_STRATEGIES[name]
    assert named.key == name
    assert named.summary.endswith(".")
    assert isinstance(named.goal, Goal)
    assert set(named.parameters) == {i for part in named.rule_classes for i in get_parameters(part)}


def test_the_papers_methods_are_not_baselines() -> None:
    """There is one for each goal but the average."""
    goals = {key: named.goal for key, named in NAMED_STRATEGIES.items() if not named.is_baseline}
    assert goals == {
        "fedalign": Goal.PRIORITY,
        "fedau": Goal.PARTICIPATION,
        "aaggff_s": Goal.FAIRNESS,
        "aaggff_d": Goal.FAIRNESS,
    }


def test_options_reach_the_rule_that_has_them() -> None:
    """Sampling, the learning rate and every part get theirs."""
    rules = build_named("fedalign", epsilon=0.5, warmup_rounds=2, fraction=0.5, server_lr=0.25)
    sampling = Sampling(0.5, seed=3)
    assert rules.selection == EpsilonGate(10, 0.5, warmup_rounds=2, sampling=sampling)
    assert rules.server_optimizer == SGD(0.25)
    assert build_named("fedau", cutoff=7).weighting == FedAUCorrection(7)
    assert build_named("mifa", memory_dir="y").memory == UpdateMemoryConfig(
        "y", steps_without_updates=True
    )
    assert build_named(
        "known_statistics", probabilities=[0.1, 0.2]
    ).weighting == KnownRatesCorrection([0.1, 0.2])
    selection = build_named("fedavg", priority_samples=4, warmup_fraction=0.5).selection
    assert selection == AfterWarmup(10, 0.5, sampling=Sampling(1.0, 4, 3))


def test_a_server_optimizer_has_its_own_learning_rate_by_default() -> None:
    """``server_lr`` changes it for any optimizer."""
    adam = build_rules({"name": "fedavg"}, {"name": "adam", "beta1": 0.5}, CONTEXT).server_optimizer
    assert adam == Adam(0.01, beta1=0.5)
    faster = build_rules({"name": "fedavg", "server_lr": 0.1}, {"name": "adam"}, CONTEXT)
    assert faster.server_optimizer == Adam(0.1)


COMPOSITION = {
    "selection": {"name": "epsilon_gate", "epsilon": 0.5},
    "weighting": {"name": "data_fraction"},
    "participation": {"name": "fedau", "cutoff": 7},
}


def test_a_composed_strategy_is_built_of_its_parts() -> None:
    """Each part has its options; the correction applies to the weighting."""
    rules = build_named(COMPOSED, **COMPOSITION, fraction=0.5)
    assert rules.selection == EpsilonGate(10, 0.5, sampling=Sampling(0.5, seed=3))
    assert rules.weighting == FedAUCorrection(7, base=DataFraction().with_fixed_denominator())
    plain = build_named(COMPOSED, **{**COMPOSITION, "participation": {"name": "none"}})
    assert plain.weighting == DataFraction()


def test_custom_parts_are_imported_by_their_path() -> None:
    """A weighting alone or as a part, a selection and a server optimizer."""
    path = {"path": "fedquorum.rules.weighting.TERMWeighting", "args": {"tilt": 2.0}}
    assert build_named(CUSTOM, **path) == RuleSet(AllClients(ALL_CLIENTS), TERMWeighting(2.0))
    selection = {"name": CUSTOM, "path": "fedquorum.rules.selection.PriorityOnly", "args": {}}
    weighting = {"name": CUSTOM, **path}
    none = {"name": "none"}
    rules = build_named(COMPOSED, selection=selection, weighting=weighting, participation=none)
    assert rules == RuleSet(PriorityOnly(ALL_CLIENTS), TERMWeighting(2.0))
    optimizer = {
        "name": CUSTOM,
        "path": "fedquorum.rules.server_optimizer.Adam",
        "args": {"tau": 0.5},
    }
    fedavg_rules = build_rules({"name": "fedavg", "server_lr": 0.5}, optimizer, CONTEXT)
    assert fedavg_rules.server_optimizer == Adam(0.5, tau=0.5)


@pytest.mark.parametrize(
    ("options", "parameter", "hint"),
    [
        ({"name": "fedua"}, "strategy", "did you mean fedau?"),
        ({"name": "fedau", "epsilon": 0.5}, "epsilon", ""),
        ({"name": "fedau", "cutoff": 0}, "cutoff", ""),
        ({"name": "fedavg", "fraction": 2.0}, "fraction", ""),
        ({"name": "fedavg", "server_lr": 0.0}, "server_lr", ""),
        (
            {"name": "fedau", "priority_samples": 2},
            "priority_samples",
            "a draw counts as its client",
        ),
        (
            {"name": COMPOSED, **COMPOSITION, "selection": {"name": "everybody"}},
            "selection",
            "did you mean everyone?",
        ),
        (
            {"name": COMPOSED, **COMPOSITION, "weighting": {"name": "qfedavg"}},
            "participation",
            "it weights by the losses of a round",
        ),
        (
            {"name": COMPOSED, **COMPOSITION, "participation": {"name": "fedou"}},
            "participation",
            "did you mean fedau?",
        ),
    ],
)
def test_impossible_settings_are_refused_by_name(
    options: dict[str, Any], parameter: str, hint: str
) -> None:
    """The parameter's name, the allowed values, and the nearest name for a typo."""
    with pytest.raises(ParameterError) as caught:
        build_rules(options, PLAIN, CONTEXT)
    assert caught.value.parameter == parameter
    assert caught.value.reason.startswith(hint)


def test_a_mistyped_server_optimizer_is_refused_by_name() -> None:
    """The message suggests the nearest name."""
    with pytest.raises(ParameterError, match=r"server_optimizer must be .*did you mean adam\?"):
        build_rules({"name": "fedavg"}, {"name": "adan"}, CONTEXT)


def test_every_part_can_be_chosen() -> None:
    """A composed strategy accepts every part in the tables."""
    for key, rule in ALL_SELECTIONS.items():
        uncorrected = {"participation": {"name": NONE}} if key == "power_of_choice" else {}
        parts = {**COMPOSITION, "selection": {"name": key}, **uncorrected}
        assert isinstance(build_named(COMPOSED, **parts).selection, rule)
    for key, correction in PARTICIPATIONS.items():
        parts = {**COMPOSITION, "participation": {"name": key}}
        assert isinstance(build_named(COMPOSED, **parts).weighting, correction)
    for key, optimizer in SERVER_OPTIMIZERS.items():
        assert isinstance(
            build_rules({"name": "fedavg"}, {"name": key}, CONTEXT).server_optimizer, optimizer
        )
    assert isinstance(build_named("qfedavg", q=2.0).weighting, QFedAvgWeighting)


def test_names_for_people_are_unique() -> None:
    """The published name if the summary starts with one, otherwise the key in words."""
    titles = {key: named.title for key, named in NAMED_STRATEGIES.items()}
    assert len(set(titles.values())) == len(titles)
    chosen = [titles[key] for key in ("fedavg", "fedavg_priority", "aaggff_s", "known_statistics")]
    assert chosen == ["FedAvg", "FedAvg on priority clients", "AAggFF-S", "known statistics"]
