"""Known rates and the averages: the expected weight of each client over all outcomes."""

import math
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from fedquorum.client.availability.periodic import (
    AvailabilityPattern,
    InterleavedSine,
    Sine,
    Staircase,
)
from fedquorum.errors import ParameterError
from fedquorum.registry import build_rules
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.participation import KnownRatesCorrection
from fedquorum.rules.participation.known_rates import RATES
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection import AllClients
from fedquorum.rules.types import FloatArray, Population, RoundPlan
from fedquorum.rules.weighting import AverageAll, AverageParticipating

from tests.builders import decide_first_round, make_participants


def compute_expected_weight(
    rule: AverageAll | AverageParticipating | KnownRatesCorrection, p: FloatArray, t: int = 0
) -> FloatArray:
    """Return N E[c_n 1{n takes part}] over all 2^N outcomes, exactly."""
    n = len(p)
    total = np.zeros(n)
    for outcome in range(2**n):
        present = [k for k in range(n) if outcome >> k & 1]
        probability = math.prod(p[k] if k in present else 1 - p[k] for k in range(n))
        given, admitted = make_participants(present, n), np.ones(len(present))
        _, weights = rule.weigh(None, RoundPlan((), t=t), given, admitted)
        total[present] += probability * n * weights.weight
    return total


def explain_client(rule: KnownRatesCorrection, index: int, t: int = 0) -> list[str]:
    """Return the explanation of one of two clients' weights in round ``t``, from 0."""
    given, plan = make_participants([0, 1], 2), RoundPlan((0, 1), t=t)
    _, weights = rule.weigh(None, plan, given, np.ones(2))
    trace = replace(decide_first_round(rule, given, 2), plan=plan, weights=weights)
    return [*rule.explain(trace, index)]


def test_known_statistics_is_unbiased() -> None:
    """Every client counts equally in expectation; the averages favor often available clients."""
    p = np.array([0.02, 0.1, 0.5, 0.9, 1.0])
    known = KnownRatesCorrection(p.tolist())
    np.testing.assert_allclose(compute_expected_weight(known, p), np.ones(5), rtol=1e-12)
    np.testing.assert_allclose(compute_expected_weight(AverageAll(), p), p, rtol=1e-12)
    participating = compute_expected_weight(AverageParticipating(), p)
    assert np.all(np.diff(participating) > 0)
    assert participating[0] < 0.05


@pytest.mark.parametrize("pattern", [Staircase(), Sine(), InterleavedSine()], ids=repr)
def test_rates_that_change_with_time(pattern: AvailabilityPattern) -> None:
    """1 / p_n(t) is unbiased in every round in which a client can be available."""
    p = np.array([0.12, 0.3, 0.9, 1.0])
    context = RunContext(rates=dict(enumerate(p.tolist())), clients=(0, 1, 2, 3), pattern=pattern)
    rule = KnownRatesCorrection.from_options({}, context)
    for t in range(0, 40, 3):
        rates = pattern.compute_probabilities(p, t)
        possible = (rates > 0).astype(float)
        np.testing.assert_allclose(compute_expected_weight(rule, rates, t), possible, rtol=1e-12)
        plan = RoundPlan((0, 1, 2, 3), t=t)
        _, weights = rule.weigh(None, plan, make_participants([0, 1, 2, 3], 4), np.ones(4))
        known_weights = rule.compute_known_weights(None, plan)
        assert known_weights is not None
        assert [known_weights.compute_numerator(k) for k in range(4)] == weights.numerator.tolist()
        assert weights.omega == {k: 1 / rate if rate else 0.0 for k, rate in enumerate(rates)}


def test_a_client_that_never_takes_part_is_refused() -> None:
    """The error has its id and a solution; rates from the user have no pattern."""
    context = RunContext(rates={0: 0.5, 1: 0.05}, clients=(0, 1), pattern=InterleavedSine())
    message = (
        r"^probabilities\[1\] must be a rate above 0 in some round \(client 1, with p_n = 0\.05, "
        r"never takes part, .* a smaller cut or a larger p_n lets it take part\), got 0\.0$"
    )
    with pytest.raises(ParameterError, match=message):
        KnownRatesCorrection.from_options({}, context)
    given = KnownRatesCorrection.from_options({"probabilities": [0.5, 0.05]}, context)
    assert dict(given._compute_omega(7)) == {0: 2.0, 1: 20.0}


