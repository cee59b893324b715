"""Declare where tuning looks for a parameter's value, beside its default and its range."""

from dataclasses import dataclass
from typing import Any

__all__ = ["Among", "Around", "Between"]


@dataclass(frozen=True)
class Between:
    """Numbers from ``low`` to ``high``, on a logarithmic scale unless ``log`` is false."""

    low: float
    high: float
    log: bool = True


@dataclass(frozen=True)
class Around:
    """Numbers from x / ``factor`` to x times ``factor``, logarithmic, where x is the setting."""

    factor: float


@dataclass(frozen=True)
class Among:
    """A few values."""

    choices: tuple[Any, ...]


Search = Between | Around | Among
