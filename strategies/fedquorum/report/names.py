"""Format strategies and settings for readers of tables, charts and sentences."""

import re
from collections.abc import Iterable, Mapping

from ..registry import NAMED_STRATEGIES
from ..sanitize import sanitize

SETTING_NAMES = {
    "client.lr": "client rate",
    "client.local_epochs": "E",
    "client.theorem_lr.mu": "theorem mu",
    "client.theorem_lr.L": "theorem L",
    "data.num_clients": "clients",
    "strategy.server_lr": "server rate",
    "strategy.cutoff": "K",
}
"""The names of settings whose key does not say enough."""

SCHEDULE_NAMES = {
    "constant": "constant epsilon",
    "step": "epsilon falls to 0",
    "linear": "epsilon falls linearly",
    "cosine": "epsilon falls as a cosine",
    "exponential": "epsilon falls exponentially",
    "sqrt": "epsilon falls with the root of t",
}
AVAILABILITY_NAMES = {
    "always": "always available",
    "bernoulli": "Bernoulli",
    "markov": "Markov",
}
SELF_EXPLANATORY_KEYS = ("strategy.selection", "strategy.weighting", "strategy.name")
"""Settings whose value is shown without the name."""

HALF = 0.5
MIN_DIGITS, MAX_DIGITS = 3, 17
"""Significant digits of a value: the usual number, and one that distinguishes any two values."""

NOT_WITH_MASKS = "not with masks"
"""In the place of results of single clients, which only their nodes know."""


CLIENTS_ONCE = "each client once"
"""Beside a mean over clients that is not by data, because masks hide their amounts of data."""


def method_title(strategy: str) -> str:
    """Return a strategy's title, such as "FedALIGN"."""
    return NAMED_STRATEGIES[strategy].title if strategy in NAMED_STRATEGIES else sanitize(strategy)


def get_setting_name(key: str) -> str:
    """Return a setting's name, such as "client rate" for client.lr.

    An option has the name of its group: "availability" for availability.name.
    """
    group, _, name = key.rpartition(".")
    if name == "name" and group:
        return get_setting_name(group)
    return SETTING_NAMES.get(key, name.replace("_", " "))


def choose_digits(values: Iterable[str]) -> int:
    """Return the smallest number of significant digits, at least 3, that keeps numbers distinct.

    Values that are not numbers do not count.
    """
    numbers = {number for value in values if (number := _parse_number(value)) is not None}
    for digits in range(MIN_DIGITS, MAX_DIGITS):
        if len({f"{number:.{digits}g}" for number in numbers}) == len(numbers):
            return digits
    return MAX_DIGITS


def _parse_number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def format_setting(
    override: str, settings: Mapping[str, object] | None = None, digits: int = MIN_DIGITS
) -> str:
    """Return a setting's name and value: "client.lr=0.05" becomes "client rate 0.05".

    Parameters
    ----------
    override : str
        ``key=value``.
    settings : mapping, optional
        All settings by dotted key, for values whose text depends on another setting.
    digits : int
        The number of significant digits of a fraction.
    """
    key, _, value = override.lstrip("+").partition("=")
    text = format_value(key, value, settings, digits)
    return text if _is_self_explanatory(key, value) else sanitize(f"{get_setting_name(key)} {text}")


def format_value(
    key: str,
    value: str,
    settings: Mapping[str, object] | None = None,
    digits: int = MIN_DIGITS,
) -> str:
    """Return a setting's value, such as for an axis label; see ``format_setting``."""
    if key == "strategy.epsilon_schedule" and value in SCHEDULE_NAMES:
        return SCHEDULE_NAMES[value] + (_format_step(settings or {}) if value == "step" else "")
    if key == "availability.name":
        return sanitize(AVAILABILITY_NAMES.get(value, value))
    if key.endswith(".name"):
        return sanitize(value.replace("_", " "))
    number = _parse_number(value)
    is_fraction = number is not None and not number.is_integer()
    return f"{number:.{digits}g}" if is_fraction else sanitize(value)


def _is_self_explanatory(key: str, value: str) -> bool:
    return key in (*SELF_EXPLANATORY_KEYS, "availability.name") or (
        key == "strategy.epsilon_schedule" and value in SCHEDULE_NAMES
    )


def _format_step(settings: Mapping[str, object]) -> str:
    """Return after which fraction of the rounds epsilon falls to 0; empty if unknown."""
    fraction = settings.get("strategy.epsilon_step_fraction")
    if not isinstance(fraction, float):
        return ""
    return " at half" if fraction == HALF else f" after {100 * fraction:.3g} %"


def to_slug(text: str) -> str:
    """Convert a text for a file name or a URL: letters, digits and single hyphens."""
    return "-".join(re.findall(r"[^\W_]+", text))
