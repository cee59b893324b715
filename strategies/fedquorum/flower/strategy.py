"""Run pure rules as a Flower strategy: send messages, read replies, decide, step.

One round::

    configure_train     ``rules.plan_round`` -> one train message for each node
    aggregate_train     receive, close, decide, apply: see ``round``
    configure_evaluate  priority clients: training loss and accuracy; all or priority: test split
    aggregate_evaluate  F(w_{t+1}) for the next broadcast

Before round 1, ``configure_initial`` and ``aggregate_initial`` evaluate F(w_0) if the rules need
it. After each step, ``step_result`` has the decisions and the evaluations.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from ..errors import ParameterError, StateError
from ..records.client_names import ClientNames
from ..records.hosts import Host
from ..rules.composition import RuleSet
from ..rules.decisions import (
    ClientEvaluation,
    EvaluationSums,
    PersonalEvaluation,
    RoundReport,
)
from ..rules.round import NO_OBJECTIVE, NOT_UNMASKED, RoundOutcomes, decide_round
from ..rules.selection.base import samples_objective, select_objective_clients
from ..rules.state_arrays import StateArrays
from ..rules.types import ClientsUnderWay, Objective, Population, RoundPlan
from ..server.fixed_bins import FixedBins
from ..server.model_store import ModelStore
from ..server.state import ServerState
from .codec import (
    EvaluateRequest,
    NamedArrays,
    encode_arrays,
    encode_objective,
    encode_sums,
    view_arrays,
)
from .evaluation import (
    EvaluationPlan,
    add_personal_evaluations,
    build_client_evaluations,
    check_evaluation,
    find_candidates,
    select_usable_evaluations,
    update_objective,
)
from .late import open_by_real_clock, open_late_round
from .masked_evaluation import (
    build_evaluate_contents,
    close_masked_evaluation,
    open_masked_evaluation,
    repeat_masked_evaluation,
)
from .masked_round import MaskedRound, count_integers
from .protocol import NativeProtocol
from .round import (
    RoundContext,
    apply_round,
    build_train_requests,
    close_round,
    compute_gram_matrix,
    get_update_sizes,
    list_clip_indicators,
    receive_updates,
    start_round,
)
from .secure.settings import MaskSummary
from .server_memory import SENT, ServerMemory, select_by_prefix
from .session import NodeSession, Traffic
from .waiting_grid import Arrival, WaitingGrid, is_flower_grid

EVALUATED = "evaluated"
"""The array of the state with the hash of the last model that was evaluated by masked sums."""


@dataclass(frozen=True)
class StepResult:
    """The decisions and evaluations of a strategy's last step.

    Parameters
    ----------
    last_report : RoundReport or None
        The decisions of the last aggregated round; ``report`` raises an error if it is None.
    evaluations : tuple of ClientEvaluation
        The clients' results of the last evaluation, ascending by client id.
    traffic : Traffic
        Payload bytes since the strategy was created.
    state_bytes : int
        Bytes that the server stores between rounds beside the model.
    disconnected : tuple of int
        The clients that are not connected, so that the round does not sample them.
    some_busy : bool
        Whether clients took no part in the last evaluation because their nodes trained.
    sums : EvaluationSums or None
        The last evaluation, if nodes mask their sums; ``evaluations`` is empty then.
    """

    last_report: RoundReport | None = None
    evaluations: tuple[ClientEvaluation, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    state_bytes: int = 0
    disconnected: tuple[int, ...] = ()
    some_busy: bool = False
    sums: EvaluationSums | None = None

    @property
    def report(self) -> RoundReport:
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
    """Combine independent rules into a Flower strategy.

    Parameters
    ----------
    rules : RuleSet
        The rules that select clients, weight their updates, and step the model.
    population : Population
        All clients, and which of them have priority.
    communication : NativeProtocol, optional
        The protocol with the nodes; by default that of ``fedquorum.flower.codec``.

    Raises
    ------
    ParameterError
        If clients of that protocol cannot serve the rules.
    """

    def __init__(
        self, rules: RuleSet, *, population: Population, communication: NativeProtocol | None = None
    ) -> None:
        self.rules = rules
        self.communication = communication or NativeProtocol()
        self._step_result = StepResult()
        self._last_round = self.communication.last_round
        self._reset_state(population)

    def _reset_state(self, population: Population) -> None:
        """Reset all state for a new set of clients."""
        self.communication.check_rules(self.rules)
        self.population = population
        self._session = NodeSession(self.communication, population, self.rules)
        self._state = ServerState.initial(self.rules, population)
        self._previous_clock = self._state.clock
        self._memory = ServerMemory.from_rules(self.rules)
        self._sent_models = self._build_model_store()
        self._sent_records: dict[int, ArrayRecord] = {}
        self._next_plan: tuple[int, RoundPlan] | None = None
        self._context: RoundContext | None = None
        self._objective_clients: frozenset[int] = frozenset()
        self._evaluation_clients: frozenset[int] = frozenset()
        self._masked_evaluation: MaskedRound | None = None
        self._evaluated_arrays: ArrayRecord | None = None
        self._evaluated_clients: tuple[int, ...] = ()
        self._evaluated_hash = b""  # of the last evaluated model, with masks
        self._is_evaluated = False

    def _build_model_store(self) -> ModelStore | None:
        """Return the store of the models that clients under way were sent, if these may count."""
        if self.communication.late_updates is None:
            return None
        memory = self.rules.memory
        folder = None if memory is None else memory.memory_dir
        return ModelStore(None if folder is None else Path(folder))

    # --- state for a run loop to read, record and restore ------------------------------------

    @property
    def step_result(self) -> StepResult:
        """The decisions and evaluations of the last step."""
        return replace(
            self._step_result,
            traffic=Traffic(self._session.bytes_down, self._session.bytes_up),
            state_bytes=self._state.nbytes
            + sum(one.nbytes for one in (self._sent_models, self._memory) if one is not None),
            disconnected=self._session.find_disconnected(self.population),
        )

    @property
    def client_names(self) -> ClientNames:
        """The names of clients that the server or their nodes gave."""
        return self._session.registry.names

    @property
    def mask_summary(self) -> MaskSummary | None:
        """The masks of the nodes that are connected; None before the first round, or without."""
        return self._session.mask_summary

    @property
    def client_hosts(self) -> Mapping[int, Host]:
        """The last node of every client in a deployment; empty in a simulation."""
        return self._session.registry.hosts

    @property
    def client_scales(self) -> Mapping[int, ConfigRecord]:
        """The scales that nodes reported for their clients, unchecked."""
        return self._session.registry.scales

    def get_state(self) -> StateArrays:
        """Return the strategy's state between rounds beside the model, by array name.

        The arrays may be the strategy's: write them before the next round, and do not change them.
        """
        registered, memory = self._session.registry.registered, self._memory
        updates = None if memory is None else memory.updates
        arrays = self._state.to_arrays(self.rules, updates, registered)
        if self.communication.secure_aggregation is not None:
            arrays[EVALUATED] = np.frombuffer(self._evaluated_hash, np.uint8)
        if self._sent_models is not None:
            arrays |= {f"{SENT}{k}": array for k, array in self._sent_models.get_state().items()}
        return arrays if memory is None else {**arrays, **memory.get_state()}

    def restore(self, state: Mapping[str, NDArray[Any]], model: NamedArrays) -> None:
        """Restore the state that ``get_state`` returned after a round, and the model of that round.

        The next round waits for the clients, as the first one does.

        Raises
        ------
        StateError
            If the state belongs to other rules, other clients or another model.
        """
        self._state = ServerState.from_arrays(state, self.rules, self.population, model)
        memory = self._memory or ServerMemory(self.rules)
        memory.restore(state, model, self.population)
        self._sent_models = self._build_model_store()
        if self._sent_models is not None:
            self._sent_models.restore(select_by_prefix(SENT, state), model)
        self._sent_records = {}
        self._evaluated_hash = state.get(EVALUATED, np.empty(0, np.uint8)).tobytes()
        self._session.registry.mark_registered(state["known"].tolist())
        self._next_plan = None

    def compute_mean_start_model(self, arrays: ArrayRecord) -> ArrayRecord | None:
        """Return the mean of the models from which all clients start after a round.

        ``arrays`` is the model after that round. The result is None if all clients start from it.
        """
        if self._memory is None:
            return None
        weighting, model = self._state.round_state.weighting, view_arrays(arrays)
        mean = self._memory.compute_mean_start_model(weighting, model, self.population)
        return None if mean is None else encode_arrays(mean)

    def summary(self) -> None:
        """Log the clients, the settings of the protocol, and the rules."""
        population, rules = self.population, self.rules
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

    @property
    def is_time_up(self) -> bool:
        """Whether the virtual clock has reached the end of the run."""
        return self.communication.is_time_up(self._state.clock)

    def is_last_round(self, server_round: int) -> bool:
        """Say whether the run ends after the round that has just been aggregated."""
        return server_round == self.communication.last_round or self.is_time_up

    def is_test_round(self, server_round: int) -> bool:
        """Say whether the test splits are evaluated after the round just aggregated."""
        return self.communication.is_test_round(
            server_round, self._previous_clock, self._state.clock
        )

    # --- before round 1 ----------------------------------------------------------------------

    @property
    def needs_initial_evaluation(self) -> bool:
        """Whether F(w_0) has yet to be evaluated; with masks it would tell each client's loss."""
        communication = self.communication
        needed = self.rules.needs_initial_evaluation and communication.is_native
        has_reports = bool(self._state.round_state.reports.num_examples)
        return needed and communication.secure_aggregation is None and not has_reports

    def find_nodes(self, grid: Grid, clients: Sequence[int]) -> Mapping[int, tuple[int, ...]]:
        """Wait for the clients as round 1 does; return the nodes that host these, each with its."""
        self._update_population(grid)
        return self._session.registry.group_by_node(clients)

    def configure_initial(
        self, arrays: ArrayRecord, grid: Grid, config: ConfigRecord | None = None
    ) -> Iterable[Message]:
        """Return the messages that request F_k(w_0) and the clients' amounts of data."""
        self._update_population(grid)
        plan = EvaluationPlan.for_initial_model(self.population, self.rules)
        return self._build_evaluate_messages(0, grid, arrays, plan, config or ConfigRecord())

    def aggregate_initial(self, replies: Iterable[Message]) -> None:
        """Store F(w_0), over the clients of round 1 if F is over the selected clients."""
        evaluations = self._read_evaluations(0, replies)
        rules = self.rules
        sampled = samples_objective(rules.selection) and rules.hooks.before_round is None
        if sampled and self._state.round_state.reports.num_examples:
            self._objective_clients &= frozenset(self._plan_round(1).clients)
        self._store_evaluations(evaluations)

    def evaluate_initial(
        self, arrays: ArrayRecord, grid: Grid, config: ConfigRecord | None = None
    ) -> tuple[ClientEvaluation, ...]:
        """Evaluate F(w_0) if needed; return the clients' evaluations."""
        if not self.needs_initial_evaluation:
            return ()
        messages = self.configure_initial(arrays, grid, config)
        timeout = self.communication.reply_timeout
        self.aggregate_initial(grid.send_and_receive(messages, timeout=timeout))
        return self._step_result.evaluations

    def build_waiting_grid(self, grid: Grid) -> WaitingGrid:
        """Return a grid that waits for the strategy's quorum."""
        is_quorum = self._is_quorum if self.communication.closes_early else None
        return WaitingGrid(
            grid,
            is_quorum=is_quorum,
            grace_seconds=self.communication.quorum.grace_seconds,
            one_by_one=_should_read_once(type(self)),
            keeps_late=self.communication.counts_by_real_clock,
        )

    def _is_quorum(self, arrival: Arrival) -> bool:
        return self._session.is_quorum(arrival)

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """Run all rounds, as ``flwr.serverapp.strategy.Strategy.start`` does.

        A ``WaitingGrid`` replaces the polling of Flower's own grids.
        """
        if is_flower_grid(grid):
            grid = self.build_waiting_grid(grid)
        self.evaluate_initial(initial_arrays, grid)
        result = super().start(grid, initial_arrays, *args, **kwargs)
        return complete_result(result, initial_arrays)

    # --- training ----------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one train message for each node that hosts a selected client."""
        # A plan is over the clients that can be reached now, so connections are noted first.
        self._update_population(grid)
        session, model, priority = self._session, view_arrays(arrays), self.population.priority
        by_real_clock = self.communication.counts_by_real_clock
        blocked = session.find_blocked_clients(grid) if by_real_clock else ()
        plan = self._plan_round(server_round, blocked)
        busy = self._state.clock.busy_clients if self.communication.virtual_clock else ()
        late, sent_models, training = None, None, plan.clients
        if self.communication.late_updates is not None and not by_real_clock:
            # Who arrives in this round is known before anybody trains, and only these do.
            late = open_late_round(
                session,
                grid,
                server_round,
                plan,
                config,
                state=self._state,
                population=self.population,
            )
            assert self._sent_models is not None
            sent_models = late.select_models(self._sent_models, model)
            self._sent_records[server_round] = arrays
            training = tuple(late.start_rounds)
        clients_by_node = session.open_exchange(
            grid, training, model, priority=priority, busy=busy, joins_earlier=by_real_clock
        )
        # All inputs of the round are fixed here: aggregate_train decides from them alone.
        context = start_round(
            server_round,
            plan,
            model,
            clients_by_node,
            self.communication,
            rules=self.rules,
            state=self._state,
            memory=self._memory,
            population=self.population,
            late=late,
            sent_models=sent_models,
        )
        if self.communication.secure_aggregation is not None:
            # Before anybody trains: who sends no keys is sent no model.
            seed = self.rules.selection.sampling.seed
            length = count_integers(model)
            masks = MaskedRound.open(session, grid, server_round, config, length=length, seed=seed)
            clients_by_node = masks.clients_by_node
            context = replace(context, clients_by_node=clients_by_node, masks=masks)
        node_counts = (len(clients_by_node), len(session.registry.nodes))
        log(INFO, "configure_train: Sampled %d nodes (out of %d)", *node_counts)
        contents = {
            node: self.communication.build_train_content(arrays, request)
            for node, request in build_train_requests(
                context, self._state.objective, priority, self._sent_records
            ).items()
        }
        messages = session.build_messages(contents, MessageType.TRAIN, server_round, config)
        if by_real_clock:
            # Who arrives is known only when the round closes: now, who may.
            open_late = open_by_real_clock(
                session, server_round, plan, before=self._state.under_way, blocked=blocked
            )
            assert self._sent_models is not None
            models = open_late.select_models(self._sent_models, model)
            context = replace(context, open_late=open_late, sent_models=models)
        self._context = context
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Weight and combine the updates, and step; return no model if no update counted."""
        context, session, state = self._context, self._session, self._state
        if context is None or context.server_round != server_round:
            raise StateError(f"round {server_round} was not configured")
        communication, population = self.communication, self.population
        # 1. Receive. Each update is validated on arrival, so that no rule ever reads a bad one, and
        #    added up if its weight is known, so that no more than one model is in memory.
        results = receive_updates(replies, context, session)
        if context.open_late is not None:
            context = replace(context, late=context.open_late.close(session, results))
        # With masks, the others of the sum first help to remove them.
        problem = None
        if context.masks is not None:
            assert isinstance(context.bins, FixedBins)
            problem = context.masks.unmask(results, context.model, context.bins)
        # 2. Close. Who replied too late is known only now, and must not count for any rule.
        closing = close_round(context, results, session, state, population.priority)
        outcomes = closing.outcomes
        # 3. Decide, from numbers alone: the audit repeats this call from the records.
        decision = decide_round(
            self.rules,
            population,
            state.round_state,
            server_round=server_round,
            plan=context.plan,
            # In the standard protocol F(w_t) follows from the clients' train results.
            objective=state.objective or NO_OBJECTIVE if communication.is_native else None,
            outcomes=RoundOutcomes(
                outcomes,
                registered=session.registry.registered,
                gram=lambda: compute_gram_matrix(outcomes, results, context.model),
                unregistered=session.registry.unregistered,
            ),
            robustness=communication.robustness,
            late=communication.late_updates,
        )
        if problem is not None:
            decision = decision.reject(NOT_UNMASKED, problem)
        # 4. Apply. A step that is not finite, or that privacy forbids, takes the decision back.
        applied = apply_round(
            context,
            results,
            decision,
            state.optimizer,
            rules=self.rules,
            memory=self._memory,
            population=population,
        )
        decision = applied.decision
        # 5. Keep the state only now: a round that failed above has changed nothing.
        self._previous_clock = state.clock
        self._state = replace(
            state,
            round_state=decision.next_state,
            optimizer=applied.optimizer_state,
            clock=closing.clock,
            under_way=state.under_way if context.late is None else context.late.closing.under_way,
            clipping_norm=None
            if context.mechanism is None
            else context.mechanism.compute_next_norm(
                list_clip_indicators(results, outcomes, has_masks=context.masks is not None),
                len(context.plan.clients),
            ),
            update_sizes=get_update_sizes(applied, outcomes, state.update_sizes)
            if context.bins.is_fixed
            else state.update_sizes,
        )
        if context.late is not None and self._sent_models is not None:
            context.late.update_store(self._sent_models, context.model)
            # In memory, a stored model is a view of its record, which takes no further memory.
            stored = self._sent_models.in_memory
            self._sent_records = {i: r for i, r in self._sent_records.items() if i in stored}
        report = replace(
            decision.report,
            late_replies=closing.late_replies,
            simulated_seconds=closing.clock.now if communication.virtual_clock else None,
        )
        self._step_result = replace(self._step_result, last_report=report)
        plan = context.plan
        is_unchanged = bool(applied.model is None and plan.clients)
        session.log_round(decision.report, results, is_unchanged=is_unchanged)
        contents = [results.contents[k] for k in decision.clients]
        metrics = communication.aggregate_train_metrics(decision.report, contents)
        return None if applied.model is None else encode_arrays(applied.model), metrics

    # --- evaluation --------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that request F_k(w_{t+1}) and test metrics."""
        communication = self.communication
        if communication.counts_by_real_clock and server_round == self._last_round:
            self._session.wait_until_trained(grid)  # so that the last model is tested by all
        if communication.is_dynamic:
            self._update_population(grid, evaluating=True)
        clients: tuple[int, ...] = ()
        if self.is_test_round(server_round):
            clients = communication.select_test_clients(
                self.population, self._session.registry, server_round
            )
        if communication.secure_aggregation is not None:
            return self._configure_masked_evaluation(server_round, arrays, config, grid, clients)
        plan = EvaluationPlan(clients)
        if communication.is_native:
            population, rules = self.population, self.rules
            available = communication.get_available_clients(self._session.registry)
            reports = replace(self._state.round_state.reports, available=available)
            candidates = find_candidates(
                server_round + 1, population, reports, rules, self._plan_round
            )
            plan = EvaluationPlan.for_next_round(
                population, communication, clients, candidates, rules=rules, available=available
            )
        return self._build_evaluate_messages(server_round, grid, arrays, plan, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Store the evaluations and F(w_{t+1}), which the next round broadcasts."""
        if self.communication.secure_aggregation is not None:
            return self._aggregate_masked_evaluation(server_round, replies)
        if not self.communication.is_native:
            results = self._session.collect_evaluate_results(replies, server_round)
            usable = select_usable_evaluations(
                results, any_weight=True, report=self._session.log_evaluation_problem
            )
            return self.communication.aggregate_evaluate_metrics(
                [results.contents[k] for k in usable]
            )
        self._store_evaluations(self._read_evaluations(server_round, replies))
        objective = self._state.objective or NO_OBJECTIVE
        return None if math.isnan(objective.loss) else encode_objective(objective)

    def _configure_masked_evaluation(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        clients: tuple[int, ...],
    ) -> list[Message]:
        """Return the messages that request the masked sums of the clients' metrics.

        A model is evaluated once: if the last rounds left all its bits the same, nobody is asked
        again.
        """
        self._masked_evaluation = self._evaluated_arrays = None
        model_hash = _compute_hash(arrays)
        self._is_evaluated = model_hash == self._evaluated_hash
        if not clients or self._is_evaluated:
            return []
        self._evaluated_hash = model_hash
        # F over the priority clients needs a second sum, unless these are all that are evaluated;
        # F is weighted by data.
        population, by_data = self.population, self._evaluates_by_data
        is_objective = by_data and population.priority.issuperset(clients)
        is_objective = is_objective and not population.weights
        self._objective_clients = frozenset(clients if is_objective else ())
        session, seed = self._session, self.rules.selection.sampling.seed
        self._evaluated_arrays, self._evaluated_clients = arrays, clients
        masks = self._masked_evaluation = open_masked_evaluation(
            session,
            grid,
            server_round,
            config,
            clients,
            priority=population.priority,
            seed=seed,
        )
        contents = build_evaluate_contents(masks, session, arrays, len(clients), by_data=by_data)
        return session.build_messages(contents, MessageType.EVALUATE, server_round, config)

    def _repeat_masked_evaluation(self, masks: MaskedRound) -> EvaluationSums | None:
        """Evaluate the model again, without the numbers of too few nodes."""
        arrays = self._evaluated_arrays
        assert arrays is not None, "no model was evaluated"
        return repeat_masked_evaluation(
            masks,
            self._session,
            arrays,
            self._evaluated_clients,
            priority=self.population.priority,
            seed=self.rules.selection.sampling.seed,
            by_data=self._evaluates_by_data,
        )

    @property
    def _evaluates_by_data(self) -> bool:
        """Whether the server learns the clients' amounts of data anyway, and sums may tell them."""
        return self.rules.weighting.traits.weights_by_data

    def _aggregate_masked_evaluation(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Store the sums over the clients, and F(w_{t+1}) if it is the mean over all of them."""
        masks, sums = self._masked_evaluation, None
        if masks is not None:
            results = self._session.collect_evaluate_results(replies, server_round)
            by_data = self._evaluates_by_data
            sums = close_masked_evaluation(masks, self._session, results, by_data=by_data)
            if sums is None and masks.withheld:
                sums = self._repeat_masked_evaluation(masks)
        self._step_result = replace(self._step_result, sums=sums)
        if masks is not None or not self._is_evaluated:  # otherwise F is that of the same model
            objective = NO_OBJECTIVE
            if sums is not None and self._objective_clients:
                objective = Objective(sums.means["loss"], sums.means["accuracy"])
            self._state = replace(self._state, objective=objective)
        return None if sums is None else encode_sums(sums)

    def configure_finetune(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        *,
        epochs: int,
    ) -> Iterable[Message]:
        """Return the messages by which clients evaluate personal models.

        Each client that trains trains the model on its rows for this number of epochs, evaluates
        the result, and discards it.

        Parameters
        ----------
        server_round : int
            The round after which the server had this model, 0 for the first one.
        arrays : ArrayRecord
            The model from which all clients start.
        config : ConfigRecord
            The user's config for the messages.
        grid : Grid
        epochs : int

        Raises
        ------
        ParameterError
            If masks hide the evaluations of single clients.
        """
        if (given := self.communication.secure_aggregation) is not None:
            reason = "each client evaluates another model, so that there is no sum"
            raise ParameterError("secure_aggregation", "None with personal models", given, reason)
        clients = self.communication.select_evaluated_clients(self.population)
        plan = EvaluationPlan(clients, recorded_clients=clients)
        return self._build_evaluate_messages(
            server_round, grid, arrays, plan, config, finetune_epochs=epochs
        )

    def aggregate_finetune(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ClientEvaluation, ...]:
        """Return the clients' evaluations of their personal models, which no rule ever knows.

        Raises
        ------
        RunError
            If the evaluation failed on every node.
        """
        return self._collect_evaluations(server_round, replies, "the personal models")

    def add_personal_evaluations(
        self, evaluations: Mapping[str, Mapping[int, PersonalEvaluation]]
    ) -> None:
        """Add the evaluations of personal models to those of the last step.

        Parameters
        ----------
        evaluations : mapping
            By ``PERSONAL_MODELS``, the evaluation of each client.
        """
        last = self._step_result.evaluations
        self._step_result = replace(
            self._step_result, evaluations=add_personal_evaluations(last, evaluations)
        )

    def _read_evaluations(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ClientEvaluation, ...]:
        """Return the clients' evaluations, and store their amounts of data.

        Raises
        ------
        RunError
            If the evaluation failed on every node.
        """
        model = f"the model after round {server_round}" if server_round else "the first model"
        evaluations = self._collect_evaluations(server_round, replies, model)
        self._state = self._state.with_evaluations(self.rules, evaluations)
        return evaluations

    def _collect_evaluations(
        self, server_round: int, replies: Iterable[Message], model: str
    ) -> tuple[ClientEvaluation, ...]:
        """Return the clients' usable evaluations; ``model`` names the model in an error."""
        session, metric = self._session, self.communication.metric
        results = session.collect_evaluate_results(replies, server_round)
        nodes, expected = session.clients_by_node, self._evaluation_clients
        check_evaluation(results, nodes, expected, model=model, metric=metric)
        report = session.log_evaluation_problem
        return build_client_evaluations(results, self.population, metric, report)

    def _store_evaluations(self, evaluations: tuple[ClientEvaluation, ...]) -> None:
        """Store F over the objective clients."""
        reuse_last = self.communication.closes_early
        self._state = update_objective(
            self._state, self._objective_clients, evaluations, reuse_last=reuse_last
        )
        some_busy = self.communication.counts_by_real_clock and self._session.has_busy_clients
        self._step_result = replace(self._step_result, evaluations=evaluations, some_busy=some_busy)

    # --- parts -------------------------------------------------------------------------------

    def _update_population(self, grid: Grid, *, evaluating: bool = False) -> None:
        """Note which clients are connected, and add new ones to the population."""
        population = self._session.update_population(grid, self.population, evaluating=evaluating)
        if population is not self.population:
            self._state = self._state.with_clients(self.rules, self.population, population)
            self.population = population
            self._next_plan = None

    def _plan_round(self, server_round: int, blocked: tuple[int, ...] = ()) -> RoundPlan:
        """Return the plan of a round; the previous round may ask for it early.

        ``blocked`` has the clients whose nodes train for others.
        """
        if self._next_plan is not None and self._next_plan[0] == server_round:
            return self._next_plan[1]
        available = self.communication.get_available_clients(self._session.registry)
        late = self.communication.late_updates
        reports = replace(
            self._state.round_state.reports,
            available=available,
            under_way=None
            if late is None
            else ClientsUnderWay(self._state.under_way.client, late.concurrency, blocked),
        )
        plan = self.rules.plan_round(server_round - 1, self.population, reports)
        plan = replace(plan, clients_apply_gate=self.communication.is_native)
        # Otherwise its inputs may still change.
        if available is None and plan.is_final and not self.communication.counts_by_real_clock:
            self._next_plan = server_round, plan
        return plan

    def _build_evaluate_messages(
        self,
        server_round: int,
        grid: Grid,
        arrays: ArrayRecord,
        evaluation_plan: EvaluationPlan,
        user_config: ConfigRecord,
        *,
        finetune_epochs: int = 0,
    ) -> list[Message]:
        plan, session, priority = evaluation_plan, self._session, self.population.priority
        objective_clients = priority.intersection(plan.objective_clients)
        if objective_clients:
            objective_clients = select_objective_clients(self.rules.selection, objective_clients)
        self._objective_clients = objective_clients
        train_clients = frozenset((*plan.objective_clients, *plan.recorded_clients))
        test_clients = frozenset(plan.test_clients)
        self._evaluation_clients = clients = test_clients | train_clients
        clients_by_node = session.open_exchange(grid, clients, None, priority=priority)
        requests = {
            node: EvaluateRequest(
                server_round,
                hosted,
                train=tuple(k in train_clients for k in hosted),
                test=tuple(k in test_clients for k in hosted),
                finetune_epochs=finetune_epochs,
            )
            for node, hosted in clients_by_node.items()
        }
        contents = {
            node: self.communication.build_evaluate_content(arrays, request)
            for node, request in requests.items()
        }
        return session.build_messages(contents, MessageType.EVALUATE, server_round, user_config)


def complete_result(result: Result, initial_arrays: ArrayRecord) -> Result:
    """Return a result with a model: the initial one if no update ever counted.

    Flower's result has no arrays then, and a program that saves them would save nothing.
    """
    if not result.arrays:
        result.arrays = initial_arrays
    return result


def _should_read_once(kind: type[Strategy]) -> bool:
    """Say whether replies are read only once; a user's subclass may read them as well."""
    methods = (kind.aggregate_train, kind.aggregate_evaluate)
    return all(method.__module__.rpartition(".")[0] == __package__ for method in methods)


def _compute_hash(arrays: ArrayRecord) -> bytes:
    """Return SHA-256 of a model's names and bits."""
    found = hashlib.sha256()
    for name, array in arrays.items():
        found.update(name.encode())
        found.update(array.data)
    return found.digest()
