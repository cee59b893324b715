"""A new user with data of their own, in this process: from a file to records, or to one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.audit.cli import main
from fedquorum.errors import DataError
from PIL import Image

from server_app.cli.data import main as show_clients
from tests.builders_hf import make_gray_images, make_image_rows, save_splits
from tests.builders_runs import read_rounds, read_rows, run_here

QUICK = ("experiment=custom", "strategy=fedavg", "rounds=2", "client.local_epochs=1")


def run(directory: Path, *words: str) -> list[dict[str, Any]]:
    """Run two rounds of FedAvg; returns the rows of the audit trail."""
    run_here(directory, *QUICK, *words)
    assert len(read_rounds(directory)) == 2
    rows = read_rows(directory)
    assert {row["status"] for row in rows} == {"trained"}
    assert all(np.isfinite(row["loss"]) for row in rows)
    return rows


def table(folder: Path, **change: str) -> Path:
    """Write a table of patients of three clinics, with gaps and categories; returns its path."""
    rng = np.random.default_rng(0)
    lines = [change.get("header", "clinic,age,smoker,pressure,ill")]
    for clinic, count in (("east", 30), ("north", 12), ("west", 3)):
        for i in range(count):
            age = "" if i % 7 == 3 else f"{rng.integers(20, 80)}"
            smoker = rng.choice(["yes", "no"])
            ill = "no" if clinic == "west" else "yes" if i % 3 else "no"
            lines.append(f"{clinic},{age},{smoker},{rng.normal(120, 15):.1f},{ill}")
    lines += change.get("more", "").split()
    path = folder / "patients.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def of_table(path: Path) -> tuple[str, ...]:
    return ("data=csv", f"data.path={path}", "data.client_column=clinic", "data.target=ill")


def test_a_table(tmp_path: Path) -> None:
    """A CSV file, its client column and its target are all that is needed."""
    rows = run(tmp_path / "run", *of_table(table(tmp_path)))
    assert [row["num_examples"] for row in rows[:3]] == [24, 10, 2]


def test_a_table_with_numbers_to_predict(tmp_path: Path) -> None:
    """The loss of scaled numbers falls, and RMSE and R2 are in the unit of the target."""
    words = ("data=csv", f"data.path={table(tmp_path)}", "data.client_column=clinic")
    more = ("data.target=pressure", "data.regression=true")
    rows = run(tmp_path / "run", *words, *more)
    assert rows[3]["loss"] < rows[0]["loss"]
    test = read_rounds(tmp_path / "run")[-1]["test"]["all"]
    assert test["accuracy"] is None
    assert 0 < test["best"] < test["rmse"] < test["worst"]
    assert test["r2"] <= 1
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    scale = manifest["data"]["scales"]["target"]
    tests = read_rows(tmp_path / "run", "evaluations")
    for row in (row for row in tests if row["test_loss"] is not None):
        assert row["test_metric"] == pytest.approx(row["test_loss"] ** 0.5 * scale["deviation"])
    assert main([str(tmp_path / "run")]) == 0


def test_a_run_reports_how_it_interpreted_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The start of a run and the manifest name columns, target and dropped clients."""
    path = table(tmp_path, more="south,40,no,99.5,yes")
    lines = path.read_text().splitlines()
    dated = [f"{line},2026-01-{i % 28 + 1:02d}" for i, line in enumerate(lines[1:])]
    path.write_text("\n".join([f"{lines[0]},seen", *dated]))
    run(tmp_path / "run", *of_table(path), "data.min_samples=2")
    out = capsys.readouterr().out
    assert "Data csv: 3 clients (east, north, west), 45 rows; target ill, one of 2 classes; " in out
    assert "Left out by data.min_samples: 1 client with too few rows: south (1)" in out
    assert "Columns left out: seen (dates)." in out
    data = json.loads((tmp_path / "run" / "manifest.json").read_text())["data"]
    assert data["dropped_clients"] == {"south": 1}
    assert data["dropped_columns"] == {"seen": "dates"}
    assert (data["clients"], data["rows"]) == (3, 45)
    assert data["warnings"] == ["rows of one class only: west (no)"]


def test_a_validation_part(tmp_path: Path) -> None:
    """Its metrics are recorded by client and by group, resumed and audited; test parts stay."""
    words = (*of_table(table(tmp_path)), "evaluation.metric=auroc")
    plain, whole, part = (tmp_path / name for name in ("plain", "whole", "part"))
    run(plain, *words)
    run(whole, *words, "data.validation_fraction=0.25")
    assert {record["validation"] for record in read_rounds(plain)} == {None}
    rows = read_rows(whole, "evaluations")
    last = {row["client"]: row for row in rows if row["round"] == 2}
    assert [last[k]["num_examples"] for k in range(3)] == [18, 8, 1]
    assert [last[k]["validation_num_examples"] for k in range(3)] == [6, 2, 1]
    assert [last[k]["test_num_examples"] for k in range(3)] == [6, 2, 1]
    summary = read_rounds(whole)[-1]["validation"]["all"]
    mean = sum(last[k]["num_examples"] * last[k]["validation_loss"] for k in range(3)) / 27
    assert summary["loss"] == pytest.approx(mean)
    defined = [row["validation_metric"] for row in last.values() if row["validation_metric"]]
    assert summary["best"] == max(defined)
    assert main([str(whole)]) == 0
    quick = (*QUICK, *words, "data.validation_fraction=0.25")
    run_here(part, *quick, "rounds=1")
    run_here(part, *quick, f"resume={part}")
    for name in ("test", "validation", "global_loss"):
        assert [r[name] for r in read_rounds(part)] == [r[name] for r in read_rounds(whole)]
    path = whole / "rounds.jsonl"
    text = json.dumps(summary["loss"])
    path.write_text(path.read_text().replace(f'"loss": {text}', '"loss": 0.5'))
    assert main([str(whole)]) == 1


