"""The selections without a gate: their plans, admissions and explanations."""

import math
from dataclasses import dataclass

import pytest
from fedquorum.contrib import PowerOfChoice
from fedquorum.errors import ParameterError
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.participation import KnownRatesCorrection
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection import (
    SELECTIONS,
    AfterWarmup,
    AllClients,
    EpsilonGate,
    PriorityOnly,
    Sampling,
    Selection,
)
from fedquorum.rules.selection.base import get_known_probabilities
from fedquorum.rules.types import ClientReports, Objective, PerClient, Population, RoundPlan

from tests.builders import make_client_updates

POPULATION = Population((0, 1, 2, 3), frozenset({0, 2}))


def test_priority_only_and_everyone() -> None:
    """The two baselines select the clients of their names, and admit all updates."""
    assert AllClients().plan(5, POPULATION, ClientReports()).clients == (0, 1, 2, 3)
    assert PriorityOnly().plan(5, POPULATION, ClientReports()).clients == (0, 2)
    for rule in (AllClients(), PriorityOnly()):
        plan = rule.plan(0, POPULATION, ClientReports())
        assert plan.epsilon is None
        updates = make_client_updates([9.0, 0.0, math.nan])
        admission = rule.admit(plan, Objective(1, 1), updates)
        assert (admission.fraction == 1.0).all()


def test_the_baseline_all_starts_with_the_priority_clients() -> None:
    """In the gate's warm-up it selects as the gate does, and afterwards as FedAvg on all."""
    rule = AfterWarmup(num_rounds=20, warmup_fraction=0.1, sampling=Sampling(0.5, seed=4))
    gate = EpsilonGate(num_rounds=20, warmup_fraction=0.1, sampling=Sampling(0.5, seed=4))
    all_clients, priority_only = (
        AllClients(Sampling(0.5, seed=4)),
        PriorityOnly(Sampling(0.5, seed=4)),
    )
    for t in range(20):
        plan = rule.plan(t, POPULATION, ClientReports())
        assert plan == (priority_only if t < 2 else all_clients).plan(
            t, POPULATION, ClientReports()
        )
        assert plan.clients == gate.plan(t, POPULATION, ClientReports()).clients
    without_warmup = AfterWarmup(num_rounds=20, sampling=Sampling(0.5, seed=4))
    assert without_warmup.plan(0, POPULATION, ClientReports()) == all_clients.plan(
        0, POPULATION, ClientReports()
    )
    assert AfterWarmup(20, 0.1, 5).num_warmup_rounds == 5


def test_a_warm_up_needs_the_length_of_the_run() -> None:
    """As a fraction; as a number of rounds it does not."""
    with pytest.raises(ParameterError, match="num_rounds must be a whole number >= 1"):
        AfterWarmup.from_options({"warmup_fraction": 0.1}, RunContext())
    assert AfterWarmup.from_options({"warmup_rounds": 2}, RunContext()).num_warmup_rounds == 2
    assert AfterWarmup.from_options({}, RunContext()).num_warmup_rounds == 0


def test_the_admitted_fraction_is_the_priority_weight() -> None:
    """Without a gate the fraction of a priority client is lambda_k, with that reason."""
    got = PriorityOnly().admit(
        RoundPlan((0, 1)),
        Objective(1.0, 0.5),
        make_client_updates([1.0, 1.0], priority=[1.0, 0.25]),
    )
    assert got.reason == (None, "priority weight 0.25")
    assert got.fraction.tolist() == [1.0, 0.25]


