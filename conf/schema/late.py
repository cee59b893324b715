"""Check the settings of late updates, and describe what a user should know of them."""

from fedquorum.errors import ParameterError, SettingsError
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.participation import Participation
from fedquorum.rules.participation.known_rates import needs_rates
from fedquorum.rules.staleness import LateUpdates, check_late_rules

from conf.schema.rules import find_setting, format_parameter_error
from conf.schema.settings import Settings


def build_late_updates(settings: Settings) -> LateUpdates | None:
    """Return how late updates count; None if they are discarded."""
    engine = settings.engine
    if engine.late_replies == "discard":
        return None
    return LateUpdates(engine.staleness_exponent, engine.max_staleness, engine.concurrency)


def check_late_updates(settings: Settings) -> None:
    """Refuse settings of late updates that nothing uses, or that contradict each other.

    Raises
    ------
    SettingsError
        For the first of them.
    """
    engine = settings.engine
    if engine.late_replies == "discard":
        for name in ("max_staleness", "concurrency"):
            if (given := getattr(engine, name)) is not None:
                raise SettingsError(
                    f"engine.{name} must be null with engine.late_replies=discard (it is about "
                    f"late updates, which engine.late_replies=count lets count), got {given}"
                )
        return
    if settings.privacy.name != "none":
        raise SettingsError(
            f"engine.late_replies must be discard with privacy={settings.privacy.name} (updates "
            "are clipped by the norm of the round in which they are asked for), got count"
        )
    if engine.quorum_clients == "priority":
        raise SettingsError(
            "engine.quorum_clients must be asked with engine.late_replies=count (a quorum then "
            "counts replies of any client and of any age), got priority"
        )
    quorum, concurrency = engine.quorum, engine.concurrency
    if quorum is not None and concurrency is not None and quorum > concurrency:
        raise SettingsError(
            f"engine.quorum must be at most {concurrency}, engine.concurrency (no more clients are "
            f"under way), got {quorum:g}"
        )


def check_late_clock(settings: Settings, engine: str) -> None:
    """Refuse late updates by the real clock on an engine of this process.

    Raises
    ------
    SettingsError
        If nobody can be late.
    """
    if settings.engine.late_replies == "count" and settings.response_time.name == "none":
        raise SettingsError(
            f"engine.late_replies must be discard with engine={engine} and response_time=none "
            "(nobody is late there: response_time=lognormal simulates it, and engine=flower counts "
            "by the real clock), got count"
        )


def check_late_rules_of(settings: Settings, rules: RuleSet, late: LateUpdates) -> None:
    """Refuse rules whose updates must be of the newest model.

    Raises
    ------
    SettingsError
        If the rules are refused, with the reason.
    """
    try:
        check_late_rules(rules, late)
    except ParameterError as error:
        name = error.parameter
        setting = (
            f"engine.{name}"
            if name in ("late_replies", "concurrency")
            else find_setting(error, settings)
        )
        text = format_parameter_error(error, setting)
        raise SettingsError(text.replace("late_replies=", "engine.late_replies=")) from None
    if needs_rates(rules.weighting):
        missing = ParameterError(
            "probabilities",
            "the rates of counting with engine.late_replies=count",
            None,
            "how often a late update counts is not counted ahead",
        )
        raise SettingsError(format_parameter_error(missing, find_setting(missing, settings)))


def format_late_doubt(settings: Settings, rules: RuleSet) -> str:
    """Return a line of doubt about a run whose late updates may make it unstable; else empty."""
    late, rate = build_late_updates(settings), rules.server_optimizer.learning_rate
    if late is None or late.staleness_exponent > 0 or rate < 1:
        return ""
    if not isinstance(rules.weighting, Participation):
        return ""
    return (
        "Doubtful: engine.staleness_exponent=0 with a correction for participation and "
        f"strategy.server_lr={rate:g} may be unstable: late updates count for many "
        "rounds at full length; strategy.server_lr=0.3 is safer"
    )
