"""Step along the shortest combination of the normalised updates (FedMGDA+)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..description import NO_SUM, RuleDescription
from ..errors import ParameterError
from ..parameters import FRACTION
from ..report import Decided
from ..responses import positions, scattered
from ..rule import parameter
from ..search import Between
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..simplex import minimise_quadratic
from ..types import Call, FloatArray, IntArray, Population, Responses, Weights
from ..words import digits
from .base import Weighting
from .exponentiated_gradient import base_weights


@dataclass(frozen=True)
class MinNorm(Weighting[IntArray]):
    """Weight client i by c_i = p_i / |Delta_i|, with p the shortest mixture of directions.

        p = argmin |sum_i p_i Delta_i / |Delta_i||^2  over the simplex with |p_i - w_i| <= epsilon,

    where w_i is client i's fraction of the data heard. With epsilon = 1 the mixture harms no
    participant, to first order. epsilon = 0 is FedAvg on normalised updates. An update of length 0
    has no direction: it enters as the zero vector and moves nothing. The step is unique; p is
    unique if the directions are linearly independent.

    The step has length at most 1, whatever the clients' learning rates. The paper therefore gives
    it a separate server learning rate. The rule does not use losses.

    Parameters
    ----------
    max_deviation : float
        epsilon in [0, 1].

    Raises
    ------
    ParameterError
        If ``max_deviation`` is outside its range.

    References
    ----------
    Hu, Shaloudegi, Zhang and Yu, "Federated Learning Meets Multi-Objective Optimization", IEEE
    TNSE 2022, Algorithm 1. The centre of the box is w_i, with equal amounts of data 1 / n.
    """

    key = "fedmgda"
    summary = "FedMGDA+: the shortest combination of the normalised updates."
    description = RuleDescription(
        weight="the shortest combination of the normalized updates",
        source="Hu et al. 2022",
        trusts="the update, `num-examples`",
        gain="an update can turn the shortest combination",
        limit=(
            "the step has length at most server_lr; `strategy.max_deviation` keeps weights near "
            "the amounts of data"
        ),
        secure_sum=NO_SUM,
    )
    needs_updates = True
    by_data = True
    default_form = "min-norm in a box"
    tolerance = 1e-6  # p is the answer of a solver, which other machines round otherwise
    unbounded = "what an update counts follows from all others: one can turn the whole step"
    not_recorded = (
        "the mixing coefficients of fedmgda: they need the inner products of the updates, which "
        "no record holds (checked instead: simplex, box, and weight = p / |Delta|)"
    )
    factor = "p_k / |Delta_k|"
    divisor = "the sum of p over {whom}, which is 1"

    max_deviation: float = parameter(1.0, FRACTION, Between(0.05, 1.0))

    def over_known(self) -> Weighting[Any]:
        """Refuse a correction for participation."""
        raise self.uncorrectable(
            "multiplied by omega its combination is no longer the shortest, which is its point"
        )

    def init(self, population: Population) -> IntArray:
        """Return the state: the clients ascending, shape (K,)."""
        return population.ascending

    def weigh(
        self, state: IntArray, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[IntArray, Weights]:
        """Return c_i; ``mixing`` is p.

        Raises
        ------
        SolverError
            If the quadratic program is not solved to its accuracy.
        ValueError
            If the updates' inner products are not available.
        """
        weight, mixing = np.zeros_like(share), np.zeros(len(state))
        base = base_weights(call, responses, share)
        counts = base > 0
        if not counts.any():
            return state, Weights(weight, mixing=mixing)
        if responses.gram is None:
            raise ValueError(
                "FedMGDA+ needs the inner products of the updates, and nobody provides them"
            )
        gram = responses.gram()[np.ix_(counts, counts)]
        length = np.sqrt(np.diag(gram))
        inverse = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
        centre = base[counts]
        coefficients = minimise_quadratic(
            gram * np.outer(inverse, inverse),
            np.zeros(len(centre)),
            low=np.maximum(centre - self.max_deviation, 0.0),
            high=np.minimum(centre + self.max_deviation, 1.0),
        )
        weight[counts] = coefficients * inverse
        mixing[positions(state, responses)[counts]] = coefficients
        return state, Weights(weight, mixing=mixing, update_norm=scattered(length, counts))

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a gate, and server optimizers that step in another direction."""
        if not server_optimizer.follows_update:
            raise ParameterError(
                "server_optimizer",
                "sgd with the weighting fedmgda",
                server_optimizer.key,
                "another step than along the shortest combination may harm clients, which it is "
                "there to avoid",
            )
        if selection.gated:
            raise ParameterError(
                "selection",
                "one without a gate with the weighting fedmgda",
                selection.key,
                "the step harms none of those in it, so a client without priority could stop "
                "that of the priority clients",
            )

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the recorded p, and the weight that follows from it."""
        recorded = decided.recorded[place]
        w = base_weights(decided.call, decided.responses, decided.share)[place]
        yield (
            "p = argmin |sum of p_i Delta_i / |Delta_i||^2 over the simplex with |p_i - w_i| <= "
            f"{self.max_deviation:g}: p_k = {digits(recorded.mixing_coefficient)}, w_k = "
            f"{digits(w)}; the inner products of the updates that decide it are not in the records"
        )
        yield (
            f"c_k = p_k / |Delta_k| = {digits(recorded.mixing_coefficient)} / "
            f"{digits(recorded.update_norm)}"
        )

    def check_recorded(self, decided: Decided) -> Iterator[tuple[int | None, str]]:
        """Yield each p outside the simplex or the box, and each weight that is not p / |Delta|."""
        base = base_weights(decided.call, decided.responses, decided.share)
        total = 0.0
        for recorded, centre in zip(decided.recorded, base.tolist(), strict=True):
            p, norm = recorded.mixing_coefficient or 0.0, recorded.update_norm
            total += p
            if abs(p - centre) > self.max_deviation + self.tolerance:
                text = (
                    f"mixing {p:.9g} is further than {self.max_deviation:g} from w = {centre:.9g}"
                )
                yield recorded.client, text
            expected = p / norm if norm else 0.0
            if decided.capped is not None:
                expected = min(expected, decided.capped)
            if not math.isclose(recorded.weight, expected, rel_tol=1e-9, abs_tol=1e-12):
                text = f"weight is {recorded.weight:.9g}, the other records give {expected:.9g}"
                yield recorded.client, text
        if (base > 0).any() and not math.isclose(total, 1.0, rel_tol=self.tolerance):
            yield None, f"the mixing coefficients sum to {total:.9g}, not to 1"
