"""Every selection x weighting x participation x server optimizer: what is written of it is so.

Each allowed combination plays three rounds. In each of them the weights are its factor over its
divisor, both computed here from the words that the rules say of themselves, and the model moves
as an independent implementation of the optimizer moves it by their sum.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy
from fedquorum.aggregation import apply_server_step
from fedquorum.composition import RuleSet, UpdateMemoryConfig
from fedquorum.contrib import PowerOfChoice
from fedquorum.decisions import ClientEvaluation
from fedquorum.errors import ParameterError
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
)
from fedquorum.named import ALL_SELECTIONS, ALL_WEIGHTINGS, CUSTOM, NONE
from fedquorum.participation import PARTICIPATIONS
from fedquorum.round import decide_round
from fedquorum.rule import RunContext
from fedquorum.selection import EpsilonGate
from fedquorum.server_optimizer import SERVER_OPTIMIZERS
from fedquorum.server_state import ServerState
from fedquorum.types import FloatArray, Population

from conf.compose import PARTS, options
from tests.builders import (
    OBJECTIVE,
    build_corrected_weighting,
    make_declined_outcome,
    make_round_outcomes,
    make_trained_outcome,
    make_unavailable_outcome,
)
from tests.builders_flower import make_grid, make_scripted_app, train_round
from tests.cases import sample_cases
from tests.fedquorum.rows import SELECTION_ROWS, WEIGHTING_ROWS, PlayedRound
from tests.reference import fedawe
from tests.reference import server_optimizers as reference

# Clients 0 and 1 have priority. Client 4 is never aligned, and says so; 3 no longer is in round 3.
POPULATION = Population.from_size(5, [0, 1])
DATA = np.array([10.0, 10.0, 20.0, 40.0, 100.0])
LOSS = np.array([1.0, 1.0, 0.9, 1.1, 2.5])
LOSS_OF_3_IN_ROUND_3 = 0.1
PRESENT = ({0, 2, 3, 4}, {0, 1, 4}, {1, 2, 3})
ALIGNED = ({2, 3}, {2, 3}, {2})  # last known to be, once the round's replies are in
DELTA = np.random.default_rng(3).normal(size=(3, 5, 2))  # by round and client
MODEL: NamedArrays = {"w": np.array([0.5, -1.0])}
INVERSE = {0: 2.0, 1: 1.5, 2: 4.0, 3: 1.0, 4: 3.0}
ECHO = (np.ones(5), np.array([1.0, 2.0, 1.0, 1.0, 1.0]), np.array([1.0, 1.0, 2.0, 2.0, 1.0]))
"""t - tau_k of each client, by round: by hand from ``PRESENT``."""
RATES = {client: 1 / inverse for client, inverse in INVERSE.items()}
ETA = 0.1

GATE = EpsilonGate(num_rounds=3, epsilon=0.5, warmup_fraction=0.0)
BY_LOSS = PowerOfChoice(losses="told")  # all clients, as the fraction is 1
GIVEN = {GATE.key: GATE, BY_LOSS.key: BY_LOSS}
Combination = tuple[str, str, str, str]

SELECTED = [key for key, rule in ALL_SELECTIONS.items() if not rule.trains_local_models]
WEIGHED = [key for key, rule in ALL_WEIGHTINGS.items() if rule.aggregates]
CORRECTED = [NONE, *PARTICIPATIONS]
OPTIMIZERS = [*SERVER_OPTIMIZERS]
"""The parts, beside those of clients that learn alone, which go with nothing else."""


def refusal(selection: str, weighting: str, correction: str, optimizer: str) -> str | None:
    """Return how the reason begins why a combination is refused, None where it is allowed."""
    part = {"selection": selection, "participation": correction, "server_optimizer": optimizer}
    refused = [
        (one, f"the {kind} {row.rule.key}")
        for kind, row in (
            ("weighting", WEIGHTING_ROWS[weighting]),
            ("selection", SELECTION_ROWS[selection]),
        )
        for one in row.refused_with
        if one.contains(part[one.part])
    ]
    # A correction is made first, of the weighting alone.
    for one, rule in sorted(refused, key=lambda pair: pair[0].part != "participation"):
        return f"{one.part} must be {one.allowed} with {rule} ("
    return None


COMBINATIONS: list[Combination] = [*product(SELECTED, WEIGHED, CORRECTED, OPTIMIZERS)]
ALLOWED = [one for one in COMBINATIONS if refusal(*one) is None]
REFUSED = [one for one in COMBINATIONS if refusal(*one) is not None]
SAMPLE, REFUSED_SAMPLE = sample_cases(ALLOWED, 60), sample_cases(REFUSED, 40)
# FedAU by hand: client 1, away in round 1 and back in round 2, has had one interval of 2 rounds.
OMEGA: Mapping[str, tuple[Mapping[int, float], ...]] = {
    "none": ({}, {}, {}),
    "fedau": ({}, {}, {1: 2.0}),
    # Of n rounds, this one included, a client took part in t: n / t.
    "empirical": ({}, {1: 2.0}, {1: 1.5, 2: 1.5, 3: 1.5}),
    "known_statistics": (INVERSE, INVERSE, INVERSE),
}


def test_these_are_all_that_the_settings_offer() -> None:
    """No part that can be chosen by name is left out, nor any of their combinations."""
    not_combined = {"alone", "no_weight", CUSTOM}
    offered = [sorted(set(options(part)) - not_combined) for part in PARTS]
    assert offered == [sorted(SELECTED), sorted(WEIGHED), sorted(CORRECTED)]
    assert sorted(OPTIMIZERS) == sorted(set(options("server_optimizer")) - not_combined)
    assert len(ALLOWED) + len(REFUSED) == math.prod(
        map(len, (SELECTED, WEIGHED, CORRECTED, OPTIMIZERS))
    )


def test_a_sample_has_every_part() -> None:
    """Also where the suite is not asked for all combinations."""
    for whole, part in ((ALLOWED, SAMPLE), (REFUSED, REFUSED_SAMPLE)):
        for position in range(4):
            assert {one[position] for one in part} == {one[position] for one in whole}


def rules_of(selection: str, weighting: str, correction: str, optimizer: str) -> RuleSet:
    """Return the rules of a combination, the learning rate ``ETA``."""
    base = ALL_WEIGHTINGS[weighting](**WEIGHTING_ROWS[weighting].supplied)
    rates = {"probabilities": RATES} if correction == "known_statistics" else {}
    return RuleSet(
        GIVEN.get(selection) or ALL_SELECTIONS[selection](),
        build_corrected_weighting(base, correction, **rates),
        SERVER_OPTIMIZERS[optimizer].with_learning_rate(ETA, {}, RunContext()),
    )


def answer(client: int, task: TrainTask, arrays: NamedArrays, *, everybody: bool) -> TrainResult:
    """Train as the script says: away, silent by the client's half of the gate, or moved."""
    turn = task.server_round - 1
    if client not in PRESENT[turn] and not everybody:
        return TrainResult(client, Status.UNAVAILABLE)
    loss = losses(turn)[client]
    if task.epsilon is not None and client > 1 and loss > task.objective.loss + task.epsilon:
        return TrainResult(client, Status.DECLINED)
    return TrainResult(
        client,
        Status.DONE,
        num_examples=DATA[client],
        loss=loss,
        accuracy=0.5,
        arrays={"w": arrays["w"] + DELTA[turn, client]},
    )


