"""Read texts from one CSV file, for next-token prediction or classes of texts or text pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fedquorum.errors import DataError, to_one_line
from fedquorum.sanitize import abbreviate

from client_app.data.base import IGNORE_INDEX, Labels
from client_app.data.client_labels import label_clients
from client_app.data.coding.cell_forms import NUMBER, match_cells
from client_app.data.coding.cells import clean_column
from client_app.data.coding.text import SequenceCoding, WordCoding
from client_app.data.coding.vocabulary import (
    PADDING_ID,
    UNKNOWN_ID,
    Vocabulary,
    split_words,
)
from client_app.data.sources.base import LabeledArrays, build_pooled_arrays
from client_app.data.sources.csv_text import read_raw_columns
from client_app.data.sources.doubts import MAX_PAIRS
from client_app.data.sources.labels import find_names, find_similar_names
from client_app.data.split import RowDivision, Rows
from conf.schema.data import TextSettings


def load_text_arrays(settings: TextSettings) -> LabeledArrays:
    """Return the texts of ``data.path``, a CSV file in UTF-8, which may be compressed (.gz).

    Its first line names the columns, or ``data.header`` does. Clients are the values of
    ``data.client_column``, in the order of ``find_names``. There is no test set: test rows are
    taken from each client's rows.

    With a ``data.target`` a row is one sample: the ``data.tokens`` of the texts of
    ``data.text_columns``, joined by a separator, int32 (n, length), cut or padded to
    ``data.length`` (each of several texts to an equal part of it). Words and characters are in
    lower case and hashed, see ``split_words`` and ``hash_token``; with ``data.tokenizer`` they are
    the tokens of a published model, see ``tokenize_texts``.
    Classes are ``data.classes``, or the distinct values of the target, in that order. Rows with the
    same value of ``data.group_column`` stay together, so that no text is in both training and test
    rows.

    Without a target the texts of a client, in the file's order, each with a newline, are one
    sequence of ``data.tokens``. It is cut into pieces of ``data.length`` tokens; the target at
    every position is the next token. The last piece is padded. The clients' training pieces
    determine the vocabulary: all their characters, or their ``data.vocabulary_size`` - 2 most
    common words. Other tokens are unknown, and are not targets.

    Raises
    ------
    DataError
        If the file is missing, or lacks such texts.
    """
    path = Path(settings.path).expanduser().resolve()
    table = _load_table(path, settings.header)
    if settings.expected_rows not in {None, table.num_rows}:
        raise DataError(
            f"data.path must be a .csv file of data.expected_rows {settings.expected_rows}, got "
            f"{path} of {table.num_rows}"
        )
    columns_by_key = {
        "client_column": [settings.client_column],
        "text_columns": settings.text_columns,
        "target": [settings.target] if settings.target else [],
        "group_column": [settings.group_column] if settings.group_column else [],
    }
    for key, names in columns_by_key.items():
        for name in names:
            if name not in table.column_names:
                raise DataError(
                    f"data.{key} must be one of the columns of {path}, which are "
                    f"{abbreviate(table.column_names, near=name)}, got {name!r}"
                )
            _check_complete(table, key, name, path)
    client_names, clients = _find_names(table, settings.client_column)
    shown = label_clients(client_names, len(client_names), recorded=settings.names)
    counts = np.bincount(clients)
    doubts = tuple(_doubt_names(settings.client_column, client_names, counts, shown, "clients"))
    texts = [table[name].to_pylist() for name in settings.text_columns]
    if settings.target is None:
        arrays = _build_next_tokens(texts[0], clients, settings, doubts)
        return replace(arrays, client_names=client_names)
    classes, labels = _read_classes(table, settings.target, settings.classes, path)
    counts = np.bincount(labels, minlength=len(classes))
    doubts += tuple(_doubt_names(settings.target, classes, counts, classes, "classes"))
    groups = find_names(table[settings.group_column])[1] if settings.group_column else None
    coding = WordCoding(
        tuple(settings.text_columns),
        settings.length,
        settings.vocabulary_size,
        settings.tokens,
        settings.tokenizer,
    )
    x, num_tokens, warnings = coding.encode_texts(texts)
    return build_pooled_arrays(
        x,
        labels,
        len(classes),
        client_train=clients,
        client_names=client_names,
        class_names=tuple(classes),
        num_tokens=num_tokens,
        division=RowDivision(groups=groups),
        warnings=(*doubts, *warnings),
        coding=replace(coding, num_tokens=num_tokens),
    )


def _load_table(path: Path, header: Sequence[str]) -> Any:
    try:
        return _read(path, header)
    except Exception as error:
        raise DataError(
            f"data.path must be a .csv file, got {path}: {to_one_line(error)}"
        ) from None


def _read(path: Path, header: Sequence[str]) -> Any:
    if not path.is_file():
        raise ValueError("there is no such file")
    table = read_raw_columns(path, header)
    if not table.num_rows:
        raise ValueError("it has no rows")
    return table


def _check_complete(table: Any, key: str, name: str, path: Path) -> None:
    values = table[name].to_pylist()
    gaps = [row for row, value in enumerate(values, 1) if value is None or not str(value).strip()]
    if gaps:
        raise DataError(
            f"data.{key} must be a column without missing values, got {name}, which is missing in "
            f"row {gaps[0]} of {path}"
        )


def _find_names(table: Any, name: str) -> tuple[tuple[str, ...], Labels]:
    """Return the different names in a column, as ``find_names``, and each row's index."""
    return find_names(clean_column(table[name], is_ascii=False))


