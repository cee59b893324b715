"""Columns of data sets of Hugging Face as inputs, targets and clients."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Array2D, Array3D, ClassLabel, Dataset, Features, Image, List, Value
from fedquorum.errors import DataError, SettingsError
from numpy.typing import NDArray
from PIL import Image as Pillow

from client_app.data import FederatedData, load_data
from client_app.data.coding.vocabulary import hash_texts
from client_app.data.sources.base import LabeledArrays
from client_app.data.sources.hf import load_hf_arrays
from conf.compose import compose_settings
from conf.schema.data import CsvSettings, HfSettings, NpzSettings
from tests.builders_hf import (
    CLASSES,
    make_gray_images,
    make_image_rows,
    save_splits,
    write_parquet_splits,
)
from tests.client_app.clients import assert_one_line

N, M = 120, 36
LABEL = ClassLabel(names=CLASSES)


def load(path: Path, **others: Any) -> LabeledArrays:
    return load_hf_arrays(
        HfSettings(path=str(path), cache_dir=str(path.parent / "cache"), **others)
    )


def of_columns(path: Path, kinds: dict[str, Any], **columns: Any) -> Path:
    """Save one split with these columns of these kinds; returns the folder."""
    rows = Dataset.from_dict(columns, features=Features(kinds))
    return save_splits(path, train=rows)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, allow_pickle=False, **arrays)
    return path


def assert_same(one: FederatedData, other: FederatedData) -> None:
    """Compare two data sets, client by client, to the bit."""
    assert (one.num_clients, one.num_classes) == (other.num_clients, other.num_classes)
    assert (one.priority, one.target, one.input_shape) == (
        other.priority,
        other.target,
        other.input_shape,
    )
    for k in range(one.num_clients):
        for split in ("x_train", "y_train", "x_test", "y_test"):
            np.testing.assert_array_equal(
                getattr(one.get_client(k), split), getattr(other.get_client(k), split), strict=True
            )


def assert_differs(one: FederatedData, other: FederatedData) -> None:
    """Check that some client has other inputs."""
    assert not all(
        np.array_equal(one.get_client(k).x_train, other.get_client(k).x_train)
        for k in range(one.num_clients)
    )


# --- the same as the arrays by data=npz ---------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the same images in three forms."""
    folder = tmp_path_factory.mktemp("images")
    (x_train, y_train), (x_test, y_test) = make_gray_images(N), make_gray_images(M)
    npz(folder / "x.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    splits = {"train": make_image_rows(x_train, y_train), "test": make_image_rows(x_test, y_test)}
    save_splits(folder / "saved", **splits)
    write_parquet_splits(folder / "parquet", **splits)
    return folder


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("form", ["saved", "parquet"])
@pytest.mark.parametrize("partition", ["iid", "quantity", "dirichlet", "shards"])
def test_clients_get_what_they_get_of_an_npz_file(
    images: Path, form: str, partition: str, seed: int
) -> None:
    """The partition is the app's, of rows in their order; images are the same numbers."""
    given: dict[str, Any] = {"partition": partition, "num_clients": 5, "shard_size": 5, "alpha": 2}
    of_arrays = NpzSettings(path=str(images / "x.npz"), priority="all", **given)
    cache = str(images / "cache")
    of_hub = HfSettings(path=str(images / form), cache_dir=cache, **given)
    assert_same(load_data(of_hub, seed), load_data(of_arrays, seed))


def test_clients_of_a_column(tmp_path: Path) -> None:
    """Their names, ascending; a client's test part is its own rows, as by data=npz."""
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 3
    writers = np.array(["bo", "al", "cy", "al"] * 10)
    kinds = {"x": List(Value("float32")), "y": LABEL, "writer": Value("string")}
    path = of_columns(tmp_path / "hf", kinds, x=list(x), y=y, writer=writers)
    ids = np.unique(writers, return_inverse=True)[1]
    arrays = npz(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_train=ids)
    given: dict[str, Any] = {"partition": "natural", "priority": "all"}
    ours = load_data(HfSettings(path=str(path), client_column="writer", **given), 3)
    theirs = load_data(NpzSettings(path=str(arrays), **given), 3)
    assert_same(ours, theirs)
    assert [len(ours.get_client(k).y_train) for k in range(3)] == [16, 8, 8]


def test_clients_and_classes_of_text_keep_their_look(tmp_path: Path) -> None:
    """As in a table: 01 and 1 are two, blanks around them do not count, and 2 is before 10."""
    kinds = {"x": List(Value("float32")), "y": Value("string"), "c": Value("string")}
    given: dict[str, Any] = {"x": [[0.0], [1.0], [2.0], [3.0]], "y": ["2", "10", "9", " 2"]}
    texts = {"partition": "natural", "client_column": "c", "target": "y"}
    path = of_columns(tmp_path / "x", kinds, c=["01", "1 ", "1", "Gene\u0300ve"], **given)
    arrays = load(path, **texts)
    assert arrays.client_names == ("01", "1", "Gen\u00e8ve")
    assert arrays.client_train is not None
    assert arrays.client_train.tolist() == [0, 1, 1, 2]
    assert arrays.class_names == ("2", "9", "10")
    assert arrays.y_train.tolist() == [0, 2, 1, 0]
    path = of_columns(tmp_path / "gap", kinds, c=["a", " ", "b", "b"], **given)
    with pytest.raises(DataError, match=r"c is missing in row 1$"):
        load(path, **texts)
    kinds["c"] = LABEL
    arrays = load(of_columns(tmp_path / "label", kinds, c=[2, 0, 2, 0], **given), **texts)
    assert arrays.client_names == (LABEL.names[0], LABEL.names[2])


def test_a_device_has_the_rows_of_its_client(tmp_path: Path) -> None:
    """It needs the shapes that all agreed on; others are refused, and so are texts."""
    x, y = make_gray_images(9)
    path = save_splits(
        tmp_path / "hf", train=make_image_rows(x, y), test=make_image_rows(x[:3], y[:3])
    )
    given: dict[str, Any] = {
        "partition": "device",
        "num_clients": 4,
        "num_classes": 3,
        "input_shape": [1, 8, 8],
    }
    client = load_data(HfSettings(path=str(path), **given), 1).get_client(3)
    np.testing.assert_array_equal(client.x_train[:, 0], np.float32(x) / np.float32(255))
    assert (len(client.y_train), client.y_test.tolist()) == (9, [0, 1, 2])
    given["input_shape"] = [1, 8, 9]
    with pytest.raises(DataError, match=r"agreed shape \(1, 8, 9\), got \(1, 8, 8\)$"):
        load_data(HfSettings(path=str(path), **given), 1).get_client(3)
    kinds = {"text": Value("string"), "y": LABEL}
    texts = of_columns(tmp_path / "t", kinds, text=["a", "b"], y=[0, 1])
    with pytest.raises(DataError, match="not for texts"):
        load_data(HfSettings(path=str(texts), **given), 1).get_client(3)


# --- features -----------------------------------------------------------------------------------

VECTORS = np.arange(24, dtype=np.float64).reshape(6, 4)
BYTES = np.arange(96, dtype=np.uint8).reshape(6, 4, 4)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (List(Value("float64")), VECTORS, VECTORS.astype(np.float32)),
        (List(Value("int16"), length=4), VECTORS.astype(np.int16), VECTORS.astype(np.float32)),
        (List(Value("uint8")), BYTES[:, 0], BYTES[:, 0].astype(np.float32)),
        (List(List(Value("uint8"))), BYTES, BYTES),
        (Array2D((4, 4), "uint8"), BYTES, BYTES),
        (Array3D((2, 2, 4), "float32"), BYTES.reshape(6, 2, 2, 4) / 2, None),
        (Array3D((2, 2, 3), "uint8"), BYTES.reshape(6, 16)[:, :12].reshape(6, 2, 2, 3), None),
    ],
)
def test_arrays_and_lists(
    kind: Any, values: NDArray[Any], expected: NDArray[Any] | None, tmp_path: Path
) -> None:
    """Bytes in two or three axes are images, all else are numbers as they are."""
    path = of_columns(tmp_path / "x", {"a": kind, "y": LABEL}, a=values.tolist(), y=[0, 1, 2] * 2)
    arrays = load(path)
    whole = values.astype(np.float32) if values.dtype.kind == "f" else values
    np.testing.assert_array_equal(
        arrays.x_train[:], whole if expected is None else expected, strict=True
    )
    assert arrays.y_train.tolist() == [0, 1, 2, 0, 1, 2]
    assert (arrays.pooled, arrays.num_classes) == (True, 3)


