"""The row of each rule in the tests of all rules: ``test_conformance`` and ``test_combinations``.

A new rule needs one row. The tests compare the rows with the tables of the code, so no rule can be
missing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fedquorum.contrib import FedAWEWeighting, MaxFLWeighting, PowerOfChoice
from fedquorum.registry import ALL_WEIGHTINGS
from fedquorum.rules.participation import EmpiricalCorrection, FedAUCorrection, KnownRatesCorrection
from fedquorum.rules.rule import Rule
from fedquorum.rules.selection import (
    AfterWarmup,
    AllClients,
    EpsilonGate,
    PriorityOnly,
    Sampling,
    Selection,
)
from fedquorum.rules.server_optimizer import SGD, Adagrad, Adam, Momentum, Yogi
from fedquorum.rules.types import AggregationWeights, ClientUpdates, FloatArray
from fedquorum.rules.weighting import (
    AAggFFDWeighting,
    AAggFFSWeighting,
    AFLWeighting,
    AverageAll,
    AverageParticipating,
    DataFraction,
    FedGPWeighting,
    FedMGDAWeighting,
    PropFairWeighting,
    QFedAvgWeighting,
    TERMWeighting,
)

SIZE = 9
NUM_REPORTING = 3
DATA = np.random.default_rng(10).integers(1, 100, SIZE).astype(np.float64)
RHO = (0.9, 2.5, 0.4, 1.3, 0.5, 1.0, 0.25, 3.8, 0.6)
RATES = (0.9, 0.5, 0.4, 0.3, 0.5, 1.0, 0.25, 0.8, 0.6)

Options = Mapping[str, Any]


def expect_one(weights: AggregationWeights, given: ClientUpdates) -> float:
    """Return the sum of weights on the simplex."""
    return float(len(given.client) > 0)


def expect_registered_fraction(weights: AggregationWeights, given: ClientUpdates) -> float:
    """Return the fraction of the registered clients that take part."""
    return len(given.client) / len(given.registered)


def expect_mean_echo(weights: AggregationWeights, given: ClientUpdates) -> float:
    """Return sum_k (t - tau_k) / n over the n clients that take part, its estimate of 1 / p_k."""
    return sum(weights.omega[k] for k in given.client.tolist()) / max(1, len(given.client))


def expect_one_unless_hopeless(weights: AggregationWeights, given: ClientUpdates) -> float:
    """Return the sum of weights, all 0 if no client is near its requirement."""
    return float(weights.numerator.any())


def expect_corrected_fraction(weights: AggregationWeights, given: ClientUpdates) -> float:
    """Return sum_k omega_k / N over the clients that take part."""
    return sum(weights.omega[k] for k in given.client.tolist()) / len(given.registered)


@dataclass(frozen=True)
class Refusal:
    """Other parts that a rule cannot be combined with.

    Parameters
    ----------
    part : str
        The part's name in the error.
    allowed : str
        The allowed values in the error: a key, or a text.
    refused : frozenset of str, optional
        The refused keys; by default all but ``allowed``.
    """

    part: str
    allowed: str
    refused: frozenset[str] | None = None

    def contains(self, key: str) -> bool:
        """Say whether this key is refused."""
        return key != self.allowed if self.refused is None else key in self.refused


NOT_CORRECTED = Refusal("participation", "none")
"""The refusal of a weighting that has no weights over a fixed population."""
NO_GATE = Refusal("selection", "one without a gate", frozenset({"epsilon_gate"}))
ALL_CLIENTS = Refusal("selection", "everyone")
PLAIN_STEP = Refusal("server_optimizer", "sgd")


@dataclass(frozen=True)
class PlayedRound:
    """The inputs of a round of ``test_combinations`` by its five clients, shape (5,) each.

    ``there`` is 1 for those that take part, ``priority`` for those with priority, ``echo`` is
    t - tau_k, ``mixing`` is p_k and ``updates`` is Delta_k, shape (5, 2).
    """

    data: FloatArray
    loss: FloatArray
    mixing: FloatArray
    present: FloatArray
    priority: FloatArray
    echo: FloatArray
    updates: FloatArray


def compute_projected_factors(played: PlayedRound) -> FloatArray:
    """Return FedGP's factors with beta = 1/2, or beta = 0 without a source, shape (5,)."""
    data, present, priority = played.data, played.present, played.priority
    target = (data * present * priority) @ played.updates
    sources = present.sum() - (present * priority).sum()
    beta = 0.5 if sources else 0.0
    along = np.maximum(played.updates @ target, 0.0) / (played.updates**2).sum(axis=1)
    return np.where(priority > 0, (1 - beta) * data, beta / max(sources, 1) * along)


