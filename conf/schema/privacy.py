"""Settings of differential privacy."""

from dataclasses import dataclass

from fedquorum.parameters import FRACTION, NON_NEGATIVE, POSITIVE
from fedquorum.rule import parameter


@dataclass
class PrivacySettings:
    """Whether the models are differentially private; see ``server_app.privacy``."""

    name: str = "none"


@dataclass
class ClippingSettings(PrivacySettings):
    """What every kind has: noise of ``noise_multiplier`` times what one client can change."""

    noise_multiplier: float = parameter(1.0, NON_NEGATIVE)


@dataclass
class FixedClippingSettings(ClippingSettings):
    """Every update is cut to a fixed norm, by the server or by each client itself.

    Clients clip for servers that trust them to. ``clipping_norm``: the longest update, in the L2
    norm over the whole model.
    """

    clipping_norm: float = parameter(1.0, POSITIVE)


@dataclass
class AdaptiveClippingSettings(ClippingSettings):
    """The longest update, which moves to the ``target_quantile`` of the clients' norms.

    Each round C <- C exp(-``clip_norm_lr`` (b - ``target_quantile``)), b the noisy share of
    updates that were not longer than C. ``clipped_count_stddev`` is that noise, in clients, null
    for 1/20 of them.
    """

    initial_clipping_norm: float = parameter(0.1, POSITIVE)
    target_quantile: float = parameter(0.5, FRACTION)
    clip_norm_lr: float = parameter(0.2, POSITIVE)
    clipped_count_stddev: float | None = parameter(None, POSITIVE)
