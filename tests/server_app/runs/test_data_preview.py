"""Test the command ``fedquorum data``, which shows each client's data."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from client_app.data import load_data
from conf.compose import compose_settings
from server_app.cli.data import main
from server_app.runs.data_preview import (
    build_client_rows,
    build_clients_table,
    draw_clients_figure,
    find_data_warnings,
    format_totals,
)
from tests.snapshot import Snapshot

SHARDS = "data.partition=shards data.shard_size=10"


def save_data(folder: Path) -> str:
    """Write a small data set; return the overrides that select it."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    np.savez(
        folder / "own.npz",
        allow_pickle=False,
        x_train=rng.normal(size=(120, 4)).astype(np.float32),
        y_train=y,
        x_test=rng.normal(size=(60, 4)).astype(np.float32),
        y_test=y[:60],
    )
    return f"experiment=custom data=npz data.path={folder / 'own.npz'} data.num_clients=6"


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_command_writes_table_csv_and_figure(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: Snapshot,
) -> None:
    """All three show each client's samples by class; no other file is written."""
    words = f"{save_data(tmp_path)} {SHARDS} client.batch_size=30"
    overrides = words.split()
    output = tmp_path / "out"
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*overrides, "--output", str(output)]) == 0
    data = load_data(compose_settings("custom", " ".join(overrides[1:])).settings.data, 1)
    rows = read_csv(output / "clients.csv")
    assert len(rows) == 6
    for client, row in enumerate(rows):
        client_data = data.get_client(client)
        assert int(row["client"]) == client
        assert (row["priority"] == "1") == (client in data.priority)
        assert (int(row["train"]), int(row["test"])) == (
            len(client_data.y_train),
            len(client_data.y_test),
        )
        for split, y in (("train", client_data.y_train), ("test", client_data.y_test)):
            counts = [int(row[f"{split}_class_{c}"]) for c in range(3)]
            assert counts == np.bincount(y, minlength=3).tolist()
    lines = capsys.readouterr().out.replace(str(tmp_path), "folder").splitlines()
    snapshot("data.txt", "".join(f"{line.rstrip()}\n" for line in lines))
    with Image.open(output / "clients.png") as picture:
        assert picture.size[0] > 500
    assert "<svg" in (output / "clients.svg").read_text()
    assert sorted(p.name for p in tmp_path.rglob("*")) == sorted(
        ["own.npz", "out", "clients.csv", "clients.png", "clients.svg"]
    )


