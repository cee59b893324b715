"""Start the command ``fedquorum`` or a subcommand, and import only what that one needs."""

import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from fedquorum.errors import suggest_name

EXIT_USAGE = 2


def main(words: Sequence[str]) -> int:
    """Run the subcommand that is the first word, or else the settings; return the exit status.

    Parameters
    ----------
    words : sequence of str
        The arguments of the process.
    """
    first, *rest = words or [""]
    if first in COMMANDS:
        return COMMANDS[first](rest)
    mistake = _mistake(first)
    if mistake:
        print(f"fedquorum: {mistake}", file=sys.stderr)
        return EXIT_USAGE
    from server_app.command_line import main as run

    run()
    return 0


def _mistake(first: str) -> str:
    """Say what is wrong with a first word that is neither a command, nor a setting, nor a flag.

    Returns "" for all other words, and for a setting without a value: Hydra's grammar explains it.
    """
    if not first or "=" in first or first[0] in "-+~" or first == "help":
        return ""
    from conf import Settings

    settings = Settings.__dataclass_fields__
    if first.partition(".")[0] in settings:
        return ""
    hint = suggest_name(first, [*COMMANDS, *settings])
    return (
        f"the first word must be {', '.join(COMMANDS)}, a flag, or a setting NAME=VALUE, got "
        f"{first!r} ({hint or 'type fedquorum --help'})"
    )


def _audit(words: Sequence[str]) -> int:
    from fedquorum.audit.command_line import main as audit

    return audit(words, program="fedquorum audit")


def _data(words: Sequence[str]) -> int:
    from server_app.clients_table.command_line import main as data

    return data(words)


def _report(words: Sequence[str]) -> int:
    from server_app.report.command_line import main as report

    return report(words)


def _study(words: Sequence[str]) -> int:
    from server_app.study.command_line import main as study

    return study(words)


COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = MappingProxyType(
    {"audit": _audit, "data": _data, "report": _report, "study": _study}
)
"""What runs each subcommand; takes the words after its name and returns the exit status."""
