"""CelebA, on tiny files in torchvision's layout."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import DataError
from numpy.typing import NDArray
from PIL import Image
from torchvision.datasets import CelebA

from client_app.data import load_data
from client_app.data.sources.base import LabelledArrays
from client_app.data.sources.celeba import celeba_arrays
from conf.schema.data import CelebASettings

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
    """Return a photograph (218, 178, 3) in one colour, so that scaling keeps it."""
    return np.full((218, 178, 3), (10 * image, 255 - 10 * image, 7), dtype=np.uint8)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write 15 images of three people and the text files, and tell torchvision their MD5 sums."""
    folder = tmp_path / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{i + 1:06}.jpg" for i in range(len(PEOPLE))]
    for i, name in enumerate(names):
        Image.fromarray(picture(i)).save(folder / "img_align_celeba" / name, quality=95)
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
        (folder / name).write_text(text)
        md5 = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        listed.append(("id", md5, name))
    monkeypatch.setattr(CelebA, "file_list", listed)
    return tmp_path


def settings(root: Path, **others: Any) -> CelebASettings:
    given: dict[str, Any] = {"download": False, "min_samples": None, **others}
    return CelebASettings(root=str(root), **given)


def load(root: Path) -> LabelledArrays:
    return celeba_arrays(settings(root))


def assert_refused(root: Path, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        load(root)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(
        "data.root must be a folder with the text files of CelebA and img_align_celeba in celeba"
    )


def test_people_and_who_smiles(root: Path) -> None:
    """All parts are pooled; the target is the attribute Smiling, the client the person."""
    arrays = load(root)
    assert arrays.pooled
    assert arrays.x_train.shape == (15, 84, 84, 3)
    assert arrays.client_train is not None
    assert arrays.client_train.tolist() == PEOPLE
    assert arrays.y_train.tolist() == [int(has(i, 1)) for i in range(15)]
    other = celeba_arrays(settings(root, target="Young"))
    assert other.y_train.tolist() == [int(has(i, 2)) for i in range(15)]


def test_images_are_read_when_asked_for(root: Path) -> None:
    """Rows come in the order asked for, scaled; the other files are not opened."""
    for i in range(3, 15):
        (root / f"celeba/img_align_celeba/{i + 1:06}.jpg").write_bytes(b"")
    x = load(root).x_train
    pixels = x[np.array([2, 0])]
    assert pixels.dtype == np.uint8
    for i, image in zip((2, 0), pixels, strict=True):
        assert np.abs(image.astype(int) - picture(i)[:84, :84]).max() <= 2
    with pytest.raises(DataError, match=r"^data\.root must lead to images, got .*000004\.jpg"):
        x[3:4]


def test_every_person_is_a_client(root: Path) -> None:
    """A client's training and test images are its own; min_samples leaves people out."""
    data = load_data(settings(root), 1)
    assert (data.num_clients, data.input_shape, data.priority) == (3, (3, 84, 84), (0, 1, 2))
    one = data.client(0)  # person 3, images 6 to 10
    seen = np.concatenate([one.x_train, one.x_test])[:, 0, 0, 0]
    assert sorted(np.rint(seen * 25.5).astype(int).tolist()) == [6, 7, 8, 9, 10]
    assert len(one.y_test) == 1
    assert load_data(settings(root, min_samples=5), 1).num_clients == 2


def test_height_and_width(root: Path) -> None:
    """data.image_size is height, width."""
    assert celeba_arrays(settings(root, image_size=[20, 10])).x_train[:1].shape == (1, 20, 10, 3)


def test_unknown_attribute(root: Path) -> None:
    """Another target is one line with those that there are."""
    message = r"^data\.target must be one of Bald, Smiling, Young, got 'Happy'$"
    with pytest.raises(DataError, match=message):
        celeba_arrays(settings(root, target="Happy"))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("keep", [None, 0, 60])
def test_damaged_text_file(root: Path, file: str, keep: int | None) -> None:
    """A text file that is missing or cut short is found by its MD5 sum."""
    path = root / "celeba" / file
    if keep is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:keep])
    assert_refused(root, "Dataset not found or corrupted")


def test_missing_image(root: Path) -> None:
    """An image that was not unpacked is named before any work."""
    (root / "celeba/img_align_celeba/000009.jpg").unlink()
    assert_refused(root, "1 of 15 images are missing, such as 000009.jpg$")


def test_missing_files(tmp_path: Path) -> None:
    """Without files and download one line says what is wanted."""
    assert_refused(tmp_path, r"\(data.download is false\)")


def test_failed_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that fails says what can be fetched by hand, and from where."""

    def fail(_: object) -> None:
        raise RuntimeError("To download\nyou need gdown")

    monkeypatch.setattr(CelebA, "download", fail)
    with pytest.raises(DataError, match=r"mmlab.*CelebA.html\), got .*you need gdown$") as caught:
        celeba_arrays(settings(tmp_path, download=True))
    assert "\n" not in str(caught.value)