def test_columns_of_numbers(tmp_path: Path) -> None:
    """The ones that are named, in that order, scaled by the training rows; true is 1."""
    kinds = {
        "row": Value("int64"),
        "old": Value("bool"),
        "age": Value("int32"),
        "dose": Value("float64"),
        "ill": Value("string"),
    }
    path = of_columns(
        tmp_path / "x",
        kinds,
        row=[1, 2, 3],
        old=[True, False, True],
        age=[50, 30, 70],
        dose=[0.5, 1.5, 2.5],
        ill=["yes", "no", "yes"],
    )
    arrays = load(path, features=["dose", "age", "old"], target="ill")
    assert np.asarray(arrays.x_train[:]).tolist() == [[0.5, 50, 1], [1.5, 30, 0], [2.5, 70, 1]]
    assert arrays.build_for_training is not None
    scaled = np.asarray(arrays.build_for_training(np.arange(3)).x_train[:])
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=0), 1, atol=1e-6)
    assert (arrays.y_train.tolist(), arrays.num_classes) == ([1, 0, 1], 2)
    numbers = load(path, features=["age", "old"], target="dose", regression=True)
    assert (numbers.y_train.dtype.name, numbers.y_train.tolist()) == ("float64", [0.5, 1.5, 2.5])


TABLE: dict[str, Any] = {
    "age": [30.0, None, 50.0, 70.0, 41.0, 20.0, 35.0, 64.0, 58.0, 22.0] * 4,
    "sex": ["f", "m", None, "m"] * 10,
    "ward": ["a", "b", "c", "c", "b"] * 8,
    "site": ["bo", "al", "bo", "bo", "al"] * 8,
    "ill": ["no", "yes", "yes", "no", "yes", "no", "no"] * 5 + ["yes"] * 5,
}