def _doubt_names(
    column: str, names: Sequence[str], counts: Labels, labels: Sequence[str], kind: str
) -> Iterator[str]:
    """Yield a doubt about names that may be the same; lines call them by their labels."""
    shown = dict(zip(names, labels, strict=True))
    if similar := find_similar_names(names, counts):
        pairs = [f"{shown[new]} and {shown[old]}" for old, new in similar.items()]
        yield (
            f"{column} has {kind} that may be the same: {abbreviate(pairs, MAX_PAIRS)}; write one "
            "of the forms in the file"
        )


def _read_classes(
    table: Any, name: str, allowed: Sequence[str] | None, path: Path
) -> tuple[Sequence[str], Labels]:
    """Return the classes, and the index of each row's class."""
    classes, labels = _find_names(table, name)
    is_number = match_cells(pa.array(classes), NUMBER)
    fractions = [is_number[i] and not float(each).is_integer() for i, each in enumerate(classes)]
    if is_number.all() and any(fractions):
        row = int(np.argmax(np.array(fractions)[labels]))
        raise DataError(
            f"data.target must be a column of classes in {path}, got {name}, which is "
            f"{classes[labels[row]]} in row {row + 1}"
        )
    if allowed is not None:
        foreign = [value for value in classes if value not in allowed]
        if foreign:
            raise DataError(
                f"data.target must be a column of {abbreviate(allowed)} in {path} (data.classes), "
                f"got {name}, which is {foreign[0]} in row "
                f"{1 + int(np.argmax(labels == classes.index(foreign[0])))}"
            )
        positions = np.array([allowed.index(value) for value in classes], dtype=np.int64)
        return allowed, positions[labels]
    if len(classes) == 1:
        raise DataError(
            f"data.target must be a column of different values in {path}, got {name}, which is "
            f"always {classes[0]}"
        )
    return classes, labels


def _build_next_tokens(
    texts: Sequence[str], clients: Labels, settings: TextSettings, doubts: tuple[str, ...]
) -> LabeledArrays:
    by_characters = settings.tokens == "characters"
    tokens = [[*(text if by_characters else split_words(text)), "\n"] for text in texts]
    vocabulary = Vocabulary(sorted(set().union(*tokens)))
    pieces, targets, piece_clients = [], [], []
    for client in range(int(clients.max()) + 1):
        lines = [vocabulary.encode(tokens[row]) for row in np.flatnonzero(clients == client)]
        sequence = np.array([i for line in lines for i in line], dtype=np.int64)
        count = -(-(len(sequence) - 1) // settings.length)
        x = np.full(count * settings.length, PADDING_ID, dtype=np.int32)
        y = np.full(count * settings.length, IGNORE_INDEX, dtype=np.int64)
        x[: len(sequence) - 1], y[: len(sequence) - 1] = sequence[:-1], sequence[1:]
        pieces.append(x.reshape(count, settings.length))
        targets.append(y.reshape(count, settings.length))
        piece_clients.append(np.full(count, client, dtype=np.int64))
    arrays = build_pooled_arrays(
        np.concatenate(pieces),
        np.concatenate(targets),
        len(vocabulary),
        client_train=np.concatenate(piece_clients),
        num_tokens=len(vocabulary),
        warnings=doubts,
    )
    limit = len(vocabulary) if by_characters else settings.vocabulary_size
    coding = SequenceCoding(
        tuple(settings.text_columns), vocabulary.tokens, settings.length, by_characters
    )
    return replace(
        arrays,
        coding=coding,
        build_for_training=lambda rows: _renumber_tokens(arrays, coding, rows, limit),
    )


def _renumber_tokens(
    arrays: LabeledArrays, coding: SequenceCoding, rows: Rows, limit: int
) -> LabeledArrays:
    """Renumber tokens: the most common ones of these rows get numbers below ``limit``."""
    first, following = arrays.x_train[rows][:, 0], arrays.y_train[rows]
    trained_on = np.concatenate([first, following[following != IGNORE_INDEX]])
    counts = np.bincount(trained_on, minlength=arrays.num_classes)
    tokens = np.arange(UNKNOWN_ID + 1, arrays.num_classes)
    order = tokens[np.argsort(-counts[tokens], kind="stable")]
    numbered = order[counts[order] > 0][: limit - (UNKNOWN_ID + 1)]
    numbers = np.full(arrays.num_classes, UNKNOWN_ID, dtype=np.int64)
    numbers[PADDING_ID] = PADDING_ID
    numbers[numbered] = np.arange(UNKNOWN_ID + 1, UNKNOWN_ID + 1 + len(numbered))
    targets = np.where(arrays.y_train == IGNORE_INDEX, UNKNOWN_ID, arrays.y_train)
    y = numbers[targets]
    y[y == UNKNOWN_ID] = IGNORE_INDEX
    size = UNKNOWN_ID + 1 + len(numbered)
    return build_pooled_arrays(
        numbers[arrays.x_train[:]].astype(np.int32),
        y,
        size,
        client_train=arrays.client_train,
        num_tokens=size,
        warnings=arrays.warnings,
        coding=replace(
            coding,
            vocabulary=tuple(coding.vocabulary[token - UNKNOWN_ID - 1] for token in numbered),
        ),
    )
