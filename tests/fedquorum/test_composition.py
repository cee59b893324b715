"""Rules together: what follows from all of them, in words, and what is refused."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from fedquorum.composition import LastUpdates, Rules
from fedquorum.errors import ParameterError
from fedquorum.schedules import ClientRate, ServerRate
from fedquorum.selection import Alone, EpsilonGate, Everyone, PriorityOnly, Sampling, Selection
from fedquorum.server_optimizer import SGD, Adam, Momentum, Parameters, ServerOptimizer
from fedquorum.types import (
    Admission,
    Call,
    Objective,
    Population,
    Proportions,
    Responses,
    Told,
)
from fedquorum.weighting import (
    AgnosticMixing,
    AverageAll,
    AverageParticipating,
    DataFraction,
    LossHeadroom,
    LossPower,
    MinNorm,
    NewtonMixing,
    NoWeight,
    TiltedLoss,
    Weighting,
)

from tests.builders import GATE, corrected

POPULATION = Population.of(4, [0, 2])


@pytest.mark.parametrize(
    ("selection", "weighting", "words"),
    [
        (GATE, DataFraction(), "the training data of the clients admitted in the round"),
        (
            GATE,
            corrected(DataFraction(), "fedau"),
            "the training data of the priority clients and the others last known to be aligned",
        ),
        (Everyone(), corrected(AverageAll(), "fedau"), "the number of all known clients"),
        (
            PriorityOnly(),
            corrected(AgnosticMixing(), "fedau"),
            "the sum of p over the known priority clients",
        ),
        (
            Everyone(),
            LossPower(1.0, lipschitz=2.0),
            "the sum of w_j h_j / L over the clients admitted in the round",
        ),
        (
            Everyone(Sampling(1.0, 2)),
            DataFraction(),
            (
                "the training data of all priority clients, drawn or not, and the others admitted "
                "in the round"
            ),
        ),
    ],
)
def test_divisors_in_words(selection: Selection, weighting: Weighting[Any], words: str) -> None:
    """What is divided by follows from both rules."""
    assert Rules(selection, weighting).divisor == words


def test_a_correction_is_a_factor_more() -> None:
    """Before that of the weighting, and alone where that is 1."""
    assert corrected(DataFraction(), "fedau").factor == "omega_k D_k"
    assert corrected(AverageAll(), "fedau").factor == "omega_k"
    assert corrected(AverageAll(), "known_statistics").factor == "(1 / p_k)"


REFUSED: Mapping[str, tuple[Callable[[], object], str]] = {
    "alone": (
        lambda: Rules(Alone(), DataFraction()),
        "selection must be alone where the weighting is no_weight, .*, got 'alone with data_frac",
    ),
    "no weight": (
        lambda: Rules(Everyone(), NoWeight()),
        "selection must be alone .*, got 'everyone with no_weight'",
    ),
    "alone adam": (
        lambda: Rules(Alone(), NoWeight(), Adam()),
        "server_optimizer must be sgd where every client has a model of its own .*, got 'adam'",
    ),
    "aaggff_s gate": (
        lambda: Rules(GATE, NewtonMixing()),
        "selection must be everyone with the weighting aaggff_s .*, got 'epsilon_gate'",
    ),
    "aaggff_s sampled": (
        lambda: Rules(Everyone(Sampling(0.5)), NewtonMixing()),
        r"fraction must be 1 for AAggFF-S \(.*; with sampling use AAggFF-D\), got 0.5",
    ),
    "fedmgda gate": (
        lambda: Rules(GATE, MinNorm()),
        "selection must be one without a gate with the weighting fedmgda .*, got 'epsilon_gate'",
    ),
    "fedmgda momentum": (
        lambda: Rules(Everyone(), MinNorm(), Momentum()),
        "server_optimizer must be sgd with the weighting fedmgda .*, got 'momentum'",
    ),
    "draws": (
        lambda: Rules(Everyone(Sampling(1.0, 2)), corrected(AverageAll(), "fedau")),
        "priority_samples must be None with a weighting that is not by data .*, got 2",
    ),
    "draws corrected": (
        lambda: Rules(Everyone(Sampling(1.0, 2)), corrected(DataFraction(), "fedau")),
        "priority_samples must be None with a weighting that is not by data .*, got 2",
    ),
    "twice": (
        lambda: corrected(corrected(AverageAll(), "fedau"), "known_statistics"),
        "participation must be none with the weighting fedau .participation must be corrected for",
    ),
    "nothing": (
        lambda: corrected(NoWeight(), "fedau"),
        "participation must be none with the weighting no_weight .nothing is aggregated",
    ),
} | {
    type(rule).__name__: (
        partial(corrected, rule, "fedau"),
        f"participation must be none with the weighting {rule.key} .*, got 'fedau'",
    )
    for rule in (
        AverageParticipating(),
        NewtonMixing(),
        LossPower(),
        TiltedLoss(),
        LossHeadroom(),
        MinNorm(),
    )
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_with_the_reason(name: str) -> None:
    """One line names the rule, what goes with it, and why."""
    make, message = REFUSED[name]
    with pytest.raises(ParameterError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert caught.value.reason


@pytest.mark.parametrize(
    ("selection", "weighting", "asks", "objective"),
    [
        (Everyone(), AverageAll(), False, False),
        (Everyone(), TiltedLoss(), True, False),
        (Everyone(), DataFraction(), True, True),
        (Everyone(), corrected(AgnosticMixing(), "fedau"), True, False),
        (GATE, AverageAll(), True, True),
        (PriorityOnly(), AverageAll(), True, True),
    ],
)
def test_clients_measure_what_some_rule_needs(
    selection: Selection, weighting: Weighting[Any], asks: bool, objective: bool
) -> None:
    """Losses for the selection or the weighting; F(w_t) for a gate, and for reports of it."""
    rules = Rules(selection, weighting)
    assert (rules.asks_losses, rules.needs_objective) == (asks, objective)
    assert rules.call(0, POPULATION, Told()).measures_loss == asks


def test_the_call_is_the_selections() -> None:
    """Whom it asks and its terms, beside what is measured."""
    gate = EpsilonGate(num_rounds=10, warmup_rounds=1)
    call = Rules(gate, AverageAll()).call(0, POPULATION, Told())
    assert call == Call((0, 2), epsilon=0.0, pool=frozenset({0, 2}), measures_loss=True)
    alone = Rules(Alone(), NoWeight())
    assert alone.keeps_models
    assert alone.call(0, POPULATION, Told()).keeps_model


def test_nodes_add_up_updates_only_where_the_weights_are_known_before() -> None:
    """Not in a gate, not for a memory of single updates, not where models stay with clients."""
    call = Call((0, 1, 2, 3))
    assert Rules(Everyone(), AverageAll()).proportions(None, call) == Proportions()
    assert Rules(Everyone(), DataFraction()).proportions(None, call) == Proportions(by_data=True)
    assert Rules(GATE, AverageAll()).proportions(None, Call((0, 1), epsilon=0.5)) is None
    kept = Rules(Everyone(), AverageAll(), memory=LastUpdates())
    assert kept.proportions(None, call) is None
    assert Rules(Everyone(), TiltedLoss()).proportions(None, call) is None
    rates = corrected(DataFraction(), "known_statistics", probabilities=(0.5, 0.25))
    proportions = Rules(Everyone(), rates).proportions(rates.init(POPULATION), Call((0, 1)))
    assert proportions == Proportions({0: 2.0, 1: 4.0}, by_data=True)
    assert proportions is not None
    assert (proportions.factor(1, 10.0), proportions.factor(3, 10.0)) == (40.0, 10.0)


def test_a_selection_that_judges_updates_needs_all_of_them() -> None:
    """Whatever it asks: what ``admit`` refuses must not be in a sum already."""

    class Judging(Everyone):
        def admit(self, call: Call, objective: Objective, responses: Responses) -> Admission:
            return super().admit(call, objective, responses)

    call = Call((0, 1, 2, 3))
    assert Rules(Everyone(), AverageAll()).proportions(None, call) is not None
    assert Rules(Judging(), AverageAll()).proportions(None, call) is None


def test_the_optimizer_of_a_round_has_the_rounds_rate() -> None:
    """All else stays; where the rate is constant it is the same object."""
    adam = Adam(0.01, beta1=0.5)
    assert Rules(Everyone(), AverageAll(), adam).optimizer_in(7) is adam
    rising = ServerRate("inverse_client", ClientRate(0.1, "step", 0.5, 10))
    rules = Rules(Everyone(), AverageAll(), adam, server_rate=rising)
    assert rules.optimizer_in(9) is adam
    assert rules.optimizer_in(20) == Adam(0.04, beta1=0.5)


def test_a_rate_that_changes_needs_a_dataclass() -> None:
    """An optimizer of the user's own that cannot be copied with another rate is refused."""

    class Plain(ServerOptimizer[None]):
        learning_rate = 1.0

        def init(self, parameters: Parameters) -> None:
            """Return nothing."""

        def step(
            self, state: None, parameters: Parameters, update: Parameters
        ) -> tuple[None, Parameters]:
            """Stay."""
            return None, parameters

    rising = ServerRate("inverse_client", ClientRate(0.1))
    assert Rules(Everyone(), AverageAll(), Plain()).optimizer_in(3).learning_rate == 1.0
    with pytest.raises(ParameterError, match="constant where the server optimizer is no dataclass"):
        Rules(Everyone(), AverageAll(), Plain(), server_rate=rising)