def test_a_mixed_table_is_that_of_a_csv_file(tmp_path: Path) -> None:
    """Each client's numbers are scaled by its training rows, gaps filled, categories flags."""
    hub = save_splits(tmp_path / "x", train=TABLE)
    Dataset.from_dict(TABLE).to_csv(tmp_path / "x.csv", index=False)
    ours = load_data(
        HfSettings(path=str(hub), partition="natural", client_column="site", target="ill"), 1
    )
    csv = CsvSettings(path=str(tmp_path / "x.csv"), client_column="site", target="ill")
    assert_same(ours, load_data(csv, 1))
    assert ours.input_shape == (7,)


@pytest.mark.parametrize("has_test", [True, False])
@pytest.mark.parametrize("partition", ["iid", "dirichlet", "quantity"])
def test_a_divided_table_is_scaled_client_by_client(
    tmp_path: Path, partition: str, has_test: bool
) -> None:
    """By the rows that the client trains on, whichever division; its test rows by the same."""
    splits = {"train": TABLE} | ({"test": TABLE} if has_test else {})
    settings = HfSettings(
        path=str(save_splits(tmp_path / "x", **splits)),
        target="ill",
        features=["age"],
        partition=partition,
        num_clients=3,
        alpha=9.0,
    )
    data = load_data(settings, 1)
    scales = set()
    for client in map(data.get_client, range(3)):
        np.testing.assert_allclose(client.x_train.mean(), 0, atol=1e-6)
        np.testing.assert_allclose(client.x_train.std(), 1, atol=1e-6)
        assert len(client.x_test) == len(client.y_test) > 0
        assert np.abs(client.x_test).max() < 4
        scales.add(float(client.x_train.min()))
    assert len(scales) > 1


