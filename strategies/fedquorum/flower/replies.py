"""Sort the replies of one exchange by client, and note the unusable ones."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Generic

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from ..errors import ProtocolError, RunError
from ..intake import LONGEST_REASON, abbreviated, shown
from ..round import ClientAnswer
from ..summation import Bins, UpdateSums, UpdateTotal
from ..types import Proportions
from .codec import (
    AnswerT,
    EvaluateAnswer,
    NamedArrays,
    OtherFormError,
    Status,
    TrainAnswer,
    count_bytes,
    decode_sum,
)
from .validation import (
    Limits,
    Sent,
    evaluation_problem,
    origin_problem,
    size_problem,
    sum_problem,
    update_problem,
)

GONE = frozenset(
    {
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
    }
)
"""The errors by which Flower says that a node, or what it sent, is not there any more."""

MOST_REASONS = 3
"""So many reasons of a failure are told in one line."""


@dataclass(frozen=True)
class WeightedSum:
    """sum_k a_k Delta_k over the clients of one node that trained."""

    updates: UpdateSums
    clients: tuple[int, ...]


@dataclass
class Answers(Generic[AnswerT]):
    """The answers of one exchange by client, or the reasons why they cannot be read.

    Parameters
    ----------
    parts : dict
        What each client said.
    contents : dict
        The message that a client's part was in, without arrays that are not needed again.
    malformed : dict
        What is wrong with the form of a client's reply.
    notes : dict
        What else there is to tell of a client's reply.
    sums : dict
        Weighted sums of updates by node, and whose updates are in them.
    num_bytes : int
        Payload of the replies that were read.
    gone : set of int
        The clients whose nodes went away before they answered, by Flower's word.
    judged : dict
        What became of clients whose replies were judged as they came.
    total : UpdateTotal, optional
        The sum of all updates, where they were added up as they came; the parts have none then.
    in_form : set of bool
        Whether replies of clients that trained have the form of the protocol: {True}, {False},
        both, or empty if nobody trained.
    """

    parts: dict[int, AnswerT] = field(default_factory=dict)
    contents: dict[int, RecordDict] = field(default_factory=dict)
    malformed: dict[int, str] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    sums: dict[int, WeightedSum] = field(default_factory=dict)
    num_bytes: int = 0
    gone: set[int] = field(default_factory=set)
    judged: dict[int, ClientAnswer] = field(default_factory=dict)
    total: UpdateTotal | None = None
    in_form: set[bool] = field(default_factory=set)

    @property
    def summed(self) -> frozenset[int]:
        """The clients whose updates arrived as part of a sum."""
        return frozenset(k for node_sum in self.sums.values() for k in node_sum.clients)

    def note(self, client: int, text: str) -> None:
        """Add a remark on a client's reply."""
        before = self.notes.get(client)
        self.notes[client] = text if before is None else f"{before}; {text}"


class Intake(Generic[AnswerT]):
    """The handling of each arriving reply of an exchange; by default it is kept unchanged."""

    def told(self, content: RecordDict) -> RecordDict:
        """Return the part of a reply that is kept for the metrics of the round."""
        return content

    def take(self, node: int, asked: Sequence[int], answers: Answers[AnswerT]) -> None:
        """Act on a node's reply, once it is among the answers."""


def collect(
    replies: Iterable[Message],
    asked_at: Mapping[int, tuple[int, ...]],
    sent: Sent,
    read: Callable[[RecordDict], Sequence[AnswerT]],
    kind: type[AnswerT],
    *,
    largest: Callable[[int], int],
    intake: Intake[AnswerT] | None = None,
) -> Answers[AnswerT]:
    """Sort the answers by client; an unreadable reply is malformed for all its clients.

    The first reply of a node to what it was asked counts.

    Parameters
    ----------
    replies : iterable of Message
        As they came.
    asked_at : mapping of int to tuple of int
        The clients asked at each node.
    sent : Sent
        What a reply must name to be one to this exchange's messages.
    read : callable
        Returns the answers in a reply, or raises ProtocolError.
    kind : type
        What an answer is, TrainAnswer or EvaluateAnswer.
    largest : callable
        Returns how many bytes a reply for so many clients can have.
    intake : Intake, optional
        What is done with each reply as it comes; nothing by default.
    """
    answers: Answers[AnswerT] = Answers()
    answered: set[int] = set()
    intake = intake or Intake()

    def sort(reply: Message) -> None:
        node = reply.metadata.src_node_id
        asked = asked_at.get(node, ())
        if node in answered:
            log(WARNING, "Ignored: a second reply for clients %s", abbreviated(asked))
            for client in asked:
                answers.note(client, "a second reply was ignored")
            return
        problem = origin_problem(reply, sent)
        if problem is None:
            answered.add(node)
            for client in asked:
                answers.malformed.pop(client, None)
            problem = size_problem(reply, largest(len(asked)))
        if problem is None:
            _add(reply, asked, answers, read, kind, intake=intake)
            intake.take(node, asked, answers)
        else:
            answers.malformed.update(dict.fromkeys(asked, problem))

    for reply in replies:
        sort(reply)
        del reply  # before the next is waited for
    return answers


