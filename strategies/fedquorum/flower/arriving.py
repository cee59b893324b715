"""Validate every reply of a training round as it arrives, and add up the updates."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from flwr.app import Message, RecordDict

from ..exact_sum import UNSUMMABLE_REASON, ExactAccumulator
from ..round import ClientOutcome
from ..scratch import ReplyStore
from ..types import KnownWeights
from .asked import RoundContext
from .codec import TrainResult, drop_arrays
from .communication import NativeProtocol
from .exchange import NodeSession
from .replies import NodeSum, ReplyHandler, ReplyResults, reject_unusable_sum


@dataclass
class UpdateReceiver(ReplyHandler[TrainResult]):
    """Judges the updates of a round as they come; adds them up where its weights are known.

    What was added or cannot be used is dropped, so that memory does not grow with the number of
    clients. Where the weights need all replies, these are kept in a ``ReplyStore``.

    Parameters
    ----------
    context : Asked
        The round.
    session : Exchange
        Which says what became of each client.
    communication : Communication
        The strategy's.
    """

    context: RoundContext
    session: NodeSession
    communication: NativeProtocol
    total: ExactAccumulator | None = field(init=False, default=None)
    _store: ReplyStore = field(init=False)

    def __post_init__(self) -> None:
        self._store = ReplyStore(self.communication.reply_memory)
        if self.context.known_weights is not None:
            self.total = ExactAccumulator(self.context.model, self.context.bins)

    def trim_reply(self, content: RecordDict) -> RecordDict:
        """Return the metrics alone, or all of the reply where they are made of all."""
        return content if self.communication.needs_full_replies else drop_arrays(content)

    def handle(
        self, node: int, selected: Sequence[int], results: ReplyResults[TrainResult]
    ) -> None:
        """Validate a node's reply for its clients."""
        node_sum = results.node_sums.get(node)
        summed: tuple[int, ...] = ()
        if node_sum is not None:
            self._reject_unusable_sum(node_sum, results)
            summed = node_sum.clients
        there = [client for client in selected if client in results.by_client]
        for client in there:
            results.outcomes[client] = self._validate_update(
                client, results, in_sum=client in summed
            )
        if self.total is None or self.context.known_weights is None:
            _drop_arrays(
                node,
                [client for client in there if not results.outcomes[client].is_usable],
                results,
            )
            return
        factors = _compute_numerators(self.context.known_weights, there, results)
        _add_updates(self.total, factors, node_sum, results)
        _drop_arrays(node, there, results)

    def _reject_unusable_sum(self, node_sum: NodeSum, results: ReplyResults[TrainResult]) -> None:
        proportions = self.context.known_weights if self.context.nodes_aggregate else None
        limits = self.session.limits
        model, bins = self.context.model, self.context.bins
        reject_unusable_sum(node_sum, results, model, proportions, limits=limits, bins=bins)

    def _validate_update(
        self, client: int, results: ReplyResults[TrainResult], *, in_sum: bool
    ) -> ClientOutcome:
        """Return what a client replied; a usable update is then clipped, and like the model."""
        model = None if self.context.plan.trains_local_model or in_sum else self.context.model
        answer = self.session.get_client_outcome(client, results, model)
        if not answer.is_usable:
            return answer
        self._store_update(client, results)
        if self._can_add(answer, results.by_client[client]):
            return answer
        return ClientOutcome(client, "rejected", UNSUMMABLE_REASON, seconds=answer.seconds)

    def _store_update(self, client: int, results: ReplyResults[TrainResult]) -> None:
        """Bring an update into the order of the model's, and clip it if it is too long.

        Where all are needed it may go to a file. Only usable ones do, which have the model's size.
        """
        part, model = results.by_client[client], self.context.get_start_model(client)
        if part.arrays is None:
            return
        ordered = {name: part.arrays[name] for name in model}
        if self.total is None and not self.communication.needs_full_replies:
            ordered = self._store.store(ordered)
        arrays, note = self.communication.robustness.clip(model, ordered)
        results.by_client[client] = replace(part, arrays=arrays)
        if note is not None:
            results.note(client, note)

    def _can_add(self, outcome: ClientOutcome, result: TrainResult) -> bool:
        """Return whether a single update can be added, where updates are added up as they come."""
        if self.total is None or self.context.known_weights is None or result.arrays is None:
            return True
        factor = self.context.known_weights.compute_numerator(
            outcome.client, outcome.num_examples or 0.0
        )
        return self.total.can_add(factor, result.arrays)


def receive_updates(
    replies: Iterable[Message],
    context: RoundContext,
    session: NodeSession,
    communication: NativeProtocol,
) -> ReplyResults[TrainResult]:
    """Return the nodes' replies to train messages, by client."""
    arriving = UpdateReceiver(context, session, communication)
    answers = session.collect_train_results(
        replies, context.clients_by_node, context.server_round, context.model, arriving
    )
    answers.total = arriving.total
    return answers


def _compute_numerators(
    known_weights: KnownWeights, clients: Sequence[int], results: ReplyResults[TrainResult]
) -> dict[int, float]:
    """Return a_k of the clients whose updates can be used."""
    usable = [results.outcomes[client] for client in clients if results.outcomes[client].is_usable]
    return {
        one.client: known_weights.compute_numerator(one.client, one.num_examples or 0.0)
        for one in usable
    }


def _add_updates(
    total: ExactAccumulator,
    numerators: dict[int, float],
    node_sum: NodeSum | None,
    results: ReplyResults[TrainResult],
) -> None:
    """Add the usable updates of a node, each alone or all as the sum that it sent."""
    for client, factor in numerators.items():
        arrays = results.by_client[client].arrays
        if arrays is not None and factor != 0.0:
            total.add_model(factor, arrays)
    if node_sum is not None and any(map(numerators.get, node_sum.clients)):
        total.merge(node_sum.updates)


def _drop_arrays(node: int, clients: Sequence[int], results: ReplyResults[TrainResult]) -> None:
    """Forget the arrays of a node's reply, but not whose updates it summed."""
    for client in clients:
        results.by_client[client] = replace(results.by_client[client], arrays=None)
    if node in results.node_sums:
        results.node_sums[node] = replace(results.node_sums[node], updates={})