@pytest.mark.parametrize(
    ("target", "names", "others"),
    [
        ("ill", ("age", "dose"), {}),
        ("age", ("dose",), {"regression": True}),
        ("ill", (), {"categories": ["age", "dose"]}),
    ],
)
def test_agreed_scales_are_those_of_a_csv_file(
    tmp_path: Path, target: str, names: tuple[str, ...], others: dict[str, Any]
) -> None:
    """All clients share the exact statistics of columns and targets; to the bit the same."""
    rows = {name: cells for name, cells in TABLE.items() if name != "age"}
    rows |= {"age": [age or 44.1 for age in TABLE["age"]], "dose": [0.1, None, 1e9, -3.0] * 10}
    hub = save_splits(tmp_path / "x", train=rows)
    Dataset.from_dict(rows).to_csv(tmp_path / "x.csv", index=False)
    shared = {"client_column": "site", "target": target, "scaling": "agreed", **others}
    hf = HfSettings(path=str(hub), partition="natural", **shared)
    ours = load_data(hf, 1)
    csv = load_data(CsvSettings(path=str(tmp_path / "x.csv"), **shared), 1)
    assert_same(ours, csv)
    assert ours.scales.to_dict() == csv.scales.to_dict()
    assert ours.coding.to_json()["scaling"] == csv.coding.to_json()["scaling"]
    assert ours.scales.names == names
    if names:
        assert_differs(ours, load_data(replace(hf, scaling="client"), 1))


@pytest.mark.parametrize("has_test", [True, False])
@pytest.mark.parametrize("partition", ["iid", "dirichlet", "quantity"])
def test_a_divided_table_is_scaled_by_agreed_statistics(
    tmp_path: Path, partition: str, has_test: bool
) -> None:
    """Those of all clients' training rows, whichever division; test rows do not count."""
    other = {**TABLE, "age": [9e6] * 40}
    splits = {"train": TABLE} | ({"test": other} if has_test else {})
    settings = HfSettings(
        path=str(save_splits(tmp_path / "x", **splits)),
        target="ill",
        features=["age"],
        partition=partition,
        num_clients=3,
        alpha=9.0,
        scaling="agreed",
    )
    data = load_data(settings, 1)
    clients = [*map(data.get_client, range(3))]
    train = np.concatenate([client.x_train for client in clients])
    known = train[train != 0]  # a missing number is the mean
    np.testing.assert_allclose([known.mean(), known.std()], [0, 1], atol=1e-6)
    assert len({float(client.x_train.mean()) for client in clients}) > 1
    scale = data.scales.to_dict()["numbers"]
    assert [*scale] == ["age"]
    expected = np.array(other["age"] if has_test else [a for a in TABLE["age"] if a])
    expected = ((expected - scale["age"]["mean"]) / scale["age"]["deviation"]).astype(np.float32)
    for client in clients:
        assert np.isin(client.x_test[client.x_test != 0], expected).all()


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    """Infinity is one line with its row; a missing number is a gap to fill."""
    path = save_splits(tmp_path / "x", train={"f": [1.0, float("inf"), 2.0], "y": [0, 1, 0]})
    with pytest.raises(DataError, match=r"f is inf in row 1$"):
        load(path, target="y")


def test_categories_of_both_splits(tmp_path: Path) -> None:
    """One column for each value of either split; a ClassLabel is its names."""
    kinds = {"age": Value("int64"), "kind": LABEL, "y": LABEL}
    train = Dataset.from_dict({"age": [1, 2], "kind": [0, -1], "y": [0, 1]}, Features(kinds))
    test = Dataset.from_dict({"age": [4, 5], "kind": [2, 0], "y": [1, 0]}, Features(kinds))
    arrays = load(save_splits(tmp_path / "x", train=train, test=test), target="y")
    assert np.asarray(arrays.x_train).tolist() == [[1, 1, 0, 0], [2, 0, 0, 1]]
    assert np.asarray(arrays.x_test).tolist() == [[4, 0, 1, 0], [5, 1, 0, 0]]
    assert (arrays.num_classes, arrays.pooled) == (3, False)


def test_columns_that_are_no_inputs(tmp_path: Path) -> None:
    """A row number is left out and named; asked for by its name, it is refused."""
    path = save_splits(tmp_path / "x", train=TABLE | {"id": list(range(40))})
    arrays = load(path, target="ill", drop_columns=["site"])
    assert arrays.x_train.shape == (40, 7)
    (line,) = [line for line in arrays.warnings if "left out" in line]
    assert "id (" in line
    message = "data.features must be columns of numbers or categories, got id, which has "
    with pytest.raises(DataError, match=message):
        load(path, target="ill", features=["age", "id"])


