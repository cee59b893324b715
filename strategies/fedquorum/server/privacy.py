"""Make models differentially private: clip the updates, and add noise to their sum.

Each round is one Gaussian mechanism. The server clips every update to an L2 norm of at most C over
the whole model, and no weight c_k exceeds c. One client therefore changes sum_k c_k Delta_k by at
most c C. Before its step, the server adds noise of standard deviation z c C to every number of the
sum. The step costs no further privacy, whatever its learning rate, for trained arrays and for
running statistics. The server draws the noise in every round, even if no update arrived.

Two runs are neighbors if one of them omits one client's contributions from every sum. Both have
the same number N of clients.

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

from ..errors import ParameterError
from ..rules.parameters import FRACTION, NON_NEGATIVE, POSITIVE
from ..rules.rule import check_parameters, parameter
from ..rules.types import FloatArray

MAX_LOG_NORM = 34.0
"""C stays within exp(-34) and exp(34), about 1e15, the largest number of an update."""

WEIGHT_TOLERANCE = 1.0 + 1e-9
"""The factor by which a weight may exceed its bound: c_k and c round in different orders."""


@dataclass(frozen=True)
class AdaptiveClippingNorm:
    """A clipping norm that follows a quantile of the updates' norms.

    After a round with n selected clients, C becomes C exp(-eta (sum_k (b_k - gamma) + noise) / n).
    b_k is 1 if client k's update was at most C long, and 0 otherwise. A client without a usable
    update adds nothing. The noise is N(0, sigma_b^2). One client changes the sum by
    max(gamma, 1 - gamma).

    Parameters
    ----------
    target_quantile : float
        gamma, the desired fraction of updates that are not clipped.
    learning_rate : float
        eta.
    count_stddev : float
        sigma_b, in clients.
    """

    target_quantile: float = parameter(0.5, FRACTION)
    learning_rate: float = parameter(0.2, POSITIVE)
    count_stddev: float = parameter(0.0, NON_NEGATIVE)

    @property
    def count_multiplier(self) -> float:
        """The count's noise multiplier: its noise / the largest change by one client."""
        return self.count_stddev / max(self.target_quantile, 1.0 - self.target_quantile)

    def update(
        self, norm: float, clip_indicators: Iterable[bool], selected: int, rng: np.random.Generator
    ) -> float:
        """Return the clipping norm of the next round.

        Parameters
        ----------
        norm : float
            C.
        clip_indicators : iterable of bool
            b_k of each client with a usable update.
        selected : int
            n, the number of selected clients.
        rng : Generator
            The generator of the noise.
        """
        above = math.fsum(vote - self.target_quantile for vote in clip_indicators)
        noisy = above + self.count_stddev * float(rng.standard_normal())
        log_norm = math.log(norm) - self.learning_rate * noisy / max(1, selected)
        return math.exp(min(MAX_LOG_NORM, max(-MAX_LOG_NORM, log_norm)))


@dataclass(frozen=True)
class GaussianMechanism:
    """The clipping of a round's updates, and the noise on their sum.

    Parameters
    ----------
    noise_multiplier : float
        z, for everything that a round releases; 0 adds no noise.
    clipping_norm : float
        C; with ``adaptive_norm``, C of the first round.
    adaptive_norm : AdaptiveClippingNorm, optional
        The rule that adapts C from round to round; by default C is constant.
    clients_clip : bool
        Whether clients also receive C and clip their updates. The server clips in any case.
    make_generator : callable
        Returns the generator of one round's noise. By default the operating system seeds it, so
        that the noise cannot be reproduced.

    Raises
    ------
    ParameterError
        If a value, here or in ``adaptive_norm``, is outside its range, or the count is less private
        than the round.
    """

    noise_multiplier: float = parameter(1.0, NON_NEGATIVE)
    clipping_norm: float = parameter(1.0, POSITIVE)
    adaptive_norm: AdaptiveClippingNorm | None = None
    clients_clip: bool = False
    make_generator: Callable[[], np.random.Generator] = np.random.default_rng

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.adaptive_norm is not None:
            check_parameters(self.adaptive_norm)
        if self.adaptive_norm is None or self.noise_multiplier == 0.0:
            return
        count_multiplier = self.adaptive_norm.count_multiplier
        if self.noise_multiplier >= count_multiplier:
            raise ParameterError(
                "noise_multiplier",
                f"less than {count_multiplier:g}",
                self.noise_multiplier,
                "the noise of the count over what one client changes it, as the count must be more "
                "private than the round",
            )

    @property
    def needs_clip_indicator(self) -> bool:
        """Whether clients must report if they clipped an update, since the server cannot see it."""
        return self.clients_clip and self.adaptive_norm is not None

    @property
    def update_multiplier(self) -> float:
        """The noise multiplier of the sum, larger than z if the round also releases a count.

        Both together are as private as one release with z: z^-2 = z_sum^-2 + z_count^-2.
        """
        if self.adaptive_norm is None or self.noise_multiplier == 0.0:
            return self.noise_multiplier
        return 1.0 / math.sqrt(self.noise_multiplier**-2 - self.adaptive_norm.count_multiplier**-2)

    def for_round(self, norm: float | None, max_weight: float) -> "RoundMechanism":
        """Return the mechanism of one round.

        Parameters
        ----------
        norm : float, optional
            C; None in the first round.
        max_weight : float
            c, the largest weight of one update, before the server's learning rate.
        """
        return RoundMechanism(self, self.clipping_norm if norm is None else norm, max_weight)


@dataclass(frozen=True)
class RoundMechanism:
    """The mechanism in one round: its clipping norm C and the largest weight c."""

    mechanism: GaussianMechanism
    norm: float
    max_weight: float

    @property
    def client_norm(self) -> float | None:
        """C for the clients, None if only the server clips."""
        return self.norm if self.mechanism.clients_clip else None

    def covers(self, weight: FloatArray) -> bool:
        """Say whether every weight c_k is at most c, up to rounding."""
        return bool(weight.max(initial=0.0) <= self.max_weight * WEIGHT_TOLERANCE)

    def add_noise(self, update: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Return sum_k c_k Delta_k, or zeros without updates, with noise on every number."""
        deviation = self.mechanism.update_multiplier * self.max_weight * self.norm
        random = self.mechanism.make_generator()
        return {
            name: array + deviation * random.standard_normal(array.shape)
            for name, array in update.items()
        }

    def compute_next_norm(self, clip_indicators: Iterable[bool], selected: int) -> float:
        """Return the clipping norm of the next round; see ``AdaptiveClippingNorm.update``."""
        adaptive = self.mechanism.adaptive_norm
        if adaptive is None:
            return self.norm
        return adaptive.update(
            self.norm, clip_indicators, selected, self.mechanism.make_generator()
        )


def check_model(model: Mapping[str, NDArray[Any]]) -> None:
    """Raise ParameterError for a model with integer arrays, such as counters."""
    whole = [name for name, array in model.items() if not np.issubdtype(array.dtype, np.floating)]
    if whole:
        raise ParameterError(
            "privacy",
            "None",
            whole[0],
            f"whole numbers, as in '{whole[0]}', have no norm to clip and no Gaussian noise",
        )
