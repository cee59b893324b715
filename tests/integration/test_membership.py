"""An attack on private runs that asks whether one client took part, and a bound from its success.

Many short runs are played with the client and without it, on all that a node is sent: models,
configs and clipping norms. In each the attacker says by the likelihood ratio, the best test there
is, whether the client was there. From how often that is right follows a lower bound on epsilon
(Jagielski, Ullman and Oprea, "Auditing Differentially Private Machine Learning", NeurIPS 2020):
epsilon >= log((P(yes | there) - delta) / P(yes | not there)), likewise for "no".

Both probabilities are bounded by Clopper and Pearson's exact intervals. The noise is the operating
system's, so the test is a statistical one: of a run that is as private as accounted, the bound lies
above the accounted epsilon with a probability below FALSE_ALARM.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from fedquorum import ComposedStrategy, NativeProtocol, Population
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    encode_arrays,
)
from fedquorum.server.privacy import GaussianMechanism

from conf import compose_settings
from server_app.runs.privacy import PrivacySpent, build_mechanism
from tests.builders_flower import (
    build_named_strategy,
    evaluate_round,
    make_grid,
    make_scripted_app,
    train_round,
)
from tests.cases import is_long

N = 4
ROUNDS = 2
RUNS = 250
MULTIPLIER = 4.0
DELTA = 1e-5
FALSE_ALARM = 1e-6
SERVER_LR = 0.1
SPY = 1
MODEL: NamedArrays = {
    "w": np.zeros(3, dtype=np.float32),
    "norm.running_mean": np.zeros(3, dtype=np.float32),
}
STEPS = {"w": SERVER_LR, "norm.running_mean": 1.0}
"""How much of the combined update each array moves by."""


# --- the client that is there or not --------------------------------------------------------------


def make_member_result(array: str, arrays: NamedArrays) -> TrainResult:
    """Return a client that moves the first number of one array further than the norm allows."""
    shifted = arrays[array].copy()
    shifted[0] += 1e3
    return answer({**arrays, array: shifted}, norm_bit=1.0)


def make_declined_result(array: str, arrays: NamedArrays) -> TrainResult:
    return TrainResult(0, Status.UNAVAILABLE)


def make_unusable_result(array: str, arrays: NamedArrays) -> TrainResult:
    return answer({**arrays, array: np.full(3, np.nan, dtype=np.float32)}, norm_bit=0.0)


def answer(arrays: NamedArrays, norm_bit: float = 0.0) -> TrainResult:
    return TrainResult(0, Status.DONE, num_examples=10, norm_bit=norm_bit, arrays=arrays)


# --- one run, and what a node learns from it ------------------------------------------------------


@dataclass
class Seen:
    """The messages to one node: models, clipping norms, and other data-dependent values."""

    models: list[NamedArrays] = field(default_factory=list)
    norms: list[float | None] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def note(self, task: TrainTask, arrays: NamedArrays) -> None:
        """Store a train message."""
        self.models.append(arrays)
        self.norms.append(task.clipping_norm)
        self.losses.append(task.objective.loss)


def play(
    strategy: ComposedStrategy, client: Callable[[str, NamedArrays], TrainResult], array: str
) -> Seen:
    """Play a run; client 0, with priority, has a loss of 5 where it is there and of 1 elsewhere."""
    seen = Seen()

    def fit(k: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        if k == SPY:
            seen.note(task, arrays)
        return client(array, arrays) if k == 0 else replace(answer(arrays), client=k)

    grid = make_grid(
        make_scripted_app(N, fit, {0: 5.0 if client is make_member_result else 1.0}), 1
    )
    arrays = encode_arrays(MODEL)
    for server_round in range(1, ROUNDS + 1):
        arrays = train_round(strategy, grid, server_round, arrays) or arrays
        if server_round == 1:
            evaluate_round(strategy, grid, server_round, arrays)
    # One round more shows the spy what the last one led to; nothing of it is used.
    train_round(strategy, grid, ROUNDS + 1, arrays)
    return seen


def says_yes(seen: Seen, accounted: GaussianMechanism, array: str) -> bool:
    """Return whether the sent messages are likelier with the client than without it."""
    if any(loss > 1.0 for loss in seen.losses):  # exact if it is sent at all
        return True
    evidence = 0.0
    for t in range(ROUNDS):
        norm = seen.norms[t] or accounted.clipping_norm
        shift = STEPS[array] * norm / N
        shifted = float(seen.models[t + 1][array][0]) - float(seen.models[t][array][0])
        evidence += likelihood(shifted, shift, accounted.update_multiplier * shift)
        following, moving = seen.norms[t + 1], accounted.adaptive_norm
        if following is not None and moving is not None:
            votes = -N * math.log(following / norm) / moving.learning_rate
            # The other three are below the norm, client 0 above it or not there.
            centred = votes - 3 * (1 - moving.target_quantile)
            evidence += likelihood(centred, -moving.target_quantile, moving.count_stddev)
    return evidence > 0.0


def likelihood(value: float, shift: float, deviation: float) -> float:
    """Return the log likelihood ratio of N(shift, deviation^2) to N(0, deviation^2)."""
    return shift * (value - shift / 2) / deviation**2


# --- many runs ------------------------------------------------------------------------------------


def lower_bound(yes_with: int, yes_without: int, runs: int) -> float:
    """Return a lower bound on epsilon for DELTA, wrong with probability FALSE_ALARM at most.

    Two directions, each with two intervals: each has a quarter of that probability.
    """
    no_with, no_without = runs - yes_with, runs - yes_without
    return max(_bound(yes_with, yes_without, runs), _bound(no_without, no_with, runs))


def _bound(right: int, wrong: int, runs: int) -> float:
    from scipy.stats import beta

    level = FALSE_ALARM / 4
    least = 0.0 if right == 0 else float(beta.ppf(level, right, runs - right + 1))
    most = 1.0 if wrong == runs else float(beta.ppf(1 - level, wrong + 1, runs - wrong))
    return math.log(max(1.0, (least - DELTA) / most))


def attack(
    kind: str,
    array: str,
    without: Callable[[str, NamedArrays], TrainResult],
    noise: Sequence[float],
) -> list[float]:
    """Return the lower bound on epsilon with these shares of the noise that is accounted for."""
    words = f"strategy=average_all privacy={kind} privacy.noise_multiplier={MULTIPLIER}"
    if "adaptive" in kind:
        words += " privacy.clipped_count_stddev=4"
    accounted = build_mechanism(compose_settings("custom", words).settings.privacy, N)
    assert accounted is not None
    bounds = []
    for share in noise:
        made = mechanism_with(accounted, share)

        def strategy(mechanism: GaussianMechanism = made) -> ComposedStrategy:
            population = Population.from_size(N, {0})
            communication = NativeProtocol(privacy=mechanism)
            return build_named_strategy(
                "average_all", population, communication=communication, server_lr=SERVER_LR
            )

        plays = RUNS if share else 1  # without noise each run is the same
        yes_with, yes_without = (
            RUNS
            // plays
            * sum(says_yes(play(strategy(), client, array), accounted, array) for _ in range(plays))
            for client in (make_member_result, without)
        )
        bounds.append(lower_bound(yes_with, yes_without, RUNS))
    return bounds


def mechanism_with(accounted: GaussianMechanism, share: float) -> GaussianMechanism:
    """Return the mechanism with a share of its noise, and of that of its count."""
    moving = accounted.adaptive_norm
    if moving is not None:
        moving = replace(moving, count_stddev=share * moving.count_stddev)
    multiplier = share * accounted.noise_multiplier
    return replace(accounted, noise_multiplier=multiplier, adaptive_norm=moving)


def epsilon() -> float:
    return PrivacySpent("", MULTIPLIER, DELTA, ROUNDS).epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "array", "without"),
    [
        ("dp_fixed_client", "w", make_declined_result),
        ("dp_adaptive_client", "norm.running_mean", make_unusable_result),
        ("dp_fixed_server", "norm.running_mean", make_unusable_result),
        ("dp_adaptive_server", "w", make_declined_result),
    ][: None if is_long() else 2],
)
def test_membership_cannot_be_inferred_better_than_accounted(
    kind: str, array: str, without: Callable[[str, NamedArrays], TrainResult]
) -> None:
    """The bound stays below epsilon; with a tenth of the noise, or none, it is above it.

    A tenth is missed with a probability of 2e-7, as a client is then detected in 96 % of the runs.
    """
    private, tenth, bare = attack(kind, array, without, (1.0, 0.1, 0.0))
    print(f"{kind}: {private:.2f} < {epsilon():.2f} < {tenth:.2f} < {bare:.2f}")
    assert private < epsilon() < tenth < bare


def test_the_bound_of_an_attack() -> None:
    """Perfect attacks give the largest bound of the number of runs; guessing gives none."""
    assert 2.5 < lower_bound(RUNS, 0, RUNS) < 3.0
    assert lower_bound(RUNS // 2, RUNS // 2, RUNS) == 0.0
    assert lower_bound(10**6, 0, 10**6) > 10.0


def test_the_bound_is_rarely_above_the_truth() -> None:
    """For randomized response, whose epsilon is known, it never is in 20,000 attacks."""
    truth = 1.0
    p = math.exp(truth) / (1 + math.exp(truth))
    rng = np.random.default_rng(0)
    yes = rng.binomial(RUNS, p, 20_000), rng.binomial(RUNS, 1 - p, 20_000)
    pairs = np.unique(np.stack(yes, axis=1), axis=0)
    assert max(lower_bound(int(a), int(b), RUNS) for a, b in pairs) < truth
