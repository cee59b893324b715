"""Test the coding of rows that are arrays already."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.errors import DataError

from client_app.data.coding.arrays import ArrayCoding, DeviceCoding
from client_app.data.coding.read import infer_coding, read_coding

NUMBERS = ArrayCoding((2,), "float32")


@pytest.mark.parametrize(
    "rows", [[[1, 2]], [1.0, 2.0], np.array([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]])]
)
def test_every_form_of_a_row(rows: Any) -> None:
    """One row may come without its axis."""
    assert NUMBERS.encode(rows).inputs.tolist() == [[1.0, 2.0]]


def test_a_file(tmp_path: Path) -> None:
    """An .npy file by its path; nothing is unpickled."""
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    assert NUMBERS.encode(tmp_path / "x.npy").inputs.shape == (3, 2)
    np.save(tmp_path / "y.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("y.npy", "z.npy"):
        with pytest.raises(DataError, match="must be arrays float32 "):
            NUMBERS.encode(str(tmp_path / name))


def test_sound_and_tokens() -> None:
    """int16 becomes v / 32768, tokens int64."""
    assert ArrayCoding((2,), "int16").encode([[16384, 0]]).inputs.tolist() == [[[0.5, 0.0]]]
    tokens = ArrayCoding((2,), "int32", 5)
    assert tokens.encode([[4, 0]]).inputs.dtype == np.int64
    with pytest.raises(DataError, match="tokens from 0 to 4, got 5 in row 2"):
        tokens.encode([[4, 0], [0, 5]])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((1, 3)), r"must be arrays float32 \(n, 2\), got float64 \(1, 3\)"),
        (["a"], r"must be arrays float32 \(n, 2\), got"),
        ([[1], [1, 2]], r"must be arrays float32 \(n, 2\), got none"),
        ([[1, np.inf]], "finite in float32, got inf in row 1"),
        ([[1, 2], [1, 1e39]], r"finite in float32, got 1e\+39 in row 2"),
    ],
)
def test_other_arrays_are_one_line(rows: Any, message: str) -> None:
    """The message has the wanted shape, or the row."""
    with pytest.raises(DataError, match=message) as error:
        NUMBERS.encode(rows)
    assert "\n" not in str(error.value)


def test_pixels_are_not_rounded() -> None:
    """A fraction is no uint8."""
    with pytest.raises(DataError, match=r"of type uint8, as in training, got 0\.5 in row 1"):
        ArrayCoding((1, 1, 2), "uint8").encode([[[[0.5, 1]]]])


def test_what_only_devices_know_is_refused() -> None:
    """A file's type says whether numbers are pixels, and a table's columns are scaled there."""
    coding = DeviceCoding((2,))
    assert read_coding(json.loads(json.dumps(coding.to_json()))) == coding
    with pytest.raises(DataError, match=r"^the devices alone know .* data=FILE"):
        coding.encode([[1, 2]])


def test_json_restores_a_coding() -> None:
    """As inferred from the arrays of a source."""
    coding = infer_coding(np.zeros((3, 4), dtype=np.int32), 7)
    assert coding == ArrayCoding((4,), "int32", 7)
    assert read_coding(json.loads(json.dumps(coding.to_json()))) == coding
    with pytest.raises(ValueError, match="type must be one of"):
        read_coding(coding.to_json() | {"type": "object"})
