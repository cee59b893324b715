"""Define the settings of the data sets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from fedquorum.errors import SettingsError
from fedquorum.rules.parameters import (
    FRACTION,
    FRACTION_BELOW_ONE,
    NON_NEGATIVE,
    NON_NEGATIVE_INT,
    POSITIVE,
    POSITIVE_INT,
    POSITIVE_INTS,
    Interval,
    OneOf,
)
from fedquorum.rules.rule import parameter
from omegaconf import MISSING

from conf.schema.ranges import (
    CLASSES,
    COLUMN_NAME,
    COLUMN_NAMES,
    IMAGE_SIZE,
    TARGET_SCALE,
    FilePath,
    Name,
)

TEST_FRACTION = Interval(low=0.01, high=0.9)
VALIDATION_FRACTION = Interval(low=0, high=0.9)
MIN_SAMPLES = Interval(low=2, integer=True)
SPLIT = Name("the name of a split")
TEXT_LENGTH = Interval(low=2, integer=True)
HASHED_WORDS = Interval(low=8, integer=True)
TABLE_FILES = FilePath("a .csv, .parquet or .xlsx file, or a folder of such")
PARTITIONS = ("shards", "dirichlet", "proportional", "iid", "quantity")
DATA_DIVISIONS = ("natural", "device", "auto")
"""The values of ``data.partition`` with which the data may determine the number of clients."""


@dataclass
class DataSettings:
    """The settings of all data sets.

    ``num_clients``: null if the data determines it; a number must then agree with the data.
    ``priority``: ``heterogeneous`` (the ids whose classes overlap least), ``random``, a list of ids
    (numbers) and names (texts), or ``all``, which ignores ``num_priority`` and suits methods
    without priority.
    ``priority_weights``: lambda_k in (0, 1] by client id or name, for generalized prioritized
    learning, as a mapping or, for names that Hydra's mappings cannot hold, a list of pairs. A
    client in it has that weight, whether or not ``priority`` names it.
    ``holdout_client_fraction``: the fraction of all clients that never train but are evaluated.
    They are sampled with the seed, among the clients without priority or, with ``priority=all``,
    among all; see ``client_app.data.held_out``.
    ``validation_fraction``: the fraction of every client's training split that is reserved for
    tuning; see ``client_app.data.split.split_validation``. ``validation_seed``: where each seed
    draws the rows to test, the rows for validation are those that this seed draws, so that no other
    seed tests them; null for the run's seed. ``names``: whether the records keep the names of the
    clients; never with more than 1,000 clients. ``seed``: the seed of the data and its division,
    null for the run's; with a number, runs with other seeds differ in the start, the order of
    samples and who takes part.
    """

    name: str = MISSING
    num_clients: int | None = parameter(None, POSITIVE_INT)
    num_priority: int = parameter(10, POSITIVE_INT)
    priority: Any = "heterogeneous"
    priority_weights: Any = None
    holdout_client_fraction: float = parameter(0.0, FRACTION_BELOW_ONE)
    validation_fraction: float = parameter(0.0, VALIDATION_FRACTION)
    validation_seed: int | None = parameter(None, NON_NEGATIVE_INT)
    names: bool = True
    seed: int | None = parameter(None, NON_NEGATIVE_INT)


@dataclass
class SynthSettings(DataSettings):
    """SYNTH(alpha, beta) for priority clients, and noisy samples of their pooled data for others.

    See ``client_app.data.synth``, also for why ``alpha`` changes nothing. ``noise_skew``,
    ``irrelevant_skew`` and ``irrelevant_fraction`` are FedALIGN's: the skew of the noise over the
    clients without priority, the skew of their irrelevant rows (null: that of the noise), and the
    largest fraction of such rows.
    """

    name: str = "synth"
    num_clients: int = parameter(20, POSITIVE_INT)
    alpha: float = parameter(1.0, NON_NEGATIVE)
    beta: float = parameter(1.0, NON_NEGATIVE)
    noise: str = parameter("additive", OneOf(("additive", "flip")))
    noise_skew: float = parameter(0.5, POSITIVE)
    irrelevant_skew: float | None = parameter(None, POSITIVE)
    label_noise: float = parameter(2.5, NON_NEGATIVE)
    irrelevant_fraction: float = parameter(1.0, FRACTION)
    sizes: str = parameter("lognormal", OneOf(("lognormal", "equal")))
    samples_per_client: int = parameter(500, Interval(low=2, integer=True))
    test_fraction: float = parameter(0.2, TEST_FRACTION)


@dataclass
class PartitionedSettings(DataSettings):
    """One data set, partitioned among the clients; see ``client_app.data.partition``.

    ``partition`` shards: ``shards_per_client`` shards of ``shard_size`` training rows of one
    class, of which the client uses ``samples_per_shard`` (null for all). dirichlet:
    ``samples_per_client`` training rows (null for an equal part of all rows) whose classes
    follow Dir(``alpha``). proportional: each class in proportion to the clients' class fractions by
    Dir(``alpha``), so that clients differ in size. iid: ``samples_per_client`` random rows (null
    likewise). quantity: random rows, the sizes by Dir(``alpha``). The settings of the other
    partitions are not used.

    ``normalize``: images have mean 0 and standard deviation 1 in every channel, over all training
    images; see ``client_app.data.normalize``.
    """

    num_clients: int | None = parameter(60, POSITIVE_INT)
    num_priority: int = parameter(2, POSITIVE_INT)
    partition: str = parameter("shards", OneOf(PARTITIONS))
    shards_per_client: int = parameter(2, POSITIVE_INT)
    shard_size: int = parameter(500, POSITIVE_INT)
    samples_per_shard: int | None = parameter(None, POSITIVE_INT)
    alpha: float = parameter(0.1, POSITIVE)
    samples_per_client: int | None = parameter(None, POSITIVE_INT)
    normalize: bool = False


@dataclass
class TorchvisionSettings(PartitionedSettings):
    """A data set of torchvision in single-class shards.

    See ``client_app.data.sources.torchvision``; ``root`` is torchvision's.
    """

    name: str = parameter(
        MISSING, OneOf(("mnist", "fmnist", "emnist", "cifar10", "cifar100", "svhn"))
    )
    root: str = "${oc.env:FEDQUORUM_DATA,data}"
    download: bool = True


@dataclass
class NaturalSettings(PartitionedSettings):
    """Data that may come with clients.

    ``partition`` natural takes the clients in the data, without those of fewer than ``min_samples``
    training rows (null for all). A client's test split comes from the data, or is ``test_fraction``
    of the client's rows; see ``client_app.data.partition.natural``. ``num_clients`` null means all
    clients in the data with natural, and 60 with the other partitions. If the data has no test set,
    the other partitions make one of ``test_fraction`` of all rows.
    """

    num_clients: int | None = parameter(None, POSITIVE_INT)
    priority: Any = "all"
    partition: str = parameter("natural", OneOf((*PARTITIONS, "natural")))
    test_fraction: float = parameter(0.2, TEST_FRACTION)
    min_samples: int | None = parameter(None, MIN_SAMPLES)

    def __post_init__(self) -> None:
        if self.num_clients is None and self.partition not in DATA_DIVISIONS:
            self.num_clients = 60


@dataclass
class NpzSettings(NaturalSettings):
    """``x_train``, ``y_train``, ``x_test`` and ``y_test`` of a NumPy file.

    ``fedquorum data=npz data.path=FILE``. ``partition`` auto: natural if the file has
    ``client_train``, and perhaps ``client_test``. Otherwise iid, with at most 60 clients such that
    each has at least 20 training and 5 test rows if ``num_clients`` is null.

    See ``client_app.data.sources.npz``. ``regression``: targets are numbers, not classes; they are
    scaled by ``target_scale``, their mean and standard deviation, or null for those of the training
    rows of all clients.

    ``num_classes``: null for the classes in the data, 0, 1, .. without gaps. ``partition`` device:
    the file has the data of one client, the device's; see ``client_app.data.single_client``. All
    devices then share ``input_shape`` and ``num_classes``.
    """

    name: str = "npz"
    path: str = parameter("", FilePath("an .npz file"))
    priority: Any = "heterogeneous"
    partition: str = parameter("auto", OneOf((*PARTITIONS, *DATA_DIVISIONS)))
    regression: bool = False
    target_scale: list[float] | None = field(default=None, metadata={"allowed": TARGET_SCALE})
    input_shape: list[int] | None = field(default=None, metadata={"allowed": POSITIVE_INTS})
    num_classes: int | None = parameter(None, POSITIVE_INT)


@dataclass
class ImageFolderSettings(NaturalSettings):
    """Images in folders client/class/name.png, or class/name.png to divide among clients.

    ``fedquorum experiment=custom data=image_folder data.path=FOLDER``, for the latter with
    ``data.partition=dirichlet``. See ``client_app.data.sources.image_folder``.

    ``image_size``: height and width to which images are scaled; null if all have the same size.
    ``classes``: the names of all classes; null for the names of the folders. ``partition`` device:
    the folder has the images of one client, the device's. It needs both settings.
    """

    name: str = "image_folder"
    path: str = parameter("", FilePath("a folder of images"))
    partition: str = parameter("natural", OneOf((*PARTITIONS, "natural", "device")))
    image_size: list[int] | None = field(default=None, metadata={"allowed": IMAGE_SIZE})
    classes: list[str] | None = field(default=None, metadata={"allowed": CLASSES})


@dataclass
class HfSettings(NaturalSettings):
    """A data set of Hugging Face, from the Hub or from a folder, by Flower Datasets.

    ``fedquorum experiment=custom data=hf data.path=ylecun/mnist model=cnn``. See
    ``client_app.data.sources.hf``.

    ``path``: a Hub id, a folder that ``save_to_disk`` wrote, or one that ``load_dataset`` reads.
    ``revision``: a commit, branch or tag on the Hub. ``cache_dir``: null for Hugging Face's
    (``HF_HOME``). ``download``: false to use only the cache. ``subset``: the name of a
    configuration. ``test_split``: null for ``test`` if it exists, or else for some of the
    training rows.

    ``features`` and ``target``: the columns; null if the data leaves no choice. ``client_column``:
    the column with the client of each row, for ``partition`` natural. ``image_size`` (height and
    width) and ``image_mode`` (gray L or RGB): null for those of the first image. ``length`` and
    ``vocabulary_size``: for texts, in hashed words. For tables, ``drop_columns`` to ``scaling`` are
    as in ``CsvSettings``. The other settings are as in ``NpzSettings``.
    """

    name: str = "hf"
    path: str = parameter("", Name("a folder with a data set, or a Hub id such as ylecun/mnist"))
    subset: str | None = parameter(None, Name("the name of a subset"))
    revision: str | None = parameter(None, Name("a commit, branch or tag"))
    cache_dir: str | None = parameter(None, FilePath("a folder"))
    download: bool = True
    train_split: str = parameter("train", SPLIT)
    test_split: str | None = parameter(None, SPLIT)
    features: list[str] | None = field(default=None, metadata={"allowed": COLUMN_NAMES})
    target: str | None = parameter(None, COLUMN_NAME)
    client_column: str | None = parameter(None, COLUMN_NAME)
    partition: str = parameter("iid", OneOf((*PARTITIONS, "natural", "device")))
    regression: bool = False
    target_scale: list[float] | None = field(default=None, metadata={"allowed": TARGET_SCALE})
    input_shape: list[int] | None = field(default=None, metadata={"allowed": POSITIVE_INTS})
    num_classes: int | None = parameter(None, POSITIVE_INT)
    image_size: list[int] | None = field(default=None, metadata={"allowed": IMAGE_SIZE})
    image_mode: str | None = parameter(None, OneOf(("L", "RGB")))
    length: int = parameter(80, TEXT_LENGTH)
    vocabulary_size: int = parameter(10000, HASHED_WORDS)
    drop_columns: list[str] = field(default_factory=list, metadata={"allowed": COLUMN_NAMES})
    imputation: str = parameter("median", OneOf(("median", "mean")))
    zero_as_missing: list[str] = field(default_factory=list, metadata={"allowed": COLUMN_NAMES})
    numbers: list[str] = field(default_factory=list, metadata={"allowed": COLUMN_NAMES})
    categories: list[str] = field(default_factory=list, metadata={"allowed": COLUMN_NAMES})
    missing: list[Any] = field(default_factory=list)
    invalid_cells: str = parameter("error", OneOf(("error", "missing")))
    max_categories: int = parameter(100, Interval(low=2, integer=True))
    replace: Any = None
    scaling: str = parameter("client", OneOf(("client", "agreed")))


@dataclass
class LeafSettings(NaturalSettings):
    """A data set of LEAF (FEMNIST, Shakespeare, Reddit, ..) in JSON files; each user is a client.

    ``fedquorum experiment=custom data=leaf data.path=FOLDER``. See
    ``client_app.data.sources.leaf``; ``vocabulary_size`` counts words.

    ``num_classes``: of inputs of numbers; null for the classes in the data, 0, 1, .. without gaps.
    """

    name: str = "leaf"
    path: str = parameter("", FilePath("a folder of LEAF's JSON files"))
    num_classes: int | None = parameter(None, POSITIVE_INT)
    vocabulary_size: int = parameter(10000, Interval(low=3, integer=True))


@dataclass
class TextSettings(NaturalSettings):
    """Texts in a CSV file; the target is the next token, or a column of classes.

    ``fedquorum experiment=custom data=text data.path=FILE data.client_column=NAME
    data.text_columns=[NAME] [data.target=NAME]``. See ``client_app.data.sources.text``.

    ``header``: the names of the columns if the file has no header. ``length``: in tokens.
    ``tokens``: words or characters. With a ``target``, ``vocabulary_size`` counts hashed tokens,
    and rows with the same value of ``group_column`` stay together. Without one, the next token is
    the target. ``tokenizer``: a folder with the tokenizer of a published model, instead of hashed
    words. ``expected_rows`` and ``classes``: the expected number of rows and the classes, to detect
    a wrong, a truncated or a damaged file.
    """

    name: str = "text"
    path: str = parameter("", FilePath("a .csv file"))
    header: list[str] = field(default_factory=list, metadata={"allowed": COLUMN_NAMES})
    client_column: str = parameter("", COLUMN_NAME)
    text_columns: list[str] = field(default_factory=list, metadata={"allowed": COLUMN_NAMES})
    target: str | None = parameter(None, COLUMN_NAME)
    classes: list[str] | None = field(default=None, metadata={"allowed": CLASSES})
    group_column: str | None = parameter(None, COLUMN_NAME)
    expected_rows: int | None = parameter(None, POSITIVE_INT)
    tokens: str = parameter("words", OneOf(("words", "characters")))
    tokenizer: str | None = parameter(None, FilePath("a folder with a tokenizer"))
    length: int = parameter(80, TEXT_LENGTH)
    vocabulary_size: int = parameter(10000, HASHED_WORDS)


@dataclass
class CsvSettings(DataSettings):
    """A table with a column for each row's client and one for its class.

    ``fedquorum experiment=custom data=csv data.path=FILE data.client_column=NAME
    data.target=NAME``. See ``client_app.data.tabular``.

    ``path``: a CSV or Parquet file, or a folder or pattern of several. ``client_column`` empty:
    each of several files has the rows of one client, with the name of the file. ``client_column``
    null: the file has the rows of one client, the device's; see ``client_app.data.single_client``.
    ``columns``: the input columns and classes of all clients, see
    ``client_app.data.sources.csv_table``; null for those of the file. ``regression``: the target is
    a number, not a class; ``target_scale`` as in ``NpzSettings``. ``expected_rows``: the
    expected number of rows, to detect a truncated file. Clients with fewer than ``min_samples``
    rows are left out (null for none).
    ``imputation``: the value of a missing number, the median or the mean of its column in the
    client's training split.

    ``numbers`` and ``categories``: columns whose kind the cells do not tell. ``missing``: further
    values that mean a missing cell. ``invalid_cells`` in a column of numbers: ``error``, or
    ``missing`` to take them as missing. ``max_categories``: the rarer values of a column with more
    become "other". ``replace``: other spellings of values, ``{column: {old: new}}`` or a list of
    ``[column, old, new]``.

    ``group_column``: rows with the same value stay in one split. ``order_column``: the latest rows
    of each client are for testing, not together with ``group_column``. ``test_path``: the test
    rows, in files as in ``path``.
    ``scaling``: numbers are scaled by the statistics of each client, or by ``agreed`` ones of all.
    """

    name: str = "csv"
    priority: Any = "all"
    test_fraction: float = parameter(0.2, TEST_FRACTION)
    min_samples: int | None = parameter(None, MIN_SAMPLES)
    imputation: str = parameter("median", OneOf(("median", "mean")))
    path: str = parameter("", TABLE_FILES)
    client_column: str | None = ""
    target: str = parameter("", COLUMN_NAME)
    drop_columns: list[str] = field(default_factory=list, metadata={"allowed": COLUMN_NAMES})
    zero_as_missing: list[str] = field(default_factory=list, metadata={"allowed": COLUMN_NAMES})
    columns: Any = None
    numbers: list[str] = field(default_factory=list, metadata={"allowed": COLUMN_NAMES})
    categories: list[str] = field(default_factory=list, metadata={"allowed": COLUMN_NAMES})
    missing: list[Any] = field(default_factory=list)
    invalid_cells: str = parameter("error", OneOf(("error", "missing")))
    max_categories: int = parameter(100, Interval(low=2, integer=True))
    replace: Any = None
    group_column: str | None = parameter(None, COLUMN_NAME)
    order_column: str | None = parameter(None, COLUMN_NAME)
    test_path: str | None = parameter(None, TABLE_FILES)
    scaling: str = parameter("client", OneOf(("client", "agreed")))
    regression: bool = False
    target_scale: list[float] | None = field(default=None, metadata={"allowed": TARGET_SCALE})
    expected_rows: int | None = parameter(None, POSITIVE_INT)


def list_weights(given: Any) -> list[tuple[Any, float]]:
    """Return the clients and weights of ``data.priority_weights``, a mapping or a list of pairs."""
    pairs = given.items() if isinstance(given, Mapping) else given or ()
    return [(client, weight) for client, weight in pairs]


def get_num_clients(data: DataSettings) -> int:
    """Return the number of clients from the settings, for data that does not determine it.

    Raises
    ------
    SettingsError
        If the settings do not determine it either.
    """
    if data.num_clients is None:
        raise SettingsError(
            f"data.num_clients must be {POSITIVE_INT.describe()} where the data does not tell it, "
            "got null"
        )
    return data.num_clients


def agrees_on_target(data: DataSettings) -> bool:
    """Say whether targets are scaled by statistics that all clients agree on."""
    has_numbers = getattr(data, "regression", False)
    return bool(has_numbers) and getattr(data, "target_scale", None) is None


def agrees_on_numbers(data: DataSettings) -> bool:
    """Say whether columns of numbers are scaled by statistics that all clients agree on."""
    return isinstance(data, CsvSettings | HfSettings) and data.scaling == "agreed"


def needs_agreement(data: DataSettings) -> bool:
    """Say whether a run needs statistics of all clients' numbers."""
    return agrees_on_target(data) or agrees_on_numbers(data)


OnDeviceSettings = CsvSettings | NpzSettings | HfSettings | ImageFolderSettings
"""The settings of data that may be on the clients' devices only."""


def is_on_device(data: DataSettings) -> TypeGuard[OnDeviceSettings]:
    """Say whether each device has only its client's data, and no machine has all data."""
    if isinstance(data, CsvSettings):
        return data.client_column is None
    kinds = NpzSettings | HfSettings | ImageFolderSettings
    return isinstance(data, kinds) and data.partition == "device"
