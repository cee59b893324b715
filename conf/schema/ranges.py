"""Define ranges of settings outside the rules: names, paths, lists."""

from dataclasses import dataclass

from fedquorum.rules.parameters import (
    NON_NEGATIVE,
    NON_NEGATIVE_INT,
    POSITIVE,
    POSITIVE_INT,
    POSITIVE_INTS,
    Interval,
    ListOf,
    Range,
)


@dataclass(frozen=True)
class ImportPath(Range):
    """A dotted name, or a file and a name; the importer checks that it exists."""

    def describe(self) -> str:
        """Return the range in words."""
        return "an import path such as package.module.Class or folder/file.py:Class"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` has this form."""
        if not isinstance(value, str):
            return False
        file, colon, name = value.rpartition(":")
        if colon:
            return file.endswith(".py") and name.isidentifier()
        names = value.split(".")
        return len(names) > 1 and all(name.isidentifier() for name in names)


@dataclass(frozen=True)
class Arguments(Range):
    """Values by name."""

    def describe(self) -> str:
        """Return the range in words."""
        return "null, or a mapping such as {hidden: 200}"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a mapping."""
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)


ARGUMENTS = Arguments()


@dataclass(frozen=True)
class FilePath(Range):
    """A path, e.g. of "an .npz file"; its reader checks that the file exists."""

    kind: str

    def describe(self) -> str:
        """Return the range in words."""
        return f"the path of {self.kind}"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is a nonempty text."""
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True)
class Name(Range):
    """A name, e.g. "the name of a column"; its reader checks that it exists."""

    kind: str

    def describe(self) -> str:
        """Return the range in words."""
        return self.kind

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is a nonempty text."""
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True)
class ColumnNames(Range):
    """A list of different names of columns, which may be empty."""

    def describe(self) -> str:
        """Return the range in words."""
        return "a list of names of columns, each once"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a list."""
        names = value if isinstance(value, list) else [""]
        return all(map(COLUMN_NAME.contains, names)) and len(set(names)) == len(names)


COLUMN_NAME = Name("the name of a column")
COLUMN_NAMES = ColumnNames()


@dataclass(frozen=True)
class ImageSize(Range):
    """Height and width."""

    def describe(self) -> str:
        """Return the range in words."""
        return "a list of two whole numbers >= 1, height and width"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a list."""
        return (
            isinstance(value, list)
            and len(value) == len(("h", "w"))
            and POSITIVE_INTS.contains(value)
        )


IMAGE_SIZE = ImageSize()


@dataclass(frozen=True)
class TargetScale(Range):
    """Mean and standard deviation of targets."""

    def describe(self) -> str:
        """Return the range in words."""
        return "null, or a mean and a standard deviation above 0 such as [400000, 150000]"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a list."""
        if not isinstance(value, list) or len(value) != len(("mean", "deviation")):
            return False
        return Interval().contains(value[0]) and POSITIVE.contains(value[1])


TARGET_SCALE = TargetScale()
CLASSES = ListOf(Name("the name of a class"))


@dataclass(frozen=True)
class ClassWeights(Range):
    """``balanced``, or a weight for each class."""

    def describe(self) -> str:
        """Return the range in words."""
        return "null, balanced, or a list of numbers >= 0, one above 0"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is in the range."""
        if isinstance(value, str):
            return value == "balanced"
        return isinstance(value, list) and ListOf(NON_NEGATIVE).contains(value) and any(value)


CLASS_WEIGHTS = ClassWeights()


@dataclass(frozen=True)
class EpochCandidates(Range):
    """A number of epochs, 0 for no training, or several to choose from."""

    def describe(self) -> str:
        """Return the range in words."""
        return "a whole number >= 0, or a list of such numbers, each once"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is in the range."""
        if not isinstance(value, list):
            return NON_NEGATIVE_INT.contains(value)
        numbers = ListOf(NON_NEGATIVE_INT)
        return len(value) > 0 and numbers.contains(value) and len(set(value)) == len(value)


EPOCH_CANDIDATES = EpochCandidates()


AUTO = "auto"


@dataclass(frozen=True)
class CheckpointInterval(Range):
    """``auto``, or a number of rounds."""

    def describe(self) -> str:
        """Return the range in words."""
        return "auto, null, or a whole number >= 1"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is in the range."""
        return value == AUTO or POSITIVE_INT.contains(value)


@dataclass(frozen=True)
class ClusterAddress(Range):
    """``local``, or the address of a Ray cluster; joining it shows whether it exists."""

    def describe(self) -> str:
        """Return the range in words."""
        return "the HOST:PORT of a Ray cluster, or local"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` has this form."""
        if not isinstance(value, str) or "/" in value:
            return False
        host, _, port = value.rpartition(":")
        return value == "local" or (bool(host) and port.isdecimal())


@dataclass(frozen=True)
class ConnectionName(Range):
    """The name of a SuperLink connection; Flower checks that it exists."""

    def describe(self) -> str:
        """Return the range in words."""
        return "the name of a SuperLink in Flower's config.toml"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` can be a name, and is no option of a command."""
        return isinstance(value, str) and bool(value.strip()) and not value.startswith("-")
