"""Scale updates by the rounds since their clients last took part (FedAWE)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ParameterError
from ..rules.decisions import DecisionTrace
from ..rules.description import Goal, RuleDescription
from ..rules.formatting import find_population_index, format_number
from ..rules.hooks import Hooks, Model
from ..rules.parameters import CUTOFF, POSITIVE, Choices, DirectoryPath
from ..rules.rule import parameter
from ..rules.selection.base import Selection, admits_all
from ..rules.server_optimizer.base import ServerOptimizer
from ..rules.types import (
    AggregationWeights,
    ClientUpdates,
    FloatArray,
    IntArray,
    PerClient,
    Population,
    RoundPlan,
)
from ..rules.weighting.base import Weighting, WeightingTraits
from ..rules.weighting.responses import find_client_indices
from ..server.aggregation import Float64View, cast_like, select_buffers, select_trainable
from ..server.exact_sum import compute_weighted_sum
from ..server.model_store import ModelStore


@dataclass(frozen=True)
class FedAWEState:
    """The time since each client's last participation, shapes (N,).

    ``age`` is t - tau_k >= 1, where tau_k is the last round in which client k took part. ``t`` is
    the number of rounds so far, and the number of the current model w_t. It does not count a round
    that was rejected as a whole.
    """

    client: IntArray
    age: IntArray
    t: int = 0

    @property
    def start_index(self) -> IntArray:
        """The number tau_k + 1 of the model from which each client trains next, shape (N,)."""
        return self.t + 1 - self.age


@dataclass(frozen=True)
class FedAWEWeighting(Weighting[FedAWEState]):
    """Weight d_k = w_k - x_k by c_k = (t - tau_k) / |S_t|, tau_k the last round with client k.

    Client k trains from x_k = w_{tau_k + 1}, the model after round tau_k, and not from w_t. With
    the set S_t of participants and the server's learning rate eta_g::

        w_{t+1} = (1 / |S_t|) sum_{k in S_t} x_k + eta_g D,    D = sum_{k in S_t} c_k d_k,

    Then x_k = w_{t+1} and tau_k = t for k in S_t; both stay the same for all other clients. The
    start is x_k = w_0 and tau_k = -1. A round without participants changes nothing. The echo
    t - tau_k compensates for missed rounds, without any estimate of participation rates: if client
    k takes part in the last of R rounds, its echoes in these rounds sum to R (Proposition 1).

    The result of the method is the mean of x_k over all N clients
    (``ComposedStrategy.compute_mean_start_model``), since w_t is closer to the clients that often
    take part.

    A client takes part if its update counts, and not if it fails or sends no usable update. A
    client that registers in round t0 starts from w_{t0}, with tau_k = t0 - 1.

    Parameters
    ----------
    clip : float, optional
        Largest norm of D over all trained arrays; a longer D is scaled to it.
    echo_cap : float
        Largest echo, a whole number >= 1, or inf.
    memory_dir : str, optional
        Directory of the models from which clients start; None stores them in memory.

    Raises
    ------
    ParameterError
        If a value is outside its range.

    References
    ----------
    Xiang, Ioannidis, Yeh, Joe-Wong and Su, "Efficient Federated Learning against Heterogeneous
    and Non-stationary Client Unavailability", NeurIPS 2024, Algorithm 1, where x_k and tau_k stay
    with the clients: x_k is always a past global model, so that the server can keep both. The
    authors' code shortens D to 0.5, which the paper says of gradients. ``echo_cap`` is ours.
    """

    description = RuleDescription(
        key="fedawe",
        summary=(
            "FedAWE: clients continue from their last model; updates count for the rounds away."
        ),
        use="clients come and go, and the server can hold a model for each client",
        weight=(
            "(t - tau_k) / (number available), tau_k the round in which the client last took "
            "part, from whose model it starts; the result is the mean of all clients' models"
        ),
        source="[Xiang et al. 2024](https://arxiv.org/abs/2409.17446), Algorithm 1",
        state=(
            "16, and the models from which clients start: one for each round that is the last "
            "of some client, at most a model a client (`strategy.memory_dir` keeps them in "
            "files)"
        ),
        trusts="that an update is there; the server itself knows how long a client was away",
        gain=(
            "a client that rarely takes part counts for more when it does, t - tau_k over the "
            "number available, without limit; it can stay away on purpose"
        ),
        limit=(
            "`strategy.echo_cap` bounds the echo, `strategy.clip` the step of all clients together"
        ),
        goal=Goal.PARTICIPATION,
    )
    traits = WeightingTraits(
        numerator="t - tau_k",
        denominator="the number of {whom}",
        needs_losses=False,
        dp_unsupported_reason=(
            "the model becomes the mean of the available clients' start models: availability alone "
            "decides it"
        ),
        late_unsupported_reason="its clients start from models of their own choice of round",
        sum_unsupported_reason="its clients start from models of different rounds",
        uncorrectable_reason="an update already counts for the rounds that its client was away",
    )

    clip: float | None = parameter(None, POSITIVE)
    echo_cap: float = parameter(math.inf, CUTOFF, Choices((5, 20, 100, math.inf)))
    memory_dir: str | None = parameter(None, DirectoryPath())

    @property
    def hooks(self) -> Hooks:
        """The store of the models from which clients start, which also combines their updates."""
        folder = None if self.memory_dir is None else Path(self.memory_dir)
        max_norm = math.inf if self.clip is None else self.clip
        return Hooks(client_start=partial(ModelHistory, folder, max_norm))

    def init(self, population: Population) -> FedAWEState:
        """Return the state before round 0, with x_k = w_0 and tau_k = -1 for all clients."""
        clients = population.sorted_clients
        return FedAWEState(clients, np.ones(len(clients), dtype=np.int64))

    def weigh(
        self,
        state: FedAWEState,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
    ) -> tuple[FedAWEState, AggregationWeights]:
        """Return (t - tau_k) / (number of participants), and the state after round t."""
        client_indices = find_client_indices(state.client, updates)
        registered = np.isin(state.client, updates.registered)
        echo = np.minimum(state.age, self.echo_cap).astype(np.float64)
        age = np.where(registered, state.age + 1, 1)
        age[client_indices[admitted_fraction > 0]] = 1
        weights = AggregationWeights(
            admitted_fraction * echo[client_indices],
            float(admitted_fraction.sum()),
            omega=PerClient(state.client[registered], echo[registered]),
        )
        return FedAWEState(state.client, age, state.t + 1), weights

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse gates, groups of clients, and server optimizers that change the direction."""
        if not (selection.traits.selects_all and admits_all(selection)):
            raise ParameterError(
                "selection",
                f"everyone with the weighting {self.description.key}",
                selection.description.key,
                "clients evaluate the different models that they start from, and all of them "
                "share in the mean",
            )
        if not server_optimizer.is_linear:
            raise ParameterError(
                "server_optimizer",
                f"sgd with the weighting {self.description.key}",
                server_optimizer.description.key,
                "every round starts at another mean of past models, which is no path of one model",
            )

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield tau_k, the model from which client k started, and its echo."""
        if trace.weights is None:
            return
        state: FedAWEState = trace.state
        age = int(state.age[find_population_index(state.client, trace, index)])
        tau, count = state.t - age, float(trace.admitted_fraction.sum())
        yield (
            f"tau_k = {tau}, the last round in which the client took part, or the round before it "
            f"registered; now t = {state.t}, both from 0. It trained from w_{tau + 1}, and c_k "
            "weights its change from there"
        )
        terms, numbers = "t - tau_k", f"{age}"
        if age > self.echo_cap:
            terms, numbers = "min(t - tau_k, echo_cap)", f"min({age}, {self.echo_cap:g})"
        yield (
            f"c_k = ({terms}) / |S_t| = {numbers} / {format_number(count)} = "
            f"{format_number(trace.weights.weight[index])}"
        )


class ModelHistory(ModelStore):
    """The models w_i from which clients will start in later rounds, each stored once.

    There are at most as many models as clients, and usually far fewer: clients that last took part
    in the same round share a model. See ``fedquorum.rules.hooks.StartModelStore``.

    Parameters
    ----------
    directory : Path, optional
        The directory of the models, in files without names; None stores them in memory.
    max_norm : float
        The largest norm of D.
    """

    def __init__(self, directory: Path | None = None, max_norm: float = math.inf) -> None:
        super().__init__(directory)
        self._max_norm = max_norm

    def prepare_start_models(
        self, state: FedAWEState, model: Model, population: Population
    ) -> "ClientStartModels":
        """Return the start models of a round, and delete those that no client needs any more.

        Parameters
        ----------
        state : FedAWEState
            The state before the round.
        model : mapping
            The current model w_t.
        population : Population

        Raises
        ------
        RunError
            If there is no space for the current model.
        """
        numbers = state.start_index.tolist()
        needed = set(numbers)
        self.keep(needed)
        if state.t in needed:
            self.add(state.t, model)
        number_by_client = dict(zip(population.sorted_clients.tolist(), numbers, strict=True))
        return ClientStartModels(dict(self.models), number_by_client, self._max_norm)

    def compute_mean_model(self, state: FedAWEState, model: Model, population: Population) -> Model:
        """Return (1 / N) sum_k x_k over all clients, x_k the model from which k starts next.

        The arguments and errors are those of ``prepare_start_models``.
        """
        models = self.prepare_start_models(state, model, population).models
        return compute_mean_start_model(state.start_index, models, model)


@dataclass(frozen=True)
class ClientStartModels:
    """The start models of a round; see ``fedquorum.rules.hooks.StartModels``.

    Parameters
    ----------
    models : mapping of int to mapping
        The models by their numbers.
    index_by_client : mapping of int to int
        The number of each client's start model, by client id.
    max_norm : float
        The largest norm of D.
    """

    models: Mapping[int, Model]
    index_by_client: Mapping[int, int]
    max_norm: float = math.inf

    def get_model(self, client: int) -> Model:
        """Return the model that a client starts from."""
        return self.models[self.index_by_client[client]]

    def combine(
        self, model: Model, updates: Sequence[tuple[int, float, Model]], denominator: float
    ) -> tuple[Mapping[str, FloatArray], Mapping[str, FloatArray]]:
        """Return B and D of a round in float64, with D clipped to ``max_norm``.

        B = (1 / n) sum_k x_k is over the n clients that took part. For trained arrays,
        D = sum_k a_k (w_k - x_k) / denominator. For buffers, which an echo could make negative, D
        leads to the mean of the w_k.

        All sums are exact (``fedquorum.server.exact_sum``), so that neither the clients' order nor
        their grouping changes a bit. If all clients start from ``model``, B is ``model`` exactly.
        """
        n = float(len(updates))
        trainable = select_trainable(model)

        def select(arrays: Model) -> Model:
            return {name: arrays[name] for name in trainable}

        starts = [select(self.get_model(client)) for client, _, _ in updates]
        offset = compute_weighted_sum(trainable, [(1.0, start) for start in starts], n)
        weighted_models = [(factor, select(arrays)) for _, factor, arrays in updates]
        step = clip_by_norm(
            compute_weighted_sum(trainable, weighted_models, denominator, starts=starts),
            self.max_norm,
        )
        buffers = select_buffers(model)
        means = compute_weighted_sum(
            buffers,
            [(1.0, {name: arrays[name] for name in buffers}) for _, _, arrays in updates],
            n,
        )
        present = Float64View(model)
        anchor = {name: present[name] + offset[name] for name in trainable}
        return anchor, {**step, **means}


def compute_mean_start_model(number: IntArray, models: Mapping[int, Model], model: Model) -> Model:
    """Return (1 / N) sum_k x_k, x_k the model with the ``number`` of client k.

    Parameters
    ----------
    number : IntArray
        The number of the model from which each client starts, shape (N,).
    models : mapping of int to mapping
        The models by their numbers.
    model : mapping
        The current model.
    """
    numbers, counts = np.unique(number, return_counts=True)
    weighted_models = [
        (float(count), models[i])
        for i, count in zip(numbers.tolist(), counts.tolist(), strict=True)
    ]
    offset = compute_weighted_sum(model, weighted_models, float(len(number)))
    return cast_like({name: a + offset[name] for name, a in Float64View(model).items()}, model)


def clip_by_norm(update: dict[str, FloatArray], max_norm: float) -> dict[str, FloatArray]:
    """Return an update, scaled to the norm ``max_norm`` if it is longer."""
    norm = math.sqrt(math.fsum(float(np.vdot(u, u)) for u in update.values()))
    if norm <= max_norm:
        return update
    return {name: u * (max_norm / norm) for name, u in update.items()}
