"""Differential privacy of the models: clipped updates, and noise on what they add up to.

Each round releases one Gaussian mechanism. Every update is clipped to an L2 norm of at most C over
the whole model, and no weight c_k exceeds c: one client changes sum_k c_k Delta_k by at most c C.
Noise of standard deviation z c C goes to every number of that sum, before the server's step: what
the step makes of the noisy sum, at any learning rate and for trained arrays and running statistics
alike, costs no privacy. The noise is drawn in every round, also where no update arrived.

Two runs are neighbours if they differ in one client's contributions, which one of them leaves out
of every sum; N, the number of clients, is the same in both.

References
----------
McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models",
ICLR 2018 (clipping, noise for a fixed denominator). Andrew, Thakkar, McMahan and Ramaswamy,
"Differentially Private Learning with Adaptive Clipping", NeurIPS 2021.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ParameterError
from .parameters import FRACTION, NON_NEGATIVE, POSITIVE
from .rule import check_parameters, parameter
from .types import FloatArray

LARGEST_LOG_NORM = 34.0
"""C stays within exp(-34) and exp(34), about 1e15, as far as any number of an update goes."""

ROUNDING = 1.0 + 1e-9
"""How far a weight may be above its bound: c_k and c are rounded in different orders."""


@dataclass(frozen=True)
class MovingNorm:
    """A clipping norm that follows a quantile of the updates' norms.

    After a round that asked n clients, C becomes C exp(-eta (sum_k (b_k - gamma) + noise) / n) with
    b_k = 1 if client k's update was not longer than C, else 0; a client without a usable update
    adds nothing. The noise is N(0, sigma_b^2). One client changes the sum by max(gamma, 1 - gamma).

    Parameters
    ----------
    target_quantile : float
        gamma, the share of updates that are to be left as they are.
    learning_rate : float
        eta.
    count_stddev : float
        sigma_b, in clients.
    """

    target_quantile: float = parameter(0.5, FRACTION)
    learning_rate: float = parameter(0.2, POSITIVE)
    count_stddev: float = parameter(0.0, NON_NEGATIVE)

    @property
    def multiplier(self) -> float:
        """The noise of the count, over the most that one client changes it."""
        return self.count_stddev / max(self.target_quantile, 1.0 - self.target_quantile)

    def after(
        self, norm: float, votes: Iterable[bool], asked: int, random: np.random.Generator
    ) -> float:
        """Return the clipping norm of the next round.

        Parameters
        ----------
        norm : float
            C.
        votes : iterable of bool
            b_k of each client with a usable update.
        asked : int
            How many clients the round asked, n.
        random : Generator
            Draws the noise.
        """
        above = math.fsum(vote - self.target_quantile for vote in votes)
        noisy = above + self.count_stddev * float(random.standard_normal())
        moved = math.log(norm) - self.learning_rate * noisy / max(1, asked)
        return math.exp(min(LARGEST_LOG_NORM, max(-LARGEST_LOG_NORM, moved)))


@dataclass(frozen=True)
class GaussianMechanism:
    """How the updates of a round are clipped, and how much noise their sum gets.

    Parameters
    ----------
    noise_multiplier : float
        z, of everything that a round releases; 0 adds no noise.
    clipping_norm : float
        C, of the first round if it moves.
    moving : MovingNorm, optional
        How C moves from round to round; by default it stays.
    clients_clip : bool
        Whether the clients are told C and clip their updates. The server clips in any case.
    generator : callable
        Returns the generator of one round's noise; by default one seeded from the operating system,
        as nobody may be able to draw the same noise again.

    Raises
    ------
    ParameterError
        For a value outside its range, of ``moving`` too, or a count that is less private than the
        round is to be.
    """

    noise_multiplier: float = parameter(1.0, NON_NEGATIVE)
    clipping_norm: float = parameter(1.0, POSITIVE)
    moving: MovingNorm | None = None
    clients_clip: bool = False
    generator: Callable[[], np.random.Generator] = np.random.default_rng

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.moving is not None:
            check_parameters(self.moving)
        if self.moving is None or self.noise_multiplier == 0.0:
            return
        most = self.moving.multiplier
        if self.noise_multiplier >= most:
            raise ParameterError(
                "noise_multiplier",
                f"less than {most:g}",
                self.noise_multiplier,
                "the noise of the count over what one client changes it, as the count must be more "
                "private than the round",
            )

    @property
    def needs_vote(self) -> bool:
        """Whether a client must say if it clipped its update, which the server cannot see."""
        return self.clients_clip and self.moving is not None

    @property
    def update_multiplier(self) -> float:
        """The noise multiplier of the sum, larger than z where a count is released with it.

        Together they are as private as one release with z: z^-2 = z_sum^-2 + z_count^-2.
        """
        if self.moving is None or self.noise_multiplier == 0.0:
            return self.noise_multiplier
        return 1.0 / math.sqrt(self.noise_multiplier**-2 - self.moving.multiplier**-2)

    def at(self, norm: float | None, largest_weight: float) -> "Protection":
        """Return the protection of one round.

        Parameters
        ----------
        norm : float, optional
            C, None in the first round.
        largest_weight : float
            c, the most that one update can count, before the server's learning rate.
        """
        return Protection(self, self.clipping_norm if norm is None else norm, largest_weight)


@dataclass(frozen=True)
class Protection:
    """The mechanism in one round: its clipping norm C and the largest weight c."""

    mechanism: GaussianMechanism
    norm: float
    largest_weight: float

    @property
    def told_norm(self) -> float | None:
        """C as the clients are told it, None if the server alone clips."""
        return self.norm if self.mechanism.clients_clip else None

    def bounds(self, weight: FloatArray) -> bool:
        """Return whether no weight c_k is above c, apart from rounding."""
        return bool(weight.max(initial=0.0) <= self.largest_weight * ROUNDING)

    def noised(self, update: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Return sum_k c_k Delta_k, zeros where no update arrived, with noise on every number."""
        deviation = self.mechanism.update_multiplier * self.largest_weight * self.norm
        random = self.mechanism.generator()
        return {
            name: array + deviation * random.standard_normal(array.shape)
            for name, array in update.items()
        }

    def next_norm(self, votes: Iterable[bool], asked: int) -> float:
        """Return the clipping norm of the next round; see ``MovingNorm.after``."""
        moving = self.mechanism.moving
        if moving is None:
            return self.norm
        return moving.after(self.norm, votes, asked, self.mechanism.generator())


def check_model(model: Mapping[str, NDArray[Any]]) -> None:
    """Raise ParameterError for a model with whole numbers, such as counters."""
    whole = [name for name, array in model.items() if not np.issubdtype(array.dtype, np.floating)]
    if whole:
        raise ParameterError(
            "privacy",
            "None",
            whole[0],
            f"whole numbers, as in '{whole[0]}', have no norm to clip and no Gaussian noise",
        )