@pytest.mark.parametrize(
    ("features", "key", "value"),
    [
        (["age"], "image_size", [2, 2]),
        (["age"], "length", 9),
        (["sex", "ward"], "max_categories", 9),
        (["sex", "ward"], "scaling", "agreed"),
    ],
)
def test_settings_of_other_inputs(
    tmp_path: Path, features: list[str], key: str, value: Any
) -> None:
    """What nothing would use is refused."""
    table = TABLE | {"sex": ["f"] * 40}
    path = save_splits(tmp_path / "x", train=table)
    with pytest.raises(DataError, match=rf"^data\.{key} must be left out where data\.features are"):
        load(path, target="ill", features=features, **{key: value})


def test_texts(tmp_path: Path) -> None:
    """One column of texts needs no name, two are one sample; words are hashed as by data=text."""
    first, second = ["Is it so?", "No."], ["It is.", "never"]
    kinds = {"a": Value("string"), "b": Value("string"), "y": LABEL}
    path = of_columns(tmp_path / "x", kinds, a=first, b=second, y=[0, 2])
    overrides: dict[str, Any] = {"length": 9, "vocabulary_size": 50}
    arrays = load(path, features=["a", "b"], **overrides)
    np.testing.assert_array_equal(arrays.x_train, hash_texts([first, second], 9, 50)[0])
    assert (arrays.num_tokens, arrays.num_classes) == (50, 3)
    separate = of_columns(tmp_path / "1", {"a": kinds["a"], "y": LABEL}, a=first, y=[0, 2])
    np.testing.assert_array_equal(
        load(separate, **overrides).x_train, hash_texts([first], 9, 50)[0]
    )


def pictures(path: Path, *images: Any) -> Path:
    rows = {"i": list(images), "y": np.arange(len(images)) % 3}
    return of_columns(path, {"i": Image(), "y": LABEL}, **rows)


def picture(mode: str = "RGB", size: tuple[int, int] = (4, 3), value: Any = 7) -> Any:
    return Pillow.new(mode, size, value)


def test_images_in_color(tmp_path: Path) -> None:
    """The first image decides; palettes, transparent and gray ones become colors."""
    made = picture(value=(9, 5, 1)), picture("L"), picture("P"), picture("RGBA", value=(1, 2, 3, 4))
    arrays = load(pictures(tmp_path / "x", *made))
    assert arrays.x_train.shape == (4, 3, 4, 3)
    assert np.asarray(arrays.x_train[:])[[0, 1, 3], 0, 0].tolist() == [
        [9, 5, 1],
        [7] * 3,
        [1, 2, 3],
    ]
    np.testing.assert_array_equal(
        arrays.x_train[np.array([3, 0])], np.asarray(arrays.x_train[:])[[3, 0]]
    )


def test_image_mode_and_size(tmp_path: Path) -> None:
    """Named, they hold whatever the first image is."""
    path = pictures(tmp_path / "x", picture("L"), picture(size=(9, 9), value=(5, 5, 5)))
    shapes = {
        mode: load(path, image_mode=mode, image_size=[2, 6]).x_train[:].shape
        for mode in ("L", "RGB")
    }
    assert shapes == {"L": (2, 2, 6), "RGB": (2, 2, 6, 3)}


def test_folders_of_images(tmp_path: Path) -> None:
    """As data=image_folder reads them, with the classes that load_dataset derives."""
    for split, n in (("train", 3), ("test", 1)):
        for c, name in enumerate(CLASSES):
            folder = tmp_path / "x" / split / name
            folder.mkdir(parents=True)
            for i in range(n):
                picture(value=(40 * c + i, 0, 0)).save(folder / f"{i}.png")
    arrays = load(tmp_path / "x")
    reds = np.asarray(arrays.x_train[:])[:, 0, 0, 0] // 40
    np.testing.assert_array_equal(reds, arrays.y_train)
    assert (len(arrays.y_test), arrays.num_classes) == (3, 3)


