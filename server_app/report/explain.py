"""One decision in words: why a client was asked, what it answered, why its update got its weight.

The formulas are those of the rules, filled in with the numbers of the records.
"""

import math
from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import numpy as np

from conf.errors import RunError
from server_app.build import build_strategy
from server_app.report.replay import Recorded, Replayed, Row, UndecidableError, replay
from strategies.responses import response_range
from strategies.selection import EpsilonGate, PriorityOnly, Sampling
from strategies.types import FloatArray
from strategies.weighting import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFS,
    AverageAll,
    AverageParticipating,
    DataFraction,
    FedAU,
    FedMGDAPlus,
    KnownRates,
    NoWeight,
    PropFair,
    QFedAvg,
)
from strategies.weighting.exponentiated_gradient import base_weights


def explain(recorded: Recorded, client: int, number: int) -> tuple[str, ...]:
    """Return the lines that explain what became of a client in a round.

    Raises
    ------
    RunError
        If there is no such client or round, or the rules refuse what is recorded before it.
    """
    population, rounds = recorded.population, len(recorded.run.rounds)
    if client not in population.clients:
        raise RunError(
            f"--client must be the id of one of the run's {len(population.clients)} clients, got "
            f"{client}"
        )
    if not 1 <= number <= rounds:
        raise RunError(f"--round must be from 1 to {rounds}, the run's rounds, got {number}")
    try:
        for replayed in replay(recorded):
            if replayed.record.round == number:
                return tuple(_lines(recorded, replayed, client))
    except UndecidableError as error:
        raise RunError(
            f"round {error.number}: the rules refuse what is recorded: {error}"
        ) from None
    raise RunError(f"clients/ has no rows of round {number}")


def _lines(recorded: Recorded, replayed: Replayed, client: int) -> Iterator[str]:
    strategy = build_strategy(recorded.settings, recorded.population, recorded.rates)
    priority = client in recorded.population.priority
    yield (
        f"round {replayed.record.round}, client {client} "
        f"({'a' if priority else 'not a'} priority client), strategy "
        f"{recorded.settings.strategy.name}"
    )
    yield f"asked: {_asked(recorded, strategy.selection, replayed, client)}"
    row = next((row for row in replayed.rows if row["client"] == client), None)
    if row is None:
        return
    yield f"answered: {_answer(row)}"
    place = [own["client"] for own in replayed.usable].index(client) if _usable(row) else None
    if place is None:
        yield "weight: 0, as no update came that can be used"
        return
    if isinstance(strategy.selection, EpsilonGate):
        yield f"admitted: {_gate(replayed, place, row)}"
    else:
        share = replayed.admission.share[place]
        yield f"admitted: {_whole(share)}, as {recorded.settings.strategy.name} has no gate"
    if replayed.admission.share[place] == 0.0:
        yield f"weight: 0, as the update was refused; recorded {_n(row['weight'])}"
        return
    for line in weight_lines(strategy.weighting, replayed, place):
        yield f"weight: {line}"
    most = recorded.settings.robustness.max_weight
    if most is not None:
        yield f"weight: at most robustness.max_weight = {most:g}"
    yield f"weight recorded: {_n(row['weight'])}"


def _usable(row: Row) -> bool:
    return row["num_examples"] is not None


def _whole(share: float) -> str:
    return "whole" if share == 1.0 else f"a share of {_n(share)} of the update"


# --- who is asked, what came, what is admitted -------------------------------------------------


def _asked(recorded: Recorded, selection: Any, replayed: Replayed, client: int) -> str:
    t, population = replayed.record.round - 1, recorded.population
    priority = client in population.priority
    asked = client in replayed.call.clients
    if isinstance(selection, EpsilonGate) and t < selection.warmup:
        reason = (
            f"rounds 1 to {selection.warmup} are warm-up, in which only priority clients are asked"
        )
        if not priority:
            return f"no; {reason}"
    elif isinstance(selection, PriorityOnly):
        reason = "only priority clients are asked"
        if not priority:
            return f"no; {reason}"
    else:
        reason = "clients with and without priority are asked"
    sampling: Sampling = selection.sampling
    draws = replayed.call.draws
    seed = f'(seed {sampling.seed}, "selection", round {t + 1})'
    if priority and draws is not None:
        count = draws.count.get(client, 0)
        return (
            f"{'yes' if asked else 'no'}; {reason}; drawn {count} times of "
            f"{sum(draws.count.values())}, with probability D_k / {_n(draws.priority_data)} each, "
            f"from {seed}"
        )
    if sampling.fraction < 1.0:
        return (
            f"{'yes' if asked else 'no'}; {reason}, a fraction {sampling.fraction:g} of each "
            f"group drawn from {seed}"
        )
    return f"yes; {reason}, all of them"


