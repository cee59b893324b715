"""The selections without a gate: whom they ask and admit, and what they say of it."""

import math
from dataclasses import dataclass

import pytest
from fedquorum.composition import RuleSet
from fedquorum.contrib import PowerOfChoice
from fedquorum.errors import ParameterError
from fedquorum.participation import KnownRatesCorrection
from fedquorum.rule import RunContext
from fedquorum.selection import (
    SELECTIONS,
    AfterWarmup,
    AllClients,
    EpsilonGate,
    LocalModelSelection,
    PriorityOnly,
    Sampling,
    Selection,
)
from fedquorum.types import ClientReports, Objective, PerClient, Population, RoundPlan
from fedquorum.weighting import ZeroWeighting

from tests.builders import make_client_updates

POPULATION = Population((0, 1, 2, 3), frozenset({0, 2}))


def test_alone_trains_all_local_models_and_weighs_none() -> None:
    """Every client is called to its own model, no reply is refused and no update weighs."""
    call = LocalModelSelection().plan(3, POPULATION, ClientReports())
    assert call == RoundPlan((0, 1, 2, 3), trains_local_model=True)
    arrived = make_client_updates([1.0, 2.0, 3.0])
    share = LocalModelSelection().admit(call, Objective(1.0, 0.5), arrived).fraction
    assert share.tolist() == [1, 1, 1]
    state, weights = ZeroWeighting().weigh(None, call, arrived, share)
    assert state is None
    assert weights.weight.tolist() == [0, 0, 0]
    assert weights.inclusion_mass is None


def test_priority_only_and_everyone() -> None:
    """The two baselines ask who their names say, and admit whatever comes back."""
    assert AllClients().plan(5, POPULATION, ClientReports()).clients == (0, 1, 2, 3)
    assert PriorityOnly().plan(5, POPULATION, ClientReports()).clients == (0, 2)
    for rule in (AllClients(), PriorityOnly()):
        call = rule.plan(0, POPULATION, ClientReports())
        assert call.epsilon is None
        answered = make_client_updates([9.0, 0.0, math.nan])
        admission = rule.admit(call, Objective(1, 1), answered)
        assert (admission.fraction == 1.0).all()


def test_the_baseline_all_begins_with_the_priority_clients() -> None:
    """In the gate's warm-up it asks as the gate does, before and after as FedAvg on all."""
    rule = AfterWarmup(num_rounds=20, warmup_fraction=0.1, sampling=Sampling(0.5, seed=4))
    gate = EpsilonGate(num_rounds=20, warmup_fraction=0.1, sampling=Sampling(0.5, seed=4))
    everyone, alone = AllClients(Sampling(0.5, seed=4)), PriorityOnly(Sampling(0.5, seed=4))
    for t in range(20):
        call = rule.plan(t, POPULATION, ClientReports())
        assert call == (alone if t < 2 else everyone).plan(t, POPULATION, ClientReports())
        assert call.clients == gate.plan(t, POPULATION, ClientReports()).clients
    off = AfterWarmup(num_rounds=20, sampling=Sampling(0.5, seed=4))
    assert off.plan(0, POPULATION, ClientReports()) == everyone.plan(0, POPULATION, ClientReports())
    assert AfterWarmup(20, 0.1, 5).num_warmup_rounds == 5


def test_a_warm_up_needs_the_length_of_the_run() -> None:
    """As a share; as a number of rounds it does not."""
    with pytest.raises(ParameterError, match="num_rounds must be a whole number >= 1"):
        AfterWarmup.from_options({"warmup_fraction": 0.1}, RunContext())
    assert AfterWarmup.from_options({"warmup_rounds": 2}, RunContext()).num_warmup_rounds == 2
    assert AfterWarmup.from_options({}, RunContext()).num_warmup_rounds == 0


