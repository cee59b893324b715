"""Data sets by torchvision, on tiny files in the official formats."""

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from fedquorum.errors import DataError
from numpy.typing import NDArray

from client_app.data.sources.base import LabeledArrays
from conf.schema.data import TorchvisionSettings
from tests.reference.idx import write_idx

Pixels = NDArray[np.uint8]

CLASSES = {"mnist": 10, "fmnist": 10, "emnist": 47, "cifar10": 10, "cifar100": 100, "svhn": 10}
MNIST_LIKE = ("mnist", "fmnist", "emnist")
CLASS = {
    "mnist": "MNIST",
    "fmnist": "FashionMNIST",
    "emnist": "EMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "svhn": "SVHN",
}
FOLDER = {
    "mnist": "MNIST/raw",
    "fmnist": "FashionMNIST/raw",
    "emnist": "EMNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "svhn": ".",
}
WANTED = {
    "mnist": "the four files of MNIST in MNIST/raw",
    "fmnist": "the four files of Fashion-MNIST in FashionMNIST/raw",
    "emnist": "the four files of EMNIST Balanced in EMNIST/raw",
    "cifar10": "the seven files of CIFAR-10 in cifar-10-batches-py",
    "cifar100": "the three files of CIFAR-100 in cifar-100-python",
    "svhn": "train_32x32.mat and test_32x32.mat of SVHN",
}
IDX_FILES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
FILES = {
    "mnist": IDX_FILES,
    "fmnist": IDX_FILES,
    "emnist": [
        "emnist-balanced-train-images-idx3-ubyte",
        "emnist-balanced-train-labels-idx1-ubyte",
        "emnist-balanced-test-images-idx3-ubyte",
        "emnist-balanced-test-labels-idx1-ubyte",
    ],
    "cifar10": [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"],
    "cifar100": ["train", "test", "meta"],
    "svhn": ["train_32x32.mat", "test_32x32.mat"],
}
EACH_FILE = [(name, file) for name in CLASSES for file in FILES[name]]

each_data_set = pytest.mark.parametrize("name", CLASSES)
Writer = Callable[[str], Path]


def make_picture(name: str, split: int) -> tuple[Pixels, Pixels]:
    """Return upright images of all classes, with labels: 100 to train on (part 0), 50 to test."""
    rng = np.random.default_rng(split)
    n, shape = (100, 50)[split], (28, 28) if name in MNIST_LIKE else (32, 32, 3)
    labels = rng.permutation(np.arange(n) % CLASSES[name]).astype(np.uint8)
    return rng.integers(256, size=(n, *shape), dtype=np.uint8), labels


def write_mnist_like(folder: Path, name: str) -> None:
    """Write images and labels of both parts as idx files; EMNIST's images are transposed."""
    for split in (0, 1):
        images, labels = make_picture(name, split)
        stored = images.swapaxes(1, 2) if name == "emnist" else images
        for file, values in zip(FILES[name][2 * split :], (stored, labels), strict=False):
            write_idx(folder / file, values)


def to_rows(images: Pixels) -> Pixels:
    """Return CIFAR's form: rows of 1,024 red, 1,024 green and 1,024 blue values."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_pickles(folder: Path, name: str, contents: list[dict[str, object]]) -> list[str]:
    """Write the files of CIFAR in Python's format; returns their MD5 sums."""
    sums = []
    for file, content in zip(FILES[name], contents, strict=True):
        written = pickle.dumps(content, protocol=2)
        (folder / file).write_bytes(written)
        sums.append(hashlib.md5(written, usedforsecurity=False).hexdigest())
    return sums


def write_cifar10(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write five batches to train on and one to test."""
    from torchvision import datasets

    (images, labels), test = make_picture("cifar10", 0), make_picture("cifar10", 1)
    batches = [*zip(np.split(images, 5), np.split(labels, 5), strict=True), test]
    contents: list[dict[str, object]] = [
        {"data": to_rows(x), "labels": y.tolist()} for x, y in batches
    ]
    contents.append({"label_names": [f"class {c}" for c in range(10)]})
    sums = write_pickles(folder, "cifar10", contents)
    named = list(zip(FILES["cifar10"], sums, strict=True))
    monkeypatch.setattr(datasets.CIFAR10, "train_list", named[:5])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", named[5:6])
    monkeypatch.setattr(datasets.CIFAR10, "meta", {**datasets.CIFAR10.meta, "md5": sums[6]})


def write_cifar100(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write both parts, each image with its class and its one of 20 groups of classes."""
    from torchvision import datasets

    contents: list[dict[str, object]] = [
        {"data": to_rows(x), "fine_labels": y.tolist(), "coarse_labels": (y // 5).tolist()}
        for x, y in (make_picture("cifar100", split) for split in (0, 1))
    ]
    contents.append(
        {
            "fine_label_names": [f"class {c}" for c in range(100)],
            "coarse_label_names": [f"group {c}" for c in range(20)],
        }
    )
    sums = write_pickles(folder, "cifar100", contents)
    monkeypatch.setattr(datasets.CIFAR100, "train_list", [("train", sums[0])])
    monkeypatch.setattr(datasets.CIFAR100, "test_list", [("test", sums[1])])
    monkeypatch.setattr(datasets.CIFAR100, "meta", {**datasets.CIFAR100.meta, "md5": sums[2]})


def write_svhn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write MATLAB's X (height, width, channels, n) and y (n, 1), where a zero is a ten."""
    from scipy.io import savemat
    from torchvision import datasets

    splits = {}
    for split, file in enumerate(FILES["svhn"]):
        images, labels = make_picture("svhn", split)
        tens = np.where(labels == 0, 10, labels)[:, None]
        savemat(folder / file, {"X": images.transpose(1, 2, 3, 0), "y": tens})
        md5 = hashlib.md5((folder / file).read_bytes(), usedforsecurity=False).hexdigest()
        splits[("train", "test")[split]] = ["http://localhost", file, md5]
    monkeypatch.setattr(datasets.SVHN, "split_list", splits)


SPECIAL = {"cifar10": write_cifar10, "cifar100": write_cifar100, "svhn": write_svhn}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Return what writes the files of a data set; it returns torchvision's root."""

    def write_files(name: str) -> Path:
        folder = tmp_path / FOLDER[name]
        folder.mkdir(parents=True, exist_ok=True)
        if name in SPECIAL:
            SPECIAL[name](folder, monkeypatch)
        else:
            write_mnist_like(folder, name)
        return tmp_path

    return write_files


def load(name: str, root: Path, *, download: bool = False) -> LabeledArrays:
    from client_app.data.sources.torchvision import load_torchvision_arrays

    return load_torchvision_arrays(
        TorchvisionSettings(name=name, root=str(root), download=download)
    )


def assert_those_of_the_files(arrays: LabeledArrays, name: str) -> None:
    assert arrays.num_classes == CLASSES[name]
    parts = ((arrays.x_train, arrays.y_train), (arrays.x_test, arrays.y_test))
    for split, (x, y) in enumerate(parts):
        images, labels = make_picture(name, split)
        np.testing.assert_array_equal(x, images, strict=True)
        np.testing.assert_array_equal(y, labels.astype(np.int64), strict=True)


def assert_one_line_about(error: BaseException, name: str, root: Path) -> None:
    text = str(error)
    assert "\n" not in text
    assert text.startswith(f"data.root must be a folder with {WANTED[name]}")
    assert f"got {root}: " in text


@each_data_set
def test_images_and_labels_are_those_of_the_files(name: str, write: Writer) -> None:
    """Both parts come in the files' order: uint8, upright, colors last; labels int64."""
    assert_those_of_the_files(load(name, write(name)), name)


def test_emnist_is_upright(write: Writer) -> None:
    """EMNIST's files hold columns where others hold rows; a stored column is a row here."""
    root = write("emnist")
    stored = (root / FOLDER["emnist"] / FILES["emnist"][0]).read_bytes()[16:]
    arrays = load("emnist", root)
    assert arrays.x_train[0, :, 0].tobytes() == stored[:28]


@each_data_set
def test_missing_files(name: str, tmp_path: Path) -> None:
    """Without files and download one line says what is wanted where, and nothing is made."""
    with pytest.raises(DataError) as caught:
        load(name, tmp_path)
    assert_one_line_about(caught.value, name, tmp_path)
    assert "(data.download is false)" in str(caught.value)
    assert "Dataset not found" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "file"), EACH_FILE)
def test_one_missing_file(name: str, file: str, write: Writer) -> None:
    """A single missing file is reported like all."""
    root = write(name)
    (root / FOLDER[name] / file).unlink()
    with pytest.raises(DataError) as caught:
        load(name, root)
    assert_one_line_about(caught.value, name, root)


@pytest.mark.parametrize("content", [0, 90, "<html>no</html>"], ids=["empty", "cut", "foreign"])
@pytest.mark.parametrize(("name", "file"), EACH_FILE)
def test_damaged_file(name: str, file: str, content: int | str, write: Writer) -> None:
    """A file cut short by an interrupted copy, or a proxy's error page, is one line."""
    root = write(name)
    path = root / FOLDER[name] / file
    if isinstance(content, str):
        path.write_text(content)
    else:
        path.write_bytes(path.read_bytes()[: content * path.stat().st_size // 100])
    with pytest.raises(DataError) as caught:
        load(name, root)
    assert_one_line_about(caught.value, name, root)


def test_a_zero_of_svhn_is_class_0(write: Writer) -> None:
    """SVHN's files call the digit zero class 10; here the class is the digit."""
    from scipy.io import loadmat

    root = write("svhn")
    stored = loadmat(root / FILES["svhn"][0])["y"][:, 0]
    y = load("svhn", root).y_train
    assert set(y[stored == 10].tolist()) == {0}
    np.testing.assert_array_equal(y[stored != 10], stored[stored != 10])


def test_labels_that_svhn_does_not_have(
    write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class above ten, which a file of another data set may have, is refused."""
    from scipy.io import loadmat, savemat
    from torchvision import datasets

    root = write("svhn")
    path = tmp_path / FILES["svhn"][0]
    content = loadmat(path)
    content["y"][3] = 11
    savemat(path, {"X": content["X"], "y": content["y"]})
    md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    splits = datasets.SVHN.split_list | {"train": ["http://localhost", path.name, md5]}
    monkeypatch.setattr(datasets.SVHN, "split_list", splits)
    with pytest.raises(DataError, match=r"y_train must be classes from 0 to 9, got 0 to 11$"):
        load("svhn", root)


@pytest.mark.parametrize("name", MNIST_LIKE)
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("shape", [(20, 20), (28, 30)])
def test_images_of_another_size(
    name: str, split: int, shape: tuple[int, ...], write: Writer
) -> None:
    """Images that are not 28 x 28, as of another data set, are refused."""
    root = write(name)
    images = np.zeros((len(make_picture(name, split)[1]), *shape), dtype=np.uint8)
    write_idx(root / FOLDER[name] / FILES[name][2 * split], images)
    with pytest.raises(DataError, match=r"images must be \(28, 28\), got") as caught:
        load(name, root)
    assert_one_line_about(caught.value, name, root)


@pytest.mark.parametrize("name", MNIST_LIKE)
@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (np.zeros(99, dtype=np.uint8), "x_train and y_train must have equally many rows"),
        (np.full(100, 61, dtype=np.uint8), "y_train must be classes from 0 to"),
    ],
    ids=["fewer", "other classes"],
)
def test_labels_of_another_data_set(name: str, labels: Pixels, reason: str, write: Writer) -> None:
    """Labels that are not those of the images, as of another split, are refused."""
    root = write(name)
    write_idx(root / FOLDER[name] / FILES[name][1], labels)
    with pytest.raises(DataError, match=reason) as caught:
        load(name, root)
    assert_one_line_about(caught.value, name, root)


@each_data_set
def test_missing_files_are_downloaded(
    name: str, tmp_path: Path, write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where data.download is true, torchvision is asked to fetch what is missing."""
    fetched: list[str] = []

    def fetch(_: object) -> None:
        if not fetched:
            write(name)
        fetched.append(name)

    monkeypatch.setattr(f"torchvision.datasets.{CLASS[name]}.download", fetch)
    assert_those_of_the_files(load(name, tmp_path, download=True), name)
    assert fetched


@each_data_set
@pytest.mark.parametrize(
    "error",
    [RuntimeError("Error downloading x:\nTried y, got:\nz"), URLError("no network"), OSError(28)],
    ids=["RuntimeError", "URLError", "OSError"],
)
def test_failed_download(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A download that fails is reported in one line with torchvision's reason."""

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(f"torchvision.datasets.{CLASS[name]}.download", fail)
    with pytest.raises(DataError, match="or they must be downloadable to it") as caught:
        load(name, tmp_path, download=True)
    assert_one_line_about(caught.value, name, tmp_path)
    assert str(caught.value).endswith(" ".join(str(error).split()))


@each_data_set
def test_download_is_not_tried_where_files_are(
    name: str, write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are there are read even where a download would fail."""

    def fail(_: object) -> None:
        raise AssertionError

    root = write(name)
    monkeypatch.setattr(f"torchvision.datasets.{CLASS[name]}.download", fail)
    assert_those_of_the_files(load(name, root, download=True), name)


def test_root_may_start_at_home(write: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` in data.root is the user's home, as in a shell."""
    root = write("fmnist")
    monkeypatch.setenv("HOME", str(root.parent))
    assert_those_of_the_files(load("fmnist", Path("~") / root.name), "fmnist")
