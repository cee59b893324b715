"""Draw how often a client is available, correlated with its data.

``compute_correlated_probability`` follows Wang and Ji, "A Lightweight Method for Tackling Unknown
Participation Statistics in Federated Averaging" (ICLR 2024). ``compute_class_rate_probability``
follows Xiang et al., "Efficient Federated Learning against Heterogeneous and Non-stationary Client
Unavailability" (NeurIPS 2024). Shapes: L is the number of classes. A client needs only its labels,
and one number for each class that follows from the seed.
"""

import numpy as np

from ...rng import make_generator
from ...rules.types import FloatArray, IntArray


def compute_class_distribution(labels: IntArray, num_classes: int) -> FloatArray:
    """Return kappa_n: the fraction of each class in a client's training labels, shape (L,).

    Raises
    ------
    ValueError
        If there are no labels.
    """
    if len(labels) == 0:
        raise ValueError("a client without training labels has no class distribution")
    counts = np.bincount(labels, minlength=num_classes)
    return np.asarray(counts / len(labels), dtype=np.float64)


def sample_class_contribution(seed: int, num_classes: int, alpha: float = 0.1) -> FloatArray:
    """Return q ~ Dir(alpha), shape (L,): the contribution of each class to the availability.

    Drawn from (seed, "availability-classes"); alpha > 0, 0.1 in the paper.
    """
    return make_generator(seed, "availability-classes").dirichlet(np.full(num_classes, alpha))


def compute_correlated_probability(
    distribution: FloatArray, contribution: FloatArray, *, mean: float = 0.1, minimum: float = 0.02
) -> float:
    """Return p_n = clip(mean * L * <kappa_n, q>, minimum, 1).

    Without clipping, ``mean`` is the mean of p_n over random kappa_n with a uniform expectation.

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


def sample_class_rates(seed: int, num_classes: int) -> FloatArray:
    """Return phi, shape (L,): how often a client with a single class is available.

    phi_c ~ U(0, 1) for the classes c < L / 2, U(0, 0.5) for the others, as in section 7 of Xiang et
    al.; drawn from (seed, "availability-class-rates").
    """
    rates = make_generator(seed, "availability-class-rates").random(num_classes)
    second_half = np.arange(num_classes) >= num_classes / 2
    return np.where(second_half, rates / 2.0, rates)


def compute_class_rate_probability(
    distribution: FloatArray, rates: FloatArray, *, minimum: float = 0.0
) -> float:
    """Return p_n = clip(<nu_n, phi>, minimum, 1); the paper has no minimum.

    Parameters
    ----------
    distribution, rates : arrays (L,)
        nu_n, with sum 1, and phi.
    minimum : float
        In [0, 1].

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    return min(max(float(distribution @ rates), minimum), 1.0)
