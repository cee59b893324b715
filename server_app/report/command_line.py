"""Run the command ``fedquorum report``: make a report of runs, or follow a run."""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from fedquorum.audit.command_line import LONGEST_LINE
from fedquorum.errors import FedQuorumError, RunError, one_line
from fedquorum.intake import shown
from rich.console import Console

from server_app.display import narrowed

if TYPE_CHECKING:
    from fedquorum.records.reader import Run

    from server_app.report.experiment import Experiment

EXIT_ERROR = 1
PLAIN_WIDTH = 200
DEFAULT_PORT = 8475
HIGHEST_PORT = 65535
WIDTHS = (2.0, 20.0)  # of figures for papers, in inches


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status, which is 1 after an error.

    Parameters
    ----------
    words : sequence of str, optional
        The arguments, by default those of the process.
    """
    parser = _parser()
    arguments = parser.parse_args(words)
    _check_together(parser, arguments)
    try:
        if arguments.watch is not None:
            watch(arguments.watch, DEFAULT_PORT if arguments.port is None else arguments.port)
        else:
            report(arguments.directories, arguments.output, paper_width=arguments.paper_width)
    except FedQuorumError as error:
        _tell(error)
        return EXIT_ERROR
    return 0


def _check_together(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End the process with one line for options that do not go together."""
    if not arguments.directories and arguments.watch is None:
        parser.error("give a DIR with runs, or --watch DIR")
    if arguments.directories and arguments.watch is not None:
        parser.error("give only one of DIR and --watch DIR")
    if arguments.port is not None and arguments.watch is None:
        parser.error("--port needs --watch DIR, whose page it serves")
    if arguments.paper_width is not None and not arguments.directories:
        parser.error("--paper-width needs a DIR with runs, whose figures it writes")


def _tell(text: object) -> None:
    """Print one line to standard error, whatever a record has put into it."""
    print(f"fedquorum report: {shown(text, LONGEST_LINE)}", file=sys.stderr)


def report(directories: Iterable[Path], output: Path, *, paper_width: float | None = None) -> None:
    """Print the table of all runs below ``directories`` and write page, tables and figures.

    Makes the folder ``output`` where it is missing and writes, over those of an earlier report,
    ``report.html``, ``table`` and ``differences`` as CSV, ``tables.md`` and ``tables.tex``, and in
    ``figures`` every chart as PNG and SVG. Where ``paper_width`` is given, charts are PDFs of that
    many inches in width too; a width with room for one panel has a PDF for each. Runs that cannot
    be read are told on standard error and left out. Where a run has a local-only run of the same
    experiment and seed beside it, the terms of FedALIGN's bound are printed too, which needs the
    runs' data; terms that cannot be computed are told on standard error and left out.

    Raises
    ------
    RunError
        If there is no run that can be read, or ``output`` cannot be written.
    """
    # These take seconds to import: not for --help.
    from fedquorum.records.reader import read_runs

    from server_app.report.experiment import experiments_of
    from server_app.report.groups import group_runs
    from server_app.report.tables import check_metric, terminal_table

    runs, damaged = read_runs(directories, check_metric)
    for problem in damaged:
        _tell(f"left out: {problem}")
    if not runs:
        raise RunError("expected a run that can be read, got none")
    experiments = experiments_of(group_runs(runs))
    output = output.absolute()
    try:
        written = _write(experiments, damaged, output, paper_width)
    except OSError as error:
        problem = one_line(error)
        raise RunError(f"--output must be a folder to write to, got {output}: {problem}") from None
    console = _console()
    table = terminal_table([row for one in experiments for row in one.rows])
    left_out = narrowed(table, console, keep=3)
    console.print(table)
    if left_out:
        console.print(f"Columns left out at this width: {left_out}", soft_wrap=True)
    _tell_bound(runs, console)
    for path in written:
        console.print(str(path), soft_wrap=True, markup=False, highlight=False)


def _tell_bound(runs: Sequence["Run"], console: Console) -> None:
    """Print the terms of FedALIGN's bound, as far as the runs have them."""
    from server_app.report.methods import trains_alone

    if not any(trains_alone(run.strategy) for run in runs):
        return
    from server_app.report.bound import BoundTerms, bound_table, bound_terms, runs_together

    terms: list[BoundTerms] = []
    for together in runs_together(runs):
        try:
            terms += bound_terms(together)
        except FedQuorumError as error:
            _tell(f"terms of FedALIGN's bound left out: {error}")
    if terms:
        console.print(bound_table(terms))


def _write(
    experiments: Sequence["Experiment"],
    warnings: Sequence[str],
    output: Path,
    paper_width: float | None,
) -> list[Path]:
    """Write all files and return those that a reader opens."""
    from server_app.drawing import save, save_for_paper
    from server_app.naming import slug
    from server_app.report.figures import draw, parts_for_paper, small_picture
    from server_app.report.page import page
    from server_app.report.tables import (
        experiment_tables,
        latex,
        markdown,
        write_csv,
        write_differences_csv,
    )

    figures = output / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    pictures = {}
    for one in experiments:
        for chart in one.charts:
            name = f"{slug(one.name)}_{chart.name}"
            png, _ = save(draw(chart), figures, name)
            pictures[one.name, chart.name] = small_picture(png)
            for part_name, part in parts_for_paper(chart, paper_width) if paper_width else ():
                save_for_paper(draw(part, paper_width), figures, f"{slug(one.name)}_{part_name}")
    tables = [
        table
        for one in experiments
        for table in experiment_tables(one.groups, one.rows, one.differences, one.name)
    ]
    written = [output / name for name in ("report.html", "tables.md", "tables.tex")]
    texts = (page(experiments, pictures, warnings), markdown(tables), latex(tables))
    for path, text in zip(written, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    rows = [row for one in experiments for row in one.rows]
    pairs = [pair for one in experiments for pair in one.differences]
    write_csv(rows, output / "table.csv")
    write_differences_csv(pairs, output / "differences.csv")
    return [*written, output / "table.csv", output / "differences.csv", figures]


def watch(directory: Path, port: int) -> None:
    """Serve a page that follows a run, and its metrics, until Ctrl-C.

    Parameters
    ----------
    directory : Path
        A run, or a folder with runs.
    port : int
        Where to serve it on this machine; 0 for any port that is free.

    Raises
    ------
    RunError
        If ``directory`` is no folder, or the port cannot be used.
    """
    try:
        from server_app.report.watch_server import WatchServer

        with WatchServer(directory, port) as server:
            print(f"Following {directory} at {server.url} (Ctrl-C ends it)", flush=True)
            print(server.metrics_notice, flush=True)
            Thread(target=server.serve_forever, daemon=True).start()
            try:
                server.watch.keep_drawing()
            finally:
                server.shutdown()
    except KeyboardInterrupt:
        print("fedquorum report: no longer followed", file=sys.stderr)


def _console() -> Console:
    console = Console()
    # a file or a pipe has no width to fit
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def _inches(text: str) -> float:
    low, high = WIDTHS
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise argparse.ArgumentTypeError(
            f"must be a width from {low:g} to {high:g} inches, got {text}"
        )
    return number


def _port(word: str) -> int:
    """Return a port, or raise what argparse tells the user."""
    if not word.isascii() or not word.isdigit() or int(word) > HIGHEST_PORT:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to {HIGHEST_PORT}, got {word!r}"
        )
    return int(word)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedquorum report",
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
        type=_inches,
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
        type=_port,
        metavar="N",
        help=f"with --watch: the page's port (default: {DEFAULT_PORT}; 0 takes any free port)",
    )
    return parser
