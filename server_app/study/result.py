"""What a study says: the verdict, what each method came to, and what to keep in mind."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from fedquorum.equality import nan_equals_nan
from fedquorum.metrics import Metric, get_metric
from fedquorum.records.files import atomic_write

from server_app.study.paired_statistics import UNDECIDED, Decision, PairedDifference

STUDY_FILE = "study.json"
PAGE_FILE = "study.html"

ScoreCurve = tuple[tuple[int, float], ...]
"""Rounds, and the score after each."""


@dataclass(frozen=True)
class Trial:
    """One choice of values, tried with the seed of the tuning.

    Parameters
    ----------
    words : tuple of str
        The values as Hydra overrides; none of the first trial, which has the settings' own.
    status : str
        ``completed``, ``pruned`` after fewer rounds than the others, or ``failed``.
    score : float or None
        The score on validation parts after the last round that was run; None if it failed.
    curve : Curve
        The score on validation parts after every round in which it was measured.
    again : float or None
        Of the finalists, the score with the second seed of the tuning.
    """

    words: tuple[str, ...]
    status: str
    score: float | None
    curve: ScoreCurve
    again: float | None = None


@nan_equals_nan
@dataclass(frozen=True)
class SeedRun:
    """The tuned method with one of the paired seeds.

    Parameters
    ----------
    seed : int
        The seed.
    folder : str
        The run's folder, in the study's.
    command : str
        What repeats it.
    score : float
        The score on test parts after the last round, as measured: lower may be better.
    measures : mapping
        What else was measured there, by name: ``all``, ``priority``, ``non_priority``, ``held_out``
        (means of the metric over such clients, as far as there are any), and over all clients
        ``worst10``, ``best10``, ``gini``, ``std`` and ``jain``.
    clients : mapping
        The metric on each client's test part, by client id.
    curve : Curve
        The score on test parts by round.
    megabytes, duration_seconds : float
        Of all messages both ways, and of all rounds.
    """

    seed: int
    folder: str
    command: str
    score: float
    measures: Mapping[str, float]
    clients: Mapping[int, float]
    curve: ScoreCurve
    megabytes: float
    duration_seconds: float


@nan_equals_nan
@dataclass(frozen=True)
class MethodResult:
    """What one method came to.

    Parameters
    ----------
    name : str
        Its name, as in the verdict.
    summary : str
        What it does, in one line.
    words : tuple of str
        What makes it, as Hydra overrides.
    tuned : tuple of str
        The values that did best on the validation parts.
    trials : tuple of Trial
        All that were tried.
    runs : tuple of SeedRun
        With the tuned values, one a seed.
    left_out : str
        Why it is not compared; empty if it is.
    rounds_to_baseline : float or None
        After how many rounds its score reaches the baseline's last one, mean over the seeds where
        it does; None where these are less than half.
    worse_off : float
        The share of the clients whose metric, mean over the seeds, is worse than with the
        baseline; NaN of the baseline.
    """

    name: str
    summary: str
    words: tuple[str, ...]
    tuned: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()
    runs: tuple[SeedRun, ...] = ()
    left_out: str = ""
    rounds_to_baseline: float | None = None
    worse_off: float = math.nan


@dataclass(frozen=True)
class BudgetUse:
    """What the study has taken, in the unit of its budget.

    Parameters
    ----------
    budget : str
        The budget, as it was given.
    unit : str
        ``seconds`` or ``rounds``.
    amount, spent : float
        What it amounts to, and how much of it has been spent.
    to_decide : float or None
        Of an undecided study, about what would decide it in all; None where nothing would, or the
        verdict is another.
    """

    budget: str
    unit: str
    amount: float
    spent: float
    to_decide: float | None = None


@dataclass(frozen=True)
class StudyResult:
    """A study's answer.

    Parameters
    ----------
    goal : str
        ``priority``, ``participation``, ``fairness`` or ``average``.
    data : str
        The data set's name.
    metric : str
        What a client measures of a model, one of ``fedquorum.metrics.METRICS``.
    metric_key : str
        What the methods are compared by: a number of ``rounds.jsonl`` by dotted key, such as
        ``test.all.worst10``.
    decision : Decision or None
        The verdict and the paired differences from the baseline over seeds, in the metric's unit,
        positive where the method is better; None with too few seeds to say anything.
    over_clients : tuple of Comparison
        Of each method, the mean difference over clients of their metric, mean over the seeds, with
        an interval over clients. That is another question: what a client of these divisions of the
        data gets, not what another division would give.
    not_told_apart : tuple of str
        The methods that cannot be told apart from the best one.
    min_effect, confidence : float
        The largest difference that makes none, in the metric's unit, and the probability with which
        all intervals hold.
    baseline : str
        The plain method that the others are compared with.
    methods : tuple of MethodResult
        All methods, the baseline first.
    caveats : tuple of str
        What in the data or in the tuning makes the answer weaker, a sentence each.
    spent : Spent
        The budget.
    tuning_seeds : tuple of int
        The seeds of the tuning.
    command : str
        What repeats the study.
    """

    goal: str
    data: str
    metric: str
    metric_key: str
    decision: Decision | None
    over_clients: tuple[PairedDifference, ...]
    not_told_apart: tuple[str, ...]
    min_effect: float
    confidence: float
    baseline: str
    methods: tuple[MethodResult, ...]
    caveats: tuple[str, ...]
    spent: BudgetUse
    tuning_seeds: tuple[int, ...]
    command: str

    @property
    def metric_info(self) -> Metric:
        """The metric, with its unit and its range."""
        return get_metric(self.metric)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``study.json``; what is not defined is null."""
        decided, best = self.decision, self.best
        return {
            "verdict": self.verdict,
            "best": None if best is None else best.method,
            "baseline": self.baseline,
            "difference": None if best is None else best.difference,
            "interval": None if best is None else [best.low, best.high],
            "seeds": 0 if decided is None else decided.seeds,
            "methods": [one.name for one in self.methods],
            **_to_json(
                {key: value for key, value in vars(self).items() if key not in _REPLACED_FIELDS}
            ),
            "comparisons": _to_json(() if decided is None else decided.differences),
            "seeds_to_decide": None if decided is None else decided.seeds_to_decide,
            "results": _to_json(self.methods),
        }

    @property
    def best(self) -> PairedDifference | None:
        """The comparison of the method that the verdict names, else of the one that is most ahead.

        None with too few seeds.
        """
        if self.decision is None:
            return None
        named = (one for one in self.decision.differences if one.method == self.verdict)
        return next(named, self.decision.best)

    @property
    def verdict(self) -> str:
        """The best method, ``no difference`` or ``undecided``."""
        return UNDECIDED if self.decision is None else self.decision.verdict

    def write(self, directory: Path) -> Path:
        """Write ``study.json`` and return its path."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
        with atomic_write(directory / STUDY_FILE) as part:
            part.write_text(f"{text}\n", encoding="utf-8")
        return directory / STUDY_FILE


_REPLACED_FIELDS = ("decision", "methods", "baseline")
"""What ``as_dict`` says in its own words."""


def _to_json(value: Any) -> Any:
    """Return a value as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _to_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _to_json(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
