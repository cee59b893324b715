"""Sets of rules: their descriptions, and the combinations that they refuse."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fedquorum.contrib import FedAWEWeighting, PowerOfChoice
from fedquorum.errors import ParameterError
from fedquorum.registry import NAMED_STRATEGIES, build_rules
from fedquorum.rules.composition import RuleSet, UpdateMemoryConfig
from fedquorum.rules.rule import RunContext
from fedquorum.rules.schedules import ClientLRSchedule, ServerLRSchedule
from fedquorum.rules.selection import (
    AllClients,
    EpsilonGate,
    PriorityOnly,
    Sampling,
    Selection,
)
from fedquorum.rules.selection.base import SelectionTraits
from fedquorum.rules.server_optimizer import SGD, Adam, Momentum, Parameters, ServerOptimizer
from fedquorum.rules.types import (
    Admission,
    ClientReports,
    ClientUpdates,
    KnownWeights,
    Objective,
    Population,
    RoundPlan,
)
from fedquorum.rules.weighting import (
    AAggFFSWeighting,
    AFLWeighting,
    AverageAll,
    AverageParticipating,
    DataFraction,
    FedMGDAWeighting,
    PropFairWeighting,
    QFedAvgWeighting,
    TERMWeighting,
    Weighting,
)
from fedquorum.rules.weighting.base import WEIGHTS_UNKNOWN, WeightingTraits

from tests.builders import GATE, build_corrected_weighting

POPULATION = Population.from_size(4, [0, 2])


@pytest.mark.parametrize(
    ("selection", "weighting", "text"),
    [
        (GATE, DataFraction(), "the training data of the clients admitted in the round"),
        (
            GATE,
            build_corrected_weighting(DataFraction(), "fedau"),
            "the training data of the priority clients and the others last known to be aligned",
        ),
        (
            AllClients(),
            build_corrected_weighting(AverageAll(), "fedau"),
            "the number of all registered clients",
        ),
        (
            PriorityOnly(),
            build_corrected_weighting(AFLWeighting(), "fedau"),
            "the sum of p over the registered priority clients",
        ),
        (
            AllClients(),
            QFedAvgWeighting(1.0, lipschitz=2.0),
            "the sum of w_j h_j / L over the clients admitted in the round",
        ),
        (
            AllClients(Sampling(1.0, 2)),
            DataFraction(),
            (
                "the training data of all priority clients, drawn or not, and the others admitted "
                "in the round"
            ),
        ),
    ],
)
def test_denominators_in_words(selection: Selection, weighting: Weighting[Any], text: str) -> None:
    """The denominator follows from both rules."""
    assert RuleSet(selection, weighting).denominator == text


def test_a_correction_is_a_further_factor() -> None:
    """It precedes the weighting's numerator, or stands alone if that is 1."""
    assert build_corrected_weighting(DataFraction(), "fedau").traits.numerator == "omega_k D_k"
    assert build_corrected_weighting(AverageAll(), "fedau").traits.numerator == "omega_k"
    assert (
        build_corrected_weighting(AverageAll(), "known_statistics").traits.numerator == "(1 / p_k)"
    )


