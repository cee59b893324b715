"""Sort the replies of one exchange by client, and note the unusable ones."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Generic

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from ..errors import ProtocolError, RunError
from ..exact_sum import ExactAccumulator, ExponentBins, PartialSums
from ..round import ClientOutcome
from ..sanitize import MAX_REASON_LENGTH, abbreviate, sanitize
from ..types import KnownWeights
from .codec import (
    EvaluateResult,
    NamedArrays,
    ProtocolMismatchError,
    ResultT,
    Status,
    TrainResult,
    count_bytes,
    decode_partial_sum,
)
from .validation import (
    ExpectedReply,
    Limits,
    find_evaluation_problem,
    find_origin_problem,
    find_size_problem,
    find_sum_problem,
    find_update_problem,
)

DISCONNECTED_ERRORS = frozenset(
    {
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
    }
)
"""Flower's errors for a node, or a message of a node, that is no longer available."""

MAX_REASONS = 3
"""Maximum number of reasons in one error message."""


@dataclass(frozen=True)
class NodeSum:
    """sum_k a_k Delta_k over the clients of one node that trained."""

    updates: PartialSums
    clients: tuple[int, ...]


@dataclass
class ReplyResults(Generic[ResultT]):
    """The results of one exchange by client, or the reasons why they cannot be read.

    Parameters
    ----------
    by_client : dict
        The result of each client.
    contents : dict
        The reply with a client's result, without arrays that are not needed any more.
    malformed : dict
        The problem of a malformed result, by client.
    notes : dict
        Further remarks on a client's reply.
    node_sums : dict
        Weighted sums of updates by node, each with its clients.
    num_bytes : int
        Payload of the replies that were read.
    disconnected : set of int
        The clients whose nodes disconnected before they replied, according to Flower.
    outcomes : dict
        The outcomes of clients whose replies were validated as they arrived.
    total : ExactAccumulator, optional
        The sum of all updates, if they were added up as they arrived; the results then lack them.
    form_matches : set of bool
        Whether replies of clients that trained have the form of the protocol: {True}, {False},
        both, or empty if nobody trained.
    """

    by_client: dict[int, ResultT] = field(default_factory=dict)
    contents: dict[int, RecordDict] = field(default_factory=dict)
    malformed: dict[int, str] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    node_sums: dict[int, NodeSum] = field(default_factory=dict)
    num_bytes: int = 0
    disconnected: set[int] = field(default_factory=set)
    outcomes: dict[int, ClientOutcome] = field(default_factory=dict)
    total: ExactAccumulator | None = None
    form_matches: set[bool] = field(default_factory=set)

    @property
    def summed_clients(self) -> frozenset[int]:
        """The clients whose updates arrived as part of a sum."""
        return frozenset(k for node_sum in self.node_sums.values() for k in node_sum.clients)

    def note(self, client: int, text: str) -> None:
        """Add a remark on a client's reply."""
        before = self.notes.get(client)
        self.notes[client] = text if before is None else f"{before}; {text}"


class ReplyHandler(Generic[ResultT]):
    """The handling of each arriving reply of an exchange; by default it is stored unchanged."""

    def trim_reply(self, content: RecordDict) -> RecordDict:
        """Return the part of a reply that is stored for the metrics of the round."""
        return content

    def handle(self, node: int, selected: Sequence[int], results: ReplyResults[ResultT]) -> None:
        """Handle a node's reply, once it is among the results."""


def collect_results(
    replies: Iterable[Message],
    clients_by_node: Mapping[int, tuple[int, ...]],
    expected_reply: ExpectedReply,
    read: Callable[[RecordDict], Sequence[ResultT]],
    kind: type[ResultT],
    *,
    max_bytes: Callable[[int], int],
    handler: ReplyHandler[ResultT] | None = None,
) -> ReplyResults[ResultT]:
    """Sort the results by client; an unreadable reply is malformed for all its clients.

    The first valid reply of a node counts.

    Parameters
    ----------
    replies : iterable of Message
        In the order of arrival.
    clients_by_node : mapping of int to tuple of int
        The clients selected at each node.
    expected_reply : ExpectedReply
        The names that a reply of this exchange must have.
    read : callable
        Returns the results in a reply, or raises ProtocolError.
    kind : type
        TrainResult or EvaluateResult.
    max_bytes : callable
        Takes a number of clients and returns the largest size in bytes of a reply for them.
    handler : ReplyHandler, optional
        Handles each reply as it arrives; by default nothing happens.
    """
    results: ReplyResults[ResultT] = ReplyResults()
    replied: set[int] = set()
    handler = handler or ReplyHandler()

    def add(reply: Message) -> None:
        node = reply.metadata.src_node_id
        selected = clients_by_node.get(node, ())
        if node in replied:
            log(WARNING, "Ignored: a second reply for clients %s", abbreviate(selected))
            for client in selected:
                results.note(client, "a second reply was ignored")
            return
        problem = find_origin_problem(reply, expected_reply)
        if problem is None:
            replied.add(node)
            for client in selected:
                results.malformed.pop(client, None)
            problem = find_size_problem(reply, max_bytes(len(selected)))
        if problem is None:
            _add_reply(reply, selected, results, read, kind, handler=handler)
            handler.handle(node, selected, results)
        else:
            results.malformed.update(dict.fromkeys(selected, problem))

    for reply in replies:
        add(reply)
        del reply  # before the next is waited for
    return results


