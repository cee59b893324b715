"""Strategies and settings as people read them, for tables, charts and sentences."""

import re
from collections.abc import Mapping

from fedquorum.intake import shown
from fedquorum.named import NAMED

SETTINGS = {
    "client.lr": "client rate",
    "client.local_epochs": "E",
    "client.theorem_lr.mu": "theorem mu",
    "client.theorem_lr.L": "theorem L",
    "data.num_clients": "clients",
    "strategy.server_lr": "server rate",
    "strategy.cutoff": "K",
}
"""Settings whose last part alone would not say what they are."""

SCHEDULES = {
    "constant": "constant epsilon",
    "step": "epsilon falls to 0",
    "linear": "epsilon falls linearly",
    "cosine": "epsilon falls as a cosine",
    "exponential": "epsilon falls exponentially",
    "sqrt": "epsilon falls with the root of t",
}
AVAILABILITIES = {
    "always": "always available",
    "bernoulli": "Bernoulli",
    "markov": "Markov",
}
OPTIONS = ("strategy.selection", "strategy.weighting", "strategy.name")
"""Settings whose value says everything."""

HALF = 0.5


def method_title(strategy: str) -> str:
    """Return a strategy's name, such as "FedALIGN"."""
    return NAMED[strategy].title if strategy in NAMED else shown(strategy)


def setting_name(key: str) -> str:
    """Return a setting's name, such as "client rate" for client.lr.

    An option is called as its group: "availability" for availability.name.
    """
    group, _, name = key.rpartition(".")
    if name == "name" and group:
        return setting_name(group)
    return SETTINGS.get(key, name.replace("_", " "))


def setting_words(word: str, others: Mapping[str, object] | None = None) -> str:
    """Return a setting with its value: "client.lr=0.05" is "client rate 0.05".

    Parameters
    ----------
    word : str
        ``key=value``.
    others : mapping, optional
        All settings, by dotted key, where a word depends on another one.
    """
    key, _, value = word.lstrip("+").partition("=")
    spoken = value_words(key, value, others)
    return spoken if _says_everything(key, value) else shown(f"{setting_name(key)} {spoken}")


def value_words(key: str, value: str, others: Mapping[str, object] | None = None) -> str:
    """Return a setting's value alone, as it stands on an axis; see ``setting_words``."""
    if key == "strategy.epsilon_schedule" and value in SCHEDULES:
        return SCHEDULES[value] + (_step_words(others or {}) if value == "step" else "")
    if key == "availability.name":
        return shown(AVAILABILITIES.get(value, value))
    if key.endswith(".name"):
        return shown(value.replace("_", " "))
    try:
        number = float(value)
    except ValueError:
        return shown(value)
    return shown(value) if number.is_integer() else f"{number:.3g}"


def _says_everything(key: str, value: str) -> bool:
    return key in (*OPTIONS, "availability.name") or (
        key == "strategy.epsilon_schedule" and value in SCHEDULES
    )


def _step_words(settings: Mapping[str, object]) -> str:
    """Return after which part of the rounds epsilon falls to 0, empty if that is not known."""
    fraction = settings.get("strategy.epsilon_step_fraction")
    if not isinstance(fraction, float):
        return ""
    return " at half" if fraction == HALF else f" after {100 * fraction:.3g} %"


def slug(text: str) -> str:
    """Return a text as part of a file name or an address: letters, figures and single hyphens."""
    return "-".join(re.findall(r"[^\W_]+", text))
