"""Fashion-MNIST on tiny files in the official format, and once on the real ones."""

import re
import struct
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from numpy.typing import NDArray
from torchvision.datasets import FashionMNIST as TorchvisionFashionMNIST

from client_app.data.fashion_mnist import FashionMnist
from conf.errors import DataError
from conf.schema import FashionMnistSettings

TRAIN, TEST = 80, 40  # 10 classes of 8 and of 4


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    """Write the idx format: 0, 0, type (8: unsigned byte), rank, sizes big-endian, values."""
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(header + values.tobytes())


def picture(n: int, part: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images whose first three pixels are their label, their row and their part."""
    rng = np.random.default_rng(part)
    images = rng.integers(256, size=(n, 28, 28), dtype=np.uint8)
    labels = rng.permutation(np.arange(n, dtype=np.uint8) % 10)
    images[:, 0, 0], images[:, 0, 1], images[:, 0, 2] = labels, np.arange(n), part
    images[:, 27, 27] = 255
    images[:, 27, 26] = 0
    return images, labels


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write the four files; return torchvision's root."""
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, (name, n) in enumerate((("train", TRAIN), ("t10k", TEST))):
        images, labels = picture(n, part)
        write_idx(raw / f"{name}-images-idx3-ubyte", images)
        write_idx(raw / f"{name}-labels-idx1-ubyte", labels)
    return tmp_path


def load(root: Path, seed: int = 1, **settings: Any) -> FashionMnist:
    tiny = {"num_clients": 10, "shards_per_client": 2, "shard_size": 4, "download": False}
    return FashionMnist(FashionMnistSettings(root=str(root), **{**tiny, **settings}), seed)


def test_shapes_and_types(root: Path) -> None:
    """Every client gets float32 images (n, 1, 28, 28) and int64 labels (n,), 10 classes."""
    data = load(root)
    assert (data.input_shape, data.num_classes, data.num_clients) == ((1, 28, 28), 10, 10)
    for own in map(data.client, range(10)):
        for x, y, n in ((own.x_train, own.y_train, 8), (own.x_test, own.y_test, 4)):
            assert x.shape == (n, 1, 28, 28)
            assert x.dtype == np.float32
            assert y.shape == (n,)
            assert y.dtype == np.int64


def test_pixels_and_labels_are_those_of_the_files(root: Path) -> None:
    """Each image is the file's row divided by 255, with that row's label, from its own part."""
    data = load(root)
    for own in map(data.client, range(10)):
        for part, n, x, y in (
            (0, TRAIN, own.x_train, own.y_train),
            (1, TEST, own.x_test, own.y_test),
        ):
            images, labels = picture(n, part)
            rows = np.rint(x[:, 0, 0, 1] * 255).astype(int)
            np.testing.assert_allclose(x[:, 0], images[rows] / 255.0, rtol=0, atol=1e-7)
            np.testing.assert_array_equal(y, labels[rows])
            assert (x.min(), x.max()) == (0.0, 1.0)


def test_rows_are_dealt_once(root: Path) -> None:
    """20 shards for 20 places: every training and every test row has exactly one owner."""
    clients = list(map(load(root).client, range(10)))
    for n, parts in ((TRAIN, [c.x_train for c in clients]), (TEST, [c.x_test for c in clients])):
        rows = np.rint(np.concatenate(parts)[:, 0, 0, 1] * 255)
        assert sorted(rows.tolist()) == list(range(n))


def test_test_classes_are_the_training_classes(root: Path) -> None:
    """A client's test part has its training part's classes, in the same proportions."""
    for own in map(load(root).client, range(10)):
        train, test = np.bincount(own.y_train, minlength=10), np.bincount(own.y_test, minlength=10)
        np.testing.assert_array_equal(train, 2 * test)
        assert np.count_nonzero(train) <= 2


def test_data_depends_on_the_seed(root: Path) -> None:
    """The same seed gives the same clients, another seed others."""
    first, again, other = load(root, 1).client(3), load(root, 1).client(3), load(root, 2).client(3)
    np.testing.assert_array_equal(first.x_train, again.x_train)
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_train, other.x_train)


