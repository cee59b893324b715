"""CINIC-10, on tiny images in the official folders."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from client_app.data import load_data
from client_app.data.sources.npz import load_npz_arrays
from conf.compose import compose_settings
from conf.schema.data import NpzSettings
from tests.examples.datasets.scripts import Script, load_script

Pixels = NDArray[np.uint8]

EACH = {"train": 4, "test": 4, "valid": 2}  # images of each class
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def pictures(split: str) -> Pixels:
    """Return images (class, number, 32, 32, 3)."""
    rng = np.random.default_rng(list(EACH).index(split))
    return rng.integers(256, size=(len(CLASSES), EACH[split], 32, 32, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with CINIC-10's parts, classes and images."""
    for split in EACH:
        for name, images in zip(CLASSES, pictures(split), strict=True):
            of_class = tmp_path / split / name
            of_class.mkdir(parents=True)
            for i, image in enumerate(images):
                Image.fromarray(image).save(of_class / f"{split}-n{i:05}.png")
    return tmp_path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return the script, for four images of each class."""
    return load_script("prepare_cinic10", "train and test, ", monkeypatch, {"EACH_CLASS": 4})


def test_images_and_labels(folder: Path, script: Script) -> None:
    """Both parts come class by class in the alphabet's order, as published; valid is not read."""
    arrays = load_npz_arrays(NpzSettings(path=str(script.run(folder))))
    assert arrays.num_classes == 10
    splits = {"train": (arrays.x_train, arrays.y_train), "test": (arrays.x_test, arrays.y_test)}
    for split, (x, y) in splits.items():
        np.testing.assert_array_equal(x, pictures(split).reshape(-1, 32, 32, 3), strict=True)
        np.testing.assert_array_equal(y, np.repeat(np.arange(10), 4), strict=True)


def test_images_are_mapped(folder: Path, script: Script) -> None:
    """A run reads an image when a client needs it."""
    x = load_npz_arrays(NpzSettings(path=str(script.run(folder)))).x_train
    assert isinstance(x, np.ndarray)
    assert not x.flags.owndata


def test_gray_images_become_colored(folder: Path, script: Script) -> None:
    """Some of the images from ImageNet have one channel; it becomes all three."""
    gray = np.arange(1024, dtype=np.uint8).reshape(32, 32)
    Image.fromarray(gray).save(folder / "train/airplane/train-n00000.png")
    x = load_npz_arrays(NpzSettings(path=str(script.run(folder)))).x_train
    np.testing.assert_array_equal(x[0], np.dstack([gray] * 3))


@pytest.mark.parametrize("preset", ["fedau/cinic10", "fedawe/cinic10"])
def test_the_experiments_read_it(folder: Path, script: Script, preset: str) -> None:
    """It is divided among clients like every other data set, normalized where FedAU is."""
    overrides = f"data.path={script.run(folder)} data.num_clients=3 data.alpha=5"
    settings = compose_settings(preset, overrides).settings.data
    data = load_data(settings, 1)
    assert (data.num_clients, data.input_shape, data.num_classes) == (3, (3, 32, 32), 10)
    rows = [len(data.get_client(k).y_train) for k in range(3)]
    assert rows == {"fedau/cinic10": [9, 11, 20], "fedawe/cinic10": [13, 13, 13]}[preset]
    normalized = min(data.get_client(k).x_train.min() for k in range(3)) < 0
    assert normalized == (preset == "fedau/cinic10")


def test_missing_part(folder: Path, script: Script) -> None:
    """A part that is not there is reported with its folder."""
    (folder / "test").rename(folder / "testing")
    script.assert_refused(folder, "No such file or directory: '.*/test'$")


def test_foreign_class(folder: Path, script: Script) -> None:
    """Folders of another data set are refused."""
    (folder / "train/truck").rename(folder / "train/lorry")
    script.assert_refused(folder, "train must have airplane, .* truck, got airplane, .*lorry")


def test_missing_image(folder: Path, script: Script) -> None:
    """Where unpacking was interrupted, a class has fewer images than were published."""
    (folder / "test/truck/test-n00001.png").unlink()
    script.assert_refused(folder, "test/truck must have 4 images, got 3$")


@pytest.mark.parametrize("content", [0, 50, 99, "<html>no</html>"])
def test_damaged_image(folder: Path, script: Script, content: int | str) -> None:
    """An image cut short, or a file that is none, is one line with its path."""
    path = folder / "train/dog/train-n00002.png"
    if isinstance(content, str):
        path.write_text(content)
    else:
        path.write_bytes(path.read_bytes()[: content * path.stat().st_size // 100])
    script.assert_refused(folder, f": {path} is no image: ")


@pytest.mark.parametrize("shape", [(1, 32), (64, 64)])
def test_images_of_another_size(folder: Path, script: Script, shape: tuple[int, int]) -> None:
    """An image that is not 32 x 32 is refused with its path, and not stretched."""
    path = folder / "test/dog/test-n00002.png"
    Image.fromarray(np.zeros((*shape, 3), dtype=np.uint8)).save(path)
    script.assert_refused(folder, f"{path} must be 32 x 32, got {shape[0]} x {shape[1]}$")


def test_a_file_that_is_there_is_kept(folder: Path, script: Script) -> None:
    """A second start does not replace the file, and says so in one line."""
    output = script.run(folder)
    before = output.read_bytes()
    message = f"^--output must be a new file, got {output}, which exists$"
    with pytest.raises(SystemExit, match=message):
        script.run(folder)
    assert output.read_bytes() == before
