"""Results of a chapter: tables of numbers, stored as JSON and written as Markdown."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedquorum.report.seed_groups import compute_mean_and_sd

NUM_DIGITS = 6  # significant digits of a stored number
SECONDS_PER_HOUR = 3600
Text = str | int


@dataclass(frozen=True)
class SeedStatistic:
    """A mean over seeds, or a single number if ``sd`` is None.

    Parameters
    ----------
    mean : float
    sd : float, optional
        Sample standard deviation.
    above, seeds : int, optional
        For a difference: the number of seeds in which it is above 0, and of all seeds.
    """

    mean: float
    sd: float | None = None
    above: int | None = None
    seeds: int | None = None

    def format(self, digits: int) -> str:
        """Return ``mean ± sd (above/seeds)``, without the parts that are None."""
        text = f"{self.mean:.{digits}f}"
        if self.sd is not None:
            text += f" ± {self.sd:.{digits}f}"
        return text if self.above is None else f"{text} ({self.above}/{self.seeds})"


Cell = SeedStatistic | Text | None


@dataclass(frozen=True)
class ResultTable:
    """A table with one cell for each row and heading; None marks a missing measurement.

    Measured numbers are printed with ``digits`` decimals.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    digits: int = 2

    def to_markdown(self) -> str:
        """Return the table in GitHub's Markdown, without a final newline."""
        lines = [self.headings, ("---",) * len(self.headings), *map(self._format_row, self.rows)]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def _format_row(self, row: Sequence[Cell]) -> tuple[str, ...]:
        return tuple(
            cell.format(self.digits)
            if isinstance(cell, SeedStatistic)
            else "-"
            if cell is None
            else str(cell)
            for cell in row
        )


@dataclass(frozen=True)
class ChapterResult:
    """The results of one chapter.

    Parameters
    ----------
    date : str
        The day of the last run, UTC: ``2026-11-21``.
    commit : str
        The project's commit at the time of the runs, shortened.
    seeds, rounds : str
        In words; empty if the chapter has none.
    seconds : float, optional
        The total time of all runs, one core each; None if it was not recorded.
    note : str
        One more sentence about these numbers; may be empty.
    tables : mapping
        Tables by name.
    """

    date: str
    commit: str
    seeds: str
    rounds: str
    seconds: float | None
    note: str
    tables: Mapping[str, ResultTable]

    @property
    def num_seeds(self) -> int:
        """The number of seeds of the runs."""
        return len(re.findall(r"\d+", self.seeds))

    def describe_origin(self) -> str:
        """Return the origin of the numbers as one line."""
        parts = [f"Measured on {self.date} with {self.commit}"]
        seeds = collapse_ranges(self.seeds, ", ", "{} to {}".format)
        parts += [text for text in (seeds, self.rounds) if text]
        if self.seconds is not None:
            parts.append(f"{_format_duration(self.seconds)} of computing")
        line = f"*{'; '.join(parts)}.*"
        return f"{line[:-1]} {self.note}*" if self.note else line


def collapse_ranges(text: str, separator: str, span: Callable[[int, int], str]) -> str:
    """Replace the first list of four or more consecutive numbers by ``span(first, last)``."""
    match = re.search(rf"\d+(?:{separator}\d+){{3,}}", text)
    if match is None:
        return text
    numbers = [int(number) for number in match[0].split(separator)]
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        return text
    return text[: match.start()] + span(numbers[0], numbers[-1]) + text[match.end() :]


def summarize_seeds(values: Sequence[float]) -> SeedStatistic | None:
    """Return mean and sd of one value for each seed, None if all values are NaN or missing."""
    statistic = compute_mean_and_sd(values)
    if statistic is None:
        return None
    return SeedStatistic(
        _truncate_digits(statistic.mean),
        None if statistic.sd is None else _truncate_digits(statistic.sd),
    )


def summarize_differences(values: Sequence[float]) -> SeedStatistic | None:
    """Return mean and sd of differences, and how many of them are above 0."""
    statistic = summarize_seeds(values)
    if statistic is None:
        return None
    finite = [gap for gap in values if not math.isnan(gap)]
    return SeedStatistic(statistic.mean, statistic.sd, sum(gap > 0 for gap in finite), len(finite))


def write_chapter_result(result: ChapterResult, path: Path) -> None:
    """Write a result as JSON, one row for each line, so that a diff is readable."""
    header = {
        "date": result.date,
        "commit": result.commit,
        "seeds": result.seeds,
        "rounds": result.rounds,
        "seconds": None if result.seconds is None else round(result.seconds, 1),
        "note": result.note,
    }
    lines = [f" {_encode_json(key)}: {_encode_json(value)}," for key, value in header.items()]
    tables = ",\n".join(_format_table(name, table) for name, table in result.tables.items())
    text = "\n".join(["{", *lines, ' "tables": {', tables, " }", "}"]) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def read_chapter_result(path: Path) -> ChapterResult:
    """Read a result.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is not JSON.
    """
    fields = json.loads(path.read_text(encoding="utf-8"))
    tables = {
        name: ResultTable(
            tuple(table["headings"]),
            tuple(tuple(map(_parse_cell, row)) for row in table["rows"]),
            table["digits"],
        )
        for name, table in fields.pop("tables").items()
    }
    return ChapterResult(**fields, tables=tables)


def _format_table(name: str, table: ResultTable) -> str:
    rows = ",\n".join(
        f"    {_encode_json([_to_json_cell(cell) for cell in row])}" for row in table.rows
    )
    return (
        f'  {_encode_json(name)}: {{\n   "headings": {_encode_json(table.headings)},\n'
        f'   "digits": {table.digits},\n   "rows": [\n{rows}\n   ]\n  }}'
    )


def _to_json_cell(cell: Cell) -> Any:
    """Return a cell for JSON; a statistic is [mean, sd, above, seeds] without trailing None."""
    if not isinstance(cell, SeedStatistic):
        return cell
    numbers = [cell.mean, cell.sd, cell.above, cell.seeds]
    while numbers[-1] is None:
        numbers.pop()
    return numbers


def _parse_cell(value: Any) -> Cell:
    return SeedStatistic(*value) if isinstance(value, list) else value


def _encode_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _truncate_digits(value: float) -> float:
    return float(f"{value:.{NUM_DIGITS}g}")


def _format_duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min"  # noqa: PLR2004
