"""The command ``fedquorum-report``: tables and figures from the records of runs."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from conf.errors import FedQuorumError, RunError

EXIT_ERROR = 1
PLAIN_WIDTH = 200


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit status, 1 for an error of the user's.

    Parameters
    ----------
    words : sequence of str, optional
        The arguments, by default those of the process.
    """
    arguments = _parser().parse_args(words)
    try:
        report(arguments.directories, arguments.output)
    except FedQuorumError as error:
        print(f"fedquorum-report: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0


def report(directories: Iterable[Path], output: Path) -> None:
    """Print the table of all runs below ``directories`` and write it and the figure.

    Where a run has a local-only run of the same experiment and seed beside it, the terms of
    FedALIGN's bound are printed too, which needs the runs' data.

    Makes the folder ``output`` where it is missing and writes ``table.csv``, ``figure.png`` and
    ``figure.svg`` into it, over those of an earlier report.

    Raises
    ------
    RunError
        If there is no run, a record is damaged, or ``output`` cannot be written.
    DataError
        If the bound's terms need data that is not here.
    """
    # PyTorch and matplotlib take seconds to import: not for --help.
    from server_app.report.bound import bound_table, bound_terms
    from server_app.report.figures import save, training_figure
    from server_app.report.groups import group_runs
    from server_app.report.runs import find_runs, load_run
    from server_app.report.tables import summarize, terminal_table, write_csv

    runs = [load_run(directory) for directory in find_runs(directories)]
    groups = group_runs(runs)
    rows = summarize(groups)
    output = output.absolute()
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_csv(rows, output / "table.csv")
        figures = save(training_figure(groups), output, "figure")
    except OSError as error:
        raise RunError(f"--output must be a folder to write to, got {output} ({error})") from None
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)  # a file or a pipe has no width to fit
    console.print(terminal_table(rows))
    terms = bound_terms(runs)
    if terms:
        console.print(bound_table(terms))
    for path in (output / "table.csv", *figures):
        console.print(str(path), soft_wrap=True, markup=False, highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedquorum-report",
        description="Print a table of runs and write it (CSV) and their curves (PNG, SVG).",
    )
    parser.add_argument(
        "directories",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="a run, or a folder with runs at any depth",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("report"),
        metavar="FOLDER",
        help="where to write (default: report)",
    )
    return parser
