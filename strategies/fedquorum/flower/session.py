"""Exchange messages with the nodes that host the selected clients."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Any, Generic, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from ..errors import ProtocolError, RunError
from ..rules.composition import RuleSet
from ..rules.decisions import ClientDecision, LateReply, RoundReport
from ..rules.hooks import Candidates
from ..rules.round import ClientOutcome
from ..rules.selection.epsilon_gate import NO_LOSS
from ..rules.types import ClientReports, KnownWeights, Population, RoundPlan
from ..rules.weighting import Weighting
from ..sanitize import MAX_REASON_LENGTH, abbreviate, sanitize
from ..server.exact_sum import ExactAccumulator, ExponentBins, PartialSums
from ..server.quorum import ReplyCounter
from ..server.virtual_clock import LATE_REASON, NO_REPLY_REASON, REPLY_STATUSES
from .codec import (
    FOUND_KEYS_PREFIX,
    EvaluateRequest,
    EvaluateResult,
    NamedArrays,
    ProtocolMismatchError,
    ResultT,
    Status,
    TrainResult,
    add_user_config,
    count_bytes,
    decode_partial_sum,
    find_unavailable_clients,
    is_native_reply,
)
from .nodes import SET_FEDQUORUM
from .protocol import NativeProtocol
from .validation import (
    ExpectedReply,
    Limits,
    find_evaluation_problem,
    find_form_problem,
    find_origin_problem,
    find_seconds_problem,
    find_size_problem,
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


MIN_REPLIES = 2
_NUMBER = re.compile(r"[-+]?(\d[\d.,e+-]*|\binf\b|\bnan\b)")


class RoundLogger:
    """Logs each kind of trouble once as a warning, and stops a run that cannot learn anything."""

    def __init__(self, communication: NativeProtocol, rules: RuleSet) -> None:
        self._communication = communication
        self._reads_loss = rules.needs_losses or rules.selection.has_gate
        self._warned: set[str] = set()
        self._logged: set[str] = set()

    def log_round(self, report: RoundReport, results: ReplyResults[TrainResult]) -> None:
        """Log how many updates count, and why others do not.

        Raises
        ------
        ProtocolError
            In the first round, if all of several replies are unusable and malformed in the same
            way: the run would complete without having learned anything.
        """
        if not report.decisions:
            return
        counts = (report.count("trained"), len(report.decisions))
        log(INFO, "aggregate_train: %d of %d updates count", *counts)
        self._warn_about_protocol(results)
        self._log_loss_key(report, results)
        rejected = [
            d for d in report.decisions if d.status == "rejected" and d.num_examples is None
        ]
        self._warn_about_rejected(rejected)
        for decision in report.decisions:
            if decision.status != "trained" and decision not in rejected:
                details = (decision.client, decision.status, decision.reason)
                log(INFO, "\t> Client %d %s: %s", *details)
        usable = any(decision.num_examples is not None for decision in report.decisions)
        if report.server_round == 1 and not usable:
            self._stop_if_malformed(rejected, results)

    def _warn_about_protocol(self, results: ReplyResults[TrainResult]) -> None:
        """Warn once that a reply of this project's ClientApp is read as a standard reply."""
        for client, result in results.by_client.items():
            if result.status is Status.DONE and is_native_reply(results.contents[client]):
                self._log_once(
                    WARNING,
                    "A reply is in FedQuorum's protocol, for one client, and counts as one in "
                    "Flower's standard form. For nodes of several clients, and clients that decide "
                    f"for themselves, {SET_FEDQUORUM}",
                )
                return

    def _log_loss_key(self, report: RoundReport, results: ReplyResults[TrainResult]) -> None:
        """Log the key of the loss, or warn that the gate has no loss to compare."""
        keys = map(self._communication.find_loss_key, results.contents.values())
        loss_key = next(filter(None, keys), None) if self._reads_loss else None
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
        for reason, count in Counter(_normalize_reason(d.reason) for d in rejected).items():
            example = next(d.reason for d in rejected if _normalize_reason(d.reason) == reason)
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


def _normalize_reason(reason: str | None) -> str:
    """Return a reason without its numbers, the same for each client and round."""
    return _NUMBER.sub("#", (reason or "").partition(FOUND_KEYS_PREFIX)[0])


