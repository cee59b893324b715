"""Test the command ``fedquorum predict``."""

import csv
import gzip
import io
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from server_app.cli.predict import main
from tests.builders_runs import run_here

WORDS = ("experiment=custom", "strategy=fedavg", "rounds=1", "data=csv", "data.target=ill")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run on a table, whose file is gone; two of its clients are called 1 and 0."""
    folder = tmp_path_factory.mktemp("runs")
    table = folder / "t.csv"
    lines = [f"{'10'[i % 2]},{i + 50 * (i % 2)},{'=no' if i % 3 else 'yes'}" for i in range(40)]
    table.write_text("\n".join(["site,age,ill", *lines]) + "\n")
    directory = run_here(
        folder / "run", *WORDS, f"data.path={table}", "data.client_column=site", "data.names=true"
    )
    table.unlink()
    return directory


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a table to predict, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "new.csv"
    path.write_text("comment,age\nx,12\ny,\n")
    return path


def test_predictions_are_printed_as_csv(
    run: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Notes go to standard error; a text is no formula of a spreadsheet."""
    assert main([str(run), str(rows)]) == 0
    out, err = capsys.readouterr()
    found = list(csv.DictReader(io.StringIO(out)))
    assert list(found[0]) == ["row", "prediction", "probability_=no", "probability_yes"]
    assert [line["row"] for line in found] == ["1", "2"]
    assert {line["prediction"] for line in found} <= {"'=no", "yes"}
    assert err.startswith("fedquorum predict: numbers are scaled by the mean of all clients'")


def test_predictions_are_written(
    run: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To a file; an unwritable one is one line."""
    output = tmp_path / "out.csv"
    assert main([str(run), str(rows), "--client", "0", "--output", str(output)]) == 0
    assert len(output.read_text().splitlines()) == 3
    assert "2 predictions in" in capsys.readouterr().err
    assert main([str(run), str(rows), "--client", "0", "--output", str(tmp_path)]) == 1
    assert "--output must be a file to write to" in capsys.readouterr().err


def test_digits_may_be_an_id_and_a_name(
    tmp_path: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then both are spelled out; a quoted word is a name."""
    lines = [f"{1 + i % 2},{i + 50 * (i % 2)},{i % 3 > 0}" for i in range(40)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["site,age,ill", *lines]) + "\n")
    words = (f"data.path={table}", "data.client_column=site")
    run = run_here(tmp_path / "run", *WORDS, *words)
    assert main([str(run), str(rows), "--client", "1"]) == 1
    message = "--client 1 is the id of one client and the name of client 0: type --client \"'1'\""
    assert message in capsys.readouterr().err
    printed = []
    for client in ("0", "'1'", "2"):
        assert main([str(run), str(rows), "--client", client]) == (client == "2")
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.csv"], "ROWS must be a file or a folder, got none.csv: there is no such file"),
        (["bad.csv"], "ROWS must be a table, got bad.csv: "),
        (["short.csv"], "the table must have the column age"),
        (["rows.npy"], "ROWS must be a table, got rows.npy: it is a NumPy file"),
        (["pictures"], "ROWS must be a table, got pictures: the folder has no table"),
        (["no/*.csv"], "ROWS must be a table, got no/*.csv: "),
        (["old.xls"], "ROWS must be a table, got old.xls: it is an old Excel file"),
        (["new.csv", "--client", "North"], "client must be a name"),
        (["new.csv", "--client", "0", "--data", "x.csv"], "data must be left out, got x.csv"),
    ],
)
def test_mistakes_are_one_line(
    run: Path,
    rows: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    """The exit status is 1, and nothing is printed."""
    Path("bad.csv").write_text("a;b\n1;2\n")
    Path("short.csv").write_text("b\n1\n")
    np.save("rows.npy", np.zeros((1, 1)))
    Path("pictures").mkdir()
    Path("pictures/a.png").touch()
    Path("old.xls").write_bytes(b"\xd0\xcf\x11\xe0" + b"\0" * 99)
    assert main([str(run), *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedquorum predict: {message}")
    assert err.count("\n") == 1


def test_a_folder_without_a_run_is_one_line(
    run: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a run without a card."""
    assert main([str(tmp_path), str(rows)]) == 1
    moved = Path(shutil.copytree(run, tmp_path / "moved"))
    (moved / "model_card.json").unlink()
    assert main([str(moved), str(rows)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "must have a model_card.json, got none" in lines[1]


TABLE = "comment,age\nx,12.5\ny,\nz,31\n"


def write_rows(name: str) -> Path:
    """Write the same rows in the format of the name's ending, and return the path."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.read_csv(io.StringIO(TABLE))
    if path.suffix == ".pq":
        frame.to_parquet(path)
    elif path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    else:
        content = TABLE.encode("utf-8-sig" if "bom" in name else "utf-8")
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    "name",
    ["a.CSV", "a.tsv", "a.csv.gz", "a.txt", "a.pq", "a.xlsx", "bom.csv", "a.dat", "a"],
)
def test_what_trains_is_predicted_for(
    name: str, run: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The formats are those of ``data.path``."""
    if name.endswith(".xlsx"):
        pytest.importorskip("openpyxl")
    printed = []
    for path in (write_rows("plain/a.csv"), write_rows(name), rows.parent / name):
        assert main([str(run), str(path), "--client", "0"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] == printed[2]
    assert printed[0].count("\n") == 4


@pytest.mark.parametrize(("sign", "name"), [(";", "semicolons"), ("\t", "tabs")])
@pytest.mark.usefixtures("rows")
def test_what_does_not_train_is_refused_alike(
    sign: str, name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reader's line."""
    Path("a.tsv").write_text(TABLE.replace(",", sign))
    assert main([str(run), "a.tsv"]) == 1
    line = f"ROWS must be a table, got a.tsv: its columns must be separated by commas, got {name}"
    assert line in capsys.readouterr().err


@pytest.mark.usefixtures("rows")
def test_a_folder_or_a_pattern_means_its_tables(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of their names, which a note says; other files are named."""
    for name in ("new/b.csv", "new/a.tsv", "new/readme.md"):
        write_rows(name)
    outputs = []
    for words in ("new", "new/*.*sv"):
        assert main([str(run), words]) == 0
        out, err = capsys.readouterr()
        outputs.append(out)
        assert "the rows are those of 2 files, in the order of their names: a.tsv first" in err
        assert ("files passed over: readme.md" in err) == (words == "new")
    assert outputs[0] == outputs[1]
    assert [line.split(",")[0] for line in outputs[0].splitlines()[1:]] == list("123456")
