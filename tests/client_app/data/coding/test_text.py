"""Test the coding of texts: hashed words, and the tokens of a vocabulary."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedquorum.errors import DataError

from client_app.data.coding.read import read_coding
from client_app.data.coding.text import SequenceCoding, WordCoding
from client_app.data.coding.vocabulary import hash_texts

WORDS = WordCoding(("a", "b"), 8, 100)
CHARACTERS = SequenceCoding(("text",), ("a", "b", "\n"), 4, by_characters=True)


@pytest.mark.parametrize(
    "rows",
    [
        [("one two", "three"), ("four", "five")],
        {"b": ["three", "five"], "a": ["one two", "four"], "c": [1, 2]},
        pd.DataFrame({"a": ["one two", "four"], "b": ["three", "five"]}),
    ],
    ids=["tuples", "columns", "frame"],
)
def test_texts_are_hashed_as_in_training(rows: Any) -> None:
    """int64, as a model takes them."""
    inputs = WORDS.encode(rows).inputs
    assert inputs.dtype == np.int64
    expected, _ = hash_texts([["one two", "four"], ["three", "five"]], 8, 100)
    np.testing.assert_array_equal(inputs, expected)


def test_one_text() -> None:
    """A list of texts, or a single one."""
    coding = WordCoding(("a",), 5, 100)
    expected, _ = hash_texts([["one two"]], 5, 100)
    for rows in ("one two", ["one two"], {"a": "one two"}):
        np.testing.assert_array_equal(coding.encode(rows).inputs, expected)


def test_the_last_tokens_count() -> None:
    """Unknown ones are 1, padding is 0 behind the text, and the last position is known."""
    encoded = CHARACTERS.encode(["ab", "abzab\n", "b"])
    assert encoded.inputs.tolist() == [[2, 3, 0, 0], [1, 2, 3, 4], [3, 0, 0, 0]]
    assert encoded.last is not None
    assert encoded.last.tolist() == [1, 3, 0]


@pytest.mark.parametrize("coding", [WORDS, CHARACTERS, WordCoding(("a",), 8, 10, "folder")])
def test_json_restores_a_coding(coding: Any) -> None:
    """In all kinds."""
    assert read_coding(json.loads(json.dumps(coding.to_json()))) == coding


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["one"], r"each row must be 2 texts \(a, b\), got \('one',\) in row 1"),
        ([("x", "y"), ("x", None)], r"b must be a text, got None in row 2"),
        ({"a": ["x"]}, "must have the column b"),
        ({"a": ["x"], "b": [" "]}, r"b must be a text, got ' ' in row 1"),
        ([3], "each row must be 2 texts"),
    ],
)
def test_rows_that_are_no_texts_are_one_line(rows: Any, message: str) -> None:
    """The message names the row."""
    with pytest.raises(DataError, match=message):
        WORDS.encode(rows)