def test_an_empty_round_has_no_weights() -> None:
    """And causes no division by 0."""
    for rule in (AverageAll(), AverageParticipating()):
        _, weights = rule.weigh(None, RoundPlan(()), make_participants([], 0), np.ones(0))
        assert weights.weight.shape == (0,)


def test_known_statistics_needs_every_client() -> None:
    """A client without p_n, or with p_n = 0, is refused by its id."""
    context = RunContext(clients=(0, 1))
    with pytest.raises(ParameterError, match=r"probabilities\[1\] must be a number .*, got None"):
        KnownRatesCorrection.from_options({"probabilities": {0: 0.5}}, context)
    with pytest.raises(ParameterError, match=r"probabilities must be .*got \{0: 0\.0, 1: 1\.0\}"):
        KnownRatesCorrection.from_options({"probabilities": {0: 0.0, 1: 1.0}}, context)
    with pytest.raises(ParameterError, match=r"probabilities must be .*does not supply the rates"):
        KnownRatesCorrection.from_options({}, context)


def test_a_simulations_rates_are_the_default() -> None:
    """Given rates override them; a list is by client id; a client without a rate has omega 1."""
    known = RunContext(rates={0: 0.5, 1: 0.25}, clients=(0, 1))
    assert dict(KnownRatesCorrection.from_options({}, known)._compute_omega(0)) == {0: 2.0, 1: 4.0}
    assert dict(
        KnownRatesCorrection.from_options({"probabilities": [1.0, 0.1]}, known)._compute_omega(0)
    ) == {0: 1.0, 1: 10.0}
    factors = KnownRatesCorrection({1: 0.5}).compute_known_weights(None, RoundPlan((0, 1)))
    assert factors is not None
    assert factors.by_client == {0: 1.0, 1: 2.0}


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ([0.5, 1.0], True),
        ({3: 0.5}, True),
        ([0.5, 1.5], False),
        ({3: 0.0}, False),
        ("0.5", False),
        (0.5, False),
    ],
)
def test_rates_are_a_list_or_a_mapping(given: object, *, fits: bool) -> None:
    """One number is not a rate for every client, and text is not a list of characters."""
    assert RATES.contains(given) is fits


def test_rates_that_change_with_time_have_no_bound() -> None:
    """1 / p_n(t) of a later round may exceed any earlier one."""
    assert KnownRatesCorrection([0.5]).traits.dp_unsupported_reason == ""
    rule = KnownRatesCorrection([0.5], pattern=Sine())
    assert (
        rule.traits.dp_unsupported_reason
        == "the weights have no known bound if rates change over time"
    )


def test_a_rate_is_explained() -> None:
    """By the client's rate, in that round if it changes, and 1 without a rate."""
    assert explain_client(KnownRatesCorrection({0: 0.25}), 0)[0] == "omega_n = 1 / p_n = 4"
    assert explain_client(KnownRatesCorrection({0: 0.25}), 1)[0] == "omega_n = 1 = 1"
    rule = KnownRatesCorrection([0.5, 1.0], pattern=InterleavedSine())
    rate = InterleavedSine().compute_probabilities(np.array([0.5, 1.0]), 3)[0]
    assert explain_client(rule, 0, t=3)[0] == f"omega_n = 1 / p_n(3) = {1 / rate:.6g}"


def test_a_client_that_cannot_participate_in_a_round_is_explained() -> None:
    """Its rate is 0 in that round, and there is no 1 / 0 to explain."""
    rule = KnownRatesCorrection([0.12, 1.0], pattern=InterleavedSine())
    t = next(t for t in range(40) if rule._compute_omega(t)[0] == 0.0)
    assert explain_client(rule, 0, t=t) == [
        f"p_n({t}) = 0: the client cannot take part in this round, so omega_n = 0"
    ]


