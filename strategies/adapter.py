"""The one place where the rules meet Flower.

A strategy is made of a selection, a weighting and a server optimizer. One round::

    configure_train     selection.call  -> one train message per node
    aggregate_train     validate replies -> decide (selection.admit -> weighting.weigh)
                        -> server_optimizer.step
    configure_evaluate  priority clients: training loss and accuracy; all or priority: test part
    aggregate_evaluate  F(w_{t+1}) for the next broadcast

Everything that decides is in the rules; here are only messages, the order of clients, and the
sum over updates.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Generic

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from strategies.aggregation import (
    as_float64,
    averaged,
    combined_update,
    inner_products,
    is_statistic,
    like,
)
from strategies.answers import (
    Answers,
    add_sums,
    collect,
    refuse_unusable_sums,
    usable_evaluations,
)
from strategies.codec import (
    ClientReply,
    EvaluateRequest,
    NamedArrays,
    Status,
    TrainRequest,
    count_bytes,
    decode_arrays,
    encode_arrays,
)
from strategies.communication import Communication
from strategies.composition import check_composition, divisor
from strategies.decision import decide
from strategies.memory import UpdateMemory
from strategies.regret import kl_divergence
from strategies.report import ClientDecision, ClientEvaluation, TrainReport, priority_objective
from strategies.selection import Selection
from strategies.server_optimizer import Parameters, ServerOptimizer
from strategies.state import StateArrays, StateError, array_like, from_arrays, to_arrays
from strategies.types import (
    Call,
    FloatArray,
    GlobalMeasure,
    Population,
    Proportions,
    Responses,
    StateT,
    Weights,
)
from strategies.validation import update_problem
from strategies.weighting import KnownBeforehand, Weighting


@dataclass(frozen=True)
class Memory:
    """That a memory of all updates is kept, and where.

    Parameters
    ----------
    directory : Path, optional
        Where its files are made; None keeps it in memory.
    moves_alone : bool
        Whether the model moves by the memory also in a round without any update.
    """

    directory: Path | None = None
    moves_alone: bool = False


@dataclass(frozen=True)
class Traffic:
    """Payload bytes of all messages so far, to the nodes and from them."""

    bytes_down: int = 0
    bytes_up: int = 0

    def plus(self, down: int = 0, up: int = 0) -> "Traffic":
        """Return it with more bytes."""
        return Traffic(self.bytes_down + down, self.bytes_up + up)


@dataclass(frozen=True)
class _Round:
    """What the round in progress was started with."""

    server_round: int
    call: Call
    model: NamedArrays
    asked_at: Mapping[int, tuple[int, ...]]
    proportions: Proportions | None


class ComposedStrategy(Strategy, Generic[StateT]):
    """A Flower strategy made of three independent rules.

    Works with ClientApps that follow the protocol in ``strategies.codec``, as this project's does,
    and with ``communication=PlainApp()`` with those written for Flower's own strategies.

    Parameters
    ----------
    population : Population
        All clients and which of them have priority.
    selection, weighting, server_optimizer
        The rules; see ``strategies.selection``, ``strategies.weighting`` and
        ``strategies.server_optimizer``.
    memory : Memory, optional
        Whether a memory of every client's last update corrects the combined update; see
        ``UpdateMemory``.
    communication : Communication, optional
        Timeouts and what is evaluated.

    Raises
    ------
    ParameterError
        If the rules make no sense together; see ``strategies.composition``.
    """

    def __init__(
        self,
        population: Population,
        *,
        selection: Selection,
        weighting: Weighting[StateT],
        server_optimizer: ServerOptimizer[Any],
        memory: Memory | None = None,
        communication: Communication | None = None,
    ) -> None:
        check_composition(selection, weighting, server_optimizer)
        self.population = population
        self.selection = selection
        self.weighting = weighting
        self.server_optimizer = server_optimizer
        self.communication = communication or Communication()
        self.communication.check_selection(selection, population)
        self._directory = self.communication.directory(population)
        self._started = False
        self._memory_settings = memory
        self._memory: UpdateMemory | None = None
        self._weighting_state = weighting.init(population)
        self._covered: FloatArray | None = None
        self._optimizer_state: Any = None
        self._round: _Round | None = None
        self._evaluated: tuple[int, ...] = ()
        self._measured: frozenset[int] = frozenset()
        self._measure: GlobalMeasure | None = None
        self._examples: dict[int, float] = {}
        self._traffic = Traffic()
        self._train_report: TrainReport | None = None
        self._evaluations: tuple[ClientEvaluation, ...] = ()
        self._measured_before: tuple[ClientEvaluation, ...] = ()

    # --- what a run loop reads after each step ---------------------------------------------

    @property
    def train_report(self) -> TrainReport:
        """The decisions of the last round that was aggregated."""
        if self._train_report is None:
            raise RuntimeError("no round has been aggregated yet")
        return self._train_report

    @property
    def evaluations(self) -> tuple[ClientEvaluation, ...]:
        """What the clients measured in the last evaluation, ascending by client id."""
        return self._evaluations

    @property
    def measured_before(self) -> tuple[ClientEvaluation, ...]:
        """What the clients measured before the last round that was configured, to begin with.

        Where the selection needs F: F(w_0) and the amounts of data, before round 1; empty else.
        """
        return self._measured_before

    @property
    def traffic(self) -> Traffic:
        """Payload bytes since the strategy was made."""
        return self._traffic

    @property
    def state_bytes(self) -> int:
        """Bytes that the server keeps between rounds, beside the model: the rules' state."""
        memory = 0 if self._memory is None else self._memory.nbytes
        rules = (self._weighting_state, self._covered, self._optimizer_state)
        return memory + sum(map(_bytes_of, rules))

    def state(self) -> StateArrays:
        """Return all that is remembered from round to round, beside the model, as named arrays.

        They may be the strategy's own: to be written before the next round, not to be changed.
        """
        clients = sorted(self._examples)
        memory = {} if self._memory is None else self._memory.state()
        measure = self._measure
        return {
            **to_arrays(self._weighting_state, "weighting"),
            **to_arrays(self._covered, "covered"),
            **to_arrays(self._optimizer_state, "optimizer"),
            **{f"memory.{name}": array for name, array in memory.items()},
            **({} if measure is None else {"measure": np.array([measure.loss, measure.accuracy])}),
            "examples.client": np.array(clients, dtype=np.int64),
            "examples.data": np.array([self._examples[k] for k in clients], dtype=np.float64),
            "known": np.array(self._directory.known, dtype=np.int64),
        }

    def restore(self, state: Mapping[str, NDArray[Any]], model: NamedArrays) -> None:
        """Go on from what ``state`` returned after a round, and the model after it.

        The next round waits for the clients, as the first one does.

        Raises
        ------
        StateError
            If it is the state of other rules, of other clients or of another model.
        """
        initial = self.weighting.init(self.population)
        self._weighting_state = from_arrays(initial, "weighting", state)
        if any(name.split(".")[0] == "optimizer" for name in state):
            template = self.server_optimizer.init(_trained(as_float64(model), model))
            self._optimizer_state = from_arrays(template, "optimizer", state)
        memory = {k.removeprefix("memory."): v for k, v in state.items() if k.startswith("memory.")}
        if memory:
            self._update_memory(model).restore(memory)
        if "covered" in state:
            self._covered = array_like(self.population.priority_weights, "covered", state).copy()
        if "measure" in state:
            loss, accuracy = array_like(np.zeros(2), "measure", state).tolist()
            self._measure = GlobalMeasure(loss, accuracy)
        clients, data = state["examples.client"].tolist(), state["examples.data"].tolist()
        self._examples = dict(zip(clients, data, strict=True))
        self._directory.remember(state["known"].tolist())

    def summary(self) -> None:
        """Log the parts of the strategy."""
        log(
            INFO,
            "\t├──> Clients: %d, priority: %s",
            len(self.population.clients),
            list(self.population.priority_clients),
        )
        self.communication.summary()
        log(INFO, "\t├──> Selection: %s", self.selection)
        log(INFO, "\t├──> Weighting: %s", self.weighting)
        log(INFO, "\t├──> Divisor: %s", divisor(self.selection, self.weighting))
        log(INFO, "\t└──> Server optimizer: %s", self.server_optimizer)

    # --- training ---------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one train message for each node that hosts a client asked in this round.

        Before the first round, wait for the clients and measure F(w_0) if the selection wants it.
        """
        if not self._started:
            self._directory.wait(
                grid, self.communication.startup_timeout, self.communication.startup_clients
            )
            self._started = True
        else:
            for problem in self._directory.refresh(grid):
                log(WARNING, "A node cannot take part: %s", problem)
        self._measured_before = ()
        if self._measures and not self._examples:
            self._measure_before_first_round(arrays, grid)
            self._measured_before = self._evaluations
        call = self._call(server_round)
        asked_at = self._directory.by_node(call.clients)
        proportions = self._proportions(call)
        self._round = _Round(server_round, call, decode_arrays(arrays), asked_at, proportions)
        return self._messages(
            {
                node: self.communication.train_content(
                    arrays,
                    TrainRequest(
                        server_round,
                        replace(call, clients=clients),
                        tuple(k in self.population.priority for k in clients),
                        self._global_measure,
                        proportions,
                    ),
                )
                for node, clients in asked_at.items()
            },
            MessageType.TRAIN,
            config,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decide what counts, combine it and step; the model is None if nothing counted."""
        current = self._current_round(server_round)
        group = _group(MessageType.TRAIN, server_round)
        answers = self._collect(replies, current.asked_at, group, current.model)
        refuse_unusable_sums(
            answers, current.model, current.proportions, needs_loss=self.weighting.needs_losses
        )
        decisions = {
            client: self._before_the_rules(client, answers, current)
            for client in sorted(current.call.clients)
        }
        usable = [k for k, decision in decisions.items() if decision.status == "trained"]
        self._clip(usable, answers, current.model)
        silent = [k for k, decision in decisions.items() if decision.status == "silent"]
        responses = self._responses(usable, silent, answers.parts, current.model)
        measure = self._measure_of_round(usable, answers.parts)
        decision = decide(
            self.selection,
            self.weighting,
            self.population,
            call=current.call,
            measure=measure,
            responses=responses,
            state=self._weighting_state,
            covered=self._covered,
        )
        self._weighting_state, self._covered = decision.state, decision.covered
        admission, weights = decision.admission, self._cap(usable, answers, decision.weights)
        draws = current.call.draws
        for i, client in enumerate(usable):
            decisions[client] = replace(
                decisions[client],
                draws=None if draws is None else draws.count.get(client),
                response=None if weights.response is None else _number(weights.response[i]),
                update_norm=(
                    None if weights.update_norm is None else _number(weights.update_norm[i])
                ),
                status="trained" if admission.share[i] > 0 else "rejected",
                reason=admission.reason[i] or answers.notes.get(client),
                weight=float(weights.weight[i]),
            )
        self._note_estimates(decisions, weights)
        report = TrainReport(
            server_round=server_round,
            call=current.call,
            measure=measure,
            decisions=tuple(decisions.values()),
            inclusion_mass=weights.inclusion_mass,
            mixing=weights.mixing,
            decision_loss=weights.decision_loss,
            response=weights.estimate,
            divergence=self._divergence(weights.mixing),
            unknown=self._directory.unknown,
        )
        self._train_report = report
        self.communication.tell(report.decisions)
        metrics = self.communication.train_metrics([answers.contents[k] for k in usable])
        still = self._memory_settings is None or not self._memory_settings.moves_alone
        if report.empty and still:
            if not current.call.own_model:
                log(WARNING, "Round %d: no update counted, the model stays", server_round)
            return None, metrics
        weight_of = dict(zip(usable, weights.weight.tolist(), strict=True))
        update = self._combined_update(
            current.model,
            [
                (client, weight, answers.parts[client].arrays or {})
                for client, weight in weight_of.items()
                if weight != 0.0 and client not in answers.summed
            ],
        )
        if current.proportions is not None:
            add_sums(update, answers, weight_of, current.proportions)
        moved = self._step(current.model, update, float(weights.weight.sum()))
        if moved is None:
            log(WARNING, "Round %d: the model would not be finite and stays", server_round)
            self._train_report = _refused(report, "the model would not be finite")
            return None, metrics
        if self.communication.follows_protocol:
            metrics = MetricRecord({"admitted": report.admitted})
        return encode_arrays(moved), metrics

    def _note_estimates(self, decisions: dict[int, ClientDecision], weights: Weights) -> None:
        """Note omega and p, which rules have also of clients that did not answer."""
        for client, omega in weights.omega.items():
            if client in decisions:
                decisions[client] = replace(decisions[client], omega=omega)
        if weights.mixing is not None:
            positions = np.searchsorted(self.population.ascending, list(decisions))
            for client, p in zip(decisions, weights.mixing[positions].tolist(), strict=True):
                decisions[client] = replace(decisions[client], mixing=p)

    def _step(
        self, model: NamedArrays, update: Mapping[str, FloatArray], total_weight: float
    ) -> NamedArrays | None:
        """Return the model after the server's step, None if it would not be finite."""
        before = as_float64(model)
        parameters = _trained(before, model)
        state = self._optimizer_state
        if state is None:
            state = self.server_optimizer.init(parameters)
        state, after = self.server_optimizer.step(state, parameters, _trained(update, model))
        moved = like(
            {
                name: after[name] if name in after else averaged(value, update[name], total_weight)
                for name, value in before.items()
            },
            model,
        )
        if not all(np.isfinite(array).all() for array in moved.values()):
            return None
        self._optimizer_state = state
        return moved

    def _proportions(self, call: Call) -> Proportions | None:
        """Return what nodes may add up their clients' updates with, None if they may not."""
        weighting = self.weighting
        if (
            not self.communication.partial_aggregation
            or self.communication.robustness.bounds
            or self._memory_settings is not None
            or call.epsilon is not None
            or call.own_model
            or not self.communication.follows_protocol
            or not isinstance(weighting, KnownBeforehand)
        ):
            return None
        return weighting.proportions(self._weighting_state, call)

    def _divergence(self, mixing: FloatArray | None) -> float | None:
        if mixing is None or not set(self.population.clients) <= self._examples.keys():
            return None
        data = np.array([self._examples[k] for k in self.population.ascending.tolist()])
        return kl_divergence(mixing, data / data.sum())

    def _combined_update(
        self, model: NamedArrays, weighted_models: Sequence[tuple[int, float, NamedArrays]]
    ) -> dict[str, FloatArray]:
        if self._memory_settings is None:
            return combined_update(model, ((weight, own) for _, weight, own in weighted_models))
        memory = self._update_memory(model)
        return memory.step(model, weighted_models, len(self._directory.known))

    def _update_memory(self, model: NamedArrays) -> UpdateMemory:
        """Return the memory, made when first needed."""
        if self._memory is None:
            if self._memory_settings is None:
                raise StateError("'memory' is of a strategy that keeps the clients' updates")
            self._memory = UpdateMemory(
                self.population.clients, model, self._memory_settings.directory
            )
        return self._memory

    # --- evaluation --------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask for F_k(w_{t+1}) and for test metrics.

        Where the selection needs F, F_k is asked of the priority clients that the next round will
        ask: F(w_{t+1}) is their mean by data, all priority clients' under full participation.
        Where it does without, all priority clients are asked together with the test metrics.
        ``config["measure-test"] = False`` leaves the test metrics out of this round.
        """
        population = self.population
        tested: tuple[int, ...] = ()
        evaluates = bool(config.get("measure-test", True))
        if evaluates:
            tested = self.communication.evaluated(population, server_round)
        following = self._call(server_round + 1)
        measured: tuple[int, ...] = ()
        if self._measures:
            measured = tuple(k for k in following.clients if k in population.priority)
        elif evaluates and self.communication.follows_protocol:
            measured = population.priority_clients
        return self._evaluate_messages(
            server_round,
            arrays,
            tested=tested,
            measured=measured,
            own_model=following.own_model,
            extra=config,
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Keep the measurements and F(w_{t+1}), which the next round broadcasts."""
        asked_at = self._directory.by_node(self._evaluated)
        answers = self._collect(replies, asked_at, _group(MessageType.EVALUATE, server_round))
        usable = usable_evaluations(answers)
        if not self.communication.follows_protocol:
            return self.communication.evaluate_metrics([answers.contents[k] for k in usable])
        evaluations = tuple(self._evaluation(k, metrics) for k, metrics in usable.items())
        self._evaluations = evaluations
        self._examples |= {e.client: e.num_examples for e in evaluations if not math.isnan(e.loss)}
        counted = self._measured
        if self._measures and self._examples:
            counted &= frozenset(self._call(server_round + 1).clients)
        self._measure = priority_objective([e for e in evaluations if e.client in counted])
        if math.isnan(self._measure.loss):
            return None
        return MetricRecord(
            {"global-loss": self._measure.loss, "global-accuracy": self._measure.accuracy}
        )

    # --- parts ---------------------------------------------------------------------------------

    @property
    def _measures(self) -> bool:
        return self.selection.measures and self.communication.follows_protocol

    @property
    def _global_measure(self) -> GlobalMeasure:
        return self._measure or GlobalMeasure(math.nan, math.nan)

    def _measure_of_round(
        self, usable: Sequence[int], parts: Mapping[int, ClientReply]
    ) -> GlobalMeasure:
        """Return F(w_t): as broadcast, or else as the priority clients say with their updates."""
        if self.communication.follows_protocol:
            return self._global_measure
        return priority_objective([self._evaluation(k, parts[k].metrics) for k in usable])

    def _current_round(self, server_round: int) -> _Round:
        if self._round is None or self._round.server_round != server_round:
            raise RuntimeError(f"round {server_round} was not configured")
        return self._round

    def _measure_before_first_round(self, arrays: ArrayRecord, grid: Grid) -> None:
        messages = self._evaluate_messages(
            0, arrays, tested=(), measured=self.population.priority_clients
        )
        replies = grid.send_and_receive(messages, timeout=self.communication.round_timeout)
        self.aggregate_evaluate(0, replies)

    def _call(self, server_round: int) -> Call:
        call = self.selection.call(server_round - 1, self.population, self._examples)
        return replace(call, clients_decide=self.communication.follows_protocol)

    def _evaluate_messages(
        self,
        server_round: int,
        arrays: ArrayRecord,
        *,
        tested: tuple[int, ...],
        measured: tuple[int, ...],
        own_model: bool = False,
        extra: ConfigRecord | None = None,
    ) -> list[Message]:
        to_test, to_measure = frozenset(tested), frozenset(measured)
        self._evaluated = tuple(sorted(to_test | to_measure))
        self._measured = to_measure
        contents = {
            node: self.communication.evaluate_content(
                arrays,
                EvaluateRequest(
                    server_round,
                    clients,
                    tuple(k in to_measure for k in clients),
                    tuple(k in to_test for k in clients),
                    own_model,
                ),
            )
            for node, clients in self._directory.by_node(self._evaluated).items()
        }
        return self._messages(contents, MessageType.EVALUATE, extra or ConfigRecord())

    def _messages(
        self, contents: Mapping[int, RecordDict], message_type: str, extra: ConfigRecord
    ) -> list[Message]:
        messages = []
        for node, content in contents.items():
            (config,) = content.config_records.values()
            for key, value in extra.items():
                config.setdefault(key, value)
            self._traffic = self._traffic.plus(down=count_bytes(content))
            group = _group(message_type, config["server-round"])
            messages.append(Message(content, node, message_type, group_id=group))
        return messages

    def _collect(
        self,
        replies: Iterable[Message],
        asked_at: Mapping[int, tuple[int, ...]],
        group: str,
        model: NamedArrays | None = None,
    ) -> Answers:
        read = partial(self.communication.read, trained=model is not None)
        answers = collect(replies, asked_at, group, read, model)
        self._traffic = self._traffic.plus(up=answers.num_bytes)
        return answers

    def _before_the_rules(self, client: int, answers: Answers, current: _Round) -> ClientDecision:
        """Return what became of a client asked, as far as it is known before the rules."""
        priority = client in self.population.priority
        if client in answers.malformed:
            return ClientDecision(client, priority, "rejected", answers.malformed[client])
        part = answers.parts.get(client)
        if part is None:
            if self._directory.node_of(client) is None:
                return ClientDecision(client, priority, "unavailable", "its node is not connected")
            return ClientDecision(client, priority, "failed", "no reply in time")
        if part.status is not Status.DONE:
            reason = part.reason
            if part.status is Status.FAILED:
                reason = reason or "it failed and gave no reason"
            return ClientDecision(client, priority, part.status.name.lower(), reason)
        none_expected = current.call.own_model or client in answers.summed
        problem = update_problem(
            part,
            None if none_expected else current.model,
            needs_loss=self.weighting.needs_losses,
        )
        if problem is not None:
            return ClientDecision(client, priority, "rejected", problem)
        metrics = part.metrics
        return ClientDecision(
            client,
            priority,
            "trained",
            num_examples=int(metrics["num-examples"]),
            loss=metrics.get("loss"),
            accuracy=metrics.get("accuracy"),
        )

    def _clip(self, usable: Sequence[int], answers: Answers, model: NamedArrays) -> None:
        """Clip the updates that are too long."""
        for client in usable:
            part = answers.parts[client]
            if part.arrays is not None:
                arrays, note = self.communication.robustness.clip(model, part.arrays)
                if note is not None:
                    answers.parts[client] = replace(part, arrays=arrays)
                    answers.note(client, note)

    def _cap(self, usable: Sequence[int], answers: Answers, weights: Weights) -> Weights:
        """Cap the weights that are too large."""
        capped = self.communication.robustness.cap(weights.weight)
        for i in np.flatnonzero(capped < weights.weight).tolist():
            answers.note(usable[i], f"weight {weights.weight[i]:.6g} capped at {capped[i]:g}")
        return replace(weights, weight=capped)

    def _responses(
        self,
        clients: Sequence[int],
        silent: Sequence[int],
        parts: Mapping[int, ClientReply],
        model: NamedArrays,
    ) -> Responses:
        def column(key: str) -> FloatArray:
            values = [parts[k].metrics.get(key, math.nan) for k in clients]
            return np.array(values, dtype=np.float64)

        num_examples = column("num-examples")
        self._examples |= dict(zip(clients, num_examples.tolist(), strict=True))
        return Responses(
            client=np.array(clients, dtype=np.int64),
            priority_weight=np.array(
                [self.population.priority_weight(k) for k in clients], dtype=np.float64
            ),
            num_examples=num_examples,
            loss=column("loss"),
            accuracy=column("accuracy"),
            known=np.array(self._directory.known, dtype=np.int64),
            gram=lambda: inner_products(model, [parts[k].arrays or {} for k in clients]),
            silent=np.array(silent, dtype=np.int64),
            examples=self._examples,
        )

    def _evaluation(self, client: int, metrics: Mapping[str, float]) -> ClientEvaluation:
        def value(key: str) -> float:
            return float(metrics.get(key, math.nan))

        return ClientEvaluation(
            client=client,
            priority_weight=self.population.priority_weight(client),
            num_examples=value("num-examples"),
            loss=value("loss"),
            accuracy=value("accuracy"),
            test_num_examples=value("test-num-examples"),
            test_loss=value("test-loss"),
            test_accuracy=value("test-accuracy"),
            test_metric=value("test-metric"),
        )


def _trained(arrays: Mapping[str, FloatArray], model: NamedArrays) -> Parameters:
    """Return the arrays of what is trained, which is what a server optimizer moves."""
    return {name: a for name, a in arrays.items() if not is_statistic(name, model[name])}


def _group(message_type: str, server_round: object) -> str:
    """Return what a reply must name to be one to the messages of this step."""
    return f"{message_type} {server_round}"


def _refused(report: TrainReport, reason: str) -> TrainReport:
    """Return a round in which no update counts, for a reason that is of all of them."""
    return replace(
        report,
        decisions=tuple(
            decision
            if decision.weight == 0.0
            else replace(decision, status="rejected", reason=reason, weight=0.0)
            for decision in report.decisions
        ),
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _bytes_of(state: object) -> int:
    """Return the size of the arrays in a rule's state, at any depth."""
    if isinstance(state, np.ndarray):
        return state.nbytes
    if is_dataclass(state):
        return sum(_bytes_of(getattr(state, item.name)) for item in fields(state))
    if isinstance(state, Mapping):
        return sum(_bytes_of(value) for value in state.values())
    return 0
