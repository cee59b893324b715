"""UCI heart disease, on tiny files in the official format."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fedquorum.errors import DataError

from client_app.data import load_data
from client_app.data.sources import heart
from client_app.data.sources.csv_table import csv_table
from client_app.data.sources.heart import heart_table
from conf.schema.data import CsvSettings, HeartSettings

LINES = {
    "cleveland": ["63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0"] * 2
    + ["67.0,1.0,4.0,160.0,286.0,0.0,2.0,108.0,1.0,1.5,2.0,3.0,3.0,2"] * 2,
    "hungarian": ["28,1,2,130,132,0,2,185,0,0,?,?,?,0", "29,1,2,120,243,0,0,160,0,0,?,?,?,1"] * 2,
    "switzerland": ["32,1,1,95,0,?,0,127,0,.7,1,?,?,1", "34,1,4,115,0,?,?,154,0,.2,1,?,?,0"] * 2,
    "va": ["63,1,4,140,260,0,1,112,1,3,2,?,?,2", "44,1,4,130,209,0,1,127,0,0,?,?,?,0"] * 2,
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write four patients of each hospital."""
    folder = tmp_path / "heart_disease"
    folder.mkdir()
    for name, lines in LINES.items():
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(heart, "PATIENTS", dict.fromkeys(LINES, 4))
    return tmp_path


def assert_refused(root: Path, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        heart_table(HeartSettings(root=str(root)))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("data.root must be a folder with processed.cleveland.data, processed.h")
    assert "https://archive.ics.uci.edu/dataset/45" in text


def test_hospitals_and_patients(root: Path) -> None:
    """Clients by hospital, 13 numbers, the grade only as the target; 0 cholesterol is missing."""
    table = heart_table(HeartSettings(root=str(root)))
    assert table.client_names == ("cleveland", "hungarian", "switzerland", "va")
    assert table.columns == heart.COLUMNS[:-1]
    assert table.clients.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert table.labels.tolist() == [0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0]
    np.testing.assert_allclose(
        table.numbers[0], [63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6], rtol=1e-12
    )
    assert np.isnan(table.numbers[8]).tolist() == [False] * 4 + [True, True] + [False] * 5 + [
        True,
        True,
    ]


def test_same_as_a_table_with_a_header(root: Path, real_file: Callable[[str], Path]) -> None:
    """The prepared table of all hospitals has the same columns and meaning of them."""
    lines = real_file("heart_uci.csv").read_text().splitlines()
    header = lines[0].split(",")
    assert header == ["hospital", *heart.COLUMNS, "target"]
    rows = [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
    for name, count in (("cleveland", 303), ("hungarian", 294), ("switzerland", 123), ("va", 200)):
        patients = [row for row in rows if row["hospital"].startswith(name)]
        assert len(patients) == count
        assert all((float(row["num"]) > 0) == (row["target"] == "1") for row in patients)
    folder = root / "heart_disease"
    for name in LINES:
        patients = [row for row in rows if row["hospital"].startswith(name)]
        cells = ([row[c] or "?" for c in heart.COLUMNS] for row in patients)
        (folder / f"processed.{name}.data").write_text("\n".join(map(",".join, cells)))
        heart.PATIENTS[name] = len(patients)
    prepared = csv_table(
        CsvSettings(
            path=str(real_file("heart_uci.csv")),
            client_column="hospital",
            target="target",
            drop=["num"],
            zero_is_missing=["chol"],
        )
    )
    table = heart_table(HeartSettings(root=str(root)))
    assert table.columns == prepared.columns
    np.testing.assert_array_equal(table.numbers, prepared.numbers)
    np.testing.assert_array_equal(table.labels, prepared.labels)


def test_the_settings_lead_to_it(root: Path) -> None:
    """Every hospital is a client with a test part."""
    data = load_data(HeartSettings(root=str(root)), 1)
    assert (data.num_clients, data.input_shape, data.num_classes) == (4, (13,), 2)
    assert [len(data.client(k).y_test) for k in range(4)] == [1] * 4
    assert np.isfinite(data.client(2).x_train).all()


@pytest.mark.parametrize("name", LINES)
def test_missing_file(root: Path, name: str) -> None:
    """A hospital's file that is not there is named."""
    (root / "heart_disease" / f"processed.{name}.data").unlink()
    assert_refused(root, f"processed.{name}.data")


def test_missing_folder(tmp_path: Path) -> None:
    """Without the files one line says what to fetch and where to put it."""
    assert_refused(tmp_path, "heart_disease")


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
def test_damaged_file(root: Path, text: str, reason: str) -> None:
    """A file that is cut short, foreign or has impossible values is one line."""
    (root / "heart_disease" / "processed.va.data").write_text(text)
    assert_refused(root, reason)
