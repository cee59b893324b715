"""Pixels to inputs, and the rows of several clients."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client_app.data.base import ClientData, RowIndex, build_pooled_split, select_split, to_inputs
from tests.cases import sample_cases


def test_scaled_images() -> None:
    """uint8 images become float32 in [0, 1] with a channel axis, pixel by pixel v / 255."""
    images = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    scaled = to_inputs(images)
    assert scaled.dtype == np.float32
    assert scaled.shape == (4, 1, 8, 8)
    expected = np.array([v / 255 for v in range(256)], dtype=np.float32)
    np.testing.assert_array_equal(scaled.reshape(-1), expected)
    assert (scaled.min(), scaled.max()) == (0.0, 1.0)


def test_scaled_color_images() -> None:
    """Channels come first, in their order, each pixel where it was."""
    images = np.random.default_rng(0).integers(256, size=(2, 4, 5, 3), dtype=np.uint8)
    scaled = to_inputs(images)
    assert scaled.dtype == np.float32
    assert scaled.shape == (2, 3, 4, 5)
    assert scaled.flags.c_contiguous
    for channel in range(3):
        expected = images[..., channel].astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(scaled[:, channel], expected)


def test_scaled_sound() -> None:
    """int16 becomes float32 with a channel axis, v / 32768, exactly."""
    samples = np.array([[-32768, -1, 0], [1, 16384, 32767]], dtype=np.int16)
    scaled = to_inputs(samples)
    assert scaled.dtype == np.float32
    expected = [[[-1, -(2**-15), 0]], [[2**-15, 0.5, 1 - 2**-15]]]
    np.testing.assert_array_equal(scaled, np.array(expected, dtype=np.float32), strict=True)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (np.full((2, 4, 3), 51, np.uint8), np.full((2, 1, 4, 3), 51 / 255)),
        (np.full((2, 4, 3, 3), 51, np.uint8), np.full((2, 3, 4, 3), 51 / 255)),
        (np.full((2, 5), -16384, np.int16), np.full((2, 1, 5), -0.5)),
        (np.full((2, 5), 0.1), np.full((2, 5), 0.1)),
    ],
    ids=["gray", "color", "sound", "float64"],
)
def test_as_inputs(samples: NDArray[Any], expected: NDArray[Any]) -> None:
    """The type says what samples are; inputs are float32."""
    np.testing.assert_array_equal(to_inputs(samples), expected.astype(np.float32), strict=True)


def test_inputs_are_not_copied() -> None:
    """What is float32 stays as it is."""
    x = np.ones((3, 2), np.float32)
    assert np.shares_memory(to_inputs(x), x)
    x.flags.writeable = False
    np.testing.assert_array_equal(to_inputs(x), x, strict=True)


def test_pooled() -> None:
    """Rows of all clients, one after the other in the order given, and whose they are."""
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6)
    splits = {4: (x[:3], y[:3]), 0: (x[3:3], y[3:3]), 2: (x[3:], y[3:])}
    pool = build_pooled_split(splits)
    assert list(pool.rows) == [4, 0, 2]
    assert len(pool.x) == len(pool.y) == 6
    for client, (client_x, client_y) in splits.items():
        np.testing.assert_array_equal(pool.x[pool.rows[client]], client_x, strict=True)
        np.testing.assert_array_equal(pool.y[pool.rows[client]], client_y, strict=True)


def test_part_of() -> None:
    """Training and test part by name."""
    x, y = np.arange(3, dtype=np.float32), np.arange(3)
    data = ClientData(x, y, -x, -y)
    assert all(a is b for a, b in zip(select_split(data, "train"), (x, y), strict=True))
    pairs = zip(select_split(data, "test"), (data.x_test, data.y_test), strict=True)
    assert all(a is b for a, b in pairs)


@pytest.mark.parametrize("seed", sample_cases(range(100), 20))
def test_rows_of_clients_are_those_of_a_mapping(seed: int) -> None:
    """Whether the clients are evenly spaced or not, all or some of them, in any order."""
    rng = np.random.default_rng(seed)
    every = range(int(rng.integers(3)), 40, int(rng.integers(1, 5)))
    clients = list(every) if seed % 2 else rng.permutation(list(every))[: int(rng.integers(1, 9))]
    expected = {int(k): rng.integers(100, size=rng.integers(4)) for k in clients}
    rows = RowIndex.from_mapping(expected)
    chosen = rng.permutation(list(expected))[: int(rng.integers(0, 5))].tolist()
    for found, order in ((rows, list(expected)), (rows.select_clients(chosen), chosen)):
        assert list(found) == order
        for client in order:
            np.testing.assert_array_equal(found[client], expected[client], strict=True)
        assert [k in found for k in range(50)] == [k in order for k in range(50)]
    for missing in sorted(set(range(50)) - set(expected))[:3]:
        with pytest.raises(KeyError, match=str(missing)):
            rows.select_clients([missing])
        with pytest.raises(KeyError, match=str(missing)):
            rows.get_index(missing)


def test_nobody_has_no_rows() -> None:
    """As a process without clients."""
    assert (len(RowIndex.from_mapping({})), 0 in RowIndex.from_mapping({})) == (0, False)
    with pytest.raises(KeyError, match="0"):
        RowIndex.from_mapping({})[0]
