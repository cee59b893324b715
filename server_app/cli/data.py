"""Run the command ``fedquorum data``: show each client's data before any training."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedquorum.errors import FedQuorumError, RunError, to_one_line
from fedquorum.report.terminal import fit_to_console
from rich.console import Console

from conf.compose import compose_overrides

EXIT_ERROR = 1
PLAIN_WIDTH = 200


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status, which is 1 after an error.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of the process.
    """
    arguments = _build_parser().parse_args(argv)
    try:
        show_clients(arguments.settings, arguments.output)
    except FedQuorumError as error:
        print(f"fedquorum data: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0


def show_clients(overrides: Sequence[str], output: Path) -> None:
    """Print the data that each client gets with these settings, and write a table and a figure.

    The function creates the folder ``output`` if it is missing, and writes ``clients.csv``,
    ``clients.png`` and ``clients.svg`` into it. It replaces existing files and trains nothing.

    Raises
    ------
    SettingsError, DataError
        If a run with these settings would raise it.
    RunError
        If ``output`` cannot be written.
    """
    composed = compose_overrides(tuple(overrides))
    # These libraries take seconds to import, so --help and a typo do not import them.
    from fedquorum.report.figure_files import save_figure

    from server_app.runs.data_preview import (
        build_client_rows,
        build_clients_table,
        draw_clients_figure,
        find_data_warnings,
        format_totals,
        write_clients_csv,
    )
    from server_app.runs.first_lines import describe_run_data, list_first_lines, preview_masks

    settings = composed.settings
    summary, masks = describe_run_data(settings), preview_masks(composed)
    first_lines = [*list_first_lines(composed, summary, masks)]
    rows = build_client_rows(settings)
    title = f"{composed.experiment}: {settings.data.name}, seed {settings.seed}"
    output = output.absolute()
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_clients_csv(rows, output / "clients.csv")
        figures = save_figure(draw_clients_figure(rows, title), output, "clients")
    except OSError as error:
        problem = to_one_line(error)
        raise RunError(f"--output must be a folder to write to, got {output}: {problem}") from None
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)  # a file or a pipe has no width to fit
    table = build_clients_table(rows, title)
    dropped_columns = fit_to_console(table, console, keep=4)
    console.print(table)
    lines = [
        *first_lines,
        format_totals(rows),
        *find_data_warnings(rows, settings.client.batch_size),
    ]
    if dropped_columns:
        lines.append(f"Columns left out at this width, all in clients.csv: {dropped_columns}")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    for path in (output / "clients.csv", *figures):
        console.print(str(path), soft_wrap=True, markup=False, highlight=False)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedquorum data",
        description="Print the data that each client of a run gets, before any training, and "
        "write it as a table (CSV) and a picture (PNG, SVG).",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=VALUE",
        help="settings of the run, as for fedquorum: experiment=fedalign/fmnist seed=2",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("clients"),
        metavar="FOLDER",
        help="the folder to write to (default: clients)",
    )
    return parser
