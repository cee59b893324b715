"""List the settings groups and the names of their options."""

from collections.abc import Iterable
from pathlib import Path

from fedquorum.errors import did_you_mean

from conf.schema.register import OPTIONS

GROUPS = (
    *(
        "strategy",
        "server_optimizer",
        "data",
        "model",
        "availability",
        "response_time",
        "privacy",
        "engine",
    ),
    "tracker",
)
PARTS = tuple(f"strategy/{part}" for part in ("selection", "weighting", "participation"))
"""The groups within ``strategy=composed``."""


def options(group: str) -> list[str]:
    """Return the options of a settings group, such as the names of all experiments."""
    folder = Path(__file__).parent / group
    files = (f.relative_to(folder).with_suffix("").as_posix() for f in folder.rglob("*.yaml"))
    from_files = (n for n in files if group in PARTS or not f"{group}/{n}".startswith(PARTS))
    return sorted({*from_files, *OPTIONS.get(group, ())})


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean NAME?)" with the known name that is like ``name``, "" for none."""
    names = [*known]
    hint = did_you_mean(name, names)
    return f" ({hint})" if hint else ""