SIX = Population.from_size(6, [0, 1, 2])


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("pattern", [None, Sine()])
def test_sampling_is_corrected_for_by_enumeration(
    fraction: float, pattern: AvailabilityPattern | None
) -> None:
    """Over all samples of both groups and all sets of available clients, each counts b_n / B."""
    p = np.array([0.9, 0.5, 0.2, 0.8, 0.4, 1.0])
    rules = build_sampled_rates("everyone", fraction, p, pattern)
    t = 7
    rates = p if pattern is None else pattern.compute_probabilities(p, t)
    sampling = rules.selection.sampling
    groups = [
        [*combinations(group, sampling.compute_sample_size(3, at_least=at_least))]
        if fraction < 1
        else [group]
        for group, at_least in ((SIX.priority_clients, 1), (SIX.non_priority_clients, 0))
    ]
    expected, samples = np.zeros(6), [first + second for first, second in product(*groups)]
    for sample, present in product(samples, product((0, 1), repeat=6)):
        probability = math.prod(q if k else 1 - q for q, k in zip(rates, present, strict=True))
        counts = [k for k in sorted(sample) if present[k]]
        given = make_participants(counts, 6)
        _, weights = rules.weighting.weigh(
            None, RoundPlan(sample, t=t), given, np.ones(len(counts))
        )
        expected[counts] += probability / len(samples) * weights.weight
    np.testing.assert_allclose(expected, np.full(6, 1 / 6), rtol=1e-12)


def build_sampled_rates(
    selection: str,
    fraction: float,
    p: FloatArray,
    pattern: AvailabilityPattern | None = None,
    **given: Any,
) -> RuleSet:
    """Return the rules of a sampled run with rates of a simulation, or with given rates."""
    strategy = {
        "name": "composed",
        "fraction": fraction,
        "selection": {"name": selection},
        "weighting": {"name": "average_all"},
        "participation": {"name": "known_statistics", **given},
    }
    rates = dict(enumerate(p.tolist()))
    context = RunContext(10, 3, rates, SIX.clients, pattern, priority=SIX.priority)
    return build_rules(strategy, {"name": "sgd"}, context)


def test_given_rates_are_not_multiplied() -> None:
    """The fraction and the availability have no effect on them."""
    rates = [0.5, 0.25, 0.1, 0.2, 0.3, 0.4]
    rules = build_sampled_rates("everyone", 0.5, np.full(6, 0.5), probabilities=rates)
    assert rules.weighting == KnownRatesCorrection(rates)
    # 2 of 3 clients of a group are selected, available with probability 0.5
    simulated = build_sampled_rates("everyone", 0.5, np.full(6, 0.5)).weighting
    assert isinstance(simulated, KnownRatesCorrection)
    assert simulated._compute_omega(0) == pytest.approx(dict.fromkeys(range(6), 3.0))
    assert simulated.compute_max_share(6) == pytest.approx(3.0 / 6)
    assert explain_client(replace(simulated, base=AverageAll()), 0)[0] == (
        "omega_n = 1 / (p_n x 0.666667, the probability that it counts while available) = 3"
    )


@pytest.mark.parametrize("given", [{}, {"probabilities": [0.5] * 6}])
def test_a_client_that_no_round_selects_is_refused(given: dict[str, Any]) -> None:
    """round(0.1 x 3) = 0 of the clients without priority, unless the selection excludes them."""
    message = (
        r"^fraction must be so large that a round can select every client that the selection "
        r"covers \(client 3 would never be selected, .*\), got 0\.1$"
    )
    for selection in ("everyone", "epsilon_gate", "after_warmup"):
        with pytest.raises(ParameterError, match=message):
            build_sampled_rates(selection, 0.1, np.full(6, 0.5), **given)
    build_sampled_rates("priority_only", 0.1, np.full(6, 0.5), **given)


def test_a_selection_without_a_probability_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate of availability alone is not the rate of being counted."""
    monkeypatch.setattr(AllClients, "compute_probabilities", lambda *_: None)
    with pytest.raises(ParameterError, match=r"^participation must be none with the selection eve"):
        build_sampled_rates("everyone", 0.5, np.full(6, 0.5))


def test_a_selection_by_losses_is_refused() -> None:
    """The probability of selecting a client is unknown, with given rates or without."""
    with pytest.raises(ParameterError, match=r"^participation must be none with the selection "):
        build_sampled_rates("power_of_choice", 0.5, np.full(6, 0.5))
