"""Give Python access to a sweep: its runs, a row for each, and their charts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd
from fedquorum.errors import RunError
from fedquorum.records.reader import Run, read_runs
from fedquorum.report.seed_groups import (
    find_distinguishing_keys,
    format_setting_value,
    select_result_settings,
)

from server_app.api.display import format_directory, format_facts_table, format_image
from server_app.api.result import RunResult
from server_app.runs.job import ERROR_FILE

if TYPE_CHECKING:
    from fedquorum.report.figure_files import NotebookFigure

METRIC_PREFIXES = ("round", "global_loss", "test.", "validation.")


@dataclass(frozen=True, repr=False, eq=False)
class SweepResult:
    """The runs of a sweep, or of any folder with runs.

    Iterating yields the runs in the order of ``frame``.

    Parameters
    ----------
    directory : Path
        The folder, absolute.
    runs : tuple of RunResult
        The readable runs below the folder, in the order of the jobs.
    failed : mapping
        The reason why a job has no completed run, by the name of its folder.
    """

    directory: Path
    runs: tuple[RunResult, ...]
    failed: Mapping[str, str]

    @classmethod
    def read(cls, directory: Path, *, trust: bool = False) -> Self:
        """Return the runs in or below a folder; see ``fedquorum_app.load_sweep``."""
        root = directory.absolute()
        failed = dict(_read_failures(root))
        runs: Sequence[Run] = ()
        if any(root.rglob("manifest.json")) or not failed:
            runs, damaged = read_runs([root])
            failed |= {f"unreadable {i + 1}": text for i, text in enumerate(damaged)}
        ordered = sorted(runs, key=lambda run: _get_sort_key(run.directory))
        failed |= {
            _get_run_name(run, root): run.error or run.status
            for run in ordered
            if run.status != "completed"
        }
        return cls(root, tuple(RunResult(run, trust) for run in ordered), failed)

    def __iter__(self) -> Iterator[RunResult]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, number: int) -> RunResult:
        return self.runs[number]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per run: the settings that vary, the status, and the last metrics.

        The index is the run's folder. ``round`` is the last complete round.
        """
        names = [_get_run_name(run.records, self.directory) for run in self.runs]
        settings = [_get_settings(run.records) for run in self.runs]
        keys = find_distinguishing_keys(
            [{key: format_setting_value(value) for key, value in one.items()} for one in settings]
        )
        rows = [
            {
                **{key.removesuffix(".name"): one.get(key) for key in keys},
                "status": run.status,
                **_get_last_metrics(run.rounds),
            }
            for run, one in zip(self.runs, settings, strict=True)
        ]
        return pd.DataFrame(rows, index=pd.Index(names, name="run", dtype="object"))

    @cached_property
    def charts(self) -> tuple[str, ...]:
        """The names of the charts that ``plot`` draws."""
        from server_app.api.charts import build_charts

        return tuple(build_charts([run.records for run in self.runs]))

    def plot(self, chart: str = "") -> "NotebookFigure":
        """Return one of the report's charts for all runs; see ``RunResult.plot``.

        Runs that differ only in the seed share one curve with a band.
        """
        from server_app.api.charts import draw_named_chart

        return draw_named_chart([run.records for run in self.runs], chart)

    @property
    def _facts(self) -> Mapping[str, object]:
        completed = sum(run.status == "completed" for run in self.runs)
        facts: dict[str, object] = {
            "completed": f"{completed} runs",
            "folder": format_directory(self.directory),
        }
        return facts | {f"failed: {name}": reason for name, reason in self.failed.items()}

    def __repr__(self) -> str:
        return f"<sweep, {', '.join(f'{name}: {fact}' for name, fact in self._facts.items())}>"

    def _repr_html_(self) -> str:
        has_rounds = any(run.records.rounds for run in self.runs)
        numbers = {"float_format": "{:.4g}".format, "na_rep": ""}
        table = str(self.frame.to_html(max_rows=20, max_cols=12, **numbers))
        image = format_image(self.plot()) if has_rounds else ""
        return format_facts_table(self._facts) + table + image


class SweepError(RunError):
    """Some jobs of a sweep did not complete.

    Parameters
    ----------
    sweep : SweepResult
        All jobs, including the completed ones.
    """

    def __init__(self, sweep: SweepResult) -> None:
        super().__init__(sweep)
        self.sweep = sweep

    def __str__(self) -> str:
        failed = self.sweep.failed
        jobs = "; ".join(f"job {name}: {reason}" for name, reason in failed.items())
        return f"jobs of the sweep in {self.sweep.directory} that failed ({len(failed)}): {jobs}"


def _read_failures(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the failed jobs with their reasons, in the order of the jobs."""
    for path in sorted(root.glob(f"*/{ERROR_FILE}"), key=lambda path: _get_sort_key(path.parent)):
        yield path.parent.name, path.read_text(errors="replace").partition("\n")[0]


def _get_sort_key(directory: Path) -> tuple[tuple[int, str], ...]:
    return tuple((int(p) if p.isdecimal() else -1, p) for p in directory.parts)


def _get_run_name(run: Run, root: Path) -> str:
    return run.directory.relative_to(root.resolve()).as_posix()


def _get_settings(run: Run) -> Mapping[str, Any]:
    return {"experiment": run.experiment, **select_result_settings(run), "seed": run.seed}


def _get_last_metrics(rounds: pd.DataFrame) -> Mapping[str, Any]:
    """Return the last value of each metric, and the last round."""
    metrics = {name: rounds[name].dropna() for name in rounds if name.startswith(METRIC_PREFIXES)}
    return {name: column.iloc[-1] for name, column in metrics.items() if len(column)}
