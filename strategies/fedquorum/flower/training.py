"""Turn the replies of a training round into the rules' inputs, and into the next model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import WARNING
from typing import Any

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray

from ..aggregation import inner_products, length, server_step
from ..composition import Rules
from ..errors import ParameterError
from ..memory import UpdateMemory
from ..privacy import Protection
from ..robustness import clipped
from ..round import NOT_FINITE, TOO_HEAVY, ClientAnswer, Round, RoundAnswers
from ..summation import combined_update
from ..types import FloatArray, Population
from ..virtual_clock import Clock, Closing, close
from .asked import Asked
from .codec import NORM_BIT, NamedArrays, TrainAnswer
from .communication import Communication
from .exchange import Exchange
from .replies import Answers
from .server_memory import Memory


def replied_in_time(
    asked: Asked,
    answers: Answers[TrainAnswer],
    exchange: Exchange,
    communication: Communication,
    clock: Clock,
    *,
    priority: frozenset[int],
) -> Closing:
    """Return the replies that were in time, and late replies to earlier rounds."""
    each = client_answers(asked, answers, exchange)
    late = exchange.note_late_replies(asked.server_round)
    if not communication.virtual_clock:
        return Closing(clock, each, late)
    return close(
        clock,
        asked.server_round,
        each,
        communication.quorum,
        priority=priority,
        deadline=communication.round_timeout,
    )


def client_answers(
    asked: Asked,
    answers: Answers[TrainAnswer],
    exchange: Exchange,
) -> tuple[ClientAnswer, ...]:
    """Return the answer of every client asked, ascending by client id."""
    each = []
    for client in sorted(asked.call.clients):
        answer = answers.judged.get(client) or exchange.client_answer(client, answers, None)
        note = answers.notes.get(client)
        each.append(answer if note is None else replace(answer, note=note))
    return tuple(each)


@dataclass(frozen=True)
class Clipped:
    """The answers of all clients asked, and whether each usable update needed no clipping."""

    each: tuple[ClientAnswer, ...]
    votes: tuple[bool, ...] = ()


def clip_privately(
    each: tuple[ClientAnswer, ...],
    answers: Answers[TrainAnswer],
    asked: Asked,
) -> Clipped:
    """Clip every usable update for differential privacy; each client has one vote on the norm."""
    protection = asked.protection
    if protection is None:
        return Clipped(each)
    judged = [_with_vote(answer, answers, protection) for answer in each]
    votes = []
    for answer in judged:
        if not answer.usable:
            continue
        part = answers.parts[answer.client]
        arrays, length = clipped(asked.model, part.arrays or {}, protection.norm)
        answers.parts[answer.client] = replace(part, arrays=arrays)
        needs_vote = protection.mechanism.needs_vote
        votes.append(part.norm_bit == 0 if needs_vote else length <= protection.norm)
    return Clipped(tuple(judged), tuple(votes))


def _with_vote(
    answer: ClientAnswer, answers: Answers[TrainAnswer], protection: Protection
) -> ClientAnswer:
    """Return the answer, failed if it has to say whether the client clipped and does not."""
    needs_vote = answer.usable and protection.mechanism.needs_vote
    if not needs_vote or answers.parts[answer.client].norm_bit in {0, 1}:
        return answer
    reason = f"{NORM_BIT} is missing: its update may not be clipped"
    return ClientAnswer(answer.client, "failed", reason, seconds=answer.seconds)


def round_answers(
    each: tuple[ClientAnswer, ...],
    asked: Asked,
    answers: Answers[TrainAnswer],
    exchange: Exchange,
) -> RoundAnswers:
    """Return the answers of a round in the form that the rules use."""
    usable = [answer.client for answer in each if answer.usable]
    return RoundAnswers(
        each,
        known=exchange.directory.known,
        gram=lambda: inner_products(asked.model, [answers.parts[k].arrays or {} for k in usable]),
        unknown=exchange.directory.unknown,
    )


@dataclass(frozen=True)
class Step:
    """The server's step: the model after it, None where it would not be finite.

    ``update_norm`` is |sum_k c_k Delta_k|, if the rules measure the updates' own norms.
    """

    model: NamedArrays | None
    optimizer: Any
    models: tuple[tuple[int, float, Mapping[str, NDArray[Any]]], ...]
    update_norm: float | None = None


def take_step(
    asked: Asked,
    answers: Answers[TrainAnswer],
    decided: Round,
    rules: Rules,
    optimizer: Any,
    *,
    memory: UpdateMemory | None,
) -> Step:
    """Combine the updates that count and move the model by them; nothing is remembered yet.

    In a private round the combined update gets noise, and statistics move by all of it: a divisor
    would tell how many clients took part.

    Parameters
    ----------
    asked : Asked
        The round.
    answers : Answers
        The updates, single ones and sums.
    decided : Round
        How much each counts.
    rules : Rules
        The rules, of which the server optimizer moves the model.
    optimizer : Any
        The server optimizer's state.
    memory : UpdateMemory, optional
        The clients' last updates.
    """
    weight_of = dict(zip(decided.clients, decided.weight.tolist(), strict=True))
    models = tuple(
        (client, weight, answers.parts[client].arrays or {})
        for client, weight in weight_of.items()
        if weight != 0.0 and answers.total is None
    )
    anchor: Mapping[str, FloatArray] | None = None
    update: Mapping[str, FloatArray]
    if asked.starts is not None and models:
        anchor, update = asked.starts.combine(asked.model, *_factored(decided, models))
    elif memory is None and not decided.report.empty:
        update = _combined(asked, answers, decided, models)
    elif memory is None:
        update = {name: np.zeros(array.shape) for name, array in asked.model.items()}
    else:
        update = memory.step(asked.model, models, len(decided.decided.responses.known))
    total = math.fsum(decided.weight.tolist())
    weights = decided.decided.weights
    measures = memory is None and weights is not None and weights.update_norm is not None
    norm = length(asked.model, update) if measures else None
    if anchor is not None:
        total = 1.0
    if asked.protection is not None:
        update, total = asked.protection.noised(update), 1.0
    mover = rules.optimizer_in(asked.server_round - 1)
    state, moved = server_step(mover, optimizer, asked.model, update, total, anchor=anchor)
    return Step(moved, state, models, norm)


def _factored(
    decided: Round, models: Sequence[tuple[int, float, Mapping[str, NDArray[Any]]]]
) -> tuple[list[tuple[int, float, Mapping[str, NDArray[Any]]]], float]:
    """Return each client's a_k with its model, and B."""
    factors, divisor = decided.factors
    factor_of = dict(zip(decided.clients, factors.tolist(), strict=True))
    return [(client, factor_of[client], arrays) for client, _, arrays in models], divisor


