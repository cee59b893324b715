"""The methods of a study with their settings, and the words of their runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fedquorum.errors import SettingsError
from fedquorum.metrics import Metric, metric_called
from fedquorum.rule import Question
from hydra.core.override_parser.types import Override

from conf import Settings
from conf.compose import compose_words
from conf.schema.settings import evaluated_metric
from conf.words import swept_values
from server_app.study.answer import SeedRun
from server_app.study.methods import Method, methods_of, space_of, values_in
from server_app.study.scores import GROUPS
from server_app.study.settings import StudySettings
from server_app.study.tuning import MethodTuning

VALIDATION = "data.validation_fraction"
DEFAULTS = {"experiment": "custom", VALIDATION: "0.2"}
AVAILABILITY, ALWAYS, AT_RANDOM = "availability", "always", "bernoulli"
CHOSEN = ("strategy", "resume", "engine.stop_after_round")
"""What the study sets in its runs."""

STATISTICS = ("average", "worst", "best", "worst10", "best10")
"""What is compared of a group of clients, beside the mean of the metric by data."""


@dataclass
class Contender:
    """A method in the study, and what it has come to.

    Parameters
    ----------
    method : Method
        The method.
    words : tuple of str
        What its runs have in common, as Hydra overrides.
    settings : Settings
        What that composes to.
    tuning : MethodTuning
        Its trials.
    runs : list of SeedRun
        With the tuned values, one a seed.
    left_out : str
        Why it is compared no more; empty while it is.
    """

    method: Method
    words: tuple[str, ...]
    settings: Settings
    tuning: MethodTuning
    runs: list[SeedRun] = field(default_factory=list)
    left_out: str = ""


@dataclass(frozen=True)
class Contest:
    """What is compared, and by what.

    Parameters
    ----------
    contenders : tuple of Contender
        The methods, the baseline first.
    refused : mapping of Method to str
        Those that do not go with the settings, and why.
    metric : str
        What clients measure.
    score : str
        What is compared, by dotted key below ``test`` and ``validation``.
    """

    contenders: tuple[Contender, ...]
    refused: dict[Method, str]
    metric: str
    score: str

    @property
    def baseline(self) -> Contender:
        """The plain method."""
        return self.contenders[0]

    @property
    def settings(self) -> Settings:
        """The baseline's settings; those of the others differ in what makes a method alone."""
        return self.baseline.settings

    @property
    def measured(self) -> Metric:
        """The metric, with its unit and its range."""
        return metric_called(self.metric)

    @property
    def live(self) -> list[Contender]:
        """The methods that are compared."""
        return [contender for contender in self.contenders if not contender.left_out]

    @property
    def higher_is_better(self) -> bool:
        """Whether the larger score is the better one."""
        return self.measured.higher_is_better


def tuning_seeds(contest: Contest) -> tuple[int, int]:
    """Return the seeds of the tuning; those of the comparison follow."""
    return contest.settings.seed, contest.settings.seed + 1


def contest_of(words: Sequence[str], study: StudySettings) -> Contest:
    """Return what a study compares.

    Parameters
    ----------
    words : sequence of str
        The settings that all runs share, see ``common_words``.
    study : StudySettings
        What is asked.

    Raises
    ------
    SettingsError
        If the baseline or a method that was named does not go with the settings, or no method does.
    """
    plain, *others = methods_of(study)
    words = _with_availability(words, plain, study)
    first = compose_words(_together(words, plain.words)).settings
    _check(first, study)
    metric = evaluated_metric(first)
    score = _checked_score(study, metric)
    better = metric_called(metric).higher_is_better
    contenders, refused = [_contender(plain, words, higher_is_better=better)], dict[Method, str]()
    for method in others:
        try:
            contenders.append(_contender(method, words, higher_is_better=better))
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
    return Contest(tuple(contenders), refused, metric, score)


def _checked_score(study: StudySettings, metric: str) -> str:
    score = study.score_of(metric)
    group, _, name = score.partition(".")
    names = (metric, *STATISTICS)
    if group not in GROUPS or name not in names:
        raise SettingsError(
            f"metric_key must be GROUP.NAME with a group ({', '.join(GROUPS)}) and one of "
            f"{', '.join(names)}, got {score}"
        )
    return score


def _with_availability(
    words: Sequence[str], plain: Method, study: StudySettings
) -> tuple[str, ...]:
    """Return the words, with clients that come and go where that is the question.

    On real machines they do so by themselves, and a preset or the user may have said how.
    """
    given = any(_key(word) == AVAILABILITY for word in words)
    if given or study.asked != Question.PARTICIPATION:
        return tuple(words)
    settings = compose_words(_together(words, plain.words)).settings
    simulated = settings.engine.superlink is None and settings.availability.name == ALWAYS
    return (*words, f"{AVAILABILITY}={AT_RANDOM}") if simulated else tuple(words)


def _check(settings: Settings, study: StudySettings) -> None:
    if settings.data.validation_fraction == 0:
        raise SettingsError(f"{VALIDATION} must be above 0 in a study, which tunes by it, got 0")
    if study.asked == Question.PRIORITY and settings.data.priority == "all":
        raise SettingsError(
            "data.priority must name the clients that goal=priority is about (a list, "
            "heterogeneous or random), got all"
        )
    if settings.evaluation.clients != "all":
        raise SettingsError(
            f"evaluation.clients must be all in a study, got {settings.evaluation.clients}"
        )


def _contender(method: Method, words: Sequence[str], *, higher_is_better: bool) -> Contender:
    together = _together(words, method.words)
    settings = compose_words(together).settings
    space = space_of(settings, [_key(word) for word in words])
    tuning = MethodTuning(space, values_in(settings, space), higher_is_better, settings.seed)
    return Contender(method, together, settings, tuning)


def common_words(overrides: Iterable[Override]) -> tuple[str, ...]:
    """Return the settings that all runs share, with a study's defaults of some.

    Raises
    ------
    SettingsError
        If one is the study's to choose, or has several values.
    """
    words = dict(_one_value(override) for override in overrides)
    for key in CHOSEN:
        if key in words:
            hint = " (methods=[...] says which are compared)" if key == CHOSEN[0] else ""
            raise SettingsError(f"{key} must be left to the study{hint}, got {words[key]}")
    defaults = (f"{key}={value}" for key, value in DEFAULTS.items() if key not in words)
    return (*words.values(), *defaults)


def _one_value(override: Override) -> tuple[str, str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return key, str(override.input_line)
    values = swept_values(override) if override.is_discrete_sweep() else ()
    if len(values) != 1:
        raise SettingsError(f"{key} must have one value in a study, got {override.input_line}")
    return key, f"{key}={values[0]}"


def _together(*parts: Sequence[str]) -> tuple[str, ...]:
    """Return words of which a later one of the same setting wins."""
    return tuple({_key(word): word for part in parts for word in part}.values())


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
