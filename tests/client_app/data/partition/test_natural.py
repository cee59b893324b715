"""The clients that a data set itself has."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import DataError, SettingsError

from client_app.data import load_data
from client_app.data.partition import Partition, partition_naturally
from client_app.data.partitioned import PartitionedData
from client_app.data.sources.base import LabeledArrays
from client_app.simulation.availability import build_processes
from conf.compose import compose_settings
from conf.schema.data import NpzSettings
from tests.client_app.clients import assert_one_line

RNG = np.random.default_rng(0)
CLIENTS = np.array([7, -2, 7, 7, 30, -2, 30, 7, -2, 30, 7])  # 5 of 7, 3 of -2 and of 30
ROWS = {-2: [1, 5, 8], 7: [0, 2, 3, 7, 10], 30: [4, 6, 9]}
Y_TRAIN = np.arange(11) % 3


def partition_rows(client_test: list[int] | None, fraction: float = 0.2) -> tuple[Partition, bool]:
    test = None if client_test is None else np.array(client_test)
    return partition_naturally(CLIENTS, Y_TRAIN, test, test_fraction=fraction, seed=1)


@pytest.mark.parametrize("client_test", [[30, 7, -2, 7], [30, 7, -2, 7, 99]])
def test_test_rows_of_the_same_clients(client_test: list[int]) -> None:
    """Each client has its own rows of both sets; what the test set has of others is left out."""
    found, divided = partition_rows(client_test)
    assert not divided
    assert [share.train.tolist() for share in found] == list(ROWS.values())
    assert [share.test.tolist() for share in found] == [[2], [1, 3], [0]]


@pytest.mark.parametrize("client_test", [None, [5, 5, 6]])
def test_test_rows_of_nobody_or_of_others(client_test: list[int] | None) -> None:
    """Then each client's own training rows are divided, and both parts have rows."""
    found, divided = partition_rows(client_test)
    assert divided
    for share, rows in zip(found, ROWS.values(), strict=True):
        assert sorted([*share.train, *share.test]) == rows
        assert len(share.test) == 1
    large, _ = partition_rows(client_test, fraction=0.6)
    assert [len(share.test) for share in large] == [2, 3, 2]


def test_test_rows_of_some_clients() -> None:
    """Half of a split is none: it is refused, with a client that has no test rows."""
    with pytest.raises(DataError, match=r"^data\.partition must be another .* got no -2$"):
        partition_rows([7, 7, 30])


def test_a_client_with_one_row() -> None:
    """A client with one row is refused by name, but allowed if the test set has its rows."""
    clients, y = np.array([4, 4, 9, 4]), np.zeros(4, dtype=np.int64)
    with pytest.raises(DataError, match=r"^data\.partition .* got 1 row of client 9 "):
        partition_naturally(clients, y, None, test_fraction=0.2, seed=1)
    found, _ = partition_naturally(clients, y, np.array([9, 4]), test_fraction=0.2, seed=1)
    assert [share.train.tolist() for share in found] == [[0, 1, 3], [2]]


# --- from a file -----------------------------------------------------------------------------


ARRAYS: dict[str, Any] = {
    "x_train": np.arange(22.0).reshape(11, 2),
    "y_train": Y_TRAIN,
    "x_test": -np.arange(1.0, 9.0).reshape(4, 2),
    "y_test": np.array([0, 1, 2, 3]),
    "client_train": CLIENTS.astype(np.int8),
    "client_test": np.array([30, 7, -2, 7], dtype=np.int16),
}


def save(folder: Path, **changes: Any) -> str:
    """Write the arrays, with some of them changed, or left out for None."""
    arrays = {key: array for key, array in (ARRAYS | changes).items() if array is not None}
    np.savez(folder / "data.npz", **arrays)
    return str(folder / "data.npz")


def load(path: str, seed: int = 1, **settings: Any) -> PartitionedData:
    data = load_data(NpzSettings(path=path, partition="natural", **settings), seed)
    assert isinstance(data, PartitionedData)
    return data


