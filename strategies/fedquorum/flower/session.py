"""Exchange messages with the nodes that host the selected clients."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from logging import INFO, WARNING
from typing import Any, Generic

from flwr.app import ConfigRecord, Message, MessageType, Metadata, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from ..errors import ProtocolError
from ..records.client_names import ClientNames
from ..rules.composition import RuleSet
from ..rules.decisions import ClientDecision, LateReply, RoundReport
from ..rules.failures import FOUND_KEYS_PREFIX, FailureCounts, normalize_reason
from ..rules.round import ClientOutcome
from ..rules.selection.epsilon_gate import NO_LOSS
from ..rules.types import IntArray, KnownWeights, Population
from ..rules.weighting import Weighting
from ..sanitize import MAX_REASON_LENGTH, abbreviate, sanitize
from ..server.exact_sum import ExactAccumulator, PartialSums, SumBins
from ..server.quorum import ReplyCounter
from ..server.virtual_clock import LATE_REASON, NO_REPLY_REASON, REPLY_STATUSES
from .codec import (
    EvaluateResult,
    NamedArrays,
    ProtocolMismatchError,
    ResultT,
    Status,
    TrainResult,
    add_user_config,
    count_bytes,
    decode_masked_vector,
    decode_partial_sum,
    drop_arrays,
    encode_inquiry,
    find_unavailable_clients,
    is_native_reply,
)
from .codec.keys import EVALUATE_METRICS
from .nodes import NOT_CONNECTED, SET_FEDQUORUM
from .protocol import NativeProtocol
from .secure.messages import MaskedVector
from .secure.plan import MIN_NODES
from .secure.settings import MaskSummary
from .validation import (
    NO_CLIP_INDICATOR,
    ExpectedReply,
    Limits,
    find_form_problem,
    find_origin_problem,
    find_seconds_problem,
    find_sum_problem,
    find_update_problem,
    find_value_problem,
)
from .waiting_grid import Arrival, WaitingGrid

DISCONNECTED_ERRORS = frozenset(
    {
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
    }
)
"""Flower's errors for a node, or a message of a node, that is no longer available."""


def is_disconnection(reply: Message) -> bool:
    """Say whether a reply is Flower's error for a node that is gone."""
    return reply.has_error() and reply.error.code in DISCONNECTED_ERRORS


@dataclass(frozen=True)
class NodeSum:
    """sum_k a_k Delta_k over the clients of one node that trained, with masks or without."""

    updates: PartialSums | MaskedVector
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
    clip_indicators : dict of int to bool
        In a private round, whether each usable update needed no clipping.
    num_unclipped : int, optional
        Their number, if masks hide which these are.
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
    clip_indicators: dict[int, bool] = field(default_factory=dict)
    num_unclipped: int | None = None
    total: ExactAccumulator | None = None
    form_matches: set[bool] = field(default_factory=set)

    def drop_arrays(self: "ReplyResults[TrainResult]", clients: Iterable[int]) -> None:
        """Drop the models of clients, which nobody needs."""
        for client in clients:
            if client in self.by_client:
                self.by_client[client] = replace(self.by_client[client], arrays=None)

    def note(self, client: int, text: str) -> None:
        """Add a remark on a client's reply."""
        before = self.notes.get(client)
        self.notes[client] = text if before is None else f"{before}; {text}"


