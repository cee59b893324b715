"""fedau: A Flower Baseline."""

from dataclasses import dataclass

import numpy as np
from fedquorum.client.availability import Bernoulli, Cyclic, Markov
from fedquorum.client.availability.probabilities import (
    compute_class_distribution,
    compute_correlated_probability,
    sample_class_contribution,
)


@dataclass(frozen=True)
class Source:
    """A data set on the Hugging Face Hub, and the authors' network for it."""

    hub_id: str
    subset: str | None
    image: str
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    hidden: tuple[int, ...]
    augmented: bool = False


NUM_CLASSES = 10
SOURCES = {
    "cifar10": Source(
        hub_id="uoft-cs/cifar10",
        subset=None,
        image="img",
        shape=(3, 32, 32),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        hidden=(256, 64),
        augmented=True,
    ),
    "svhn": Source(
        hub_id="ufldl-stanford/svhn",
        subset="cropped_digits",
        image="image",
        shape=(3, 32, 32),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        hidden=(128,),
    ),
    "fashion_mnist": Source(
        hub_id="zalando-datasets/fashion_mnist",
        subset=None,
        image="image",
        shape=(1, 28, 28),
        mean=(0.2860,),
        std=(0.3530,),
        hidden=(128,),
    ),
}


def availability_of(kind: str, labels: np.ndarray, mean: float, seed: int):
    """Return the availability process of a client with these labels.

    Its probability depends on its classes, as in the paper: clients with the classes
    that contribute least are rarely available. The server does not know it.

    Parameters
    ----------
    kind : str
        bernoulli, markov or cyclic.
    labels : array of int
        The client's training labels.
    mean : float
        The mean probability over all clients, 0.1 in the paper.
    seed : int
        The run's seed.
    """
    processes = {"bernoulli": Bernoulli, "markov": Markov, "cyclic": Cyclic}
    if kind not in processes:
        raise ValueError(f"availability must be one of {[*processes]}, got {kind!r}")
    probability = compute_correlated_probability(
        compute_class_distribution(labels, NUM_CLASSES),
        sample_class_contribution(seed, NUM_CLASSES),
        mean=mean,
    )
    return processes[kind](probability)