def losses(turn: int) -> FloatArray:
    return np.array([*LOSS[:3], LOSS_OF_3_IN_ROUND_3 if turn == 2 else LOSS[3], LOSS[4]])


def are(clients: Iterable[int]) -> FloatArray:
    """Return 1 for these clients and 0 for the others, shape (5,)."""
    return np.isin(np.arange(5), [*clients]).astype(np.float64)


def weights_by_words(combination: Combination, turn: int, mixing: FloatArray | None) -> FloatArray:
    """Return c_k = factor / divisor of all clients, shape (5,), as the rules' words say it.

    What stands in the words by a symbol: D_k, F_k, w_k, Delta_k and omega_k are the script's, p_k
    is the mixing vector that the round decided.
    """
    _, name, correction, _ = combination
    rules = rules_of(*combination)
    selection, weighting = rules.selection, rules.weighting
    whom = {
        "all known clients": are(range(5)),
        "the known priority clients": are({0, 1}),
        "the priority clients and the others last known to be aligned": are({0, 1} | ALIGNED[turn]),
    }
    there = whom[selection.population_text] * (1.0 if name == "aaggff_s" else are(PRESENT[turn]))
    admitted = "the clients admitted in the round"
    whom |= {admitted: there, f"the priority clients among {admitted}": there * are({0, 1})}
    loss, omega = losses(turn), np.array([OMEGA[correction][turn].get(k, 1.0) for k in range(5)])
    p = np.zeros(5) if mixing is None else mixing
    factor = WEIGHTING_ROWS[name].factor
    assert factor is not None, "its row says what an update's weight is proportional to"
    played = PlayedRound(DATA, loss, p, there, are({0, 1}), ECHO[turn], DELTA[turn])
    written, number = factor[0], factor[1](played)
    words = re.sub(r"^(omega_k|\(1 / p_k\)) ?", "", weighting.numerator) or "1"
    assert words == written
    assert (words != weighting.numerator) == (correction != "none")
    amounts = {
        "the number of": np.ones(5),
        "the training data of": DATA,
        "the sum of p over": p,
        "the sum of the same over": number,
    }
    found = re.fullmatch(
        f"({'|'.join(amounts)}) ({'|'.join(whom)})(, which is 1)?", rules.denominator
    )
    assert found is not None
    total = float((amounts[found[1]] * whom[found[2]]).sum())
    if found[3]:
        assert total == pytest.approx(1.0)
    return np.asarray(there * omega * number / total)


