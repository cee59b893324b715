"""FedAWE's weights: an update counts for the rounds that its client was away."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """How long ago each client took part, by the clients of the population, shapes (N,).

    ``age`` is t - tau_k >= 1, tau_k the last round in which client k took part. ``t`` is the
    number of rounds so far, which is the number of the present model w_t. A round that was
    refused as a whole is none of them.
    """

    client: IntArray
    age: IntArray
    t: int = 0


@dataclass(frozen=True)
class Echo(Weighting[EchoState]):
    """c_k = (t - tau_k) / |S_t| on d_k = w_k - x_k, tau_k the last round in which k took part.

    Client k trains from x_k = w_{tau_k + 1}, the model after that round, and not from w_t. With
    S_t the clients that took part and eta_g the server's learning rate::

        w_{t+1} = (1 / |S_t|) sum_{k in S_t} x_k + eta_g D,    D = sum_{k in S_t} c_k d_k,

    and then x_k = w_{t+1}, tau_k = t for k in S_t; all others keep both. In the beginning
    x_k = w_0 and tau_k = -1. Where nobody took part nothing moves. The echo t - tau_k makes up for
    the rounds away without any estimate of how often a client is there: over R rounds, of which
    the last is one of client k's, its echoes sum to R (Proposition 1).

    The method's result is the mean of x_k over all N clients, for which ``ComposedStrategy`` has
    ``mean_model``: w_t is nearer to the clients that are often there.

    To take part is to send an update that counts: a client that fails or sends nothing usable was
    away. One first known in round t0 starts from w_{t0}, with tau_k = t0 - 1.

    Parameters
    ----------
    clip : float, optional
        The largest norm of D over all trained arrays; a longer D is shortened to it.
    echo_cap : float
        The largest echo, a whole number >= 1, or inf.
    memory_dir : str, optional
        The folder of the models from which clients start; None keeps them in memory.

    Raises
    ------
    ParameterError
        For a value outside its range.

    References
    ----------
    Xiang, Ioannidis, Yeh, Joe-Wong and Su, "Efficient Federated Learning against Heterogeneous
    and Non-stationary Client Unavailability", NeurIPS 2024, Algorithm 1, where x_k and tau_k stay
    with the clients: x_k is always a past global model, so that the server can keep both. The
    authors' code shortens D to 0.5, which the paper says of gradients. ``echo_cap`` is ours.
    """

    key = "fedawe"
    summary = "FedAWE: clients continue from their last model; updates count for the rounds away."
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
        """That the server keeps the models from which clients start, and shortens D."""
        return PastStarts(math.inf if self.clip is None else self.clip, self.memory_dir)

    def init(self, population: Population) -> EchoState:
        """Return the state before round 0: all start from w_0, tau_k = -1."""
        clients = population.ascending
        return EchoState(clients, np.ones(len(clients), dtype=np.int64))

    def starts(self, state: EchoState) -> Starts:
        """Return that client k trains from w_{tau_k + 1}."""
        return Starts(state.t + 1 - state.age, state.t)

    def weigh(
        self, state: EchoState, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[EchoState, Weights]:
        """Return t - tau_k over the number that took part, and the state after round t."""
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
        """Refuse gates and groups of clients, and steps that are not along the update."""
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
        """Refuse a correction for participation on top."""
        raise self.uncorrectable("an update counts for the rounds that its client was away already")

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield tau_k and the model that client k started from, and its echo."""
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