def compute_logistic_slope(loss: FloatArray) -> FloatArray:
    """Return MaxFL's q if every client requires a loss of 1, shape (5,)."""
    slope: FloatArray = np.exp(loss - 1.0) / (1.0 + np.exp(loss - 1.0)) ** 2
    return slope


UNIFORM_DRAWS = Refusal("selection", "one that draws uniformly", frozenset({"power_of_choice"}))
Factor = tuple[str, Callable[[PlayedRound], FloatArray]]
EQUAL: Factor = ("1", lambda played: np.ones(5))
MIXED: Factor = ("p_k", lambda played: played.mixing)


@dataclass(frozen=True)
class Row:
    """One rule with its test cases.

    Parameters
    ----------
    rule : type
    variants : tuple of mapping
        Further parameters to test; all defaults come first.
    refused : mapping
        For every parameter a value outside its range.
    supplied : mapping
        The rule's values beside its parameters.
    total : callable
        Returns the sum of the weights if every reporting client is admitted.
    refused_with : tuple of Refusal
        The parts with which the rule cannot be combined.
    factor : tuple of str and callable, optional
        The proportional weight of an update: as the rule's text, and as numbers, shape (5,).
    """

    rule: type[Rule]
    variants: tuple[Options, ...] = ()
    refused: Options = field(default_factory=dict)
    supplied: Options = field(default_factory=dict)
    total: Callable[[AggregationWeights, ClientUpdates], float] = expect_one
    refused_with: tuple[Refusal, ...] = ()
    factor: Factor | None = None

    @property
    def made(self) -> list[Any]:
        """The rule with its defaults, and in its variants."""
        return [self.rule(**{**self.supplied, **options}) for options in ({}, *self.variants)]


