"""Run the command ``fedquorum-audit``: replay, check and explain runs from their records."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FedQuorumError, RunError
from ..records.client_names import parse_client
from ..records.data_fingerprint import describe_fingerprint, get_fingerprint
from ..records.provenance import check_audit_packages
from ..sanitize import MAX_LINE_LENGTH, sanitize

if TYPE_CHECKING:
    from .check import AuditResult

EXIT_ERROR = 1
MAX_MISMATCHES_SHOWN = 20

PROGRAM = "fedquorum-audit"

Printer = Callable[[object], None]
"""Prints one line to standard error."""


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Audit runs, or explain a decision; return 1 after a mismatch or an error, otherwise 0.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the command's name; by default those of the process.
    program : str
        The command's name. The app has this command as ``fedquorum audit``.
    """

    def print_error(text: object) -> None:
        """Print one sanitized line to standard error."""
        print(f"{program}: {sanitize(text, MAX_LINE_LENGTH)}", file=sys.stderr)

    parser = _build_parser(program)
    arguments = parser.parse_args(argv)
    one_decision = (arguments.client, arguments.round)
    if (arguments.client is None) != (arguments.round is None):
        parser.error("--client and --round go together: type --client K --round T")
    try:
        check_audit_packages()
        if arguments.client is None:
            return audit_runs(arguments.directory, print_error, trust=arguments.trust)
        explain_decision(arguments.directory, *one_decision, trust=arguments.trust)
    except FedQuorumError as error:
        print_error(error)
        return EXIT_ERROR
    return 0


def audit_runs(directory: Path, print_error: Printer, *, trust: bool = False) -> int:
    """Replay every decision of all runs in or below ``directory`` and print the mismatches.

    Returns 1 if there is a mismatch, or a run cannot be replayed, otherwise 0.

    Parameters
    ----------
    directory : Path
        A run, or a folder with runs.
    print_error : callable
        Prints one line to standard error.
    trust : bool
        Whether to import rules that the runs name by import path, which executes their code.

    Raises
    ------
    RunError
        If there is no run.
    """
    from ..records.reader import find_runs
    from .check import audit_run

    status = 0
    for run in find_runs([directory], print_error):
        try:
            num_problems = _print_audit(audit_run(run, trust=trust))
        except FedQuorumError as error:
            num_problems = 1
            print_error(error)
        status = EXIT_ERROR if num_problems else status
    return status


def explain_decision(
    directory: Path, client: int | str, server_round: int, *, trust: bool = False
) -> None:
    """Print why a client was selected in a round, its reply, and how its update got its weight.

    Parameters
    ----------
    directory : Path
        A run.
    client : int or str
        The id or the name of the decision's client.
    server_round : int
        The decision's round.
    trust : bool
        As in ``audit_runs``.

    Raises
    ------
    RunError
        If ``directory`` is not one run, or has no such client or round.
    """
    from ..records.reader import find_runs
    from .explain import describe_decision
    from .replay import convert_damage_errors, read_audit_input

    runs = find_runs([directory])
    if len(runs) > 1:
        raise RunError(f"--client and --round need a single run, got {directory} with {len(runs)}")
    with convert_damage_errors(runs[0]):
        recorded = read_audit_input(runs[0], trust=trust)
        _print_lines(describe_decision(recorded, client, server_round, "--client {}"))


def _print_audit(result: "AuditResult") -> int:
    """Print an audit and return the number of mismatches."""
    run, mismatches = result.run, result.mismatches
    summary = (
        f"  {run.strategy}, seed {run.seed}, {run.status}: {result.num_rounds} of "
        f"{len(run.rounds)} rounds and {result.num_decisions} client answers replayed"
    )
    data = describe_fingerprint(get_fingerprint({"data": run.data}))
    lines = [
        str(run.directory),
        summary,
        *([f"  data: {data}"] if data else []),
        *(f"  not in the records: {text}" for text in result.unverifiable),
        *(
            f"  mismatch: {mismatch.format(run.client_names)}"
            for mismatch in mismatches[:MAX_MISMATCHES_SHOWN]
        ),
    ]
    if len(mismatches) > MAX_MISMATCHES_SHOWN:
        lines.append(f"  ... and {len(mismatches) - MAX_MISMATCHES_SHOWN} more")
    lines.append(f"  {format_summary_line(len(mismatches))}")
    _print_lines(lines)
    return len(mismatches)


def format_summary_line(mismatches: int) -> str:
    """Return the last line of an audit.

    Parameters
    ----------
    mismatches : int
        Number of recorded values that differ from the replayed ones.
    """
    if mismatches == 0:
        return "every decision matches the records"
    return f"{mismatches} mismatch{'es' if mismatches > 1 else ''}"


def _print_lines(lines: Iterable[str]) -> None:
    """Print sanitized lines with their indentation."""
    for line in lines:
        indentation = line[: len(line) - len(line.lstrip(" "))]
        print(indentation + sanitize(line, MAX_LINE_LENGTH))


def _build_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Replay every decision of a run from its records and report any mismatch (exit "
        "status 1).",
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="a run, or a folder with runs at any depth"
    )
    parser.add_argument(
        "--client",
        type=parse_client,
        metavar="K",
        help="with --round: explain the decision about client K, an id or a name",
    )
    parser.add_argument(
        "--round", type=int, metavar="T", help="the round to explain; rounds count from 1"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import the rules that a run names by import path, which executes their code: use it "
        "only for your own runs",
    )
    return parser
