"""Tune settings with Optuna, one job for each trial: ``fedquorum -m hydra/sweeper=optuna``.

The sampler is seeded, so the same command suggests the same values again. Jobs of an interrupted
tuning are found by their settings, as in every sweep.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedquorum.errors import ParameterError, SettingsError, to_one_line
from fedquorum.rules.metrics import METRICS
from fedquorum.rules.parameters import NON_NEGATIVE_INT, POSITIVE_INT, OneOf
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from conf import Settings
from conf.compose import compose_overrides
from conf.schema.settings import get_evaluation_metric
from server_app.sweeps.jobs import Job, read_complete_rounds
from server_app.sweeps.sweep import Sweep, expand_sweep_override, refuse_shared_errors

if TYPE_CHECKING:
    import optuna

RESULT_FILE = "tuning.json"


@dataclass(frozen=True)
class Tuning:
    """The settings ``hydra.sweeper`` of a tuning.

    Parameters
    ----------
    trials : int
        Number of trials.
    objective : str, optional
        The last value of a number in ``rounds.jsonl``, by its dotted key, such as ``global_loss``
        or ``validation.all.worst10``, but not of the test split. None is the metric on the
        validation split if there is one, otherwise ``global_loss``.
    direction : str, optional
        ``minimize`` or ``maximize``; None follows from the objective.
    seed : int
        The seed of the sampler, independent of the jobs' seeds.

    Raises
    ------
    SettingsError
        If a value is not allowed.
    """

    trials: int
    objective: str | None
    direction: str | None
    seed: int

    def __post_init__(self) -> None:
        try:
            POSITIVE_INT.check("hydra.sweeper.trials", self.trials)
            if self.direction is not None:
                OneOf(("minimize", "maximize")).check("hydra.sweeper.direction", self.direction)
            NON_NEGATIVE_INT.check("hydra.sweeper.seed", self.seed)
        except ParameterError as error:
            raise SettingsError(str(error)) from None
        if (self.objective or "").startswith("test."):
            raise SettingsError(
                "hydra.sweeper.objective must not be of test parts, which tell how good the choice "
                f"is only if nobody chose by them, got {self.objective}; set "
                "data.validation_fraction=0.2 and take "
                f"validation.{str(self.objective).removeprefix('test.')}"
            )

    def resolve(self, settings: Settings) -> "Tuning":
        """Return the settings with the defaults of objective and direction filled in."""
        metric = get_evaluation_metric(settings)
        has_validation = settings.data.validation_fraction > 0
        default = f"validation.all.{metric}" if has_validation else "global_loss"
        objective = self.objective or default
        if objective.startswith("validation.") and not has_validation:
            raise SettingsError(
                "data.validation_fraction must be above 0 where hydra.sweeper.objective is "
                f"{objective}, got {settings.data.validation_fraction}"
            )
        _check_masked_objective(objective, settings)
        direction = self.direction or _get_direction(objective.rpartition(".")[2], metric)
        return replace(self, objective=objective, direction=direction)


def _check_masked_objective(objective: str, settings: Settings) -> None:
    """Refuse an objective that no sum over clients gives, where masks hide single clients.

    Raises
    ------
    SettingsError
        If the records of the jobs will not have it.
    """
    name = settings.secure_aggregation.name
    group = "all" if settings.evaluation.clients == "all" else "priority"
    metrics = dict.fromkeys(("loss", "accuracy", get_evaluation_metric(settings)))
    allowed = [f"validation.{group}.{metric}" for metric in metrics]
    if name == "none":
        return
    if objective == "global_loss":
        raise SettingsError(
            f"hydra.sweeper.objective must be one of {', '.join(allowed)} with "
            f"secure_aggregation={name} (masks hide the losses of the priority clients alone), got "
            f"global_loss; type data.validation_fraction=0.2 hydra.sweeper.objective={allowed[-1]}"
        )
    if objective.startswith("validation.") and objective not in allowed:
        raise SettingsError(
            f"hydra.sweeper.objective must be one of {', '.join(allowed)} with "
            f"secure_aggregation={name} (masks hide the results of single clients), got {objective}"
        )


def _get_direction(name: str, metric: str) -> str:
    """Return the direction in which a number of a round improves.

    Lower is better for ``gini`` and ``std`` of any metric; otherwise the metric decides.
    """
    if name in {"gini", "std", "left_out", "global_loss"}:
        return "minimize"
    higher_is_better = METRICS[name if name in METRICS else metric].higher_is_better
    return "maximize" if higher_is_better else "minimize"


def tune(
    config: DictConfig, launcher: Launcher, overrides: Sequence[Override], tuning: Tuning
) -> None:
    """Run the jobs that Optuna suggests, ``engine.jobs`` at a time, and print the best.

    The function writes the value of every job to ``tuning.json`` in the sweep's folder.

    Parameters
    ----------
    config : DictConfig
        Hydra's settings of the sweep, without the settings of the jobs.
    launcher : Launcher
    overrides : sequence of Override
        The settings of the jobs: fixed, several values, or an interval.
    tuning : Tuning

    Raises
    ------
    SettingsError, RunError
        If the tuning cannot start, or the records do not contain the objective.
    SweepUnfinished
        If not all jobs completed; Optuna counts a failed job as a failed trial.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space, fixed = _build_search_space(overrides)
    tuning = tuning.resolve(_compose_first_job(space, fixed, tuning.seed))
    sampler = optuna.samplers.TPESampler(seed=tuning.seed)
    direction = optuna.study.StudyDirection[str(tuning.direction).upper()]
    study = optuna.create_study(sampler=sampler, direction=direction)
    values: dict[Job, float | None] = {}
    with Sweep(config, launcher).start() as sweep:
        for first in range(0, tuning.trials, config.engine.jobs):
            numbers = range(first, min(first + config.engine.jobs, tuning.trials))
            trials = [study.ask(space) for _ in numbers]
            suggested = [_to_overrides(trial) for trial in trials]
            if first == 0:
                refuse_shared_errors([(*fixed, *trial_overrides) for trial_overrides in suggested])
            jobs = [
                sweep.folder.get_job((*fixed, *trial_overrides), " ".join(trial_overrides), number)
                for number, trial_overrides in zip(numbers, suggested, strict=True)
            ]
            sweep.run(jobs, num_later_jobs=tuning.trials - numbers.stop)
            for trial, job in zip(trials, jobs, strict=True):
                values[job] = _read_objective(job, tuning.objective)
                failed = None if values[job] is not None else optuna.trial.TrialState.FAIL
                study.tell(trial, values[job], state=failed)
            best = _write_result(sweep.directory, tuning, values)
        if best is not None:
            value = f"{tuning.objective} {values[best]:.6g}"
            tied = [str(job.number) for job, other in values.items() if other == values[best]]
            tie = f" (a tie of jobs {', '.join(tied)})" if len(tied) > 1 else ""
            sweep.say(f"best of {len(values)} jobs: {best}, {value}{tie}")


