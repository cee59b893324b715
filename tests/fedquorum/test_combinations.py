"""Every selection x weighting x participation x server optimizer matches its description.

Each allowed combination runs three rounds. In each of them the weights are numerator / denominator,
both computed here from the rules' texts, and the model follows an independent implementation of the
optimizer.
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
from fedquorum.contrib import PowerOfChoice
from fedquorum.errors import ParameterError
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
)
from fedquorum.registry import ALL_SELECTIONS, ALL_WEIGHTINGS, CUSTOM, NONE
from fedquorum.rules.composition import RuleSet, UpdateMemoryConfig
from fedquorum.rules.decisions import ClientEvaluation
from fedquorum.rules.participation import PARTICIPATIONS
from fedquorum.rules.round import decide_round
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection import EpsilonGate
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS
from fedquorum.rules.types import FloatArray, Population
from fedquorum.server.aggregation import apply_server_step
from fedquorum.server.state import ServerState

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

# Clients 0 and 1 have priority. Client 4 is never aligned and declines; 3 is not in round 3.
POPULATION = Population.from_size(5, [0, 1])
DATA = np.array([10.0, 10.0, 20.0, 40.0, 100.0])
LOSS = np.array([1.0, 1.0, 0.9, 1.1, 2.5])
LOSS_OF_3_IN_ROUND_3 = 0.1
PRESENT = ({0, 2, 3, 4}, {0, 1, 4}, {1, 2, 3})
ALIGNED = ({2, 3}, {2, 3}, {2})  # after the round's replies
DELTA = np.random.default_rng(3).normal(size=(3, 5, 2))  # by round and client
MODEL: NamedArrays = {"w": np.array([0.5, -1.0])}
INVERSE = {0: 2.0, 1: 1.5, 2: 4.0, 3: 1.0, 4: 3.0}
ECHO = (np.ones(5), np.array([1.0, 2.0, 1.0, 1.0, 1.0]), np.array([1.0, 1.0, 2.0, 2.0, 1.0]))
"""t - tau_k of each client, by round: by hand from ``PRESENT``."""
RATES = {client: 1 / inverse for client, inverse in INVERSE.items()}
ETA = 0.1

GATE = EpsilonGate(num_rounds=3, epsilon=0.5, warmup_fraction=0.0)
BY_LOSS = PowerOfChoice(loss_source="reported")  # all clients, as the fraction is 1
GIVEN = {rule.description.key: rule for rule in (GATE, BY_LOSS)}
Combination = tuple[str, str, str, str]

SELECTED = [*ALL_SELECTIONS]
WEIGHED = [*ALL_WEIGHTINGS]
CORRECTED = [NONE, *PARTICIPATIONS]
OPTIMIZERS = [*SERVER_OPTIMIZERS]


def find_refusal(selection: str, weighting: str, correction: str, optimizer: str) -> str | None:
    """Return the start of the error of a refused combination, None for an allowed one."""
    part = {"selection": selection, "participation": correction, "server_optimizer": optimizer}
    refused = [
        (one, f"the {kind} {row.rule.description.key}")
        for kind, row in (
            ("weighting", WEIGHTING_ROWS[weighting]),
            ("selection", SELECTION_ROWS[selection]),
        )
        for one in row.refused_with
        if one.contains(part[one.part])
    ]
    # A correction is built first, from the weighting alone.
    for one, rule in sorted(refused, key=lambda pair: pair[0].part != "participation"):
        return f"{one.part} must be {one.allowed} with {rule} ("
    return None


COMBINATIONS: list[Combination] = [*product(SELECTED, WEIGHED, CORRECTED, OPTIMIZERS)]
ALLOWED = [one for one in COMBINATIONS if find_refusal(*one) is None]
REFUSED = [one for one in COMBINATIONS if find_refusal(*one) is not None]
SAMPLE, REFUSED_SAMPLE = sample_cases(ALLOWED, 60), sample_cases(REFUSED, 40)
# FedAU by hand: client 1, absent in round 1 and present in round 2, has one interval of 2 rounds.
OMEGA: Mapping[str, tuple[Mapping[int, float], ...]] = {
    "none": ({}, {}, {}),
    "fedau": ({}, {}, {1: 2.0}),
    # Of n rounds, this one included, a client took part in t: n / t.
    "empirical": ({}, {1: 2.0}, {1: 1.5, 2: 1.5, 3: 1.5}),
    "known_statistics": (INVERSE, INVERSE, INVERSE),
}


def test_all_parts_of_the_settings_are_combined() -> None:
    """No part that can be chosen by name is missing, nor any combination."""
    not_combined = {"alone", "no_weight", CUSTOM}
    offered = [sorted(set(options(part)) - not_combined) for part in PARTS]
    assert offered == [sorted(SELECTED), sorted(WEIGHED), sorted(CORRECTED)]
    assert sorted(OPTIMIZERS) == sorted(set(options("server_optimizer")) - not_combined)
    assert len(ALLOWED) + len(REFUSED) == math.prod(
        map(len, (SELECTED, WEIGHED, CORRECTED, OPTIMIZERS))
    )


def test_a_sample_has_every_part() -> None:
    """The sample of a fast run covers every part too."""
    for all_combinations, part in ((ALLOWED, SAMPLE), (REFUSED, REFUSED_SAMPLE)):
        for position in range(4):
            assert {one[position] for one in part} == {one[position] for one in all_combinations}


def build_rules(selection: str, weighting: str, correction: str, optimizer: str) -> RuleSet:
    """Return the rules of a combination with the learning rate ``ETA``."""
    base = ALL_WEIGHTINGS[weighting](**WEIGHTING_ROWS[weighting].supplied)
    rates = {"probabilities": RATES} if correction == "known_statistics" else {}
    return RuleSet(
        GIVEN.get(selection) or ALL_SELECTIONS[selection](),
        build_corrected_weighting(base, correction, **rates),
        SERVER_OPTIMIZERS[optimizer].from_options({"learning_rate": ETA}, RunContext()),
    )


def train_client(
    client: int, task: TrainTask, arrays: NamedArrays, *, all_available: bool
) -> TrainResult:
    """Train by the script: unavailable, declined by the client's half of the gate, or updated."""
    turn = task.server_round - 1
    if client not in PRESENT[turn] and not all_available:
        return TrainResult(client, Status.UNAVAILABLE)
    loss = get_losses(turn)[client]
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