def test_arrays(tmp_path: Path) -> None:
    """Images in an .npz file, divided among clients, are all that is needed."""
    rng = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    x, y = rng.integers(256, size=(300, 12, 12), dtype=np.uint8), np.arange(300) % 5
    np.savez(path, allow_pickle=False, x_train=x[:200], y_train=y[:200], x_test=x, y_test=y)
    words = ("data=npz", f"data.path={path}", "data.num_clients=8")
    for partition in ("iid", "quantity", "dirichlet"):
        more = (f"data.partition={partition}", "data.alpha=5")
        rows = run(tmp_path / partition, *words, *more)
        assert len(rows) == 16
        assert sum(row["num_examples"] for row in rows[:8]) == 200


def test_folders_of_images(tmp_path: Path) -> None:
    """Folders of clients with folders of classes are all that is needed."""
    for client, count in (("ann", 6), ("bob", 3)):
        for c, name in enumerate(("cat", "dog")):
            folder = tmp_path / "images" / client / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = np.full((8, 8, 3), 100 * c + i, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    rows = run(tmp_path / "run", "data=image_folder", f"data.path={tmp_path / 'images'}")
    assert [row["num_examples"] for row in rows[:2]] == [10, 5]


@pytest.mark.parametrize("model", ["logistic_regression", "small_cnn"])
def test_a_data_set_of_hugging_face(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder is all that is needed, and the run is that of the same arrays in an .npz file."""
    (x, y), (x_test, y_test) = make_gray_images(90), make_gray_images(30)
    rows = {"train": make_image_rows(x, y), "test": make_image_rows(x_test, y_test)}
    folder = save_splits(tmp_path / "data", **rows)
    arrays = tmp_path / "mine.npz"
    np.savez(arrays, allow_pickle=False, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    words = ("data.partition=dirichlet", "data.num_clients=4", "data.alpha=5", "data.priority=all")
    losses = []
    for name, path in (("hf", folder), ("npz", arrays)):
        more = (f"data={name}", f"data.path={path}", f"model={model}", *words)
        losses.append([row["loss"] for row in run(tmp_path / name, *more)])
        show_clients(["experiment=custom", *more, "--output", str(tmp_path / f"{name}-clients")])
    assert losses[0] == losses[1]
    hf, npz = ((tmp_path / f"{n}-clients" / "clients.csv").read_text() for n in ("hf", "npz"))
    for number, name in enumerate(("cat", "dog", "owl")):  # an .npz file does not name them
        npz = npz.replace(f"class_{number}", f"class_{name}")
    assert hf == npz
    assert "custom: hf, seed" in capsys.readouterr().out


@pytest.mark.parametrize("samples", [1, 2, 31])
def test_fewer_samples_than_a_batch(tmp_path: Path, samples: int) -> None:
    """An epoch is then one smaller batch; the client counts by its number of samples."""
    x = np.random.default_rng(0).normal(size=(64 + samples, 4)).astype(np.float32)
    y = np.arange(len(x)) % 2
    clients = np.array([0] * 64 + [1] * samples)
    path = tmp_path / "mine.npz"
    np.savez(
        path,
        allow_pickle=False,
        x_train=x,
        y_train=y,
        x_test=x,
        y_test=y,
        client_train=clients,
        client_test=clients,
    )
    words = ("data=npz", f"data.path={path}", "data.partition=natural", "client.batch_size=32")
    rows = run(tmp_path / "run", *words, "data.priority=all")
    assert [row["num_examples"] for row in rows[:2]] == [64, samples]
    assert rows[1]["weight"] == pytest.approx(samples / (64 + samples))


def test_a_client_with_one_class(tmp_path: Path) -> None:
    """It trains like the others; its AUROC is not defined, and left out rather than 0 or 1."""
    run(tmp_path / "run", *of_table(table(tmp_path)), "evaluation.metric=auroc")
    tests = read_rows(tmp_path / "run", "evaluations")
    west = [row["test_metric"] for row in tests if row["client"] == 2]
    assert west
    assert all(value is None for value in west)
    assert read_rounds(tmp_path / "run")[-1]["test"]["all"]["left_out"] >= 1


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (
            {"header": "clinic,age,smoker,pressure,sick"},
            (),
            r"data\.target must be one of the columns of .*, got 'ill'$",
        ),
        ({"more": "west,30,yes,inf,no"}, (), "pressure is inf in line 47$"),
        ({"more": "west,30,yes,120,"}, (), "got ill, which is missing in line 47 of "),
        ({"more": ",30,yes,120,no"}, (), "got clinic, which is missing in line 47 of "),
        (
            {"more": "south,30,yes,120,no"},
            (),
            r"^data\.min_samples must be at least 2 .* got null; 2 leaves out south$",
        ),
        ({"more": "west,30,yes"}, (), "line 47 has 3 cells, its header has 5: west,30,yes$"),
        (
            {},
            ("data.drop_columns=[agee]",),
            r"data\.drop_columns must be one of the columns of .*, got 'agee' .did you mean age..",
        ),
    ],
)
def test_mistakes_in_a_table_are_one_line(
    tmp_path: Path, change: dict[str, str], words: tuple[str, ...], message: str
) -> None:
    """Nothing is trained on what may be a mistake; it is one line with the place."""
    path = table(tmp_path, **change)
    with pytest.raises(DataError, match=message) as caught:
        run(tmp_path / "run", *of_table(path), *words)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
