"""Kept runs that differ in the seed alone, named by what tells them from the chapter's others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.book.kept import KeptRun
from server_app.report.groups import ascending, short_setting, telling_keys

_NOT_OF_THE_METHOD = ("experiment", "seed", "strategy")


@dataclass(frozen=True)
class Method:
    """Runs with the same words but for the seed.

    Parameters
    ----------
    name : str
        Such as ``fedalign (epsilon_schedule=step)``.
    runs : tuple of KeptRun
        Ascending by seed.
    """

    name: str
    runs: tuple[KeptRun, ...]

    @property
    def strategy(self) -> str:
        """The strategy of its runs."""
        return self.runs[0].strategy

    @property
    def experiment(self) -> str:
        """The preset of its runs."""
        return self.runs[0].experiment

    def values(self, value: Callable[[KeptRun], float]) -> list[float]:
        """Return a value of each run."""
        return [value(run) for run in self.runs]

    def with_words(self, *prefixes: str) -> Mapping[str, str]:
        """Return its words whose keys begin so."""
        settings = self.runs[0].settings
        return {key: settings[key] for key in settings if key.startswith(prefixes)}


def methods(runs: Sequence[KeptRun]) -> tuple[Method, ...]:
    """Return runs as methods, ascending by experiment, strategy and what else tells them apart."""
    experiments = sorted({run.experiment for run in runs})
    found = []
    for experiment in experiments:
        before = f"{experiment.partition('/')[2]}, " if len(experiments) > 1 else ""
        found += _methods_of([run for run in runs if run.experiment == experiment], before)
    return tuple(found)


def _methods_of(runs: Sequence[KeptRun], before: str) -> list[Method]:
    """Return the methods of one experiment, with these words before their names."""
    same: dict[tuple[str, ...], list[KeptRun]] = {}
    for run in runs:
        same.setdefault(tuple(w for w in run.words if not w.startswith("seed=")), []).append(run)
    settings = [
        {key: of for key, of in group[0].settings.items() if key not in _NOT_OF_THE_METHOD}
        for group in same.values()
    ]
    telling = telling_keys(settings)
    found = []
    for words, group in zip(settings, same.values(), strict=True):
        variant = {key: words[key] for key in telling if key in words}
        shown = ", ".join(short_setting(f"{key}={of}") for key, of in variant.items())
        strategy = group[0].strategy
        name = before + (f"{strategy} ({shown})" if shown else strategy)
        order = tuple((key, ascending(of)) for key, of in variant.items())
        method = Method(name, tuple(sorted(group, key=lambda run: run.seed)))
        found.append((strategy, order, method))
    return [method for *_, method in sorted(found, key=lambda entry: entry[:2])]


def paired(one: Method, other: Method, value: Callable[[KeptRun], float]) -> list[float]:
    """Return a value's differences, one minus other, for each seed that both have, ascending."""
    theirs = {run.seed: run for run in other.runs}
    return [value(run) - value(theirs[run.seed]) for run in one.runs if run.seed in theirs]
