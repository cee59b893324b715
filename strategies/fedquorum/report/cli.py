"""Run the command ``fedquorum report``: write a report of runs, or follow a run."""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from ..errors import FedQuorumError, RunError, to_one_line
from ..records.provenance import check_report_packages
from ..sanitize import MAX_LINE_LENGTH, sanitize

if TYPE_CHECKING:
    from .experiment import Experiment

PROGRAM = "fedquorum-report"
EXIT_ERROR = 1
DEFAULT_PORT = 8475
MAX_PORT = 65535
PAPER_WIDTH_RANGE = (2.0, 20.0)  # of figures for papers, in inches


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command line and return the exit status, which is 1 after an error.

    Parameters
    ----------
    argv : sequence of str, optional
        By default the arguments of the process.
    program : str
        The name of the command in its messages.
    """
    parser = _build_parser(program)
    arguments = parser.parse_args(argv)
    _check_options(parser, arguments)
    try:
        check_report_packages()
        if arguments.watch is not None:
            port = DEFAULT_PORT if arguments.port is None else arguments.port
            serve_watch_page(arguments.watch, port, program)
        else:
            write_report(
                arguments.directories,
                arguments.output,
                paper_width=arguments.paper_width,
                program=program,
            )
    except FedQuorumError as error:
        _print_error(error, program)
        return EXIT_ERROR
    return 0


def _check_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Exit with one line if the options exclude each other."""
    if not arguments.directories and arguments.watch is None:
        parser.error("give a DIR with runs, or --watch DIR")
    if arguments.directories and arguments.watch is not None:
        parser.error("give only one of DIR and --watch DIR")
    if arguments.port is not None and arguments.watch is None:
        parser.error("--port needs --watch DIR, whose page it serves")
    if arguments.paper_width is not None and not arguments.directories:
        parser.error("--paper-width needs a DIR with runs, whose figures it writes")


def _print_error(text: object, program: str) -> None:
    """Print one sanitized line to standard error."""
    print(f"{program}: {sanitize(text, MAX_LINE_LENGTH)}", file=sys.stderr)


def write_report(
    directories: Iterable[Path],
    output: Path,
    *,
    paper_width: float | None = None,
    program: str = PROGRAM,
) -> None:
    """Print the table of all runs below ``directories`` and write page, tables and figures.

    Creates the folder ``output`` and overwrites in it ``report.html``, ``table.csv``,
    ``differences.csv``, ``tables.md`` and ``tables.tex``, and in ``figures`` every chart as PNG
    and SVG. ``paper_width``, in inches, adds every chart as PDF, with one PDF per panel if only
    one panel fits into the width. Unreadable runs are reported on standard error, after the name
    ``program``, and omitted.

    Raises
    ------
    RunError
        If no run can be read, or ``output`` cannot be written.
    """
    # These take seconds to import: not for --help.
    from ..records.reader import read_runs
    from .data import list_experiment_lines
    from .experiment import build_experiments
    from .seed_groups import group_runs
    from .tables import build_overview_table, check_run_metric
    from .terminal import create_console, fit_to_console

    runs, damaged = read_runs(directories, check_run_metric)
    for problem in damaged:
        _print_error(f"left out: {problem}", program)
    if not runs:
        raise RunError("expected a run that can be read, got none")
    experiments = build_experiments(group_runs(runs))
    output = output.absolute()
    try:
        written = _write_files(experiments, damaged, output, paper_width)
    except OSError as error:
        problem = to_one_line(error)
        raise RunError(f"--output must be a folder to write to, got {output}: {problem}") from None
    console = create_console()
    table = build_overview_table([row for one in experiments for row in one.rows])
    left_out = fit_to_console(table, console, keep=3)
    console.print(table)
    if left_out:
        console.print(f"Columns left out at this width: {left_out}", soft_wrap=True)
    for one in experiments:
        lines = list_experiment_lines(one)
        for line in lines if len(experiments) == 1 else lines[:1]:
            console.print(line, soft_wrap=True, markup=False, highlight=False)
    for path in written:
        console.print(str(path), soft_wrap=True, markup=False, highlight=False)


