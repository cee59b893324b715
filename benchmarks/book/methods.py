"""Group logged runs that differ only in the seed, and name the groups by their settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedquorum.report.seed_groups import (
    abbreviate_setting,
    find_distinguishing_keys,
    get_value_sort_key,
)

from benchmarks.book.runs_log import LoggedRun

_SHARED_KEYS = ("experiment", "seed", "strategy")


@dataclass(frozen=True)
class MethodRuns:
    """Runs with the same overrides except the seed.

    Parameters
    ----------
    name : str
        For example ``fedalign (epsilon_schedule=step)``.
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
        """Return the overrides whose keys have one of the prefixes."""
        settings = self.runs[0].settings
        return {key: settings[key] for key in settings if key.startswith(prefixes)}


def group_methods(runs: Sequence[LoggedRun]) -> tuple[MethodRuns, ...]:
    """Group runs into methods, ordered by experiment, strategy and distinguishing settings."""
    experiments = sorted({run.experiment for run in runs})
    methods = []
    for experiment in experiments:
        prefix = f"{experiment.partition('/')[2]}, " if len(experiments) > 1 else ""
        methods += _group_experiment([run for run in runs if run.experiment == experiment], prefix)
    return tuple(methods)


def _group_experiment(runs: Sequence[LoggedRun], prefix: str) -> list[MethodRuns]:
    """Return the methods of one experiment, with ``prefix`` before their names."""
    groups: dict[tuple[str, ...], list[LoggedRun]] = {}
    for run in runs:
        key = tuple(override for override in run.words if not override.startswith("seed="))
        groups.setdefault(key, []).append(run)
    all_settings = [
        {key: value for key, value in group[0].settings.items() if key not in _SHARED_KEYS}
        for group in groups.values()
    ]
    distinguishing = find_distinguishing_keys(all_settings)
    entries = []
    for settings, group in zip(all_settings, groups.values(), strict=True):
        variant = {key: settings[key] for key in distinguishing if key in settings}
        options = ", ".join(abbreviate_setting(f"{key}={value}") for key, value in variant.items())
        strategy = group[0].strategy
        name = prefix + (f"{strategy} ({options})" if options else strategy)
        order = tuple((key, get_value_sort_key(value)) for key, value in variant.items())
        method = MethodRuns(name, tuple(sorted(group, key=lambda run: run.seed)))
        entries.append((strategy, order, method))
    return [method for *_, method in sorted(entries, key=lambda entry: entry[:2])]


def compute_paired_differences(
    one: MethodRuns, other: MethodRuns, value: Callable[[LoggedRun], float]
) -> list[float]:
    """Return the differences one - other for each seed that both have, in ascending order."""
    by_seed = {run.seed: run for run in other.runs}
    return [value(run) - value(by_seed[run.seed]) for run in one.runs if run.seed in by_seed]