def moved_from_starts() -> list[list[float]]:
    """Return the model after every round where each client goes on from where it left off."""
    devices = fedawe.Federation(MODEL["w"].tolist(), 5, server_lr=ETA)
    path = []
    for there in PRESENT:
        devices.run_round(there, lambda k, t, x: (np.array(x) + DELTA[t, k]).tolist())
        path.append(devices.w)
    return path


def moved_by(optimizer: str, sums: list[FloatArray]) -> list[list[float]]:
    """Return both weights of the model after every round, by the optimizer's reference."""
    paths = []
    for start, deltas in zip(MODEL["w"].tolist(), np.transpose(sums).tolist(), strict=True):
        if optimizer in ("sgd", "momentum"):
            x, velocity, path = start, 0.0, []
            for delta in deltas:
                velocity = (0.9 if optimizer == "momentum" else 0.0) * velocity + delta
                x += ETA * velocity
                path.append(x)
        else:
            beta1 = 0.0 if optimizer == "adagrad" else 0.9
            path = reference.compute_adaptive_path(
                optimizer, deltas, x=start, eta=ETA, beta1=beta1, beta2=0.99, tau=1e-3
            )
        paths.append(path)
    return np.transpose(paths).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("combination", SAMPLE, ids="-".join)
def test_three_rounds_of_every_combination(combination: Combination) -> None:
    """c_k is what the words of the rules say, and the model moves by sum_k c_k Delta_k."""
    _, weighting, _, optimizer = combination
    strategy = ComposedStrategy(rules_of(*combination), population=POPULATION)
    app = make_scripted_app(5, partial(answer, everybody=weighting == "aaggff_s"))
    grid, arrays = make_grid(app, 5), encode_arrays(MODEL)
    # Also where no rule needs F(w_0): the priority clients then have told how much data they have.
    messages = strategy.configure_initial(arrays, grid)
    strategy.aggregate_initial(grid.send_and_receive(messages))
    sums, path = [], []
    for turn in range(3):
        moved = train_round(strategy, grid, turn + 1, arrays)
        assert moved is not None
        arrays = moved
        report = strategy.step_result.report
        weight = np.zeros(5)
        weight[[d.client for d in report.decisions]] = [d.weight for d in report.decisions]
        expected = weights_by_words(combination, turn, report.mixing)
        np.testing.assert_allclose(weight, expected, rtol=1e-9)
        sums.append(weight @ DELTA[turn])
        path.append(decode_arrays(moved)["w"])
    expected_path = moved_from_starts() if weighting == "fedawe" else moved_by(optimizer, sums)
    np.testing.assert_allclose(path, expected_path, rtol=1e-9)