@dataclass(frozen=True)
class EvaluationPlan:
    """The clients that evaluate a model, and their splits, ascending by client id.

    Parameters
    ----------
    test_clients : tuple of int
        The clients that evaluate their test split.
    objective_clients : tuple of int
        The clients that evaluate their training split for the objective.
    recorded_clients : tuple of int
        The clients that evaluate their training split only for the records.
    evaluates_local_model : bool
        Whether each client evaluates its local model instead.
    """

    test_clients: tuple[int, ...] = ()
    objective_clients: tuple[int, ...] = ()
    recorded_clients: tuple[int, ...] = ()
    evaluates_local_model: bool = False

    @property
    def train_split_clients(self) -> frozenset[int]:
        """The clients that evaluate their training splits."""
        return frozenset((*self.objective_clients, *self.recorded_clients))

    @classmethod
    def for_initial_model(cls, population: Population, rules: RuleSet) -> "EvaluationPlan":
        """Return the plan to evaluate the initial model."""
        hook = rules.hooks.before_round
        if hook is None:
            return cls(objective_clients=population.priority_clients)
        return cls(
            objective_clients=hook.select_candidates(
                0, population, ClientReports()
            ).evaluating_clients
        )

    @classmethod
    def for_next_round(
        cls,
        population: Population,
        communication: NativeProtocol,
        test_clients: tuple[int, ...],
        candidates: Candidates,
        *,
        rules: RuleSet,
        available: frozenset[int] | None = None,
    ) -> "EvaluationPlan":
        """Return the plan to evaluate the model with which the next round starts.

        If the rules need F(w_{t+1}), it is the mean by data over priority clients: with
        ``samples_objective`` over those that the next round selects (``candidates``), otherwise
        over all that are ``available``. If the rules do not need it, the priority clients report it
        together with the test metrics. The evaluating clients of ``candidates`` evaluate as well.
        With ``evaluated_training`` all test clients evaluate their training split; the results of
        the other clients enter neither the objective nor a rule's state.
        """
        objective_clients: tuple[int, ...] = ()
        if rules.needs_objective:
            objective_clients = _select_objective_clients(population, candidates, rules, available)
        elif test_clients:
            objective_clients = communication.select_objective_clients(population, test_clients)
        if candidates.evaluating_clients:
            objective_clients = tuple(sorted({*objective_clients, *candidates.evaluating_clients}))
        recorded_clients = test_clients if communication.evaluated_training else ()
        return cls(test_clients, objective_clients, recorded_clients, rules.trains_local_models)


def find_candidates(
    server_round: int,
    population: Population,
    reports: ClientReports,
    rules: RuleSet,
    plan_round: Callable[[int], RoundPlan],
) -> Candidates:
    """Return the clients that a round may select, as known before its model is evaluated.

    Without a hook ``before_round`` these are the clients of the round's plan.
    """
    hook = rules.hooks.before_round
    if hook is None:
        return Candidates(plan_round(server_round).clients)
    return hook.select_candidates(server_round - 1, population, reports)


def _select_objective_clients(
    population: Population, candidates: Candidates, rules: RuleSet, available: frozenset[int] | None
) -> tuple[int, ...]:
    """Return the priority clients over which F(w) of a round is the mean, ascending."""
    if rules.selection.samples_objective:
        return tuple(k for k in candidates.clients if k in population.priority)
    return tuple(k for k in population.priority_clients if available is None or k in available)


MAX_OVERHEAD_FACTOR = 2
MAX_OVERHEAD_BYTES = 2**20
"""A message has at most this many times its payload, plus this many bytes."""


@dataclass(frozen=True)
class Traffic:
    """Payload bytes of all messages so far, to the nodes and from them."""

    bytes_down: int = 0
    bytes_up: int = 0

    def add_bytes(self, down: int = 0, up: int = 0) -> "Traffic":
        """Return the traffic with more bytes."""
        return Traffic(self.bytes_down + down, self.bytes_up + up)