MIXING_RANGE = {"c1": -0.1, "c2": 0.0}
ADAPTIVE = {"beta1": 1.0, "tau": 0.0}
ROWS = (
    Row(
        EpsilonGate,
        ({"epsilon": math.inf}, {"criterion": "accuracy", "warmup_rounds": 0}),
        {
            "epsilon": -0.1,
            "epsilon_schedule": "lin",
            "epsilon_step_fraction": 1.5,
            "epsilon_rate": -1.0,
            "warmup_fraction": 1.5,
            "warmup_rounds": -1,
            "criterion": "f1",
            "objective_clients": "all",
            "objective_client": -1,
        },
        {"num_rounds": 10},
    ),
    Row(AllClients, ({"sampling": Sampling(0.5, seed=3)},)),
    Row(
        AfterWarmup,
        ({"warmup_fraction": 0.2}, {"warmup_rounds": 3, "sampling": Sampling(0.5, seed=3)}),
        {"warmup_fraction": 1.5, "warmup_rounds": -1},
        {"num_rounds": 10},
    ),
    Row(PriorityOnly, ({"sampling": Sampling(0.5, seed=3)},)),
    Row(
        PowerOfChoice,
        ({"loss_source": "reported"}, {"candidates": 6, "sampling": Sampling(0.5, seed=3)}),
        {"candidates": 0, "loss_source": "mean"},
        refused_with=(NOT_CORRECTED,),
    ),
    Row(DataFraction, factor=("D_k", lambda played: played.data)),
    Row(AverageParticipating, refused_with=(NOT_CORRECTED,), factor=EQUAL),
    Row(AverageAll, total=expect_registered_fraction, factor=EQUAL),
    Row(
        AAggFFSWeighting,
        ({"cdf": "weibull", "c2": 1.0}, {"variant": "authors_code"}),
        {"cdf": "cauchy", "variant": "code", **MIXING_RANGE},
        refused_with=(NOT_CORRECTED, ALL_CLIENTS),
        factor=MIXED,
    ),
    Row(
        AAggFFDWeighting,
        (
            {"cdf": "frechet", "baseline_response": "running"},
            {"cdf": "logistic", "baseline_response": "running"},
        ),
        {"cdf": "cauchy", "baseline_response": "mean", **MIXING_RANGE},
        refused_with=(UNIFORM_DRAWS,),
        factor=MIXED,
    ),
    Row(
        QFedAvgWeighting,
        ({"q": 0.5}, {"q": 8.0}),
        {"q": -1.0, "lipschitz": 0.0},
        refused_with=(NOT_CORRECTED,),
        factor=("w_k F_k^q", lambda played: played.data * played.loss),
    ),
    Row(
        TERMWeighting,
        ({"tilt": 0.7}, {"tilt": -0.7}, {"prior": "uniform"}),
        {"tilt": math.inf, "prior": "equal"},
        refused_with=(NOT_CORRECTED,),
        factor=("w_k exp(lambda F_k)", lambda played: played.data * np.exp(played.loss)),
    ),
    Row(
        PropFairWeighting,
        ({"bound": 2.0},),
        {"bound": 0.0, "epsilon": 0.0},
        refused_with=(NOT_CORRECTED,),
        factor=(
            "w_k / max(M - F_k, epsilon)",
            lambda played: played.data / np.maximum(3.0 - played.loss, 0.2),
        ),
    ),
    Row(AFLWeighting, ({"step_size": 0.05},), {"step_size": 0.0}, factor=MIXED),
    Row(
        FedMGDAWeighting,
        ({"max_deviation": 0.2},),
        {"max_deviation": 1.5},
        refused_with=(NOT_CORRECTED, PLAIN_STEP, NO_GATE),
        factor=(
            "p_k / |Delta_k|",
            lambda played: played.mixing / np.linalg.norm(played.updates, axis=1),
        ),
    ),
    Row(
        FedGPWeighting,
        ({"beta": 0.0}, {"beta": 1.0}),
        {"beta": 1.5},
        refused_with=(NOT_CORRECTED, NO_GATE),
        factor=(
            FedGPWeighting().traits.numerator,
            compute_projected_factors,
        ),
    ),
    Row(
        FedAWEWeighting,
        ({"echo_cap": 2.0}, {"clip": 0.5}),
        {"clip": 0.0, "echo_cap": 0, "memory_dir": ""},
        total=expect_mean_echo,
        refused_with=(NOT_CORRECTED, ALL_CLIENTS, PLAIN_STEP),
        factor=("t - tau_k", lambda played: played.echo),
    ),
    Row(
        MaxFLWeighting,
        ({"slope": 0.5}, {"requirement": RHO}),
        {"requirement": {0: "high"}, "slope": 0.0, "offset": -1.0},
        {"requirement": 1.0},
        total=expect_one_unless_hopeless,
        refused_with=(NOT_CORRECTED,),
        factor=("q_k", lambda played: compute_logistic_slope(played.loss)),
    ),
    Row(
        FedAUCorrection,
        ({"cutoff": 1}, {"cutoff": 2.0}),
        {"cutoff": 0},
        total=expect_corrected_fraction,
    ),
    Row(
        EmpiricalCorrection,
        ({"max_weight": 1.0}, {"max_weight": 2.5}),
        {"max_weight": 0.5},
        total=expect_corrected_fraction,
    ),
    Row(
        KnownRatesCorrection,
        ({"probabilities": RATES},),
        {"probabilities": (0.5, 0.0)},
        total=expect_corrected_fraction,
    ),
    Row(SGD),
    Row(Momentum, ({"momentum": 0.0},), {"momentum": 1.0}),
    Row(Adam, ({"beta1": 0.0},), {"beta2": 1.0, **ADAPTIVE}),
    Row(Yogi, ({"beta1": 0.0},), {"beta2": 1.0, **ADAPTIVE}),
    Row(Adagrad, ({"beta1": 0.5},), ADAPTIVE),
)


def select_rows(kind: type[Any]) -> list[Row]:
    return [row for row in ROWS if issubclass(row.rule, kind)]


WEIGHTING_ROWS = {
    row.rule.description.key: row for row in ROWS if row.rule in ALL_WEIGHTINGS.values()
}
SELECTION_ROWS = {row.rule.description.key: row for row in select_rows(Selection)}