@pytest.mark.parametrize("combination", REFUSED_SAMPLE, ids="-".join)
def test_every_other_combination_is_refused_with_the_reason(combination: Combination) -> None:
    """Before any work, in one line: the part, what goes with it, and why."""
    with pytest.raises(ParameterError) as caught:
        rules_of(*combination)
    assert str(caught.value).startswith(str(refusal(*combination)))
    assert "\n" not in str(caught.value)


def test_a_divisor_that_is_fixed_does_not_depend_on_who_is_there() -> None:
    """In words: a correction never divides by the clients of the round."""
    for combination in ALLOWED:
        _, weighting, correction, _ = combination
        fixed = correction != "none" or weighting == "average_all"
        assert ("in the round" in rules_of(*combination).denominator) != fixed


# --- goes on -------------------------------------------------------------------------------------


NOTHING = (math.nan, math.nan, math.nan)


def gone_on(rules: RuleSet, seed: int, written: Collection[int] = ()) -> list[dict[str, bytes]]:
    """Return weights, p and state of eight rounds, to the bit; clients join in any order.

    Before the rounds in ``written`` the state is written down, and goes on from what was written,
    among the clients that there were then.
    """
    rng = np.random.default_rng(seed)
    there_from = rng.permutation([0, 0, 1, 2, 4])  # the round in which each client joins
    fixed = rules.weighting.requires_fixed_population
    population = Population.open([0, 1])
    state, model, found = ServerState.initial(rules, population), MODEL, []
    for t in range(8):
        if t in written and t > 0:
            arrays = state.to_arrays(rules, None, population.sorted_clients)
            copied = {name: array.copy() for name, array in arrays.items()}
            state = ServerState.from_arrays(copied, rules, population, model)
        known = [k for k in range(5) if fixed or there_from[k] <= t]
        joined = population.with_clients(known)
        state, population = state.with_clients(rules, population, joined), joined
        present = {k for k in known if rng.random() < 0.7}
        told = replace(state.round_state.reports, available=frozenset(known))
        call = rules.plan_round(t, population, told)
        loss, updates = LOSS * rng.uniform(0.8, 1.2, 5), rng.normal(size=(5, 2))
        each = [
            make_unavailable_outcome(k)
            if k not in present
            else make_declined_outcome(k)
            if loss[k] > 2.0
            else make_trained_outcome(k, data=DATA[k], loss=loss[k])
            for k in call.clients
        ]
        usable = [answer.client for answer in each if answer.is_usable]
        decided = decide_round(
            rules,
            population,
            state.round_state,
            server_round=t + 1,
            plan=call,
            objective=OBJECTIVE,
            outcomes=make_round_outcomes(*each, known=known, updates=updates[usable]),
        )
        update = {"w": np.asarray(decided.weight @ updates[usable])}
        total = float(decided.weight.sum())
        optimizer, moved = apply_server_step(
            rules.server_optimizer, state.optimizer, model, update, total
        )
        assert moved is not None
        model = moved
        state = replace(state, round_state=decided.next_state, optimizer=optimizer)
        measured = [
            ClientEvaluation(k, population.get_priority_weight(k), DATA[k], loss[k], 0.5, *NOTHING)
            for k in sorted(present)
        ]
        state = state.with_evaluations(rules, measured)
        after = {**state.to_arrays(rules, None, np.array(known)), **model, "weight": decided.weight}
        found.append({name: array.tobytes() for name, array in after.items()})
    return found


