"""Images of the user's own, in folders."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.errors import DataError, SettingsError
from PIL import ExifTags, Image

from client_app.data import load_data
from client_app.data.base import PooledSplit, RowIndex
from client_app.data.examples import Examples
from client_app.data.sources.base import LabeledArrays
from client_app.data.sources.image_folder import load_image_folder_arrays
from conf.compose import compose_settings
from conf.schema.data import ImageFolderSettings
from tests.client_app.clients import assert_one_line


def write(folder: Path, colors: list[int], size: tuple[int, int] = (5, 4)) -> None:
    """Write an image in each color."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, color in enumerate(colors):
        pixels = np.full((*size, 3), color, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:03}.png")


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    """Write the images of two clients; only one has all classes."""
    write(tmp_path / "images/ann/cat", [1, 2, 3])
    write(tmp_path / "images/ann/dog", [4, 5])
    write(tmp_path / "images/bob/dog", [6, 7, 8, 9])
    (tmp_path / "images/.git").mkdir()
    (tmp_path / "images/ann/notes.txt").write_text("mine")
    (tmp_path / "images/ann/cat/Thumbs.db").write_text("not mine")
    return tmp_path / "images"


def load(path: Path, **others: Any) -> LabeledArrays:
    return load_image_folder_arrays(ImageFolderSettings(path=str(path), **others))


def assert_refused(path: Path, reason: str, **others: Any) -> None:
    assert_one_line(
        lambda: load(path, **others), reason, "data.path must be a folder with images as "
    )


def colors(x: Any) -> list[int]:
    listed: list[int] = np.asarray(x[:])[:, 0, 0, 0].tolist()
    return listed


def test_clients_by_folder(clients: Path) -> None:
    """client/class/image: the classes are those of all clients, other files are passed over."""
    arrays = load(clients)
    assert colors(arrays.x_train) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert arrays.x_train.shape == (9, 5, 4, 3)
    assert arrays.y_train.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert arrays.client_train is not None
    assert arrays.client_train.tolist() == [0] * 5 + [1] * 4
    data = load_data(ImageFolderSettings(path=str(clients)), 1)
    assert (data.num_clients, data.num_classes, data.input_shape) == (2, 2, (3, 5, 4))
    client = data.get_client(1)
    assert (len(client.y_train), len(client.y_test)) == (3, 1)
    seen = np.concatenate([client.x_train, client.x_test])[:, 0, 0, 0]
    assert sorted(np.rint(seen * 255).astype(int).tolist()) == [6, 7, 8, 9]