def _write_files(
    experiments: Sequence["Experiment"],
    warnings: Sequence[str],
    output: Path,
    paper_width: float | None,
) -> list[Path]:
    """Write all files and return the paths to print."""
    from .figure_files import save_figure, save_paper_figure
    from .matplotlib_charts import compress_picture, draw_figure, split_for_paper
    from .names import to_slug
    from .page import render_report_page
    from .tables import (
        build_experiment_tables,
        format_latex,
        format_markdown,
        write_differences_csv,
        write_summary_csv,
    )

    figures = output / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    pictures = {}
    for one in experiments:
        for chart in one.charts:
            name = f"{to_slug(one.name)}_{chart.name}"
            png, _ = save_figure(draw_figure(chart), figures, name)
            pictures[one.name, chart.name] = compress_picture(png)
            for part_name, part in split_for_paper(chart, paper_width) if paper_width else ():
                save_paper_figure(
                    draw_figure(part, paper_width), figures, f"{to_slug(one.name)}_{part_name}"
                )
    tables = [
        table
        for one in experiments
        for table in build_experiment_tables(one.groups, one.rows, one.differences, one.name)
    ]
    written = [output / name for name in ("report.html", "tables.md", "tables.tex")]
    texts = (
        render_report_page(experiments, pictures, warnings),
        format_markdown(tables),
        format_latex(tables),
    )
    for path, text in zip(written, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    rows = [row for one in experiments for row in one.rows]
    pairs = [pair for one in experiments for pair in one.differences]
    write_summary_csv(rows, output / "table.csv")
    write_differences_csv(pairs, output / "differences.csv")
    return [*written, output / "table.csv", output / "differences.csv", figures]


def serve_watch_page(directory: Path, port: int, program: str = PROGRAM) -> None:
    """Serve a page that follows a run, and the run's metrics, until Ctrl-C.

    Parameters
    ----------
    directory : Path
        A run, or a folder with runs.
    port : int
        0 takes any free port.
    program : str
        The name of the command in its messages.

    Raises
    ------
    RunError
        If ``directory`` is not a folder, or the port cannot be used.
    """
    try:
        from .watch_server import WatchServer

        with WatchServer(directory, port) as server:
            print(f"Following {directory} at {server.url} (Ctrl-C ends it)", flush=True)
            print(server.metrics_notice, flush=True)
            Thread(target=server.serve_forever, daemon=True).start()
            try:
                server.watch.draw_forever()
            finally:
                server.shutdown()
    except KeyboardInterrupt:
        print(f"{program}: no longer followed", file=sys.stderr)


def _parse_inches(text: str) -> float:
    low, high = PAPER_WIDTH_RANGE
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise argparse.ArgumentTypeError(
            f"must be a width from {low:g} to {high:g} inches, got {text}"
        )
    return number


def _parse_port(text: str) -> int:
    """Parse a port, or raise the error that argparse prints."""
    if not text.isascii() or not text.isdigit() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to {MAX_PORT}, got {text!r}"
        )
    return int(text)


def _build_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Make a page, tables and figures of runs, or follow a run.",
    )
    parser.add_argument(
        "directories",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="a run, or a folder with runs at any depth",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("report"),
        metavar="FOLDER",
        help="the folder to write to (default: report)",
    )
    parser.add_argument(
        "--paper-width",
        type=_parse_inches,
        metavar="INCHES",
        help="write every figure as PDF as well, as wide as a paper's column (often 3.3), with "
        "letters of 7 and 8 points; a narrow column has a file for each panel",
    )
    parser.add_argument(
        "--watch",
        type=Path,
        metavar="DIR",
        help="serve a page that follows a run, or the newest run in a folder, and /metrics for "
        "Prometheus, to this machine only",
    )
    parser.add_argument(
        "--port",
        type=_parse_port,
        metavar="N",
        help=f"with --watch: the page's port (default: {DEFAULT_PORT}; 0 takes any free port)",
    )
    return parser
