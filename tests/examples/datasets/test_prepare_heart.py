"""UCI heart disease, on tiny files in the official format."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from client_app.data import load_data
from client_app.data.sources.csv_table import read_csv_table
from conf.compose import compose_settings
from conf.schema.data import CsvSettings
from tests.examples.datasets.scripts import Script, load_script

LINES = {
    "cleveland": ["63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0"] * 2
    + ["67.0,1.0,4.0,160.0,286.0,0.0,2.0,108.0,1.0,1.5,2.0,3.0,3.0,2"] * 2,
    "hungarian": ["28,1,2,130,132,0,2,185,0,0,?,?,?,0", "29,1,2,120,243,0,0,160,0,0,?,?,?,1"] * 2,
    "switzerland": ["32,1,1,95,0,?,0,127,0,.7,1,?,?,1", "34,1,4,115,0,?,?,154,0,.2,1,?,?,0"] * 2,
    "va": ["63,1,4,140,260,0,1,112,1,3,2,?,?,2", "44,1,4,130,209,0,1,127,0,0,?,?,?,0"] * 2,
}
WANTED = "processed.cleveland.data, processed.hungarian.data, "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write four patients of each hospital."""
    for name, lines in LINES.items():
        (tmp_path / f"processed.{name}.data").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return the script, for four patients of each hospital."""
    constants = {"PATIENTS": dict.fromkeys(LINES, 4)}
    return load_script("prepare_heart", WANTED, monkeypatch, constants)


def settings(path: Path) -> CsvSettings:
    return CsvSettings(
        path=str(path),
        client_column="hospital",
        target="target",
        drop_columns=["num"],
        zero_as_missing=["chol"],
    )


def run_script(folder: Path, script: Script) -> Path:
    return script.run(folder).rename(folder / "heart_uci.csv")


def test_hospitals_and_patients(folder: Path, script: Script) -> None:
    """Clients by hospital, 13 numbers, the grade only as the target."""
    table = read_csv_table(settings(run_script(folder, script)))
    assert table.client_names == ("cleveland", "hungarian", "switzerland", "va")
    assert table.columns == (
        *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang"),
        *("oldpeak", "slope", "ca", "thal"),
    )
    assert table.clients.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert table.labels.tolist() == [0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0]
    numbers = [63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6]
    np.testing.assert_array_equal(table.numbers[0], numbers)
    missing = [
        name for name, one in zip(table.columns, table.numbers[8], strict=True) if np.isnan(one)
    ]
    assert missing == ["chol", "fbs", "ca", "thal"]


def test_the_experiment_reads_it(folder: Path, script: Script) -> None:
    """Every hospital is a client with a test part."""
    overrides = f"data.path={run_script(folder, script)} data.expected_rows=16"
    data = load_data(compose_settings("aaggff/heart", overrides).settings.data, 1)
    assert (data.num_clients, data.input_shape, data.num_classes) == (4, (16,), 2)
    assert [len(data.get_client(k).y_test) for k in range(4)] == [1] * 4
    assert np.isfinite(data.get_client(2).x_train).all()


def test_the_whole_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_file: Callable[[str], Path]
) -> None:
    """Of the official files, the script writes the table of all hospitals to the byte."""
    lines = real_file("heart_uci.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines[1:]]
    for name in LINES:
        rows = [[cell or "?" for cell in row[1:-1]] for row in cells if row[0] == name]
        (tmp_path / f"processed.{name}.data").write_text("\n".join(map(",".join, rows)))
    path = load_script("prepare_heart", WANTED, monkeypatch, {}).run(tmp_path)
    assert path.read_text().splitlines() == lines


@pytest.mark.parametrize("name", LINES)
def test_missing_file(folder: Path, script: Script, name: str) -> None:
    """A hospital's file that is not there is named, with where to get it."""
    (folder / f"processed.{name}.data").unlink()
    script.assert_refused(folder, f"archive.ics.uci.edu.*got .*processed.{name}.data")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Empty CSV file"),
        ("\n".join(LINES["va"][:3]), "must have 4 patients, got 3$"),
        (LINES["va"][0] * 2, "Expected 14 columns, got 27"),
        ("\n".join([*LINES["va"][:3], LINES["va"][3][:-8]]), "Expected 14 columns, got 10"),
        ("<html>no</html>\n" * 4, "Expected 14 columns, got 1"),
        ("\n".join(LINES["va"]).replace("63", "old"), "conversion error to double"),
        ("\n".join(LINES["va"]).replace(",2\n", ",7\n"), "num must be a grade from 0 to 4 .*got 7"),
        ("\n".join(LINES["va"]).replace(",2\n", ",?\n"), "num must be a grade .* got None$"),
    ],
)
def test_damaged_file(folder: Path, script: Script, text: str, reason: str) -> None:
    """A file that is cut short, foreign or has impossible values is one line."""
    (folder / "processed.va.data").write_text(text)
    script.assert_refused(folder, reason)
