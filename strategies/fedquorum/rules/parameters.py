"""Declare the allowed ranges of parameters, and check values with one form of message.

The configuration schemas and the constructors of the strategies use the same ranges, so a wrong
value gets the same message on the command line and in Python::

    >>> EPSILON.check("epsilon", -1.0)
    Traceback (most recent call last):
    ...
    fedquorum.errors.ParameterError: epsilon must be a number >= 0 (inf allowed), got -1.0
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ParameterError
from .metrics import METRICS

__all__ = [
    "FRACTION",
    "FRACTION_BELOW_ONE",
    "NON_NEGATIVE",
    "NON_NEGATIVE_INT",
    "POSITIVE",
    "POSITIVE_INT",
    "PROBABILITY",
    "REAL",
    "Choices",
    "Flag",
    "FloatRange",
    "Interval",
    "ListOf",
    "OneOf",
    "Range",
    "RelativeRange",
]


class Range(ABC):
    """A range of allowed values that describes itself and checks values."""

    @abstractmethod
    def describe(self) -> str:
        """Return the allowed values in words, to follow "must be"."""

    @abstractmethod
    def contains(self, value: object) -> bool:
        """Say whether ``value`` is allowed."""

    def check(self, name: str, value: object) -> None:
        """Raise ParameterError with the name, range and value unless ``value`` is allowed."""
        if not self.contains(value):
            raise ParameterError(name, self.describe(), value)


@dataclass(frozen=True)
class Interval(Range):
    """A real number (``integer=True``: a whole one) between two bounds.

    NaN is never allowed; infinity only with ``infinite=True``.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    integer: bool = False
    infinite: bool = False

    def describe(self) -> str:
        """Return the bounds in words."""
        kind = "a whole number" if self.integer else "a number"
        low = f"{'>' if self.open_low else '>='} {self.low:g}" if math.isfinite(self.low) else ""
        high = (
            f"{'<' if self.open_high else '<='} {self.high:g}" if math.isfinite(self.high) else ""
        )
        bounds = " and ".join(part for part in (low, high) if part)
        return f"{kind} {bounds}".rstrip() + (" (inf allowed)" if self.infinite else "")

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is a number inside the bounds."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if self.integer and not isinstance(value, int):
            return False
        if math.isnan(value) or (math.isinf(value) and not self.infinite):
            return False
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)


@dataclass(frozen=True)
class OneOf(Range):
    """One of a few words or numbers."""

    choices: tuple[Any, ...]

    def describe(self) -> str:
        """Return the choice in words."""
        return "one of " + ", ".join(map(str, self.choices))

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is one of the words."""
        return value in self.choices


@dataclass(frozen=True)
class ClientIds(Range):
    """A list of different clients: ids below ``num_clients``, if that is known, and names."""

    num_clients: int | None = None

    def describe(self) -> str:
        """Return the choice in words."""
        last = "" if self.num_clients is None else f" from 0 to {self.num_clients - 1}"
        return f"a list of at least one client, each once, an id{last} or a name in quotes"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a list."""
        clients = _convert_to_list(value)
        return all(map(self._is_client, clients)) and 0 < len(clients) == len(set(clients))

    def _is_client(self, value: object) -> bool:
        if isinstance(value, str):
            return bool(value.strip())
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return value >= 0 and (self.num_clients is None or value < self.num_clients)


@dataclass(frozen=True)
class ListOf(Range):
    """A list of at least one value, each in the range ``item``."""

    item: Range

    def describe(self) -> str:
        """Return the range of the values in words."""
        return f"a list of at least one value, each {self.item.describe()}"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a list."""
        values = _convert_to_list(value)
        return bool(values) and all(self.item.contains(one) for one in values)


def _convert_to_list(value: object) -> list[Any]:
    """Return the items of a list or another iterable; none for text or a single value."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return []
    return list(value)


@dataclass(frozen=True)
class Cutoff(Range):
    """A whole number of rounds, or infinity."""

    def describe(self) -> str:
        """Return the range in words."""
        return "a whole number >= 1, or inf"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a number; 50.0 is one."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return value >= 1 and (math.isinf(value) or value == int(value))


