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
"""The errors by which Flower says that a node, or what it sent, is not there any more."""

MAX_REASONS = 3
"""So many reasons of a failure are told in one line."""


@dataclass(frozen=True)
class NodeSum:
    """sum_k a_k Delta_k over the clients of one node that trained."""

    updates: PartialSums
    clients: tuple[int, ...]


@dataclass
class ReplyResults(Generic[ResultT]):
    """The answers of one exchange by client, or the reasons why they cannot be read.

    Parameters
    ----------
    by_client : dict
        What each client said.
    contents : dict
        The message that a client's part was in, without arrays that are not needed again.
    malformed : dict
        What is wrong with the form of a client's reply.
    notes : dict
        What else there is to tell of a client's reply.
    node_sums : dict
        Weighted sums of updates by node, and whose updates are in them.
    num_bytes : int
        Payload of the replies that were read.
    disconnected : set of int
        The clients whose nodes went away before they answered, by Flower's word.
    outcomes : dict
        What became of clients whose replies were judged as they came.
    total : ExactAccumulator, optional
        The sum of all updates, where they were added up as they came; the parts have none then.
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
    """The handling of each arriving reply of an exchange; by default it is kept unchanged."""

    def trim_reply(self, content: RecordDict) -> RecordDict:
        """Return the part of a reply that is kept for the metrics of the round."""
        return content

    def handle(self, node: int, selected: Sequence[int], results: ReplyResults[ResultT]) -> None:
        """Act on a node's reply, once it is among the answers."""


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
    """Sort the answers by client; an unreadable reply is malformed for all its clients.

    The first reply of a node to what it was asked counts.

    Parameters
    ----------
    replies : iterable of Message
        As they came.
    clients_by_node : mapping of int to tuple of int
        The clients asked at each node.
    expected_reply : Sent
        What a reply must name to be one to this exchange's messages.
    read : callable
        Returns the answers in a reply, or raises ProtocolError.
    kind : type
        What an answer is, TrainResult or EvaluateResult.
    max_bytes : callable
        Returns how many bytes a reply for so many clients can have.
    handler : Intake, optional
        What is done with each reply as it comes; nothing by default.
    """
    answers: ReplyResults[ResultT] = ReplyResults()
    answered: set[int] = set()
    handler = handler or ReplyHandler()

    def sort(reply: Message) -> None:
        node = reply.metadata.src_node_id
        asked = clients_by_node.get(node, ())
        if node in answered:
            log(WARNING, "Ignored: a second reply for clients %s", abbreviate(asked))
            for client in asked:
                answers.note(client, "a second reply was ignored")
            return
        problem = find_origin_problem(reply, expected_reply)
        if problem is None:
            answered.add(node)
            for client in asked:
                answers.malformed.pop(client, None)
            problem = find_size_problem(reply, max_bytes(len(asked)))
        if problem is None:
            _add_reply(reply, asked, answers, read, kind, handler=handler)
            handler.handle(node, asked, answers)
        else:
            answers.malformed.update(dict.fromkeys(asked, problem))

    for reply in replies:
        sort(reply)
        del reply  # before the next is waited for
    return answers


def _add_reply(
    reply: Message,
    selected: tuple[int, ...],
    results: ReplyResults[ResultT],
    read: Callable[[RecordDict], Sequence[ResultT]],
    kind: type[ResultT],
    *,
    handler: ReplyHandler[ResultT],
) -> None:
    """Add what one reply says of the clients asked at its node."""
    if reply.has_error():
        reason = sanitize(reply.error.reason, MAX_REASON_LENGTH)
        results.by_client.update({k: kind(k, Status.FAILED, reason=reason) for k in selected})
        if reply.error.code in DISCONNECTED_ERRORS:
            results.disconnected.update(selected)
        return
    results.num_bytes += count_bytes(reply.content)
    content, told = reply.content, handler.trim_reply(reply.content)
    try:
        parts = read(content)
        weighted_sum = decode_partial_sum(content)
    except ProtocolError as error:
        results.malformed.update(dict.fromkeys(selected, sanitize(error, MAX_REASON_LENGTH)))
        results.form_matches.add(not isinstance(error, ProtocolMismatchError))
        return
    if any(part.status is Status.DONE for part in parts):
        results.form_matches.add(True)
    whom = frozenset(selected)
    if weighted_sum is not None:
        done = (p.client for p in parts if p.status is Status.DONE)
        whose = tuple(k for k in done if k is not None and k in whom)
        results.node_sums[reply.metadata.src_node_id] = NodeSum(weighted_sum, whose)
    foreign = []
    for part in parts:
        client = selected[0] if part.client is None and len(selected) == 1 else part.client
        if client is None or client not in whom:
            foreign.append(client)
        elif client in results.by_client:
            results.malformed[client] = "its node replied for it twice"
        else:
            results.by_client[client] = part
            results.contents[client] = told
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

    One client that cannot be used spoils the sum that it is in.
    """
    problem = (
        "a sum of updates, though none was asked for"
        if known_weights is None
        else find_sum_problem(node_sum.updates, model, bins)
    )
    for client in node_sum.clients:
        wrong = results.malformed.get(client) or find_update_problem(
            results.by_client[client], None, limits
        )
        problem = problem or (wrong and f"in one sum with client {client}, whose {wrong}")
    if problem is not None:
        results.malformed.update(dict.fromkeys(node_sum.clients, problem))


def select_usable_evaluations(
    results: ReplyResults[EvaluateResult], *, any_weight: bool = False, metric: str = "accuracy"
) -> dict[int, EvaluateResult]:
    """Return the evaluations that can be used, by client; log why others cannot.

    With ``any_weight`` the amount of data may be any finite number >= 0. ``metric`` is what the
    clients measure beside loss and accuracy.
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
    """Return why a client's evaluation cannot be used, None if it can."""
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
    """Refuse an evaluation that failed at every node that was asked.

    A client that is unavailable, of which nothing came, or whose node is gone has not failed: the
    run goes on without it. A node that is asked alone, as the others are gone, ends no run either.

    Parameters
    ----------
    results : Answers
        The answers of an evaluation.
    clients_by_node : mapping of int to tuple of int
        The clients asked at each node.
    expected : frozenset of int
        The clients that were to measure, whether their nodes are connected or not.
    model : str
        What they were to measure, in words.
    metric : str
        What they measure beside loss and accuracy.

    Raises
    ------
    RunError
        If every client asked answered that it failed, or with something that cannot be used.
    """
    asked = sorted(k for clients in clients_by_node.values() for k in clients)
    if not asked or (len(clients_by_node) == 1 and expected.difference(asked)):
        return
    reasons = []
    for client in asked:
        part = results.by_client.get(client)
        absent = part is not None and part.status is Status.UNAVAILABLE
        silent = part is None and client not in results.malformed
        if absent or silent or client in results.disconnected:
            return
        problem = _find_evaluation_problem(client, results, any_weight=False, metric=metric)
        if problem is None:
            return
        reasons.append(problem)
    told = abbreviate([*dict.fromkeys(reasons)], MAX_REASONS)
    raise RunError(f"none of {len(asked)} clients could measure {model}: {told}")
