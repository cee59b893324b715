"""Settings of differential privacy."""

from dataclasses import dataclass

from fedquorum.parameters import FRACTION, NON_NEGATIVE, POSITIVE, Number
from fedquorum.rule import parameter

CLIENT_MODES = ("dp_fixed_client", "dp_adaptive_client")
"""The options with which the clients clip; the server clips again."""

DELTA = Number(low=0, high=1, open_low=True, open_high=True)


@dataclass
class PrivacySettings:
    """Whether the models are differentially private; see ``fedquorum.privacy``."""

    name: str = "none"


@dataclass
class ClippingSettings(PrivacySettings):
    """What every kind has: noise of ``noise_multiplier`` times what one client can change.

    ``delta``: the delta that epsilon is recorded for; null for min(1e-5, N^-1.1) with N clients.
    It must be well below 1/N, at which even a mechanism that publishes one client's update passes.
    """

    noise_multiplier: float = parameter(1.0, NON_NEGATIVE)
    delta: float | None = parameter(None, DELTA)


@dataclass
class FixedClippingSettings(ClippingSettings):
    """Every update is clipped to a fixed norm, by the server or by each client and the server.

    ``clipping_norm``: the longest update, in the L2 norm over the whole model.
    """

    clipping_norm: float = parameter(1.0, POSITIVE)


@dataclass
class AdaptiveClippingSettings(ClippingSettings):
    """The longest update, which moves to the ``target_quantile`` of the clients' norms.

    After a round that asked n clients C <- C exp(-``clip_norm_lr`` s / n), s the noisy sum of
    (1 - ``target_quantile``) for each update that was not longer than C and -``target_quantile``
    for each that was. ``clipped_count_stddev`` is that noise, in clients, null for 1/20 of them.
    """

    initial_clipping_norm: float = parameter(0.1, POSITIVE)
    target_quantile: float = parameter(0.5, FRACTION)
    clip_norm_lr: float = parameter(0.2, POSITIVE)
    clipped_count_stddev: float | None = parameter(None, POSITIVE)