REFUSED: Mapping[str, tuple[Callable[[], object], str]] = {
    "aaggff_s gate": (
        lambda: RuleSet(GATE, AAggFFSWeighting()),
        "selection must be everyone with the weighting aaggff_s .*, got 'epsilon_gate'",
    ),
    "aaggff_s sampled": (
        lambda: RuleSet(AllClients(Sampling(0.5)), AAggFFSWeighting()),
        r"fraction must be 1 for AAggFF-S \(.*; with sampling use AAggFF-D\), got 0.5",
    ),
    "fedmgda gate": (
        lambda: RuleSet(GATE, FedMGDAWeighting()),
        "selection must be one without a gate with the weighting fedmgda .*, got 'epsilon_gate'",
    ),
    "fedmgda momentum": (
        lambda: RuleSet(AllClients(), FedMGDAWeighting(), Momentum()),
        "server_optimizer must be sgd with the weighting fedmgda .*, got 'momentum'",
    ),
    "draws": (
        lambda: RuleSet(
            AllClients(Sampling(1.0, 2)), build_corrected_weighting(AverageAll(), "fedau")
        ),
        "priority_samples must be None with a weighting that is not by data .*, got 2",
    ),
    "draws corrected": (
        lambda: RuleSet(
            AllClients(Sampling(1.0, 2)), build_corrected_weighting(DataFraction(), "fedau")
        ),
        "priority_samples must be None with a weighting that is not by data .*, got 2",
    ),
    "twice": (
        lambda: build_corrected_weighting(
            build_corrected_weighting(AverageAll(), "fedau"), "known_statistics"
        ),
        "participation must be none with the weighting fedau .participation must be corrected for",
    ),
} | {
    type(rule).__name__: (
        partial(build_corrected_weighting, rule, "fedau"),
        f"participation must be none with the weighting {rule.description.key} .*, got 'fedau'",
    )
    for rule in (
        AverageParticipating(),
        AAggFFSWeighting(),
        QFedAvgWeighting(),
        TERMWeighting(),
        PropFairWeighting(),
        FedMGDAWeighting(),
    )
}


