"""How often a client is available, correlated with its data.

As in the experiments of Wang and Ji, "A Lightweight Method for Tackling Unknown Participation
Statistics in Federated Averaging" (ICLR 2024). Shapes: L is the number of classes. A client
needs its own labels and q, which follows from the seed: nothing is shared.
"""

import numpy as np

from ...streams import stream
from ...types import FloatArray, IntArray


def class_distribution(labels: IntArray, num_classes: int) -> FloatArray:
    """Return kappa_n: the share of each class in a client's training labels, shape (L,).

    Raises
    ------
    ValueError
        If there are no labels.
    """
    if len(labels) == 0:
        raise ValueError("a client without training labels has no class distribution")
    counts = np.bincount(labels, minlength=num_classes)
    return np.asarray(counts / len(labels), dtype=np.float64)


def class_contribution(seed: int, num_classes: int, alpha: float = 0.1) -> FloatArray:
    """Return q ~ Dir(alpha), shape (L,): what each class contributes to being available.

    Drawn from (seed, "availability-classes"); alpha > 0, 0.1 in the paper.
    """
    return stream(seed, "availability-classes").dirichlet(np.full(num_classes, alpha))


def correlated_probability(
    distribution: FloatArray, contribution: FloatArray, *, mean: float = 0.1, minimum: float = 0.02
) -> float:
    """Return p_n = clip(mean * L * <kappa_n, q>, minimum, 1).

    Without clipping, ``mean`` is the mean of p_n over kappa_n whose expectation is uniform.

    Parameters
    ----------
    distribution, contribution : arrays (L,)
        kappa_n and q, each with sum 1.
    mean, minimum : float
        In (0, 1]; 0.1 and 0.02 in the paper.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    product = mean * len(contribution) * float(distribution @ contribution)
    return min(max(product, minimum), 1.0)
