"""Define a study's result: the verdict, each method's scores, and the caveats."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from fedquorum.io import atomic_write
from fedquorum.rules.equality import nan_equals_nan
from fedquorum.rules.metrics import Metric, get_metric

from client_app.data.seed_draws import SeedDraws
from server_app.study.looks import Look
from server_app.study.paired_statistics import UNDECIDED, Decision, PairedDifference

STUDY_FILE = "study.json"
PAGE_FILE = "study.html"

ScoreCurve = tuple[tuple[int, float], ...]
"""Pairs of a round and the score after it."""


@dataclass(frozen=True)
class Trial:
    """One choice of values, run with the first seed of the tuning.

    Parameters
    ----------
    words : tuple of str
        The values as Hydra overrides; empty for the first trial, which keeps the settings' values.
    status : str
        ``completed``, ``pruned`` after fewer rounds than the others, or ``failed``.
    score : float or None
        The score on validation splits after the trial's last round; None if it failed.
    curve : ScoreCurve
        The score on validation splits after every evaluated round.
    again : float or None
        For finalists, the score with the second seed of the tuning.
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
    folder : str
        The run's folder, relative to the study's.
    command : str
        The command that repeats the run.
    score : float
        The score on test splits after the last round, in the metric's unit: lower may be better.
    measures : mapping
        Other numbers of the last round by name: ``all``, ``priority``, ``non_priority``,
        ``held_out``, ``finetuned`` and ``alone`` (means of the metric over these clients, if there
        are any), and over all clients ``worst10``, ``best10``, ``gini``, ``std`` and ``jain``. Of
        the score's clients, ``evaluated`` is the number, ``left_out`` that of clients without the
        metric, ``r2`` the mean R2 where numbers are predicted, ``average_precision`` that beside
        AUROC, and ``ece`` the expected calibration error of classes.
    clients : mapping
        The metric on each client's test split, by client id.
    curve : ScoreCurve
        The score on test splits by round.
    megabytes, duration_seconds : float
        The size of all messages both ways, and the duration of all rounds.
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
    """The result of one method.

    Parameters
    ----------
    name : str
        The name in the verdict.
    summary : str
        A description in one line.
    words : tuple of str
        The Hydra overrides that define the method.
    tuned : tuple of str
        The values with the best validation score, as Hydra overrides.
    trials : tuple of Trial
    runs : tuple of SeedRun
        The runs with the tuned values, one per seed.
    left_out : str
        The reason for excluding the method; empty if it is compared.
    rounds_to_baseline : float or None
        The number of rounds until the score reaches the baseline's last one, mean over the seeds
        where it does; None if these are less than half.
    worse_off, better_off : float
        The fractions of clients whose metric is worse, or better, than with the baseline by more
        than ``min_effect`` within a seed, mean over seeds. Of the baseline, those with another
        start and the data of its first seed: they are worse, or better, by chance. NaN if unknown.
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
    better_off: float = math.nan


@dataclass(frozen=True)
class RivalComparison:
    """The comparison of the methods with personal models.

    Parameters
    ----------
    methods : tuple of MethodResult
        The rivals ``alone`` and ``fine-tuned``.
    decision : Decision or None
        Their paired differences from the baseline; None with too few seeds.
    beats_all : tuple of str
        The rivals that are better than each method.
    left_out : mapping of str to str
        The rivals that could not be compared, with the reason.
    """

    methods: tuple[MethodResult, ...] = ()
    decision: Decision | None = None
    beats_all: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BudgetUse:
    """The use of a study's budget.

    Parameters
    ----------
    budget : str
        The budget as given.
    unit : str
        ``seconds`` or ``rounds``.
    amount, spent : float
        The budget and the amount spent, in ``unit``.
    to_decide : float or None
        For an undecided study, the estimated total amount that would decide it; None if no amount
        would, or with another verdict.
    """

    budget: str
    unit: str
    amount: float
    spent: float
    to_decide: float | None = None


@dataclass(frozen=True)
class StudyResult:
    """The result of a study.

    Parameters
    ----------
    goal : str
        ``priority``, ``participation``, ``fairness`` or ``average``.
    data : str
        The data set's name.
    metric : str
        The clients' metric, one of ``fedquorum.rules.metrics.METRICS``.
    metric_key : str
        The number that methods are compared by: its dotted key in ``rounds.jsonl``, such as
        ``test.all.worst10``.
    decision : Decision or None
        The verdict and the paired differences from the baseline over seeds, in the metric's unit,
        positive if the method is better; None with too few seeds for a verdict.
    guessing : tuple of float
        The score of a model that has learned nothing (``server_app.study.guessing``) in each seed;
        empty if it is not known, as on devices.
    seed_draws : SeedDraws
        What a seed draws anew.
    row_weights : int
        The number of sets of weights by which the intervals allow for the draw of test rows that
        all seeds share (``server_app.study.row_weights``); 0 where they do not.
    looks : tuple of Look
        The looks at the scores so far; empty with too few seeds for a verdict.
    not_distinguished : tuple of str
        The methods that are statistically indistinguishable from the best one.
    min_effect, confidence : float
        The largest difference that counts as none, in the metric's unit, and the probability with
        which all intervals of the last look hold.
    baseline : str
        The method that the others are compared with.
    methods : tuple of MethodResult
        All methods, the baseline first.
    caveats : tuple of str
        Sentences on weaknesses of the data, the tuning or the comparison.
    spent : BudgetUse
    tuning_seeds : tuple of int
    command : str
        The command that repeats the study.
    data_summary : mapping
        How the first compared run interpreted its data, as in its manifest; empty without runs.
    rivals : RivalComparison or None
        The comparison with personal models; None without it.
    is_metric_chosen : bool
        Whether the study chose the metric, because of two classes one has most rows.
    """

    goal: str
    data: str
    metric: str
    metric_key: str
    decision: Decision | None
    guessing: tuple[float, ...]
    seed_draws: SeedDraws
    row_weights: int
    looks: tuple[Look, ...]
    not_distinguished: tuple[str, ...]
    min_effect: float
    confidence: float
    baseline: str
    methods: tuple[MethodResult, ...]
    caveats: tuple[str, ...]
    spent: BudgetUse
    tuning_seeds: tuple[int, ...]
    command: str
    data_summary: Mapping[str, Any] = field(default_factory=dict)
    rivals: RivalComparison | None = None
    is_metric_chosen: bool = False

    @property
    def holds_for_new_rows(self) -> bool:
        """Whether the intervals hold for new rows of these clients, not for these rows alone."""
        return self.row_weights > 0 or self.seed_draws.correction > 0

    @property
    def metric_info(self) -> Metric:
        """The metric, with its unit and its range."""
        return get_metric(self.metric)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``study.json``; undefined numbers are null."""
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
        """The difference of the verdict's method, else the largest; None with too few seeds."""
        if self.decision is None:
            return None
        named = (one for one in self.decision.differences if one.method == self.verdict)
        return next(named, self.decision.best)

    @property
    def verdict(self) -> str:
        """The best method, ``no difference``, ``undecided`` or ``no usable model``."""
        return UNDECIDED if self.decision is None else self.decision.verdict

    def write(self, directory: Path) -> Path:
        """Write ``study.json`` and return its path."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
        with atomic_write(directory / STUDY_FILE) as part:
            part.write_text(f"{text}\n", encoding="utf-8")
        return directory / STUDY_FILE


_REPLACED_FIELDS = ("decision", "methods", "baseline")
"""Fields that ``to_dict`` replaces."""


def _to_json(value: Any) -> Any:
    """Convert a value to JSON types, with infinite and NaN numbers as None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _to_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _to_json(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
