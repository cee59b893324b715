"""What was measured, as numbers: tables that are kept as JSON and written as Markdown."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_app.report.seed_groups import compute_mean_and_sd

NUM_DIGITS = 6  # digits kept of a measured number
Text = str | int


@dataclass(frozen=True)
class SeedStatistic:
    """A mean over seeds, or a single number where ``sd`` is None.

    Parameters
    ----------
    mean, sd : float
        Mean and sample standard deviation.
    above, seeds : int, optional
        Of a difference: in how many of the seeds it is above 0.
    """

    mean: float
    sd: float | None = None
    above: int | None = None
    seeds: int | None = None

    def format(self, digits: int) -> str:
        """Return ``mean ± sd (above/seeds above 0)``, as far as there is."""
        words = f"{self.mean:.{digits}f}"
        if self.sd is not None:
            words += f" ± {self.sd:.{digits}f}"
        return words if self.above is None else f"{words} ({self.above}/{self.seeds})"


Cell = SeedStatistic | Text | None


@dataclass(frozen=True)
class ResultTable:
    """Rows of as many cells as there are headings; None is what was not measured.

    ``digits`` are the decimals with which measured numbers are told.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    digits: int = 2

    def to_markdown(self) -> str:
        """Return the table in GitHub's Markdown, without an empty line at the end."""
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
    """All that is kept of the runs of one chapter.

    Parameters
    ----------
    date : str
        The day, UTC, of the last run: ``2026-11-21``.
    commit : str
        The project's commit with which it ran, shortened.
    seeds, rounds : str
        In words, empty where there are none.
    seconds : float, optional
        Of all runs together, one core each; None where it was not kept.
    note : str
        What else is to be known about these numbers, empty or one sentence.
    tables : mapping
        By the names that the chapter's text uses.
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
        """How many seeds the runs have."""
        return len(re.findall(r"\d+", self.seeds))

    def describe_origin(self) -> str:
        """Return where the numbers come from, as a line."""
        parts = [f"Measured on {self.date} with {self.commit}"]
        seeds = collapse_ranges(self.seeds, ", ", "{} to {}".format)
        parts += [words for words in (seeds, self.rounds) if words]
        if self.seconds is not None:
            parts.append(f"{_format_duration(self.seconds)} of computing")
        line = f"*{'; '.join(parts)}.*"
        return f"{line[:-1]} {self.note}*" if self.note else line


def collapse_ranges(text: str, separator: str, span: Callable[[int, int], str]) -> str:
    """Replace a text's one list of four or more consecutive numbers by what its ends give."""
    found = re.search(rf"\d+(?:{separator}\d+){{3,}}", text)
    if found is None:
        return text
    listed = [int(number) for number in found[0].split(separator)]
    if listed != list(range(listed[0], listed[-1] + 1)):
        return text
    return text[: found.start()] + span(listed[0], listed[-1]) + text[found.end() :]


def summarize_seeds(values: Sequence[float]) -> SeedStatistic | None:
    """Return mean and standard deviation of one value a seed, None without any (or NaN only)."""
    found = compute_mean_and_sd(values)
    if found is None:
        return None
    return SeedStatistic(
        _truncate_digits(found.mean), None if found.sd is None else _truncate_digits(found.sd)
    )


def summarize_differences(values: Sequence[float]) -> SeedStatistic | None:
    """Return the same of differences, and how many of them are above 0."""
    found = summarize_seeds(values)
    if found is None:
        return None
    known = [gap for gap in values if not math.isnan(gap)]
    return SeedStatistic(found.mean, found.sd, sum(gap > 0 for gap in known), len(known))


def write_chapter_result(result: ChapterResult, path: Path) -> None:
    """Write a measurement as JSON, a row a line, so that a change can be read."""
    heads = {
        "date": result.date,
        "commit": result.commit,
        "seeds": result.seeds,
        "rounds": result.rounds,
        "seconds": None if result.seconds is None else round(result.seconds, 1),
        "note": result.note,
    }
    lines = [f" {_encode_json(key)}: {_encode_json(value)}," for key, value in heads.items()]
    tables = ",\n".join(_format_table(name, table) for name, table in result.tables.items())
    text = "\n".join(["{", *lines, ' "tables": {', tables, " }", "}"]) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def read_chapter_result(path: Path) -> ChapterResult:
    """Return a measurement; a missing or damaged file raises as ``json`` and ``Path`` do."""
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
    """Return a cell for JSON: of a measured number [mean, sd, above, seeds], as far as there is."""
    if not isinstance(cell, SeedStatistic):
        return cell
    found = [cell.mean, cell.sd, cell.above, cell.seeds]
    while found[-1] is None:
        found.pop()
    return found


def _parse_cell(value: Any) -> Cell:
    return SeedStatistic(*value) if isinstance(value, list) else value


def _encode_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _truncate_digits(value: float) -> float:
    return float(f"{value:.{NUM_DIGITS}g}")


def _format_duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min"  # noqa: PLR2004
