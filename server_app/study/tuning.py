"""Tune the parameters of one method with Optuna on validation splits.

Trials come in generations; all values of a generation are chosen before any of its runs. At each
rung a trial continues only if it is in the better half of all trials that reached the rung
(successive halving, Jamieson and Talwalkar 2016, asynchronous as in Li et al. 2020). The number of
parallel jobs affects nothing, so an interrupted tuning chooses the same values again and finds
their runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_high
from typing import TYPE_CHECKING, Any

from fedquorum.rng import make_generator
from fedquorum.rules.parameters import Choices

from conf.overrides import to_overrides
from server_app.study.methods import SearchDimension
from server_app.study.result import ScoreCurve, Trial

if TYPE_CHECKING:
    import optuna

GENERATION_SIZE = 4
"""The trials of a generation, which may run in parallel."""

NUM_STARTUP_TRIALS = 2 * GENERATION_SIZE + 1
"""The random trials before Optuna's sampler learns from scores."""

NUM_FINALISTS = 3
"""The trials to repeat with a second seed: the best score of one seed is partly luck."""

RUNG_FRACTIONS = (0.25, 0.5, 1.0)
"""The fractions of the rounds after which the worse half is pruned."""


def compute_rungs(rounds: int, every: int) -> tuple[int, ...]:
    """Return the rounds after which trials are compared: evaluated ones, and the last.

    Parameters
    ----------
    rounds : int
        T.
    every : int
        The number of rounds between evaluations.
    """
    evaluated = (-(-round(rounds * fraction) // every) * every for fraction in RUNG_FRACTIONS)
    return tuple(sorted({min(max(after, 1), rounds) for after in evaluated} | {rounds}))


def compute_trial_cost(rungs: Sequence[int]) -> float:
    """Return the expected cost of a trial in runs, given that each rung prunes half; in tenths.

    With rungs after a quarter, half and all of the rounds, all trials run 1/4 of the rounds, half
    of them another 1/4, and a quarter the last 1/2. With a single rung, if only the last round is
    evaluated, all are whole runs.

    Parameters
    ----------
    rungs : sequence of int
        The rounds after which trials are compared.
    """
    steps = [after - earlier for earlier, after in zip((0, *rungs), rungs, strict=False)]
    return round(sum(step * 0.5**rung for rung, step in enumerate(steps)) / rungs[-1], 1)


def find_score_at(curve: ScoreCurve, after: int) -> float | None:
    """Return the last score up to a round, or None."""
    return next((score for number, score in reversed(curve) if number <= after), None)


def _has_reached(curve: ScoreCurve, after: int) -> bool:
    return bool(curve) and curve[-1][0] >= after


@dataclass
class _Attempt:
    """A running trial."""

    trial: "optuna.Trial"
    overrides: tuple[str, ...]
    curve: ScoreCurve = ()
    status: str = "completed"


@dataclass
class MethodTuning:
    """The trials of one method.

    Parameters
    ----------
    space : mapping
        The search dimension of each setting.
    initial_values : mapping
        The settings' current values, which are the first trial.
    higher_is_better : bool
        Whether a higher score is better.
    seed : int
        The seed of the choices.
    """

    space: Mapping[str, SearchDimension]
    initial_values: Mapping[str, Any]
    higher_is_better: bool
    seed: int
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            direction="maximize" if self.higher_is_better else "minimize"
        )
        self._study.enqueue_trial(dict(self.initial_values))
        self._distributions = {key: _to_distribution(item) for key, item in self.space.items()}
        self._generation: list[_Attempt] = []

    def start_generation(self, count: int) -> tuple[tuple[str, ...], ...]:
        """Start a generation and return its choices as Hydra overrides.

        The very first choice has none: it keeps the settings' values.
        """
        is_first = not self.trials
        created = [self._create_trial(len(self.trials) + index) for index in range(count)]
        self._generation = [
            _Attempt(
                trial, () if is_first and index == 0 else to_overrides(_round_values(trial.params))
            )
            for index, trial in enumerate(created)
        ]
        return tuple(attempt.overrides for attempt in self._generation)

    def _create_trial(self, number: int) -> "optuna.Trial":
        """Create a trial whose random values follow from its number.

        Learning rates are sampled before the rules' parameters, so all methods start with the same
        ones: no method wins through a learning rate that the others did not try.
        """
        import optuna

        seed = int(make_generator(self.seed, "study", number, 0).integers(2**31))
        self._study.sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=NUM_STARTUP_TRIALS
        )
        return self._study.ask(self._distributions)

    def list_active(self) -> tuple[tuple[str, ...], ...]:
        """List the generation's choices that are neither pruned nor failed."""
        return tuple(a.overrides for a in self._generation if a.status == "completed")

    def report_scores(
        self, after: int, curves: Mapping[tuple[str, ...], ScoreCurve | None], *, last: bool
    ) -> None:
        """Report the active trials' scores up to a rung, and prune the worse half of them.

        The better half also loses trials below the median of all trials that reached this rung.
        Optuna's own pruner evaluates each trial as it reports, against those that reported before
        it, so it may prune the second best of five.

        Parameters
        ----------
        after : int
            The rung's round.
        curves : mapping
            The scores by choice; None for a failed trial.
        last : bool
            Whether it is the last rung, which prunes nothing.
        """
        live: list[tuple[_Attempt, float]] = []
        for attempt in self._generation:
            if attempt.status != "completed":
                continue
            curve = curves[attempt.overrides]
            score = None if curve is None else find_score_at(curve, after)
            if curve is None or score is None:
                attempt.status = "failed"
                continue
            attempt.curve = curve
            attempt.trial.report(score, after)
            live.append((attempt, score))
        if last or not live:
            return
        sign = 1.0 if self.higher_is_better else -1.0
        earlier = [
            find_score_at(t.curve, after) for t in self.trials if _has_reached(t.curve, after)
        ]
        scores = [*(score for _, score in live), *(score for score in earlier if score is not None)]
        median = median_high([sign * score for score in scores])
        live.sort(key=lambda one: -sign * one[1])
        for rank, (attempt, score) in enumerate(live):
            if 2 * rank >= len(live) or sign * score < median:
                attempt.status = "pruned"

    def finish_generation(self) -> None:
        """Finish the generation and add its trials to ``trials``."""
        import optuna

        states = optuna.trial.TrialState
        ends = {"completed": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}
        for attempt in self._generation:
            score = attempt.curve[-1][1] if attempt.curve else None
            completed = attempt.status == "completed"
            self._study.tell(
                attempt.trial, score if completed else None, state=ends[attempt.status]
            )
            self.trials.append(Trial(attempt.overrides, attempt.status, score, attempt.curve))
        self._generation = []

    @property
    def finalists(self) -> tuple[Trial, ...]:
        """The completed trials with the best scores and different values, earlier ones first.

        Where few values are possible, the sampler proposes one of them again and again.
        """
        sign = -1.0 if self.higher_is_better else 1.0
        first_by_values: dict[tuple[str, ...], tuple[float, Trial]] = {}
        initial = to_overrides(_round_values(self.initial_values))
        for trial in self.trials:
            if trial.status == "completed" and trial.score is not None:
                values = tuple(sorted(trial.words or initial))
                first_by_values.setdefault(values, (sign * trial.score, trial))
        ranked = sorted(first_by_values.values(), key=lambda one: one[0])
        return tuple(trial for _, trial in ranked[:NUM_FINALISTS])

    def add_second_scores(self, second_scores: Mapping[tuple[str, ...], float | None]) -> None:
        """Add the finalists' scores with the second seed; None for a failed run."""
        self.trials = [
            replace(trial, again=second_scores.get(trial.words), status=trial.status)
            if trial in self.finalists
            else trial
            for trial in self.trials
        ]

    @property
    def best(self) -> Trial | None:
        """The finalist with the best mean of its scores; None if none completed."""
        finalists = self.finalists
        twice = [trial for trial in finalists if trial.again is not None]
        choose = max if self.higher_is_better else min
        return choose(twice or finalists, key=_average_scores, default=None)

    @property
    def best_overrides(self) -> tuple[str, ...]:
        """The best values as Hydra overrides; empty if the settings' values were best."""
        return () if self.best is None else self.best.words


