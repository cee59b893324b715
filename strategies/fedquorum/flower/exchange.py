"""Exchange messages with the nodes that host the selected clients."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from logging import INFO
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from ..composition import RuleSet
from ..decisions import LateReply, RoundReport
from ..errors import ProtocolError
from ..quorum import ReplyCounter
from ..round import ClientOutcome
from ..types import Population
from ..virtual_clock import LATE_REASON, NO_REPLY_REASON, REPLY_STATUSES
from ..weighting import Weighting
from .codec import (
    EvaluateRequest,
    EvaluateResult,
    NamedArrays,
    Status,
    TrainResult,
    add_user_config,
    count_bytes,
    find_unavailable_clients,
)
from .communication import NativeProtocol
from .measuring import EvaluationPlan
from .notices import RoundLogger
from .replies import ReplyHandler, ReplyResults, check_evaluation, collect_results
from .validation import ExpectedReply, find_form_problem, find_seconds_problem, find_value_problem
from .waiting import Arrival, WaitingGrid

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
