"""ISIC 2019, on tiny images in FLamby's layout."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from client_app.data import load_data
from client_app.data.sources.npz import load_npz_arrays
from conf.compose import compose_settings
from conf.schema.data import NpzSettings
from tests.examples.datasets.scripts import Script, load_script

ROWS = 12
HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"
SIZE = ("--size", "30", "30")
IMAGES = "ISIC_2019_Training_Input_preprocessed"


def row(i: int) -> tuple[str, int, int, str]:
    return f"ISIC_{i:07}", i % 8, i % 2, "test" if i >= 8 else "train"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write 12 images, wider than high, and FLamby's table of two centers."""
    images = tmp_path / IMAGES
    images.mkdir()
    lines = [HEADER]
    for i in range(ROWS):
        name, target, center, fold = row(i)
        kinds = ",".join("1.0" if c == target else "0.0" for c in range(9))
        lines.append(f"{name},{kinds},{target},{center},{fold},{fold}_{center}")
        pixels = np.full((30, 50, 3), 20 * i, dtype=np.uint8)
        pixels[:, :8] = pixels[:, -8:] = 255  # what the crop takes off
        Image.fromarray(pixels).save(images / f"{name}.jpg", quality=95)
    (tmp_path / "train_test_split").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return the script, for 12 images."""
    wanted = f"train_test_split and {IMAGES} (accept the license and run FLamby's scripts"
    return load_script("prepare_isic2019", wanted, monkeypatch, {"IMAGE_COUNT": ROWS})


def test_lesions_centers_and_folds(folder: Path, script: Script) -> None:
    """The table says class, client and part of every image."""
    path = script.run(folder, *SIZE)
    arrays = load_npz_arrays(NpzSettings(path=str(path), partition="natural"))
    assert arrays.num_classes == 8
    assert arrays.client_train is not None
    assert arrays.client_test is not None
    for y, clients, rows in (
        (arrays.y_train, arrays.client_train, range(8)),
        (arrays.y_test, arrays.client_test, range(8, 12)),
    ):
        assert y.tolist() == [row(i)[1] for i in rows]
        assert clients.tolist() == [row(i)[2] for i in rows]


def test_images_are_cut_to_their_middle(folder: Path, script: Script) -> None:
    """The longer side loses both ends; nothing is stretched."""
    x = load_npz_arrays(NpzSettings(path=str(script.run(folder, *SIZE)))).x_test[:]
    assert x.shape == (4, 30, 30, 3)
    for image, i in zip(x, range(8, 12), strict=True):
        assert np.abs(image[:, 2:-2].astype(int) - 20 * i).max() <= 4


def test_centers_are_clients(folder: Path, script: Script) -> None:
    """A center's test part is FLamby's, and an image is 224 x 224 unless it is said otherwise."""
    data = load_data(
        compose_settings("aaggff/isic", f"data.path={script.run(folder)}").settings.data, 1
    )
    assert (data.num_clients, data.input_shape, data.priority) == (2, (3, 224, 224), (0, 1))
    assert data.get_client(1).y_train.tolist() == [1, 3, 5, 7]
    assert data.get_client(1).y_test.tolist() == [1, 3]


def test_the_other_name_of_the_table(folder: Path, script: Script) -> None:
    """FLamby's older versions call it train_test_folds.csv."""
    path = folder / "train_test_split"
    path.rename(path.with_name("train_test_folds.csv"))
    assert len(load_npz_arrays(NpzSettings(path=str(script.run(folder, *SIZE)))).y_train) == 8


def test_missing_table(tmp_path: Path, script: Script) -> None:
    """Without the files one line says what is wanted and where to get it."""
    script.assert_refused(tmp_path, "fed_isic2019.*there is no train_test_split$")


def test_truncated_table(folder: Path, script: Script) -> None:
    """A table cut short has too few images."""
    path = folder / "train_test_split"
    path.write_text("\n".join(path.read_text().splitlines()[:-2]))
    script.assert_refused(folder, "must name 12 images, got 10$")


def test_missing_image(folder: Path, script: Script) -> None:
    """An image that is not there is named before any work."""
    (folder / IMAGES / "ISIC_0000004.jpg").unlink()
    script.assert_refused(folder, r"1 of 12 images are missing, such as ISIC_0000004\.jpg$")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (",target,", ",label,", "train_test_split lacks target$"),
        (",train,", ",val,", "fold must be train or test in train_test_split, got val$"),
        (",3,1,train", ",8,1,train", "target must be 0 to 7 in train_test_split, got 8$"),
        (",3,1,train", ",x,1,train", "target must be 0 to 7 in train_test_split, got 0$"),
    ],
)
def test_foreign_table(folder: Path, script: Script, old: str, new: str, reason: str) -> None:
    """A missing column, another fold and a class out of range are refused."""
    path = folder / "train_test_split"
    path.write_text(path.read_text().replace(old, new))
    script.assert_refused(folder, reason)


def test_damaged_image(folder: Path, script: Script) -> None:
    """A file that is no image is one line with its path."""
    path = folder / IMAGES / "ISIC_0000000.jpg"
    path.write_bytes(path.read_bytes()[:100])
    script.assert_refused(folder, f": {path} is no image: ")
