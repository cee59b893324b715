"""Test the fingerprints of data, and what they tell about changes of it."""

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.records.client_names import ClientNames
from fedquorum.records.data_fingerprint import has_other_times, list_data_changes
from PIL import Image

from client_app.data import FederatedData
from client_app.data.fingerprint import compute_device_fingerprint, compute_fingerprint
from client_app.data.load import _build_data
from conf.schema.data import (
    CsvSettings,
    DataSettings,
    HfSettings,
    ImageFolderSettings,
    LeafSettings,
    NpzSettings,
    SynthSettings,
    TextSettings,
)
from tests.builders_hf import make_gray_images, make_image_rows, save_splits

HEADER = "site,age,dose,ill"
SITES = ("North", "South", "West")
ROWS = tuple(
    f"{SITES[i % 3]},{20 + i},{i % 7 + 0.5},{'yes' if i % 5 < 2 else 'no'}" for i in range(60)
)

Known = tuple[dict[str, Any], ClientNames]
Change = Callable[[list[str]], list[str]]


def read(settings: DataSettings, seed: int = 1) -> Known:
    """Read data as a new process does; return its fingerprint, as JSON has it, and its names."""
    data: FederatedData = _build_data(settings, seed)
    fingerprint = json.loads(json.dumps(compute_fingerprint(settings, data)))
    return fingerprint, ClientNames.from_list(data.client_names)


def compare(before: Known, now: Known) -> tuple[str, ...]:
    return list_data_changes(before[0], now[0], before[1], now[1])


def write_table(path: Path, rows: list[str], header: str = HEADER) -> CsvSettings:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return CsvSettings(path=str(path), client_column="site", target="ill")


def flip_label(row: str) -> str:
    """Return a row with the other label."""
    start, _, label = row.rpartition(",")
    return f"{start},{'no' if label == 'yes' else 'yes'}"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: rows[3:], "rows of clients North 20 -> 19, South 20 -> 19, West 20 -> 19"),
        (lambda rows: rows[1:], "rows of client North 20 -> 19"),
        (lambda rows: [flip_label(rows[0]), *rows[1:]], "targets of client North changed"),
        (
            lambda rows: [*map(flip_label, rows)],
            "targets of clients North, South, West changed",
        ),
        (lambda rows: [rows[0].replace("20", "21"), *rows[1:]], "inputs (the file's content"),
        (lambda rows: [*rows, *(f"Centre,{i},1.5,yes" for i in range(4))], "client Centre new"),
        (lambda rows: [r for r in rows if "South" not in r], "client South gone"),
        (
            lambda rows: [r.replace("West", "East") for r in rows],
            "client West gone; client East new",
        ),
    ],
    ids=["rows-gone", "row-gone", "label", "labels", "input", "site-more", "site-gone", "renamed"],
)
def test_a_changed_table_is_named(tmp_path: Path, change: Change, expected: str) -> None:
    """The text says which clients are gone or new, have other rows or other targets."""
    path = tmp_path / "t.csv"
    before = read(write_table(path, [*ROWS]))
    now = read(write_table(path, change([*ROWS])))
    assert "; ".join(compare(before, now)).startswith(expected)
    assert compare(before, before) == ()


def test_other_rows_of_a_table_in_another_order(tmp_path: Path) -> None:
    """The order decides which rows are for testing, so another order is other data."""
    before = read(write_table(tmp_path / "t.csv", [*ROWS]))
    now = read(write_table(tmp_path / "t.csv", [*reversed(ROWS)]))
    assert len(compare(before, now)) == 1


def test_a_column_more(tmp_path: Path) -> None:
    """A column added changes the inputs, and no client's rows and targets."""
    before = read(write_table(tmp_path / "t.csv", [*ROWS]))
    rows = [f"{row},{i}" for i, row in enumerate(ROWS)]
    now = read(write_table(tmp_path / "t.csv", rows, f"{HEADER},weight"))
    assert compare(before, now) == ("inputs (the file's content changed)",)


def test_a_table_that_moved_is_the_same(tmp_path: Path) -> None:
    """Neither the place, nor the name of a single file, nor its times matter."""
    before = read(write_table(tmp_path / "t.csv", [*ROWS]))
    moved = write_table(tmp_path / "other" / "u.csv", [*ROWS])
    os.utime(moved.path, (1, 1))
    assert read(moved)[0] == before[0]
    whole = hashlib.sha256((tmp_path / "t.csv").read_bytes()).hexdigest()
    assert before[0]["inputs"] == {"by": "content", "files": 1, "sha256": whole, "times": None}


@pytest.mark.parametrize("kind", ["csv.gz", "parquet", "xlsx"])
def test_every_format_of_tables_is_hashed(tmp_path: Path, kind: str) -> None:
    """A changed input is noticed in every format."""
    frames = pytest.importorskip("pandas")
    path = tmp_path / f"t.{kind}"

    def write(rows: list[str]) -> CsvSettings:
        settings = write_table(tmp_path / "t.csv", rows)
        if kind == "csv.gz":
            path.write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
        else:
            frame = frames.read_csv(tmp_path / "t.csv")
            frame.to_parquet(path) if kind == "parquet" else frame.to_excel(path, index=False)
        return CsvSettings(path=str(path), client_column=settings.client_column, target="ill")

    before = read(write([*ROWS]))
    now = read(write([ROWS[0].replace("20", "21"), *ROWS[1:]]))
    assert compare(before, now) == ("inputs (the file's content changed)",)


