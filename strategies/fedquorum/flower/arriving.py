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
    """Validates the updates of a round as they arrive, and adds them up if the weights are known.

    An update that was added or is unusable is dropped, so that memory does not grow with the number
    of clients. If the weights need all replies, a ``ReplyStore`` holds the updates.
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
        """Return a reply without its arrays, or the whole reply if the metrics need it."""
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
        replied = [client for client in selected if client in results.by_client]
        for client in replied:
            results.outcomes[client] = self._validate_update(
                client, results, in_sum=client in summed
            )
        if self.total is None or self.context.known_weights is None:
            _drop_arrays(
                node,
                [client for client in replied if not results.outcomes[client].is_usable],
                results,
            )
            return
        numerators = _compute_numerators(self.context.known_weights, replied, results)
        _add_updates(self.total, numerators, node_sum, results)
        _drop_arrays(node, replied, results)

    def _reject_unusable_sum(self, node_sum: NodeSum, results: ReplyResults[TrainResult]) -> None:
        known_weights = self.context.known_weights if self.context.nodes_aggregate else None
        limits = self.session.limits
        model, bins = self.context.model, self.context.bins
        reject_unusable_sum(node_sum, results, model, known_weights, limits=limits, bins=bins)

    def _validate_update(
        self, client: int, results: ReplyResults[TrainResult], *, in_sum: bool
    ) -> ClientOutcome:
        """Return a client's outcome, and store a usable update."""
        model = None if self.context.plan.trains_local_model or in_sum else self.context.model
        outcome = self.session.get_client_outcome(client, results, model)
        if not outcome.is_usable:
            return outcome
        self._store_update(client, results)
        if self._can_add(outcome, results.by_client[client]):
            return outcome
        return ClientOutcome(client, "rejected", UNSUMMABLE_REASON, seconds=outcome.seconds)

    def _store_update(self, client: int, results: ReplyResults[TrainResult]) -> None:
        """Sort an update's arrays by the model's, and clip the update if it is too long.

        If the round needs all updates, this one may go to a file: a usable update has the model's
        size.
        """
        result, model = results.by_client[client], self.context.get_start_model(client)
        if result.arrays is None:
            return
        ordered = {name: result.arrays[name] for name in model}
        if self.total is None and not self.communication.needs_full_replies:
            ordered = self._store.store(ordered)
        arrays, note = self.communication.robustness.clip(model, ordered)
        results.by_client[client] = replace(result, arrays=arrays)
        if note is not None:
            results.note(client, note)

    def _can_add(self, outcome: ClientOutcome, result: TrainResult) -> bool:
        """Return whether an update can be added to the running sum; True without such a sum."""
        if self.total is None or self.context.known_weights is None or result.arrays is None:
            return True
        numerator = self.context.known_weights.compute_numerator(
            outcome.client, outcome.num_examples or 0.0
        )
        return self.total.can_add(numerator, result.arrays)


def receive_updates(
    replies: Iterable[Message],
    context: RoundContext,
    session: NodeSession,
    communication: NativeProtocol,
) -> ReplyResults[TrainResult]:
    """Return the nodes' results of train messages, by client."""
    receiver = UpdateReceiver(context, session, communication)
    results = session.collect_train_results(
        replies, context.clients_by_node, context.server_round, context.model, receiver
    )
    results.total = receiver.total
    return results


def _compute_numerators(
    known_weights: KnownWeights, clients: Sequence[int], results: ReplyResults[TrainResult]
) -> dict[int, float]:
    """Return a_k of every client whose update is usable."""
    usable = [results.outcomes[client] for client in clients if results.outcomes[client].is_usable]
    return {
        outcome.client: known_weights.compute_numerator(outcome.client, outcome.num_examples or 0.0)
        for outcome in usable
    }


def _add_updates(
    total: ExactAccumulator,
    numerators: dict[int, float],
    node_sum: NodeSum | None,
    results: ReplyResults[TrainResult],
) -> None:
    """Add a node's usable updates, each on its own or as the sum that the node sent."""
    for client, numerator in numerators.items():
        arrays = results.by_client[client].arrays
        if arrays is not None and numerator != 0.0:
            total.add_model(numerator, arrays)
    if node_sum is not None and any(map(numerators.get, node_sum.clients)):
        total.merge(node_sum.updates)


def _drop_arrays(node: int, clients: Sequence[int], results: ReplyResults[TrainResult]) -> None:
    """Drop the arrays of a node's reply, but remember which updates it summed."""
    for client in clients:
        results.by_client[client] = replace(results.by_client[client], arrays=None)
    if node in results.node_sums:
        results.node_sums[node] = replace(results.node_sums[node], updates={})