@pytest.mark.parametrize("name", REFUSED)
def test_meaningless_combinations_are_refused_with_the_reason(name: str) -> None:
    """One line names the rule, the allowed values, and the reason."""
    make, message = REFUSED[name]
    with pytest.raises(ParameterError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert caught.value.reason


@pytest.mark.parametrize(
    ("selection", "weighting", "requests_losses", "objective"),
    [
        (AllClients(), AverageAll(), False, False),
        (AllClients(), TERMWeighting(), True, False),
        (AllClients(), DataFraction(), True, True),
        (AllClients(), build_corrected_weighting(AFLWeighting(), "fedau"), True, False),
        (GATE, AverageAll(), True, True),
        (PriorityOnly(), AverageAll(), True, True),
    ],
)
def test_clients_evaluate_what_a_rule_needs(
    selection: Selection, weighting: Weighting[Any], requests_losses: bool, objective: bool
) -> None:
    """Losses for the selection or the weighting; F(w_t) for a gate, and for its report."""
    rules = RuleSet(selection, weighting)
    assert (rules.requests_losses, rules.needs_objective) == (requests_losses, objective)
    assert rules.plan_round(0, POPULATION, ClientReports()).requests_loss == requests_losses


def test_the_plan_comes_from_the_selection() -> None:
    """Its clients and terms; the rule set adds whether clients evaluate the model."""
    gate = EpsilonGate(num_rounds=10, warmup_rounds=1)
    plan = RuleSet(gate, AverageAll()).plan_round(0, POPULATION, ClientReports())
    assert plan == RoundPlan((0, 2), epsilon=0.0, eligible=frozenset({0, 2}), requests_loss=True)


def test_nodes_sum_updates_only_if_weights_precede_training() -> None:
    """Not with a gate, not for a memory of single updates."""
    plan = RoundPlan((0, 1, 2, 3))
    assert RuleSet(AllClients(), AverageAll()).compute_known_weights(None, plan) == KnownWeights()
    assert RuleSet(AllClients(), DataFraction()).compute_known_weights(None, plan) == KnownWeights(
        by_data=True
    )
    assert (
        RuleSet(GATE, AverageAll()).compute_known_weights(None, RoundPlan((0, 1), epsilon=0.5))
        is None
    )
    with_memory = RuleSet(AllClients(), AverageAll(), memory=UpdateMemoryConfig())
    assert with_memory.compute_known_weights(None, plan) is None
    assert RuleSet(AllClients(), TERMWeighting()).compute_known_weights(None, plan) is None
    rates = build_corrected_weighting(DataFraction(), "known_statistics", probabilities=(0.5, 0.25))
    proportions = RuleSet(AllClients(), rates).compute_known_weights(
        rates.init(POPULATION), RoundPlan((0, 1))
    )
    assert proportions == KnownWeights({0: 2.0, 1: 4.0}, by_data=True)
    assert proportions is not None
    assert (proportions.compute_numerator(1, 10.0), proportions.compute_numerator(3, 10.0)) == (
        40.0,
        10.0,
    )


def test_a_selection_that_validates_updates_needs_all_of_them() -> None:
    """An update that ``admit`` rejects must not already be part of a sum."""

    class CustomAdmission(AllClients):
        def admit(self, plan: RoundPlan, objective: Objective, updates: ClientUpdates) -> Admission:
            return super().admit(plan, objective, updates)

    plan = RoundPlan((0, 1, 2, 3))
    assert RuleSet(AllClients(), AverageAll()).compute_known_weights(None, plan) is not None
    assert RuleSet(CustomAdmission(), AverageAll()).compute_known_weights(None, plan) is None


def test_the_optimizer_of_a_round_has_the_rounds_rate() -> None:
    """Nothing else changes; with a constant rate it is the same object."""
    adam = Adam(0.01, beta1=0.5)
    assert RuleSet(AllClients(), AverageAll(), adam).get_optimizer_at(7) is adam
    rising = ServerLRSchedule("inverse_client", ClientLRSchedule(0.1, "step", 0.5, 10))
    rules = RuleSet(AllClients(), AverageAll(), adam, server_lr_schedule=rising)
    assert rules.get_optimizer_at(9) == adam
    assert rules.get_optimizer_at(20) == Adam(0.04, beta1=0.5)


def test_a_rate_that_changes_needs_a_dataclass() -> None:
    """A custom optimizer that cannot be copied with another rate is refused."""

    class Plain(ServerOptimizer[None]):
        learning_rate = 1.0

        def init(self, parameters: Parameters) -> None:
            """Return nothing."""

        def step(
            self, state: None, parameters: Parameters, update: Parameters
        ) -> tuple[None, Parameters]:
            """Stay."""
            return None, parameters

    rising = ServerLRSchedule("inverse_client", ClientLRSchedule(0.1))
    assert RuleSet(AllClients(), AverageAll(), Plain()).get_optimizer_at(3).learning_rate == 1.0
    with pytest.raises(ParameterError, match="constant where the server optimizer is no dataclass"):
        RuleSet(AllClients(), AverageAll(), Plain(), server_lr_schedule=rising)


def test_the_largest_share_of_one_client() -> None:
    """omega / N times the server's learning rate, if all parts bound it."""
    assert RuleSet(AllClients(), AverageAll(), SGD(0.5)).compute_max_share(10) == 0.05
    fedau = RuleSet(
        AllClients(), build_corrected_weighting(AverageAll(), "fedau", cutoff=4), SGD(0.5)
    )
    assert fedau.compute_max_share(10) == pytest.approx(0.2)
    rising = ServerLRSchedule("inverse_client", ClientLRSchedule(0.1, "step", 0.5, 10))
    rules = RuleSet(AllClients(), AverageAll(), SGD(0.5), server_lr_schedule=rising)
    assert rules.compute_max_share(10, t=10) == 0.1
    rates = build_corrected_weighting(AverageAll(), "known_statistics", probabilities=(0.5, 0.25))
    assert RuleSet(AllClients(), rates).compute_max_share(2) == 2.0


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (RuleSet(GATE, AverageAll()), "the clients' losses and data decide which clients"),
        (RuleSet(PriorityOnly(), AverageAll()), "the influence of one update has no known bound"),
        (RuleSet(AllClients(), DataFraction()), "an update counts by its client's data"),
        (RuleSet(AllClients(), TERMWeighting()), "losses decide the weights"),
        (
            RuleSet(AllClients(), AverageAll(), Adam()),
            "the influence of one update is bounded only for server_optimizer=sgd",
        ),
        (
            RuleSet(
                AllClients(), AverageAll(), memory=UpdateMemoryConfig(steps_without_updates=True)
            ),
            "an update counts again in every later round",
        ),
    ],
)
def test_why_there_is_no_largest_share(rules: RuleSet, reason: str) -> None:
    """The first part without a bound gives the reason."""
    assert rules.dp_unsupported_reason.startswith(reason)
    with pytest.raises(ParameterError, match="privacy must be none") as caught:
        rules.compute_max_share(10)
    assert caught.value.reason == rules.dp_unsupported_reason


