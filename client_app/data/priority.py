"""Which clients have priority, as the settings ask."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fedquorum.rng import make_generator

from client_app.data.base import Labels
from conf.schema.data import DataSettings


def select_priority_clients(
    settings: DataSettings, num_clients: int, labels: Callable[[int], Labels], seed: int
) -> tuple[int, ...]:
    """Return the priority clients that the settings ask for, ascending.

    Parameters
    ----------
    settings : DataSettings
        ``priority`` and ``num_priority``.
    num_clients : int
        How many clients there are.
    labels : callable
        Returns the training labels of a client; asked for ``heterogeneous`` only.
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

    Clients are taken in random order; the next one is always one that adds the most classes
    not covered yet, so the classes are disjoint wherever that is possible greedily.

    Parameters
    ----------
    classes : sequence of frozenset of int
        The classes of every client's data, by client id.
    num_priority : int
        How many to choose.
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
