"""fedau: A Flower Baseline."""

import math

from fedquorum import FedAU, FedAvgAll, FedAvgParticipating, KnownStatistics


def make_strategy(
    name: str,
    num_clients: int,
    server_lr: float,
    cutoff: int,
    probabilities: list[float],
):
    """Return FedAU, or a method that the paper compares with it.

    Parameters
    ----------
    name : str
        fedau, average_participating, average_all or known_statistics.
    num_clients : int
        The number of nodes that a round waits for.
    server_lr : float
        The server's learning rate.
    cutoff : int
        FedAU's K; 0 for none.
    probabilities : list of float
        Each client's probability of being available; only known_statistics uses it.
    """
    common = {
        "fraction_evaluate": 0.0,
        "min_evaluate_nodes": 0,
        "min_available_nodes": num_clients,
        "server_lr": server_lr,
        "client_ids": "query",
    }
    if name == "fedau":
        return FedAU(cutoff=cutoff or math.inf, **common)
    if name == "average_participating":
        return FedAvgParticipating(**common)
    if name == "average_all":
        return FedAvgAll(**common)
    if name == "known_statistics":
        return KnownStatistics(probabilities=probabilities, **common)
    raise ValueError(
        "strategy must be one of fedau, average_participating, average_all, "
        f"known_statistics, got {name!r}"
    )
