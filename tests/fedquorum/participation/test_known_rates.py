"""Known rates and the averages: what each client counts in the mean, over all outcomes."""

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
from fedquorum.composition import RuleSet
from fedquorum.errors import ParameterError
from fedquorum.named import build_rules
from fedquorum.participation import KnownRatesCorrection
from fedquorum.participation.known_rates import RATES
from fedquorum.rule import RunContext
from fedquorum.selection import AllClients
from fedquorum.types import FloatArray, Population, RoundPlan
from fedquorum.weighting import AverageAll, AverageParticipating

from tests.builders import decide_first_round, make_participants


def expected_weight(
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


def explain_client(rule: KnownRatesCorrection, place: int, t: int = 0) -> list[str]:
    """Return the explanation of one of two clients' weights in round ``t``, from 0."""
    given, call = make_participants([0, 1], 2), RoundPlan((0, 1), t=t)
    _, weights = rule.weigh(None, call, given, np.ones(2))
    made = replace(decide_first_round(rule, given, 2), plan=call, weights=weights)
    return [*rule.explain(made, place)]


def test_known_statistics_is_unbiased() -> None:
    """Every client counts alike in expectation; the averages favour those often there."""
    p = np.array([0.02, 0.1, 0.5, 0.9, 1.0])
    known = KnownRatesCorrection(p.tolist())
    np.testing.assert_allclose(expected_weight(known, p), np.ones(5), rtol=1e-12)
    np.testing.assert_allclose(expected_weight(AverageAll(), p), p, rtol=1e-12)
    participating = expected_weight(AverageParticipating(), p)
    assert np.all(np.diff(participating) > 0)
    assert participating[0] < 0.05


@pytest.mark.parametrize("pattern", [Staircase(), Sine(), InterleavedSine()], ids=repr)
def test_rates_that_change_with_time(pattern: AvailabilityPattern) -> None:
    """1 / p_n(t) of each round: unbiased in every round in which a client can be there."""
    p = np.array([0.12, 0.3, 0.9, 1.0])
    facts = RunContext(rates=dict(enumerate(p.tolist())), clients=(0, 1, 2, 3), pattern=pattern)
    rule = KnownRatesCorrection.from_options({}, facts)
    for t in range(0, 40, 3):
        rates = pattern.compute_probabilities(p, t)
        possible = (rates > 0).astype(float)
        np.testing.assert_allclose(expected_weight(rule, rates, t), possible, rtol=1e-12)
        call = RoundPlan((0, 1, 2, 3), t=t)
        _, weights = rule.weigh(None, call, make_participants([0, 1, 2, 3], 4), np.ones(4))
        known = rule.compute_known_weights(None, call)
        assert known is not None
        assert [known.get_weight(k) for k in range(4)] == weights.numerator.tolist()
        assert weights.omega == {k: 1 / rate if rate else 0.0 for k, rate in enumerate(rates)}


def test_a_client_that_never_takes_part_has_no_weight_that_makes_up_for_it() -> None:
    """Refused by its id, with a way out; rates that somebody gives have no pattern."""
    facts = RunContext(rates={0: 0.5, 1: 0.05}, clients=(0, 1), pattern=InterleavedSine())
    message = (
        r"^probabilities\[1\] must be a rate above 0 in some round \(client 1, with p_n = 0\.05, "
        r"never takes part, .* a smaller cut or a larger p_n lets it take part\), got 0\.0$"
    )
    with pytest.raises(ParameterError, match=message):
        KnownRatesCorrection.from_options({}, facts)
    given = KnownRatesCorrection.from_options({"probabilities": [0.5, 0.05]}, facts)
    assert dict(given.compute_omega(7)) == {0: 2.0, 1: 20.0}


def test_nobody_there_weighs_nothing() -> None:
    """An empty round has no weights and divides by nothing."""
    for rule in (AverageAll(), AverageParticipating()):
        _, weights = rule.weigh(None, RoundPlan(()), make_participants([], 0), np.ones(0))
        assert weights.weight.shape == (0,)


def test_known_statistics_needs_every_client() -> None:
    """A client without p_n, or with 0, is refused by name."""
    facts = RunContext(clients=(0, 1))
    with pytest.raises(ParameterError, match=r"probabilities\[1\] must be a number .*, got None"):
        KnownRatesCorrection.from_options({"probabilities": {0: 0.5}}, facts)
    with pytest.raises(ParameterError, match=r"probabilities must be .*got \{0: 0\.0, 1: 1\.0\}"):
        KnownRatesCorrection.from_options({"probabilities": {0: 0.0, 1: 1.0}}, facts)
    with pytest.raises(ParameterError, match=r"probabilities must be .*nobody knows the rates"):
        KnownRatesCorrection.from_options({}, facts)


def test_the_rates_that_a_simulation_knows_are_taken_where_none_are_given() -> None:
    """Those given win; a list is by client id; a client without a rate has omega 1."""
    known = RunContext(rates={0: 0.5, 1: 0.25}, clients=(0, 1))
    assert dict(KnownRatesCorrection.from_options({}, known).compute_omega(0)) == {0: 2.0, 1: 4.0}
    assert dict(
        KnownRatesCorrection.from_options({"probabilities": [1.0, 0.1]}, known).compute_omega(0)
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
    """One number is no rate of every client, and a text is no list of its characters."""
    assert RATES.contains(given) is fits


def test_rates_that_change_with_time_have_no_bound() -> None:
    """1 / p_n(t) of a later round may exceed any that was seen; the base's reason comes else."""
    assert KnownRatesCorrection([0.5]).dp_unsupported_reason == ""
    changing = KnownRatesCorrection([0.5], pattern=Sine())
    assert changing.dp_unsupported_reason == "of rates that change with time no bound is worked out"


def test_a_rate_is_explained() -> None:
    """By the client's own rate, that of the round where it changes, and 1 where it has none."""
    assert explain_client(KnownRatesCorrection({0: 0.25}), 0)[0] == "omega_n = 1 / p_n = 4"
    assert explain_client(KnownRatesCorrection({0: 0.25}), 1)[0] == "omega_n = 1 = 1"
    changing = KnownRatesCorrection([0.5, 1.0], pattern=InterleavedSine())
    rate = InterleavedSine().compute_probabilities(np.array([0.5, 1.0]), 3)[0]
    assert explain_client(changing, 0, t=3)[0] == f"omega_n = 1 / p_n(3) = {1 / rate:.6g}"


def test_a_client_that_cannot_participate_in_a_round_is_explained() -> None:
    """Its rate is 0 in that round, and there is no 1 / 0 to explain."""
    rule = KnownRatesCorrection([0.12, 1.0], pattern=InterleavedSine())
    t = next(t for t in range(40) if rule.compute_omega(t)[0] == 0.0)
    assert explain_client(rule, 0, t=t) == [
        f"p_n({t}) = 0: the client cannot take part in this round, so omega_n = 0"
    ]


SIX = Population.from_size(6, [0, 1, 2])


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("pattern", [None, Sine()])
def test_sampling_is_corrected_for_by_enumeration(
    fraction: float, pattern: AvailabilityPattern | None
) -> None:
    """Over all samples of both groups and all who can be there, each client counts b_n / B."""
    p = np.array([0.9, 0.5, 0.2, 0.8, 0.4, 1.0])
    rules = build_sampled_rates("everyone", fraction, p, pattern)
    t = 7
    there = p if pattern is None else pattern.compute_probabilities(p, t)
    sampling = rules.selection.sampling
    groups = [
        [*combinations(group, sampling.compute_sample_size(3, at_least=at_least))]
        if fraction < 1
        else [group]
        for group, at_least in ((SIX.priority_clients, 1), (SIX.non_priority_clients, 0))
    ]
    expected, samples = np.zeros(6), [first + second for first, second in product(*groups)]
    for sample, present in product(samples, product((0, 1), repeat=6)):
        probability = math.prod(q if k else 1 - q for q, k in zip(there, present, strict=True))
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
    """Return known rates of a simulation, or given ones, in a run that samples."""
    strategy = {
        "name": "composed",
        "fraction": fraction,
        "selection": {"name": selection},
        "weighting": {"name": "average_all"},
        "participation": {"name": "known_statistics", **given},
    }
    rates = dict(enumerate(p.tolist()))
    facts = RunContext(10, 3, rates, SIX.clients, pattern, priority=SIX.priority)
    return build_rules(strategy, {"name": "sgd"}, facts)


def test_given_rates_are_those_of_being_counted() -> None:
    """They are not multiplied by anything, whatever the fraction and the availability."""
    rates = [0.5, 0.25, 0.1, 0.2, 0.3, 0.4]
    rules = build_sampled_rates("everyone", 0.5, np.full(6, 0.5), probabilities=rates)
    assert rules.weighting == KnownRatesCorrection(rates)
    # 2 of 3 clients of a group are asked, available with probability 0.5
    simulated = build_sampled_rates("everyone", 0.5, np.full(6, 0.5)).weighting
    assert isinstance(simulated, KnownRatesCorrection)
    assert simulated.compute_omega(0) == pytest.approx(dict.fromkeys(range(6), 3.0))
    assert simulated.compute_max_share(6) == pytest.approx(3.0 / 6)
    assert explain_client(replace(simulated, base=AverageAll()), 0)[0] == (
        "omega_n = 1 / (p_n x 0.666667, the probability that it counts while available) = 3"
    )


@pytest.mark.parametrize("given", [{}, {"probabilities": [0.5] * 6}])
def test_a_client_that_no_round_selects_is_refused(given: dict[str, Any]) -> None:
    """round(0.1 x 3) = 0 of the clients without priority, unless the selection leaves them out."""
    message = (
        r"^fraction must be so large that a round can ask every client that the selection covers "
        r"\(client 3 would never be asked, .*\), got 0\.1$"
    )
    for selection in ("everyone", "epsilon_gate", "after_warmup"):
        with pytest.raises(ParameterError, match=message):
            build_sampled_rates(selection, 0.1, np.full(6, 0.5), **given)
    build_sampled_rates("priority_only", 0.1, np.full(6, 0.5), **given)


def test_a_selection_without_a_probability_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a probability a rate is not taken for that of being counted."""
    monkeypatch.setattr(AllClients, "compute_probabilities", lambda *_: None)
    with pytest.raises(ParameterError, match=r"^participation must be none with the selection eve"):
        build_sampled_rates("everyone", 0.5, np.full(6, 0.5))


def test_a_selection_by_losses_is_refused() -> None:
    """Nobody can tell how often it asks a client, given rates or not."""
    with pytest.raises(ParameterError, match=r"^participation must be none with the selection "):
        build_sampled_rates("power_of_choice", 0.5, np.full(6, 0.5))
