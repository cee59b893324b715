"""A data set in one NumPy file."""

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import DataError, SettingsError

from client_app.data import load_data
from client_app.data.sources.base import LabeledArrays
from client_app.data.sources.npz import load_npz_arrays
from conf.compose import compose_settings
from conf.schema.data import NpzSettings
from tests.client_app.clients import assert_one_line

RNG = np.random.default_rng(0)
IMAGES = {
    "x_train": RNG.integers(256, size=(6, 5, 4), dtype=np.uint8),
    "y_train": np.array([0, 1, 2, 0, 1, 2]),
    "x_test": RNG.integers(256, size=(3, 5, 4), dtype=np.uint8),
    "y_test": np.array([2, 1, 0]),
}
FLOATS = IMAGES | {"x_train": RNG.normal(size=(6, 7)), "x_test": RNG.normal(size=(3, 7))}


def save(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def load(path: Path | str, **others: Any) -> LabeledArrays:
    return load_npz_arrays(NpzSettings(path=str(path), **others))


def assert_refused(path: Path, reason: str, **others: Any) -> None:
    """Check for one line with the setting, what is wanted, the path and the reason."""
    wanted = "an .npz file with x_train, y_train, perhaps x_test and y_test"
    start = f"data.path must be {wanted}, got {path}: "
    assert_one_line(lambda: load(path, **others), reason, start)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (5, 4, 1)])