@dataclass(frozen=True)
class Moved:
    """The model after a round, None where it stays; the round, and the optimizer's state."""

    model: NamedArrays | None
    decided: Round
    optimizer: Any


def moved(
    asked: Asked,
    answers: Answers[TrainAnswer],
    decided: Round,
    optimizer: Any,
    *,
    memory: Memory,
    population: Population,
) -> Moved:
    """Take the server's step and remember the updates; a refused round changes nothing.

    With differential privacy the model moves in every round, by noise alone where nothing counts.
    """
    protection = asked.protection
    if protection is not None and not protection.bounds(decided.weight):
        decided = decided.refused(TOO_HEAVY)
    if decided.report.empty and not memory.moves_alone and protection is None:
        if asked.call.clients and not asked.call.keeps_model:
            log(
                WARNING, "Round %d: no update counted, the model stays the same", asked.server_round
            )
        return Moved(None, decided, optimizer)
    kept = memory.of(asked.model, population)
    step = take_step(asked, answers, decided, memory.rules, optimizer, memory=kept)
    if step.model is None:
        log(WARNING, "Round %d: %s and stays", asked.server_round, NOT_FINITE)
        return Moved(None, decided.refused(NOT_FINITE), optimizer)
    if kept is not None:
        kept.remember(asked.model, step.models)
    decided = replace(decided, report=replace(decided.report, update_norm=step.update_norm))
    return Moved(step.model, decided, step.optimizer)


def _combined(
    asked: Asked,
    answers: Answers[TrainAnswer],
    decided: Round,
    models: Sequence[tuple[int, float, Mapping[str, NDArray[Any]]]],
) -> dict[str, FloatArray]:
    """Return sum_k a_k Delta_k / B over single updates and the sums of nodes."""
    factors, divisor = decided.factors
    if answers.total is None or asked.proportions is None:
        singles, _ = _factored(decided, models)
        return combined_update(asked.model, [one[1:] for one in singles], divisor)
    data = decided.decided.responses.num_examples.tolist()
    known = [asked.proportions.factor(*one) for one in zip(decided.clients, data, strict=True)]
    if known != factors.tolist():
        raise ParameterError(
            "proportions", "to the bit the factors that weigh returns", known, repr(factors)
        )
    return answers.total.over(divisor)
