"""Select the priority clients of the settings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from fedquorum.errors import ParameterError, SettingsError
from fedquorum.records.client_names import ClientNames
from fedquorum.rng import make_generator

from client_app.data.base import Labels
from conf.schema.data import DataSettings, list_weights


def select_priority_clients(
    settings: DataSettings,
    num_clients: int,
    labels: Callable[[int], Labels],
    seed: int,
    names: Sequence[str] | None = None,
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
    names : sequence of str, optional
        The clients' names, if the data has them.

    Raises
    ------
    SettingsError
        If the settings name a client that does not exist, or compare classes of numbers.
    """
    if settings.priority == "all":
        return tuple(range(num_clients))
    if settings.priority == "random":
        return sample_priority(num_clients, settings.num_priority, seed)
    if settings.priority == "heterogeneous":
        if getattr(settings, "regression", False):
            raise SettingsError(
                "data.priority must be all, random or a list of clients where data.regression is "
                "true, because heterogeneous compares classes, got heterogeneous: type "
                "data.priority=all"
            )
        classes = [
            frozenset(int(c) for c in np.unique(labels(client))) for client in range(num_clients)
        ]
        return select_heterogeneous_priority(classes, settings.num_priority, seed)
    return find_priority_list(settings.priority, num_clients, names)


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


def find_priority_list(
    given: Sequence[Any], num_clients: int, names: Sequence[str] | None
) -> tuple[int, ...]:
    """Return the clients of ``data.priority``, ascending.

    Raises
    ------
    SettingsError
        If there is no such client, or the list has one twice.
    """
    return tuple(sorted(_find_clients("data.priority", given, num_clients, names, "[{}]")))


def find_priority_weights(
    given: Mapping[Any, float] | Sequence[Any] | None,
    num_clients: int,
    names: Sequence[str] | None,
) -> dict[int, float]:
    """Return ``data.priority_weights`` by client id.

    Raises
    ------
    SettingsError
        If there is no such client, or one has two weights.
    """
    pairs = list_weights(given)
    clients = [client for client, _ in pairs]
    found = _find_clients("data.priority_weights", clients, num_clients, names, "[[{},0.5]]")
    return {client: weight for client, (_, weight) in zip(found, pairs, strict=True)}


def check_named_clients(
    settings: DataSettings, num_clients: int, names: Sequence[str] | None
) -> None:
    """Refuse settings that give a client that does not exist.

    Raises
    ------
    SettingsError
        For the first one.
    """
    if not isinstance(settings.priority, str):
        find_priority_list(settings.priority, num_clients, names)
    find_priority_weights(settings.priority_weights, num_clients, names)


def _find_clients(
    setting: str, given: Sequence[Any], num_clients: int, names: Sequence[str] | None, form: str
) -> list[int]:
    """Return the ids of clients that a setting gives by id or by name, in its order."""
    known = ClientNames.clean(dict(enumerate(names or ())))
    try:
        found = [known.find(one, num_clients, setting, f"{setting}={form}") for one in given]
    except ParameterError as error:
        raise SettingsError(str(error)) from None
    for client in found:
        if found.count(client) > 1:
            raise SettingsError(
                f"{setting} must have each client once, got {known.format(client)} twice"
            )
    return found
