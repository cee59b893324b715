"""Strategies and settings as people read them, for tables, charts and sentences."""

from collections.abc import Mapping

from fedquorum.intake import shown
from fedquorum.named import NAMED

SETTINGS = {
    "client.lr": "client rate",
    "client.local_epochs": "E",
    "strategy.server_lr": "server rate",
    "strategy.cutoff": "K",
    "server_optimizer.name": "server optimizer",
    "model.name": "model",
}
"""Settings whose last part alone would not say what they are."""

SCHEDULES = {
    "constant": "epsilon stays",
    "step": "epsilon falls to 0",
    "linear": "epsilon falls linearly",
    "cosine": "epsilon falls as a cosine",
    "exponential": "epsilon falls exponentially",
    "sqrt": "epsilon falls with the root of t",
}
OPTIONS = ("availability.name", "strategy.selection", "strategy.weighting", "strategy.name")
"""Settings whose value says everything."""


def method_title(strategy: str) -> str:
    """Return a strategy's name, such as "FedALIGN"."""
    return NAMED[strategy].title if strategy in NAMED else shown(strategy)


def setting_name(key: str) -> str:
    """Return a setting's name, such as "client rate" for client.lr."""
    return SETTINGS.get(key, key.rpartition(".")[2].replace("_", " "))


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
    if key == "strategy.epsilon_schedule" and value in SCHEDULES:
        fraction = (others or {}).get("strategy.epsilon_step_fraction")
        after = f" after {100 * fraction:.3g} %" if isinstance(fraction, float) else ""
        return SCHEDULES[value] + (after if value == "step" else "")
    if key in OPTIONS:
        return shown(value)
    try:
        return shown(f"{setting_name(key)} {float(value):.3g}")
    except ValueError:
        return shown(f"{setting_name(key)} {value}")
