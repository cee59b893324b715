"""From the replies of a round's training to what the rules see, and to the model after it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common.logger import log

from ..aggregation import inner_products, server_step
from ..composition import LastUpdates, Rules
from ..errors import StateError
from ..memory import UpdateMemory
from ..round import NO_OBJECTIVE, NOT_FINITE, ClientAnswer, Round, RoundAnswers
from ..state import StateArrays
from ..summation import NOT_SUMMED, Grid, UpdateTotal, combined_update, fits
from ..types import Call, FloatArray, Objective, Population, Proportions
from ..virtual_clock import Clock, Closing, close
from .codec import NamedArrays, TrainAnswer, TrainRequest
from .communication import Communication
from .exchange import Exchange
from .replies import Answers, refuse_unusable_sums


@dataclass(frozen=True)
class Asked:
    """What the round in progress was started with."""

    server_round: int
    call: Call
    model: NamedArrays
    asked_at: Mapping[int, tuple[int, ...]]
    proportions: Proportions | None

    @property
    def grid(self) -> Grid:
        """What the updates of a round are rounded to where nodes may sum theirs."""
        return Grid.of(len(self.call.clients))


@dataclass
class Memory:
    """The clients' last updates, made when first needed; none where no rule keeps them."""

    kept: LastUpdates | None
    updates: UpdateMemory | None = None

    @property
    def moves_alone(self) -> bool:
        """Whether the model moves in a round without any update."""
        return self.kept is not None and self.kept.moves_alone

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return 0 if self.updates is None else self.updates.nbytes

    def of(self, model: NamedArrays, population: Population) -> UpdateMemory | None:
        """Return the memory, with room for all clients."""
        if self.kept is None:
            return None
        if self.updates is None:
            folder = self.kept.memory_dir
            path = None if folder is None else Path(folder)
            self.updates = UpdateMemory(population.clients, model, path)
        self.updates.grow(population.clients)
        return self.updates

    def restore(self, updates: StateArrays, model: NamedArrays, population: Population) -> None:
        """Go on from the updates of a checkpoint.

        Raises
        ------
        StateError
            If no rule keeps them.
        """
        memory = self.of(model, population)
        if memory is None:
            raise StateError("'memory' is of a strategy that keeps the clients' updates")
        memory.restore(updates)


def summing(
    rules: Rules, communication: Communication, weighting: Any, call: Call
) -> Proportions | None:
    """Return what nodes may add up their clients' updates by, None if they may not."""
    sums = communication.partial_aggregation and communication.follows_protocol
    # A sum could mix late and timely clients.
    if not sums or communication.robustness.bounds or communication.virtual_clock:
        return None
    return rules.proportions(weighting, call)


def train_requests(
    asked: Asked, objective: Objective | None, priority: frozenset[int]
) -> dict[int, TrainRequest]:
    """Return what each node is asked, by node."""
    return {
        node: TrainRequest(
            asked.server_round,
            replace(asked.call, clients=clients),
            tuple(k in priority for k in clients),
            objective or NO_OBJECTIVE,
            asked.proportions,
            terms=len(asked.call.clients),
        )
        for node, clients in asked.asked_at.items()
    }


def replied_in_time(
    asked: Asked,
    answers: Answers[TrainAnswer],
    exchange: Exchange,
    communication: Communication,
    clock: Clock,
    *,
    priority: frozenset[int],
) -> Closing:
    """Return who replied in time, and what came late of earlier rounds."""
    each = client_answers(asked, answers, exchange, communication)
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
    communication: Communication,
) -> tuple[ClientAnswer, ...]:
    """Return what every client asked replied, ascending; clip what is too long."""
    refuse_unusable_sums(answers, asked.model, asked.proportions, limits=exchange.limits)
    each = []
    for client in sorted(asked.call.clients):
        none_expected = asked.call.keeps_model or client in answers.summed
        model = None if none_expected else asked.model
        answer = exchange.client_answer(client, answers, model)
        if answer.usable and not _fits(answer, answers, asked):
            answer = ClientAnswer(client, "rejected", NOT_SUMMED, seconds=answer.seconds)
        if answer.usable:
            _clip(answer, answers, asked.model, communication)
        note = answers.notes.get(client)
        each.append(answer if note is None else replace(answer, note=note))
    return tuple(each)