def get_losses(turn: int) -> FloatArray:
    return np.array([*LOSS[:3], LOSS_OF_3_IN_ROUND_3 if turn == 2 else LOSS[3], LOSS[4]])


def mark_clients(clients: Iterable[int]) -> FloatArray:
    """Return 1 for these clients and 0 for the others, shape (5,)."""
    return np.isin(np.arange(5), [*clients]).astype(np.float64)


def compute_expected_weights(
    combination: Combination, turn: int, mixing: FloatArray | None
) -> FloatArray:
    """Return c_k = numerator / denominator of all clients, shape (5,), from the rules' texts.

    D_k, F_k, w_k, Delta_k and omega_k in the texts are the script's; p_k is the mixing vector that
    the round decided.
    """
    _, name, correction, _ = combination
    rules = build_rules(*combination)
    selection, weighting = rules.selection, rules.weighting
    clients_by_text = {
        "all registered clients": mark_clients(range(5)),
        "the registered priority clients": mark_clients({0, 1}),
        "the priority clients and the others last known to be aligned": mark_clients(
            {0, 1} | ALIGNED[turn]
        ),
    }
    present = clients_by_text[selection.description.population] * (
        1.0 if name == "aaggff_s" else mark_clients(PRESENT[turn])
    )
    admitted = "the clients admitted in the round"
    clients_by_text |= {
        admitted: present,
        f"the priority clients among {admitted}": present * mark_clients({0, 1}),
    }
    loss, omega = (
        get_losses(turn),
        np.array([OMEGA[correction][turn].get(k, 1.0) for k in range(5)]),
    )
    p = np.zeros(5) if mixing is None else mixing
    factor = WEIGHTING_ROWS[name].factor
    assert factor is not None, "its row needs a factor"
    played = PlayedRound(DATA, loss, p, present, mark_clients({0, 1}), ECHO[turn], DELTA[turn])
    expected_formula, numerators = factor[0], factor[1](played)
    formula = re.sub(r"^(omega_k|\(1 / p_k\)) ?", "", weighting.traits.numerator) or "1"
    assert formula == expected_formula
    assert (formula != weighting.traits.numerator) == (correction != "none")
    amounts = {
        "the number of": np.ones(5),
        "the training data of": DATA,
        "the sum of p over": p,
        "the sum of the same over": numerators,
    }
    match = re.fullmatch(
        f"({'|'.join(amounts)}) ({'|'.join(clients_by_text)})(, which is 1)?", rules.denominator
    )
    assert match is not None
    total = float((amounts[match[1]] * clients_by_text[match[2]]).sum())
    if match[3]:
        assert total == pytest.approx(1.0)
    return np.asarray(present * omega * numerators / total)