def write_folder(folder: Path, rows: dict[str, list[str]], test: bool = False) -> CsvSettings:
    """Write one table for each client, perhaps with test rows in another folder."""
    for name, own in rows.items():
        write_table(folder / f"{name}.csv", own)
        write_table(folder.with_name("test") / f"{name}.csv", own[:9])
    test_path = str(folder.with_name("test")) if test else None
    return CsvSettings(path=str(folder), target="ill", drop_columns=["site"], test_path=test_path)


def test_a_folder_of_tables(tmp_path: Path) -> None:
    """Its files are hashed one by one, with their names below the folder."""
    rows = {site: [row for row in ROWS if site in row] for site in SITES}
    folder = tmp_path / "sites"
    before = read(write_folder(folder, rows))
    shutil.copytree(folder, tmp_path / "copy" / "sites")
    assert read(write_folder(tmp_path / "copy" / "sites", {})) == before
    changed = {**rows, "South": [rows["South"][0].replace("21", "22"), *rows["South"][1:]]}
    now = read(write_folder(folder, changed))
    assert compare(before, now) == ("inputs (the files' content changed)",)
    write_folder(folder, rows)
    (folder / "South.csv").rename(folder / "Mid.csv")
    assert compare(before, read(write_folder(folder, {}))) == (
        "client South gone",
        "client Mid new",
    )


def test_the_test_rows_in_files_of_their_own(tmp_path: Path) -> None:
    """``data.test_path`` belongs to the data."""
    rows = {site: [row for row in ROWS if site in row] for site in SITES}
    settings = write_folder(tmp_path / "sites", rows, test=True)
    before = read(settings)
    file = tmp_path / "test" / "West.csv"
    file.write_text(file.read_text().replace("22", "23", 1))
    assert compare(before, read(settings)) == ("inputs (the files' content changed)",)


def write_arrays(path: Path, **changes: Any) -> NpzSettings:
    rng = np.random.default_rng(3)
    arrays: dict[str, Any] = {
        "x_train": rng.normal(size=(60, 4)).astype(np.float32),
        "y_train": np.arange(60) % 2,
        "client_train": np.arange(60) % 3,
    }
    np.savez(path, **(arrays | changes))
    return NpzSettings(path=str(path), priority="all")


def test_an_array_file(tmp_path: Path) -> None:
    """Inputs, labels and clients of an .npz file; without names, clients have their ids."""
    path = tmp_path / "d.npz"
    before = read(write_arrays(path))
    x = np.random.default_rng(3).normal(size=(60, 4)).astype(np.float32)
    x[7, 2] += 1
    assert compare(before, read(write_arrays(path, x_train=x))) == (
        "inputs (the file's content changed)",
    )
    y = np.arange(60) % 2
    y[[1, 4]] = y[[4, 1]]  # both rows are of client 1
    assert compare(before, read(write_arrays(path, y_train=y))) == ("targets of client 1 changed",)
    assert compare(before, read(write_arrays(path, client_train=np.arange(60) % 4))) == (
        "clients 3 -> 4",
    )


def test_many_clients_have_one_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the fingerprint does not grow with the clients."""
    monkeypatch.setattr("client_app.data.fingerprint.MAX_CLIENTS", 2)
    path = tmp_path / "d.npz"
    before = read(write_arrays(path))
    assert "by_client" not in before[0]
    y = np.arange(60) % 2
    y[0], y[1] = y[1], y[0]
    assert compare(before, read(write_arrays(path, y_train=y))) == ("targets changed",)
    clients = np.arange(60) % 4
    assert compare(before, read(write_arrays(path, client_train=clients))) == ("clients 3 -> 4",)


def test_targets_that_are_numbers_are_hashed_as_read(tmp_path: Path) -> None:
    """One changed number is one client's, although it changes the scale of all."""
    path = tmp_path / "d.npz"
    y = np.random.default_rng(5).normal(size=60)
    settings = write_arrays(path, y_train=y)
    settings.regression = True
    before = read(settings)
    y[6] += 100
    write_arrays(path, y_train=y)
    assert compare(before, read(settings)) == ("targets of client 0 changed",)


def write_images(folder: Path) -> ImageFolderSettings:
    rng = np.random.default_rng(2)
    for client in SITES[:2]:
        for label in ("cat", "dog"):
            for i in range(4):
                file = folder / client / label / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.integers(0, 255, (6, 6), np.uint8)).save(file)
    return ImageFolderSettings(path=str(folder), priority="all")