def test_only_the_requested_images_are_read(clients: Path) -> None:
    """A damaged image of another client does no harm here, and is one line there."""
    (clients / "bob/dog/002.png").write_bytes(b"\x89PNG cut")
    data = load_data(ImageFolderSettings(path=str(clients)), 1)
    assert len(data.get_client(0).y_train) == 4
    with pytest.raises(DataError, match=r"^data\.path must lead to images, got .*bob/dog/002\.png"):
        data.get_client(1)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "half": lambda content: content[: len(content) // 2],
    "HTML": lambda _: b"<html>404 not found</html>",
}


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "tif", "webp"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_images(tmp_path: Path, damage: str, ending: str) -> None:
    """One line with the path; the header tells, unless the file was cut behind it."""
    for name in ("a.png", f"b.{ending}"):
        folder = tmp_path / "ann" / "cat"
        folder.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(1).integers(256, size=(30, 20, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / name)
    write(tmp_path / "ann/dog", [1], size=(30, 20))
    path = folder / f"b.{ending}"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    images = load(tmp_path).x_train
    assert_one_line(
        lambda: images[:],
        "damaged",
        f"data.path must lead to images, got {path}, which is damaged or no ",
    )
    if damage != "half":
        with pytest.raises(DataError, match="which is damaged or no image: "):
            images.check(np.arange(3))  # type: ignore[union-attr]


def test_images_that_are_read_later(clients: Path) -> None:
    """Headers are checked at the start where images do not fit into memory, of these rows only."""
    (clients / "bob/dog/002.png").write_bytes(b"")
    images = load(clients).x_train
    for client, flat in enumerate((np.arange(5), np.arange(5, 9))):
        rows = RowIndex.from_mapping({client: flat})
        pool = PooledSplit(images, np.zeros(9, np.int64), rows)
        start: Any = nullcontext() if client == 0 else pytest.raises(DataError, match="002")
        with start:
            Examples(pool, torch.device("cpu"), max_resident_bytes=0)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
def test_photographs_stand_upright(tmp_path: Path, ending: str) -> None:
    """A camera stores the rows as the sensor has them, and a flag that tells how it was held."""
    scene = np.zeros((16, 32, 3), dtype=np.uint8)
    scene[:8, :16] = 255  # bright in the upper left corner
    (tmp_path / "ann/cat").mkdir(parents=True)
    for flag in range(1, 9):
        stored = Image.fromarray(scene)
        for turn in UNDO[flag]:
            stored = stored.transpose(turn)
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = flag
        stored.save(tmp_path / f"ann/cat/{flag}.{ending}", exif=exif, quality=95)
    write(tmp_path / "ann/dog", [1], size=(16, 32))
    images = load(tmp_path).x_train
    images.check(np.arange(9))  # type: ignore[union-attr]
    assert images.shape == (9, 16, 32, 3)
    for pixels in images[:8]:
        np.testing.assert_allclose(pixels, scene, atol=40)


UNDO: dict[int, list[Image.Transpose]] = {
    1: [],
    2: [Image.Transpose.FLIP_LEFT_RIGHT],
    3: [Image.Transpose.ROTATE_180],
    4: [Image.Transpose.FLIP_TOP_BOTTOM],
    5: [Image.Transpose.TRANSPOSE],
    6: [Image.Transpose.ROTATE_90],
    7: [Image.Transpose.TRANSVERSE],
    8: [Image.Transpose.ROTATE_270],
}
"""What a sensor does to the picture by the values of EXIF's orientation."""


def test_damaged_notes_of_a_camera(clients: Path) -> None:
    """A picture with them is a picture."""
    path = clients / "bob/dog/000.jpg"
    Image.fromarray(np.full((5, 4, 3), 6, dtype=np.uint8)).save(path, exif=b"Exif\0\0nonsense")
    assert load(clients).x_train[:].shape == (10, 5, 4, 3)


def test_files_passed_over(clients: Path) -> None:
    """Files that are no images are counted by their endings; hidden ones are not mentioned."""
    for name in ("a.gif", "b.GIF", "c.heic", "LICENSE"):
        (clients / "bob/dog" / name).write_text("x")
    for name in (".DS_Store", "._000.png", "Thumbs.db", "desktop.ini"):
        (clients / "bob/dog" / name).write_text("x")
    (clients / "__MACOSX").mkdir()
    (clients / "ann/cat/000.png").rename(clients / "ann/cat/000.PNG")
    arrays = load(clients)
    assert len(arrays.y_train) == 9
    passed_over = {".gif": 2, ".heic": 1, "without an ending": 1, ".txt": 1}
    assert arrays.files_passed_over == passed_over
    summary = load_data(ImageFolderSettings(path=str(clients)), 1).summary
    assert summary.files_passed_over == passed_over
    (line,) = (line for line in summary.format_lines("image_folder") if "passed" in line)
    assert line == "Files passed over: 2 .gif, 1 .heic, 1 .txt, 1 without an ending"


def test_training_and_test_folders(tmp_path: Path) -> None:
    """train/ and test/ alone are the training and the test set, by client or divided."""
    for split, first in (("train", 10), ("test", 20)):
        write(tmp_path / split / "a/x", [first, first + 1])
        write(tmp_path / split / "b/y", [first + 2, first + 3])
    arrays = load(tmp_path)
    assert (colors(arrays.x_train), colors(arrays.x_test)) == ([10, 11, 12, 13], [20, 21, 22, 23])
    assert arrays.client_test is not None
    assert arrays.client_test.tolist() == [0, 0, 1, 1]
    data = load_data(ImageFolderSettings(path=str(tmp_path)), 1)
    assert [len(data.get_client(k).y_test) for k in range(2)] == [2, 2]


@pytest.mark.parametrize("partition", ["iid", "quantity", "dirichlet"])
def test_divided_among_clients(tmp_path: Path, partition: str) -> None:
    """class/image: a share of all images becomes the test set, the rest is divided."""
    for c, name in enumerate("xyz"):
        write(tmp_path / name, list(range(20 * c, 20 * c + 20)))
    settings = ImageFolderSettings(
        path=str(tmp_path), partition=partition, num_clients=3, alpha=5.0
    )
    data = load_data(settings, 1)
    assert (data.num_clients, data.num_classes) == (3, 3)
    train, test = (
        [
            round(255 * float(v))
            for k in range(3)
            for v in getattr(data.get_client(k), split)[:, 0, 0, 0]
        ]
        for split in ("x_train", "x_test")
    )
    assert not set(train) & set(test)
    assert len(set(train)) == len(train) == 48
    assert 9 <= len(set(test)) == len(test) <= 12
    for k in range(3):
        client = data.get_client(k)
        np.testing.assert_array_equal(
            client.y_train, np.rint(255 * client.x_train[:, 0, 0, 0]).astype(int) // 20
        )


def test_scaled_to_a_size(clients: Path) -> None:
    """Images of any size are allowed with data.image_size; otherwise all have one size."""
    write(clients / "bob/dog", [6], size=(9, 9))
    assert load(clients, image_size=[3, 2]).x_train[:].shape == (9, 3, 2, 3)
    message = (
        r"^data\.image_size must be set where images differ in size \(such as \[5,4\], the first "
        r"one's, to scale all to it\), got null and .*bob/dog/000\.png of 9 x 9$"
    )
    with pytest.raises(DataError, match=message):
        load(clients).x_train[:]
    rows = np.arange(9)
    with pytest.raises(DataError, match=message):
        load(clients).x_train.check(rows)  # type: ignore[union-attr]
    load(clients, image_size=[3, 2]).x_train.check(rows)  # type: ignore[union-attr]


def test_agreed_classes(clients: Path) -> None:
    """data.classes is the order and number of classes, whoever has them; others are refused."""
    arrays = load(clients, classes=["dog", "emu", "cat"])
    assert arrays.num_classes == 3
    assert arrays.y_train.tolist() == [2, 2, 2, 0, 0, 0, 0, 0, 0]
    assert_refused(
        clients, "data.classes has no dog, but there is a folder of it$", classes=["cat"]
    )


def test_one_clients_images_on_a_device(clients: Path) -> None:
    """A device has class/image of its client, with all classes agreed on."""
    others: dict[str, Any] = {
        "partition": "device",
        "num_clients": 2,
        "image_size": [5, 4],
        "classes": ["cat", "dog"],
    }
    whole = load_data(ImageFolderSettings(path=str(clients)), 1)
    for k, name in enumerate(("ann", "bob")):
        data = load_data(ImageFolderSettings(path=str(clients / name), **others), 1)
        assert (data.num_clients, data.num_classes, data.input_shape) == (2, 2, (3, 5, 4))
        for split in ("x_train", "y_train", "x_test", "y_test"):
            np.testing.assert_array_equal(
                getattr(data.get_client(k), split), getattr(whole.get_client(k), split)
            )


def test_no_folder(tmp_path: Path) -> None:
    """A path that leads nowhere, or to nothing, is one line."""
    assert_refused(tmp_path / "none", "there is no such folder$")
    assert_refused(tmp_path, "has no folders$")


def test_wrong_depth(clients: Path, tmp_path: Path) -> None:
    """A missing or additional folder level is reported, and never taken for classes."""
    assert_refused(clients, "ann has the folder cat$", partition="iid", num_clients=2)
    assert_refused(clients / "ann", "cat has no folders of classes$")


def test_image_beside_folders(clients: Path) -> None:
    """An image that belongs to no class, or to no client, is not passed over."""
    (clients / "ann/cat/000.png").rename(clients / "ann/000.png")
    assert_refused(clients, "ann/000.png is in no folder of a class$")
    (clients / "ann/000.png").rename(clients / "000.png")
    assert_refused(clients, "images/000.png is in no folder of a class$")


def test_images_of_more_than_8_bits(clients: Path) -> None:
    """All numbers above 255 would become white: refused, with the path."""
    Image.fromarray(np.full((5, 4), 40_000, dtype=np.uint16)).save(clients / "bob/dog/000.png")
    with pytest.raises(DataError, match=r"of 8 bits a channel, got .*/000\.png of .* mode I;16$"):
        load(clients).x_train[:]


def test_class_without_images(clients: Path) -> None:
    """An empty folder is refused: a download may have been interrupted."""
    (clients / "bob/cat").mkdir()
    assert_refused(clients, "bob/cat has no images$")
    (clients / "bob/cat/a.gif").write_text("x")
    assert_refused(clients, "bob/cat has no images but 1 .gif$")


def test_first_image_is_none(clients: Path) -> None:
    """A file that is no image has no size."""
    (clients / "ann/cat/000.png").write_text("<html>")
    assert_refused(clients, "ann/cat/000.png is damaged or no image: ")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("", r"data\.path must be the path of a folder of images, got ''"),
        ("data.path=x data.image_size=[3]", "data.image_size must be a list of two whole numbers"),
        ("data.path=x data.partition=device", "data.num_clients must have a value where each"),
        (
            "data.path=x data.partition=device data.num_clients=3",
            "data.image_size must have a value where each device",
        ),
    ],
)
def test_mistakes_in_the_settings(overrides: str, message: str) -> None:
    """Errors that need no folder are reported before it is read."""
    with pytest.raises(SettingsError, match=f"^{message}"):
        compose_settings("custom", f"data=image_folder {overrides}")
