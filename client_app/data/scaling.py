"""Scale numbers to mean 0 and standard deviation 1."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from client_app.data.moments import Moments, Numbers

FILL_FUNCTIONS: Mapping[str, Callable[..., Numbers]] = {"median": np.nanmedian, "mean": np.nanmean}
"""The statistic of ``data.imputation``, which replaces missing numbers."""


@dataclass(frozen=True, eq=False)
class NumberScale:
    """The statistics by which p columns of numbers are scaled.

    Attributes
    ----------
    fill : array of float64
        (p,), the value of a missing number.
    mean, deviation : array of float64
        (p,), the mean and the standard deviation, over n, after missing numbers have been filled;
        the deviation of a constant column is 1. NaN for a column without a number.
    """

    fill: Numbers
    mean: Numbers
    deviation: Numbers

    @classmethod
    def fit(cls, numbers: Numbers, imputation: str) -> Self:
        """Return the statistics of numbers (n, p), with NaN for missing ones.

        Parameters
        ----------
        numbers : array of float64
        imputation : {"median", "mean"}
            ``data.imputation``, the statistic of a column that replaces its missing numbers.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice|Mean of empty slice", RuntimeWarning)
            fill = FILL_FUNCTIONS[imputation](numbers, axis=0)
        numbers = _fill_missing(numbers, fill)
        # Compare the extremes: the mean of equal numbers like 0.1 is rounded, so std is not exactly
        # 0.
        constant = numbers.min(axis=0) == numbers.max(axis=0)
        mean = np.where(constant, numbers[0], numbers.mean(axis=0))
        return cls(fill, mean, np.where(constant, 1.0, numbers.std(axis=0)))

    @classmethod
    def from_moments(cls, moments: Moments) -> Self:
        """Return the statistics that several clients agree on; their mean fills missing numbers."""
        mean, deviation = moments.compute_means(), moments.compute_deviations()
        return cls(mean, mean, np.where(deviation == 0, 1.0, deviation))

    def apply(self, numbers: Numbers) -> Numbers:
        """Return numbers (n, p), filled and scaled; 0 in a column without statistics."""
        scaled = (_fill_missing(numbers, self.fill) - self.mean) / self.deviation
        return np.where(np.isnan(self.mean), 0.0, scaled)


@dataclass(frozen=True, eq=False)
class AgreedScales:
    """The scales that all clients share, fixed at the start of a run.

    Attributes
    ----------
    target : NumberScale, optional
        Of one column, the target; None if targets are no numbers.
    numbers : NumberScale, optional
        Of the columns of numbers among the inputs, in their order; None if each client has its own.
    names : tuple of str
        The names of these columns.
    """

    target: NumberScale | None = None
    numbers: NumberScale | None = None
    names: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Say whether there is a scale."""
        return self.target is not None or self.numbers is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the scales for JSON: mean and deviation, those of inputs by column."""
        target = None if self.target is None else _to_dicts(self.target)[0]
        numbers = None if self.numbers is None else _to_dicts(self.numbers)
        return {
            "target": target,
            "numbers": None if numbers is None else dict(zip(self.names, numbers, strict=True)),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Return the scales that ``to_dict`` returned.

        Raises
        ------
        ValueError
            If they have another form.
        """
        try:
            target, numbers = given["target"], given["numbers"]
            return cls(
                None if target is None else _from_dicts([target]),
                None if numbers is None else _from_dicts([*numbers.values()]),
                () if numbers is None else tuple(map(str, numbers)),
            )
        except (AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"the agreed scales cannot be read: {error!r}") from None


def _to_dicts(scale: NumberScale) -> list[dict[str, float | None]]:
    """Return mean and deviation of each column, None without a number."""
    return [
        {"mean": None, "deviation": None}
        if math.isnan(mean)
        else {"mean": mean, "deviation": deviation}
        for mean, deviation in zip(scale.mean.tolist(), scale.deviation.tolist(), strict=True)
    ]


def _from_dicts(columns: Sequence[Mapping[str, float | None]]) -> NumberScale:
    mean, deviation = (
        np.array([math.nan if one[key] is None else one[key] for one in columns], dtype=np.float64)
        for key in ("mean", "deviation")
    )
    known = ~np.isnan(mean)
    if not (np.isfinite(mean[known]).all() and (deviation[known] > 0).all()):
        raise ValueError("the agreed scales must have finite means and deviations above 0")
    return NumberScale(mean, mean, deviation)


def _fill_missing(numbers: Numbers, fill: Numbers) -> Numbers:
    return np.where(np.isnan(numbers), fill, numbers) if np.isnan(numbers).any() else numbers
