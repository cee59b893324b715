"""Format the commands that a run prints, so that each works as it is printed.

A path with blanks or quotes is quoted for the shell, and for Hydra where it is the value of a
setting. A run with code of the user's own needs consent to import it from records.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from conf import Settings
from conf.compose import quote
from conf.schema.rules import list_imported_code

TRUST_FLAG = "--trust"
TRUST_OVERRIDE = "engine.trust_code=true"
_MODEL_KEY = "model.path"
_PLAIN = re.compile(r"[\w./+-]+( [\w./+-]+)*", re.ASCII)


def find_program() -> list[str]:
    """Return the words that start FedQuorum: its name, or where that is not in the PATH its path.

    Cron, systemd and notebooks call commands by their paths.
    """
    if shutil.which("fedquorum"):
        return ["fedquorum"]
    beside = Path(sys.executable).with_name("fedquorum")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "fedquorum_app"]


def format_command(*words: str) -> str:
    """Return a command of FedQuorum with these words, quoted for a shell."""
    return shlex.join([*find_program(), *words])


def format_override(key: str, path: Path | str) -> str:
    """Return the setting of a path, quoted for Hydra if necessary."""
    text = str(path)
    return f"{key}={text if _PLAIN.fullmatch(text) else quote(text)}"


def format_next_commands(directory: Path, settings: Iterable[Settings]) -> str:
    """Return the two commands that show more of the runs in a folder, which have these settings."""
    trust = [TRUST_FLAG] if any(map(names_own_rules, settings)) else []
    return (
        f"  figures and tables    {format_command('report', str(directory))}\n"
        f"  replay all decisions  {format_command('audit', str(directory), *trust)}"
    )


def names_own_rules(settings: Settings) -> bool:
    """Say whether the settings name rules by import path, which an audit imports."""
    return bool(list_imported_code(settings).keys() - {_MODEL_KEY})
