"""One exchange with the nodes: messages to those that host the clients asked, replies back."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from logging import INFO
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from ..composition import Rules
from ..errors import ProtocolError
from ..quorum import Tally
from ..report import LateReply, TrainReport
from ..round import ClientAnswer
from ..types import Population
from ..virtual_clock import LATE, NO_REPLY, REPLIED
from ..weighting import Weighting
from .codec import (
    EvaluateAnswer,
    EvaluateRequest,
    NamedArrays,
    Status,
    TrainAnswer,
    absent_clients,
    add_user_config,
    count_bytes,
)
from .communication import Communication
from .measuring import Measuring
from .notices import Notices
from .replies import Answers, Intake, check_evaluated, collect
from .validation import Sent, form_problem, seconds_problem, value_problem
from .waiting import Arrival, WaitingGrid

OVERHEAD = 2
OVERHEAD_BYTES = 2**20
"""A message weighs at most so many times its payload, and so much more."""


@dataclass(frozen=True)
class Traffic:
    """Payload bytes of all messages so far, to the nodes and from them."""

    bytes_down: int = 0
    bytes_up: int = 0

    def plus(self, down: int = 0, up: int = 0) -> "Traffic":
        """Return it with more bytes."""
        return Traffic(self.bytes_down + down, self.bytes_up + up)


class Exchange:
    """Send a strategy's requests to the nodes that host its clients, and sort the replies.

    Parameters
    ----------
    communication : Communication
        The protocol.
    population : Population
        All clients.
    rules : Rules
        The strategy's rules.
    """

    def __init__(self, communication: Communication, population: Population, rules: Rules) -> None:
        self._communication = communication
        self._rules = rules
        self.limits = communication.limits(rules)
        self._notices = Notices(communication, rules)
        self._pushed: dict[str, Mapping[int, Metadata]] = {}
        self._started = False
        self.directory = communication.directory(population, rules)
        self.traffic = Traffic()
        self.has_trained = False
        self._evaluating: Mapping[int, tuple[int, ...]] = {}
        self._measuring: frozenset[int] = frozenset()
        self._grid: WaitingGrid | None = None
        self._busy: frozenset[int] = frozenset()
        self._tally = Tally(communication.quorum, (), ())
        self._asked_at: Mapping[int, tuple[int, ...]] = {}
        self._asked_in: dict[int, Mapping[int, tuple[int, ...]]] = {}

    @property
    def present(self) -> frozenset[int] | None:
        """The clients from which a round samples; None for all."""
        return self._communication.present(self.directory)

    def away(self, population: Population) -> tuple[int, ...]:
        """Return the clients that the round does not sample among, as they are not connected."""
        present = self.present
        return () if present is None else tuple(sorted({*population.clients} - present))

    def meet(self, grid: Grid, population: Population, *, evaluating: bool = False) -> Population:
        """Note which nodes are connected; return the population, with the clients that joined."""
        first = not self._started
        self._communication.meet(self.directory, grid, first=first, evaluating=evaluating)
        joined = population
        if population.joins:
            joined = population.joined_by(self.directory.known.tolist())
        if first:
            self._communication.check_ids(grid, joined)
            self._close(joined)
        self._started = True
        return joined

    def seat(self, nodes: Mapping[int, int], population: Population) -> None:
        """Restore the earlier clients, each with its node if nodes have no other identity."""
        self.directory.seat(nodes)
        self._close(population)

    def _close(self, population: Population) -> None:
        """Take no further clients where the rules keep those that they began with."""
        if self._rules.weighting.fixed_population and self._communication.grows:
            name = _name(self._rules.weighting)
            self.directory.close(
                f"{name} keeps the {len(population.clients)} clients that it began with"
            )

    def messages(
        self,
        contents: Mapping[int, RecordDict],
        message_type: str,
        server_round: int,
        extra: ConfigRecord,
    ) -> list[Message]:
        """Return one message for each node; ``extra`` is the user's own config."""
        messages = {}
        for node, content in contents.items():
            add_user_config(content, extra)
            self.traffic = self.traffic.plus(down=count_bytes(content))
            group = _group(message_type, server_round)
            messages[node] = Message(content, node, message_type, group_id=group)
        # A grid writes a message's id into its metadata when it pushes the message.
        self._pushed[message_type] = {node: m.metadata for node, m in messages.items()}
        return list(messages.values())

    def _sent(self, message_type: str, server_round: int) -> Sent:
        return Sent(
            _group(message_type, server_round),
            self._pushed.get(message_type, {}),
            any_group=not self._communication.follows_protocol,
        )

    def reach(
        self, grid: Grid, clients: Iterable[int], busy: Collection[int] = ()
    ) -> dict[int, tuple[int, ...]]:
        """Return the nodes that can be asked for ``clients``, each with its share.

        Not asked are the clients that are ``busy`` by the virtual clock, and those of a node with
        a message of an earlier round: it handles one at a time.
        """
        wanted = set(clients)
        asked_at = self.directory.by_node(sorted(wanted.difference(busy)))
        nodes = grid.busy if isinstance(grid, WaitingGrid) else frozenset()
        waiting = {k for node in nodes for k in asked_at.pop(node, ())}
        self._busy = frozenset(waiting | wanted.intersection(busy))
        return asked_at

    def expect(
        self,
        grid: Grid,
        asked: Collection[int],
        asked_at: Mapping[int, tuple[int, ...]],
        model: NamedArrays | None,
        *,
        priority: frozenset[int],
    ) -> None:
        """Note the awaited clients, and refuse replies that would take too much memory.

        What a message weighs beside its payload is left to the check of the payload.
        """
        self._tally = Tally(self._communication.quorum, asked, priority)
        self._asked_at = asked_at
        self._grid = grid if isinstance(grid, WaitingGrid) else None
        if self._grid is None:
            return
        largest = self._communication.largest_reply
        limits = {
            node: OVERHEAD_BYTES + OVERHEAD * largest(len(clients), model)
            for node, clients in asked_at.items()
        }
        self._grid.limit_replies(limits)

    def is_quorum(self, arrival: Arrival) -> bool:
        """Count a reply; say whether those so far are enough for the round to close.

        A client that is unavailable has not replied, whatever its node says for it.
        """
        absent = absent_clients(arrival.message.content)
        return self._tally.add(set(self._asked_at.get(arrival.node, ())) - absent)

    def note_late_replies(self, server_round: int) -> tuple[LateReply, ...]:
        """Return the replies to earlier rounds that have come since the last time."""
        if self._grid is None:
            return ()
        late = []
        for arrival in self._grid.late_arrivals():
            message_type, _, number = arrival.message.metadata.group_id.partition(" ")
            if message_type == MessageType.TRAIN:
                clients = self._asked_in.get(int(number), {}).get(arrival.node, ())
                late += [LateReply(int(number), k, arrival.seconds) for k in clients]
        if not self._grid.busy:
            self._asked_in.clear()
        if self._grid.closed_early:
            self._asked_in[server_round] = self._asked_at
        return tuple(late)

    def evaluate_messages(
        self,
        server_round: int,
        grid: Grid,
        arrays: ArrayRecord,
        measuring: Measuring,
        *,
        priority: frozenset[int],
        extra: ConfigRecord,
    ) -> list[Message]:
        """Return the messages that ask for test metrics, and for losses on training parts."""
        tested, measured = frozenset(measuring.tested), measuring.trained_on
        self._measuring = tested | measured
        self._evaluating = self.reach(grid, self._measuring)
        self.expect(grid, self._measuring, self._evaluating, None, priority=priority)
        requests = {
            node: EvaluateRequest(
                server_round,
                clients,
                train=tuple(k in measured for k in clients),
                test=tuple(k in tested for k in clients),
                keeps_model=measuring.keeps_model,
            )
            for node, clients in self._evaluating.items()
        }
        contents = {
            node: self._communication.evaluate_content(arrays, request)
            for node, request in requests.items()
        }
        return self.messages(contents, MessageType.EVALUATE, server_round, extra)

    def train_answers(
        self,
        replies: Iterable[Message],
        asked_at: Mapping[int, tuple[int, ...]],
        server_round: int,
        model: NamedArrays,
        intake: Intake[TrainAnswer],
    ) -> Answers[TrainAnswer]:
        """Return the nodes' answers to train messages, by client."""
        answers = collect(
            replies,
            asked_at,
            self._sent(MessageType.TRAIN, server_round),
            lambda content: self._communication.read_train(content, self.limits),
            TrainAnswer,
            largest=lambda count: self._communication.largest_reply(count, model),
            intake=intake,
        )
        self.traffic = self.traffic.plus(up=answers.num_bytes)
        return answers

    def evaluate_answers(
        self, replies: Iterable[Message], server_round: int
    ) -> Answers[EvaluateAnswer]:
        """Return the nodes' answers to evaluate messages, by client.

        Raises
        ------
        RunError
            In this project's protocol, if the evaluation failed at every node that was asked.
        """
        answers = collect(
            replies,
            self._evaluating,
            self._sent(MessageType.EVALUATE, server_round),
            self._communication.read_evaluate,
            EvaluateAnswer,
            largest=lambda count: self._communication.largest_reply(count, None),
        )
        self.traffic = self.traffic.plus(up=answers.num_bytes)
        if self._communication.follows_protocol:
            model = f"the model after round {server_round}" if server_round else "the first model"
            metric = self._communication.metric
            check_evaluated(answers, self._evaluating, self._measuring, model=model, metric=metric)
        return answers

    def client_answer(
        self,
        client: int,
        answers: Answers[TrainAnswer],
        model: NamedArrays | None,
    ) -> ClientAnswer:
        """Return the answer of a client asked, before any rule uses it."""
        answer = self._judged(client, answers, model)
        if answer.status not in REPLIED:
            return answer
        seconds = self._seconds(client, answers)
        problem = seconds_problem(seconds) if self._communication.virtual_clock else None
        if problem is not None:
            return ClientAnswer(client, "rejected", answer.reason or problem)
        return replace(answer, seconds=seconds)

    def _seconds(self, client: int, answers: Answers[TrainAnswer]) -> float | None:
        """Return how long a reply took, None where time decides nothing."""
        if self._communication.virtual_clock:
            part = answers.parts.get(client)
            return None if part is None else part.seconds
        node = self.directory.node_of(client)
        if self._grid is None or node is None or not self._communication.closes_early:
            return None
        return self._grid.seconds.get(node)

    def _judged(
        self, client: int, answers: Answers[TrainAnswer], model: NamedArrays | None
    ) -> ClientAnswer:
        """Return what became of a client asked, whenever its reply came."""
        if client in answers.malformed:
            return ClientAnswer(client, "rejected", answers.malformed[client])
        part = answers.parts.get(client)
        if part is None:
            return ClientAnswer(client, *self._silence(client))
        if part.status is not Status.DONE:
            reason = part.reason
            if part.status is Status.FAILED:
                reason = reason or "it failed and gave no reason"
            return ClientAnswer(client, part.status.name.lower(), reason)
        problem = form_problem(part, model, self.limits)
        if problem is not None:
            answers.malformed[client] = problem
        problem = problem or value_problem(part, self.limits)
        if problem is not None:
            return ClientAnswer(client, "rejected", problem)
        return ClientAnswer(
            client,
            "trained",
            num_examples=part.num_examples,
            loss=part.loss,
            accuracy=part.accuracy,
        )

    def _silence(self, client: int) -> tuple[str, str]:
        """Return the status of a client of whom nothing came, and why."""
        if self.directory.node_of(client) is None:
            return "unavailable", "its node is not connected"
        if client in self._busy:
            return "busy", "its node still has the message of an earlier round"
        if self._grid is not None and self._grid.closed_early:
            return "late", LATE
        return "failed", NO_REPLY

    def tell(self, report: TrainReport, answers: Answers[TrainAnswer]) -> None:
        """Log the result of a round if no records are kept.

        Raises
        ------
        ProtocolError
            In the first round in which clients trained, if all of them replied in the form of the
            other protocol. In the first round, if no reply of several has the form that it must
            have.
        """
        first = not self.has_trained
        self.has_trained = self.has_trained or bool(answers.in_form)
        if first and answers.in_form == {False}:
            raise ProtocolError(
                f"every client that trained in round {report.server_round} replied in "
                f"{self._communication.other_form}"
            )
        if not self._communication.follows_protocol:
            self._notices.after(report, answers)