def test_clients_of_a_file(tmp_path: Path) -> None:
    """Clients are 0, 1, .. in the order of their ids; each has its own rows with their labels."""
    data = load(save(tmp_path))
    assert (data.num_clients, data.input_shape, data.num_classes) == (3, (2,), 4)
    for client, rows in enumerate(ROWS.values()):
        client_data = data.get_client(client)
        np.testing.assert_array_equal(client_data.x_train, ARRAYS["x_train"][rows])
        np.testing.assert_array_equal(client_data.y_train, Y_TRAIN[rows])
        np.testing.assert_array_equal(data.get_labels(client), Y_TRAIN[rows])
    np.testing.assert_array_equal(data.get_client(1).x_test, ARRAYS["x_test"][[1, 3]])
    np.testing.assert_array_equal(data.get_client(1).y_test, [1, 3])


@pytest.mark.parametrize("client_test", [None, np.array([1, 1, 2, 3])])
def test_clients_of_a_file_without_test_rows_of_theirs(
    tmp_path: Path, client_test: np.ndarray[Any, Any] | None
) -> None:
    """The test set is left out: every client's parts are its own training rows, each once."""
    data = load(save(tmp_path, client_test=client_test), test_fraction=0.4)
    for client, rows in enumerate(ROWS.values()):
        client_data = data.get_client(client)
        x = np.concatenate([client_data.x_train, client_data.x_test])
        y = np.concatenate([client_data.y_train, client_data.y_test])
        order = np.argsort(x[:, 0])
        np.testing.assert_array_equal(x[order], ARRAYS["x_train"][rows])
        np.testing.assert_array_equal(y[order], Y_TRAIN[rows])
    assert [len(data.get_client(k).y_test) for k in range(3)] == [1, 2, 1]


def test_the_split_depends_on_the_seed(tmp_path: Path) -> None:
    """Another seed draws other test rows; the clients stay the same."""
    path = save(tmp_path, client_test=None)
    sampled = [load(path, seed).get_client(1).x_test.tolist() for seed in range(8)]
    assert sampled == [load(path, seed).get_client(1).x_test.tolist() for seed in range(8)]
    assert len({str(rows) for rows in sampled}) > 1


def test_sound(tmp_path: Path) -> None:
    """int16 becomes float32 (n, 1, length) by v / 32768, so within [-1, 1]."""
    sound = {
        key: RNG.integers(-(2**15), 2**15, (len(ARRAYS[key]), 50), dtype=np.int16)
        for key in ("x_train", "x_test")
    }
    sound["x_train"][1, :2] = -(2**15), 2**15 - 1
    data = load(save(tmp_path, **sound))
    assert data.input_shape == (1, 50)
    client = data.get_client(0)
    assert client.x_train.dtype == np.float32
    np.testing.assert_array_equal(client.x_train[:, 0], sound["x_train"][ROWS[-2]] / 32768)
    np.testing.assert_array_equal(client.x_test[:, 0], sound["x_test"][[2]] / 32768)
    assert client.x_train[0, 0, 0] == -1
    assert 0.9999 < client.x_train[0, 0, 1] < 1


@pytest.mark.parametrize("num_clients", [None, 3])
def test_the_number_of_clients_follows_from_the_data(
    tmp_path: Path, num_clients: int | None
) -> None:
    """It need not be given, and may be given as it is."""
    assert load(save(tmp_path), num_clients=num_clients).num_clients == 3


