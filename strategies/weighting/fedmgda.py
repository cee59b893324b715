"""FedMGDA+: the shortest combination of the normalised updates, not far from the data's."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strategies.parameters import FRACTION, ParameterError
from strategies.responses import positions, told
from strategies.types import Call, FloatArray, IntArray, Population, Responses, Weights
from strategies.weighting.base import Weighting
from strategies.weighting.exponentiated_gradient import base_weights
from strategies.weighting.simplex import minimise_quadratic


@dataclass(frozen=True)
class FedMGDAPlus:
    """c_i = p_i / |Delta_i|, p the weights of the shortest mixture of the updates' directions.

        p = argmin |sum_i p_i Delta_i / |Delta_i||^2  over the simplex with |p_i - w_i| <= epsilon,

    w_i the fraction of the data heard. With epsilon = 1 the mixture harms no client, to first
    order, that took part; epsilon = 0 is FedAvg on normalised updates. An update of length 0 has
    no direction: it enters as the zero vector and moves nothing. The step is unique; p is where
    the directions are linearly independent.

    The step has length at most 1, whatever the clients' learning rates: the paper gives it a
    server learning rate of its own. Losses are not used.

    Parameters
    ----------
    deviation : float
        epsilon in [0, 1].

    Raises
    ------
    ParameterError
        For a deviation outside its range.

    References
    ----------
    Hu, Shaloudegi, Zhang and Yu, "Federated Learning Meets Multi-Objective Optimization", IEEE
    TNSE 2022, Algorithm 1. The centre of the box is w_i, with equal amounts of data 1 / n.
    """

    needs_losses: ClassVar[bool] = True
    fixed_divisor: ClassVar[bool] = False
    factor: ClassVar[str] = "p_k / |Delta_k|"
    divisor: ClassVar[str] = "the sum of p over {whom}, which is 1"
    deviation: float = 1.0

    def __post_init__(self) -> None:
        FRACTION.check("deviation", self.deviation)

    def over_known(self) -> Weighting[Any]:
        """Refuse, with the reason as a ``ParameterError``."""
        raise ParameterError(
            "participation must be none with weighting=fedmgda "
            "(multiplied by omega its combination is no longer the shortest, which is its point)"
        )

    def init(self, population: Population) -> IntArray:
        """Return the clients ascending, shape (K,): nothing else is remembered."""
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
            If nobody provides the updates' inner products.
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
        own = minimise_quadratic(
            gram * np.outer(inverse, inverse),
            np.zeros(len(centre)),
            low=np.maximum(centre - self.deviation, 0.0),
            high=np.minimum(centre + self.deviation, 1.0),
        )
        weight[counts] = own * inverse
        mixing[positions(state, responses)[counts]] = own
        return state, Weights(weight, mixing=mixing, update_norm=told(length, counts))