def compute_fedawe_path() -> list[list[float]]:
    """Return the model after every round if each client continues from its last model."""
    devices = fedawe.Federation(MODEL["w"].tolist(), 5, server_lr=ETA)
    path = []
    for present in PRESENT:
        devices.run_round(present, lambda k, t, x: (np.array(x) + DELTA[t, k]).tolist())
        path.append(devices.w)
    return path


def compute_optimizer_path(optimizer: str, sums: list[FloatArray]) -> list[list[float]]:
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
    """c_k matches the rules' texts, and the model steps by sum_k c_k Delta_k."""
    _, weighting, _, optimizer = combination
    strategy = ComposedStrategy(build_rules(*combination), population=POPULATION)
    app = make_scripted_app(5, partial(train_client, all_available=weighting == "aaggff_s"))
    grid, arrays = make_grid(app, 5), encode_arrays(MODEL)
    # Also if no rule needs F(w_0): the priority clients thereby report their amounts of data.
    messages = strategy.configure_initial(arrays, grid)
    strategy.aggregate_initial(grid.send_and_receive(messages))
    sums, path = [], []
    for turn in range(3):
        arrays_after = train_round(strategy, grid, turn + 1, arrays)
        assert arrays_after is not None
        arrays = arrays_after
        report = strategy.step_result.report
        weight = np.zeros(5)
        weight[[d.client for d in report.decisions]] = [d.weight for d in report.decisions]
        expected = compute_expected_weights(combination, turn, report.mixing)
        np.testing.assert_allclose(weight, expected, rtol=1e-9)
        sums.append(weight @ DELTA[turn])
        path.append(decode_arrays(arrays_after)["w"])
    expected_path = (
        compute_fedawe_path() if weighting == "fedawe" else compute_optimizer_path(optimizer, sums)
    )
    np.testing.assert_allclose(path, expected_path, rtol=1e-9)


@pytest.mark.parametrize("combination", REFUSED_SAMPLE, ids="-".join)
def test_every_other_combination_is_refused_with_the_reason(combination: Combination) -> None:
    """Before any work, in one line: the part, the allowed values, and the reason."""
    with pytest.raises(ParameterError) as caught:
        build_rules(*combination)
    assert str(caught.value).startswith(str(find_refusal(*combination)))
    assert "\n" not in str(caught.value)


def test_a_fixed_denominator_does_not_depend_on_the_clients_of_the_round() -> None:
    """Its text never names the clients of the round if there is a correction."""
    for combination in ALLOWED:
        _, weighting, correction, _ = combination
        fixed = correction != "none" or weighting == "average_all"
        assert ("in the round" in build_rules(*combination).denominator) != fixed


# --- resuming ------------------------------------------------------------------------------------


NOTHING = (math.nan, math.nan, math.nan)


def run_rounds(rules: RuleSet, seed: int, written: Collection[int] = ()) -> list[dict[str, bytes]]:
    """Return weights, p and state of eight rounds, to the bit; clients join in any order.

    Before the rounds in ``written`` the state is saved and restored, with the clients of that time.
    """
    rng = np.random.default_rng(seed)
    there_from = rng.permutation([0, 0, 1, 2, 4])  # the round in which each client joins
    fixed = rules.weighting.traits.requires_fixed_population
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
        reports = replace(state.round_state.reports, available=frozenset(known))
        plan = rules.plan_round(t, population, reports)
        loss, updates = LOSS * rng.uniform(0.8, 1.2, 5), rng.normal(size=(5, 2))
        each = [
            make_unavailable_outcome(k)
            if k not in present
            else make_declined_outcome(k)
            if loss[k] > 2.0
            else make_trained_outcome(k, data=DATA[k], loss=loss[k])
            for k in plan.clients
        ]
        usable = [train_client.client for train_client in each if train_client.is_usable]
        decided = decide_round(
            rules,
            population,
            state.round_state,
            server_round=t + 1,
            plan=plan,
            objective=OBJECTIVE,
            outcomes=make_round_outcomes(*each, known=known, updates=updates[usable]),
        )
        update = {"w": np.asarray(decided.weight @ updates[usable])}
        total = float(decided.weight.sum())
        optimizer, model_after = apply_server_step(
            rules.server_optimizer, state.optimizer, model, update, total
        )
        assert model_after is not None
        model = model_after
        state = replace(state, round_state=decided.next_state, optimizer=optimizer)
        evaluations = [
            ClientEvaluation(k, population.get_priority_weight(k), DATA[k], loss[k], 0.5, *NOTHING)
            for k in sorted(present)
        ]
        state = state.with_evaluations(rules, evaluations)
        after = {**state.to_arrays(rules, None, np.array(known)), **model, "weight": decided.weight}
        found.append({name: array.tobytes() for name, array in after.items()})
    return found