def test_weights_that_depend_on_reports_have_no_privacy() -> None:
    """Even with a bound, weights by losses or amounts of data protect no client."""
    for needs_losses, by_data in ((True, False), (False, True)):
        traits = replace(AverageAll.traits, needs_losses=needs_losses, weights_by_data=by_data)
        reporting = type("Telling", (AverageAll,), {"traits": traits})
        rules = RuleSet(AllClients(), reporting())
        assert (
            rules.dp_unsupported_reason
            == "weights depend on the number of examples each client reports"
        )
    assert RuleSet(AllClients(), AverageAll()).dp_unsupported_reason == ""


@pytest.mark.parametrize("name", NAMED_STRATEGIES)
def test_the_sum_is_enough_if_the_weights_are_known_before_training(name: str) -> None:
    """For every strategy: the reason is empty exactly where the rules say their weights."""
    context = RunContext(
        10, 0, dict.fromkeys(range(4), 0.5), tuple(range(4)), priority=frozenset({0, 1})
    )
    required = {"requirement": 1.0} if name == "maxfl" else {}
    rules = build_rules({"name": name, **required}, {"name": "sgd"}, context)
    population = Population.from_size(4, {0, 1})
    plan = rules.plan_round(0, population, ClientReports())
    known = rules.compute_known_weights(rules.weighting.init(population), plan)
    assert (known is None) == bool(rules.sum_unsupported_reason)
    enough = ("fedau", "average_participating", "average_all", "empirical", "known_statistics")
    if name in (*enough, "fedavg"):
        assert rules.sum_unsupported_reason == ""


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (
            RuleSet(AllClients(), AverageAll(), memory=UpdateMemoryConfig()),
            "the server stores the last update of every client",
        ),
        (RuleSet(AllClients(), TERMWeighting()), "follow from the losses of single clients"),
        (RuleSet(AllClients(), FedMGDAWeighting()), "follow from the updates of single clients"),
        (RuleSet(EpsilonGate(10), AverageParticipating()), "the gate admits each update by"),
        (
            RuleSet(PowerOfChoice(), AverageAll()),
            "the losses of single clients decide which are selected",
        ),
        (RuleSet(PriorityOnly(), AverageAll()), "decides after training which updates it admits"),
        (RuleSet(AllClients(), FedAWEWeighting()), "start from models of different rounds"),
        (
            RuleSet(AllClients(Sampling(priority_samples=2)), DataFraction()),
            "drawn with replacement count by their draws",
        ),
    ],
)
def test_why_the_sum_of_the_updates_is_not_enough(rules: RuleSet, reason: str) -> None:
    """The reason names what the server must see of a single client."""
    assert reason in rules.sum_unsupported_reason


def test_a_rule_declares_that_sums_are_enough() -> None:
    """A custom rule that declares nothing needs more."""
    traits = replace(AverageAll.traits, sum_unsupported_reason=WEIGHTS_UNKNOWN)
    undeclared = type("Undeclared", (AverageAll,), {"traits": traits})
    assert RuleSet(AllClients(), undeclared()).sum_unsupported_reason == WEIGHTS_UNKNOWN
    assert WeightingTraits("1").sum_unsupported_reason == WEIGHTS_UNKNOWN
    assert SelectionTraits().sum_unsupported_reason


def test_a_memory_has_no_bound() -> None:
    """The mean of the last updates is part of every later step, with or without new ones."""
    for memory in (UpdateMemoryConfig(), UpdateMemoryConfig(steps_without_updates=True)):
        rules = RuleSet(AllClients(), AverageAll(), memory=memory)
        assert rules.dp_unsupported_reason == "an update counts again in every later round"
    with pytest.raises(ParameterError, match="memory_dir must be the path of a folder, got ''"):
        UpdateMemoryConfig(memory_dir="")