def round_answers(
    each: tuple[ClientAnswer, ...],
    asked: Asked,
    answers: Answers[TrainAnswer],
    exchange: Exchange,
) -> RoundAnswers:
    """Return what came back in a round, as the rules see it."""
    usable = [answer.client for answer in each if answer.usable]
    return RoundAnswers(
        each,
        known=np.array(exchange.directory.known, dtype=np.int64),
        gram=lambda: inner_products(asked.model, [answers.parts[k].arrays or {} for k in usable]),
        unknown=exchange.directory.unknown,
    )


def _fits(answer: ClientAnswer, answers: Answers[TrainAnswer], asked: Asked) -> bool:
    """Return whether a single update fits the grid of a round in which nodes may sum theirs."""
    arrays = answers.parts[answer.client].arrays
    if asked.proportions is None or arrays is None:
        return True
    factor = asked.proportions.factor(answer.client, answer.num_examples or 0.0)
    return factor == 0.0 or fits(asked.model, arrays, asked.grid.limit / factor)


def _clip(
    answer: ClientAnswer,
    answers: Answers[TrainAnswer],
    model: NamedArrays,
    communication: Communication,
) -> None:
    part = answers.parts[answer.client]
    if part.arrays is None:
        return
    arrays, note = communication.robustness.clip(model, part.arrays)
    if note is not None:
        answers.parts[answer.client] = replace(part, arrays=arrays)
        answers.note(answer.client, note)


@dataclass(frozen=True)
class Step:
    """The server's step: the model after it, None where it would not be finite."""

    model: NamedArrays | None
    optimizer: Any
    models: tuple[tuple[int, float, NamedArrays], ...]


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
        if weight != 0.0 and client not in answers.summed
    )
    if memory is None:
        update = _combined(asked, answers, decided, models)
    else:
        update = memory.step(asked.model, models, len(decided.decided.responses.known))
    total = math.fsum(decided.weight.tolist())
    state, moved = server_step(rules.server_optimizer, optimizer, asked.model, update, total)
    return Step(moved, state, models)


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
    rules: Rules,
    optimizer: Any,
    *,
    memory: Memory,
    population: Population,
) -> Moved:
    """Take the server's step and remember the updates; a refused round changes nothing."""
    if decided.report.empty and not memory.moves_alone:
        if asked.call.clients and not asked.call.keeps_model:
            log(WARNING, "Round %d: no update counted, the model stays", asked.server_round)
        return Moved(None, decided, optimizer)
    kept = memory.of(asked.model, population)
    step = take_step(asked, answers, decided, rules, optimizer, memory=kept)
    if step.model is None:
        log(WARNING, "Round %d: %s and stays", asked.server_round, NOT_FINITE)
        return Moved(None, decided.refused(NOT_FINITE), optimizer)
    if kept is not None:
        kept.remember(asked.model, step.models)
    return Moved(step.model, decided, step.optimizer)


def _combined(
    asked: Asked,
    answers: Answers[TrainAnswer],
    decided: Round,
    models: Sequence[tuple[int, float, NamedArrays]],
) -> dict[str, FloatArray]:
    """Return sum_k a_k Delta_k / B over single updates and the sums of nodes."""
    factors, divisor = decided.factors
    factor_of = dict(zip(decided.clients, factors.tolist(), strict=True))
    singles = [(factor_of[client], arrays) for client, _, arrays in models]
    if asked.proportions is None:
        return combined_update(asked.model, singles, divisor)
    total = UpdateTotal(asked.model, asked.grid)
    for factor, arrays in singles:
        total.add_model(factor, arrays)
    for node_sum in answers.sums.values():
        if any(factor_of.get(client) for client in node_sum.clients):
            total.add_sums(node_sum.updates)
    return total.over(divisor)