@dataclass(frozen=True)
class Connection:
    """With which clients a strategy speaks, and how.

    Parameters
    ----------
    communication : Communication
        The protocol.
    population : Population
        All clients and which of them have priority.
    exchange : Exchange
        What is sent to their nodes, and what comes back.
    """

    communication: Communication
    population: Population
    exchange: Exchange

    @classmethod
    def of(cls, rules: Rules, population: Population, communication: Communication) -> Self:
        """Return a connection on which nothing was said yet.

        Raises
        ------
        ParameterError
            If clients of the protocol cannot serve the rules.
        """
        communication.check_rules(rules)
        return cls(communication, population, Exchange(communication, population, rules))

    def summary(self, rules: Rules) -> None:
        """Log the clients, how the strategy speaks with them, and its rules."""
        population = self.population
        if population.clients:
            log(INFO, "\t├──> Clients: %d", len(population.clients))
        if population.others:
            log(INFO, "\t├──> Priority: %s", list(population.priority_clients))
        self.communication.summary()
        log(INFO, "\t├──> Selection: %s", rules.selection)
        log(INFO, "\t├──> Weighting: %s", rules.weighting)
        log(INFO, "\t├──> Divisor: %s", rules.divisor)
        log(INFO, "\t├──> Server optimizer: %s", rules.server_optimizer)
        log(INFO, "\t└──> Server learning rate: %s", rules.server_rate.schedule)


def _name(weighting: Weighting[Any]) -> str:
    """Return the name by which users know a rule."""
    name, colon, _ = weighting.summary.partition(":")
    return name if colon else type(weighting).__name__


def _group(message_type: str, server_round: int) -> str:
    """Return what a reply must name to be one to the messages of this step."""
    return f"{message_type} {server_round}"
