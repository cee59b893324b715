"""Kept runs that differ in the seed alone, named by what tells them from the chapter's others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.book.runs_log import LoggedRun
from server_app.report.seed_groups import (
    abbreviate_setting,
    find_distinguishing_keys,
    get_value_sort_key,
)

_SHARED_KEYS = ("experiment", "seed", "strategy")


@dataclass(frozen=True)
class MethodRuns:
    """Runs with the same words but for the seed.

    Parameters
    ----------
    name : str
        Such as ``fedalign (epsilon_schedule=step)``.
    runs : tuple of LoggedRun
        Ascending by seed.
    """

    name: str
    runs: tuple[LoggedRun, ...]

    @property
    def strategy(self) -> str:
        """The strategy of its runs."""
        return self.runs[0].strategy

    @property
    def experiment(self) -> str:
        """The preset of its runs."""
        return self.runs[0].experiment

    def compute_values(self, value: Callable[[LoggedRun], float]) -> list[float]:
        """Return a value of each run."""
        return [value(run) for run in self.runs]

    def select_overrides(self, *prefixes: str) -> Mapping[str, str]:
        """Return its words whose keys begin so."""
        settings = self.runs[0].settings
        return {key: settings[key] for key in settings if key.startswith(prefixes)}


def group_methods(runs: Sequence[LoggedRun]) -> tuple[MethodRuns, ...]:
    """Return runs as methods, ascending by experiment, strategy and what else tells them apart."""
    experiments = sorted({run.experiment for run in runs})
    found = []
    for experiment in experiments:
        before = f"{experiment.partition('/')[2]}, " if len(experiments) > 1 else ""
        found += _group_experiment([run for run in runs if run.experiment == experiment], before)
    return tuple(found)


def _group_experiment(runs: Sequence[LoggedRun], prefix: str) -> list[MethodRuns]:
    """Return the methods of one experiment, with these words before their names."""
    same: dict[tuple[str, ...], list[LoggedRun]] = {}
    for run in runs:
        same.setdefault(tuple(w for w in run.words if not w.startswith("seed=")), []).append(run)
    settings = [
        {key: of for key, of in group[0].settings.items() if key not in _SHARED_KEYS}
        for group in same.values()
    ]
    telling = find_distinguishing_keys(settings)
    found = []
    for words, group in zip(settings, same.values(), strict=True):
        variant = {key: words[key] for key in telling if key in words}
        shown = ", ".join(abbreviate_setting(f"{key}={of}") for key, of in variant.items())
        strategy = group[0].strategy
        name = prefix + (f"{strategy} ({shown})" if shown else strategy)
        order = tuple((key, get_value_sort_key(of)) for key, of in variant.items())
        method = MethodRuns(name, tuple(sorted(group, key=lambda run: run.seed)))
        found.append((strategy, order, method))
    return [method for *_, method in sorted(found, key=lambda entry: entry[:2])]


def compute_paired_differences(
    one: MethodRuns, other: MethodRuns, value: Callable[[LoggedRun], float]
) -> list[float]:
    """Return a value's differences, one minus other, for each seed that both have, ascending."""
    theirs = {run.seed: run for run in other.runs}
    return [value(run) - value(theirs[run.seed]) for run in one.runs if run.seed in theirs]