def test_images_are_read_on_demand(tmp_path: Path) -> None:
    """A damaged one of another client does no harm, and is one line where it is needed."""
    x, y = make_gray_images(6)
    rows = [{"bytes": b"no image"} if i == 4 else Pillow.fromarray(x[i]) for i in range(6)]
    arrays = load(pictures(tmp_path / "x", *rows))
    np.testing.assert_array_equal(arrays.x_train[:4], x[:4])
    with pytest.raises(
        DataError, match=r"^data\.path must lead to images, got row 4 of i of .*non"
    ):
        arrays.x_train[np.array([5, 4])]
    assert y.tolist() == arrays.y_train.tolist()


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        ({}, {"size": (4, 4)}, r"image_size must be set where .*\[3,4\], .*row 1 of i .* 4 x 4$"),
        ({}, {"mode": "I;16"}, "path must lead to images of 8 bits a channel, got row 1 of .*16$"),
        ({"mode": "L"}, {}, "image_mode must be L or RGB where not all .*, got row 1 of .*RGB$"),
    ],
)
def test_images_unlike_the_first(
    first: dict[str, Any], other: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Refused where they could only be cut, scaled or lose their colors."""
    arrays = load(pictures(tmp_path / "x", picture(**first), picture(**other)))
    with pytest.raises(DataError, match=f"^data.{message}"):
        arrays.x_train[:]


# --- which columns, and what is wrong with them -------------------------------------------------

KINDS = {
    "i": Image(),
    "v": List(Value("int64")),
    "s": Value("string"),
    "t": Value("string"),
    "n": Value("int64"),
}
VALUES = {
    "i": [picture()] * 3,
    "v": [[1, 2]] * 3,
    "s": ["a", "b", "a"],
    "t": ["c", "d", "c"],
    "n": [0, 1, 1],
}


@pytest.mark.parametrize(
    ("columns", "kind"),
    [("i s n", "image"), ("v s n", "array"), ("i", "image"), ("v", "array"), ("s", "text")],
)
def test_the_only_candidate_is_taken(columns: str, kind: str, tmp_path: Path) -> None:
    """Images and arrays before all others; a text only where there are no numbers either."""
    kinds = {name: KINDS[name] for name in columns.split()} | {"y": LABEL}
    values = {name: VALUES[name] for name in columns.split()} | {"y": [0, 1, 2]}
    arrays = load(of_columns(tmp_path / "x", kinds, **values))
    shapes = {"image": (3, 3, 4, 3), "array": (3, 2), "text": (3, 80)}
    assert np.shape(arrays.x_train) == shapes[kind]


@pytest.mark.parametrize(
    ("columns", "overrides", "message"),
    [
        ("i v y", {}, "data.features must be one column of images, .* i (Image), v (List), y (Cl"),
        (
            "s t y",
            {"target": "y"},
            "data.features must be .*; the columns of .* are s (string), t ",
        ),
        ("i v y", {"features": ["i", "v"]}, "data.features must be one column of .*; got ['i', 'v"),
        ("i v y", {"features": ["z"]}, "data.features must be of the columns; .*; got 'z'"),
        ("i y", {"target": "z"}, "data.target must be of the columns; .*; got 'z'"),
        ("i n", {}, "data.target must be named unless one column alone is a ClassLabel; .* null"),
        ("i y z", {}, "data.target must be named unless one .* y (ClassLabel), z (ClassLabel); "),
        ("i y", {"client_column": "w", "partition": "natural"}, "data.client_column must be of th"),
    ],
)
def test_ambiguous_columns(
    columns: str, overrides: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """One line with all columns and what they hold, and the setting that chooses."""
    kinds = {name: KINDS.get(name, LABEL) for name in columns.split()}
    values = {name: VALUES.get(name, [0, 1, 2]) for name in columns.split()}
    path = of_columns(tmp_path / "x", kinds, **values)
    assert_one_line(lambda: load(path, **overrides), re.escape(message).replace(r"\.\*", ".*"))


@pytest.mark.parametrize(
    ("kinds", "values", "overrides", "reason"),
    [
        (
            {"v": KINDS["v"]},
            {"v": [[1, 2], [1]]},
            {},
            "v must have lists of one length, got [1, 2]",
        ),
        ({"v": KINDS["v"]}, {"v": [[1, 2], None]}, {}, "v is missing in row 1"),
        ({"v": KINDS["v"]}, {"v": [[1, 2], [1, None]]}, {}, "v has lists with missing values"),
        ({"s": KINDS["s"]}, {"s": ["a", None]}, {}, "s is missing in row 1"),
        ({"v": KINDS["v"]}, {"y": [0, -1]}, {}, "y must be whole numbers >= 0, got -1"),
        ({"v": KINDS["v"]}, {"y": [0, None]}, {}, "y is missing in row 1"),
        (
            {"v": KINDS["v"], "y": Value("int64")},
            {"y": [0, 2]},
            {"target": "y"},
            "labels must be 0, 1, .. without gaps where data.num_classes is null, got 2 but no 1",
        ),
        (
            {"v": KINDS["v"], "y": Value("float64")},
            {"y": [0, 0.5]},
            {"target": "y"},
            "y must be whole numbers (n,), got float64",
        ),
        (
            {"v": KINDS["v"], "y": KINDS["s"]},
            {"y": ["a", "b"]},
            {"target": "y", "partition": "device"},
            "y must be a ClassLabel with data.partition=device, not text",
        ),
    ],
)
def test_invalid_columns(
    kinds: Any, values: Any, overrides: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Nothing is trained on what may be a mistake; one line names the column."""
    given = {"v": [[1, 2]] * 2, "y": [0, 1]} | values
    all_kinds = {"y": LABEL} | kinds
    path = of_columns(tmp_path / "x", all_kinds, **{name: given[name] for name in all_kinds})
    start = "data.path must be a data set of Hugging Face with feat"
    assert_one_line(lambda: load(path, **overrides), re.escape(reason), start)


def test_splits_that_differ(tmp_path: Path) -> None:
    """Another kind of column or other classes in the test split are refused."""
    train = make_image_rows(*make_gray_images(3))
    other = ClassLabel(names=[*reversed(CLASSES)])
    numbers = Dataset.from_dict({"image": [1], "label": [0]})
    for test, reason in (
        (train.cast_column("label", other), "label has other classes in the test split"),
        (numbers, "image of the test split is missing or of another kind"),
        (train.remove_columns("label"), "label of the test split is missing or of another kind"),
    ):
        path = save_splits(tmp_path / reason[:30], train=train, test=test)
        with pytest.raises(DataError, match=reason):
            load(path)


# --- settings -----------------------------------------------------------------------------------


def test_the_command_line_names_the_data_set() -> None:
    """``data=hf data.path=ylecun/mnist`` is 60 clients with equally many random rows."""
    data = compose_settings("custom", "data=hf data.path=ylecun/mnist").settings.data
    assert isinstance(data, HfSettings)
    assert (data.path, data.partition, data.num_clients) == ("ylecun/mnist", "iid", 60)
    assert (data.priority, data.download, data.revision) == ("all", True, None)


NATURAL = "data.client_column must be the name of a column with data.partition=natural, and null"
DEVICE = "must have a value where each device has only its own client's data, got null"


ON_DEVICES = "data.partition=device data.num_clients=2 data.input_shape=[3] data.num_classes=2"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("data.path=''", "data.path must be a folder with a data set, or a Hub id such as yl"),
        ("data.partition=natural", f"{NATURAL} with the others, got None with natural"),
        ("data.client_column=w", f"{NATURAL} with the others, got 'w' with iid"),
        ("data.features=[a,b] data.target=b", "data.features must be columns other than data.targ"),
        ("data.image_mode=CMYK", "data.image_mode must be one of L, RGB, got 'CMYK'"),
        ("data.partition=device data.num_clients=2", f"data.input_shape {DEVICE}"),
        ("data.length=1", "data.length must be a whole number >= 2, got 1"),
        (
            f"{ON_DEVICES} data.scaling=agreed",
            "data.scaling must be client with data=hf data.partition=device (the server does not",
        ),
        ("data.scaling=agreed privacy=dp_fixed_server", "data.scaling must be client with priv"),
        ("data.scaling=all", "data.scaling must be one of client, agreed, got 'all'"),
    ],
)
def test_settings_that_do_not_fit(overrides: str, message: str) -> None:
    """Refused before any data is read, in one line."""
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}"):
        compose_settings("custom", f"data=hf data.path=x {overrides}")
