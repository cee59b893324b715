"""Build the methods of a study with their settings and overrides."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from fedquorum.errors import SettingsError
from fedquorum.records.data_facts import LARGE_CLASS
from fedquorum.rules.decisions import EPOCH_SETTINGS, PERSONAL_MODELS
from fedquorum.rules.description import Goal
from fedquorum.rules.metrics import CLASSIFICATION_METRICS, Metric, get_metric
from hydra.core.override_parser.types import Override

from client_app.data import FederatedData
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

VALIDATION_KEY, METRIC_KEY = "data.validation_fraction", "evaluation.metric"
VALIDATION_SEED_KEY = "data.validation_seed"
NUM_BINARY = 2
DEFAULT_SETTINGS = {"experiment": "custom", VALIDATION_KEY: "0.2"}
AVAILABILITY, ALWAYS, AT_RANDOM = "availability", "always", "bernoulli"
RESERVED_SETTINGS = ("strategy", "resume", "engine.stop_after_round", VALIDATION_SEED_KEY)
"""Settings that the study itself chooses for its runs."""

REASON_FOR_AUROC = (
    f"one of two classes has more than {100 * LARGE_CLASS:.0f} % of the rows, so accuracy says "
    "little (evaluation.metric=accuracy compares by accuracy)"
)
SCORE_STATISTICS = ("average", "worst", "best", "worst10", "best10")
"""Statistics over clients that a score may name, beside the mean by data."""


@dataclass
class Candidate:
    """A method in the study with its trials and runs.

    Parameters
    ----------
    method : StudyMethod
    overrides : tuple of str
        The Hydra overrides that its runs share.
    settings : Settings
        The settings composed from ``overrides``.
    tuning : MethodTuning
    runs : list of SeedRun
        The runs with the tuned values, one per seed.
    exclusion_reason : str
        The reason for excluding it from the comparison; empty while it is compared.
    restarted : SeedRun or None
        Of the baseline, a run with the data of its first run and another start.
    """

    method: StudyMethod
    overrides: tuple[str, ...]
    settings: Settings
    tuning: MethodTuning
    runs: list[SeedRun] = field(default_factory=list)
    exclusion_reason: str = ""
    restarted: SeedRun | None = None


@dataclass(frozen=True)
class MethodComparison:
    """The methods to compare, and the score to compare them by.

    Parameters
    ----------
    candidates : tuple of Candidate
        The methods, the baseline first.
    rejected : mapping of StudyMethod to str
        The methods that do not fit the settings, with the reason.
    metric : str
        The clients' metric.
    score : str
        The compared number by dotted key below ``test`` and ``validation``.
    """

    candidates: tuple[Candidate, ...]
    rejected: dict[StudyMethod, str]
    metric: str
    score: str

    @property
    def baseline(self) -> Candidate:
        """The baseline."""
        return self.candidates[0]

    @property
    def settings(self) -> Settings:
        """The baseline's settings; other methods differ only in their method."""
        return self.baseline.settings

    @property
    def metric_info(self) -> Metric:
        """The metric, with its unit and its range."""
        return get_metric(self.metric)

    @property
    def active_candidates(self) -> list[Candidate]:
        """The methods that are not excluded."""
        return [candidate for candidate in self.candidates if not candidate.exclusion_reason]

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is better."""
        return self.metric_info.higher_is_better


def get_tuning_seeds(comparison: MethodComparison) -> tuple[int, int]:
    """Return the two seeds of the tuning; the comparison's seeds follow them."""
    return comparison.settings.seed, comparison.settings.seed + 1


def build_comparison(overrides: Sequence[str], study: StudySettings) -> MethodComparison:
    """Build the comparison of a study.

    Parameters
    ----------
    overrides : sequence of str
        The settings that all runs share, see ``collect_common_overrides``.
    study : StudySettings

    Raises
    ------
    SettingsError
        If the baseline or a named method does not fit the settings, or no method does.
    """
    baseline, *others = select_methods(study)
    overrides = _add_availability(overrides, baseline, study)
    first = compose_overrides(_merge_overrides(overrides, baseline.overrides)).settings
    _check_settings(first, study)
    if study.trials != 0:
        # No seed of the comparison tests a row by which the tuning has chosen.
        overrides = (*overrides, f"{VALIDATION_SEED_KEY}={first.seed}")
    metric = get_evaluation_metric(first)
    score = _resolve_score(study, first, metric)
    better = get_metric(metric).higher_is_better
    candidates, rejected = (
        [_build_candidate(baseline, overrides, higher_is_better=better)],
        dict[StudyMethod, str](),
    )
    for method in others:
        try:
            candidates.append(_build_candidate(method, overrides, higher_is_better=better))
        except SettingsError as error:
            if study.methods is not None:
                raise SettingsError(
                    f"methods must fit the settings, got {method.name}: {error}"
                ) from None
            rejected[method] = str(error)
    if len(candidates) == 1:
        reasons = "; ".join(f"{method.name}: {reason}" for method, reason in rejected.items())
        raise SettingsError(
            f"methods must have one to compare with {baseline.name}, got none "
            f"({reasons or 'no name'})"
        )
    return MethodComparison(tuple(candidates), rejected, metric, score)