def test_the_largest_share_of_one_client() -> None:
    """omega / N times the server's learning rate, where all parts bound it."""
    assert Rules(Everyone(), AverageAll(), SGD(0.5)).largest_share(10) == 0.05
    fedau = Rules(Everyone(), corrected(AverageAll(), "fedau", cutoff=4), SGD(0.5))
    assert fedau.largest_share(10) == pytest.approx(0.2)
    rising = ServerRate("inverse_client", ClientRate(0.1, "step", 0.5, 10))
    rules = Rules(Everyone(), AverageAll(), SGD(0.5), server_rate=rising)
    assert rules.largest_share(10, t=10) == 0.1
    rates = corrected(AverageAll(), "known_statistics", probabilities=(0.5, 0.25))
    assert Rules(Everyone(), rates).largest_share(2) == 2.0


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (Rules(GATE, AverageAll()), "the clients' losses and data decide which clients"),
        (Rules(PriorityOnly(), AverageAll()), "no bound is worked out of what one update counts"),
        (Rules(Everyone(), DataFraction()), "an update counts by its client's data"),
        (Rules(Everyone(), TiltedLoss()), "losses decide the weights"),
        (Rules(Everyone(), AverageAll(), Adam()), "of another server optimizer than sgd no bound"),
        (
            Rules(Everyone(), AverageAll(), memory=LastUpdates(moves_alone=True)),
            "an update counts again in every later round",
        ),
        (Rules(Alone(), NoWeight()), "nothing is aggregated"),
    ],
)
def test_why_there_is_no_largest_share(rules: Rules, why: str) -> None:
    """The first part that has no bound says why."""
    assert rules.unbounded.startswith(why)
    with pytest.raises(ParameterError, match="privacy must be none") as caught:
        rules.largest_share(10)
    assert caught.value.reason == rules.unbounded


def test_weights_that_follow_from_what_clients_say() -> None:
    """A rule with a bound, whose weights follow from losses or amounts of data, protects nobody."""
    for needs_losses, by_data in ((True, False), (False, True)):
        words = {"needs_losses": needs_losses, "by_data": by_data}
        telling = type("Telling", (AverageAll,), words)
        rules = Rules(Everyone(), telling())
        assert (
            rules.unbounded == "the weights of all clients follow from what each says of its data"
        )
    assert Rules(Everyone(), AverageAll()).unbounded == ""


def test_a_memory_has_no_bound() -> None:
    """The mean of the last updates is part of every later step, with or without new ones."""
    for memory in (LastUpdates(), LastUpdates(moves_alone=True)):
        rules = Rules(Everyone(), AverageAll(), memory=memory)
        assert rules.unbounded == "an update counts again in every later round"
    with pytest.raises(ParameterError, match="memory_dir must be the path of a folder, got ''"):
        LastUpdates(memory_dir="")
