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
from ..privacy import Protection, check_model
from ..robustness import clipped
from ..round import NO_OBJECTIVE, NOT_FINITE, TOO_HEAVY, ClientAnswer, Round, RoundAnswers
from ..state import StateArrays
from ..summation import NOT_SUMMED, Grid, UpdateTotal, combined_update, fits
from ..types import Call, FloatArray, Objective, Population, Proportions
from ..virtual_clock import Clock, Closing, close
from .codec import NORM_BIT, NamedArrays, TrainAnswer, TrainRequest
from .communication import Communication
from .exchange import Connection, Exchange
from .replies import Answers, refuse_unusable_sums


@dataclass(frozen=True)
class Asked:
    """What the round in progress was started with."""

    server_round: int
    call: Call
    model: NamedArrays
    asked_at: Mapping[int, tuple[int, ...]]
    proportions: Proportions | None
    protection: Protection | None = None

    @property
    def grid(self) -> Grid:
        """What the updates of a round are rounded to where nodes may sum theirs."""
        return Grid.of(len(self.call.clients))

    def next_norm(self, votes: Sequence[bool]) -> float | None:
        """Return the clipping norm of the next round, None where updates are not clipped."""
        if self.protection is None:
            return None
        return self.protection.next_norm(votes, len(self.call.clients))


def protection_of(
    connection: Connection, rules: Rules, norm: float | None, model: NamedArrays
) -> Protection | None:
    """Return what makes a round private, None where nothing does.

    Parameters
    ----------
    connection : Connection
        How the strategy speaks, and with which clients.
    rules : Rules
        The strategy's rules, which bound what one update counts.
    norm : float, optional
        The clipping norm after the round before, None in the first round.
    model : dict of array
        The model of the round.

    Raises
    ------
    ParameterError
        If the model has whole numbers.
    """
    privacy = connection.communication.privacy
    if privacy is None:
        return None
    check_model(model)
    return privacy.at(norm, rules.largest_weight(len(connection.population.clients)))


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
    # A sum cannot be clipped client by client, and could mix late and timely clients.
    clips = communication.robustness.bounds or communication.privacy is not None
    if not sums or clips or communication.virtual_clock:
        return None
    return rules.proportions(weighting, call)


def train_requests(
    asked: Asked, objective: Objective | None, priority: frozenset[int]
) -> dict[int, TrainRequest]:
    """Return what each node is asked, by node; F, which is exact, is not told in private runs."""
    protection = asked.protection
    return {
        node: TrainRequest(
            asked.server_round,
            replace(asked.call, clients=clients),
            tuple(k in priority for k in clients),
            NO_OBJECTIVE if objective is None or protection is not None else objective,
            asked.proportions,
            terms=len(asked.call.clients),
            clipping_norm=None if protection is None else protection.told_norm,
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
    """Return what every client asked replied, ascending; clip what is too long.

    The arrays of usable updates are then in the order of the model's.
    """
    refuse_unusable_sums(answers, asked.model, asked.proportions, limits=exchange.limits)
    each = []
    for client in sorted(asked.call.clients):
        none_expected = asked.call.keeps_model or client in answers.summed
        model = None if none_expected else asked.model
        answer = exchange.client_answer(client, answers, model)
        if answer.usable and not _fits(answer, answers, asked):
            answer = ClientAnswer(client, "rejected", NOT_SUMMED, seconds=answer.seconds)
        if answer.usable:
            _put_in_order(client, answers, asked.model)
            _clip(answer, answers, asked.model, communication)
        note = answers.notes.get(client)
        each.append(answer if note is None else replace(answer, note=note))
    return tuple(each)


def _put_in_order(client: int, answers: Answers[TrainAnswer], model: NamedArrays) -> None:
    """Bring the arrays of a client into the order of the model's."""
    part = answers.parts[client]
    if part.arrays is not None:
        ordered = {name: part.arrays[name] for name in model}
        answers.parts[client] = replace(part, arrays=ordered)


@dataclass(frozen=True)
class Clipped:
    """What every client asked replied, and for each usable update whether it was short enough."""

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
    """Return what came back in a round, as the rules see it."""
    usable = [answer.client for answer in each if answer.usable]
    return RoundAnswers(
        each,
        known=exchange.directory.known,
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
        if weight != 0.0 and client not in answers.summed
    )
    if memory is None and not decided.report.empty:
        update = _combined(asked, answers, decided, models)
    elif memory is None:
        update = {name: np.zeros(array.shape) for name, array in asked.model.items()}
    else:
        update = memory.step(asked.model, models, len(decided.decided.responses.known))
    total = math.fsum(decided.weight.tolist())
    if asked.protection is not None:
        update, total = asked.protection.noised(update), 1.0
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
    """Take the server's step and remember the updates; a refused round changes nothing.

    With differential privacy the model moves in every round, by noise alone where nothing counts.
    """
    protection = asked.protection
    if protection is not None and not protection.bounds(decided.weight):
        decided = decided.refused(TOO_HEAVY)
    if decided.report.empty and not memory.moves_alone and protection is None:
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
