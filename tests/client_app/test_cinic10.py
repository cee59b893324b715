"""CINIC-10, on tiny images in the official folders."""

from pathlib import Path

import numpy as np
import pytest
from fedquorum.errors import DataError
from numpy.typing import NDArray
from PIL import Image

from client_app.data import load_data
from client_app.data.sources import cinic10
from client_app.data.sources.base import LabelledArrays
from client_app.data.sources.cinic10 import CLASSES, cinic10_arrays
from conf.schema.data import Cinic10Settings

Pixels = NDArray[np.uint8]

EACH = {"train": 4, "test": 4, "valid": 2}  # images of each class


def pictures(part: str) -> Pixels:
    """Return images (class, number, 32, 32, 3)."""
    rng = np.random.default_rng(list(EACH).index(part))
    return rng.integers(256, size=(len(CLASSES), EACH[part], 32, 32, 3), dtype=np.uint8)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with CINIC-10's parts, classes and images."""
    monkeypatch.setattr(cinic10, "EACH_CLASS", EACH["train"])
    for part in EACH:
        for name, images in zip(CLASSES, pictures(part), strict=True):
            folder = tmp_path / "CINIC-10" / part / name
            folder.mkdir(parents=True)
            for i, image in enumerate(images):
                Image.fromarray(image).save(folder / f"{part}-n{i:05}.png")
    return tmp_path


def load(root: Path | str) -> LabelledArrays:
    return cinic10_arrays(Cinic10Settings(root=str(root)))


def assert_refused(root: Path, reason: str) -> None:
    """Check for one line with the setting, what is wanted, where it is, the root and the reason."""
    with pytest.raises(DataError, match=reason) as caught:
        load(root)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("data.root must be a folder with CINIC-10/train and CINIC-10/test, ")
    assert "CINIC-10.tar.gz from https://datashare.ed.ac.uk/handle/10283/3192" in text
    assert f"got {root}: " in text


def test_images_and_labels_are_those_of_the_files(root: Path) -> None:
    """Both parts come class by class in the alphabet's order, as published; valid is not read."""
    arrays = load(root)
    assert arrays.num_classes == 10
    parts = {"train": (arrays.x_train, arrays.y_train), "test": (arrays.x_test, arrays.y_test)}
    for part, (x, y) in parts.items():
        assert x.shape == (40, 32, 32, 3)
        np.testing.assert_array_equal(x[:], pictures(part).reshape(-1, 32, 32, 3), strict=True)
        np.testing.assert_array_equal(y, np.repeat(np.arange(10), EACH[part]), strict=True)


def test_grey_images_become_coloured(root: Path) -> None:
    """Some of the images from ImageNet have one channel; it becomes all three."""
    grey = np.arange(1024, dtype=np.uint8).reshape(32, 32)
    Image.fromarray(grey).save(root / "CINIC-10/train/airplane/train-n00000.png")
    for channel in range(3):
        np.testing.assert_array_equal(load(root).x_train[:1][0, ..., channel], grey)


def test_the_settings_lead_to_it(root: Path) -> None:
    """It is divided among clients like every other data set."""
    data = load_data(Cinic10Settings(root=str(root), num_clients=5, shard_size=2), 1)
    assert (data.num_clients, data.input_shape, data.num_classes) == (5, (3, 32, 32), 10)
    assert data.client(4).x_train.shape == (4, 3, 32, 32)


def test_missing_folder(tmp_path: Path) -> None:
    """Without the files one line says what to fetch and where to put it, and nothing is made."""
    assert_refused(tmp_path, "No such file or directory")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["train", "test"])
def test_missing_part(root: Path, part: str) -> None:
    """A part that is not there is reported with its folder."""
    (root / "CINIC-10" / part).rename(root / part)
    assert_refused(root, f"CINIC-10/{part}")


def test_missing_class(root: Path) -> None:
    """A class that is not there is reported, with the classes that are wanted."""
    (root / "CINIC-10/test/ship").rename(root / "ship")
    assert_refused(root, "CINIC-10/test must have airplane, .* got airplane, .* horse, truck$")


def test_foreign_class(root: Path) -> None:
    """Folders of another data set are refused."""
    (root / "CINIC-10/train/truck").rename(root / "CINIC-10/train/lorry")
    assert_refused(root, "CINIC-10/train must have airplane, .* got airplane, .*lorry")


def test_class_without_images(root: Path) -> None:
    """A folder without images is refused."""
    for path in (root / "CINIC-10/train/cat").iterdir():
        path.unlink()
    assert_refused(root, "CINIC-10/train/cat has no images$")


@pytest.mark.parametrize("part", ["train", "test"])
def test_missing_image(root: Path, part: str) -> None:
    """Where unpacking was interrupted, a class has fewer images than were published."""
    (root / "CINIC-10" / part / "truck" / f"{part}-n00001.png").unlink()
    assert_refused(root, f"CINIC-10/{part}/truck must have 4 images, got 3$")


@pytest.mark.parametrize("content", [0, 50, 99, "<html>no</html>"])
def test_damaged_image(root: Path, content: int | str) -> None:
    """An image cut short, or a file that is none, is one line with its path, when it is read."""
    path = root / "CINIC-10/train/dog/train-n00002.png"
    if isinstance(content, str):
        path.write_text(content)
    else:
        path.write_bytes(path.read_bytes()[: content * path.stat().st_size // 100])
    images = load(root).x_train
    images[:22]
    with pytest.raises(DataError, match=f"got {path}, which is no image: ") as caught:
        images[22:]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(1, 1), (1, 32), (64, 64)])
def test_images_of_another_size(root: Path, shape: tuple[int, int]) -> None:
    """An image that is not 32 x 32 is refused with its path, and not stretched."""
    path = root / "CINIC-10/test/dog/test-n00002.png"
    Image.fromarray(np.zeros((*shape, 3), dtype=np.uint8)).save(path)
    with pytest.raises(DataError, match=f"images of 32 x 32, got {path} of "):
        load(root).x_test[:]


def test_root_may_start_at_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` in data.root is the user's home, as in a shell."""
    monkeypatch.setenv("HOME", str(root.parent))
    assert load(f"~/{root.name}").num_classes == 10
