"""Convert a strategy's state between rounds, beside the model, to named arrays and back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .aggregation import Float64View, select_trainable
from .composition import RuleSet
from .decisions import ClientEvaluation, update_reports
from .round import RoundState
from .state_arrays import StateArrays, compute_nbytes, expect_array, from_arrays, to_arrays
from .types import ClientReports, IntArray, Objective, PerClient, Population
from .update_memory import UpdateMemory
from .virtual_clock import Clock, PendingReply


@dataclass(frozen=True)
class ServerState:
    """The state of a strategy's rules after a round.

    Parameters
    ----------
    round_state : RoundState
        What the decisions of the next round need.
    optimizer : Any
        The server optimizer's state, None before its first step.
    objective : Objective or None
        F(w_t) of the model that the next round broadcasts, None before it is measured.
    last_evaluations : mapping of int to ClientEvaluation
        What each priority client last measured of the objective, where it may miss the next time.
    clock : Clock
        Simulated time, which stands still without a virtual clock.
    clipping_norm : float, optional
        C of the next round, None as long as it is the first one's.
    """

    round_state: RoundState
    optimizer: Any = None
    objective: Objective | None = None
    last_evaluations: Mapping[int, ClientEvaluation] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    clipping_norm: float | None = None

    @classmethod
    def initial(cls, rules: RuleSet, population: Population) -> Self:
        """Return the state before round 1."""
        return cls(RoundState.initial(rules, population))

    @property
    def nbytes(self) -> int:
        """The size of the rules' states in bytes."""
        return sum(
            map(
                compute_nbytes,
                (self.round_state.weighting, self.round_state.admitted_fractions, self.optimizer),
            )
        )

    def with_evaluations(self, rules: RuleSet, evaluations: Sequence[ClientEvaluation]) -> Self:
        """Return the state with the clients' reports on their data and their measurements."""
        everyone = rules.hooks.before_round is not None
        told = update_reports(self.round_state.reports, evaluations, all_clients=everyone)
        return replace(self, round_state=replace(self.round_state, reports=told))

    def with_clients(self, rules: RuleSet, before: Population, after: Population) -> Self:
        """Return the state with room for clients that joined, each as before its first round."""
        return replace(self, round_state=self.round_state.with_clients(rules, before, after))

    def to_arrays(
        self, rules: RuleSet, memory: UpdateMemory | None, registered: IntArray
    ) -> StateArrays:
        """Return all of it as named arrays, with the memory of updates and the known clients.

        They may be the state's own: to be written before the next round, not to be changed.
        """
        examples = PerClient.from_mapping(self.round_state.reports.num_examples)
        updates = {} if memory is None else memory.get_state()
        objective = self.objective
        measured = [self.last_evaluations[k] for k in sorted(self.last_evaluations)]
        return {
            **to_arrays(self.round_state.weighting, "weighting"),
            **to_arrays(self.round_state.admitted_fractions, "covered"),
            **to_arrays(self.optimizer, "optimizer"),
            **{f"memory.{name}": array for name, array in updates.items()},
            **(
                {}
                if objective is None
                else {"measure": np.array([objective.loss, objective.accuracy])}
            ),
            **(
                {"stale": np.array(objective.stale_clients, dtype=np.int64)}
                if objective is not None and objective.stale_clients
                else {}
            ),
            **(
                {"unmeasured": np.array(objective.missing_clients, dtype=np.int64)}
                if objective is not None and objective.missing_clients
                else {}
            ),
            **(
                {
                    "measured.client": np.array([e.client for e in measured], dtype=np.int64),
                    "measured.values": np.array(
                        [[e.num_examples, e.loss, e.accuracy] for e in measured]
                    ),
                }
                if measured
                else {}
            ),
            **({} if self.clock == Clock() else _convert_clock(self.clock)),
            **({} if self.clipping_norm is None else {"clipping": np.array(self.clipping_norm)}),
            **(
                _convert_losses(self.round_state.reports)
                if rules.hooks.before_round is not None
                else {}
            ),
            "examples.client": examples.clients,
            "examples.data": examples.numbers,
            "known": registered,
        }

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        rules: RuleSet,
        population: Population,
        model: Mapping[str, NDArray[Any]],
    ) -> Self:
        """Return the state that ``to_arrays`` wrote down, for the same rules, clients and model.

        Raises
        ------
        StateError
            If it is the state of other rules, of other clients or of another model.
        """
        initial = RoundState.initial(rules, population)
        clients, data = arrays["examples.client"].tolist(), arrays["examples.data"].tolist()
        covered, optimizer, objective = None, None, None
        if "covered" in arrays:
            covered = expect_array(population.priority_weights, "covered", arrays).copy()
        if any(name.split(".")[0] == "optimizer" for name in arrays):
            template = rules.server_optimizer.init(Float64View(select_trainable(model)))
            optimizer = from_arrays(template, "optimizer", arrays)
        if "measure" in arrays:
            loss, accuracy = expect_array(np.zeros(2), "measure", arrays).tolist()
            nobody = np.zeros(0, dtype=np.int64)
            missed = (tuple(arrays.get(name, nobody).tolist()) for name in ("stale", "unmeasured"))
            objective = Objective(loss, accuracy, *missed)
        rounds = RoundState(
            from_arrays(initial.weighting, "weighting", arrays),
            covered,
            ClientReports(
                PerClient.from_mapping(dict(zip(clients, data, strict=True))),
                losses=_read_losses(arrays, "told"),
                evaluated_losses=_read_losses(arrays, "ahead"),
            ),
        )
        measured, clock = _read_evaluations(arrays, population), _read_clock(arrays)
        norm = float(arrays["clipping"]) if "clipping" in arrays else None
        return cls(rounds, optimizer, objective, measured, clock, norm)


def _convert_losses(reports: ClientReports) -> StateArrays:
    """Return F_k as told with updates, and as measured ahead of the next round."""
    losses, measured = (
        PerClient.from_mapping(reports.losses),
        PerClient.from_mapping(reports.evaluated_losses),
    )
    return {
        "told.client": losses.clients,
        "told.loss": losses.numbers,
        "ahead.client": measured.clients,
        "ahead.loss": measured.numbers,
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
    nothing = math.nan
    return {
        k: ClientEvaluation(
            k, population.get_priority_weight(k), data, loss, accuracy, nothing, nothing, nothing
        )
        for k, (data, loss, accuracy) in zip(clients, values, strict=True)
    }