def test_another_number_of_clients_is_refused(tmp_path: Path) -> None:
    """Both numbers are in the message."""
    message = "data.num_clients must be null or 3, the number of clients in the data, got 4"
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        load(save(tmp_path), num_clients=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_priority": 4},
            "data.num_priority must be at most data.num_clients (3), got 4",
        ),
        (
            {"priority": [1, 3]},
            "data.priority must be an id from 0 to 2 or the name of a client, got 3",
        ),
        (
            {"priority_weights": {3: 0.5}},
            "data.priority_weights must be an id from 0 to 2 or the name of a client, got 3",
        ),
    ],
)
def test_missing_clients(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """What could not be checked without the data is checked with it."""
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        load(save(tmp_path), **settings)


def test_priority(tmp_path: Path) -> None:
    """Priority is as of any data set."""
    path = save(tmp_path)
    assert load(path, priority="all").priority == (0, 1, 2)
    assert load(path, priority=[2, 0]).priority == (0, 2)
    assert len(load(path, num_priority=2).priority) == 2


def test_availability_of_other_clients(tmp_path: Path) -> None:
    """A list of probabilities for fewer clients than the data has is refused."""
    overrides = f"data=npz data.path={save(tmp_path)} data.partition=natural availability=bernoulli"
    settings = compose_settings("custom", f"{overrides} 'availability.p=[0.5, 0.5]'").settings
    data = load_data(settings.data, 1)
    message = "availability.p must have one number for each of the 3 clients in the data, got 2"
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        build_processes(settings, data)
    enough = compose_settings("custom", f"{overrides} 'availability.p=[0.5, 0.5, 0.5]'").settings
    assert build_processes(enough, data) is not None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"client_train": None}, "it lacks client_train and has x_train, .*, client_test$"),
    "words": (
        {"client_train": np.array(list("abcdefghijk"))},
        r"client_train must be whole numbers \(n,\), got <U1 \(11,\)$",
    ),
    "fewer": (
        {"client_train": CLIENTS[:-1]},
        "client_train and y_train must have equally many rows, got 10 and 11$",
    ),
    "fewer of the test set": (
        {"client_test": CLIENTS[:3]},
        "client_test and y_test must have equally many rows, got 3 and 4$",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_ids_that_do_not_fit(tmp_path: Path, wrong: str) -> None:
    """What they are instead of what they must be is named, in one line with the path."""
    changes, reason = WRONG[wrong]
    path = save(tmp_path, **changes)
    wanted = "an .npz file with x_train, y_train, client_train, perhaps x_test and y_test"
    assert_one_line(lambda: load(path), reason, f"data.path must be {wanted}, got {path}: ")


def test_arrays_without_clients() -> None:
    """Arrays that did not come from a file are refused as well."""
    y = np.zeros(2, dtype=np.int64)
    x = np.zeros((2, 3), dtype=np.float32)
    settings = NpzSettings(path="x", partition="natural")
    with pytest.raises(DataError, match=r"^data\.partition .* data without clients$"):
        PartitionedData(LabeledArrays(x, y, x, y, 2), settings, 1)


# --- real files ------------------------------------------------------------------------------


def test_real_mnist_by_writer(real_file: Callable[[str], Path]) -> None:
    """539 writers, whose own rows are divided: 60,000, each once; the test writers are others."""
    path = real_file("mnist_by_writer.npz")
    data = load(str(path), priority="all")
    assert (data.num_clients, data.input_shape, data.num_classes) == (539, (1, 28, 28), 10)
    rows = [np.concatenate([share.train, share.test]) for share in data._partition]
    assert sorted(np.concatenate(rows).tolist()) == list(range(60_000))
    with np.load(path) as archive:
        writers, labels = archive["client_train"], archive["y_train"]
    for client, client_rows in enumerate(rows):
        assert len(set(writers[client_rows].tolist())) == 1
        share, total = data._partition[client], len(client_rows)
        assert len(share.test) == round(0.2 * total)
        counts = np.bincount(labels[client_rows], minlength=10)
        tested = np.bincount(labels[share.test], minlength=10)
        assert (tested < np.maximum(counts, 1)).all()  # each class is trained on
        assert np.abs(tested - counts * len(share.test) / total).max() < 1.5
    assert data.get_client(100).x_test.max() == 1.0


def test_real_spoken_digits(real_file: Callable[[str], Path]) -> None:
    """6 speakers with the official split: 450 and 50 recordings of each, 45 and 5 of a digit."""
    data = load(str(real_file("spoken_digits_by_speaker.npz")), priority="all")
    assert (data.num_clients, data.input_shape, data.num_classes) == (6, (1, 8000), 10)
    for client in map(data.get_client, range(6)):
        assert client.x_train.shape == (450, 1, 8000)
        assert np.bincount(client.y_train).tolist() == [45] * 10
        assert np.bincount(client.y_test).tolist() == [5] * 10
        assert -1 <= client.x_train.min() < -0.1
        assert 0.1 < client.x_train.max() <= 1
    tests = np.concatenate([share.test for share in data._partition])
    assert sorted(tests.tolist()) == list(range(300))
