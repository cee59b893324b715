"""Code texts: hashed words, the tokens of a published model, or a vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from fedquorum.errors import DataError
from fedquorum.sanitize import sanitize
from numpy.typing import NDArray

from client_app.data.coding.base import Coding, EncodedRows
from client_app.data.coding.vocabulary import PADDING_ID, Vocabulary, hash_texts, split_words


@dataclass(frozen=True)
class WordCoding(Coding):
    """One or several texts of each row as tokens (n, length), padded with 0.

    ``encode`` takes a list of texts (of tuples, if a row has several texts), or a table with the
    columns of texts.

    Parameters
    ----------
    columns : tuple of str
        The columns of texts.
    length : int
        The number of tokens of a row.
    num_tokens : int
        The size of the vocabulary.
    tokens : str
        ``words`` or ``characters``, which are hashed.
    tokenizer : str, optional
        A folder with the tokenizer of a published model, instead of hashed tokens.
    """

    kind: ClassVar[str] = "text"
    columns: tuple[str, ...]
    length: int
    num_tokens: int
    tokens: str = "words"
    tokenizer: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the coding as JSON values."""
        return {
            "kind": self.kind,
            "columns": list(self.columns),
            "length": self.length,
            "vocabulary_size": self.num_tokens,
            "tokens": self.tokens,
            "tokenizer": self.tokenizer,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the coding in a model card."""
        tokenizer = given["tokenizer"]
        return cls(
            tuple(map(str, given["columns"])),
            int(given["length"]),
            int(given["vocabulary_size"]),
            str(given["tokens"]),
            None if tokenizer is None else str(tokenizer),
        )

    def encode_texts(
        self, texts: Sequence[Sequence[str]]
    ) -> tuple[NDArray[np.int32], int, tuple[str, ...]]:
        """Return the tokens (n, length) of texts (columns, n), the vocabulary's size, and doubts.

        A doubt is a line on texts that are cut.
        """
        if self.tokenizer is not None:
            from client_app.data.coding.tokenizer import tokenize_texts

            return tokenize_texts(texts, self.length, self.tokenizer)
        x, doubts = hash_texts(texts, self.length, self.num_tokens, self.tokens)
        return x, self.num_tokens, doubts

    def encode(self, rows: Any, client: int | str | None = None) -> EncodedRows:
        """Return texts as inputs."""
        labels, texts = read_texts(rows, self.columns)
        tokens, _, doubts = self.encode_texts(texts)
        return EncodedRows(tokens.astype(np.int64), labels, doubts)


@dataclass(frozen=True)
class SequenceCoding(Coding):
    """A text as the tokens of a vocabulary, to predict the token that follows.

    ``encode`` takes a list of texts, or a table with the column of texts. The last ``length``
    tokens of a text count.

    Parameters
    ----------
    columns : tuple of str
        The column of texts.
    vocabulary : tuple of str
        The tokens, from number 2; 0 is padding and 1 any other token.
    length : int
        The number of tokens of an input.
    by_characters : bool
        Whether a token is a character, not a word.
    """

    kind: ClassVar[str] = "sequence"
    columns: tuple[str, ...]
    vocabulary: tuple[str, ...]
    length: int
    by_characters: bool

    def to_json(self) -> dict[str, Any]:
        """Return the coding as JSON values."""
        return {
            "kind": self.kind,
            "columns": list(self.columns),
            "length": self.length,
            "by_characters": self.by_characters,
            "vocabulary": list(self.vocabulary),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the coding in a model card."""
        return cls(
            tuple(map(str, given["columns"])),
            tuple(map(str, given["vocabulary"])),
            int(given["length"]),
            bool(given["by_characters"]),
        )

    def encode(self, rows: Any, client: int | str | None = None) -> EncodedRows:
        """Return texts as inputs, with the position of each text's last token."""
        labels, (texts,) = read_texts(rows, self.columns)
        vocabulary = Vocabulary(self.vocabulary)
        x = np.full((len(texts), self.length), PADDING_ID, dtype=np.int64)
        last = np.zeros(len(texts), dtype=np.int64)
        for row, text in enumerate(texts):
            tokens = [*text] if self.by_characters else split_words(text)
            ids = vocabulary.encode(tokens)[-self.length :]
            x[row, : len(ids)] = ids
            last[row] = max(len(ids) - 1, 0)
        return EncodedRows(x, labels, last=last)


def read_texts(rows: Any, columns: Sequence[str]) -> tuple[Sequence[Any], list[list[str]]]:
    """Return the labels of the rows, and the texts of each column.

    Raises
    ------
    DataError
        If the rows hold no such texts.
    """
    labels: Sequence[Any]
    if isinstance(rows, str):
        rows = [rows]
    if isinstance(rows, list | tuple) and not any(isinstance(row, Mapping) for row in rows):
        listed = [(row,) if isinstance(row, str) else row for row in rows]
        for number, row in enumerate(listed, 1):
            if not isinstance(row, list | tuple) or len(row) != len(columns):
                raise DataError(
                    f"each row must be {_describe_row(columns)}, got {sanitize(repr(row))} in row "
                    f"{number}"
                )
        labels, texts = range(len(listed)), [list(column) for column in zip(*listed, strict=True)]
        texts = texts or [[] for _ in columns]
    else:
        from client_app.data.coding.frame import build_frame

        frame = build_frame(rows)
        lacking = [name for name in columns if name not in frame]
        if lacking:
            raise DataError(
                f"the table must have the column {sanitize(lacking[0])}, of which the model was "
                "made"
            )
        labels, texts = frame.index, [frame[name].tolist() for name in columns]
    for name, column in zip(columns, texts, strict=True):
        for number, text in enumerate(column, 1):
            if not isinstance(text, str) or not text.strip():
                raise DataError(
                    f"{sanitize(name)} must be a text, got {sanitize(repr(text))} in row {number}"
                )
    return labels, texts


def _describe_row(columns: Sequence[str]) -> str:
    return "a text" if len(columns) == 1 else f"{len(columns)} texts ({', '.join(columns)})"
