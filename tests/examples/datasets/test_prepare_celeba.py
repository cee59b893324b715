"""CelebA, on tiny files in torchvision's layout."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from client_app.data import load_data
from client_app.data.sources.base import LabeledArrays
from client_app.data.sources.npz import load_npz_arrays
from conf.compose import compose_settings
from conf.schema.data import NpzSettings
from tests.examples.datasets.scripts import Script, load_script

PEOPLE = [7] * 6 + [3] * 5 + [12] * 4  # of 15 images
ATTRIBUTES = ("Bald", "Smiling", "Young")
FILES = (
    "list_attr_celeba.txt",
    "identity_CelebA.txt",
    "list_bbox_celeba.txt",
    "list_landmarks_align_celeba.txt",
    "list_eval_partition.txt",
)


def has(image: int, attribute: int) -> bool:
    return (image >> attribute) % 2 == 1


def picture(image: int) -> NDArray[np.uint8]:
    """Return a photograph (218, 178, 3) in one color, so that scaling keeps it."""
    return np.full((218, 178, 3), (10 * image, 255 - 10 * image, 7), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write 15 images of three people and the text files, and tell torchvision their MD5 sums."""
    inner = tmp_path / "celeba"
    (inner / "img_align_celeba").mkdir(parents=True)
    names = [f"{i + 1:06}.jpg" for i in range(len(PEOPLE))]
    for i, name in enumerate(names):
        Image.fromarray(picture(i)).save(inner / "img_align_celeba" / name, quality=95)
    signs = [" ".join("1" if has(i, a) else "-1" for a in range(3)) for i in range(len(names))]
    contents = {
        "list_attr_celeba.txt": [str(len(names)), " ".join(ATTRIBUTES) + " "]
        + [f"{name}  {attributes}" for name, attributes in zip(names, signs, strict=True)],
        "identity_CelebA.txt": [f"{n} {p}" for n, p in zip(names, PEOPLE, strict=True)],
        "list_bbox_celeba.txt": [str(len(names)), "image_id x_1 y_1 width height"]
        + [f"{name} 1 2 3 4" for name in names],
        "list_landmarks_align_celeba.txt": [str(len(names)), "lefteye_x lefteye_y"]
        + [f"{name} 1 2" for name in names],
        "list_eval_partition.txt": [f"{name} {i % 3}" for i, name in enumerate(names)],
    }
    listed = [("id", "0" * 32, "img_align_celeba.zip")]
    for name, lines in contents.items():
        text = "\n".join(lines) + "\n"
        (inner / name).write_text(text)
        md5 = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        listed.append(("id", md5, name))
    monkeypatch.setattr("torchvision.datasets.CelebA.file_list", listed)
    return tmp_path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return the script."""
    wanted = "celeba, in it the five text files of CelebA and img_align_celeba ("
    return load_script("prepare_celeba", wanted, monkeypatch, {})


def read(path: Path) -> LabeledArrays:
    return load_npz_arrays(NpzSettings(path=str(path), partition="natural"))


def test_people_and_their_attribute(folder: Path, script: Script) -> None:
    """All parts are pooled; the target is the attribute Smiling, the client the person."""
    arrays = read(script.run(folder))
    assert arrays.pooled
    assert arrays.x_train.shape == (15, 84, 84, 3)
    assert arrays.client_train is not None
    assert arrays.client_train.tolist() == PEOPLE
    assert arrays.y_train.tolist() == [int(has(i, 1)) for i in range(15)]
    for i, image in enumerate(arrays.x_train[:]):
        assert np.abs(image.astype(int) - picture(i)[:84, :84]).max() <= 2


def test_another_attribute_and_size(folder: Path, script: Script) -> None:
    """The size is height, width."""
    arrays = read(script.run(folder, "--attribute", "Young", "--size", "20", "10"))
    assert arrays.y_train.tolist() == [int(has(i, 2)) for i in range(15)]
    assert arrays.x_train.shape == (15, 20, 10, 3)


@pytest.mark.parametrize(("fewest", "clients"), [(4, 3), (5, 2)])
def test_every_person_is_a_client(folder: Path, script: Script, fewest: int, clients: int) -> None:
    """A client's training and test images are its own; min_samples leaves people out."""
    overrides = f"data.path={script.run(folder)} data.min_samples={fewest}"
    data = load_data(compose_settings("aaggff/celeba", overrides).settings.data, 1)
    assert (data.num_clients, data.input_shape) == (clients, (3, 84, 84))
    assert data.priority == tuple(range(clients))
    one = data.get_client(0)  # person 3, images 6 to 10
    seen = np.concatenate([one.x_train, one.x_test])[:, 0, 0, 0]
    assert np.rint(seen * 25.5).astype(int).tolist() == [6, 8, 9, 10, 7]
    assert (one.y_train.tolist(), one.y_test.tolist()) == ([1, 0, 0, 1], [1])


def test_the_preset_has_the_people_of_leaf() -> None:
    """LEAF's 9,343 people have at least five images."""
    data = vars(compose_settings("custom", "data=celeba").settings.data)
    assert (data["partition"], data["priority"], data["min_samples"]) == ("natural", "all", 5)
    assert data["path"] == "data/celeba.npz"


def test_an_invalid_attribute_is_refused(folder: Path, script: Script) -> None:
    """Another target is one line with those that there are."""
    reason = "--attribute must be one of Bald, Smiling, Young, got 'Happy'$"
    script.assert_refused(folder, reason, "--attribute", "Happy")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("keep", [None, 0, 60])
def test_damaged_text_file(folder: Path, script: Script, file: str, keep: int | None) -> None:
    """A text file that is missing or cut short is found by its MD5 sum."""
    path = folder / "celeba" / file
    if keep is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:keep])
    script.assert_refused(folder, "Dataset not found or corrupted")


def test_missing_image(folder: Path, script: Script) -> None:
    """An image that was not unpacked is named before any work."""
    (folder / "celeba/img_align_celeba/000009.jpg").unlink()
    script.assert_refused(folder, "1 of 15 images are missing, such as 000009.jpg$")


def test_missing_files(tmp_path: Path, script: Script) -> None:
    """Without files one line says what is wanted and where to get it; nothing is downloaded."""
    script.assert_refused(tmp_path, r"mmlab.*CelebA.html, .*Dataset not found or corrupted")
