"""The papers' numbers, for reference lines beside what was measured: ``published.yaml``, read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class Published:
    """What a paper reports of one method in one experiment.

    Parameters
    ----------
    experiment : str
        The preset.
    where : mapping
        Settings by dotted key and the values they must have.
    values : mapping
        Numbers by the names of ``client_measures``, as fractions of 1.
    source : str
        Paper and table, and what is different there.
    """

    experiment: str
    where: Mapping[str, Any]
    values: Mapping[str, float]
    source: str

    def is_of(self, experiment: str, settings: Mapping[str, Any]) -> bool:
        """Return whether a run with these settings is what the number is of."""
        return experiment == self.experiment and all(
            settings.get(key) == value for key, value in self.where.items()
        )


def published_values(experiment: str, settings: Mapping[str, Any]) -> tuple[Published, ...]:
    """Return what is published of a run with these settings."""
    return tuple(one for one in published_numbers() if one.is_of(experiment, settings))


@cache
def published_numbers() -> tuple[Published, ...]:
    """Return all that is published, in the order of the file."""
    tables = yaml.safe_load(FILE.read_text(encoding="utf-8"))["tables"]
    return tuple(number for table in tables for number in _of_table(table))


def _of_table(table: Mapping[str, Any]) -> Iterator[Published]:
    for experiment, entry in table["experiments"].items():
        source = f"{table['source']} {entry.get('note', '')}".strip()
        for method in entry["methods"]:
            where = {**entry.get("settings", {}), **method}
            numbers = [percent / 100 for percent in where.pop("percent")]
            for more, values in _cells(table, numbers):
                yield Published(experiment, where | more, values, source)


def _cells(
    table: Mapping[str, Any], numbers: Sequence[float]
) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Yield the settings that a row's cells are of, and the measures there."""
    columns = zip(table["columns"], numbers, strict=True)
    if "columns_are" not in table:
        yield {}, dict(columns)
        return
    for value, number in columns:
        yield {table["columns_are"]: value}, {table["measure"]: number}