def _answer(row: Row) -> str:
    reason = "" if row["reason"] is None else f": {row['reason']}"
    if row["status"] == "silent":
        return "silent; its own half of the gate did not hold, and of its loss it tells nothing"
    if not _usable(row):
        return f"{row['status']}{reason}"
    measured = [
        f"{name} {_n(row[key])}"
        for name, key in (("loss F_k", "loss"), ("accuracy", "accuracy"))
        if row[key] is not None
    ]
    numbers = ", ".join([f"D_k = {row['num_examples']}", *measured])
    return f"an update, with {numbers} of the model it received"


def _gate(replayed: Replayed, place: int, row: Row) -> str:
    call, record = replayed.call, replayed.record
    share = replayed.admission.share[place]
    own = float(replayed.responses.priority_weight[place])
    if own == 1.0:
        return "whole, as it is a priority client's"
    if share == 0.0 and not replayed.responses.priority.any():
        return f"no; {replayed.admission.reason[place]}"
    epsilon = call.epsilon or 0.0
    if epsilon == 0.0:
        inside = "the gate is closed (eps_t = 0)"
    else:
        accuracy = call.criterion == "accuracy"
        symbol, overall = ("acc", record.global_accuracy) if accuracy else ("F", record.global_loss)
        value = _nan(row[call.criterion])
        inside = _half(symbol, value, overall, epsilon if accuracy else -epsilon)
        if own > 0.0:  # such a client always trains: the server decides its half as well
            inside += " and " + _half(symbol, value, overall, -epsilon if accuracy else epsilon)
    if own > 0.0:
        return (
            f"share lambda_k + (1 - lambda_k) [inside] = {_n(share)}, lambda_k = {own:g}; {inside}"
        )
    return f"{'whole' if share > 0 else 'no'}; {inside}"


def _half(symbol: str, value: float, overall: float, shift: float) -> str:
    """Return one half of the gate: value <= overall + eps or value >= overall - eps, or not."""
    bound = overall + shift
    sign = ("<=" if value <= bound else ">") if shift > 0 else (">=" if value >= bound else "<")
    return (
        f"{symbol}_k = {_n(value)} {sign} {symbol} {'+' if shift > 0 else '-'} eps_t = "
        f"{_n(overall)} {'+' if shift > 0 else '-'} {abs(shift):g} = {_n(bound)}"
    )


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


# --- the weight, rule by rule -------------------------------------------------------------------


@singledispatch
def weight_lines(rule: Any, replayed: Replayed, place: int) -> Iterator[str]:
    """Yield the weight's formula with its numbers.

    Parameters
    ----------
    rule : Any
        The weighting.
    replayed : Replayed
        The round.
    place : int
        Where the client is among the usable updates.
    """
    if replayed.weights is not None:
        yield f"c_k = {_n(replayed.weights.weight[place])} by {rule!r}"


@weight_lines.register
def _(_rule: DataFraction, replayed: Replayed, place: int) -> Iterator[str]:
    responses, share, draws = replayed.responses, replayed.admission.share, replayed.call.draws
    weights = replayed.weights
    if weights is None:
        return
    c, mass = weights.weight[place], weights.inclusion_mass
    examples = responses.num_examples[place]
    if draws is not None:
        drawn = sum(draws.count.get(k, 0) for k in responses.client.tolist())
        if responses.priority[place]:
            count = draws.count.get(int(responses.client[place]), 0)
            yield f"c_k = n_k / |S| / (1 + A) = {count} / {drawn} / (1 + {_n(mass)}) = {_n(c)}"
        else:
            p = examples / draws.priority_data
            yield (
                f"p_k = D_k / sum of D_i over P = {_n(examples)} / {_n(draws.priority_data)} = "
                f"{_n(p)}"
            )
            yield f"c_k = p_k / (1 + A) = {_n(p)} / (1 + {_n(mass)}) = {_n(c)}"
        return
    total = float((share * responses.num_examples).sum())
    base = float((responses.priority_weight * responses.num_examples).sum())
    own = f"s_k D_k = {_n(share[place])} x {_n(examples)}"
    yield f"c_k = s_k D_k / sum of s_i D_i; {own}, the sum is {_n(total)}: c_k = {_n(c)}"
    if mass is not None:
        p = examples / base
        weighted = ((responses.priority_weight > 0) & (responses.priority_weight < 1)).any()
        terms = "lambda_i D_i" if weighted else "D_i"
        yield (
            f"the same as s_k p_k / (1 + A), with p_k = D_k / sum of {terms} over P = "
            f"{_n(examples)} / {_n(base)} = {_n(p)} and A = {_n(mass)}"
        )


