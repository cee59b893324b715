"""Convert a strategy's state between rounds, without the model, to named arrays and back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..rules.composition import RuleSet
from ..rules.decisions import ClientEvaluation, update_reports
from ..rules.round import RoundState
from ..rules.state_arrays import StateArrays, expect_array, from_arrays, to_arrays
from ..rules.types import ClientReports, IntArray, Objective, PerClient, Population
from .aggregation import Float64View, select_trainable
from .under_way import UnderWay
from .update_memory import UpdateMemory
from .virtual_clock import Clock, PendingReply

UNDER_WAY = "under-way."
"""The prefix of the arrays' names of the clients under way."""


@dataclass(frozen=True)
class ServerState:
    """The state of a strategy's rules after a round.

    Parameters
    ----------
    round_state : RoundState
        The inputs of the next round's decisions from earlier rounds.
    optimizer : Any
        The server optimizer's state, None before its first step.
    objective : Objective or None
        F(w_t) of the model that the next round broadcasts, None before its evaluation.
    last_evaluations : mapping of int to ClientEvaluation
        Each priority client's last evaluation of the objective, in case it misses the next one.
    clock : Clock
        Simulated time; constant without a virtual clock.
    clipping_norm : float, optional
        C of the next round, None as long as it equals that of the first round.
    under_way : UnderWay
        The clients under way, where late updates count.
    update_sizes : mapping of str to float
        The size of each array in the last sum (``fixed_bins.compute_update_sizes``), from which the
        bins of the next round follow if they are fixed before training; empty for the widest.
    """

    round_state: RoundState
    optimizer: Any = None
    objective: Objective | None = None
    last_evaluations: Mapping[int, ClientEvaluation] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    clipping_norm: float | None = None
    under_way: UnderWay = field(default_factory=UnderWay)
    update_sizes: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def initial(cls, rules: RuleSet, population: Population) -> Self:
        """Return the state before round 1."""
        return cls(RoundState.initial(rules, population))

    @property
    def nbytes(self) -> int:
        """The size of the rules' states in bytes."""
        return sum(
            map(
                _compute_nbytes,
                (self.round_state.weighting, self.round_state.admitted_fractions, self.optimizer),
            )
        )

    def with_evaluations(self, rules: RuleSet, evaluations: Sequence[ClientEvaluation]) -> Self:
        """Return the state with D_k and F_k from the clients' evaluations."""
        all_clients = rules.hooks.before_round is not None
        reports = update_reports(self.round_state.reports, evaluations, all_clients=all_clients)
        return replace(self, round_state=replace(self.round_state, reports=reports))

    def with_clients(self, rules: RuleSet, before: Population, after: Population) -> Self:
        """Return the state with the clients that joined, each in its initial state."""
        return replace(self, round_state=self.round_state.with_clients(rules, before, after))

    def to_arrays(
        self, rules: RuleSet, memory: UpdateMemory | None, registered: IntArray
    ) -> StateArrays:
        """Return the state as named arrays, with the update memory and the registered clients.

        The arrays may be those of the state itself: write them before the next round, and do not
        change them.
        """
        reports, objective = self.round_state.reports, self.objective
        arrays = to_arrays(self.round_state.weighting, "weighting")
        arrays |= to_arrays(self.round_state.admitted_fractions, "covered")
        arrays |= to_arrays(self.optimizer, "optimizer")
        if memory is not None:
            arrays |= {f"memory.{name}": array for name, array in memory.get_state().items()}
        if objective is not None:
            arrays["measure"] = np.array([objective.loss, objective.accuracy])
            if objective.stale_clients:
                arrays["stale"] = np.array(objective.stale_clients, dtype=np.int64)
            if objective.missing_clients:
                arrays["unmeasured"] = np.array(objective.missing_clients, dtype=np.int64)
        if self.last_evaluations:
            evaluations = [self.last_evaluations[k] for k in sorted(self.last_evaluations)]
            arrays["measured.client"] = np.array([e.client for e in evaluations], dtype=np.int64)
            arrays["measured.values"] = np.array(
                [[e.num_examples, e.loss, e.accuracy] for e in evaluations]
            )
        if self.clock != Clock():
            arrays |= _convert_clock(self.clock)
        arrays |= _convert_next_inputs(self)
        if len(self.under_way):
            under_way = self.under_way.get_state()
            arrays |= {f"{UNDER_WAY}{name}": array for name, array in under_way.items()}
        if rules.hooks.before_round is not None:
            arrays |= _convert_losses(reports)
        examples = PerClient.from_mapping(reports.num_examples)
        arrays["examples.client"], arrays["examples.data"] = examples.clients, examples.numbers
        arrays["known"] = registered
        return arrays

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        rules: RuleSet,
        population: Population,
        model: Mapping[str, NDArray[Any]],
    ) -> Self:
        """Return the state from the arrays of ``to_arrays``, for the same rules, clients and model.

        Raises
        ------
        StateError
            If the arrays belong to other rules, other clients or another model.
        """
        initial = RoundState.initial(rules, population)
        clients, data = arrays["examples.client"].tolist(), arrays["examples.data"].tolist()
        fractions, optimizer, objective = None, None, None
        if "covered" in arrays:
            fractions = expect_array(population.priority_weights, "covered", arrays).copy()
        if any(name.split(".")[0] == "optimizer" for name in arrays):
            template = rules.server_optimizer.init(Float64View(select_trainable(model)))
            optimizer = from_arrays(template, "optimizer", arrays)
        if "measure" in arrays:
            loss, accuracy = expect_array(np.zeros(2), "measure", arrays).tolist()
            no_clients = np.zeros(0, dtype=np.int64)
            missed_clients = (
                tuple(arrays.get(name, no_clients).tolist()) for name in ("stale", "unmeasured")
            )
            objective = Objective(loss, accuracy, *missed_clients)
        rounds = RoundState(
            from_arrays(initial.weighting, "weighting", arrays),
            fractions,
            ClientReports(
                PerClient.from_mapping(dict(zip(clients, data, strict=True))),
                losses=_read_losses(arrays, "reports"),
                evaluated_losses=_read_losses(arrays, "ahead"),
            ),
        )
        evaluations, clock = _read_evaluations(arrays, population), _read_clock(arrays)
        norm = float(arrays["clipping"]) if "clipping" in arrays else None
        under_way = UnderWay.from_state(arrays, UNDER_WAY)
        sizes: dict[str, float] = {}
        if "sizes" in arrays:
            found = expect_array(np.zeros(len(model)), "sizes", arrays)
            sizes = dict(zip(model, found.tolist(), strict=True))
        return cls(rounds, optimizer, objective, evaluations, clock, norm, under_way, sizes)


