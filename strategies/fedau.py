"""FedAU and the methods that it was compared to, as Flower strategies.

All ask every client (or a sample) without knowing who will be there, and add up the updates
Delta_n of those who took part: x_{t+1} = x_t + eta sum_n c_n Delta_n. N is the number of all
known clients, S_t who took part in round t.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from strategies.adapter import Memory
from strategies.sampled import Options, SampledStrategy
from strategies.types import Population
from strategies.weighting import AverageAll, AverageParticipating, KnownRates, inverse_rates
from strategies.weighting import FedAU as FedAUWeighting
from strategies.weighting.fedau import FedAUState


class FedAU(SampledStrategy[FedAUState]):
    """Federated averaging under unknown participation: c_n = omega_n / N.

    omega_n estimates 1 / (participation rate) from the intervals between the rounds in which
    client n took part; see ``strategies.weighting.FedAU``. The server keeps three numbers for
    each client.

    Parameters
    ----------
    population : Population
        All clients; priority only says whose data the reported objective is of.
    cutoff : float (default: inf)
        K, a whole number >= 1 or inf: the longest interval, in rounds.
    **options : Options
        See there.

    Raises
    ------
    ParameterError
        For a value outside its range.

    References
    ----------
    Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated
    Averaging", ICLR 2024, Algorithms 1 and 2.
    """

    def __init__(
        self,
        population: Population,
        *,
        cutoff: float = math.inf,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(population, FedAUWeighting(cutoff), options)


class FedAvgParticipating(SampledStrategy[None]):
    """The average over those who took part: c_n = 1 / |S_t|. Biased to who is often there.

    Parameters
    ----------
    population : Population
        All clients.
    **options : Options
        See there.
    """

    def __init__(self, population: Population, **options: Unpack[Options]) -> None:
        super().__init__(population, AverageParticipating(), options)


class FedAvgAll(SampledStrategy[None]):
    """The average over all, zero for who is away: c_n = 1 / N. Slower, and biased likewise.

    Parameters
    ----------
    population : Population
        All clients.
    **options : Options
        See there.
    """

    def __init__(self, population: Population, **options: Unpack[Options]) -> None:
        super().__init__(population, AverageAll(), options)


class KnownStatistics(SampledStrategy[Any]):
    """What FedAU estimates, given: c_n = 1 / (p_n N). Unbiased.

    Parameters
    ----------
    population : Population
        All clients.
    probabilities : mapping of int to float
        p_n in (0, 1] of every client, by client id.
    **options : Options
        See there.

    Raises
    ------
    ParameterError
        If a client has no p_n, or one outside its range.
    """

    def __init__(
        self,
        population: Population,
        *,
        probabilities: Mapping[int, float],
        **options: Unpack[Options],
    ) -> None:
        omega = inverse_rates(population.clients, probabilities)
        super().__init__(population, KnownRates(omega), options)


class FedVarp(SampledStrategy[None]):
    """c_n = 1 / |S_t| on Delta_n - y_n, plus the mean of all y_n, the last updates.

    A round without participants leaves the model as it is. The server keeps a model for every
    client; see ``UpdateMemory``.

    Parameters
    ----------
    population : Population
        All clients.
    memory_dir : Path, optional
        Keep that memory in files there; by default in memory.
    **options : Options
        See there.

    References
    ----------
    Jhunjhunwala et al., "FedVARP", UAI 2022, Algorithm 2.
    """

    def __init__(
        self,
        population: Population,
        *,
        memory_dir: Path | None = None,
        **options: Unpack[Options],
    ) -> None:
        memory = Memory(memory_dir)
        super().__init__(population, AverageParticipating(), options, memory=memory)


class MIFA(SampledStrategy[None]):
    """The mean of every client's last update, whether or not it is there.

    It moves in a round without participants too. The server keeps a model for every client; see
    ``UpdateMemory``.

    Parameters
    ----------
    population : Population
        All clients.
    memory_dir : Path, optional
        Keep that memory in files there; by default in memory.
    **options : Options
        See there.

    References
    ----------
    Gu et al., "Fast Federated Learning in the Presence of Arbitrary Device Unavailability",
    NeurIPS 2021, Algorithm 1.
    """

    def __init__(
        self,
        population: Population,
        *,
        memory_dir: Path | None = None,
        **options: Unpack[Options],
    ) -> None:
        memory = Memory(memory_dir, moves_alone=True)
        super().__init__(population, AverageAll(), options, memory=memory)
