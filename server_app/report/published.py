"""The papers' numbers, for reference lines beside what was measured: ``published.yaml``, read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PUBLISHED_FILE = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class PublishedResult:
    """What a paper reports of one method in one experiment.

    Parameters
    ----------
    experiment : str
        The preset.
    settings : mapping
        Settings by dotted key and the values they must have.
    values : mapping
        Numbers by the names of ``compute_client_metrics``, as fractions of 1.
    source : str
        Paper and table, and what is different there.
    """

    experiment: str
    settings: Mapping[str, Any]
    values: Mapping[str, float]
    source: str

    def is_for_run(self, experiment: str, settings: Mapping[str, Any]) -> bool:
        """Return whether a run with these settings is what the number is of."""
        return experiment == self.experiment and all(
            settings.get(key) == value for key, value in self.settings.items()
        )


def find_published_results(
    experiment: str, settings: Mapping[str, Any]
) -> tuple[PublishedResult, ...]:
    """Return what is published of a run with these settings."""
    return tuple(one for one in load_published_results() if one.is_for_run(experiment, settings))


@cache
def load_published_results() -> tuple[PublishedResult, ...]:
    """Return all that is published, in the order of the file."""
    tables = yaml.safe_load(PUBLISHED_FILE.read_text(encoding="utf-8"))["tables"]
    return tuple(number for table in tables for number in _read_table(table))


def _read_table(table: Mapping[str, Any]) -> Iterator[PublishedResult]:
    for experiment, entry in table["experiments"].items():
        source = f"{table['source']} {entry.get('note', '')}".strip()
        for method in entry["methods"]:
            where = {**entry.get("settings", {}), **method}
            numbers = [percent / 100 for percent in where.pop("percent")]
            for more, values in _read_cells(table, numbers):
                yield PublishedResult(experiment, where | more, values, source)


def _read_cells(
    table: Mapping[str, Any], numbers: Sequence[float]
) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Yield the settings that a row's cells are of, and the measures there."""
    columns = zip(table["columns"], numbers, strict=True)
    if "columns_are" not in table:
        yield {}, dict(columns)
        return
    for value, number in columns:
        yield {table["columns_are"]: value}, {table["measure"]: number}