@weight_lines.register
def _(rule: FedAU, replayed: Replayed, place: int) -> Iterator[str]:
    state, client = replayed.state, int(replayed.responses.client[place])
    i = int(np.searchsorted(state.client, client))
    yield (
        f"omega_n is the mean length of the M = {state.intervals[i]} intervals that ended before "
        f"this round (K = {rule.cutoff:g}): {_n(state.omega[i])}"
        + (" (no interval yet, so 1)" if state.intervals[i] == 0 else "")
    )
    yield from _corrected_line(rule, replayed, place, state.omega[i])


@weight_lines.register
def _(_rule: AverageParticipating, replayed: Replayed, place: int) -> Iterator[str]:
    total = float(replayed.admission.share.sum())
    yield f"c_n = 1 / |S_t| = 1 / {_n(total)} = {_n(replayed.admission.share[place] / total)}"


@weight_lines.register
def _(_rule: AverageAll, replayed: Replayed, place: int) -> Iterator[str]:
    share = replayed.admission.share[place]
    n = float(replayed.responses.coverage.sum())
    yield f"c_n = s_n / N = {_n(share)} / {_n(n)} = {_n(share / n)}"


@weight_lines.register
def _(rule: KnownRates, replayed: Replayed, place: int) -> Iterator[str]:
    client = int(replayed.responses.client[place])
    omega = rule.omega.get(client, 1.0)
    yield f"omega_n = {'1 / p_n' if client in rule.omega else '1'} = {_n(omega)}"
    yield from _corrected_line(rule, replayed, place, omega)


def _corrected_line(
    rule: FedAU | KnownRates, replayed: Replayed, place: int, omega: float
) -> Iterator[str]:
    """Yield how omega multiplies the weight over a fixed population."""
    if replayed.weights is None:
        return
    weight = replayed.weights.weight[place]
    yield (
        f"c_n = {rule.factor} / ({replayed.divisor}) = {_n(omega)} x {_n(weight / omega)} = "
        f"{_n(weight)}"
    )


@weight_lines.register
def _(_rule: NoWeight, _replayed: Replayed, _place: int) -> Iterator[str]:
    yield "c_k = 0: every client keeps its own model, nothing is aggregated"


@weight_lines.register
def _(rule: AAggFFS, replayed: Replayed, place: int) -> Iterator[str]:
    size = len(replayed.state.client)
    c1, c2 = response_range(rule.c1, rule.c2, 1.0 / size)
    yield from _response_line(rule.cdf, c1, c2, replayed, place)
    i = _position(replayed, place)
    before, after = replayed.state, replayed.following
    yield (
        "p = argmin over the simplex of <b, p> + p' H p / 2, with b_k = "
        f"{_n(after.linear[i])} and H_kk = {_n(after.quadratic[i, i])} after this round's response:"
        f" p_k = {_n(after.mixing[i])}, before it {_n(before.mixing[i])}"
    )
    yield from _restricted_line(after.mixing, replayed, place)


@weight_lines.register
def _(rule: AAggFFD, replayed: Replayed, place: int) -> Iterator[str]:
    size = len(replayed.state.client)
    fraction = len(replayed.call.clients) / size
    c1, c2 = response_range(rule.c1, rule.c2, fraction)
    yield from _response_line(rule.cdf, c1, c2, replayed, place)
    weights, i = replayed.weights, _position(replayed, place)
    if weights is None or weights.estimate is None:
        return
    yield (
        f"doubly robust r~_k = (1 - 1/C) rbar + r_k / C = {_n(weights.estimate[i])} with C = "
        f"{_n(fraction)}"
    )
    gradient = replayed.following.gradient[i]
    lipschitz = c2 / (1 + c1) + 2 * (c2 - c1) / (fraction * (1 + c1))
    step = math.sqrt(math.log(size) / (replayed.following.rounds + 1)) / lipschitz
    yield (
        f"p_k ~ exp(-sqrt(log K / (m + 1)) / L sum of g_k) = exp(-{_n(step)} x {_n(gradient)}), "
        f"normalised over K = {size}: p_k = {_n(replayed.following.mixing[i])}"
    )
    yield from _restricted_line(replayed.following.mixing, replayed, place)


@weight_lines.register
def _(rule: QFedAvg, replayed: Replayed, place: int) -> Iterator[str]:
    loss = replayed.responses.loss[place]
    formula = f"q log F_k = {rule.q:g} x log {_n(loss)}"
    if rule.lipschitz is None:
        yield from _prior_lines(formula, replayed, place)
        return
    row, weights = replayed.usable[place], replayed.weights
    if weights is None:
        return
    bend = rule.q / loss * (rule.lipschitz * row["update_norm"]) ** 2 + rule.lipschitz
    w = base_weights(replayed.call, replayed.responses, replayed.admission.share)[place]
    yield (
        f"c_k = w_k F_k^q L / sum of w_j h_j, h_k / F_k^q = q |L Delta_k|^2 / F_k + L = "
        f"{_n(bend)} with w_k = {_n(w)}, F_k = {_n(loss)}, q = {rule.q:g}, L = {rule.lipschitz:g}, "
        f"|Delta_k| = {_n(row['update_norm'])}: c_k = {_n(weights.weight[place])}"
    )


