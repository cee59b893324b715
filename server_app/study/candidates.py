"""The methods of a study with their settings, and the words of their runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fedquorum.errors import SettingsError
from fedquorum.metrics import Metric, get_metric
from fedquorum.rule import Goal
from hydra.core.override_parser.types import Override

from conf import Settings
from conf.compose import compose_overrides
from conf.overrides import get_sweep_values
from conf.schema.settings import get_evaluation_metric
from server_app.study.methods import (
    StudyMethod,
    build_search_space,
    get_current_values,
    select_methods,
)
from server_app.study.result import SeedRun
from server_app.study.scores import SCORE_GROUPS
from server_app.study.settings import StudySettings
from server_app.study.tuning import MethodTuning

VALIDATION_KEY = "data.validation_fraction"
DEFAULT_SETTINGS = {"experiment": "custom", VALIDATION_KEY: "0.2"}
AVAILABILITY, ALWAYS, AT_RANDOM = "availability", "always", "bernoulli"
RESERVED_SETTINGS = ("strategy", "resume", "engine.stop_after_round")
"""What the study sets in its runs."""

SCORE_STATISTICS = ("average", "worst", "best", "worst10", "best10")
"""What is compared of a group of clients, beside the mean of the metric by data."""


@dataclass
class Candidate:
    """A method in the study, and what it has come to.

    Parameters
    ----------
    method : Method
        The method.
    overrides : tuple of str
        What its runs have in common, as Hydra overrides.
    settings : Settings
        What that composes to.
    tuning : MethodTuning
        Its trials.
    runs : list of SeedRun
        With the tuned values, one a seed.
    exclusion_reason : str
        Why it is compared no more; empty while it is.
    """

    method: StudyMethod
    overrides: tuple[str, ...]
    settings: Settings
    tuning: MethodTuning
    runs: list[SeedRun] = field(default_factory=list)
    exclusion_reason: str = ""


@dataclass(frozen=True)
class MethodComparison:
    """What is compared, and by what.

    Parameters
    ----------
    candidates : tuple of Contender
        The methods, the baseline first.
    rejected : mapping of Method to str
        Those that do not go with the settings, and why.
    metric : str
        What clients measure.
    score : str
        What is compared, by dotted key below ``test`` and ``validation``.
    """

    candidates: tuple[Candidate, ...]
    rejected: dict[StudyMethod, str]
    metric: str
    score: str

    @property
    def baseline(self) -> Candidate:
        """The plain method."""
        return self.candidates[0]

    @property
    def settings(self) -> Settings:
        """The baseline's settings; those of the others differ in what makes a method alone."""
        return self.baseline.settings

    @property
    def metric_info(self) -> Metric:
        """The metric, with its unit and its range."""
        return get_metric(self.metric)

    @property
    def active_candidates(self) -> list[Candidate]:
        """The methods that are compared."""
        return [contender for contender in self.candidates if not contender.exclusion_reason]

    @property
    def higher_is_better(self) -> bool:
        """Whether the larger score is the better one."""
        return self.metric_info.higher_is_better


def get_tuning_seeds(comparison: MethodComparison) -> tuple[int, int]:
    """Return the seeds of the tuning; those of the comparison follow."""
    return comparison.settings.seed, comparison.settings.seed + 1


def build_comparison(overrides: Sequence[str], study: StudySettings) -> MethodComparison:
    """Return what a study compares.

    Parameters
    ----------
    overrides : sequence of str
        The settings that all runs share, see ``collect_common_overrides``.
    study : StudySettings
        What is asked.

    Raises
    ------
    SettingsError
        If the baseline or a method that was named does not go with the settings, or no method does.
    """
    plain, *others = select_methods(study)
    overrides = _add_availability(overrides, plain, study)
    first = compose_overrides(_merge_overrides(overrides, plain.overrides)).settings
    _check_settings(first, study)
    metric = get_evaluation_metric(first)
    score = _resolve_score(study, metric)
    better = get_metric(metric).higher_is_better
    contenders, refused = (
        [_build_candidate(plain, overrides, higher_is_better=better)],
        dict[StudyMethod, str](),
    )
    for method in others:
        try:
            contenders.append(_build_candidate(method, overrides, higher_is_better=better))
        except SettingsError as error:
            if study.methods is not None:
                raise SettingsError(
                    f"methods must fit the settings, got {method.name}: {error}"
                ) from None
            refused[method] = str(error)
    if len(contenders) == 1:
        reasons = "; ".join(f"{method.name}: {reason}" for method, reason in refused.items())
        raise SettingsError(
            f"methods must have one to compare with {plain.name}, got none ({reasons or 'no name'})"
        )
    return MethodComparison(tuple(contenders), refused, metric, score)


