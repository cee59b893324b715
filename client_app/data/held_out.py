"""Select the clients that never train but are evaluated."""

from collections.abc import Collection

from fedquorum.errors import SettingsError
from fedquorum.rng import make_generator
from fedquorum.rules.rounding import round_half_even

from conf.schema.data import DataSettings


def select_held_out_clients(
    settings: DataSettings, num_clients: int, priority: Collection[int], seed: int
) -> tuple[int, ...]:
    """Return the clients that ``data.holdout_client_fraction`` excludes from training, ascending.

    They are round(fraction N) of all N clients, uniformly at random. The model serves the priority
    clients, so none of them is held out; with ``data.priority=all`` any client may be held out.

    Parameters
    ----------
    settings : DataSettings
    num_clients : int
        N.
    priority : collection of int
        The priority clients.
    seed : int
        The run's seed.

    Raises
    ------
    SettingsError
        If the fraction is of less than one client, or of more clients than can be held out.
    """
    fraction = settings.holdout_client_fraction
    if fraction == 0.0:
        return ()
    no_priority = settings.priority == "all" and not settings.priority_weights
    eligible = [k for k in range(num_clients) if no_priority or k not in priority]
    count, max_count = round_half_even(fraction, num_clients), len(eligible) - no_priority
    if not 1 <= count <= max_count:
        constraint = "with one left to train" if no_priority else "none of which has priority"
        raise SettingsError(
            f"data.holdout_client_fraction must be 0 or a share of 1 to {max_count} of the "
            f"{num_clients} clients, {constraint}, got {fraction} ({count} clients)"
        )
    order = make_generator(seed, "unseen").permutation(len(eligible))
    return tuple(sorted(eligible[i] for i in order[:count].tolist()))
