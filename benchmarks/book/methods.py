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
    found: dict[tuple[str, ...], list[KeptRun]] = {}
    for run in runs:
        key = tuple(word for word in run.words if not word.startswith("seed="))
        found.setdefault(key, []).append(run)
    settings = [
        {key: of for key, of in same[0].settings.items() if key not in _NOT_OF_THE_METHOD}
        for same in found.values()
    ]
    telling = telling_keys(settings)
    several = len({run.experiment for run in runs}) > 1
    ordered = []
    for words, same in zip(settings, found.values(), strict=True):
        variant = {key: words[key] for key in telling if key in words}
        shown = ", ".join(short_setting(f"{key}={of}") for key, of in variant.items())
        name = f"{same[0].strategy} ({shown})" if shown else same[0].strategy
        if several:
            name = f"{same[0].experiment.partition('/')[2]}, {name}"
        order = tuple((key, ascending(of)) for key, of in variant.items())
        method = Method(name, tuple(sorted(same, key=lambda run: run.seed)))
        ordered.append((method.experiment, method.strategy, order, method))
    return tuple(entry[-1] for entry in sorted(ordered, key=lambda entry: entry[:-1]))


def paired(one: Method, other: Method, value: Callable[[KeptRun], float]) -> list[float]:
    """Return a value's differences, one minus other, for each seed that both have, ascending."""
    theirs = {run.seed: run for run in other.runs}
    return [value(run) - value(theirs[run.seed]) for run in one.runs if run.seed in theirs]