def _compose_first_job(
    space: "Mapping[str, optuna.distributions.BaseDistribution]", fixed: Sequence[str], seed: int
) -> Settings:
    """Return the settings of the first job, which has the metric and the data splits of all."""
    import optuna

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    return compose_overrides((*fixed, *_to_overrides(study.ask(dict(space))))).settings


def _build_search_space(
    overrides: Sequence[Override],
) -> "tuple[dict[str, optuna.distributions.BaseDistribution], list[str]]":
    """Return Optuna's distributions by key, and the overrides that are fixed."""
    from optuna.distributions import BaseDistribution, CategoricalDistribution

    space: dict[str, BaseDistribution] = {}
    fixed: list[str] = []
    for override in overrides:
        key, value = override.get_key_element(), override.value()
        try:
            if isinstance(value, IntervalSweep):
                space[key] = _to_distribution(value)
            elif len(choices := expand_sweep_override(override)) > 1:
                space[key] = CategoricalDistribution(choices)
            else:
                fixed += choices
        except ValueError as error:  # such as an interval from 0 on a logarithmic scale
            raise SettingsError(
                f"{key} must be an interval or values for Optuna, got {override.input_line}: "
                f"{to_one_line(error)}"
            ) from None
    if not space:
        raise SettingsError(
            "hydra/sweeper=optuna must have something to choose, such as "
            "'client.lr=tag(log, interval(0.01, 1))', got fixed values only"
        )
    return space, fixed


def _to_distribution(interval: IntervalSweep) -> "optuna.distributions.BaseDistribution":
    from optuna.distributions import FloatDistribution, IntDistribution

    low, high, log = interval.start, interval.end, "log" in interval.tags
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    if low is None or high is None:
        raise ValueError("an interval has two ends")
    return FloatDistribution(low, high, log=log)


def _to_overrides(trial: "optuna.trial.Trial") -> list[str]:
    """Return a trial's values as overrides; a categorical value is an override already."""
    return [
        value if isinstance(value, str) else f"{key}={value!r}"
        for key, value in trial.params.items()
    ]


def _read_objective(job: Job, objective: str | None) -> float | None:
    """Return the last value of the objective.

    The value is None if the job did not complete, or if the objective of the last evaluated model
    is undefined or infinite, as after a client's model diverged. An earlier model does not count.

    Raises
    ------
    SettingsError
        If no round of a completed job contains the objective.
    """
    if job.read_state().status != "completed":
        return None
    *path, name = str(objective).split(".")
    undefined = False
    for record in reversed(read_complete_rounds(job.directory)):
        group: Any = record
        for key in path:
            group = group.get(key) if isinstance(group, Mapping) else None
        value = group.get(name) if isinstance(group, Mapping) else None
        if isinstance(value, int | float):
            return None if undefined else float(value)
        # A null of a group's number means undefined; a null F only means that it was not evaluated.
        undefined |= isinstance(value, str) or (
            bool(path) and isinstance(group, Mapping) and name in group
        )
    if undefined:
        return None
    raise SettingsError(
        "hydra.sweeper.objective must be a number of rounds.jsonl that these jobs measure, such "
        f"as global_loss or validation.all.accuracy, got {objective!r}"
    )


def _write_result(
    directory: Path, tuning: Tuning, values: Mapping[Job, float | None]
) -> Job | None:
    """Write ``tuning.json`` and return the first best job so far; None if no job completed."""
    defined = {job: value for job, value in values.items() if value is not None}
    choose = min if tuning.direction == "minimize" else max
    best = choose(defined, key=defined.__getitem__, default=None)
    rows = [
        {"job": job.number, "settings": list(job.overrides), "value": value}
        for job, value in values.items()
    ]
    result = {**asdict(tuning), "best": None if best is None else best.number, "jobs": rows}
    (directory / RESULT_FILE).write_text(json.dumps(result, indent=2) + "\n")
    return best
