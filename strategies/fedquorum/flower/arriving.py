"""Validate every reply of a training round as it arrives, and add up the updates."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from flwr.app import Message, RecordDict

from ..round import ClientAnswer
from ..scratch import ReplyStore
from ..summation import NOT_SUMMED, UpdateTotal
from ..types import Proportions
from .asked import Asked
from .codec import TrainAnswer, without_arrays
from .communication import Communication
from .exchange import Exchange
from .replies import Answers, Intake, WeightedSum, refuse_unusable_sum


@dataclass
class Arriving(Intake[TrainAnswer]):
    """Judges the updates of a round as they come; adds them up where its weights are known.

    What was added or cannot be used is dropped, so that memory does not grow with the number of
    clients. Where the weights need all replies, these are kept in a ``ReplyStore``.

    Parameters
    ----------
    asked : Asked
        The round.
    exchange : Exchange
        Which says what became of each client.
    communication : Communication
        The strategy's.
    """

    asked: Asked
    exchange: Exchange
    communication: Communication
    total: UpdateTotal | None = field(init=False, default=None)
    _store: ReplyStore = field(init=False)

    def __post_init__(self) -> None:
        self._store = ReplyStore(self.communication.reply_memory)
        if self.asked.proportions is not None:
            self.total = UpdateTotal(self.asked.model, self.asked.bins)

    def told(self, content: RecordDict) -> RecordDict:
        """Return the metrics alone, or all of the reply where they are made of all."""
        return content if self.communication.reads_replies else without_arrays(content)

    def take(self, node: int, asked: Sequence[int], answers: Answers[TrainAnswer]) -> None:
        """Validate a node's reply for its clients."""
        node_sum = answers.sums.get(node)
        summed: tuple[int, ...] = ()
        if node_sum is not None:
            self._refuse_unusable(node_sum, answers)
            summed = node_sum.clients
        there = [client for client in asked if client in answers.parts]
        for client in there:
            answers.judged[client] = self._judged(client, answers, in_sum=client in summed)
        if self.total is None or self.asked.proportions is None:
            _drop(node, [client for client in there if not answers.judged[client].usable], answers)
            return
        factors = _factors(self.asked.proportions, there, answers)
        _add(self.total, factors, node_sum, answers)
        _drop(node, there, answers)

    def _refuse_unusable(self, node_sum: WeightedSum, answers: Answers[TrainAnswer]) -> None:
        proportions = self.asked.proportions if self.asked.nodes_sum else None
        limits = self.exchange.limits
        model, bins = self.asked.model, self.asked.bins
        refuse_unusable_sum(node_sum, answers, model, proportions, limits=limits, bins=bins)

    def _judged(self, client: int, answers: Answers[TrainAnswer], *, in_sum: bool) -> ClientAnswer:
        """Return what a client replied; a usable update is then clipped, and like the model."""
        model = None if self.asked.call.keeps_model or in_sum else self.asked.model
        answer = self.exchange.client_answer(client, answers, model)
        if not answer.usable:
            return answer
        self._keep(client, answers)
        if self._fits(answer, answers.parts[client]):
            return answer
        return ClientAnswer(client, "rejected", NOT_SUMMED, seconds=answer.seconds)

    def _keep(self, client: int, answers: Answers[TrainAnswer]) -> None:
        """Bring an update into the order of the model's, and clip it if it is too long.

        Where all are needed it may go to a file. Only usable ones do, which have the model's size.
        """
        part, model = answers.parts[client], self.asked.start_of(client)
        if part.arrays is None:
            return
        ordered = {name: part.arrays[name] for name in model}
        if self.total is None and not self.communication.reads_replies:
            ordered = self._store.kept(ordered)
        arrays, note = self.communication.robustness.clip(model, ordered)
        answers.parts[client] = replace(part, arrays=arrays)
        if note is not None:
            answers.note(client, note)

    def _fits(self, answer: ClientAnswer, part: TrainAnswer) -> bool:
        """Return whether a single update can be added, where updates are added up as they come."""
        if self.total is None or self.asked.proportions is None or part.arrays is None:
            return True
        factor = self.asked.proportions.factor(answer.client, answer.num_examples or 0.0)
        return self.total.fits(factor, part.arrays)


def received(
    replies: Iterable[Message], asked: Asked, exchange: Exchange, communication: Communication
) -> Answers[TrainAnswer]:
    """Return the nodes' replies to train messages, by client."""
    arriving = Arriving(asked, exchange, communication)
    answers = exchange.train_answers(
        replies, asked.asked_at, asked.server_round, asked.model, arriving
    )
    answers.total = arriving.total
    return answers


def _factors(
    proportions: Proportions, clients: Sequence[int], answers: Answers[TrainAnswer]
) -> dict[int, float]:
    """Return a_k of the clients whose updates can be used."""
    usable = [answers.judged[client] for client in clients if answers.judged[client].usable]
    return {one.client: proportions.factor(one.client, one.num_examples or 0.0) for one in usable}


def _add(
    total: UpdateTotal,
    factors: dict[int, float],
    node_sum: WeightedSum | None,
    answers: Answers[TrainAnswer],
) -> None:
    """Add the usable updates of a node, each alone or all as the sum that it sent."""
    for client, factor in factors.items():
        arrays = answers.parts[client].arrays
        if arrays is not None and factor != 0.0:
            total.add_model(factor, arrays)
    if node_sum is not None and any(map(factors.get, node_sum.clients)):
        total.add_sums(node_sum.updates)


def _drop(node: int, clients: Sequence[int], answers: Answers[TrainAnswer]) -> None:
    """Forget the arrays of a node's reply, but not whose updates it summed."""
    for client in clients:
        answers.parts[client] = replace(answers.parts[client], arrays=None)
    if node in answers.sums:
        answers.sums[node] = replace(answers.sums[node], updates={})
