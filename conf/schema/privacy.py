"""Define the settings of differential privacy."""

from dataclasses import dataclass

from fedquorum.rules.parameters import FRACTION, NON_NEGATIVE, POSITIVE, Interval
from fedquorum.rules.rule import parameter

CLIENT_MODES = ("dp_fixed_client", "dp_adaptive_client")
"""The options with which clients clip their updates; the server clips again."""

DELTA = Interval(low=0, high=1, open_low=True, open_high=True)


@dataclass
class PrivacySettings:
    """Whether the models are differentially private; see ``fedquorum.server.privacy``."""

    name: str = "none"


@dataclass
class ClippingSettings(PrivacySettings):
    """The settings of all private options; the noise is ``noise_multiplier`` client influences.

    ``delta``: the delta of the recorded epsilon; null for min(1e-5, N^-1.1) with N clients. It must
    be well below 1/N: at 1/N, even publishing one client's update would count as private.
    """

    noise_multiplier: float = parameter(1.0, NON_NEGATIVE)
    delta: float | None = parameter(None, DELTA)


@dataclass
class FixedClippingSettings(ClippingSettings):
    """Clipping of every update to a fixed norm, by the server or by each client and the server.

    ``clipping_norm``: the largest length of an update, in the L2 norm over the whole model.
    """

    clipping_norm: float = parameter(1.0, POSITIVE)


@dataclass
class AdaptiveClippingSettings(ClippingSettings):
    """Clipping to a norm that follows the ``target_quantile`` of the updates' norms.

    After a round with n selected clients, C <- C exp(-``clip_norm_lr`` s / n). s is the noisy sum
    of (1 - ``target_quantile``) for each update of at most the length C, and of
    -``target_quantile`` for each longer one. ``clipped_count_stddev`` is the noise, in clients;
    null for n / 20.
    """

    initial_clipping_norm: float = parameter(0.1, POSITIVE)
    target_quantile: float = parameter(0.5, FRACTION)
    clip_norm_lr: float = parameter(0.2, POSITIVE)
    clipped_count_stddev: float | None = parameter(None, POSITIVE)
