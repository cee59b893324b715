"""Say at the start of a run what was understood, and which settings nobody gave."""

from dataclasses import asdict

from fedquorum.records.settings import flatten_settings

from conf import ComposedConfig

NAMED_DEFAULTS = (
    "strategy",
    "model",
    "rounds",
    "client.lr",
    "client.batch_size",
    "client.local_epochs",
)
"""The settings that a line names if nobody gave them."""


def format_defaults(composed: ComposedConfig) -> str:
    """Return a line with the most important settings that have their defaults.

    It is empty with a preset, whose values the user has chosen.
    """
    if composed.experiment != "custom":
        return ""
    values = flatten_settings(asdict(composed.settings))
    given = {override.lstrip("+~").partition("=")[0] for override in composed.overrides}
    defaults = ", ".join(
        f"{key}={values.get(key, values.get(f'{key}.name'))}"
        for key in NAMED_DEFAULTS
        if not given & {key, f"{key}.name", key.partition(".")[0]}
    )
    return f"Not given, so by default (experiment=custom): {defaults}" if defaults else ""
