"""Start the command ``fedquorum`` or a subcommand, and import only the modules it needs."""

import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from fedquorum.errors import suggest_name

EXIT_USAGE = 2


def main(arguments: Sequence[str]) -> int:
    """Run the subcommand in the first argument, or else a job; return the exit status.

    Parameters
    ----------
    arguments : sequence of str
        The arguments of the process.
    """
    first, *rest = arguments or [""]
    if first in COMMANDS:
        return COMMANDS[first](rest)
    problem = _describe_problem(first)
    if problem:
        print(f"fedquorum: {problem}", file=sys.stderr)
        return EXIT_USAGE
    from server_app.cli.fedquorum import main as run

    run()
    return 0


def _describe_problem(first: str) -> str:
    """Explain why a first argument is neither a command, nor a setting, nor a flag.

    Returns "" for valid arguments, and for a setting without a value, which Hydra explains.
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


def _run_audit(arguments: Sequence[str]) -> int:
    from fedquorum.audit.cli import main as audit

    return audit(arguments, program="fedquorum audit")


def _run_data(arguments: Sequence[str]) -> int:
    from server_app.cli.data import main as data

    return data(arguments)


def _run_predict(arguments: Sequence[str]) -> int:
    from server_app.cli.predict import main as predict

    return predict(arguments)


def _run_report(arguments: Sequence[str]) -> int:
    from fedquorum.report.cli import main as report

    return report(arguments, program="fedquorum report")


def _run_study(arguments: Sequence[str]) -> int:
    from server_app.cli.study import main as study

    return study(arguments)


COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = MappingProxyType(
    {
        "audit": _run_audit,
        "data": _run_data,
        "predict": _run_predict,
        "report": _run_report,
        "study": _run_study,
    }
)
"""The function of each subcommand; it takes the arguments after the name, returns the status."""
