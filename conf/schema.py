"""The schema of every settings group: types, defaults and allowed ranges.

A YAML file in a group inherits from its schema (``defaults: [schema_..., _self_]``), so a key
that is not here is refused, and ``check`` compares every value with its range.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from conf.errors import SettingsError
from strategies.communication import EVALUATED_CLIENTS
from strategies.parameters import (
    AUGMENTATION,
    CDF,
    COUNT,
    COUNTS,
    CRITERION,
    CUTOFF,
    CYCLE_PERIOD,
    CYCLE_START,
    EPSILON,
    EPSILON_SCHEDULE,
    FAIRNESS_METRIC,
    FRACTION,
    LR_SCHEDULE,
    MODEL_INIT,
    NON_NEGATIVE,
    NON_NEGATIVE_COUNT,
    POSITIVE,
    PRIORITY_WEIGHT,
    PROBABILITY,
    RBAR,
    REAL,
    SHARE_BELOW_ONE,
    ClientIds,
    ListOf,
    Number,
    OneOf,
    ParameterError,
    Range,
)


def setting(default: Any, allowed: Range) -> Any:
    """Return a dataclass field with a default and the range that ``check`` enforces."""
    return field(default=default, metadata={"allowed": allowed})


@dataclass(frozen=True)
class ImportPath(Range):
    """Names with dots in between; whether there is such a thing is its importer's to say."""

    def describe(self) -> str:
        """Return what it is."""
        return "an import path such as package.module.Class"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` looks like one."""
        parts = value.split(".") if isinstance(value, str) else []
        return len(parts) > 1 and all(part.isidentifier() for part in parts)


@dataclass(frozen=True)
class Arguments(Range):
    """Values by name."""

    def describe(self) -> str:
        """Return what they are."""
        return "null, or a mapping such as {hidden: 200}"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a mapping."""
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)


ARGUMENTS = Arguments()


# --- strategy ------------------------------------------------------------------------------


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


# The parts of strategies, as strategy=composed takes them, and the strategies with their settings.


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


# --- server optimizer ------------------------------------------------------------------------


@dataclass
class ServerOptimizerSettings:
    """How the combined update moves the model, by ``strategy.server_lr``; SGD."""

    name: str = "sgd"


@dataclass
class MomentumSettings(ServerOptimizerSettings):
    """See ``strategies.server_optimizer.Momentum``."""

    name: str = "momentum"
    momentum: float = setting(0.9, SHARE_BELOW_ONE)


@dataclass
class AdaptiveSettings(ServerOptimizerSettings):
    """What Adam, Yogi and Adagrad have; see ``strategies.server_optimizer``."""

    beta1: float = setting(0.9, SHARE_BELOW_ONE)
    tau: float = setting(1e-3, POSITIVE)


@dataclass
class AdamSettings(AdaptiveSettings):
    """See ``strategies.server_optimizer.Adam`` and ``Yogi``."""

    name: str = setting(MISSING, OneOf(("adam", "yogi")))
    beta2: float = setting(0.99, SHARE_BELOW_ONE)


@dataclass
class AdagradSettings(AdaptiveSettings):
    """See ``strategies.server_optimizer.Adagrad``."""

    name: str = "adagrad"
    beta1: float = setting(0.0, SHARE_BELOW_ONE)


# --- data ----------------------------------------------------------------------------------

TEST_FRACTION = Number(low=0.01, high=0.9)
PARTITIONS = ("shards", "dirichlet", "iid", "quantity")


@dataclass
class DataSettings:
    """What every data set has.

    ``num_clients``: null where it is the data that tells; a number is then compared with it.
    ``priority``: ``heterogeneous`` (the ids whose classes overlap least), ``random``, a list, or
    ``all``, whatever ``num_priority`` is, for methods that know no priority.
    ``priority_weights``: lambda_k in (0, 1] by client id, for generalized prioritized learning;
    a client named here counts with that weight, whether or not ``priority`` has it.
    """

    name: str = MISSING
    num_clients: int | None = setting(None, COUNT)
    num_priority: int = setting(10, COUNT)
    priority: Any = "heterogeneous"
    priority_weights: Any = None


@dataclass
class SynthSettings(DataSettings):
    """See ``client_app.data.synth``."""

    name: str = "synth"
    num_clients: int = setting(20, COUNT)
    alpha: float = setting(1.0, NON_NEGATIVE)
    beta: float = setting(1.0, NON_NEGATIVE)
    noise: str = setting("additive", OneOf(("additive", "flip")))
    noise_skew: float = setting(0.5, POSITIVE)
    label_noise: float = setting(2.5, NON_NEGATIVE)
    irrelevant_fraction: float = setting(1.0, FRACTION)
    sizes: str = setting("lognormal", OneOf(("lognormal", "equal")))
    samples_per_client: int = setting(500, Number(low=2, integer=True))
    test_fraction: float = setting(0.2, TEST_FRACTION)


@dataclass
class PartitionedSettings(DataSettings):
    """One data set, divided among the clients; see ``client_app.data.partition``.

    ``partition`` shards: ``shards_per_client`` shards of ``shard_size`` training rows of one
    class, of which the client keeps ``samples_per_shard`` (null for all). dirichlet:
    ``samples_per_client`` training rows (null for as many as there are for all) whose classes
    follow Dir(``alpha``). iid: ``samples_per_client`` random rows (null likewise). quantity: random
    rows, the sizes by Dir(``alpha``). The settings of the other partitions are not used.
    """

    num_clients: int | None = setting(60, COUNT)
    num_priority: int = setting(2, COUNT)
    partition: str = setting("shards", OneOf(PARTITIONS))
    shards_per_client: int = setting(2, COUNT)
    shard_size: int = setting(500, COUNT)
    samples_per_shard: int | None = setting(None, COUNT)
    alpha: float = setting(0.1, POSITIVE)
    samples_per_client: int | None = setting(None, COUNT)


@dataclass
class TorchvisionSettings(PartitionedSettings):
    """See ``client_app.data.sources.torchvision``; ``root`` is torchvision's."""

    name: str = setting(
        MISSING, OneOf(("mnist", "fmnist", "emnist", "cifar10", "cifar100", "svhn"))
    )
    root: str = "data"
    download: bool = True


@dataclass
class Cinic10Settings(PartitionedSettings):
    """See ``client_app.data.sources.cinic10``; ``root`` is the folder with CINIC-10."""

    name: str = "cinic10"
    root: str = "data"


@dataclass(frozen=True)
class FilePath(Range):
    """A path in words, e.g. of "an .npz file"; whether it leads there is its reader's to say."""

    kind: str

    def describe(self) -> str:
        """Return what the path is of."""
        return f"the path of {self.kind}"

    def contains(self, value: object) -> bool:
        """Say whether there is a path at all."""
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True)
class Name(Range):
    """A name, e.g. "the name of a column"; whether there is one is its reader's to say."""

    kind: str

    def describe(self) -> str:
        """Return what it is."""
        return self.kind

    def contains(self, value: object) -> bool:
        """Say whether there is a name at all."""
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True)
class ColumnNames(Range):
    """A list of different names of columns, which may be empty."""

    def describe(self) -> str:
        """Return what it is."""
        return "a list of names of columns, each once"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a list."""
        names = value if isinstance(value, list) else [""]
        return all(map(COLUMN.contains, names)) and len(set(names)) == len(names)


COLUMN = Name("the name of a column")
COLUMNS = ColumnNames()


@dataclass(frozen=True)
class ImageSize(Range):
    """Height and width."""

    def describe(self) -> str:
        """Return what it is."""
        return "a list of two whole numbers >= 1, height and width"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a list."""
        return isinstance(value, list) and len(value) == len(("h", "w")) and COUNTS.contains(value)


IMAGE_SIZE = ImageSize()
CLASSES = ListOf(Name("the name of a class"))


@dataclass
class NaturalSettings(PartitionedSettings):
    """Data that may have clients of its own.

    ``partition`` natural: the clients that the data has, without those of fewer than
    ``min_samples`` training rows (null for all). A client's test part is the data's, or
    ``test_fraction`` of its own rows; see ``client_app.data.partition.natural``. ``num_clients``
    null is as many as there are with natural, and 60 with the others. Of data that has no test set
    the other partitions take ``test_fraction`` of all rows for one.
    """

    num_clients: int | None = setting(None, COUNT)
    priority: Any = "all"
    partition: str = setting("natural", OneOf((*PARTITIONS, "natural")))
    test_fraction: float = setting(0.2, TEST_FRACTION)
    min_samples: int | None = setting(None, Number(low=2, integer=True))

    def __post_init__(self) -> None:
        if self.num_clients is None and self.partition not in {"natural", "device"}:
            self.num_clients = 60


@dataclass
class NpzSettings(NaturalSettings):
    """See ``client_app.data.sources.npz``; ``regression``: targets are numbers, not classes.

    ``num_classes``: null for those that there are, 0, 1, .. without gaps. ``partition`` device: the
    file has the data of one client, that of the device it is on; see ``client_app.data.device``.
    Then ``input_shape`` and ``num_classes`` say what all have.
    """

    name: str = "npz"
    path: str = setting("", FilePath("an .npz file"))
    priority: Any = "heterogeneous"
    partition: str = setting("shards", OneOf((*PARTITIONS, "natural", "device")))
    regression: bool = False
    input_shape: list[int] | None = field(default=None, metadata={"allowed": COUNTS})
    num_classes: int | None = setting(None, COUNT)


@dataclass
class ImageFolderSettings(NaturalSettings):
    """See ``client_app.data.sources.image_folder``.

    ``image_size``: height and width that images are scaled to; null where all have the same.
    ``classes``: the names of all classes; null for the folders that there are. ``partition``
    device: the images of one client, that of the device they are on; it needs both.
    """

    name: str = "image_folder"
    path: str = setting("", FilePath("a folder of images"))
    partition: str = setting("natural", OneOf((*PARTITIONS, "natural", "device")))
    image_size: list[int] | None = field(default=None, metadata={"allowed": IMAGE_SIZE})
    classes: list[str] | None = field(default=None, metadata={"allowed": CLASSES})


@dataclass
class CelebASettings(NaturalSettings):
    """See ``client_app.data.sources.celeba``; ``root`` is torchvision's.

    ``target``: one of the 40 attributes. ``image_size``: height and width.
    """

    name: str = "celeba"
    root: str = "data"
    download: bool = True
    target: str = setting("Smiling", Name("the name of an attribute"))
    image_size: list[int] = field(
        default_factory=lambda: [84, 84], metadata={"allowed": IMAGE_SIZE}
    )
    min_samples: int | None = setting(5, Number(low=2, integer=True))


@dataclass
class SpeechCommandsSettings(NaturalSettings):
    """See ``client_app.data.sources.speech_commands``; ``sample_rate`` in Hz."""

    name: str = "speech_commands"
    root: str = "data"
    sample_rate: int = setting(16000, OneOf((8000, 16000)))
    min_samples: int | None = setting(3, Number(low=2, integer=True))


@dataclass
class LeafSettings(NaturalSettings):
    """See ``client_app.data.sources.leaf``; ``vocabulary_size`` is that of words.

    ``num_classes``: of numbers with a class; null for those that there are, 0, 1, .. without gaps.
    """

    name: str = "leaf"
    path: str = setting("", FilePath("a folder of LEAF's JSON files"))
    num_classes: int | None = setting(None, COUNT)
    vocabulary_size: int = setting(10000, Number(low=3, integer=True))


@dataclass
class Isic2019Settings(NaturalSettings):
    """See ``client_app.data.sources.isic2019``; ``root`` has FLamby's files."""

    name: str = "isic2019"
    root: str = "data"
    image_size: list[int] = field(
        default_factory=lambda: [224, 224], metadata={"allowed": IMAGE_SIZE}
    )


@dataclass
class TextSettings(NaturalSettings):
    """See ``client_app.data.sources.text``.

    ``header``: the names of the columns where the file's first line has none. ``length`` in tokens.
    ``tokens`` words or characters. With a ``target``: ``vocabulary_size`` is that of the hashed
    words, and rows with the same value of ``group_column`` stay together; without one the next
    token is the target. ``rows`` and ``classes``: what the file must have, as far as it is known,
    so that another, a truncated or a damaged one is noticed.
    """

    name: str = "text"
    path: str = setting("", FilePath("a .csv file"))
    header: list[str] = field(default_factory=list, metadata={"allowed": COLUMNS})
    client_column: str = setting("", COLUMN)
    text_columns: list[str] = field(default_factory=list, metadata={"allowed": COLUMNS})
    target: str | None = setting(None, COLUMN)
    classes: list[str] | None = field(default=None, metadata={"allowed": CLASSES})
    group_column: str | None = setting(None, COLUMN)
    rows: int | None = setting(None, COUNT)
    tokens: str = setting("words", OneOf(("words", "characters")))
    length: int = setting(80, Number(low=2, integer=True))
    vocabulary_size: int = setting(10000, Number(low=8, integer=True))


@dataclass
class TableSettings(DataSettings):
    """One table of numbers and categories; see ``client_app.data.tabular``."""

    priority: Any = "all"
    test_fraction: float = setting(0.2, TEST_FRACTION)


@dataclass
class HeartSettings(TableSettings):
    """See ``client_app.data.sources.heart``."""

    name: str = "heart"
    root: str = "data"


@dataclass
class BerkaSettings(TableSettings):
    """See ``client_app.data.sources.berka``; ``drop_regions`` are left out."""

    name: str = "berka"
    root: str = "data"
    drop_regions: list[str] = field(default_factory=lambda: ["north Bohemia"])


@dataclass
class CsvSettings(TableSettings):
    """A file with a column that says whose each row is; see ``client_app.data.tabular``.

    ``client_column`` null: the file has the rows of one client, that of the device it is on; see
    ``client_app.data.device``. ``columns``: the input columns and classes that all clients agree
    on, see ``client_app.data.sources.csv_table``; null for those of the file. ``regression``: the
    target is a number, not a class. ``rows``: how many the file must have, if that is known, so
    that a truncated one is noticed.
    """

    name: str = "csv"
    path: str = setting("", FilePath("a .csv file"))
    client_column: str | None = setting("", COLUMN)
    target: str = setting("", COLUMN)
    drop: list[str] = field(default_factory=list, metadata={"allowed": COLUMNS})
    zero_is_missing: list[str] = field(default_factory=list, metadata={"allowed": COLUMNS})
    columns: Any = None
    regression: bool = False
    rows: int | None = setting(None, COUNT)


# --- availability --------------------------------------------------------------------------


@dataclass
class AvailabilitySettings:
    """When clients are there, which the server does not know; see ``client_app.availability``."""

    name: str = MISSING


@dataclass
class AlwaysSettings(AvailabilitySettings):
    """Every client is there in every round."""

    name: str = "always"


@dataclass
class RandomAvailabilitySettings(AvailabilitySettings):
    """What every random process has: how often each client is there.

    ``p``: a number in (0, 1] for all clients, a list with one for each, or null for
    clip(mean * L * <kappa_n, q>, minimum, 1), which is correlated with the data: kappa_n the
    client's distribution over L classes, q ~ Dir(class_alpha).
    """

    p: Any = None
    mean: float = setting(0.1, PROBABILITY)
    minimum: float = setting(0.02, PROBABILITY)
    class_alpha: float = setting(0.1, POSITIVE)


@dataclass
class BernoulliSettings(RandomAvailabilitySettings):
    """See ``client_app.availability.Bernoulli``."""

    name: str = "bernoulli"


@dataclass
class MarkovSettings(RandomAvailabilitySettings):
    """See ``client_app.availability.Markov``."""

    name: str = "markov"
    max_transition: float = setting(0.05, PROBABILITY)


@dataclass
class CyclicSettings(RandomAvailabilitySettings):
    """See ``client_app.availability.Cyclic``; ``period`` in rounds."""

    name: str = "cyclic"
    period: int = setting(100, CYCLE_PERIOD)
    start: str = setting("stationary", CYCLE_START)


@dataclass
class TraceSettings(AvailabilitySettings):
    """See ``client_app.availability.trace``."""

    name: str = "trace"
    path: str = setting("", FilePath("a CSV file of round, client, available"))


# --- privacy ---------------------------------------------------------------------------------


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


# --- model, client, evaluation, engine -------------------------------------------------------


@dataclass
class ModelSettings:
    """A model by name; its input and output follow from the data.

    ``init``: the initial values, see ``client_app.models.initialisation``.
    """

    name: str = MISSING
    init: str = setting("default", MODEL_INIT)


@dataclass
class LogisticRegressionSettings(ModelSettings):
    """See ``client_app.models``."""

    name: str = "logistic_regression"


@dataclass
class MlpSettings(ModelSettings):
    """See ``client_app.models.MLP``."""

    name: str = "mlp"
    hidden: int = setting(200, COUNT)


@dataclass
class CnnSettings(ModelSettings):
    """See ``client_app.models.CNN``."""

    name: str = "cnn"


@dataclass
class SmallCnnSettings(ModelSettings):
    """See ``client_app.models.SmallCNN``."""

    name: str = "small_cnn"
    hidden: list[int] = field(default_factory=lambda: [256, 64], metadata={"allowed": COUNTS})
    dropout: float = setting(0.0, SHARE_BELOW_ONE)


@dataclass
class M5Settings(ModelSettings):
    """See ``client_app.models.M5``."""

    name: str = "m5"
    channels: int = setting(32, COUNT)


@dataclass
class CelebaCnnSettings(ModelSettings):
    """See ``client_app.models.CelebaCNN``."""

    name: str = "celeba_cnn"


@dataclass
class EfficientNetSettings(ModelSettings):
    """See ``client_app.models.efficientnet``; ``pretrained`` is read by the server only."""

    name: str = "efficientnet"
    variant: str = setting("b0", OneOf(tuple(f"b{i}" for i in range(8))))
    pretrained: str | None = setting(None, FilePath("a file of weights"))


@dataclass
class LstmSettings(ModelSettings):
    """See ``client_app.models.LSTM``."""

    name: str = "lstm"
    embedding: int = setting(256, COUNT)
    hidden: int = setting(256, COUNT)
    layers: int = setting(2, COUNT)


@dataclass
class TextCnnSettings(ModelSettings):
    """See ``client_app.models.TextCNN``."""

    name: str = "text"
    embedding: int = setting(64, COUNT)
    channels: int = setting(64, COUNT)
    dropout: float = setting(0.0, SHARE_BELOW_ONE)


@dataclass
class DistilBertSettings(ModelSettings):
    """See ``client_app.models.DistilBERT``; ``pretrained`` is read by the server only."""

    name: str = "distilbert"
    layers: int = setting(6, COUNT)
    width: int = setting(768, COUNT)
    heads: int = setting(12, COUNT)
    dropout: float = setting(0.1, SHARE_BELOW_ONE)
    pretrained: str | None = setting(None, FilePath("a folder of weights"))


@dataclass
class ModuleSettings(ModelSettings):
    """Any ``torch.nn.Module``, made by ``path`` of ``args``; see ``client_app.models.module``."""

    name: str = "module"
    path: str = setting("", ImportPath())
    args: Any = field(default=None, metadata={"allowed": ARGUMENTS})


@dataclass(frozen=True)
class ClassWeights(Range):
    """A word, or a weight for each class."""

    def describe(self) -> str:
        """Return the choice in words."""
        return "null, balanced, or a list of numbers >= 0, one above 0"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is one of them."""
        if isinstance(value, str):
            return value == "balanced"
        return isinstance(value, list) and ListOf(NON_NEGATIVE).contains(value) and any(value)


CLASS_WEIGHTS = ClassWeights()


@dataclass
class ClientSettings:
    """Local training: SGD on the mean loss of a batch; see ``LocalTraining``.

    ``loss``: of classes, cross_entropy with an output for each, or binary with one output for
    two. Where the targets are tokens or numbers the data decides, see ``client_app.tasks``.
    ``class_weights``: for each class, in every client's loss; ``balanced`` takes those of
    ``client_app.tasks.balanced_weights`` from the training labels of all clients, which a
    simulation has and a device has not: it is told the list.

    ``local_steps`` batches a round, null for ``local_epochs``. ``mu`` > 0 is FedProx. The
    ``augmentation`` of images is for training only, see ``client_app.augmentation``. ``device``
    auto takes CUDA where there is one; with ``tf32`` its products are faster and have 10 bits.
    ``compile`` trains by ``torch.compile``, which needs a compiler and about a minute once.
    ``batching``: whether a node's clients train together, see ``client_app.trainer.Trainer``.
    """

    lr: float = setting(0.1, POSITIVE)
    batch_size: int = setting(32, COUNT)
    local_epochs: int = setting(5, COUNT)
    local_steps: int | None = setting(None, COUNT)
    momentum: float = setting(0.0, Number(low=0, high=1))
    weight_decay: float = setting(0.0, NON_NEGATIVE)
    mu: float = setting(0.0, NON_NEGATIVE)
    lr_schedule: str = setting("constant", LR_SCHEDULE)
    lr_decay: float = setting(1.0, Number(low=0, high=1, open_low=True))
    lr_decay_every: int = setting(1, COUNT)
    strong_convexity: float = setting(1.0, POSITIVE)
    smoothness: float = setting(1.0, POSITIVE)
    augmentation: str = setting("none", AUGMENTATION)
    batching: str = setting("auto", OneOf(("auto", "batched", "sequential")))
    tf32: bool = False
    compile: bool = False
    loss: str = setting("cross_entropy", OneOf(("cross_entropy", "binary")))
    class_weights: Any = field(default=None, metadata={"allowed": CLASS_WEIGHTS})
    device: str = setting("auto", OneOf(("auto", "cpu", "cuda")))


@dataclass
class EvaluationSettings:
    """When and whose test parts are measured, after the round.

    ``every`` n rounds and after the last; ``clients`` all or priority. ``metric`` is what the
    fairness over clients is of.
    """

    every: int = setting(1, COUNT)
    metric: str = setting("accuracy", FAIRNESS_METRIC)
    clients: str = setting("all", EVALUATED_CLIENTS)


@dataclass(frozen=True)
class ConnectionName(Range):
    """The name of a SuperLink connection; whether there is one is Flower's to say."""

    def describe(self) -> str:
        """Return what it is."""
        return "the name of a SuperLink in Flower's config.toml"

    def contains(self, value: object) -> bool:
        """Say whether it can be a name, and no option of a command."""
        return isinstance(value, str) and bool(value.strip()) and not value.startswith("-")


@dataclass
class RobustnessSettings:
    """Bounds on what one client can do; see ``strategies.Robustness``. null bounds nothing."""

    clip_norm: float | None = setting(None, POSITIVE)
    max_weight: float | None = setting(None, POSITIVE)


@dataclass
class EngineSettings:
    """Where the clients run. ``num_supernodes`` null leaves the number to Flower.

    Timeouts in seconds: for the replies of a round, and for the clients to be there.
    ``startup_clients``: how many must be there for round 1 to begin, null for all.
    ``partial_aggregation``: see ``strategies.communication.Communication``.
    ``checkpoint_every`` n rounds, and after the last, all is written down that ``resume`` needs;
    null never.
    ``nodes``: the file that says whose public key each client's node has, see
    ``server_app.nodes``; null believes what nodes say of themselves. ``superlink``: the name of
    the deployment in Flower's configuration that ``engine=flower`` submits to, null for the local
    simulation.
    ``jobs``: how many jobs of a sweep run at a time, each in a process of its own.
    """

    name: str = setting(MISSING, OneOf(("in-process", "flower")))
    num_supernodes: int | None = setting(None, COUNT)
    round_timeout: float = setting(3600.0, POSITIVE)
    startup_timeout: float = setting(300.0, POSITIVE)
    startup_clients: int | None = setting(None, COUNT)
    partial_aggregation: bool = True
    checkpoint_every: int | None = setting(10, COUNT)
    nodes: str | None = setting(None, FilePath("a file of client ids and public keys"))
    superlink: str | None = setting(None, ConnectionName())
    jobs: int = setting(1, COUNT)


# --- tracker ---------------------------------------------------------------------------------


@dataclass
class TrackerSettings:
    """Where a run is told of beside its records and TensorBoard; see ``server_app.trackers``."""

    name: str = MISSING


@dataclass
class TensorBoardSettings(TrackerSettings):
    """Nowhere else."""

    name: str = "tensorboard"


@dataclass
class MlflowSettings(TrackerSettings):
    """MLflow. ``uri``: the path of an SQLite file, or a tracking URI such as a server's.

    ``experiment`` null is the name of the run's own.
    """

    name: str = "mlflow"
    uri: str = setting("outputs/mlflow.db", FilePath("an SQLite file, or a tracking URI"))
    experiment: str | None = None


@dataclass
class WandbSettings(TrackerSettings):
    """Weights & Biases. ``mode`` offline writes into the run's folder, for ``wandb sync``."""

    name: str = "wandb"
    project: str = "fedquorum"
    mode: str = setting("offline", OneOf(("offline", "online")))


# --- the whole -------------------------------------------------------------------------------


@dataclass
class Settings:
    """Everything that one run needs to know; ``rounds`` is T.

    ``resume``: the directory of a run to go on with, from its last checkpoint; null for a new one.
    """

    strategy: StrategySettings = MISSING
    server_optimizer: ServerOptimizerSettings = field(default_factory=ServerOptimizerSettings)
    data: DataSettings = MISSING
    model: ModelSettings = MISSING
    client: ClientSettings = field(default_factory=ClientSettings)
    availability: AvailabilitySettings = MISSING
    privacy: PrivacySettings = MISSING
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    robustness: RobustnessSettings = field(default_factory=RobustnessSettings)
    engine: EngineSettings = MISSING
    tracker: TrackerSettings = MISSING
    rounds: int = setting(100, COUNT)
    seed: int = setting(1, NON_NEGATIVE_COUNT)
    resume: str | None = None


def check(settings: Settings) -> None:
    """Compare every value with its range, then the values with each other.

    Raises
    ------
    SettingsError
        For the first value that is not allowed.
    """
    try:
        for key, value, allowed in _ranged(settings, ""):
            allowed.check(key, value)
        _check_priority(settings.data, settings.data.num_clients)
        _check_number(settings.data)
        _check_shards(settings.data)
        _check_device(settings.data)
        _check_columns(settings.data)
        _check_texts(settings.data)
        _check_draws(settings)
        _check_all_there(settings)
        _check_device_availability(settings)
        _check_engine(settings.engine)
        _check_privacy(settings)
        _check_probabilities(settings)
        _check_init(settings.model)
    except ParameterError as error:
        raise SettingsError(str(error)) from None


def _ranged(node: Any, prefix: str) -> Iterator[tuple[str, object, Range]]:
    for item in fields(node):
        key, value = f"{prefix}{item.name}", getattr(node, item.name)
        if is_dataclass(value):
            yield from _ranged(value, f"{key}.")
        elif "allowed" in item.metadata and value is not None:
            yield key, value, item.metadata["allowed"]


def check_clients(data: DataSettings, found: int) -> None:
    """Compare the settings with the number of clients that the data turned out to have.

    Raises
    ------
    SettingsError
        If ``num_clients`` is neither null nor that number, or a setting names clients that
        there are not.
    """
    if data.num_clients not in {None, found}:
        raise SettingsError(
            f"data.num_clients must be null or {found}, the number of clients in the data, got "
            f"{data.num_clients}"
        )
    try:
        _check_priority(data, found)
    except ParameterError as error:
        raise SettingsError(str(error)) from None


def _check_priority(data: DataSettings, num_clients: int | None) -> None:
    words = OneOf(("heterogeneous", "random", "all"))
    if isinstance(data.priority, str):
        if not words.contains(data.priority):
            raise ParameterError(
                f"data.priority must be {words.describe()}, or a list of client ids, "
                f"got {data.priority!r}"
            )
        if data.priority != "all" and num_clients and data.num_priority > num_clients:
            raise ParameterError(
                f"data.num_priority must be at most data.num_clients ({num_clients}), "
                f"got {data.num_priority}"
            )
    elif num_clients:
        ClientIds(num_clients).check("data.priority", data.priority)
    _check_priority_weights(data, num_clients)


def _check_priority_weights(data: DataSettings, num_clients: int | None) -> None:
    weights = data.priority_weights
    if weights is None:
        return
    if not isinstance(weights, dict):
        raise ParameterError(
            f"data.priority_weights must be a mapping such as {{3: 0.5}}, got {weights!r}"
        )
    if num_clients:
        ClientIds(num_clients).check("data.priority_weights (its keys)", list(weights))
    for client, weight in weights.items():
        PRIORITY_WEIGHT.check(f"data.priority_weights[{client}]", weight)


def _check_number(data: DataSettings) -> None:
    natural = isinstance(data, PartitionedSettings) and data.partition in {"natural", "device"}
    if not natural and not isinstance(data, TableSettings):
        settled_clients(data)


def settled_clients(data: DataSettings) -> int:
    """Return the number of clients of data that does not tell it itself.

    Raises
    ------
    ParameterError
        If the settings do not tell it either.
    """
    if data.num_clients is None:
        raise ParameterError(
            f"data.num_clients must be {COUNT.describe()} where the data does not tell it, got null"
        )
    return data.num_clients


def _check_shards(data: DataSettings) -> None:
    if not isinstance(data, PartitionedSettings) or data.partition != "shards":
        return
    if data.samples_per_shard is not None and data.samples_per_shard > data.shard_size:
        raise ParameterError(
            f"data.samples_per_shard must be at most data.shard_size ({data.shard_size}), "
            f"got {data.samples_per_shard}"
        )


def of_devices(data: DataSettings) -> bool:
    """Say whether each device has the data of its own client only, and nobody has all."""
    if isinstance(data, CsvSettings):
        return data.client_column is None
    return isinstance(data, NpzSettings | ImageFolderSettings) and data.partition == "device"


def _check_device(data: DataSettings) -> None:
    """Check that all is agreed on that a device cannot tell from its own rows."""
    needed: tuple[str, ...] = ()
    if isinstance(data, NpzSettings) and data.partition == "device":
        needed = ("input_shape", *(() if data.regression else ("num_classes",)))
    elif isinstance(data, ImageFolderSettings) and data.partition == "device":
        needed = ("image_size", "classes")
    elif isinstance(data, CsvSettings) and data.client_column is None:
        needed = ("columns",)
    for key in ("num_clients", *needed) if needed else ():
        if getattr(data, key) is None:
            raise ParameterError(
                f"data.{key} must have a value where each device has the data of its own client "
                "only, got null"
            )
    if needed and data.priority == "heterogeneous":
        raise ParameterError(
            "data.priority must be all, random or a list where each device has the data of its own "
            "client only, got 'heterogeneous'"
        )


def _check_agreed(data: CsvSettings) -> None:
    columns = data.columns
    if columns is None:
        return
    known = {"numbers": list, "categories": dict, "classes": list}
    form = isinstance(columns, dict) and set(columns) <= set(known)
    if not form or any(not isinstance(value, known[key]) for key, value in columns.items()):
        raise ParameterError(
            "data.columns must be a mapping such as {numbers: [age], categories: {kind: [a, b]}, "
            f"classes: [no, yes]}}, got {columns!r}"
        )
    categories = columns.get("categories", {})
    lists = {"numbers": columns.get("numbers", []), "classes": columns.get("classes", [])}
    lists |= {f"categories.{name}": values for name, values in categories.items()}
    for key, values in lists.items():
        if not isinstance(values, list) or len(set(map(str, values))) != len(values):
            raise ParameterError(
                f"data.columns.{key} must be a list of values, each once, got {values!r}"
            )
    inputs = [*lists["numbers"], *categories]
    if (
        not inputs
        or len(set(inputs)) != len(inputs)
        or {data.target, data.client_column} & {*inputs}
    ):
        raise ParameterError(
            "data.columns must have at least one input column, each once, other than data.target "
            f"and data.client_column, got {inputs}"
        )
    if (len(lists["classes"]) > 1) == data.regression:
        raise ParameterError(
            "data.columns.classes must be at least two values, none where data.regression is true, "
            f"got {lists['classes']}"
        )


def _check_columns(data: DataSettings) -> None:
    if not isinstance(data, CsvSettings):
        return
    _check_agreed(data)
    if data.target == data.client_column:
        raise ParameterError(
            f"data.target must be another column than data.client_column, got {data.target!r}"
        )
    for own in ("client_column", "target"):
        if getattr(data, own) in data.drop:
            raise ParameterError(
                f"data.drop must be columns other than data.{own} ({getattr(data, own)}), got "
                f"{data.drop}"
            )


def _check_texts(data: DataSettings) -> None:
    if not isinstance(data, TextSettings):
        return
    columns = data.text_columns
    if not columns or data.client_column in columns or data.target in columns:
        raise ParameterError(
            "data.text_columns must be at least one column other than data.client_column and "
            f"data.target, got {columns}"
        )
    if data.target is None and len(columns) > 1:
        raise ParameterError(
            f"data.text_columns must be one column where data.target is null, got {columns}"
        )
    least = 2 * len(columns) - 1
    if data.length < least:
        raise ParameterError(
            f"data.length must be at least {least} for {len(columns)} texts, got {data.length}"
        )


def _check_device_availability(settings: Settings) -> None:
    own = settings.availability
    if of_devices(settings.data) and isinstance(own, RandomAvailabilitySettings) and own.p is None:
        raise ParameterError(
            "availability.p must be given where each device has the data of its own client only "
            "(how often it is there would follow from its classes), got null"
        )


def _check_engine(engine: EngineSettings) -> None:
    if engine.superlink is not None and engine.num_supernodes is not None:
        raise ParameterError(
            "engine.num_supernodes must be null with engine.superlink (a deployment has the nodes "
            f"that connect), got {engine.num_supernodes}"
        )
    if engine.name == "flower" and engine.jobs > 1:
        raise ParameterError(
            f"engine.jobs must be 1 with engine=flower, which runs one job after the other, got "
            f"{engine.jobs}"
        )


def _check_privacy(settings: Settings) -> None:
    name, strategy = settings.privacy.name, settings.strategy
    if name == "none":
        return
    own = isinstance(strategy, OwnRuleSettings)
    reason = NOT_PRIVATE.get("own" if own else strategy.name)
    if reason is not None:
        raise ParameterError(
            f"privacy must be none with strategy={strategy.name} ({reason}), got {name}"
        )
    if isinstance(strategy, FedAuSettings) and math.isinf(strategy.cutoff):
        raise ParameterError(
            f"strategy.cutoff must be a whole number >= 1 with privacy={name} (an update counts at "
            "most cutoff / N), got inf"
        )
    if settings.server_optimizer.name != "sgd":
        raise ParameterError(
            f"server_optimizer must be sgd with privacy={name} (of another step no bound is worked "
            f"out of what one update counts), got {settings.server_optimizer.name}"
        )
    if settings.resume is not None and isinstance(settings.privacy, AdaptiveClippingSettings):
        raise ParameterError(
            f"resume must be null with privacy={name} (a checkpoint has no clipping norm), got "
            f"{settings.resume}"
        )
    if settings.engine.startup_clients is not None:
        raise ParameterError(
            f"engine.startup_clients must be null with privacy={name} (while not all clients are "
            f"known, one counts for more), got {settings.engine.startup_clients}"
        )


def _check_draws(settings: Settings) -> None:
    draws = getattr(settings.strategy, "priority_draws", None)
    if draws is not None and settings.data.priority_weights:
        raise ParameterError(
            "strategy.priority_draws must be null where data.priority_weights are set (a draw "
            f"counts as a whole client), got {draws}"
        )


def _check_all_there(settings: Settings) -> None:
    own = settings.strategy
    if (
        isinstance(own, ComposedSettings)
        and isinstance(own.weighting, AaggffSPart)
        and settings.availability.name != "always"
    ):
        raise ParameterError(
            "availability must be always with strategy/weighting=aaggff_s (its Newton step needs "
            "the losses of all clients in every round; aaggff_d does without), got "
            f"{settings.availability.name}"
        )


def _check_init(model: ModelSettings) -> None:
    if getattr(model, "pretrained", None) is not None and model.init != "default":
        raise ParameterError(
            f"model.init must be default where model.pretrained is set, got {model.init}"
        )


def _check_probabilities(settings: Settings) -> None:
    own, count = settings.availability, settings.data.num_clients
    if not isinstance(own, RandomAvailabilitySettings) or own.p is None:
        return
    if isinstance(own.p, list) and count in {None, len(own.p)}:
        for client, p in enumerate(own.p):
            PROBABILITY.check(f"availability.p[{client}]", p)
    elif not PROBABILITY.contains(own.p):
        clients = f"the {count} clients" if count else "the clients"
        raise ParameterError(
            f"availability.p must be null, {PROBABILITY.describe()}, or a list of one for each of "
            f"{clients}, got {own.p!r}"
        )


def register() -> None:
    """Put the schemas into Hydra's store, under the names that the YAML files inherit from."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Settings)
    for group, name, node in (
        ("strategy", "schema_fedalign", FedAlignSettings),
        ("strategy", "schema_fedavg", FedAvgSettings),
        ("strategy", "schema_local_only", LocalOnlySettings),
        ("strategy", "schema_fedau", FedAuSettings),
        ("strategy", "schema_participation", SampledSettings),
        ("strategy", "schema_known_statistics", KnownStatisticsSettings),
        ("strategy", "schema_memory", MemorySettings),
        ("strategy", "schema_aaggff_s", AaggffSSettings),
        ("strategy", "schema_aaggff_d", AaggffDSettings),
        ("strategy", "schema_qfedavg", QFedAvgSettings),
        ("strategy", "schema_term", TermSettings),
        ("strategy", "schema_propfair", PropFairSettings),
        ("strategy", "schema_afl", AflSettings),
        ("strategy", "schema_fedmgda", FedMgdaSettings),
        ("strategy", "schema_own", OwnRuleSettings),
        ("strategy", "schema_composed", ComposedSettings),
        ("strategy/selection", "schema_part", PartSettings),
        ("strategy/selection", "schema_epsilon_gate", GatePart),
        ("strategy/weighting", "schema_part", PartSettings),
        ("strategy/weighting", "schema_aaggff_s", AaggffSPart),
        ("strategy/weighting", "schema_aaggff_d", AaggffDPart),
        ("strategy/weighting", "schema_qfedavg", QFedAvgPart),
        ("strategy/weighting", "schema_term", TermPart),
        ("strategy/weighting", "schema_propfair", PropFairPart),
        ("strategy/weighting", "schema_afl", AflPart),
        ("strategy/weighting", "schema_fedmgda", FedMgdaPart),
        ("strategy/participation", "schema_part", PartSettings),
        ("strategy/participation", "schema_fedau", FedAuPart),
        ("strategy/participation", "schema_known_statistics", KnownStatisticsPart),
        ("server_optimizer", "schema_sgd", ServerOptimizerSettings),
        ("server_optimizer", "schema_momentum", MomentumSettings),
        ("server_optimizer", "schema_adam", AdamSettings),
        ("server_optimizer", "schema_adagrad", AdagradSettings),
        ("data", "schema_synth", SynthSettings),
        ("data", "schema_torchvision", TorchvisionSettings),
        ("data", "schema_cinic10", Cinic10Settings),
        ("data", "schema_npz", NpzSettings),
        ("data", "schema_image_folder", ImageFolderSettings),
        ("data", "schema_celeba", CelebASettings),
        ("data", "schema_speech_commands", SpeechCommandsSettings),
        ("data", "schema_leaf", LeafSettings),
        ("data", "schema_isic2019", Isic2019Settings),
        ("data", "schema_text", TextSettings),
        ("data", "schema_heart", HeartSettings),
        ("data", "schema_berka", BerkaSettings),
        ("data", "schema_csv", CsvSettings),
        ("availability", "schema_always", AlwaysSettings),
        ("availability", "schema_bernoulli", BernoulliSettings),
        ("availability", "schema_markov", MarkovSettings),
        ("availability", "schema_cyclic", CyclicSettings),
        ("availability", "schema_trace", TraceSettings),
        ("privacy", "schema_no_privacy", PrivacySettings),
        ("privacy", "schema_fixed_clipping", FixedClippingSettings),
        ("privacy", "schema_adaptive_clipping", AdaptiveClippingSettings),
        ("model", "schema_logistic_regression", LogisticRegressionSettings),
        ("model", "schema_mlp", MlpSettings),
        ("model", "schema_cnn", CnnSettings),
        ("model", "schema_small_cnn", SmallCnnSettings),
        ("model", "schema_m5", M5Settings),
        ("model", "schema_celeba_cnn", CelebaCnnSettings),
        ("model", "schema_efficientnet", EfficientNetSettings),
        ("model", "schema_lstm", LstmSettings),
        ("model", "schema_text", TextCnnSettings),
        ("model", "schema_distilbert", DistilBertSettings),
        ("model", "schema_module", ModuleSettings),
        ("client", "schema_client", ClientSettings),
        ("engine", "schema_engine", EngineSettings),
        ("tracker", "schema_tensorboard", TensorBoardSettings),
        ("tracker", "schema_mlflow", MlflowSettings),
        ("tracker", "schema_wandb", WandbSettings),
    ):
        store.store(group=group, name=name, node=node)
