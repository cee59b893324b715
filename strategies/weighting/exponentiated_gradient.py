"""The language that the fair rules share: p_i proportional to prior_i exp(r_i)."""

from collections.abc import Callable

import numpy as np

from strategies.parameters import ParameterError
from strategies.responses import heard, positions, told
from strategies.types import Call, FloatArray, IntArray, Responses, Weights
from strategies.weighting.data_fraction import DataFraction


def exponentiated_gradient(prior: FloatArray | None, response: FloatArray) -> FloatArray:
    """Return p_i = prior_i exp(r_i) / sum_j prior_j exp(r_j), shape (K,).

    The largest exponent is subtracted first, so no finite response overflows. A response of -inf
    gives 0, unless all with a prior have it: then they keep the prior's proportions.

    Parameters
    ----------
    prior : FloatArray or None
        Values >= 0 with a positive sum, shape (K,); None is uniform.
    response : FloatArray
        r / eta, finite or -inf, shape (K,).

    References
    ----------
    Kivinen and Warmuth 1997; Hahn, Kim and Lee 2024, section 3 and Table 1.
    """
    largest = response.max() if prior is None else response[prior > 0].max()
    if largest == -np.inf:
        response, largest = np.zeros_like(response), 0.0
    mixing: FloatArray = np.exp(np.minimum(response - largest, 0.0))
    if prior is not None:
        mixing *= prior
    mixing /= mixing.sum()
    return mixing


def mix(
    clients: IntArray,
    call: Call,
    responses: Responses,
    share: FloatArray,
    respond: Callable[[FloatArray], FloatArray],
) -> Weights:
    """Return c_i = w_i exp(r_i) / sum_j w_j exp(r_j) over the clients heard, shape (n,).

    w_i is FedAvg's weight of client i among them; where nobody is heard all c_i are 0.

    Parameters
    ----------
    clients : IntArray
        All clients ascending, shape (K,).
    call, responses, share
        As for a weighting.
    respond : callable
        Returns r of the losses of the m clients heard, shape (m,).

    Raises
    ------
    ValueError
        If the clients did not measure the model they received.
    """
    counts = heard(call, responses, share)
    weight, mixing = np.zeros_like(share), np.zeros(len(clients))
    if not counts.any():
        return Weights(weight, mixing=mixing)
    base = base_weights(call, responses, np.where(counts, share, 0.0))[counts]
    response = respond(responses.loss[counts])
    weight[counts] = exponentiated_gradient(base, response)
    mixing[positions(clients, responses)] = weight
    return Weights(weight, response=told(response, counts), mixing=mixing)


def base_weights(call: Call, responses: Responses, share: FloatArray) -> FloatArray:
    """Return w_i, FedAvg's weights of the clients with a share, 0 elsewhere, shape (n,).

    w_i = s_i D_i / sum_j s_j D_j; where clients were drawn with replacement, by their draws.
    """
    _, weights = DataFraction().weigh(None, call, responses, share)
    return weights.weight


def by_losses_of_a_round(name: str) -> ParameterError:
    """Return why such a rule has no weights over a fixed population."""
    return ParameterError(
        f"participation must be none with weighting={name} "
        "(it weighs by the losses of a round, and of who is away there is none to divide by)"
    )
