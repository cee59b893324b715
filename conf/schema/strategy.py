"""Settings of the strategies, and of the parts that a composed one is made of."""

import math
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from conf.schema.ranges import ARGUMENTS, ImportPath, setting
from strategies.parameters import (
    CDF,
    COUNT,
    CRITERION,
    CUTOFF,
    EPSILON,
    EPSILON_SCHEDULE,
    FRACTION,
    NON_NEGATIVE,
    NON_NEGATIVE_COUNT,
    POSITIVE,
    RBAR,
    REAL,
)


@dataclass
class StrategySettings:
    """What every strategy has."""

    name: str = MISSING
    fraction: float = setting(1.0, FRACTION)


@dataclass
class PrioritySettings(StrategySettings):
    """What the strategies have that know of priority."""

    priority_draws: int | None = setting(None, COUNT)
    server_lr: float = setting(1.0, POSITIVE)


@dataclass
class GateSettings:
    """See ``strategies.selection.EpsilonGate``."""

    name: str = "epsilon_gate"
    epsilon: float = setting(0.2, EPSILON)
    epsilon_schedule: str = setting("constant", EPSILON_SCHEDULE)
    epsilon_step_fraction: float = setting(0.5, FRACTION)
    epsilon_rate: float = setting(5.0, NON_NEGATIVE)
    warmup_fraction: float = setting(0.1, FRACTION)
    warmup_rounds: int | None = setting(None, NON_NEGATIVE_COUNT)
    criterion: str = setting("loss", CRITERION)


@dataclass
class FedAlignSettings(GateSettings, PrioritySettings):
    """See ``strategies.FedALIGN``."""

    name: str = "fedalign"


@dataclass
class FedAvgSettings(PrioritySettings):
    """See ``strategies.FedAvg``."""

    name: str = "fedavg"
    priority_only: bool = False


@dataclass
class LocalOnlySettings(StrategySettings):
    """See ``strategies.LocalOnly``."""

    name: str = "local_only"


@dataclass
class SampledSettings(StrategySettings):
    """What the strategies have that sample clients; see ``strategies.sampled``."""

    server_lr: float = setting(1.0, POSITIVE)


@dataclass
class MemorySettings(SampledSettings):
    """See ``strategies.FedVarp`` and ``strategies.MIFA``; null keeps the memory in memory."""

    memory_dir: str | None = None


@dataclass
class PartSettings:
    """One part of ``strategy=composed``; see ``conf.rules``."""

    name: str = MISSING


@dataclass
class FedAuPart(PartSettings):
    """See ``strategies.weighting.FedAU``."""

    name: str = "fedau"
    cutoff: float = setting(math.inf, CUTOFF)


@dataclass
class FedAuSettings(FedAuPart, SampledSettings):
    """See ``strategies.FedAU``."""


@dataclass
class KnownStatisticsPart(PartSettings):
    """See ``strategies.weighting.KnownRates``; null takes the simulated availability's own."""

    name: str = "known_statistics"
    probabilities: Any = None


@dataclass
class KnownStatisticsSettings(KnownStatisticsPart, SampledSettings):
    """See ``strategies.KnownStatistics``."""


@dataclass
class AaggffSPart(PartSettings):
    """See ``strategies.weighting.AAggFFS``; the range of responses null takes the paper's."""

    name: str = "aaggff_s"
    cdf: str = setting("normal", CDF)
    c1: float | None = setting(None, NON_NEGATIVE)
    c2: float | None = setting(None, POSITIVE)


@dataclass
class AaggffSSettings(AaggffSPart, SampledSettings):
    """See ``strategies.AAggFFS``."""


@dataclass
class AaggffDPart(PartSettings):
    """See ``strategies.weighting.AAggFFD``; the range of responses null takes the paper's."""

    name: str = "aaggff_d"
    cdf: str = setting("weibull", CDF)
    c1: float | None = setting(None, NON_NEGATIVE)
    c2: float | None = setting(None, POSITIVE)
    rbar: str = setting("sample", RBAR)


@dataclass
class AaggffDSettings(AaggffDPart, SampledSettings):
    """See ``strategies.AAggFFD``."""


@dataclass
class QFedAvgPart(PartSettings):
    """See ``strategies.weighting.QFedAvg``."""

    name: str = "qfedavg"
    q: float = setting(1.0, NON_NEGATIVE)
    lipschitz: float | None = setting(None, POSITIVE)


@dataclass
class QFedAvgSettings(QFedAvgPart, SampledSettings):
    """See ``strategies.QFedAvg``."""


@dataclass
class TermPart(PartSettings):
    """See ``strategies.weighting.TERM``."""

    name: str = "term"
    tilt: float = setting(1.0, REAL)


@dataclass
class TermSettings(TermPart, SampledSettings):
    """See ``strategies.TERM``."""


@dataclass
class PropFairPart(PartSettings):
    """See ``strategies.weighting.PropFair``."""

    name: str = "propfair"
    bound: float = setting(3.0, POSITIVE)
    guard: float = setting(0.2, POSITIVE)


@dataclass
class PropFairSettings(PropFairPart, SampledSettings):
    """See ``strategies.PropFair``."""


@dataclass
class AflPart(PartSettings):
    """See ``strategies.weighting.AFL``."""

    name: str = "afl"
    step_size: float = setting(0.1, POSITIVE)


@dataclass
class OwnRuleSettings(SampledSettings):
    """A weighting rule of the user's own, made by ``path`` of ``args``; see docs/own-rule.md."""

    name: str = "own"
    path: str = setting("", ImportPath())
    args: Any = field(default=None, metadata={"allowed": ARGUMENTS})


@dataclass
class AflSettings(AflPart, SampledSettings):
    """See ``strategies.AFL``."""


@dataclass
class FedMgdaPart(PartSettings):
    """See ``strategies.weighting.FedMGDAPlus``."""

    name: str = "fedmgda"
    deviation: float = setting(1.0, FRACTION)


@dataclass
class FedMgdaSettings(FedMgdaPart, SampledSettings):
    """See ``strategies.FedMGDAPlus``."""


@dataclass
class GatePart(GateSettings, PartSettings):
    """See ``strategies.selection.EpsilonGate``."""


@dataclass
class ComposedSettings(PrioritySettings):
    """Who takes part, how much an update counts, and what corrects for being away.

    See ``strategies.composition``.
    """

    name: str = "composed"
    selection: PartSettings = MISSING
    weighting: PartSettings = MISSING
    participation: PartSettings = MISSING
