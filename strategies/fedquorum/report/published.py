"""Load the papers' published results from ``published.yaml``, for reference lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PUBLISHED_FILE = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class PublishedResult:
    """The result that a paper reports for one method in one experiment.

    Parameters
    ----------
    experiment : str
        The preset.
    settings : mapping
        Settings by dotted key and the values they must have.
    values : mapping
        Numbers by the names of ``compute_client_metrics``, as fractions of 1.
    source : str
        Paper and table, and known differences in the setup.
    """

    experiment: str
    settings: Mapping[str, Any]
    values: Mapping[str, float]
    source: str

    def is_for_run(self, experiment: str, settings: Mapping[str, Any]) -> bool:
        """Return whether the published number applies to a run with these settings."""
        return experiment == self.experiment and all(
            settings.get(key) == value for key, value in self.settings.items()
        )


def find_published_results(
    experiment: str, settings: Mapping[str, Any]
) -> tuple[PublishedResult, ...]:
    """Return the published results that apply to a run with these settings."""
    return tuple(one for one in load_published_results() if one.is_for_run(experiment, settings))


@cache
def load_published_results() -> tuple[PublishedResult, ...]:
    """Load all published results, in the order of the file."""
    tables = yaml.safe_load(PUBLISHED_FILE.read_text(encoding="utf-8"))["tables"]
    return tuple(number for table in tables for number in _read_table(table))


def _read_table(table: Mapping[str, Any]) -> Iterator[PublishedResult]:
    for experiment, entry in table["experiments"].items():
        source = f"{table['source']} {entry.get('note', '')}".strip()
        for method in entry["methods"]:
            where = {**entry.get("settings", {}), **method}
            numbers = [percent / 100 for percent in where.pop("percent")]
            for cell_settings, values in _read_cells(table, numbers):
                yield PublishedResult(experiment, where | cell_settings, values, source)


def _read_cells(
    table: Mapping[str, Any], numbers: Sequence[float]
) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Yield each cell's settings and values; a row without ``columns_are`` is one cell."""
    columns = zip(table["columns"], numbers, strict=True)
    if "columns_are" not in table:
        yield {}, dict(columns)
        return
    for value, number in columns:
        yield {table["columns_are"]: value}, {table["measure"]: number}