def _convert_next_inputs(state: ServerState) -> StateArrays:
    """Return what the last sum decides about the next one: its clipping norm and its bins."""
    arrays = {}
    if state.clipping_norm is not None:
        arrays["clipping"] = np.array(state.clipping_norm)
    if state.update_sizes:
        arrays["sizes"] = np.array([*state.update_sizes.values()])
    return arrays


def _convert_losses(reports: ClientReports) -> StateArrays:
    """Return F_k as reported with updates, and as evaluated before the next round."""
    losses, evaluated = (
        PerClient.from_mapping(reports.losses),
        PerClient.from_mapping(reports.evaluated_losses),
    )
    return {
        "reports.client": losses.clients,
        "reports.loss": losses.numbers,
        "ahead.client": evaluated.clients,
        "ahead.loss": evaluated.numbers,
    }


def _read_losses(arrays: Mapping[str, NDArray[Any]], name: str) -> PerClient:
    if f"{name}.client" not in arrays:
        return PerClient()
    clients = arrays[f"{name}.client"].tolist()
    losses = expect_array(np.zeros(len(clients)), f"{name}.loss", arrays).tolist()
    return PerClient.from_mapping(dict(zip(clients, losses, strict=True)))


def _convert_clock(clock: Clock) -> StateArrays:
    replies = [(r.server_round, r.client, r.sent_at, r.seconds) for r in clock.pending_replies]
    return {
        "clock.now": np.array(clock.now),
        "clock.replies": np.array(replies, dtype=np.float64).reshape(-1, 4),
    }


def _read_clock(arrays: Mapping[str, NDArray[Any]]) -> Clock:
    if "clock.now" not in arrays:
        return Clock()
    now = float(expect_array(np.zeros(()), "clock.now", arrays))
    count = len(arrays["clock.replies"])
    replies = expect_array(np.zeros((count, 4)), "clock.replies", arrays).tolist()
    return Clock(now, tuple(PendingReply(int(t), int(k), *times) for t, k, *times in replies))


def _read_evaluations(
    arrays: Mapping[str, NDArray[Any]], population: Population
) -> dict[int, ClientEvaluation]:
    if "measured.client" not in arrays:
        return {}
    clients = arrays["measured.client"].tolist()
    values = expect_array(np.zeros((len(clients), 3)), "measured.values", arrays).tolist()
    nan = math.nan
    return {
        k: ClientEvaluation(
            k, population.get_priority_weight(k), data, loss, accuracy, nan, nan, nan
        )
        for k, (data, loss, accuracy) in zip(clients, values, strict=True)
    }


def _compute_nbytes(state: object) -> int:
    """Return the size in bytes of the arrays in a rule's state, at any depth."""
    if isinstance(state, np.ndarray):
        return state.nbytes
    if is_dataclass(state):
        return sum(_compute_nbytes(getattr(state, item.name)) for item in fields(state))
    if isinstance(state, Mapping):
        return sum(map(_compute_nbytes, state.values()))
    return 0