@pytest.mark.parametrize("combination", SAMPLE, ids=" ".join)
def test_a_state_resumes_from_its_arrays(combination: Combination) -> None:
    """After any round, and with any clients: the state of a client stays with that client."""
    rules = build_rules(*combination)
    for seed in range(3):
        written = np.flatnonzero(np.random.default_rng(seed).random(8) < 0.5).tolist()
        assert run_rounds(rules, seed, written) == run_rounds(rules, seed)


# --- statistics ----------------------------------------------------------------------------------


WITH_STATISTICS: NamedArrays = {
    **MODEL,
    "norm.running_mean": np.zeros(2, np.float32),
    "norm.running_var": np.ones(2, np.float32),
    "norm.num_batches_tracked": np.array(3),
}


def train_with_statistics(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
    """Train by the script, with random statistics in every update."""
    turn = (task.server_round - 1) % 3
    result = train_client(client, replace(task, server_round=turn + 1), arrays, all_available=False)
    if result.arrays is None:
        return result
    rng = np.random.default_rng([client, task.server_round])
    statistics: NamedArrays = {
        "norm.running_mean": rng.normal(scale=30.0, size=2).astype(np.float32),
        "norm.running_var": rng.lognormal(-2.0, 4.0, size=2).astype(np.float32),
        "norm.num_batches_tracked": np.array(int(rng.integers(0, 10_000))),
    }
    return replace(result, arrays={**result.arrays, **statistics})


@pytest.mark.parametrize("remembers", [False, True], ids=["", "last updates"])
@pytest.mark.parametrize("combination", SAMPLE, ids=" ".join)
def test_statistics_stay_between_those_that_were_sent(
    combination: Combination, *, remembers: bool
) -> None:
    """No weight, learning rate, momentum, echo, projection or memory extrapolates them."""
    rules = build_rules(*combination)
    if remembers and rules.hooks.client_start is not None:
        with pytest.raises(ParameterError, match="memory must be None with fedawe"):
            replace(rules, memory=UpdateMemoryConfig())
        return
    fast = SERVER_OPTIMIZERS[combination[3]].from_options({"learning_rate": 3.0}, RunContext())
    rules = replace(
        rules,
        server_optimizer=fast,
        memory=UpdateMemoryConfig(steps_without_updates=True) if remembers else None,
    )
    sent: list[Mapping[str, Any]] = []

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        trained = train_with_statistics(client, task, arrays)
        sent.extend([] if trained.arrays is None else [trained.arrays])
        return trained

    strategy = ComposedStrategy(rules, population=POPULATION)
    grid, model = make_grid(make_scripted_app(5, fit, dict(enumerate(LOSS))), 2), WITH_STATISTICS
    for server_round in range(1, 8):
        sent.clear()
        after = train_round(strategy, grid, server_round, encode_arrays(model))
        if after is None:
            continue
        stepped = decode_arrays(after)
        for name in WITH_STATISTICS.keys() - MODEL.keys():
            values = np.stack([one[name] for one in (model, *sent)]).astype(np.float64)
            slack = 1e-6 * np.abs(values).max()
            assert (stepped[name] >= values.min(axis=0) - slack).all(), (name, server_round)
            assert (stepped[name] <= values.max(axis=0) + slack).all(), (name, server_round)
        assert stepped["norm.running_var"].min() >= 0.0
        model = stepped
