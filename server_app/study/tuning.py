"""Values for the parameters of one method, chosen by Optuna on validation parts.

The trials come in generations, all of one chosen before any of it is run. After a part of the
rounds a trial goes on only if it is in the better half of those that came so far (successive
halving, Jamieson and Talwalkar 2016, asynchronous as in Li et al. 2020). Nothing depends on how
many jobs run at a time, so an interrupted tuning asks for the same values again and finds their
runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_high
from typing import TYPE_CHECKING, Any

from fedquorum.rng import make_generator
from fedquorum.search import Choices

from conf.overrides import to_overrides
from server_app.study.methods import SearchDimension
from server_app.study.result import ScoreCurve, Trial

if TYPE_CHECKING:
    import optuna

GENERATION_SIZE = 4
"""How many trials are chosen at a time: as many as may run at once without waiting."""

NUM_STARTUP_TRIALS = 2 * GENERATION_SIZE + 1
"""How many trials are drawn at random before what is known of them says where to look."""

NUM_FINALISTS = 3
"""How many of a method's trials are run with a second seed: the best of one seed was lucky too."""

RUNG_FRACTIONS = (0.25, 0.5, 1.0)
"""After what part of the rounds the worse half is pruned."""


def compute_rungs(rounds: int, every: int) -> tuple[int, ...]:
    """Return after which rounds trials are compared: evaluated ones, and the last.

    Parameters
    ----------
    rounds : int
        T.
    every : int
        After how many rounds the model is evaluated.
    """
    whole = (-(-round(rounds * part) // every) * every for part in RUNG_FRACTIONS)
    return tuple(sorted({min(max(after, 1), rounds) for after in whole} | {rounds}))


def compute_trial_cost(rungs: Sequence[int]) -> float:
    """Return what a trial takes of a whole run, about, in tenths: half of them go at each rung.

    With rungs after a quarter, half and all of the rounds that is 1/4 for all, 1/4 for a half and
    1/2 for a quarter. With a single rung, as where the model is evaluated at the end alone, all
    are whole runs.

    Parameters
    ----------
    rungs : sequence of int
        After which rounds trials are compared.
    """
    steps = [after - before for before, after in zip((0, *rungs), rungs, strict=False)]
    return round(sum(step * 0.5**place for place, step in enumerate(steps)) / rungs[-1], 1)


def find_score_at(curve: ScoreCurve, after: int) -> float | None:
    """Return the last score up to a round, None if there is none."""
    return next((score for number, score in reversed(curve) if number <= after), None)


def _has_reached(curve: ScoreCurve, after: int) -> bool:
    return bool(curve) and curve[-1][0] >= after


@dataclass
class _Attempt:
    """A trial under way."""

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
        Where values are looked for, by setting.
    initial_values : mapping
        The settings' own values, which are the first trial.
    higher_is_better : bool
        Of the score.
    seed : int
        Of the choices.
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
        self._distributions = {key: _to_distribution(where) for key, where in self.space.items()}
        self._generation: list[_Attempt] = []

    def start_generation(self, count: int) -> tuple[tuple[str, ...], ...]:
        """Begin a generation and return its choices as Hydra overrides.

        The very first has none: it is the settings' own values.
        """
        first = not self.trials
        asked = [self._create_trial(len(self.trials) + place) for place in range(count)]
        self._generation = [
            _Attempt(
                trial, () if first and place == 0 else to_overrides(_round_values(trial.params))
            )
            for place, trial in enumerate(asked)
        ]
        return tuple(attempt.overrides for attempt in self._generation)

    def _create_trial(self, number: int) -> "optuna.Trial":
        """Begin a trial whose draws follow from its number.

        So all methods are tried with the same learning rates first, which are drawn before the
        rules' parameters: a method is not the best for a learning rate that others were not given.
        """
        import optuna

        seed = int(make_generator(self.seed, "study", number, 0).integers(2**31))
        self._study.sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=NUM_STARTUP_TRIALS
        )
        return self._study.ask(self._distributions)

    def list_active(self) -> tuple[tuple[str, ...], ...]:
        """Return the choices of the generation that go on."""
        return tuple(a.overrides for a in self._generation if a.status == "completed")

    def report_scores(
        self, after: int, curves: Mapping[tuple[str, ...], ScoreCurve | None], *, last: bool
    ) -> None:
        """Take what the live trials scored up to a rung, and prune the worse half of them.

        The better half stays as far as it is no worse than the median of all trials that have come
        so far. Optuna's own pruner judges each trial as it reports, beside those that reported
        before it, so it may prune the second best of five.

        Parameters
        ----------
        after : int
            The round that the rung stands for.
        curves : mapping
            The scores by choice; None of one that failed.
        last : bool
            Whether it is the last rung, after which nothing is left to prune.
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
        before = [
            find_score_at(t.curve, after) for t in self.trials if _has_reached(t.curve, after)
        ]
        known = [*(score for _, score in live), *(score for score in before if score is not None)]
        median = median_high([sign * score for score in known])
        live.sort(key=lambda one: -sign * one[1])
        for place, (attempt, score) in enumerate(live):
            if 2 * place >= len(live) or sign * score < median:
                attempt.status = "pruned"

    def finish_generation(self) -> None:
        """End the generation."""
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
        """The completed trials that did best, the earlier ones of equals."""
        sign = -1.0 if self.higher_is_better else 1.0
        scored = [(sign * t.score, t) for t in self.trials if t.score is not None]
        completed = [(score, trial) for score, trial in scored if trial.status == "completed"]
        return tuple(
            trial for _, trial in sorted(completed, key=lambda one: one[0])[:NUM_FINALISTS]
        )

    def add_second_scores(self, second_scores: Mapping[tuple[str, ...], float | None]) -> None:
        """Take what the finalists scored with the second seed; None of one that failed."""
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
        """What did best, as Hydra overrides; none where the settings' own values did."""
        return () if self.best is None else self.best.words


def _average_scores(trial: Trial) -> float:
    scores = [score for score in (trial.score, trial.again) if score is not None]
    return sum(scores) / len(scores)


def _round_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that a person can type again: noise decides the fourth digit."""
    return {k: float(f"{x:.3g}") if isinstance(x, float) else x for k, x in values.items()}


def _to_distribution(dimension: SearchDimension) -> "optuna.distributions.BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(dimension, Choices):
        return CategoricalDistribution(dimension.choices)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def compute_tuning_budget(
    amount: float, spent: float, cost_per_seed: float, reserve: float
) -> float:
    """Return how much of a budget is for tuning: half of it, and what the seeds need is kept.

    Parameters
    ----------
    amount, spent : float
        The budget, and what has been spent of it.
    cost_per_seed : float
        What a whole run of every method takes, together.
    reserve : float
        How many of these the comparison needs at least.
    """
    return min(amount / 2 - spent, amount - spent - reserve * cost_per_seed)


def compute_num_runs(trials: int, cost: float) -> float:
    """Return what a method's trials, of this cost each, and their finalists take in whole runs."""
    if trials == 0:
        return 0.0
    finalists = min(NUM_FINALISTS, trials) if trials > 1 else 0
    return 1.0 + cost * (trials - 1) + finalists


def compute_generation_sizes(trials: int) -> Sequence[int]:
    """Return the sizes of the generations; the first is the settings' own values alone."""
    if trials == 0:
        return ()
    further = trials - 1
    full, rest = divmod(further, GENERATION_SIZE)
    return (1, *[GENERATION_SIZE] * full, *([rest] if rest else []))
