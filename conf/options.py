"""List the settings groups and the names of their options."""

from collections.abc import Iterable
from pathlib import Path

from fedquorum.errors import suggest_name

from conf.schema.option_schemas import OPTION_SCHEMAS

GROUPS = (
    *(
        "strategy",
        "server_optimizer",
        "data",
        "model",
        "availability",
        "response_time",
        "privacy",
        "secure_aggregation",
        "engine",
    ),
    "tracker",
)
PARTS = tuple(f"strategy/{part}" for part in ("selection", "weighting", "participation"))
"""The groups within ``strategy=composed``."""


def options(group_name: str) -> list[str]:
    """Return the options of a settings group, such as the names of all experiments."""
    folder = Path(__file__).parent / group_name
    files = (f.relative_to(folder).with_suffix("").as_posix() for f in folder.rglob("*.yaml"))
    from_files = (
        n for n in files if group_name in PARTS or not f"{group_name}/{n}".startswith(PARTS)
    )
    return sorted({*from_files, *OPTION_SCHEMAS.get(group_name, ())})


def format_suggestion(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean NAME?)" with the known name most similar to ``name``, "" for none."""
    names = [*known]
    hint = suggest_name(name, names)
    return f" ({hint})" if hint else ""