def _add(
    reply: Message,
    asked: tuple[int, ...],
    answers: Answers[AnswerT],
    read: Callable[[RecordDict], Sequence[AnswerT]],
    kind: type[AnswerT],
    *,
    intake: Intake[AnswerT],
) -> None:
    """Add what one reply says of the clients asked at its node."""
    if reply.has_error():
        reason = shown(reply.error.reason, LONGEST_REASON)
        answers.parts.update({k: kind(k, Status.FAILED, reason=reason) for k in asked})
        if reply.error.code in GONE:
            answers.gone.update(asked)
        return
    answers.num_bytes += count_bytes(reply.content)
    content, told = reply.content, intake.told(reply.content)
    try:
        parts = read(content)
        weighted_sum = decode_sum(content)
    except ProtocolError as error:
        answers.malformed.update(dict.fromkeys(asked, shown(error, LONGEST_REASON)))
        answers.in_form.add(not isinstance(error, OtherFormError))
        return
    if any(part.status is Status.DONE for part in parts):
        answers.in_form.add(True)
    whom = frozenset(asked)
    if weighted_sum is not None:
        done = (p.client for p in parts if p.status is Status.DONE)
        whose = tuple(k for k in done if k is not None and k in whom)
        answers.sums[reply.metadata.src_node_id] = WeightedSum(weighted_sum, whose)
    foreign = []
    for part in parts:
        client = asked[0] if part.client is None and len(asked) == 1 else part.client
        if client is None or client not in whom:
            foreign.append(client)
        elif client in answers.parts:
            answers.malformed[client] = "its node replied for it twice"
        else:
            answers.parts[client] = part
            answers.contents[client] = told
    if foreign:
        problem = f"its node replied for {abbreviated(foreign)}, not asked there"
        answers.malformed.update({k: problem for k in asked if k not in answers.parts})


def refuse_unusable_sum(
    node_sum: WeightedSum,
    answers: Answers[TrainAnswer],
    model: NamedArrays,
    proportions: Proportions | None,
    *,
    limits: Limits,
    bins: Bins,
) -> None:
    """Make the clients of a sum malformed if it cannot be used.

    One client that cannot be used spoils the sum that it is in.
    """
    problem = (
        "a sum of updates, though none was asked for"
        if proportions is None
        else sum_problem(node_sum.updates, model, bins)
    )
    for client in node_sum.clients:
        wrong = answers.malformed.get(client) or update_problem(answers.parts[client], None, limits)
        problem = problem or (wrong and f"in one sum with client {client}, whose {wrong}")
    if problem is not None:
        answers.malformed.update(dict.fromkeys(node_sum.clients, problem))


def usable_evaluations(
    answers: Answers[EvaluateAnswer], *, any_weight: bool = False, metric: str = "accuracy"
) -> dict[int, EvaluateAnswer]:
    """Return the evaluations that can be used, by client; log why others cannot.

    With ``any_weight`` the amount of data may be any finite number >= 0. ``metric`` is what the
    clients measure beside loss and accuracy.
    """
    usable = {}
    for client in sorted({*answers.parts, *answers.malformed}):
        problem = _evaluation_problem(client, answers, any_weight=any_weight, metric=metric)
        if problem is None:
            usable[client] = answers.parts[client]
        else:
            log(WARNING, "Client %d: unusable evaluation: %s", client, problem)
    return usable


def _evaluation_problem(
    client: int, answers: Answers[EvaluateAnswer], *, any_weight: bool, metric: str
) -> str | None:
    """Return why a client's evaluation cannot be used, None if it can."""
    return answers.malformed.get(client) or evaluation_problem(
        answers.parts[client], any_weight=any_weight, metric=metric
    )


def check_evaluated(
    answers: Answers[EvaluateAnswer],
    asked_at: Mapping[int, tuple[int, ...]],
    wanted: frozenset[int],
    *,
    model: str,
    metric: str,
) -> None:
    """Refuse an evaluation that failed at every node that was asked.

    A client that is unavailable, of which nothing came, or whose node is gone has not failed: the
    run goes on without it. A node that is asked alone, as the others are gone, ends no run either.

    Parameters
    ----------
    answers : Answers
        The answers of an evaluation.
    asked_at : mapping of int to tuple of int
        The clients asked at each node.
    wanted : frozenset of int
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
    asked = sorted(k for clients in asked_at.values() for k in clients)
    if not asked or (len(asked_at) == 1 and wanted.difference(asked)):
        return
    reasons = []
    for client in asked:
        part = answers.parts.get(client)
        absent = part is not None and part.status is Status.UNAVAILABLE
        silent = part is None and client not in answers.malformed
        if absent or silent or client in answers.gone:
            return
        problem = _evaluation_problem(client, answers, any_weight=False, metric=metric)
        if problem is None:
            return
        reasons.append(problem)
    told = abbreviated([*dict.fromkeys(reasons)], MOST_REASONS)
    raise RunError(f"none of {len(asked)} clients could measure {model}: {told}")
