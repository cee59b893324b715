"""Run pure rules as a Flower strategy: send messages, read replies, decide, step.

One round::

    configure_train     rules.call -> one train message for each node
    aggregate_train     read the replies -> ``round.decide`` -> the server's step
    configure_evaluate  priority clients: training loss and accuracy; all or priority: test part
    aggregate_evaluate  F(w_{t+1}) for the next broadcast

Before round 1, ``configure_initial`` and ``aggregate_initial`` measure F(w_0) where the rules
need it. After each step, ``outcome`` has the decisions and the measurements.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from ..composition import Rules
from ..errors import StateError
from ..report import ClientEvaluation, TrainReport
from ..round import NO_OBJECTIVE, decide
from ..server_state import ServerState
from ..state import StateArrays
from ..types import Call, Population
from .arriving import received
from .asked import Asked, begun, train_requests
from .codec import (
    NamedArrays,
    encode_arrays,
    encode_objective,
    view_arrays,
)
from .communication import Communication
from .exchange import Connection, Exchange, Traffic
from .grids import is_flowers
from .measuring import Measuring, candidates_of, client_evaluations, with_objective
from .replies import usable_evaluations
from .server_memory import Memory
from .training import (
    clip_privately,
    moved,
    replied_in_time,
    round_answers,
)
from .waiting import Arrival, WaitingGrid


@dataclass(frozen=True)
class Outcome:
    """The decisions and measurements of a strategy's last step.

    Parameters
    ----------
    last_report : TrainReport or None
        The decisions of the last aggregated round; ``report`` raises an error if it is None.
    evaluations : tuple of ClientEvaluation
        The clients' measurements of the last evaluation, ascending by client id.
    traffic : Traffic
        Payload bytes since the strategy was created.
    state_bytes : int
        Bytes that the server keeps between rounds beside the model.
    away : tuple of int
        The clients that are not connected, so that the round does not sample them.
    """

    last_report: TrainReport | None = None
    evaluations: tuple[ClientEvaluation, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    state_bytes: int = 0
    away: tuple[int, ...] = ()

    @property
    def report(self) -> TrainReport:
        """The decisions of the last round.

        Raises
        ------
        StateError
            If no round has been aggregated yet.
        """
        if self.last_report is None:
            raise StateError("no round has been aggregated yet")
        return self.last_report


class ComposedStrategy(Strategy):
    """Combine independent rules to a Flower strategy.

    Parameters
    ----------
    rules : Rules
        The rules that select clients, weight their updates, and move the model.
    population : Population
        All clients, and which of them have priority.
    communication : Communication, optional
        The protocol with the nodes; by default that of ``fedquorum.flower.codec``.

    Raises
    ------
    ParameterError
        If clients of that protocol cannot serve the rules.
    """

    def __init__(
        self, rules: Rules, *, population: Population, communication: Communication | None = None
    ) -> None:
        self.rules = rules
        self._outcome = Outcome()
        self._connect(Connection.of(rules, population, communication or Communication()))

    def _connect(self, connection: Connection) -> None:
        """Begin with these clients, who nobody has heard of yet."""
        self._connection = connection
        self._state = ServerState.initial(self.rules, connection.population)
        self._memory = Memory(self.rules)
        self._next: tuple[int, Call] | None = None
        self._asked: Asked | None = None
        self._measured: frozenset[int] = frozenset()

    @property
    def communication(self) -> Communication:
        """The protocol with the nodes."""
        return self._connection.communication

    @property
    def population(self) -> Population:
        """All clients, and which of them have priority."""
        return self._connection.population

    @property
    def _exchange(self) -> Exchange:
        return self._connection.exchange

    # --- what a run loop reads, writes down and goes on from ---------------------------------

    @property
    def outcome(self) -> Outcome:
        """The decisions and measurements of the last step."""
        return replace(
            self._outcome,
            traffic=self._exchange.traffic,
            state_bytes=self._memory.nbytes + self._state.nbytes,
            away=self._exchange.away(self.population),
        )

    def state(self) -> StateArrays:
        """Return the state that the strategy keeps between rounds beside the model, by array name.

        The arrays may be the strategy's: write them before the next round, and do not change them.
        """
        known = self._exchange.directory.known
        arrays = self._state.arrays(self.rules, self._memory.updates, known)
        return {**arrays, **self._memory.state()}

    def restore(self, state: Mapping[str, NDArray[Any]], model: NamedArrays) -> None:
        """Continue from the state and the model after a round, as ``state`` returned it.

        The next round waits for the clients, as the first one does.

        Raises
        ------
        StateError
            If the state belongs to other rules, other clients or another model.
        """
        self._state = ServerState.of_arrays(state, self.rules, self.population, model)
        self._memory.restore(state, model, self.population)
        self._exchange.directory.remember(state["known"].tolist())
        self._next = None

    def mean_start(self, arrays: ArrayRecord) -> ArrayRecord | None:
        """Return the mean of the models from which all clients start after a round.

        ``arrays`` is the model after that round. The result is None if all clients start from it.
        """
        weighting, model = self._state.rounds.weighting, view_arrays(arrays)
        mean = self._memory.mean_start(weighting, model, self.population)
        return None if mean is None else encode_arrays(mean)

    def summary(self) -> None:
        """Log the parts of the strategy."""
        self._connection.summary(self.rules)

    # --- before round 1 ----------------------------------------------------------------------

    @property
    def needs_initial(self) -> bool:
        """Whether ``configure_initial`` has yet to measure F(w_0)."""
        first = self.rules.measures_first and self.communication.follows_protocol
        return first and not self._state.rounds.told.examples

    def configure_initial(self, arrays: ArrayRecord, grid: Grid) -> Iterable[Message]:
        """Return the messages that measure F(w_0) and the clients' amounts of data."""
        self._meet(grid)
        measuring = Measuring.first(self.population, self.rules)
        return self._evaluate_messages(0, grid, arrays, measuring, ConfigRecord())

    def aggregate_initial(self, replies: Iterable[Message]) -> None:
        """Keep F(w_0), over the clients of round 1 if F is over the clients asked."""
        evaluations = self._evaluations(0, replies)
        selection = self.rules.selection
        sampled = selection.samples_objective and self.rules.hooks.before_round is None
        if sampled and self._state.rounds.told.examples:
            self._measured &= frozenset(self._call(1).clients)
        self._keep(evaluations)

    def measure_initial(self, arrays: ArrayRecord, grid: Grid) -> tuple[ClientEvaluation, ...]:
        """Measure F(w_0) if that is needed; return what the clients measured."""
        if not self.needs_initial:
            return ()
        messages = self.configure_initial(arrays, grid)
        timeout = self.communication.reply_timeout
        self.aggregate_initial(grid.send_and_receive(messages, timeout=timeout))
        return self._outcome.evaluations

    def waiting(self, grid: Grid) -> WaitingGrid:
        """Return a grid that waits for the strategy's quorum."""
        enough = self._is_quorum if self.communication.closes_early else None
        grace, once = self.communication.quorum.grace_seconds, _read_once(type(self))
        return WaitingGrid(grid, enough=enough, grace=grace, one_by_one=once)

    def _is_quorum(self, arrival: Arrival) -> bool:
        return self._exchange.is_quorum(arrival)

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """Run all rounds, as ``flwr.serverapp.strategy.Strategy.start`` does.

        A ``WaitingGrid`` replaces the wait of Flower's own grids for replies.
        """
        if is_flowers(grid):
            grid = self.waiting(grid)
        self.measure_initial(initial_arrays, grid)
        return super().start(grid, initial_arrays, *args, **kwargs)

    # --- training ----------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one train message for each node that hosts a client asked in this round."""
        self._meet(grid)
        call = self._call(server_round)
        model, priority = view_arrays(arrays), self.population.priority
        connection, kept = self._connection, self._memory
        self._asked = asked = begun(
            server_round, call, model, grid, connection, state=self._state, memory=kept
        )
        self._exchange.expect(grid, call.clients, asked.asked_at, model, priority=priority)
        sampled = (len(asked.asked_at), len(self._exchange.directory.nodes))
        log(INFO, "configure_train: Sampled %d nodes (out of %d)", *sampled)
        contents = {
            node: self.communication.train_content(arrays, request)
            for node, request in train_requests(asked, self._state.objective, priority).items()
        }
        return self._exchange.messages(contents, MessageType.TRAIN, server_round, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Weigh and combine the updates, and step; return no model if no update counted."""
        asked = self._in_progress(server_round)
        population, communication, state = self.population, self.communication, self._state
        answers = received(replies, asked, self._exchange, communication)
        closing = replied_in_time(
            asked, answers, self._exchange, communication, state.clock, priority=population.priority
        )
        clipped = clip_privately(closing.answers, answers, asked)
        # In the standard protocol the clients' answers tell F(w_t).
        objective = state.objective or NO_OBJECTIVE if communication.follows_protocol else None
        decided = decide(
            self.rules,
            population,
            state.rounds,
            server_round=server_round,
            call=asked.call,
            objective=objective,
            answers=round_answers(clipped.each, asked, answers, self._exchange),
            robustness=communication.robustness,
        )
        kept, before = self._memory, state.optimizer
        after = moved(asked, answers, decided, before, memory=kept, population=population)
        decided = after.decided
        state = replace(state, rounds=decided.following, optimizer=after.optimizer)
        norm = asked.next_norm(clipped.votes)
        self._state = replace(state, clock=closing.clock, clipping_norm=norm)
        simulated = closing.clock.now if communication.virtual_clock else None
        report = replace(decided.report, late=closing.late, simulated_seconds=simulated)
        self._outcome = replace(self._outcome, last_report=report)
        self._exchange.tell(decided.report, answers)
        contents = [answers.contents[k] for k in decided.clients]
        metrics = communication.train_metrics(decided.report, contents)
        return None if after.model is None else encode_arrays(after.model), metrics

    # --- evaluation --------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask for F_k(w_{t+1}) and test metrics; see ``Measuring``."""
        communication = self.communication
        if communication.grows:
            self._meet(grid, evaluating=True)
        tested = communication.tested(self.population, self._exchange.directory, server_round)
        measuring = Measuring(tested)
        if communication.follows_protocol:
            population, rules, present = self.population, self.rules, self._exchange.present
            told = replace(self._state.rounds.told, present=present)
            following = candidates_of(server_round + 1, population, told, rules, self._call)
            measuring = Measuring.after(
                population, communication, tested, following, rules=rules, present=present
            )
        return self._evaluate_messages(server_round, grid, arrays, measuring, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Keep the measurements and F(w_{t+1}), which the next round broadcasts."""
        if not self.communication.follows_protocol:
            answers = self._exchange.evaluate_answers(replies, server_round)
            usable = usable_evaluations(answers, any_weight=True)
            return self.communication.evaluate_metrics([answers.contents[k] for k in usable])
        self._keep(self._evaluations(server_round, replies))
        objective = self._state.objective or NO_OBJECTIVE
        return None if math.isnan(objective.loss) else encode_objective(objective)

    def _evaluations(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ClientEvaluation, ...]:
        """Return what the clients measured, and remember their amounts of data."""
        answers = self._exchange.evaluate_answers(replies, server_round)
        evaluations = client_evaluations(answers, self.population, self.communication.metric)
        self._state = self._state.with_evaluations(self.rules, evaluations)
        return evaluations

    def _keep(self, evaluations: tuple[ClientEvaluation, ...]) -> None:
        """Keep F of those that were asked for it."""
        stands_in = self.communication.closes_early
        self._state = with_objective(self._state, self._measured, evaluations, stands_in=stands_in)
        self._outcome = replace(self._outcome, evaluations=evaluations)

    def _in_progress(self, server_round: int) -> Asked:
        """Return what a round was started with."""
        if self._asked is None or self._asked.server_round != server_round:
            raise StateError(f"round {server_round} was not configured")
        return self._asked

    # --- parts -------------------------------------------------------------------------------

    def _meet(self, grid: Grid, *, evaluating: bool = False) -> None:
        """Note which clients are connected, and take up those that are new."""
        population = self._exchange.meet(grid, self.population, evaluating=evaluating)
        if population is not self.population:
            self._state = self._state.grown(self.rules, self.population, population)
            self._connection = replace(self._connection, population=population)
            self._next = None

    def _call(self, server_round: int) -> Call:
        """Return whom a round asks."""
        if self._next is not None and self._next[0] == server_round:
            return self._next[1]
        told = replace(self._state.rounds.told, present=self._exchange.present)
        call = self.rules.call(server_round - 1, self.population, told)
        call = replace(call, clients_decide=self.communication.follows_protocol)
        if call.settled and told.present is None:  # else what it follows from may change
            self._next = server_round, call
        return call

    def _evaluate_messages(
        self,
        server_round: int,
        grid: Grid,
        arrays: ArrayRecord,
        measuring: Measuring,
        extra: ConfigRecord,
    ) -> list[Message]:
        priority = self.population.priority
        self._measured = self.rules.selection.compared(priority.intersection(measuring.measured))
        return self._exchange.evaluate_messages(
            server_round, grid, arrays, measuring, priority=priority, extra=extra
        )


def _read_once(kind: type[Strategy]) -> bool:
    """Say whether replies are read once: the methods of a user's subclass may read them as well."""
    methods = (kind.aggregate_train, kind.aggregate_evaluate)
    return all(method.__module__.rpartition(".")[0] == __package__ for method in methods)