@pytest.mark.slow
def test_a_folder_of_images_is_known_by_names_and_sizes(tmp_path: Path) -> None:
    """A copy has other times and is the same data; another size or name is other data."""
    settings = write_images(tmp_path / "images")
    before = read(settings)
    assert before[0]["inputs"]["by"] == "listing"
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "images", copy, copy_function=shutil.copyfile)
    os.utime(copy / "North" / "cat" / "0.png", (1, 1))
    now = read(ImageFolderSettings(path=str(copy), priority="all"))
    assert compare(before, now) == ()
    assert has_other_times(before[0], now[0])
    assert not has_other_times(before[0], before[0])
    (tmp_path / "images" / ".DS_Store").write_bytes(b"x")
    assert compare(before, read(settings)) == ()
    Image.fromarray(np.zeros((6, 6), np.uint8)).save(tmp_path / "images/North/cat/0.png")
    assert compare(before, read(settings)) == ("inputs (names or sizes of its files changed)",)
    source = tmp_path / "images" / "South" / "dog"
    (source / "3.png").rename(source.with_name("cat") / "9.png")
    assert compare(before, read(settings)) == ("targets of client South changed",)


def test_leaf_files_are_known_by_sizes_and_targets(tmp_path: Path) -> None:
    """A flipped label leaves the sizes, and is noticed by the targets."""
    users = {name: {"x": [[0.1, 0.2]] * 6, "y": [0, 1] * 3} for name in ("ann", "bob")}

    def write() -> LeafSettings:
        content = {"users": [*users], "num_samples": [6, 6], "user_data": users}
        (tmp_path / "all_data_0.json").write_text(json.dumps(content))
        return LeafSettings(path=str(tmp_path), priority="all")

    before = read(write())
    users["bob"]["y"] = [1, 0] * 3
    now = read(write())
    assert before[0]["inputs"]["sha256"] == now[0]["inputs"]["sha256"]
    assert compare(before, now) == ("targets of client bob changed",)


def test_texts_are_hashed(tmp_path: Path) -> None:
    """A changed text and a changed class are noticed."""
    path = tmp_path / "texts.csv"

    def write(last: str, label: str) -> TextSettings:
        rows = [f"u{i % 2},the cat {i},{'ab'[i // 2 % 2]}" for i in range(24)]
        path.write_text("\n".join(["who,text,kind", *rows, f"u1,{last},{label}"]))
        return TextSettings(
            path=str(path),
            client_column="who",
            text_columns=["text"],
            target="kind",
            priority="all",
        )

    before = read(write("a dog", "a"))
    assert compare(before, read(write("a cow", "a"))) == ("inputs (the file's content changed)",)
    assert compare(before, read(write("a dog", "b"))) == ("targets of client u1 changed",)


@pytest.mark.slow
def test_a_data_set_of_hugging_face(tmp_path: Path) -> None:
    """A folder is listed; a label that changes in it is noticed by the targets."""

    def save(name: str, labels: Any) -> HfSettings:
        folder = save_splits(tmp_path / name, train=make_image_rows(x, labels))
        return HfSettings(path=str(folder), num_clients=2, priority="all")

    x, y = make_gray_images(40)
    before = read(save("a", y))
    assert before[0]["inputs"]["by"] == "listing"
    assert compare(before, read(save("copy", y))) == ()
    labels = y.copy()
    labels[0] = (labels[0] + 1) % (max(y) + 1)
    assert "targets of client" in compare(before, read(save("b", labels)))[0]


def test_generated_data_is_known_by_its_settings() -> None:
    """Nothing is generated or hashed: a resume compares the settings themselves."""
    fingerprint, _ = read(SynthSettings(num_clients=3, num_priority=2))
    assert fingerprint == {"inputs": {"by": "settings"}}


def test_data_on_devices_has_a_fingerprint_there_alone(tmp_path: Path) -> None:
    """The server's is empty, and the device's has its file and its client."""
    columns = {"numbers": ["age", "dose"], "classes": ["no", "yes"]}
    write_table(tmp_path / "t.csv", [*ROWS[:30]])
    settings = CsvSettings(
        path=str(tmp_path / "t.csv"),
        client_column=None,
        target="ill",
        columns=columns,
        num_clients=3,
    )
    data = _build_data(settings, 1)
    assert compute_fingerprint(settings, data) == {}
    before = compute_device_fingerprint(settings, data, 1)
    assert (before["rows"], [*before["by_client"]]) == (30, ["1"])
    write_table(tmp_path / "t.csv", [flip_label(ROWS[0]), *ROWS[1:30]])
    now = compute_device_fingerprint(settings, _build_data(settings, 1), 1)
    assert list_data_changes(before, now) == ("targets of client 1 changed",)


def test_data_in_memory_is_hashed_once(tmp_path: Path) -> None:
    """A sweep's runs share the data, and the fingerprint with it."""
    settings = write_table(tmp_path / "t.csv", [*ROWS])
    data = _build_data(settings, 1)
    before = compute_fingerprint(settings, data)
    (tmp_path / "t.csv").unlink()
    assert compute_fingerprint(settings, data) is before