class NodeSession:
    """Send a strategy's requests to the nodes that host its clients, and sort the replies."""

    def __init__(
        self, communication: NativeProtocol, population: Population, rules: RuleSet
    ) -> None:
        self._communication = communication
        self._rules = rules
        self.limits = communication.build_limits(rules)
        self._logger = RoundLogger(communication, rules)
        self._pushed: dict[str, Mapping[int, Metadata]] = {}
        self._started = False
        self.registry = communication.build_node_registry(population, rules)
        self.traffic = Traffic()
        self.has_trained = False
        self._evaluation_clients_by_node: Mapping[int, tuple[int, ...]] = {}
        self._evaluation_clients: frozenset[int] = frozenset()
        self._grid: WaitingGrid | None = None
        self._busy_clients: frozenset[int] = frozenset()
        self._reply_counter = ReplyCounter(communication.quorum, (), ())
        self._clients_by_node: Mapping[int, tuple[int, ...]] = {}
        self._clients_by_round: dict[int, Mapping[int, tuple[int, ...]]] = {}

    @property
    def available_clients(self) -> frozenset[int] | None:
        """The clients from which a round samples; None for all."""
        return self._communication.get_available_clients(self.registry)

    def find_disconnected(self, population: Population) -> tuple[int, ...]:
        """Return the disconnected clients, if the round samples only connected ones."""
        available = self.available_clients
        return () if available is None else tuple(sorted({*population.clients} - available))

    def update_population(
        self, grid: Grid, population: Population, *, evaluating: bool = False
    ) -> Population:
        """Note which nodes are connected; return the population, with the clients that joined."""
        first = not self._started
        self._communication.wait_for_clients(
            self.registry, grid, first=first, evaluating=evaluating
        )
        joined = population
        if population.is_open:
            joined = population.with_clients(self.registry.registered.tolist())
        if first:
            self._communication.check_client_ids(grid, joined)
            self._close_registry(joined)
        self._started = True
        return joined

    def restore_assignments(self, nodes: Mapping[int, int], population: Population) -> None:
        """Restore the earlier clients, each with its node if node ids identify clients."""
        self.registry.restore_assignments(nodes)
        self._close_registry(population)

    def _close_registry(self, population: Population) -> None:
        """Accept no further clients if the rules need a fixed population."""
        if self._rules.weighting.requires_fixed_population and self._communication.is_dynamic:
            name = _get_rule_name(self._rules.weighting)
            self.registry.close(
                f"{name} keeps the {len(population.clients)} clients that it started with"
            )

    def build_messages(
        self,
        contents: Mapping[int, RecordDict],
        message_type: str,
        server_round: int,
        user_config: ConfigRecord,
    ) -> list[Message]:
        """Return one message for each node, with the user's config."""
        messages = {}
        for node, content in contents.items():
            add_user_config(content, user_config)
            self.traffic = self.traffic.add_bytes(down=count_bytes(content))
            group = _build_group_id(message_type, server_round)
            messages[node] = Message(content, node, message_type, group_id=group)
        # A grid writes a message's id into its metadata when it pushes the message.
        self._pushed[message_type] = {node: m.metadata for node, m in messages.items()}
        return list(messages.values())

    def _build_expected_reply(self, message_type: str, server_round: int) -> ExpectedReply:
        return ExpectedReply(
            _build_group_id(message_type, server_round),
            self._pushed.get(message_type, {}),
            allows_any_group=not self._communication.is_native,
        )

    def route_clients(
        self, grid: Grid, clients: Iterable[int], busy: Collection[int] = ()
    ) -> dict[int, tuple[int, ...]]:
        """Return the available nodes of ``clients``, each with its clients.

        The result leaves out clients that are ``busy`` by the virtual clock, and those of a node
        with a message of an earlier round: a node handles one message at a time.
        """
        requested = set(clients)
        clients_by_node = self.registry.group_by_node(sorted(requested.difference(busy)))
        nodes = grid.busy_nodes if isinstance(grid, WaitingGrid) else frozenset()
        waiting = {k for node in nodes for k in clients_by_node.pop(node, ())}
        self._busy_clients = frozenset(waiting | requested.intersection(busy))
        return clients_by_node

    def prepare_replies(
        self,
        grid: Grid,
        selected: Collection[int],
        clients_by_node: Mapping[int, tuple[int, ...]],
        model: NamedArrays | None,
        *,
        priority: frozenset[int],
    ) -> None:
        """Note the expected clients, and refuse replies that would take too much memory.

        The limit of the grid includes the overhead of a message; the payload is checked later.
        """
        self._reply_counter = ReplyCounter(self._communication.quorum, selected, priority)
        self._clients_by_node = clients_by_node
        self._grid = grid if isinstance(grid, WaitingGrid) else None
        if self._grid is None:
            return
        get_max_bytes = self._communication.get_max_reply_bytes
        limits = {
            node: MAX_OVERHEAD_BYTES + MAX_OVERHEAD_FACTOR * get_max_bytes(len(clients), model)
            for node, clients in clients_by_node.items()
        }
        self._grid.limit_replies(limits)

    def is_quorum(self, arrival: Arrival) -> bool:
        """Count a reply; return whether the replies so far are enough to close the round.

        A client that its node reports as unavailable does not count as a reply.
        """
        absent = find_unavailable_clients(arrival.message.content)
        return self._reply_counter.add(set(self._clients_by_node.get(arrival.node, ())) - absent)

    def collect_late_replies(self, server_round: int) -> tuple[LateReply, ...]:
        """Return the replies to earlier rounds that have arrived since the last call."""
        if self._grid is None:
            return ()
        late = []
        for arrival in self._grid.take_late_arrivals():
            message_type, _, number = arrival.message.metadata.group_id.partition(" ")
            if message_type == MessageType.TRAIN:
                clients = self._clients_by_round.get(int(number), {}).get(arrival.node, ())
                late += [LateReply(int(number), k, arrival.seconds) for k in clients]
        if not self._grid.busy_nodes:
            self._clients_by_round.clear()
        if self._grid.closed_early:
            self._clients_by_round[server_round] = self._clients_by_node
        return tuple(late)

    def build_evaluate_messages(
        self,
        server_round: int,
        grid: Grid,
        arrays: ArrayRecord,
        evaluation_plan: EvaluationPlan,
        *,
        priority: frozenset[int],
        user_config: ConfigRecord,
    ) -> list[Message]:
        """Return the messages that request test metrics, and losses on training splits."""
        test_clients = frozenset(evaluation_plan.test_clients)
        train_clients = evaluation_plan.train_split_clients
        self._evaluation_clients = test_clients | train_clients
        self._evaluation_clients_by_node = self.route_clients(grid, self._evaluation_clients)
        self.prepare_replies(
            grid,
            self._evaluation_clients,
            self._evaluation_clients_by_node,
            None,
            priority=priority,
        )
        requests = {
            node: EvaluateRequest(
                server_round,
                clients,
                train=tuple(k in train_clients for k in clients),
                test=tuple(k in test_clients for k in clients),
                evaluates_local_model=evaluation_plan.evaluates_local_model,
            )
            for node, clients in self._evaluation_clients_by_node.items()
        }
        contents = {
            node: self._communication.build_evaluate_content(arrays, request)
            for node, request in requests.items()
        }
        return self.build_messages(contents, MessageType.EVALUATE, server_round, user_config)

    def collect_train_results(
        self,
        replies: Iterable[Message],
        clients_by_node: Mapping[int, tuple[int, ...]],
        server_round: int,
        model: NamedArrays,
        handler: ReplyHandler[TrainResult],
    ) -> ReplyResults[TrainResult]:
        """Return the nodes' results of train messages, by client."""
        results = collect_results(
            replies,
            clients_by_node,
            self._build_expected_reply(MessageType.TRAIN, server_round),
            lambda content: self._communication.read_train_reply(content, self.limits),
            TrainResult,
            max_bytes=lambda count: self._communication.get_max_reply_bytes(count, model),
            handler=handler,
        )
        self.traffic = self.traffic.add_bytes(up=results.num_bytes)
        return results

    def collect_evaluate_results(
        self, replies: Iterable[Message], server_round: int
    ) -> ReplyResults[EvaluateResult]:
        """Return the nodes' results of evaluate messages, by client.

        Raises
        ------
        RunError
            In this project's protocol, if the evaluation failed on every node.
        """
        results = collect_results(
            replies,
            self._evaluation_clients_by_node,
            self._build_expected_reply(MessageType.EVALUATE, server_round),
            self._communication.read_evaluate_reply,
            EvaluateResult,
            max_bytes=lambda count: self._communication.get_max_reply_bytes(count, None),
        )
        self.traffic = self.traffic.add_bytes(up=results.num_bytes)
        if self._communication.is_native:
            model = f"the model after round {server_round}" if server_round else "the first model"
            metric = self._communication.metric
            check_evaluation(
                results,
                self._evaluation_clients_by_node,
                self._evaluation_clients,
                model=model,
                metric=metric,
            )
        return results

    def get_client_outcome(
        self,
        client: int,
        results: ReplyResults[TrainResult],
        model: NamedArrays | None,
    ) -> ClientOutcome:
        """Return the outcome of a selected client, before any rule uses it."""
        outcome = self._validate_result(client, results, model)
        if outcome.status not in REPLY_STATUSES:
            return outcome
        seconds = self._get_seconds(client, results)
        problem = find_seconds_problem(seconds) if self._communication.virtual_clock else None
        if problem is not None:
            return ClientOutcome(client, "rejected", outcome.reason or problem)
        return replace(outcome, seconds=seconds)

    def _get_seconds(self, client: int, results: ReplyResults[TrainResult]) -> float | None:
        """Return the seconds of a reply; None if time decides nothing."""
        if self._communication.virtual_clock:
            result = results.by_client.get(client)
            return None if result is None else result.seconds
        node = self.registry.find_node(client)
        if self._grid is None or node is None or not self._communication.closes_early:
            return None
        return self._grid.seconds.get(node)

    def _validate_result(
        self, client: int, results: ReplyResults[TrainResult], model: NamedArrays | None
    ) -> ClientOutcome:
        """Return the outcome of a selected client, without its response time."""
        if client in results.malformed:
            return ClientOutcome(client, "rejected", results.malformed[client])
        result = results.by_client.get(client)
        if result is None:
            return ClientOutcome(client, *self._explain_missing_reply(client))
        if result.status is not Status.DONE:
            reason = result.reason
            if result.status is Status.FAILED:
                reason = reason or "it failed and gave no reason"
            return ClientOutcome(client, result.status.name.lower(), reason)
        problem = find_form_problem(result, model, self.limits)
        if problem is not None:
            results.malformed[client] = problem
        problem = problem or find_value_problem(result, self.limits)
        if problem is not None:
            return ClientOutcome(client, "rejected", problem)
        return ClientOutcome(
            client,
            "trained",
            num_examples=result.num_examples,
            loss=result.loss,
            accuracy=result.accuracy,
        )

    def _explain_missing_reply(self, client: int) -> tuple[str, str]:
        """Return the status of a client without a reply, and the reason."""
        if self.registry.find_node(client) is None:
            return "unavailable", "its node is not connected"
        if client in self._busy_clients:
            return "busy", "its node still has the message of an earlier round"
        if self._grid is not None and self._grid.closed_early:
            return "late", LATE_REASON
        return "failed", NO_REPLY_REASON

    def log_round(self, report: RoundReport, results: ReplyResults[TrainResult]) -> None:
        """Log the result of a round if no records are kept.

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
                f"{self._communication.other_protocol_hint}"
            )
        if not self._communication.is_native:
            self._logger.log_round(report, results)


@dataclass(frozen=True)
class Connection:
    """A strategy's protocol, its clients, and the session with their nodes."""

    communication: NativeProtocol
    population: Population
    session: NodeSession

    @classmethod
    def from_rules(
        cls, rules: RuleSet, population: Population, communication: NativeProtocol
    ) -> Self:
        """Return a connection with a new session.

        Raises
        ------
        ParameterError
            If clients of the protocol cannot serve the rules.
        """
        communication.check_rules(rules)
        return cls(communication, population, NodeSession(communication, population, rules))

    def log_summary(self, rules: RuleSet) -> None:
        """Log the clients, the settings of the protocol, and the rules."""
        population = self.population
        if population.clients:
            log(INFO, "\t├──> Clients: %d", len(population.clients))
        if population.non_priority_clients:
            log(INFO, "\t├──> Priority: %s", list(population.priority_clients))
        self.communication.log_summary()
        log(INFO, "\t├──> Selection: %s", rules.selection)
        log(INFO, "\t├──> Weighting: %s", rules.weighting)
        log(INFO, "\t├──> Divisor: %s", rules.denominator)
        log(INFO, "\t├──> Server optimizer: %s", rules.server_optimizer)
        log(INFO, "\t└──> Server learning rate: %s", rules.server_lr_schedule.schedule)


def _get_rule_name(weighting: Weighting[Any]) -> str:
    """Return a rule's name as users know it."""
    name, colon, _ = weighting.summary.partition(":")
    return name if colon else type(weighting).__name__


def _build_group_id(message_type: str, server_round: int) -> str:
    """Return the group id that replies of this step must carry."""
    return f"{message_type} {server_round}"
