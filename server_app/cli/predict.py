"""Run the command ``fedquorum predict``: predict with the model of a run, without its data."""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from fedquorum.errors import DataError, FedQuorumError, RunError, SettingsError, to_one_line
from fedquorum.sanitize import MAX_LINE_LENGTH, sanitize

EXIT_ERROR = 1
PROGRAM = "fedquorum predict"
PATTERN_SIGNS = "*?["


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status, which is 1 after an error.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of the process.
    """
    arguments = _build_parser().parse_args(argv)
    try:
        predict_rows(arguments)
    except FedQuorumError as error:
        _print_note(error)
        return EXIT_ERROR
    return 0


def predict_rows(arguments: argparse.Namespace) -> None:
    """Write the predictions for the rows of a file as CSV; notes go to standard error.

    Raises
    ------
    FedQuorumError
        As ``fedquorum_app.RunResult.predict``; or if a file cannot be read or written.
    """
    # These take seconds to import, so --help does not import them.
    from fedquorum.records.reader import load_run

    from server_app.runs.prediction import TrainedModel

    model = TrainedModel(load_run(arguments.directory).directory, arguments.trust)
    rows, notes = _read_rows(arguments.rows, model.coding)
    client = _read_client(model, arguments.client)
    predictions, more_notes = model.predict(rows, client, arguments.data)
    for note in (*notes, *more_notes):
        _print_note(note)
    is_table = hasattr(rows, "columns")
    if is_table:
        predictions.index = range(1, len(predictions) + 1)
    table = predictions.rename_axis("row" if is_table else "item").reset_index()
    if arguments.output is None:
        _write_csv(table, sys.stdout)
        return
    try:
        with arguments.output.open("w", encoding="utf-8", newline="") as file:
            _write_csv(table, file)
    except OSError as error:
        raise RunError(
            f"--output must be a file to write to, got {arguments.output}: {to_one_line(error)}"
        ) from None
    _print_note(f"{len(table):,} predictions in {arguments.output}")


def _read_rows(path: Path, coding: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the rows of tables as in training, or the path of what is none; and notes."""
    has_pattern = any(sign in str(path) for sign in PATTERN_SIGNS)
    if not has_pattern and not path.exists():
        raise DataError(f"ROWS must be a file or a folder, got {path}: there is no such file")
    from client_app.data.coding.table import TableCoding
    from client_app.data.coding.text import SequenceCoding, WordCoding
    from client_app.data.sources.find_files import has_table_ending
    from client_app.data.sources.table_files import read_files

    is_of_tables = isinstance(coding, TableCoding | WordCoding | SequenceCoding)
    if not is_of_tables and not has_table_ending(path):
        return path, ()
    try:
        files, table = read_files(path.absolute())
    except Exception as error:  # pyarrow raises many types
        raise DataError(
            f"ROWS must be a table, got {path}: {sanitize(to_one_line(error))}"
        ) from None
    notes = []
    if len(files.parts) > 1:
        notes.append(
            f"the rows are those of {len(files.parts)} files, in the order of their names: "
            f"{files.found.files[0].name} first"
        )
    if files.passed_over:
        notes.append(f"files passed over: {', '.join(files.passed_over)}")
    return table.to_pandas(), tuple(notes)


def _read_client(model: Any, text: str | None) -> int | str | None:
    """Return the client of ``--client``: digits are an id, a quoted or another word is a name.

    Raises
    ------
    SettingsError
        If digits are the id of one client and the name of another.
    """
    if text is None or not text.isdecimal():
        return None if text is None else text.strip("'\"")
    client = int(text)
    clients = getattr(model.coding.scaling, "clients", ())
    named = [known for known in clients if known.name == text and known.client != client]
    if named:
        raise SettingsError(
            f"--client {text} is the id of one client and the name of client {named[0].client}: "
            f"type --client \"'{text}'\" for the name"
        )
    return client


def _write_csv(table: Any, file: TextIO) -> None:
    """Write a table; a text that a spreadsheet would take for a formula gets an apostrophe."""
    from fedquorum.report.tables import escape_csv_cell

    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(escape_csv_cell, table.columns))
    writer.writerows(map(escape_csv_cell, row) for row in table.itertuples(index=False))


def _print_note(text: object) -> None:
    print(f"{PROGRAM}: {sanitize(text, MAX_LINE_LENGTH)}", file=sys.stderr)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Predict with the model of a run, without the data of its training. Print the "
        "predictions as CSV.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the folder of the run")
    parser.add_argument(
        "rows",
        type=Path,
        metavar="ROWS",
        help="the rows: a table or a folder of tables as data.path takes (CSV, Parquet, Excel), an "
        "image or a folder of images, or an .npy file",
    )
    parser.add_argument(
        "--client",
        metavar="NAME",
        help="the name or the id of the client whose rows they are, for the scale of its numbers",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="on a device: its data, from which the scale of its numbers follows",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the .csv file to write (default: print)"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import a model that the run names by import path: for your own runs only",
    )
    return parser