def _resolve_score(study: StudySettings, metric: str) -> str:
    score = study.resolve_metric_key(metric)
    group, _, name = score.partition(".")
    names = (metric, *SCORE_STATISTICS)
    if group not in SCORE_GROUPS or name not in names:
        raise SettingsError(
            f"metric_key must be GROUP.NAME with a group ({', '.join(SCORE_GROUPS)}) and one of "
            f"{', '.join(names)}, got {score}"
        )
    return score


def _add_availability(
    overrides: Sequence[str], plain: StudyMethod, study: StudySettings
) -> tuple[str, ...]:
    """Return the words, with clients that come and go where that is the question.

    On real machines they do so by themselves, and a preset or the user may have said how.
    """
    given = any(_get_key(word) == AVAILABILITY for word in overrides)
    if given or study.goal_kind != Goal.PARTICIPATION:
        return tuple(overrides)
    settings = compose_overrides(_merge_overrides(overrides, plain.overrides)).settings
    simulated = settings.engine.superlink is None and settings.availability.name == ALWAYS
    return (*overrides, f"{AVAILABILITY}={AT_RANDOM}") if simulated else tuple(overrides)


def _check_settings(settings: Settings, study: StudySettings) -> None:
    if settings.data.validation_fraction == 0:
        raise SettingsError(
            f"{VALIDATION_KEY} must be above 0 in a study, which tunes by it, got 0"
        )
    if study.goal_kind == Goal.PRIORITY and settings.data.priority == "all":
        raise SettingsError(
            "data.priority must name the clients that goal=priority is about (a list, "
            "heterogeneous or random), got all"
        )
    if settings.evaluation.clients != "all":
        raise SettingsError(
            f"evaluation.clients must be all in a study, got {settings.evaluation.clients}"
        )


def _build_candidate(
    method: StudyMethod, overrides: Sequence[str], *, higher_is_better: bool
) -> Candidate:
    together = _merge_overrides(overrides, method.overrides)
    settings = compose_overrides(together).settings
    space = build_search_space(settings, [_get_key(word) for word in overrides])
    tuning = MethodTuning(
        space, get_current_values(settings, space), higher_is_better, settings.seed
    )
    return Candidate(method, together, settings, tuning)


def collect_common_overrides(overrides: Iterable[Override]) -> tuple[str, ...]:
    """Return the settings that all runs share, with a study's defaults of some.

    Raises
    ------
    SettingsError
        If one is the study's to choose, or has several values.
    """
    words = dict(_get_single_value(override) for override in overrides)
    for key in RESERVED_SETTINGS:
        if key in words:
            hint = " (methods=[...] says which are compared)" if key == RESERVED_SETTINGS[0] else ""
            raise SettingsError(f"{key} must be left to the study{hint}, got {words[key]}")
    defaults = (f"{key}={value}" for key, value in DEFAULT_SETTINGS.items() if key not in words)
    return (*words.values(), *defaults)


def _get_single_value(override: Override) -> tuple[str, str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return key, str(override.input_line)
    values = get_sweep_values(override) if override.is_discrete_sweep() else ()
    if len(values) != 1:
        raise SettingsError(f"{key} must have one value in a study, got {override.input_line}")
    return key, f"{key}={values[0]}"


def _merge_overrides(*parts: Sequence[str]) -> tuple[str, ...]:
    """Return words of which a later one of the same setting wins."""
    return tuple({_get_key(word): word for part in parts for word in part}.values())


def _get_key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
