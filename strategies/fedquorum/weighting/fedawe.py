"""Scale updates by the rounds that their clients were away (FedAWE)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..description import RuleDescription
from ..errors import ParameterError
from ..parameters import CUTOFF, POSITIVE, FolderPath
from ..report import Decided
from ..responses import positions
from ..rule import Question, parameter
from ..search import Among
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..types import (
    ByClient,
    Call,
    FloatArray,
    IntArray,
    PastStarts,
    Population,
    Responses,
    Starts,
    Weights,
)
from ..words import digits, place_in
from .base import Weighting


@dataclass(frozen=True)
class EchoState:
    """The time since each client's last participation, shapes (N,).

    ``age`` is t - tau_k >= 1, where tau_k is the last round in which client k took part. ``t`` is
    the number of rounds so far, and the number of the present model w_t. It does not count a round
    that was refused as a whole.
    """

    client: IntArray
    age: IntArray
    t: int = 0


@dataclass(frozen=True)
class Echo(Weighting[EchoState]):
    """Weight d_k = w_k - x_k by c_k = (t - tau_k) / |S_t|, tau_k the last round with client k.

    Client k trains from x_k = w_{tau_k + 1}, the model after round tau_k, and not from w_t. With
    the set S_t of participants and the server's learning rate eta_g::

        w_{t+1} = (1 / |S_t|) sum_{k in S_t} x_k + eta_g D,    D = sum_{k in S_t} c_k d_k,

    Then x_k = w_{t+1} and tau_k = t for k in S_t; all other clients keep both. The start is
    x_k = w_0 and tau_k = -1. A round without participants changes nothing. The echo t - tau_k
    compensates for the rounds away, without any estimate of participation rates: if client k takes
    part in the last of R rounds, its echoes in these rounds sum to R (Proposition 1).

    The result of the method is the mean of x_k over all N clients
    (``ComposedStrategy.mean_start``), since w_t is closer to the clients that often take part.

    A client takes part if its update counts; a client that fails or sends no usable update was
    away. A client that is first known in round t0 starts from w_{t0}, with tau_k = t0 - 1.

    Parameters
    ----------
    clip : float, optional
        Largest norm of D over all trained arrays; a longer D is scaled to it.
    echo_cap : float
        Largest echo, a whole number >= 1, or inf.
    memory_dir : str, optional
        Folder of the models from which clients start; None keeps them in memory.

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

    key = "fedawe"
    summary = "FedAWE: clients continue from their last model; updates count for the rounds away."
    description = RuleDescription(
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
        secure_sum=(
            "possible: the server knows the weights before training, and keeps only past "
            "global models; devices that start from models of different rounds receive "
            "different messages"
        ),
    )
    question = Question.PARTICIPATION
    needs_losses = False
    factor = "t - tau_k"
    divisor = "the number of {whom}"
    late = "It did not take part, and continues from the model that it started from."
    unbounded = (
        "the model becomes the mean of the available clients' start models: availability alone "
        "decides it"
    )

    clip: float | None = parameter(None, POSITIVE)
    echo_cap: float = parameter(math.inf, CUTOFF, Among((5, 20, 100, math.inf)))
    memory_dir: str | None = parameter(None, FolderPath())

    @property
    def past_starts(self) -> PastStarts:
        """The store of the models from which clients start, and the limit on D."""
        return PastStarts(math.inf if self.clip is None else self.clip, self.memory_dir)

    def init(self, population: Population) -> EchoState:
        """Return the state before round 0, with x_k = w_0 and tau_k = -1 for all clients."""
        clients = population.ascending
        return EchoState(clients, np.ones(len(clients), dtype=np.int64))

    def starts(self, state: EchoState) -> Starts:
        """Return the start of each client: w_{tau_k + 1}."""
        return Starts(state.t + 1 - state.age, state.t)

    def weigh(
        self, state: EchoState, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[EchoState, Weights]:
        """Return (t - tau_k) / (number of participants), and the state after round t."""
        position = positions(state.client, responses)
        known = np.isin(state.client, responses.known)
        echo = np.minimum(state.age, self.echo_cap).astype(np.float64)
        age = np.where(known, state.age + 1, 1)
        age[position[share > 0]] = 1
        weights = Weights(
            share * echo[position],
            float(share.sum()),
            omega=ByClient(state.client[known], echo[known]),
        )
        return EchoState(state.client, age, state.t + 1), weights

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse gates, groups of clients, and steps in other directions than the update's."""
        if not (selection.asks_all and selection.admits_all):
            raise ParameterError(
                "selection",
                f"everyone with the weighting {self.key}",
                selection.key,
                "clients measure the different models that they start from, and all of them "
                "share in the mean",
            )
        if not server_optimizer.follows_update:
            raise ParameterError(
                "server_optimizer",
                f"sgd with the weighting {self.key}",
                server_optimizer.key,
                "every round begins at another mean of past models, which is no path of one model",
            )

    def over_known(self) -> Weighting[Any]:
        """Refuse a further correction for participation."""
        raise self.uncorrectable("an update counts for the rounds that its client was away already")

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield tau_k, the model from which client k started, and its echo."""
        if decided.weights is None:
            return
        state: EchoState = decided.state
        age = int(state.age[place_in(state.client, decided, place)])
        tau, count = state.t - age, float(decided.share.sum())
        yield (
            f"tau_k = {tau}, the last round in which the client took part, or the round before it "
            f"was known; now t = {state.t}, both from 0. It trained from w_{tau + 1}, and c_k "
            "weights its change from there"
        )
        terms, numbers = "t - tau_k", f"{age}"
        if age > self.echo_cap:
            terms, numbers = "min(t - tau_k, echo_cap)", f"min({age}, {self.echo_cap:g})"
        yield (
            f"c_k = ({terms}) / |S_t| = {numbers} / {digits(count)} = "
            f"{digits(decided.weights.weight[place])}"
        )