def test_a_share_by_priority_weight() -> None:
    """Outside of a gate the share of a priority client is lambda_k, and is said."""
    got = PriorityOnly().admit(
        RoundPlan((0, 1)),
        Objective(1.0, 0.5),
        make_client_updates([1.0, 1.0], priority=[1.0, 0.25]),
    )
    assert got.reason == (None, "priority weight 0.25")
    assert got.fraction.tolist() == [1.0, 0.25]


@pytest.mark.parametrize(
    ("rule", "client", "words"),
    [
        (AllClients(), 3, "all of them"),
        (PriorityOnly(), 2, "only priority clients are asked, all of them"),
        (PriorityOnly(), 3, "only priority clients are asked"),
        (
            AllClients(Sampling(0.5, seed=1)),
            0,
            '0.5 of each group drawn from (seed 1, "selection", round 1)',
        ),
        (
            EpsilonGate(num_rounds=9, warmup_rounds=2),
            3,
            "rounds 1 to 2 are warm-up, in which only priority clients are asked",
        ),
        (
            AfterWarmup(num_rounds=20, warmup_fraction=0.1),
            3,
            "rounds 1 to 2 are warm-up, in which only priority clients are asked",
        ),
        (AfterWarmup(), 3, "all of them"),
        (
            EpsilonGate(num_rounds=9, warmup_rounds=0),
            3,
            "all of them",
        ),
    ],
)
def test_the_reason_why_a_client_is_selected(rule: AllClients, client: int, words: str) -> None:
    """The groups of the round, and how the client was drawn from its own."""
    call = rule.plan(0, POPULATION, ClientReports())
    told = rule.explain_selection(0, POPULATION, call, client)
    assert told.endswith(words)
    assert told.startswith("yes; " if client in call.clients else "no; ")


def test_the_table_has_them_all() -> None:
    """Each by its key."""
    assert list(SELECTIONS.values()) == [
        EpsilonGate,
        AllClients,
        AfterWarmup,
        PriorityOnly,
        LocalModelSelection,
    ]
    assert all(SELECTIONS[rule.key] is rule for rule in SELECTIONS.values())


def probabilities(selection: Selection) -> dict[int, float] | None:
    """Return the probability with which each client is asked, None if nobody can tell it."""
    known = selection.get_known_probabilities(POPULATION)
    return None if known is None else dict(known)


def test_every_selection_declares_its_selection_rates() -> None:
    """By the sample of the clients that it covers; where losses choose, nobody can."""
    half = Sampling(0.5)
    gate = EpsilonGate(num_rounds=10, sampling=half)
    for selection in (
        AllClients(half),
        AfterWarmup(sampling=half),
        LocalModelSelection(half),
        gate,
    ):
        assert probabilities(selection) == dict.fromkeys(range(4), 0.5)
    assert probabilities(PriorityOnly(half)) == {0: 0.5, 2: 0.5}
    assert probabilities(PowerOfChoice(sampling=half)) is None


@dataclass(frozen=True)
class OddClients(AllClients):
    """A selection with a ``plan`` of its own, of which the inherited probabilities are wrong."""

    def plan(self, t: int, population: Population, reports: ClientReports) -> RoundPlan:
        """Return a call to the clients with odd ids."""
        return RoundPlan(tuple(k for k in population.clients if k % 2))


@dataclass(frozen=True)
class DeclaredOddClients(OddClients):
    """The same, with its own probabilities."""

    def compute_probabilities(
        self, population: Population, reports: ClientReports
    ) -> PerClient | None:
        """Return 1 of odd ids and 0 of even ones."""
        return PerClient.from_mapping({k: float(k % 2) for k in population.clients})


def test_another_call_has_no_inherited_probabilities() -> None:
    """A subclass declares them of its own call, or not at all."""
    assert probabilities(OddClients()) is None
    assert probabilities(DeclaredOddClients()) == {0: 0, 1: 1, 2: 0, 3: 1}
    with pytest.raises(ParameterError, match=r"^participation must be none with the selection"):
        RuleSet(OddClients(), KnownRatesCorrection([0.5] * 4))
    RuleSet(DeclaredOddClients(), KnownRatesCorrection([0.5] * 4))
