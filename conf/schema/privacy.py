"""Settings of differential privacy, and the strategies that it cannot protect."""

from dataclasses import dataclass

from conf.schema.ranges import setting
from strategies.parameters import FRACTION, NON_NEGATIVE, POSITIVE


@dataclass
class PrivacySettings:
    """Whether the models are differentially private; see ``server_app.privacy``."""

    name: str = "none"


@dataclass
class ClippingSettings(PrivacySettings):
    """What every kind has: noise of ``noise_multiplier`` times what one client can change."""

    noise_multiplier: float = setting(1.0, NON_NEGATIVE)


@dataclass
class FixedClippingSettings(ClippingSettings):
    """``clipping_norm``: the longest update, in the L2 norm over the whole model."""

    clipping_norm: float = setting(1.0, POSITIVE)


@dataclass
class AdaptiveClippingSettings(ClippingSettings):
    """The longest update, which moves to the ``target_quantile`` of the clients' norms.

    Each round C <- C exp(-``clip_norm_lr`` (b - ``target_quantile``)), b the noisy share of
    updates that were not longer than C. ``clipped_count_stddev`` is that noise, in clients, null
    for 1/20 of them.
    """

    initial_clipping_norm: float = setting(0.1, POSITIVE)
    target_quantile: float = setting(0.5, FRACTION)
    clip_norm_lr: float = setting(0.2, POSITIVE)
    clipped_count_stddev: float | None = setting(None, POSITIVE)


# Why noise scaled to one client's share cannot protect it.
BY_LOSSES = "an update counts by the losses: one can be nearly all of the step, and tells its loss"
BY_DATA = "an update counts by its client's amount of data, so one can be nearly all of the step"
BY_THOSE_THERE = "an update counts 1 / (number there): of a client alone there it is the whole step"
NOT_PRIVATE = {
    "fedalign": "who takes part and what it counts follow from the clients' losses and data",
    "fedavg": BY_DATA,
    "fedavg_priority": BY_DATA,
    "local_only": "nothing is aggregated that could be made private",
    "average_participating": BY_THOSE_THERE,
    "fedvarp": BY_THOSE_THERE,
    "mifa": "an update counts again in every later round",
    "aaggff_s": BY_LOSSES,
    "aaggff_d": BY_LOSSES,
    "qfedavg": BY_LOSSES,
    "term": BY_LOSSES,
    "propfair": BY_LOSSES,
    "afl": BY_LOSSES,
    "fedmgda": "what an update counts follows from all others: one can turn the whole step",
    "own": "nothing is known of the largest weight that the rule gives",
    "composed": "no bound is worked out of what one update counts in any composition",
}
