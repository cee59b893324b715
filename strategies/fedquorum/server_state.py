"""Convert a strategy's state between rounds, beside the model, to named arrays and back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .aggregation import AsFloat64, trained
from .composition import Rules
from .memory import UpdateMemory
from .report import ClientEvaluation, told_after
from .round import RoundState
from .state import StateArrays, array_like, bytes_of, from_arrays, to_arrays
from .types import ByClient, IntArray, Objective, Population, Told
from .virtual_clock import Clock, OnItsWay


@dataclass(frozen=True)
class ServerState:
    """The state of a strategy's rules after a round.

    Parameters
    ----------
    rounds : RoundState
        What the decisions of the next round need.
    optimizer : Any
        The server optimizer's state, None before its first step.
    objective : Objective or None
        F(w_t) of the model that the next round broadcasts, None before it is measured.
    measured : mapping of int to ClientEvaluation
        What each priority client last measured of the objective, where it may miss the next time.
    clock : Clock
        Simulated time, which stands still without a virtual clock.
    clipping_norm : float, optional
        C of the next round, None as long as it is the first one's.
    """

    rounds: RoundState
    optimizer: Any = None
    objective: Objective | None = None
    measured: Mapping[int, ClientEvaluation] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    clipping_norm: float | None = None

    @classmethod
    def initial(cls, rules: Rules, population: Population) -> Self:
        """Return the state before round 1."""
        return cls(RoundState.initial(rules, population))

    @property
    def nbytes(self) -> int:
        """The size of the rules' states in bytes."""
        return sum(map(bytes_of, (self.rounds.weighting, self.rounds.covered, self.optimizer)))

    def with_evaluations(self, rules: Rules, evaluations: Sequence[ClientEvaluation]) -> Self:
        """Return the state with the clients' reports on their data and their measurements."""
        everyone = rules.hooks.before_round is not None
        told = told_after(self.rounds.told, evaluations, everyone=everyone)
        return replace(self, rounds=replace(self.rounds, told=told))

    def grown(self, rules: Rules, before: Population, after: Population) -> Self:
        """Return the state with room for clients that joined, each as before its first round."""
        return replace(self, rounds=self.rounds.grown(rules, before, after))

    def arrays(self, rules: Rules, memory: UpdateMemory | None, known: IntArray) -> StateArrays:
        """Return all of it as named arrays, with the memory of updates and the known clients.

        They may be the state's own: to be written before the next round, not to be changed.
        """
        examples = ByClient.of(self.rounds.told.examples)
        updates = {} if memory is None else memory.state()
        objective = self.objective
        measured = [self.measured[k] for k in sorted(self.measured)]
        return {
            **to_arrays(self.rounds.weighting, "weighting"),
            **to_arrays(self.rounds.covered, "covered"),
            **to_arrays(self.optimizer, "optimizer"),
            **{f"memory.{name}": array for name, array in updates.items()},
            **(
                {}
                if objective is None
                else {"measure": np.array([objective.loss, objective.accuracy])}
            ),
            **(
                {"stale": np.array(objective.stale, dtype=np.int64)}
                if objective is not None and objective.stale
                else {}
            ),
            **(
                {"unmeasured": np.array(objective.unmeasured, dtype=np.int64)}
                if objective is not None and objective.unmeasured
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
            **({} if self.clock == Clock() else _clock_arrays(self.clock)),
            **({} if self.clipping_norm is None else {"clipping": np.array(self.clipping_norm)}),
            **(_loss_arrays(self.rounds.told) if rules.hooks.before_round is not None else {}),
            "examples.client": examples.clients,
            "examples.data": examples.numbers,
            "known": known,
        }

    @classmethod
    def of_arrays(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        rules: Rules,
        population: Population,
        model: Mapping[str, NDArray[Any]],
    ) -> Self:
        """Return the state that ``arrays`` wrote down, for the same rules, clients and model.

        Raises
        ------
        StateError
            If it is the state of other rules, of other clients or of another model.
        """
        initial = RoundState.initial(rules, population)
        clients, data = arrays["examples.client"].tolist(), arrays["examples.data"].tolist()
        covered, optimizer, objective = None, None, None
        if "covered" in arrays:
            covered = array_like(population.priority_weights, "covered", arrays).copy()
        if any(name.split(".")[0] == "optimizer" for name in arrays):
            template = rules.server_optimizer.init(AsFloat64(trained(model)))
            optimizer = from_arrays(template, "optimizer", arrays)
        if "measure" in arrays:
            loss, accuracy = array_like(np.zeros(2), "measure", arrays).tolist()
            nobody = np.zeros(0, dtype=np.int64)
            missed = (tuple(arrays.get(name, nobody).tolist()) for name in ("stale", "unmeasured"))
            objective = Objective(loss, accuracy, *missed)
        rounds = RoundState(
            from_arrays(initial.weighting, "weighting", arrays),
            covered,
            Told(
                ByClient.of(dict(zip(clients, data, strict=True))),
                losses=_losses(arrays, "told"),
                measured=_losses(arrays, "ahead"),
            ),
        )
        measured, clock = _measured(arrays, population), _clock(arrays)
        norm = float(arrays["clipping"]) if "clipping" in arrays else None
        return cls(rounds, optimizer, objective, measured, clock, norm)


def _loss_arrays(told: Told) -> StateArrays:
    """Return F_k as told with updates, and as measured ahead of the next round."""
    losses, measured = ByClient.of(told.losses), ByClient.of(told.measured)
    return {
        "told.client": losses.clients,
        "told.loss": losses.numbers,
        "ahead.client": measured.clients,
        "ahead.loss": measured.numbers,
    }


def _losses(arrays: Mapping[str, NDArray[Any]], name: str) -> ByClient:
    if f"{name}.client" not in arrays:
        return ByClient()
    clients = arrays[f"{name}.client"].tolist()
    losses = array_like(np.zeros(len(clients)), f"{name}.loss", arrays).tolist()
    return ByClient.of(dict(zip(clients, losses, strict=True)))


def _clock_arrays(clock: Clock) -> StateArrays:
    replies = [(r.server_round, r.client, r.sent, r.seconds) for r in clock.on_their_way]
    return {
        "clock.now": np.array(clock.now),
        "clock.replies": np.array(replies, dtype=np.float64).reshape(-1, 4),
    }


def _clock(arrays: Mapping[str, NDArray[Any]]) -> Clock:
    if "clock.now" not in arrays:
        return Clock()
    now = float(array_like(np.zeros(()), "clock.now", arrays))
    count = len(arrays["clock.replies"])
    replies = array_like(np.zeros((count, 4)), "clock.replies", arrays).tolist()
    return Clock(now, tuple(OnItsWay(int(t), int(k), *times) for t, k, *times in replies))


def _measured(
    arrays: Mapping[str, NDArray[Any]], population: Population
) -> dict[int, ClientEvaluation]:
    if "measured.client" not in arrays:
        return {}
    clients = arrays["measured.client"].tolist()
    values = array_like(np.zeros((len(clients), 3)), "measured.values", arrays).tolist()
    nothing = math.nan
    return {
        k: ClientEvaluation(
            k, population.priority_weight(k), data, loss, accuracy, nothing, nothing, nothing
        )
        for k, (data, loss, accuracy) in zip(clients, values, strict=True)
    }