@pytest.mark.slow
def test_the_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    """Table and figures of two calls are identical."""
    overrides = save_data(tmp_path).split()
    overrides += SHARDS.split()
    for name in ("a", "b"):
        assert main([*overrides, "--output", str(tmp_path / name)]) == 0
    for name in ("clients.csv", "clients.png", "clients.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_table_shows_the_availability(tmp_path: Path) -> None:
    """The availability that FedAU samples jointly with the data is a column."""
    overrides = (
        f"{save_data(tmp_path)} data.partition=dirichlet data.alpha=0.5 data.priority=all "
        "availability=bernoulli"
    )
    settings = compose_settings("", overrides).settings
    rows = build_client_rows(settings)
    assert all(row.availability is not None and 0.02 <= row.availability <= 1 for row in rows)
    assert len({row.availability for row in rows}) > 2
    header = [column.header for column in build_clients_table(rows, "title").columns]
    assert header == [
        *("client", "priority", "training", "test", "classes", "available"),
        *("class 0", "class 1", "class 2"),
    ]


@pytest.mark.slow
def test_a_long_table_is_truncated(tmp_path: Path) -> None:
    """With over 100 clients it has the first 50; with over 12 classes it has no class columns."""
    y = np.arange(2000) % 20
    x = np.zeros((2000, 2), dtype=np.float32)
    path = tmp_path / "many.npz"
    np.savez(path, allow_pickle=False, x_train=x, y_train=y, x_test=x, y_test=y)
    overrides = (
        f"data=npz data.path={path} data.partition=iid data.num_clients=150 data.priority=all"
    )
    rows = build_client_rows(compose_settings("custom", overrides).settings)
    table = build_clients_table(rows, "title")
    assert table.row_count == 50
    assert format_totals(rows).endswith("; the first 50 are shown")
    assert [c.header for c in table.columns][-1] == "classes"
    heat_map = draw_clients_figure(rows, "title").axes[0].images[0]
    matrix = heat_map.get_array()
    assert matrix is not None
    assert matrix.shape == (150, 20)
    assert int(matrix.sum()) == 2000


def test_a_regression_has_no_classes(tmp_path: Path) -> None:
    """The table and the figure show only the number of samples."""
    x = np.zeros((40, 2), dtype=np.float32)
    y = np.linspace(0, 1, 40)
    path = tmp_path / "own.npz"
    np.savez(path, allow_pickle=False, x_train=x, y_train=y, x_test=x, y_test=y)
    overrides = (
        f"experiment=custom data=npz data.path={path} data.regression=true data.partition=quantity "
        "data.num_clients=4 data.priority=[1]"
    )
    output = tmp_path / "out"
    assert main([*overrides.split(), "--output", str(output)]) == 0
    rows = read_csv(output / "clients.csv")
    assert sum(int(row["train"]) for row in rows) == 40
    assert {row["classes"] for row in rows} == {""}
    assert "train_class_0" not in rows[0]
    assert (output / "clients.png").stat().st_size > 1000


def test_surprising_clients_are_named(tmp_path: Path) -> None:
    """There is one warning for each: less than a batch, one training class, one test class."""
    overrides = (
        f"{save_data(tmp_path)} data.partition=shards data.shard_size=10 data.shards_per_client=1"
    )
    rows = build_client_rows(compose_settings("", overrides).settings)
    below_batch, training, testing = find_data_warnings(rows, 32)
    assert below_batch.startswith("6 clients (0, 1, 2, 3, 4, 5) have ")
    assert training.startswith("6 clients (0, 1, 2, 3, 4, 5) have ")
    assert "fewer training samples" in below_batch
    assert "one class in training" in training
    assert "one class in testing" in testing
    assert find_data_warnings(rows, 10) == [training, testing]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.num_client=3"], "data.num_client is not a setting; data has"),
        (["data=npz", "data.path=none.npz"], "data.noise is set by the experiment"),
        (["experiment=custom", "data=npz", "data.path=none.npz"], "data.path must be an .npz file"),
    ],
)
def test_wrong_settings_are_one_line(
    overrides: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo and missing data give the same error as in a run, and nothing is written."""
    if "experiment=custom" not in overrides and "data=npz" in overrides:
        overrides = ["experiment=fedalign/synth_high", *overrides]
    assert main([*overrides, "--output", str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"fedquorum data: {message}")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output folder's path belongs to a file."""
    (tmp_path / "out").write_text("mine")
    overrides = [
        *save_data(tmp_path).split(),
        *SHARDS.split(),
        "--output",
        str(tmp_path / "out"),
    ]
    assert main(overrides) == 1
    assert capsys.readouterr().err.startswith("fedquorum data: --output must be a folder to write")


def test_clients_and_classes_have_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table, its file, the figure and the warnings; data.names=false shows ids."""
    rows = [("North", "yes"), ("North", "no"), ("[red]South", "no")]
    lines = [f"{k},{site},{ill}" for site, ill in rows for k in range(5)]
    (tmp_path / "t.csv").write_text("\n".join(["age,site,ill", *lines]) + "\n")
    overrides = f"experiment=custom data=csv data.path={tmp_path}/t.csv data.client_column=site "
    overrides += "data.target=ill client.batch_size=2"
    assert main([*overrides.split(), "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "1 client ([red]South) has only one class in training" in shown
    assert "\u2502 [red]South" in shown
    assert "class yes" in shown
    table = read_csv(tmp_path / "out" / "clients.csv")
    assert [(row["client"], row["name"]) for row in table] == [("0", "North"), ("1", "[red]South")]
    assert table[1]["train_class_no"] == "4"
    built = build_client_rows(compose_settings("", overrides).settings)
    axes = draw_clients_figure(built, "title").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["North", "[red]South"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["no", "yes"]
    plain = build_client_rows(compose_settings("", f"{overrides} data.names=false").settings)
    assert [row.name for row in plain] == ["0", "1"]