def test_images_come_as_they_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """uint8 images, gray or with channels last, are not changed; labels become int64."""
    x = {split: RNG.integers(256, size=(3, *shape), dtype=np.uint8) for split in ("train", "test")}
    y = np.array([0, 1, 2], dtype=np.uint8)
    arrays = load(save(tmp_path, x_train=x["train"], x_test=x["test"], y_train=y, y_test=y))
    np.testing.assert_array_equal(arrays.x_train, x["train"], strict=True)
    np.testing.assert_array_equal(arrays.x_test, x["test"], strict=True)
    for labels in (arrays.y_train, arrays.y_test):
        np.testing.assert_array_equal(labels, np.array([0, 1, 2], dtype=np.int64), strict=True)


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", ">f4", "<f2"])
@pytest.mark.parametrize("shape", [(7,), (2, 3), (3, 4, 5), (2, 2, 2, 2)])
def test_floats_keep_shape_and_values(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """Floats of any shape become float32 without scaling."""
    x = RNG.normal(scale=100.0, size=(6, *shape)).astype(dtype)
    arrays = load(save(tmp_path, **FLOATS | {"x_train": x, "x_test": x[:3]}))
    np.testing.assert_array_equal(arrays.x_train, x.astype(np.float32), strict=True)
    assert np.asarray(arrays.x_train).flags.c_contiguous


def test_sound_comes_as_it_is(tmp_path: Path) -> None:
    """int16 waveforms (n, length) are not changed."""
    x = RNG.integers(-(2**15), 2**15, size=(6, 50), dtype=np.int16)
    arrays = load(save(tmp_path, **FLOATS | {"x_train": x, "x_test": x[:3]}))
    np.testing.assert_array_equal(arrays.x_train, x, strict=True)
    assert arrays.client_train is None


def test_other_arrays_are_not_read(tmp_path: Path) -> None:
    """Further keys, even those that cannot be read without pickle, do no harm."""
    notes = np.array([{"by": "me"}], dtype=object)
    path = save(tmp_path, **IMAGES, client_train=np.arange(6), notes=notes)
    np.testing.assert_array_equal(load(path).x_train, IMAGES["x_train"])


def test_a_stated_shape_is_checked(tmp_path: Path) -> None:
    """Devices must state it, and a simulation of them has the same settings."""
    shape = np.shape(FLOATS["x_train"])[1:]
    settings = NpzSettings(path=str(save(tmp_path, **FLOATS)), partition="iid", num_clients=2)
    settings.priority, settings.input_shape = "all", [*shape]
    assert load_data(settings, 0).input_shape == shape
    settings.input_shape = [*shape, 9]
    with pytest.raises(DataError, match=r"data.input_shape must be that of the inputs, .*, got"):
        load_data(settings, 0)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    """``numpy.savez_compressed`` is as good as ``numpy.savez``."""
    path = tmp_path / "data.npz"
    np.savez_compressed(path, allow_pickle=False, **IMAGES)
    np.testing.assert_array_equal(load(path).x_train, IMAGES["x_train"])


def save_labels(folder: Path, train: list[int], test: list[int]) -> Path:
    x = RNG.normal(size=(2, 3))
    labels = {"y_train": np.array(train), "y_test": np.array(test)}
    return save(folder, x_train=x[: len(train)], x_test=x[: len(test)], **labels)


@pytest.mark.parametrize(
    ("train", "test", "given", "classes"),
    [([0, 2], [1], None, 3), ([0, 1], [2], None, 3), ([0, 1], [4], 6, 6), ([0], [0], 2, 2)],
)
def test_number_of_classes(
    tmp_path: Path, train: list[int], test: list[int], given: int | None, classes: int
) -> None:
    """It is that of the labels of both parts, or data.num_classes, whichever labels there are."""
    assert load(save_labels(tmp_path, train, test), num_classes=given).num_classes == classes


@pytest.mark.parametrize(
    ("train", "test", "given", "reason"),
    [
        ([0, 1], [255], None, r"where data\.num_classes is null, got 255 but no 2$"),
        ([1, 2], [1], None, r"where data\.num_classes is null, got 1 but no 0$"),
        ([0, 1], [2], 2, r"y_test must be classes from 0 to 1, got 2 to 2$"),
        ([0, 0], [0], None, r"there must be at least 2 classes, got 1$"),
    ],
)
def test_labels_out_of_range(
    tmp_path: Path, train: list[int], test: list[int], given: int | None, reason: str
) -> None:
    """A stray label would make a model of as many outputs, most of them of no class."""
    assert_refused(save_labels(tmp_path, train, test), reason, num_classes=given)


def test_path_may_start_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` in data.path is the user's home, as in a shell."""
    save(tmp_path, **IMAGES)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("~/data.npz").num_classes == 3


def test_no_path_is_refused_before_any_work() -> None:
    """``data=npz`` without a path does not compose, in one line about data.path."""
    with pytest.raises(
        SettingsError, match=r"^data\.path must be the path of an \.npz file, got ''$"
    ):
        compose_settings("custom", "data=npz")


def test_a_preset_is_kept_with_a_custom_file() -> None:
    """data=npz takes the place of a preset's data set, with the preset's clients and shards."""
    overrides = "data=npz data.path=mine.npz data.shard_size=125"
    data = compose_settings("fedalign/cifar10", overrides).settings.data
    assert data == NpzSettings(
        path="mine.npz",
        num_clients=60,
        num_priority=2,
        partition="shards",
        shards_per_client=2,
        shard_size=125,
    )


def test_missing_file(tmp_path: Path) -> None:
    """A missing path and a folder are reported as a missing file."""
    assert_refused(tmp_path / "none.npz", "there is no such file$")
    assert_refused(tmp_path, "there is no such file$")


@pytest.mark.parametrize("content", [b"", b"x,y\n1,2\n", b"\x80\x04\x95pickle", b"PK\x03\x04cut"])
def test_no_npz_file(tmp_path: Path, content: bytes) -> None:
    """An empty file, text, a pickle and a truncated archive are reported as no .npz file."""
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    assert_refused(path, "it is no .npz file$")


def test_one_array_is_no_npz_file(tmp_path: Path) -> None:
    """An .npy file holds one array, so it is refused."""
    np.save(tmp_path / "data.npy", IMAGES["x_train"])
    assert_refused(tmp_path / "data.npy", "it is no .npz file$")


def test_truncated_file(tmp_path: Path) -> None:
    """A file cut short by an interrupted copy has lost its table of contents."""
    path = save(tmp_path, **IMAGES)
    path.write_bytes(path.read_bytes()[:-100])
    assert_refused(path, "it is no .npz file$")


def test_damaged_array(tmp_path: Path) -> None:
    """A file with wrong bytes inside is refused by its check sum."""
    path = save(tmp_path, **IMAGES)
    content = bytearray(path.read_bytes())
    content[200] ^= 255
    path.write_bytes(content)
    assert_refused(path, "Bad CRC-32")


def test_archive_of_other_files(tmp_path: Path) -> None:
    """A zip whose entries have the names but are no arrays is refused."""
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key in IMAGES:
            archive.writestr(key, "text")
    assert_refused(path, r"y_train must be whole numbers \(n,\), got \|S4 \(\)$")


@pytest.mark.parametrize("key", IMAGES)
def test_missing_key(tmp_path: Path, key: str) -> None:
    """The missing array is named, with those that there are."""
    others = {name: array for name, array in IMAGES.items() if name != key}
    assert_refused(save(tmp_path, **others), f"it lacks {key} and has {', '.join(others)}$")


def test_nothing_in_it(tmp_path: Path) -> None:
    """An archive without arrays lacks all of them."""
    assert_refused(save(tmp_path), "it lacks x_train, y_train and has none$")


def test_no_test_set(tmp_path: Path) -> None:
    """Without both arrays of a test set, test rows are taken out of the training rows."""
    train = {key: IMAGES[key] for key in ("x_train", "y_train")}
    arrays = load(save(tmp_path, **train, client_test=np.arange(3)), partition="iid")
    assert arrays.pooled
    assert arrays.x_test is arrays.x_train
    assert arrays.y_test.tolist() == [0, 1, 2, 0, 1, 2]
    clients = np.array([4, 4, 4, 7, 7, 7])
    settings = NpzSettings(
        path=str(save(tmp_path, **train, client_train=clients)), partition="natural", num_priority=1
    )
    data = load_data(settings, 1)
    assert [len(data.get_client(k).y_train) for k in range(2)] == [2, 2]
    assert [len(data.get_client(k).y_test) for k in range(2)] == [1, 1]


OBJECTS = np.array([[1], [1, 2], [], [3], [4], [5]], dtype=object)
WRONG = {
    "fewer labels": ({"y_train": np.zeros(5, int)}, "x_train and y_train must .* got 6 and 5$"),
    "fewer images": ({"x_test": IMAGES["x_test"][:2]}, "x_test and y_test must .* got 2 and 3$"),
    "no rows": (
        {"x_test": IMAGES["x_test"][:0], "y_test": np.zeros(0, int)},
        "x_test and y_test must have equally many rows, at least one, got 0 and 0$",
    ),
    "another shape": (
        {"x_test": IMAGES["x_test"][:, :4]},
        r"x_train and x_test must have the same shape, got \(5, 4\) and \(4, 4\)$",
    ),
    "another type": (
        {"x_test": IMAGES["x_test"].astype(np.float32)},
        "x_train and x_test must be of one type, got uint8 and float32$",
    ),
    "no numbers": (
        {"x_train": np.zeros((6, 0)), "x_test": np.zeros((3, 0))},
        r"samples must have numbers, got \(0,\)$",
    ),
    "negative label": (
        {"y_test": np.array([0, -1, 2])},
        "y_test must be whole numbers >= 0, got -1$",
    ),
    "float labels": (
        {"y_train": np.array([0, 1, 2, 0, 1, 0.5])},
        r"y_train must be whole numbers \(n,\), got float64 \(6,\)$",
    ),
    "named labels": (
        {"y_test": np.array(["a", "b", "c"])},
        r"y_test must be whole numbers \(n,\), got <U1 \(3,\)$",
    ),
    "labels in a column": (
        {"y_test": np.array([[0], [1], [2]])},
        r"y_test must be whole numbers \(n,\), got int64 \(3, 1\)$",
    ),
    "one label": ({"y_test": np.array(1)}, r"y_test must be .*, got int64 \(\)$"),
    "object images": ({"x_train": OBJECTS}, "Object arrays cannot be loaded"),
    "object labels": ({"y_train": OBJECTS}, "Object arrays cannot be loaded"),
    "int16 images": (
        {"x_train": IMAGES["x_train"].astype(np.int16)},
        r"x_train must be uint8 images .* or floats \(n, \.\.\.\), got int16 \(6, 5, 4\)$",
    ),
    "int16 numbers": (
        {"x_train": np.zeros(6, np.int16)},
        r"x_train must be .*, int16 sound \(n, length\) or floats .*, got int16 \(6,\)$",
    ),
    "flat images": (
        {"x_train": IMAGES["x_train"].reshape(6, 20)},
        r"x_train must be uint8 images .*, got uint8 \(6, 20\)$",
    ),
    "flat floats": ({"x_train": np.zeros(6)}, r"x_train must be .*, got float64 \(6,\)$"),
    "a single float": ({"x_train": np.array(0.5)}, r"x_train must be .*, got float64 \(\)$"),
    "complex": ({"x_train": np.zeros((6, 5), complex)}, "x_train must be .* got complex128"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_arrays_that_do_not_fit(tmp_path: Path, wrong: str) -> None:
    """What the arrays are instead of what they must be is named, in one line."""
    change, reason = WRONG[wrong]
    assert_refused(save(tmp_path, **IMAGES | change), reason)


@pytest.mark.parametrize("key", ["x_train", "x_test"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_numbers_that_are_not_finite(tmp_path: Path, key: str, value: float) -> None:
    """NaN, Inf and what overflows float32 are refused, once in an array is enough."""
    x = FLOATS[key].copy()
    x[1, 2] = value
    assert_refused(save(tmp_path, **FLOATS | {key: x}), f"{key} must be finite in float32")


def test_an_error_shows_the_absolute_path() -> None:
    """The path in a message is the absolute one, so that it can be looked for."""
    with pytest.raises(DataError, match=re.escape(str(Path.cwd() / "none.npz"))):
        load("none.npz")


def load_regression(path: Path) -> LabeledArrays:
    return load_npz_arrays(NpzSettings(path=str(path), regression=True))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_regression(tmp_path: Path, dtype: Any) -> None:
    """With data.regression labels are numbers, of one output; without it they stay refused."""
    y = np.array([3, -1, 0, 2, 5, 7]).astype(dtype)
    path = save(tmp_path, **FLOATS | {"y_train": y, "y_test": y[:3]})
    arrays = load_regression(path)
    assert (arrays.num_classes, arrays.has_classes) == (1, False)
    np.testing.assert_array_equal(arrays.y_train, y.astype(np.float64), strict=True)
    assert_refused(path, "y_train must be whole numbers")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e39])
def test_targets_that_are_not_finite(tmp_path: Path, wrong: float) -> None:
    """One target that is no number would make every model one."""
    y = np.array([3.0, wrong, 0, 2, 5, 7])
    with pytest.raises(DataError, match=r"y_train must be finite in float32"):
        load_regression(save(tmp_path, **FLOATS | {"y_train": y, "y_test": np.zeros(3)}))


@pytest.mark.parametrize("kind", [IMAGES, FLOATS | {"x_train": FLOATS["x_train"].astype("<f4")}])
def test_inputs_are_mapped(tmp_path: Path, kind: dict[str, Any]) -> None:
    """Inputs that are in the file as they are needed are not copied into memory, nor writable."""
    x = load(save(tmp_path, **kind)).x_train
    assert isinstance(x, np.ndarray)
    np.testing.assert_array_equal(x, kind["x_train"], strict=True)
    assert not x.flags.owndata
    assert not x.flags.writeable


def test_columns_first(tmp_path: Path) -> None:
    """An array in Fortran's order is mapped with its rows and columns in place."""
    x = np.asfortranarray(RNG.integers(256, size=(6, 5, 4), dtype=np.uint8))
    arrays = load(save(tmp_path, **IMAGES | {"x_train": x}))
    np.testing.assert_array_equal(arrays.x_train, x)


@pytest.mark.parametrize("index", [0.3, 0.5, 0.9])
def test_damaged_inputs(tmp_path: Path, index: float) -> None:
    """A wrong byte anywhere in mapped inputs is found by the check sum."""
    rng = np.random.default_rng(1)
    x = rng.integers(256, size=(6, 100, 100), dtype=np.uint8)
    path = save(tmp_path, **IMAGES | {"x_train": x, "x_test": x[:3]})
    content = bytearray(path.read_bytes())
    content[int(index * 60_000)] ^= 255
    path.write_bytes(content)
    assert_refused(path, "Bad CRC-32")
