"""Columns that are no inputs, and those that only look like it."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from client_app.data.coding.cells import parse_column
from client_app.data.sources.column_types import (
    DATES,
    NAMES,
    ROW_NUMBERS,
    TEXTS,
    TIMES,
    find_exclusion_reason,
)

N = 40
RNG = np.random.default_rng(0)
DAYS = [date.fromordinal(730_000 + int(n)) for n in RNG.integers(900, size=N)]
SENTENCES = [f"the customer called {n} times about a parcel" for n in range(N)]
LOST = pa.array([*DAYS[:3], None, *DAYS[4:]])


def find_kind(values: Sequence[Any] | pa.Array, name: str = "amount") -> str | None:
    return find_exclusion_reason(name, parse_column(pa.chunked_array([pa.array(values)])))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (DAYS, DATES),
        (LOST, DATES),
        ([datetime(2026, 1, day, 12, tzinfo=UTC) for day in range(1, 20)], DATES),
        ([time(hour) for hour in range(20)], TIMES),
        ([f"{day:%d.%m.%Y}" for day in DAYS], DATES),
        ([f"{day:%m/%d/%Y}" for day in DAYS], DATES),
        ([f"{day:%Y-%m-%d} 10:15" for day in DAYS], DATES),
        ([int(f"{day:%Y%m%d}") for day in DAYS], DATES),
        (["31.12.2025", "01.02.2026"], DATES),
        (SENTENCES, TEXTS),
        ([f"T-{n:05d}" for n in range(N)], NAMES),
        (RNG.permutation(N) + 1000, NAMES),
    ],
)
def test_excluded_columns(values: Sequence[Any], why: str) -> None:
    """Days in any usual form, texts, and what numbers or names the rows."""
    assert find_kind(values) == why


@pytest.mark.parametrize(
    "values",
    [
        RNG.normal(size=N),
        RNG.choice(10**6, size=N, replace=False),  # amounts that happen to differ
        np.arange(N) // 2,
        np.arange(5),  # too few rows to tell
        [2020 + n % 5 for n in range(N)],
        [f"{n % 7}0-{n % 7}9" for n in range(N)],
        ["may", "june", "may", "july"] * 10,
        [f"strongly disagree with the statement number {n % 5}" for n in range(N)],
        ["31.12.2025", "soon"] * 10,
        [f"T-{n}" for n in range(10)],
        [True, False] * 20,
        [Decimal("1.5")] * N,
        pa.nulls(N),
        pa.array([None] * N, pa.string()),
    ],
)
def test_included_columns(values: Sequence[Any]) -> None:
    """Amounts, years, categories and answers in whole sentences are inputs."""
    assert find_kind(values) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("id", NAMES),
        ("customer_number", NAMES),
        ("patientId", NAMES),
        ("Customer No", NAMES),
        ("paid", None),
        ("casino", None),
        ("numbers", None),
    ],
)
def test_whole_numbers_with_gaps_go_by_their_name(name: str, why: str | None) -> None:
    """They may be amounts: only a column that is called a number of rows is one."""
    values = RNG.choice(10**6, size=N, replace=False)
    assert find_kind(values, name) == why
    assert find_kind([*values[1:], values[1]], name) is None


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("visit", [*range(1, N + 1), *range(1, N + 1)], ROW_NUMBERS),
        ("visit", [*range(1, N + 1), *range(2, 2 * N + 1, 2)], None),
        ("patient_id", [*range(1, N + 1), *range(2, 2 * N + 1, 2)], ROW_NUMBERS),
        ("patient_id", [*range(1, N + 1), *range(2, 2 * N, 2), 2], None),
    ],
)
def test_each_client_may_number_its_own_rows(name: str, values: list[int], why: str | None) -> None:
    """Then the numbers return, in the rows of another client."""
    mixed = RNG.permutation(2 * N)
    column = parse_column(pa.chunked_array([pa.array(np.array(values)[mixed])]))
    assert find_exclusion_reason(name, column, np.repeat([0, 1], N)[mixed]) == why
    assert find_exclusion_reason(name, column) is None


def test_few_rows_of_a_client_number_nothing() -> None:
    """Counts of 0, 1 or 2 may leave no gap by chance."""
    column = parse_column(pa.chunked_array([pa.array([0, 1] * N)]))
    assert find_exclusion_reason("children", column, np.repeat(np.arange(N), 2)) is None