def _add_reply(
    reply: Message,
    selected: tuple[int, ...],
    results: ReplyResults[ResultT],
    read: Callable[[RecordDict], Sequence[ResultT]],
    kind: type[ResultT],
    *,
    handler: ReplyHandler[ResultT],
) -> None:
    """Add the results in one reply for the clients selected at its node."""
    if reply.has_error():
        reason = sanitize(reply.error.reason, MAX_REASON_LENGTH)
        results.by_client.update({k: kind(k, Status.FAILED, reason=reason) for k in selected})
        if reply.error.code in DISCONNECTED_ERRORS:
            results.disconnected.update(selected)
        return
    results.num_bytes += count_bytes(reply.content)
    content, stored = reply.content, handler.trim_reply(reply.content)
    try:
        client_results = read(content)
        weighted_sum = decode_partial_sum(content)
    except ProtocolError as error:
        results.malformed.update(dict.fromkeys(selected, sanitize(error, MAX_REASON_LENGTH)))
        results.form_matches.add(not isinstance(error, ProtocolMismatchError))
        return
    if any(result.status is Status.DONE for result in client_results):
        results.form_matches.add(True)
    expected = frozenset(selected)
    if weighted_sum is not None:
        done = (result.client for result in client_results if result.status is Status.DONE)
        summed = tuple(k for k in done if k is not None and k in expected)
        results.node_sums[reply.metadata.src_node_id] = NodeSum(weighted_sum, summed)
    foreign = []
    for result in client_results:
        client = selected[0] if result.client is None and len(selected) == 1 else result.client
        if client is None or client not in expected:
            foreign.append(client)
        elif client in results.by_client:
            results.malformed[client] = "its node replied for it twice"
        else:
            results.by_client[client] = result
            results.contents[client] = stored
    if foreign:
        problem = f"its node replied for {abbreviate(foreign)}, not asked there"
        results.malformed.update({k: problem for k in selected if k not in results.by_client})


def reject_unusable_sum(
    node_sum: NodeSum,
    results: ReplyResults[TrainResult],
    model: NamedArrays,
    known_weights: KnownWeights | None,
    *,
    limits: Limits,
    bins: ExponentBins,
) -> None:
    """Make the clients of a sum malformed if it cannot be used.

    One client with an unusable update spoils its whole sum.
    """
    problem = (
        "a sum of updates, though none was asked for"
        if known_weights is None
        else find_sum_problem(node_sum.updates, model, bins)
    )
    for client in node_sum.clients:
        client_problem = results.malformed.get(client) or find_update_problem(
            results.by_client[client], None, limits
        )
        problem = problem or (
            client_problem and f"in one sum with client {client}, whose {client_problem}"
        )
    if problem is not None:
        results.malformed.update(dict.fromkeys(node_sum.clients, problem))


def select_usable_evaluations(
    results: ReplyResults[EvaluateResult], *, any_weight: bool = False, metric: str = "accuracy"
) -> dict[int, EvaluateResult]:
    """Return the usable evaluations by client; log why others are unusable.

    With ``any_weight`` the amount of data may be any finite number >= 0. ``metric`` is the clients'
    metric beside loss and accuracy.
    """
    usable = {}
    for client in sorted({*results.by_client, *results.malformed}):
        problem = _find_evaluation_problem(client, results, any_weight=any_weight, metric=metric)
        if problem is None:
            usable[client] = results.by_client[client]
        else:
            log(WARNING, "Client %d: unusable evaluation: %s", client, problem)
    return usable


def _find_evaluation_problem(
    client: int, results: ReplyResults[EvaluateResult], *, any_weight: bool, metric: str
) -> str | None:
    """Return why a client's evaluation is unusable, or None if it is usable."""
    return results.malformed.get(client) or find_evaluation_problem(
        results.by_client[client], any_weight=any_weight, metric=metric
    )


def check_evaluation(
    results: ReplyResults[EvaluateResult],
    clients_by_node: Mapping[int, tuple[int, ...]],
    expected: frozenset[int],
    *,
    model: str,
    metric: str,
) -> None:
    """Refuse an evaluation that failed at every selected node.

    A client that is unavailable, did not reply, or whose node disconnected has not failed: the run
    continues without it. The failure of the only connected node ends no run either.

    Parameters
    ----------
    results : ReplyResults
        The results of an evaluation.
    clients_by_node : mapping of int to tuple of int
        The clients selected at each node.
    expected : frozenset of int
        All clients of the evaluation, on connected nodes or not.
    model : str
        The name of the evaluated model, for the error.
    metric : str
        The clients' metric beside loss and accuracy.

    Raises
    ------
    RunError
        If every selected client failed or replied with an unusable evaluation.
    """
    selected = sorted(k for clients in clients_by_node.values() for k in clients)
    if not selected or (len(clients_by_node) == 1 and expected.difference(selected)):
        return
    reasons = []
    for client in selected:
        result = results.by_client.get(client)
        absent = result is not None and result.status is Status.UNAVAILABLE
        missing = result is None and client not in results.malformed
        if absent or missing or client in results.disconnected:
            return
        problem = _find_evaluation_problem(client, results, any_weight=False, metric=metric)
        if problem is None:
            return
        reasons.append(problem)
    summary = abbreviate([*dict.fromkeys(reasons)], MAX_REASONS)
    raise RunError(f"none of {len(selected)} clients could measure {model}: {summary}")