@pytest.mark.parametrize("combination", SAMPLE, ids=" ".join)
def test_a_state_resumes_from_its_arrays(combination: Combination) -> None:
    """After any rounds, whoever has joined: what is kept of a client stays that client's."""
    rules = rules_of(*combination)
    for seed in range(3):
        written = np.flatnonzero(np.random.default_rng(seed).random(8) < 0.5).tolist()
        assert gone_on(rules, seed, written) == gone_on(rules, seed)


# --- statistics ----------------------------------------------------------------------------------


WITH_STATISTICS: NamedArrays = {
    **MODEL,
    "norm.running_mean": np.zeros(2, np.float32),
    "norm.running_var": np.ones(2, np.float32),
    "norm.num_batches_tracked": np.array(3),
}


def measuring(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
    """Train as in any round, away in every other one, and measure something each time."""
    turn = (task.server_round - 1) % 3
    moved = answer(client, replace(task, server_round=turn + 1), arrays, everybody=False)
    if moved.arrays is None:
        return moved
    rng = np.random.default_rng([client, task.server_round])
    statistics: NamedArrays = {
        "norm.running_mean": rng.normal(scale=30.0, size=2).astype(np.float32),
        "norm.running_var": rng.lognormal(-2.0, 4.0, size=2).astype(np.float32),
        "norm.num_batches_tracked": np.array(int(rng.integers(0, 10_000))),
    }
    return replace(moved, arrays={**moved.arrays, **statistics})


@pytest.mark.parametrize("remembers", [False, True], ids=["", "last updates"])
@pytest.mark.parametrize("combination", SAMPLE, ids=" ".join)
def test_statistics_stay_between_those_that_were_sent(
    combination: Combination, *, remembers: bool
) -> None:
    """No weight, learning rate, momentum, echo, projection or memory extrapolates them."""
    rules = rules_of(*combination)
    if remembers and rules.hooks.client_start is not None:
        with pytest.raises(ParameterError, match="memory must be None with fedawe"):
            replace(rules, memory=UpdateMemoryConfig())
        return
    fast = SERVER_OPTIMIZERS[combination[3]].with_learning_rate(3.0, {}, RunContext())
    rules = replace(
        rules,
        server_optimizer=fast,
        memory=UpdateMemoryConfig(steps_without_updates=True) if remembers else None,
    )
    sent: list[Mapping[str, Any]] = []

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        trained = measuring(client, task, arrays)
        sent.extend([] if trained.arrays is None else [trained.arrays])
        return trained

    strategy = ComposedStrategy(rules, population=POPULATION)
    grid, model = make_grid(make_scripted_app(5, fit, dict(enumerate(LOSS))), 2), WITH_STATISTICS
    for server_round in range(1, 8):
        sent.clear()
        after = train_round(strategy, grid, server_round, encode_arrays(model))
        if after is None:
            continue
        moved = decode_arrays(after)
        for name in WITH_STATISTICS.keys() - MODEL.keys():
            there = np.stack([one[name] for one in (model, *sent)]).astype(np.float64)
            slack = 1e-6 * np.abs(there).max()
            assert (moved[name] >= there.min(axis=0) - slack).all(), (name, server_round)
            assert (moved[name] <= there.max(axis=0) + slack).all(), (name, server_round)
        assert moved["norm.running_var"].min() >= 0.0
        model = moved