@weight_lines.register
def _(rule: TERM, replayed: Replayed, place: int) -> Iterator[str]:
    loss = replayed.responses.loss[place]
    yield from _prior_lines(f"lambda F_k = {rule.tilt:g} x {_n(loss)}", replayed, place)


@weight_lines.register
def _(rule: PropFair, replayed: Replayed, place: int) -> Iterator[str]:
    loss = replayed.responses.loss[place]
    formula = (
        f"-log max(M - F_k, {rule.guard:g}) = -log max({rule.bound:g} - {_n(loss)}, {rule.guard:g})"
    )
    yield from _prior_lines(formula, replayed, place)


@weight_lines.register
def _(rule: AFL, replayed: Replayed, place: int) -> Iterator[str]:
    i, loss = _position(replayed, place), replayed.responses.loss[place]
    before, after = replayed.state.mixing[i], replayed.following.mixing[i]
    moved = before + rule.step_size * loss
    yield (
        f"p_k + gamma F_k = {_n(before)} + {rule.step_size:g} x {_n(loss)} = {_n(moved)}, "
        f"projected onto the simplex of those heard: p_k = {_n(after)}"
    )
    yield from _restricted_line(replayed.following.mixing, replayed, place)


@weight_lines.register
def _(rule: FedMGDAPlus, replayed: Replayed, place: int) -> Iterator[str]:
    row = replayed.usable[place]
    w = base_weights(replayed.call, replayed.responses, replayed.admission.share)[place]
    yield (
        "p = argmin |sum of p_i Delta_i / |Delta_i||^2 over the simplex with |p_i - w_i| <= "
        f"{rule.deviation:g}: p_k = {_n(row['mixing'])}, w_k = {_n(w)}; the inner products of the "
        "updates that decide it are not in the records"
    )
    yield f"c_k = p_k / |Delta_k| = {_n(row['mixing'])} / {_n(row['update_norm'])}"


def _position(replayed: Replayed, place: int) -> int:
    client = int(replayed.responses.client[place])
    return int(np.searchsorted(replayed.state.client, client))


def _response_line(cdf: str, c1: float, c2: float, replayed: Replayed, place: int) -> Iterator[str]:
    counts = replayed.admission.share > 0
    losses = replayed.responses.loss[counts]
    mean = float(losses[np.isfinite(losses)].mean())
    loss = replayed.responses.loss[place]
    weights = replayed.weights
    if weights is None or weights.response is None:
        return
    yield (
        f"r_k = C1 + (C2 - C1) {cdf}(F_k / mean F) = {_n(c1)} + {_n(c2 - c1)} x {cdf}({_n(loss)} / "
        f"{_n(mean)}) = {_n(weights.response[place])}"
    )


def _restricted_line(mixing: FloatArray, replayed: Replayed, place: int) -> Iterator[str]:
    responses, share = replayed.responses, replayed.admission.share
    own = mixing[np.searchsorted(replayed.state.client, responses.client)]
    total = float(np.where(np.isfinite(responses.loss), share * own, 0.0).sum())
    weights = replayed.weights
    if weights is not None:
        yield (
            f"c_k = p_k / sum of p over those heard = {_n(own[place])} / {_n(total)} = "
            f"{_n(weights.weight[place])}"
        )


def _prior_lines(formula: str, replayed: Replayed, place: int) -> Iterator[str]:
    """Yield the lines of c_i = w_i exp(r_i) / sum of w_j exp(r_j)."""
    weights = replayed.weights
    if weights is None or weights.response is None:
        return
    counts = np.isfinite(replayed.responses.loss)
    share = np.where(counts, replayed.admission.share, 0.0)
    base = base_weights(replayed.call, replayed.responses, share)
    response = weights.response - np.max(weights.response[counts])
    total = float((base[counts] * np.exp(response[counts])).sum())
    yield f"r_k = {formula} = {_n(weights.response[place])}"
    yield (
        "c_k = w_k exp(r_k - max r) / sum of w_j exp(r_j - max r) = "
        f"{_n(base[place])} x {_n(math.exp(response[place]))} / {_n(total)} = "
        f"{_n(weights.weight[place])}"
    )


def _n(value: Any) -> str:
    """Return a number in words, to six digits."""
    return "null" if value is None else f"{float(value):.6g}"
