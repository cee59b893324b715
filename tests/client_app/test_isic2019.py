"""ISIC 2019, on tiny images in FLamby's layout."""

from pathlib import Path

import numpy as np
import pytest
from fedquorum.errors import DataError
from PIL import Image

from client_app.data import load_data
from client_app.data.sources import isic2019
from client_app.data.sources.base import LabelledArrays
from client_app.data.sources.isic2019 import isic2019_arrays
from conf.schema.data import Isic2019Settings

ROWS = 12
HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"


def row(i: int) -> tuple[str, int, int, str]:
    return f"ISIC_{i:07}", i % 8, i % 2, "test" if i >= 8 else "train"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write 12 images, wider than high, and FLamby's table of two centers."""
    folder = tmp_path / "ISIC2019"
    images = folder / "ISIC_2019_Training_Input_preprocessed"
    images.mkdir(parents=True)
    lines = [HEADER]
    for i in range(ROWS):
        name, target, center, fold = row(i)
        kinds = ",".join("1.0" if c == target else "0.0" for c in range(9))
        lines.append(f"{name},{kinds},{target},{center},{fold},{fold}_{center}")
        pixels = np.full((30, 50, 3), 20 * i, dtype=np.uint8)
        pixels[:, :8] = pixels[:, -8:] = 255  # what the crop takes off
        Image.fromarray(pixels).save(images / f"{name}.jpg", quality=95)
    (folder / "train_test_split").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(isic2019, "IMAGE_COUNT", ROWS)
    return tmp_path


def load(root: Path) -> LabelledArrays:
    return isic2019_arrays(Isic2019Settings(root=str(root), image_size=[30, 30]))


def assert_refused(root: Path, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        load(root)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("data.root must be a folder with ISIC2019/train_test_split and ISIC2019")
    assert "fed_isic2019" in text


def change(root: Path, old: str, new: str) -> None:
    path = root / "ISIC2019" / "train_test_split"
    path.write_text(path.read_text().replace(old, new))


def test_lesions_centers_and_folds(root: Path) -> None:
    """The table says class, client and part of every image."""
    arrays = load(root)
    assert arrays.num_classes == 8
    assert arrays.client_train is not None
    assert arrays.client_test is not None
    for y, clients, rows in (
        (arrays.y_train, arrays.client_train, range(8)),
        (arrays.y_test, arrays.client_test, range(8, 12)),
    ):
        assert y.tolist() == [row(i)[1] for i in rows]
        assert clients.tolist() == [row(i)[2] for i in rows]


def test_images_are_cut_to_their_middle(root: Path) -> None:
    """The longer side loses both ends; nothing is stretched."""
    x = load(root).x_test[np.array([3, 0])]
    assert x.shape == (2, 30, 30, 3)
    for image, i in zip(x, (11, 8), strict=True):
        assert np.abs(image[:, 2:-2].astype(int) - 20 * i).max() <= 4


def test_centers_are_clients(root: Path) -> None:
    """A center's test part is FLamby's."""
    data = load_data(Isic2019Settings(root=str(root), image_size=[30, 30]), 1)
    assert (data.num_clients, data.input_shape) == (2, (3, 30, 30))
    assert data.client(1).y_test.tolist() == [row(i)[1] for i in (9, 11)]


def test_the_other_name_of_the_table(root: Path) -> None:
    """FLamby's older versions call it train_test_folds.csv."""
    path = root / "ISIC2019" / "train_test_split"
    path.rename(path.with_name("train_test_folds.csv"))
    assert len(load(root).y_train) == 8


def test_missing_table(tmp_path: Path) -> None:
    """Without the files one line says what to fetch and where to put it."""
    assert_refused(tmp_path, "there is no train_test_split")


def test_truncated_table(root: Path) -> None:
    """A table cut short has too few images."""
    path = root / "ISIC2019" / "train_test_split"
    path.write_text("\n".join(path.read_text().splitlines()[:-2]))
    assert_refused(root, "must name 12 images, got 10$")


def test_missing_image(root: Path) -> None:
    """An image that is not there is named before any work."""
    (root / "ISIC2019/ISIC_2019_Training_Input_preprocessed/ISIC_0000004.jpg").unlink()
    assert_refused(root, r"1 of 12 images are missing in .*, such as ISIC_0000004\.jpg$")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (",target,", ",label,", "train_test_split lacks target$"),
        (",train,", ",val,", "fold must be train and test in .*, got test, val$"),
        (",3,1,train", ",8,1,train", "y_train must be classes from 0 to 7, got 0 to 8$"),
        (",3,1,train", ",x,1,train", "invalid literal"),
    ],
)
def test_foreign_table(root: Path, old: str, new: str, reason: str) -> None:
    """A column that is missing, another fold and a class out of range are told."""
    change(root, old, new)
    assert_refused(root, reason)


def test_damaged_image(root: Path) -> None:
    """A file that is no image is one line when it is read."""
    path = root / "ISIC2019/ISIC_2019_Training_Input_preprocessed/ISIC_0000000.jpg"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"^data\.root must lead to images, got .*ISIC_0000000"):
        load(root).x_train[:1]