@pytest.mark.parametrize(
    ("rule", "client", "text"),
    [
        (AllClients(), 3, "all clients are eligible, and all of them are selected"),
        (PriorityOnly(), 2, "only priority clients are eligible, and all of them are selected"),
        (PriorityOnly(), 3, "only priority clients are eligible"),
        (
            AllClients(Sampling(0.5, seed=1)),
            0,
            '0.5 of each group drawn from (seed 1, "selection", round 1)',
        ),
        (
            EpsilonGate(num_rounds=9, warmup_rounds=2),
            3,
            "rounds 1 to 2 are warm-up, in which only priority clients are eligible",
        ),
        (
            AfterWarmup(num_rounds=20, warmup_fraction=0.1),
            3,
            "rounds 1 to 2 are warm-up, in which only priority clients are eligible",
        ),
        (AfterWarmup(), 3, "all clients are eligible, and all of them are selected"),
        (
            EpsilonGate(num_rounds=9, warmup_rounds=0),
            3,
            "all clients are eligible, and all of them are selected",
        ),
    ],
)
def test_the_reason_why_a_client_is_selected(rule: AllClients, client: int, text: str) -> None:
    """The eligible groups of the round, and how the client was sampled from its group."""
    plan = rule.plan(0, POPULATION, ClientReports())
    explanation = rule.explain_selection(0, POPULATION, plan, client)
    assert explanation.endswith(text)
    assert explanation.startswith("yes; " if client in plan.clients else "no; ")


@pytest.mark.parametrize(
    "rule",
    [
        AllClients(),
        AllClients(Sampling(0.5, seed=1)),
        PriorityOnly(),
        AfterWarmup(num_rounds=20, warmup_fraction=0.1),
        EpsilonGate(num_rounds=9, warmup_rounds=2),
    ],
)
def test_priority_is_no_word_where_all_clients_have_it(rule: AllClients) -> None:
    """Whoever runs FedAvg has no such clients."""
    population = Population.from_size(4)
    plan = rule.plan(0, population, ClientReports())
    for client in population.clients:
        explanation = rule.explain_selection(0, population, plan, client)
        assert "; all clients are eligible, " in explanation
        assert "priority" not in explanation
        assert "group" not in explanation


def test_the_table_has_all_selections() -> None:
    """Each by its key."""
    assert list(SELECTIONS.values()) == [EpsilonGate, AllClients, AfterWarmup, PriorityOnly]
    assert all(SELECTIONS[rule.description.key] is rule for rule in SELECTIONS.values())


def get_probabilities(selection: Selection) -> dict[int, float] | None:
    """Return the probability of selecting each client, None if it is unknown."""
    probabilities = get_known_probabilities(selection, POPULATION)
    return None if probabilities is None else dict(probabilities)


def test_every_selection_declares_its_selection_rates() -> None:
    """From the sample of its clients; a selection by losses declares none."""
    half = Sampling(0.5)
    gate = EpsilonGate(num_rounds=10, sampling=half)
    for selection in (AllClients(half), AfterWarmup(sampling=half), gate):
        assert get_probabilities(selection) == dict.fromkeys(range(4), 0.5)
    assert get_probabilities(PriorityOnly(half)) == {0: 0.5, 2: 0.5}
    assert get_probabilities(PowerOfChoice(sampling=half)) is None


@dataclass(frozen=True)
class OddClients(AllClients):
    """A selection that overrides ``plan``, so that the inherited probabilities are wrong."""

    def plan(self, t: int, population: Population, reports: ClientReports) -> RoundPlan:
        """Return a plan with the clients with odd ids."""
        return RoundPlan(tuple(k for k in population.clients if k % 2))


@dataclass(frozen=True)
class DeclaredOddClients(OddClients):
    """The same selection with declared probabilities."""

    def compute_probabilities(
        self, population: Population, reports: ClientReports
    ) -> PerClient | None:
        """Return 1 for odd ids and 0 for even ones."""
        return PerClient.from_mapping({k: float(k % 2) for k in population.clients})


def test_an_overridden_plan_has_no_inherited_probabilities() -> None:
    """A subclass declares probabilities for its plan, or has none."""
    assert get_probabilities(OddClients()) is None
    assert get_probabilities(DeclaredOddClients()) == {0: 0, 1: 1, 2: 0, 3: 1}
    with pytest.raises(ParameterError, match=r"^participation must be none with the selection"):
        RuleSet(OddClients(), KnownRatesCorrection([0.5] * 4))
    RuleSet(DeclaredOddClients(), KnownRatesCorrection([0.5] * 4))