def choose_metric(
    overrides: Sequence[str],
    comparison: MethodComparison,
    study: StudySettings,
    data: FederatedData,
) -> tuple[str, ...]:
    """Return the override that compares by AUROC; none if accuracy says enough or the user chose.

    Where one of two classes has more than ``LARGE_CLASS`` of the rows, a model that never predicts
    the other has nearly the accuracy of the best.

    Parameters
    ----------
    overrides : sequence of str
        The settings that all runs share.
    comparison : MethodComparison
        The comparison with these settings.
    study : StudySettings
    data : FederatedData
        The data of one seed.
    """
    is_chosen = study.metric_key is not None or METRIC_KEY in map(_get_key, overrides)
    is_binary = data.target == "class" and data.num_classes == NUM_BINARY
    if is_chosen or comparison.metric != CLASSIFICATION_METRICS or not is_binary:
        return ()
    labels = np.concatenate([y for k in range(data.num_clients) for y in data.get_targets(k)])
    counts = np.bincount(labels, minlength=NUM_BINARY)
    return (f"{METRIC_KEY}=auroc",) if counts.max() > LARGE_CLASS * counts.sum() else ()


def _resolve_score(study: StudySettings, settings: Settings, metric: str) -> str:
    score = study.resolve_metric_key(metric)
    group, _, name = score.partition(".")
    names = (metric, *SCORE_STATISTICS)
    if group not in SCORE_GROUPS or name not in names:
        raise SettingsError(
            f"metric_key must be GROUP.NAME with a group ({', '.join(SCORE_GROUPS)}) and one of "
            f"{', '.join(names)}, got {score}"
        )
    if group in PERSONAL_MODELS and group not in settings.evaluation.personal_epochs:
        raise SettingsError(
            f"metric_key must be with {EPOCH_SETTINGS[group]}=N, which trains such models, got "
            f"{score}"
        )
    return score


def _add_availability(
    overrides: Sequence[str], baseline: StudyMethod, study: StudySettings
) -> tuple[str, ...]:
    """Add random availability to a simulation whose goal is participation.

    Real devices have their own availability, and a preset or the user may set one.
    """
    is_set = any(_get_key(override) == AVAILABILITY for override in overrides)
    if is_set or study.goal_kind != Goal.PARTICIPATION:
        return tuple(overrides)
    settings = compose_overrides(_merge_overrides(overrides, baseline.overrides)).settings
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
    if settings.evaluation.every is None:
        raise SettingsError(
            "evaluation.every must be a number of rounds in a study (its trials are compared after "
            "the same rounds), got null"
        )
    if settings.engine.simulated_seconds is not None:
        raise SettingsError(
            "engine.simulated_seconds must be null in a study (its methods are compared after the "
            f"same number of rounds), got {settings.engine.simulated_seconds:g}"
        )
    if settings.secure_aggregation.name != "none":
        raise SettingsError(
            "secure_aggregation must be none in a study (it compares the results of single "
            f"clients, which masks hide), got {settings.secure_aggregation.name}"
        )
    if settings.evaluation.clients != "all":
        raise SettingsError(
            f"evaluation.clients must be all in a study, got {settings.evaluation.clients}"
        )


def _build_candidate(
    method: StudyMethod, overrides: Sequence[str], *, higher_is_better: bool
) -> Candidate:
    merged = _merge_overrides(overrides, method.overrides)
    settings = compose_overrides(merged).settings
    space = build_search_space(settings, [_get_key(override) for override in overrides])
    tuning = MethodTuning(
        space, get_current_values(settings, space), higher_is_better, settings.seed
    )
    return Candidate(method, merged, settings, tuning)


def collect_common_overrides(overrides: Iterable[Override]) -> tuple[str, ...]:
    """Return the overrides that all runs share, completed by a study's defaults.

    Raises
    ------
    SettingsError
        If the study itself chooses one of them, or one has several values.
    """
    by_key = dict(_get_single_value(override) for override in overrides)
    for key in RESERVED_SETTINGS:
        if key in by_key:
            hint = " (methods=[...] says which are compared)" if key == RESERVED_SETTINGS[0] else ""
            raise SettingsError(f"{key} must be left to the study{hint}, got {by_key[key]}")
    defaults = (f"{key}={value}" for key, value in DEFAULT_SETTINGS.items() if key not in by_key)
    return (*by_key.values(), *defaults)


def _get_single_value(override: Override) -> tuple[str, str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return key, str(override.input_line)
    values = get_sweep_values(override) if override.is_discrete_sweep() else ()
    if len(values) != 1:
        raise SettingsError(f"{key} must have one value in a study, got {override.input_line}")
    return key, f"{key}={values[0]}"


def _merge_overrides(*parts: Sequence[str]) -> tuple[str, ...]:
    """Merge overrides; a later one replaces an earlier one of the same setting."""
    return tuple({_get_key(override): override for part in parts for override in part}.values())


def _get_key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