@pytest.mark.parametrize("seed", range(1, 9))
def test_heterogeneous_priority_is_disjoint(root: Path, seed: int) -> None:
    """The two priority clients of the default share no class."""
    data = load(root, seed)
    one, two = (set(data.client(k).y_train.tolist()) for k in data.priority)
    assert not one & two


def test_named_and_random_priority(root: Path) -> None:
    """A list is taken as it is, random draws the asked number by the seed."""
    assert load(root, priority=[7, 2]).priority == (2, 7)
    drawn = {load(root, seed, priority="random", num_priority=3).priority for seed in range(6)}
    assert all(len(set(chosen)) == 3 and set(chosen) <= set(range(10)) for chosen in drawn)
    assert len(drawn) > 1


def assert_one_line_about(error: BaseException, root: Path) -> None:
    text = str(error)
    assert "\n" not in text
    assert text.startswith("data.root must be a folder with")
    assert f"got {root}" in text


def test_missing_files(tmp_path: Path) -> None:
    """Without files and download one line names data.root and the folder looked in."""
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert_one_line_about(caught.value, tmp_path)
    assert "data.download is false" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"])
def test_one_missing_file(root: Path, name: str) -> None:
    """A single missing file is reported like all."""
    (root / "FashionMNIST" / "raw" / name).unlink()
    with pytest.raises(DataError, match=re.escape(f"got {root}")):
        load(root)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("Error downloading x:\nTried y, got:\nz"), URLError("no network"), OSError(28)],
    ids=["RuntimeError", "URLError", "OSError"],
)
def test_failed_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A download that fails is reported in one line with torchvision's reason."""

    def fail(self: TorchvisionFashionMNIST) -> None:
        raise error

    monkeypatch.setattr(TorchvisionFashionMNIST, "download", fail)
    with pytest.raises(DataError) as caught:
        load(tmp_path, download=True)
    assert_one_line_about(caught.value, tmp_path)
    assert " ".join(str(error).split()) in str(caught.value)


def test_download_is_not_tried_where_files_are(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are there are read even where a download would fail."""

    def fail(self: TorchvisionFashionMNIST) -> None:
        raise AssertionError

    monkeypatch.setattr(TorchvisionFashionMNIST, "download", fail)
    assert len(load(root, download=True).client(0).y_train) == 8


def test_empty_file(root: Path) -> None:
    """A file without content, as an interrupted copy leaves it, is reported in one line."""
    (root / "FashionMNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        load(root)
    assert_one_line_about(caught.value, root)


def test_truncated_file(root: Path) -> None:
    """A file cut short, as an interrupted copy leaves it, is reported in one line."""
    path = root / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError) as caught:
        load(root)
    assert_one_line_about(caught.value, root)


def test_foreign_file(root: Path) -> None:
    """A file of another format, such as a proxy's error page, is reported in one line."""
    (root / "FashionMNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(b"<html>no</html>")
    with pytest.raises(DataError) as caught:
        load(root)
    assert_one_line_about(caught.value, root)


def test_real_data(real_data: Path) -> None:
    """60 clients get 1,000 training rows of at most 2 classes: 60,000 rows, each once."""
    settings = FashionMnistSettings(root=str(real_data), download=False)
    data = FashionMnist(settings, seed=1)
    rows, test_rows = (
        np.concatenate([getattr(share, part) for share in data._shares])
        for part in ("train", "test")
    )
    assert sorted(rows.tolist()) == list(range(60_000))
    assert sorted(test_rows.tolist()) == list(range(10_000))
    for own in map(data.client, range(60)):
        counts = np.bincount(own.y_train, minlength=10)
        assert sorted(counts[counts > 0].tolist()) in ([1000], [500, 500])
        # 1,000 test rows of a class in 12 shards: 83 or 84 each.
        assert np.abs(np.bincount(own.y_test, minlength=10) - counts / 6).max() < 2
        assert own.x_train.shape == (1000, 1, 28, 28)
    one, two = (set(data.client(k).y_train.tolist()) for k in data.priority)
    assert not one & two
