"""Scale numbers to mean 0 and standard deviation 1."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

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

    def apply(self, numbers: Numbers) -> Numbers:
        """Return numbers (n, p), filled and scaled; 0 in a column without statistics."""
        scaled = (_fill_missing(numbers, self.fill) - self.mean) / self.deviation
        return np.where(np.isnan(self.mean), 0.0, scaled)


def _fill_missing(numbers: Numbers, fill: Numbers) -> Numbers:
    return np.where(np.isnan(numbers), fill, numbers) if np.isnan(numbers).any() else numbers