@dataclass(frozen=True)
class EvenPeriod(Range):
    """A whole number of rounds that has two equal halves."""

    def describe(self) -> str:
        """Return the range in words."""
        return "an even whole number >= 2"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a number."""
        return PERIOD.contains(value) and isinstance(value, int) and value % 2 == 0


@dataclass(frozen=True)
class Flag(Range):
    """True or false."""

    def describe(self) -> str:
        """Return the choice in words."""
        return "true or false"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is one of them."""
        return isinstance(value, bool)


@dataclass(frozen=True)
class DirectoryPath(Range):
    """The path of a directory; the reader of the path checks whether it is usable."""

    def describe(self) -> str:
        """Return the allowed values in words."""
        return "the path of a folder"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is a path that is not empty."""
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True)
class LossRequirement(Range):
    """rho_k, the loss that a client wants the model to be below."""

    def describe(self) -> str:
        """Return the choice in words."""
        return (
            "a number, a list of one for each client, a mapping of client ids to numbers, or the "
            "directory of a run with evaluation.alone_epochs"
        )

    def contains(self, value: object) -> bool:
        """Say whether ``value`` has one of these forms; infinite numbers and NaN are allowed."""
        if isinstance(value, str):
            return bool(value.strip())
        numbers = value.values() if isinstance(value, Mapping) else _convert_to_list(value)
        return _is_number(value) or (len(numbers) > 0 and all(map(_is_number, numbers)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


POSITIVE_INT = Interval(low=1, integer=True)
POSITIVE_INTS = ListOf(POSITIVE_INT)
NON_NEGATIVE_INT = Interval(low=0, integer=True)
FRACTION = Interval(low=0, high=1)
FRACTION_BELOW_ONE = Interval(low=0, high=1, open_high=True)
POSITIVE = Interval(low=0, open_low=True)
NON_NEGATIVE = Interval(low=0)
EPSILON = Interval(low=0, infinite=True)
CUTOFF = Cutoff()
OMEGA_CAP = Interval(low=1, infinite=True)
PRIORITY_WEIGHT = Interval(low=0, high=1, open_low=True)
PROBABILITY = Interval(low=0, high=1, open_low=True)
PERIOD = Interval(low=2, integer=True)
EVEN_PERIOD = EvenPeriod()
SINE_DEPTH = Interval(low=0, high=0.5)
CYCLE_START = OneOf(("stationary", "inactive"))
LR_SCHEDULE = OneOf(("constant", "step", "exponential", "inverse_sqrt", "theorem"))
AUGMENTATION = OneOf(("none", "crop", "crop_flip", "cifar100"))
MODEL_INIT = OneOf(("default", "kaiming", "xavier", "zeros"))
EVALUATED_CLIENTS = OneOf(("all", "priority"))
FAIRNESS_METRIC = OneOf(tuple(METRICS))
CRITERION = OneOf(("loss", "accuracy"))
OBJECTIVE = OneOf(("priority", "sampled"))
REAL = Interval()
REQUIREMENT = LossRequirement()
CDF = OneOf(("weibull", "exponential", "frechet", "normal", "gumbel", "logistic"))
BASELINE_RESPONSE = OneOf(("sample", "running"))
NEWTON_VARIANT = OneOf(("paper", "authors_code"))
SERVER_LR_SCHEDULE = OneOf(("constant", "inverse_client"))
LOSS_SOURCES = OneOf(("evaluated", "reported"))
PRIOR = OneOf(("data", "uniform"))
EPSILON_SCHEDULE = OneOf(("constant", "step", "linear", "cosine", "exponential", "sqrt"))


@dataclass(frozen=True)
class FloatRange:
    """Numbers from ``low`` to ``high``, on a logarithmic scale unless ``log`` is false."""

    low: float
    high: float
    log: bool = True


@dataclass(frozen=True)
class RelativeRange:
    """Numbers from x / ``factor`` to x times ``factor``, logarithmic, where x is the setting."""

    factor: float


@dataclass(frozen=True)
class Choices:
    """A few values."""

    choices: tuple[Any, ...]


SearchSpace = FloatRange | RelativeRange | Choices