def read_replies(
    replies: Iterable[Message],
    clients_by_node: Mapping[int, tuple[int, ...]],
    expected_reply: ExpectedReply,
    read: Callable[[RecordDict], Sequence[ResultT]],
    results: ReplyResults[ResultT],
    *,
    kind: type[ResultT],
    max_bytes: Callable[[int], int],
    read_sum: Callable[[RecordDict], PartialSums | MaskedVector | None] | None = None,
    keeps_arrays: bool = False,
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Sort the results by client as the replies arrive; yield each node that replied.

    The first valid reply of a node counts. An unreadable reply is malformed for all its clients.

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
    results : ReplyResults
        The results so far, which each reply extends.
    kind : type
        TrainResult or EvaluateResult.
    max_bytes : callable
        Takes a number of clients and returns the largest size in bytes of a reply for them.
    read_sum : callable, optional
        Returns the weighted sum of updates in a reply, if nodes may send one.
    keeps_arrays : bool
        Whether the stored contents keep their arrays.

    Yields
    ------
    tuple of int and tuple of int
        A node, and the clients selected there.
    """
    replied: set[int] = set()
    for reply in replies:
        node = reply.metadata.src_node_id
        selected = clients_by_node.get(node, ())
        if node in replied:
            log(WARNING, "Ignored: a second reply for clients %s", abbreviate(selected))
            for client in selected:
                results.note(client, "a second reply was ignored")
            continue
        problem = find_origin_problem(reply, expected_reply)
        size = 0
        if problem is None:
            replied.add(node)
            for client in selected:
                results.malformed.pop(client, None)
            size = 0 if reply.has_error() else count_bytes(reply.content)
            limit = max_bytes(len(selected))
            if size > limit:
                problem = f"a reply of {size} bytes, at most {limit} are expected"
        if problem is not None:
            results.malformed.update(dict.fromkeys(selected, problem))
            continue
        results.num_bytes += size
        _add_reply(
            reply, selected, results, read, kind, read_sum=read_sum, keeps_arrays=keeps_arrays
        )
        del reply  # before the next is waited for
        yield node, selected


def _add_reply(
    reply: Message,
    selected: tuple[int, ...],
    results: ReplyResults[ResultT],
    read: Callable[[RecordDict], Sequence[ResultT]],
    kind: type[ResultT],
    *,
    read_sum: Callable[[RecordDict], PartialSums | MaskedVector | None] | None,
    keeps_arrays: bool,
) -> None:
    """Add the results in one reply for the clients selected at its node."""
    if reply.has_error():
        reason = sanitize(reply.error.reason, MAX_REASON_LENGTH)
        results.by_client.update({k: kind(k, Status.FAILED, reason=reason) for k in selected})
        if is_disconnection(reply):
            results.disconnected.update(selected)
        return
    content = reply.content
    try:
        client_results = read(content)
        weighted_sum = None if read_sum is None else read_sum(content)
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
    stored = content if keeps_arrays else drop_arrays(content)
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
    bins: SumBins,
    needs_clip_indicator: bool = False,
) -> None:
    """Make the clients of a sum malformed if it cannot be used.

    One client with an unusable update spoils its whole sum, and with ``needs_clip_indicator`` so
    does one that does not say if it clipped its update.
    """
    problem = (
        "a sum of updates, though none was asked for"
        if known_weights is None or isinstance(node_sum.updates, MaskedVector)
        else find_sum_problem(node_sum.updates, model, bins)
    )
    problem = problem or find_client_problem(
        node_sum, results, limits, needs_clip_indicator=needs_clip_indicator
    )
    if problem is not None:
        results.malformed.update(dict.fromkeys(node_sum.clients, problem))


def find_client_problem(
    node_sum: NodeSum,
    results: ReplyResults[TrainResult],
    limits: Limits,
    *,
    needs_clip_indicator: bool,
) -> str | None:
    """Return why a sum cannot be used because of one of its clients, or None if it can."""
    for client in node_sum.clients:
        result = results.by_client[client]
        client_problem = results.malformed.get(client) or find_update_problem(result, None, limits)
        if needs_clip_indicator and not result.has_clip_indicator:
            client_problem = client_problem or NO_CLIP_INDICATOR
        if client_problem:
            return f"in one sum with client {client}, whose {client_problem}"
    return None


MIN_REPLIES = 2
READ_AS_STANDARD = (
    "A reply is in FedQuorum's protocol, for one client, and counts as one in Flower's standard "
    f"form. For nodes of several clients, and clients that decide for themselves, {SET_FEDQUORUM}"
)


class RoundLogger:
    """Logs each kind of trouble once as a warning, and stops a run that cannot learn anything."""

    def __init__(self, communication: NativeProtocol, rules: RuleSet) -> None:
        self._communication = communication
        self._reads_loss = rules.needs_losses or rules.selection.traits.has_gate
        self._warned: set[str] = set()
        self._logged: set[str] = set()

    def log_round(
        self,
        report: RoundReport,
        results: ReplyResults[TrainResult],
        names: ClientNames,
        warned: Collection[int] = (),
    ) -> None:
        """Log how many updates count, and why others do not; ``warned`` are clients named before.

        Raises
        ------
        ProtocolError
            In the first round, if all of several replies are unusable and malformed in the same
            way: the run would complete without having learned anything.
        """
        if not report.decisions:
            return
        unused = [decision for decision in report.decisions if decision.status != "trained"]
        counts = (len(report.decisions) - len(unused), len(report.decisions))
        log(INFO, "aggregate_train: %d of %d updates count", *counts)
        for client, result in results.by_client.items():
            if result.status is Status.DONE and is_native_reply(results.contents[client]):
                self._log_once(WARNING, READ_AS_STANDARD)
                break
        if self._reads_loss:
            self._log_loss_key(report, results)
        rejected = [d for d in unused if d.status == "rejected" and d.num_examples is None]
        if rejected:
            self._warn_about_rejected(rejected)
        for decision in unused:
            if decision not in rejected:
                self._log_unused(decision, names, warned)
        usable = any(decision.num_examples is not None for decision in report.decisions)
        if report.server_round == 1 and not usable:
            self._stop_if_malformed(rejected, results)

    def log_unchanged_model(
        self, report: RoundReport, names: ClientNames, *, has_trained: bool
    ) -> None:
        """Warn that a round left the model the same, once for each set of reasons."""
        failures = FailureCounts()
        failures.add_round(report.decisions, trained=0, refused=report.rejection_reason)
        kinds = ", ".join(sorted(failures.failures))
        if f"no update: {kinds}" in self._warned:
            return
        self._warned.add(f"no update: {kinds}")
        text = f"Round {report.server_round}: no update counted, the model stays the same"
        hint = "" if has_trained else self._communication.untrained_hint
        log(WARNING, f"{text}; {failures.format(names.format)}{hint}" if kinds else text)

    def log_evaluation_problem(self, client: str, problem: str) -> None:
        """Warn that a client's evaluation is unusable, once for each problem."""
        kind = f"evaluation: {normalize_reason(problem)}"
        if kind not in self._warned:
            self._warned.add(kind)
            log(WARNING, "Client %s: unusable evaluation: %s", client, problem)

    def log_sums_problem(self, problem: str) -> None:
        """Warn that the sums of an evaluation cannot be used, once for each problem."""
        kind = f"sums: {normalize_reason(problem)}"
        if kind not in self._warned:
            self._warned.add(kind)
            log(WARNING, "The model was not evaluated: %s", problem)

    def log_withheld(self, fields: Sequence[str]) -> None:
        """Log which numbers are not evaluated, as too few nodes have them, once for each set."""
        if fields:
            names = ", ".join(EVALUATE_METRICS[name] for name in fields)
            self._log_once(
                WARNING,
                f"Not evaluated: {names}. Only one or two nodes have it, and a sum of fewer than "
                f"{MIN_NODES} would tell theirs",
            )

    def _log_unused(
        self, decision: ClientDecision, names: ClientNames, warned: Collection[int]
    ) -> None:
        """Log why a client's update does not count; a new failure as a warning, once."""
        level = INFO
        if decision.status == "failed" and normalize_reason(decision.reason) not in self._warned:
            self._warned.add(normalize_reason(decision.reason))
            level = INFO if decision.client in warned else WARNING
        name = names.format(decision.client)
        log(level, "\t> Client %s %s: %s", name, decision.status, decision.reason)

    def _log_loss_key(self, report: RoundReport, results: ReplyResults[TrainResult]) -> None:
        """Log the key of the loss, or warn that the gate has no loss to compare."""
        keys = map(self._communication.find_loss_key, results.contents.values())
        loss_key = next(filter(None, keys), None)
        if loss_key is not None:
            self._log_once(INFO, f"The clients' loss is taken from '{loss_key}'")
            return
        loss_keys = self._communication.loss_keys
        if loss_keys and any(d.reason == NO_LOSS for d in report.decisions):
            expected = " or ".join(f"'{key}'" for key in loss_keys)
            self._log_once(
                WARNING,
                f"No client reports a loss, {expected}: the gate admits priority clients alone"
                f"{self._communication.get_hint(expected)}",
            )

    def _warn_about_rejected(self, rejected: list[ClientDecision]) -> None:
        """Log how many replies are rejected for each reason; the first time as a warning."""
        for reason, count in Counter(normalize_reason(d.reason) for d in rejected).items():
            example = next(d.reason for d in rejected if normalize_reason(d.reason) == reason)
            level = INFO if reason in self._warned else WARNING
            self._warned.add(reason)
            log(level, "\t> %d updates rejected: %s", count, example)

    def _stop_if_malformed(
        self, rejected: list[ClientDecision], results: ReplyResults[TrainResult]
    ) -> None:
        reasons = {results.malformed.get(decision.client, "") for decision in rejected}
        kinds = {reason.partition(FOUND_KEYS_PREFIX)[0] for reason in reasons}
        if len(rejected) < MIN_REPLIES or len(kinds) > 1 or "" in reasons:
            return
        reason = min(reasons)
        raise ProtocolError(
            f"none of the {len(rejected)} replies of round 1 can be used: {reason}"
            f"{self._communication.get_hint(kinds.pop())}"
        )

    def _log_once(self, level: int, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log(level, text)


MAX_NODES_NAMED = 20  # in one round

MAX_OVERHEAD_FACTOR = 2
MAX_OVERHEAD_BYTES = 2**20
"""A message has at most this many times its payload, plus this many bytes."""

BUSY_REASON = "its node still has the message of an earlier round"


@dataclass(frozen=True)
class SentMessage:
    """A train message whose reply may count in a later round.

    Parameters
    ----------
    server_round : int
        The round in which the clients were asked.
    clients : tuple of int
        The clients of its node that train.
    metadata : Metadata
        The message's, which has an id once it was pushed.
    """

    server_round: int
    clients: tuple[int, ...]
    metadata: Metadata


@dataclass(frozen=True)
class Traffic:
    """Payload bytes of all messages so far, to the nodes and from them."""

    bytes_down: int = 0
    bytes_up: int = 0


class NodeSession:
    """Send a strategy's requests to the nodes that host its clients, and sort the replies.

    Parameters
    ----------
    communication : NativeProtocol
        The protocol with the nodes.
    population : Population
        The clients before round 1.
    rules : RuleSet
    """

    def __init__(
        self, communication: NativeProtocol, population: Population, rules: RuleSet
    ) -> None:
        self.communication = communication
        self._rules = rules
        self.limits = communication.build_limits(rules)
        self._logger = RoundLogger(communication, rules)
        self._named: set[tuple[int, str]] = set()
        self._pushed: dict[str, Mapping[int, Metadata]] = {}
        self._started = False
        self.mask_summary: MaskSummary | None = None
        self.registry = communication.build_node_registry(population, rules)
        self.bytes_down, self.bytes_up = 0, 0
        self._registered: IntArray | None = None
        self.has_trained = False
        self._grid: WaitingGrid | None = None
        self._busy_clients: frozenset[int] = frozenset()
        self._reply_counter: ReplyCounter | None = None
        self._quorum_of: tuple[Collection[int], frozenset[int]] = ((), frozenset())
        self._can_close: Callable[[Collection[int]], bool] | None = None
        self._replied_nodes: set[int] = set()
        self.clients_by_node: Mapping[int, tuple[int, ...]] = {}
        self._clients_by_round: dict[int, Mapping[int, tuple[int, ...]]] = {}
        self._sent: dict[int, SentMessage] = {}  # by node, where late updates count

    def find_disconnected(self, population: Population) -> tuple[int, ...]:
        """Return the disconnected clients, if the round samples only connected ones."""
        available = self.communication.get_available_clients(self.registry)
        return () if available is None else tuple(sorted({*population.clients} - available))

    # --- the clients -------------------------------------------------------------------------

    def update_population(
        self, grid: Grid, population: Population, *, evaluating: bool = False
    ) -> Population:
        """Note which nodes are connected; return the population, with the clients that joined."""
        first = not self._started
        self.communication.wait_for_clients(self.registry, grid, first=first, evaluating=evaluating)
        joined = population
        registered = self.registry.registered
        if population.is_open and registered is not self._registered:
            self._registered = registered
            joined = population.with_clients(registered.tolist())
        if first:
            self.communication.check_client_ids(grid, joined, self.registry)
            self._note_masks(joined)
            some_have_priority = joined.required is not None or joined.non_priority_clients
            self.registry.log_hosts(joined.priority if some_have_priority else frozenset())
            self._close_registry(joined)
        self._started = True
        return joined

    def _note_masks(self, population: Population) -> None:
        """Refuse masks with too few nodes, once all are connected; show k and t."""
        num_nodes = len(self.registry.group_by_node(population.clients))
        self.mask_summary = self.communication.summarize_masks(self._rules, population, num_nodes)
        if self.mask_summary is not None:
            log(INFO, "%s", self.mask_summary.format_line())

    def restore_assignments(self, nodes: Mapping[int, int], population: Population) -> None:
        """Restore the earlier clients, each with its node if node ids identify clients."""
        self.registry.restore_assignments(nodes)
        self._close_registry(population)

    def _close_registry(self, population: Population) -> None:
        """Accept no further clients if the rules need a fixed population."""
        traits = self._rules.weighting.traits
        if traits.requires_fixed_population and self.communication.is_dynamic:
            name = _get_rule_name(self._rules.weighting)
            self.registry.close(
                f"{name} keeps the {len(population.clients)} clients that it started with"
            )

    # --- messages out ------------------------------------------------------------------------

    def build_messages(
        self,
        contents: Mapping[int, RecordDict],
        message_type: str,
        server_round: int,
        user_config: ConfigRecord,
        *,
        group: str | None = None,
    ) -> list[Message]:
        """Return one message for each node, with the user's config.

        ``group`` names an exchange that is not the only one of its type in the round.
        """
        messages, num_bytes = {}, 0
        for node, content in contents.items():
            if user_config:
                add_user_config(content, user_config)
            num_bytes += count_bytes(content)
            group_id = group or f"{message_type} {server_round}"
            messages[node] = Message(content, node, message_type, group_id=group_id)
        self.bytes_down += num_bytes
        # A grid writes a message's id into its metadata when it pushes the message.
        self._pushed[message_type] = {node: m.metadata for node, m in messages.items()}
        if self.communication.counts_by_real_clock and message_type == MessageType.TRAIN:
            self._note_sent(messages, server_round)
        return list(messages.values())

    def _note_sent(self, messages: Mapping[int, Message], server_round: int) -> None:
        """Expect replies to new train messages, and to those under way."""
        self._sent |= {
            node: SentMessage(server_round, self.clients_by_node[node], message.metadata)
            for node, message in messages.items()
        }
        self._pushed[MessageType.TRAIN] = {node: sent.metadata for node, sent in self._sent.items()}
        self.clients_by_node = {node: sent.clients for node, sent in self._sent.items()}

    def open_exchange(
        self,
        grid: Grid,
        clients: Collection[int],
        model: NamedArrays | None,
        *,
        priority: frozenset[int],
        busy: Collection[int] = (),
        joins_earlier: bool = False,
    ) -> Mapping[int, tuple[int, ...]]:
        """Return the available nodes of ``clients``, each with its clients, and expect them.

        The result leaves out clients that are ``busy`` by the virtual clock, and those of a node
        with a message of an earlier round: a node handles one message at a time. The grid refuses
        replies that would take too much memory. Its limit includes the overhead of a message; the
        payload is checked later. Replies have models like ``model``, or none. With
        ``joins_earlier`` the exchange also waits for train messages of earlier rounds.
        """
        clients_by_node = self.registry.group_by_node(sorted({*clients}.difference(busy)))
        self._grid = grid if isinstance(grid, WaitingGrid) else None
        self._busy_clients = frozenset(busy).intersection(clients)
        self.clients_by_node = clients_by_node
        self._quorum_of = clients, priority
        self._can_close = None
        if self._grid is None:
            return clients_by_node
        waiting = {k for node in self._grid.busy_nodes for k in clients_by_node.pop(node, ())}
        self._busy_clients |= waiting
        if self.communication.counts_by_real_clock:
            # A round of training has its own count. An evaluation waits for all that it asks: these
            # are free, and one that it left behind would be busy when it is to train.
            self._reply_counter = None
        elif self.communication.closes_early:
            self._reply_counter = ReplyCounter(
                *self.communication.quorum.find_required_replies(clients, priority)
            )
        get_max_bytes = self.communication.get_max_reply_bytes
        limits = {
            node: MAX_OVERHEAD_BYTES + MAX_OVERHEAD_FACTOR * get_max_bytes(len(hosted), model)
            for node, hosted in clients_by_node.items()
        }
        self._grid.limit_replies(limits, joins_earlier=joins_earlier)
        return clients_by_node

    # --- rounds of several exchanges ---------------------------------------------------------

    @property
    def quorum_share(self) -> float:
        """The share of the clients in the open exchange whose replies close it."""
        return self.communication.quorum.compute_share(*self._quorum_of)

    def count_replies_again(self, can_close: Callable[[Collection[int]], bool]) -> None:
        """Let the next exchange wait for as many clients, and until their nodes are enough."""
        if self._grid is not None and self.communication.closes_early:
            quorum = self.communication.quorum
            self._reply_counter = ReplyCounter(*quorum.find_required_replies(*self._quorum_of))
        self._can_close, self._replied_nodes = can_close, set()

    def close_by(self, moment: float) -> None:
        """Let the next exchange close at a moment of the monotonic clock, if the grid can wait."""
        if self._grid is not None:
            self._grid.close_by(moment)

    def note_late(self, server_round: int) -> None:
        """Note who may still reply to the messages of training, before another exchange opens."""
        if self._grid is not None and self._grid.closed_early:
            self._clients_by_round[server_round] = self.clients_by_node

    # --- training by the real clock, where late updates count --------------------------------

    @property
    def has_busy_clients(self) -> bool:
        """Whether the last exchange left out clients, since their nodes have a message."""
        return bool(self._busy_clients)

    def find_blocked_clients(self, grid: Grid) -> tuple[int, ...]:
        """Return the clients, ascending, that share a node with one under way.

        A node handles one message at a time, so it is free when none of its clients is under way.
        """
        nodes = {*self._sent}
        if isinstance(grid, WaitingGrid):
            nodes |= grid.busy_nodes
        clients = sorted(self.registry.connected_clients) if nodes else ()
        sent = self.start_rounds
        return tuple(k for k in clients if k not in sent and self.registry.find_node(k) in nodes)

    @property
    def start_rounds(self) -> dict[int, int]:
        """The round in which each client was asked that is under way."""
        return {k: sent.server_round for sent in self._sent.values() for k in sent.clients}

    def count_replies_of(
        self, server_round: int, num_required: int, max_staleness: int | None
    ) -> None:
        """Let ``num_required`` replies close the round, of any age that counts."""
        countable = {
            client
            for sent in self._sent.values()
            if max_staleness is None or server_round - sent.server_round <= max_staleness
            for client in sent.clients
        }
        self._reply_counter = ReplyCounter(countable, num_required)

    def take_replied(self, results: ReplyResults[TrainResult]) -> dict[int, float]:
        """Forget the messages that were answered; return the seconds of each client's reply."""
        seconds: dict[int, float] = {}
        replied = {*results.by_client, *results.malformed}
        for node, sent in [*self._sent.items()]:
            if replied.intersection(sent.clients):
                taken = math.nan if self._grid is None else self._grid.seconds.get(node, math.nan)
                seconds |= dict.fromkeys(sent.clients, taken)
                del self._sent[node]
        return seconds

    def take_expired(self) -> frozenset[int]:
        """Forget the messages that have expired or were never taken; return their clients."""
        alive = frozenset[int]() if self._grid is None else self._grid.find_nodes_under_way()
        expired = [node for node in self._sent if node not in alive]
        return frozenset(k for node in expired for k in self._sent.pop(node).clients)

    def wait_until_trained(self, grid: Grid) -> None:
        """Wait for all nodes that train, each as long as its message lives."""
        if isinstance(grid, WaitingGrid):
            grid.wait_until_trained()

    # --- replies in --------------------------------------------------------------------------

    def is_quorum(self, arrival: Arrival) -> bool:
        """Count a reply; return whether the replies so far are enough to close the round.

        A client that its node reports as unavailable does not count as a reply.
        """
        if self._reply_counter is None:
            return False
        absent = find_unavailable_clients(arrival.message.content)
        clients = set(self.clients_by_node.get(arrival.node, ())) - absent
        is_enough = self._reply_counter.add(clients)
        if self._can_close is None:
            return is_enough
        self._replied_nodes.add(arrival.node)
        return is_enough and self._can_close(self._replied_nodes)

    def read_train_replies(
        self,
        replies: Iterable[Message],
        server_round: int,
        model: NamedArrays | None,
        results: ReplyResults[TrainResult],
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Return an iterator over the nodes that reply to train messages; see ``read_replies``."""
        communication = self.communication
        return read_replies(
            replies,
            self.clients_by_node,
            ExpectedReply(
                f"{MessageType.TRAIN} {server_round}",
                self._pushed.get(MessageType.TRAIN, {}),
                allows_any_group=not communication.is_native,
            ),
            lambda content: communication.read_train_reply(content, self.limits),
            results,
            kind=TrainResult,
            max_bytes=lambda count: communication.get_max_reply_bytes(count, model),
            read_sum=self._read_sum,
            keeps_arrays=communication.needs_full_replies,
        )

    @cached_property
    def _read_sum(self) -> Callable[[RecordDict], PartialSums | MaskedVector | None] | None:
        """What reads the sum in a train reply, None if no node may send one."""
        if self.communication.secure_aggregation is not None:
            return decode_masked_vector
        return decode_partial_sum if self.communication.is_native else None

    def ask_clients(
        self,
        grid: Grid,
        server_round: int,
        clients: Sequence[int],
        user_config: ConfigRecord,
        *,
        priority: frozenset[int],
    ) -> tuple[dict[int, float], list[ClientOutcome]]:
        """Ask clients whether they take part in a round, without a model.

        Returns
        -------
        seconds : dict of int to float
            The response times of those that do, in simulated seconds.
        others : list of ClientOutcome
            The outcomes of the others.
        """
        clients_by_node = self.open_exchange(grid, clients, None, priority=priority)
        contents = {node: encode_inquiry(server_round, k) for node, k in clients_by_node.items()}
        messages = self.build_messages(contents, MessageType.TRAIN, server_round, user_config)
        replies = grid.send_and_receive(messages, timeout=self.communication.reply_timeout)
        results: ReplyResults[TrainResult] = ReplyResults()
        for _ in self.read_train_replies(replies, server_round, None, results):
            pass
        self.bytes_up += results.num_bytes
        seconds, others = {}, []
        for client in clients:
            result = results.by_client.get(client)
            if client not in results.malformed and result and result.status is Status.DONE:
                problem = find_seconds_problem(result.seconds)
                if problem is None and result.seconds is not None:
                    seconds[client] = result.seconds
                else:
                    others.append(ClientOutcome(client, "rejected", problem))
                continue
            others.append(self.get_client_outcome(client, results, None))
        return seconds, others

    def collect_evaluate_results(
        self, replies: Iterable[Message], server_round: int
    ) -> ReplyResults[EvaluateResult]:
        """Return the nodes' results of evaluate messages, by client."""
        communication = self.communication
        results: ReplyResults[EvaluateResult] = ReplyResults()
        expected_reply = ExpectedReply(
            f"{MessageType.EVALUATE} {server_round}",
            self._pushed.get(MessageType.EVALUATE, {}),
            allows_any_group=not communication.is_native,
        )
        arriving = read_replies(
            replies,
            self.clients_by_node,
            expected_reply,
            communication.read_evaluate_reply,
            results,
            kind=EvaluateResult,
            max_bytes=lambda count: communication.get_max_reply_bytes(count, None),
            read_sum=None if communication.secure_aggregation is None else decode_masked_vector,
            keeps_arrays=True,
        )
        for _ in arriving:
            pass  # an evaluation has nothing to do until all results are there
        self.bytes_up += results.num_bytes
        return results

    def collect_late_replies(self, server_round: int) -> tuple[LateReply, ...]:
        """Return the replies to earlier rounds that have arrived since the last call."""
        if self._grid is None:
            return ()
        late = []
        for arrival in self._grid.take_late_arrivals():
            message_type, _, number = arrival.message.metadata.group_id.partition(" ")
            if is_disconnection(arrival.message):
                continue  # the SuperLink's word for a node that is gone is no reply of it
            if message_type == MessageType.TRAIN:
                clients = self._clients_by_round.get(int(number), {}).get(arrival.node, ())
                late += [LateReply(int(number), k, arrival.seconds) for k in clients]
        if not self._grid.busy_nodes:
            self._clients_by_round.clear()
        if self._grid.closed_early:
            self._clients_by_round[server_round] = self.clients_by_node
        return tuple(late)

    def get_client_outcome(
        self, client: int, results: ReplyResults[TrainResult], model: NamedArrays | None
    ) -> ClientOutcome:
        """Return the outcome of a selected client, before any rule uses it.

        ``model`` gives the arrays' form; None if the client sends none.
        """
        result = results.by_client.get(client)
        if client in results.malformed:
            outcome = ClientOutcome(client, "rejected", results.malformed[client])
        elif result is None:
            outcome = ClientOutcome(client, *self._explain_missing_reply(client))
        elif result.status is not Status.DONE:
            reason = result.reason
            if result.status is Status.FAILED:
                reason = reason or "it failed and gave no reason"
            outcome = ClientOutcome(client, result.status.name.lower(), reason)
        elif (problem := find_form_problem(result, model, self.limits)) is not None:
            results.malformed[client] = problem
            outcome = ClientOutcome(client, "rejected", problem)
        elif (problem := find_value_problem(result, self.limits)) is not None:
            outcome = ClientOutcome(client, "rejected", problem)
        else:
            limits = self.limits
            outcome = ClientOutcome(
                client,
                "trained",
                num_examples=result.num_examples if limits.needs_examples else None,
                loss=None if limits.hides_numbers else result.loss,
                accuracy=None if limits.hides_numbers else result.accuracy,
            )
        times_replies = self.communication.virtual_clock or self.communication.closes_early
        if self.communication.late_updates is not None:
            return outcome  # the inquiry has its client's time
        if times_replies and outcome.status in REPLY_STATUSES:
            return self._add_seconds(outcome, result)
        return outcome

    def _add_seconds(self, outcome: ClientOutcome, result: TrainResult | None) -> ClientOutcome:
        """Return an outcome with the seconds of its reply; rejected if a simulation has none."""
        if not self.communication.virtual_clock:
            node = self.registry.find_node(outcome.client)
            if self._grid is None or node is None:
                return outcome
            return replace(outcome, seconds=self._grid.seconds.get(node))
        seconds = None if result is None else result.seconds
        problem = find_seconds_problem(seconds)
        if problem is not None:
            return ClientOutcome(outcome.client, "rejected", outcome.reason or problem)
        return replace(outcome, seconds=seconds)

    def _explain_missing_reply(self, client: int) -> tuple[str, str]:
        """Return the status of a client without a reply, and the reason."""
        if self.registry.find_node(client) is None:
            return "unavailable", self.registry.explain_absence(client)
        if client in self._busy_clients:
            return "busy", BUSY_REASON
        if self._grid is not None and self._grid.closed_early:
            return "late", LATE_REASON
        return "failed", NO_REPLY_REASON

    def log_evaluation_problem(self, client: int, problem: str) -> None:
        """Warn that a client's evaluation is unusable."""
        self._logger.log_evaluation_problem(self.registry.names.format(client), problem)

    def log_withheld(self, fields: Sequence[str]) -> None:
        """Log which numbers are not evaluated, as too few nodes have them."""
        self._logger.log_withheld(fields)

    def log_sums_problem(self, problem: str) -> None:
        """Warn that the sums of an evaluation cannot be used."""
        self._logger.log_sums_problem(problem)

    def log_round(
        self,
        report: RoundReport,
        results: ReplyResults[TrainResult],
        *,
        is_unchanged: bool = False,
    ) -> None:
        """Log the result of a round if no records are kept, and whether the model stays the same.

        Raises
        ------
        ProtocolError
            In the first round in which clients trained, if all of them replied in the form of the
            other protocol. In the first round, if all of several replies are malformed.
        """
        first = not self.has_trained
        self.has_trained = self.has_trained or bool(results.form_matches)
        if first and results.form_matches == {False}:
            raise ProtocolError(
                f"every client that trained in round {report.server_round} replied in "
                f"{self.communication.other_protocol_hint}"
            )
        warned = self._warn_about_nodes(report)
        if not self.communication.is_native:
            self._logger.log_round(report, results, self.registry.names, warned)
        if is_unchanged:
            self._logger.log_unchanged_model(
                report, self.registry.names, has_trained=self.has_trained
            )

    def _warn_about_nodes(self, report: RoundReport) -> frozenset[int]:
        """Name the node of a client that failed or lacks its node, once for each reason.

        Returns
        -------
        frozenset of int
            The clients that a warning names.
        """
        new = []
        for decision in report.decisions:
            if decision.status not in {"failed", "rejected", "unavailable"}:
                continue
            host = self.registry.describe_node_of(decision.client)
            is_there = self.registry.find_node(decision.client) is not None
            # A refusal of the whole round is no fault of one node.
            refused = report.rejection_reason
            is_refused = refused is not None and (decision.reason or "").startswith(refused)
            is_unusable = (
                decision.status == "rejected" and decision.num_examples is None and not is_refused
            )
            is_broken = host and is_there and (decision.status == "failed" or is_unusable)
            # The reason for a client without its node names the node, if one is to blame.
            is_barred = (
                decision.status == "unavailable"
                and not is_there
                and decision.reason != NOT_CONNECTED
            )
            if not (is_broken or is_barred):
                continue
            kind = (decision.client, normalize_reason(decision.reason))
            if kind not in self._named:
                self._named.add(kind)
                new.append((decision, host if is_there else ""))
        for decision, host in new[:MAX_NODES_NAMED]:
            name, where = self.registry.names.format(decision.client), f" on {host}" if host else ""
            log(WARNING, "Client %s%s %s: %s", name, where, decision.status, decision.reason)
        if len(new) > MAX_NODES_NAMED:
            more = len(new) - MAX_NODES_NAMED
            log(WARNING, "... and %d further clients; the records have all reasons", more)
        return frozenset(decision.client for decision, _ in new[:MAX_NODES_NAMED])


def _get_rule_name(weighting: Weighting[Any]) -> str:
    """Return a rule's name as users know it."""
    name, colon, _ = weighting.description.summary.partition(":")
    return name if colon else type(weighting).__name__
