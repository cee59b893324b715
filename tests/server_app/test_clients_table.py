"""What each client got: the command fedquorum data."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from client_app.data import load_data
from conf.compose import compose_settings
from server_app.clients_table.command_line import main
from server_app.clients_table.rows import build_client_rows, find_data_warnings
from server_app.clients_table.show import build_clients_table, draw_clients_figure, format_totals
from tests.snapshot import Snapshot


def save(folder: Path) -> str:
    """Write a small data set of one's own; returns the words that lead to it."""
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


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_table_file_and_picture(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: Snapshot,
) -> None:
    """Each client's samples by class, in the terminal, as CSV and as a picture; nothing trained."""
    words = f"{save(tmp_path)} data.shard_size=10 client.batch_size=30".split()
    output = tmp_path / "out"
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words, "--output", str(output)]) == 0
    data = load_data(compose_settings("custom", " ".join(words[1:])).settings.data, 1)
    rows = read(output / "clients.csv")
    assert len(rows) == 6
    for client, row in enumerate(rows):
        client_data = data.get_client(client)
        assert int(row["client"]) == client
        assert (row["priority"] == "1") == (client in data.priority)
        assert (int(row["train"]), int(row["test"])) == (
            len(client_data.y_train),
            len(client_data.y_test),
        )
        for part, y in (("train", client_data.y_train), ("test", client_data.y_test)):
            counts = [int(row[f"{part}_class_{c}"]) for c in range(3)]
            assert counts == np.bincount(y, minlength=3).tolist()
    lines = capsys.readouterr().out.replace(str(tmp_path), "folder").splitlines()
    snapshot("data.txt", "".join(f"{line.rstrip()}\n" for line in lines))
    with Image.open(output / "clients.png") as picture:
        assert picture.size[0] > 500
    assert "<svg" in (output / "clients.svg").read_text()
    assert sorted(p.name for p in tmp_path.rglob("*")) == sorted(
        ["own.npz", "out", "clients.csv", "clients.png", "clients.svg"]
    )


def test_the_same_picture_twice(tmp_path: Path) -> None:
    """Same settings and seed, same bytes."""
    words = save(tmp_path).split()
    words.append("data.shard_size=10")
    for name in ("a", "b"):
        assert main([*words, "--output", str(tmp_path / name)]) == 0
    for name in ("clients.csv", "clients.png", "clients.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_how_often_clients_are_there(tmp_path: Path) -> None:
    """FedAU's joint draw of data and participation is shown before any training."""
    words = (
        f"{save(tmp_path)} data.partition=dirichlet data.alpha=0.5 data.priority=all "
        "availability=bernoulli"
    )
    settings = compose_settings("", words).settings
    rows = build_client_rows(settings)
    assert all(row.availability is not None and 0.02 <= row.availability <= 1 for row in rows)
    assert len({row.availability for row in rows}) > 2
    header = [column.header for column in build_clients_table(rows, "title").columns]
    assert header == [
        *("client", "priority", "training", "test", "classes", "available"),
        *("class 0", "class 1", "class 2"),
    ]


def test_many_clients_and_classes(tmp_path: Path) -> None:
    """Of more than 100 clients the first 50 are printed, of more than 12 classes no columns."""
    y = np.arange(2000) % 20
    x = np.zeros((2000, 2), dtype=np.float32)
    path = tmp_path / "many.npz"
    np.savez(path, allow_pickle=False, x_train=x, y_train=y, x_test=x, y_test=y)
    words = f"data=npz data.path={path} data.partition=iid data.num_clients=150 data.priority=all"
    rows = build_client_rows(compose_settings("custom", words).settings)
    table = build_clients_table(rows, "title")
    assert table.row_count == 50
    assert format_totals(rows).endswith("; the first 50 are shown")
    assert [c.header for c in table.columns][-1] == "classes"
    heat_map = draw_clients_figure(rows, "title").axes[0].images[0]
    shown = heat_map.get_array()
    assert shown is not None
    assert shown.shape == (150, 20)
    assert int(shown.sum()) == 2000


def test_targets_that_are_no_classes(tmp_path: Path) -> None:
    """For numbers and sequences there are sizes, no classes, and a picture of the sizes."""
    x = np.zeros((40, 2), dtype=np.float32)
    y = np.linspace(0, 1, 40)
    path = tmp_path / "own.npz"
    np.savez(path, allow_pickle=False, x_train=x, y_train=y, x_test=x, y_test=y)
    words = (
        f"experiment=custom data=npz data.path={path} data.regression=true data.partition=quantity "
        "data.num_clients=4 data.priority=[1]"
    )
    output = tmp_path / "out"
    assert main([*words.split(), "--output", str(output)]) == 0
    rows = read(output / "clients.csv")
    assert sum(int(row["train"]) for row in rows) == 40
    assert {row["classes"] for row in rows} == {""}
    assert "train_class_0" not in rows[0]
    assert (output / "clients.png").stat().st_size > 1000


def test_what_may_surprise(tmp_path: Path) -> None:
    """Clients with one class, or with less than a batch, are named before the run."""
    words = f"{save(tmp_path)} data.shard_size=10 data.shards_per_client=1"
    rows = build_client_rows(compose_settings("", words).settings)
    few, single, untested = find_data_warnings(rows, 32)
    assert all(told.startswith("6 clients (0, 1, 2, 3, 4, 5) have ") for told in (few, single))
    assert "fewer training samples" in few
    assert "one class in training" in single
    assert "one class in testing" in untested
    assert find_data_warnings(rows, 10) == [single, untested]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.num_client=3"], "data.num_client is not a setting; data has"),
        (["data=npz", "data.path=none.npz"], "data.noise is set by the experiment"),
        (["experiment=custom", "data=npz", "data.path=none.npz"], "data.path must be an .npz file"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo and data that is not there are told as by the command that runs."""
    if "experiment=custom" not in words and "data=npz" in words:
        words = ["experiment=fedalign/synth_high", *words]
    assert main([*words, "--output", str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"fedquorum data: {message}")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_output_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file where the folder should be is one line."""
    (tmp_path / "out").write_text("mine")
    words = [*save(tmp_path).split(), "data.shard_size=10", "--output", str(tmp_path / "out")]
    assert main(words) == 1
    assert capsys.readouterr().err.startswith("fedquorum data: --output must be a folder to write")
