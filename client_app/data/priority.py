"""Select the priority clients of the settings."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fedquorum.rng import make_generator

from client_app.data.base import Labels
from conf.schema.data import DataSettings


def select_priority_clients(
    settings: DataSettings, num_clients: int, labels: Callable[[int], Labels], seed: int
) -> tuple[int, ...]:
    """Return the priority clients of the settings, ascending.

    Parameters
    ----------
    settings : DataSettings
    num_clients : int
    labels : callable
        Returns the training labels of a client; called only for ``heterogeneous``.
    seed : int
        The run's seed.
    """
    if settings.priority == "all":
        return tuple(range(num_clients))
    if settings.priority == "random":
        return sample_priority(num_clients, settings.num_priority, seed)
    if settings.priority == "heterogeneous":
        classes = [
            frozenset(int(c) for c in np.unique(labels(client))) for client in range(num_clients)
        ]
        return select_heterogeneous_priority(classes, settings.num_priority, seed)
    return parse_priority_list(settings.priority)


def sample_priority(num_clients: int, num_priority: int, seed: int) -> tuple[int, ...]:
    """Return ``num_priority`` clients, uniformly at random."""
    order = make_generator(seed, "priority").permutation(num_clients)
    return tuple(sorted(int(k) for k in order[:num_priority]))


def select_heterogeneous_priority(
    classes: Sequence[frozenset[int]], num_priority: int, seed: int
) -> tuple[int, ...]:
    """Return clients whose classes overlap as little as possible.

    The next client is always one that adds the most classes not covered yet, minus those already
    covered; ties go by a random order. So the classes are disjoint if a greedy choice allows it.

    Parameters
    ----------
    classes : sequence of frozenset of int
        The classes of every client's data, by client id.
    num_priority : int
    seed : int
        The run's seed.
    """
    order = [int(k) for k in make_generator(seed, "priority").permutation(len(classes))]
    chosen: list[int] = []
    covered: frozenset[int] = frozenset()
    for _ in range(num_priority):
        best = max(
            (k for k in order if k not in chosen),
            key=lambda k: len(classes[k] - covered) - len(classes[k] & covered),
        )
        chosen.append(best)
        covered |= classes[best]
    return tuple(sorted(chosen))


def parse_priority_list(clients: Sequence[Any]) -> tuple[int, ...]:
    """Return the clients of a list in the settings, ascending."""
    return tuple(sorted(int(k) for k in clients))
