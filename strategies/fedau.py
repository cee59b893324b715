"""FedAU and the methods that it was compared to, as Flower strategies.

All ask every client (or a sample) without knowing who will be there, and add up the updates
Delta_n of those who took part: x_{t+1} = x_t + eta sum_n c_n Delta_n. N is the number of all
known clients, S_t who took part in round t.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, Unpack

from strategies.adapter import Communication, ComposedStrategy, Memory
from strategies.parameters import PROBABILITY
from strategies.selection import Everyone, Sampling
from strategies.server_optimizer import SGD
from strategies.types import Population, StateT
from strategies.weighting import AverageAll, AverageParticipating, Weighting
from strategies.weighting import FedAU as FedAUWeighting
from strategies.weighting.fedau import FedAUState


class ParticipationOptions(TypedDict, total=False):
    """What all strategies of this module take.

    Parameters
    ----------
    fraction : float (default: 1.0)
        Share of the clients that is asked in a round, in [0, 1]; see ``Sampling``.
    seed : int (default: 0)
        Of the sampling.
    server_lr : float (default: 1.0)
        eta > 0, the factor on the combined update.
    communication : Communication, optional
        Timeouts and what is evaluated.
    """

    fraction: float
    seed: int
    server_lr: float
    communication: Communication | None


class _Participation(ComposedStrategy[StateT]):
    def __init__(
        self,
        population: Population,
        weighting: Weighting[StateT],
        options: ParticipationOptions,
        memory: Memory | None = None,
    ) -> None:
        sampling = Sampling(options.get("fraction", 1.0), seed=options.get("seed", 0))
        super().__init__(
            population,
            selection=Everyone(sampling, measures=False, asks_losses=False),
            weighting=weighting,
            server_optimizer=SGD(options.get("server_lr", 1.0)),
            memory=memory,
            communication=options.get("communication"),
        )


class FedAU(_Participation[FedAUState]):
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
    **options : ParticipationOptions
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
        **options: Unpack[ParticipationOptions],
    ) -> None:
        super().__init__(population, FedAUWeighting(cutoff), options)


class FedAvgParticipating(_Participation[None]):
    """The average over those who took part: c_n = 1 / |S_t|. Biased to who is often there.

    Parameters
    ----------
    population : Population
        All clients.
    **options : ParticipationOptions
        See there.
    """

    def __init__(self, population: Population, **options: Unpack[ParticipationOptions]) -> None:
        super().__init__(population, AverageParticipating(), options)


class FedAvgAll(_Participation[None]):
    """The average over all, zero for who is away: c_n = 1 / N. Slower, and biased likewise.

    Parameters
    ----------
    population : Population
        All clients.
    **options : ParticipationOptions
        See there.
    """

    def __init__(self, population: Population, **options: Unpack[ParticipationOptions]) -> None:
        super().__init__(population, AverageAll(), options)


class KnownStatistics(_Participation[None]):
    """What FedAU estimates, given: c_n = 1 / (p_n N). Unbiased.

    Parameters
    ----------
    population : Population
        All clients.
    probabilities : mapping of int to float
        p_n in (0, 1] of every client, by client id.
    **options : ParticipationOptions
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
        **options: Unpack[ParticipationOptions],
    ) -> None:
        for client in population.clients:
            PROBABILITY.check(f"probabilities[{client}]", probabilities.get(client))
        omega = {client: 1.0 / probabilities[client] for client in population.clients}
        super().__init__(population, AverageAll(omega), options)


class FedVarp(_Participation[None]):
    """c_n = 1 / |S_t| on Delta_n - y_n, plus the mean of all y_n, the last updates.

    A round without participants leaves the model as it is. The server keeps a model for every
    client; see ``UpdateMemory``.

    Parameters
    ----------
    population : Population
        All clients.
    memory_dir : Path, optional
        Keep that memory in files there; by default in memory.
    **options : ParticipationOptions
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
        **options: Unpack[ParticipationOptions],
    ) -> None:
        super().__init__(population, AverageParticipating(), options, Memory(memory_dir))


class MIFA(_Participation[None]):
    """The mean of every client's last update, whether or not it is there.

    It moves in a round without participants too. The server keeps a model for every client; see
    ``UpdateMemory``.

    Parameters
    ----------
    population : Population
        All clients.
    memory_dir : Path, optional
        Keep that memory in files there; by default in memory.
    **options : ParticipationOptions
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
        **options: Unpack[ParticipationOptions],
    ) -> None:
        memory = Memory(memory_dir, moves_alone=True)
        super().__init__(population, AverageAll(), options, memory)