def _average_scores(trial: Trial) -> float:
    scores = [score for score in (trial.score, trial.again) if score is not None]
    return sum(scores) / len(scores)


def _round_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Round values to three digits, which are easy to type; noise exceeds the fourth."""
    return {k: float(f"{x:.3g}") if isinstance(x, float) else x for k, x in values.items()}


def _to_distribution(dimension: SearchDimension) -> "optuna.distributions.BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(dimension, Choices):
        return CategoricalDistribution(dimension.choices)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def compute_tuning_budget(
    amount: float, spent: float, cost_per_seed: float, reserve: float
) -> float:
    """Return the rest of the tuning's budget: half of the total, minus what the comparison needs.

    Parameters
    ----------
    amount, spent : float
        The budget, and the amount spent.
    cost_per_seed : float
        The total cost of one run of every method.
    reserve : float
        The minimum number of seeds to reserve for the comparison.
    """
    return min(amount / 2 - spent, amount - spent - reserve * cost_per_seed)


def compute_num_runs(trials: int, cost: float) -> float:
    """Return the cost of a method's trials, of ``cost`` runs each, and its finalists, in runs."""
    if trials == 0:
        return 0.0
    finalists = min(NUM_FINALISTS, trials) if trials > 1 else 0
    return 1.0 + cost * (trials - 1) + finalists


def compute_generation_sizes(trials: int) -> Sequence[int]:
    """Return the sizes of the generations; the first has only the settings' values."""
    if trials == 0:
        return ()
    further = trials - 1
    num_full, rest = divmod(further, GENERATION_SIZE)
    return (1, *[GENERATION_SIZE] * num_full, *([rest] if rest else []))
