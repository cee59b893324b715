"""Declare the ranges in which tuning searches for parameters' values."""

from dataclasses import dataclass
from typing import Any

__all__ = ["Choices", "FloatRange", "RelativeRange"]


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
