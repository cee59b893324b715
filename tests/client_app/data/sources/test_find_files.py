"""The files of a table: layouts of folders, clients by folder or file, and files passed over."""

import gzip
from pathlib import Path

import pytest

from client_app.data.sources.find_files import find_files, find_test_file, get_stem


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(gzip.compress(b"x\n1\n") if name.endswith(".gz") else b"x\n1\n")
    return root


def list_clients(path: Path) -> dict[str, str]:
    return {file.name: file.client for file in find_files(path).files}


@pytest.mark.parametrize("ending", [".csv", ".CSV", ".csv.gz", ".CSV.GZ", ".txt", ".Txt", ".pq",
                                    ".parquet", ".xlsx", ".tsv"])  # fmt: skip
def test_endings_in_any_case(tmp_path: Path, ending: str) -> None:
    """Each names its client without the ending."""
    write(tmp_path, f"South.v2{ending}", f"North{ending}")
    assert list(list_clients(tmp_path).values()) == ["North", "South.v2"]


@pytest.mark.parametrize(
    ("names", "clients"),
    [
        (["North/data.csv", "South/data.csv"], ["North", "South"]),
        (["North/2024/a.csv", "North/2025/a.csv", "South/b.csv"], ["North", "North", "South"]),
        (["site=North/0.parquet", "site=North/1.parquet", "site=S%C3%BCd/0.parquet"],
         ["North", "North", "S\u00fcd"]),
        (["South.csv", "North.csv.gz"], ["North", "South"]),
    ],
)  # fmt: skip
def test_clients_of_folders_and_files(tmp_path: Path, names: list[str], clients: list[str]) -> None:
    """The first folder is the client, or else the file."""
    assert list(list_clients(write(tmp_path, *names)).values()) == clients


def test_columns_of_folders(tmp_path: Path) -> None:
    """Each folder ``name=value`` is a column, as Spark and pandas write them."""
    write(tmp_path, "site=North/year=2024/a.csv", "site=__HIVE_DEFAULT_PARTITION__/year=2024/a.csv")
    columns = [dict(file.columns) for file in find_files(tmp_path).files]
    assert columns == [{"site": "North", "year": "2024"}, {"site": None, "year": "2024"}]


@pytest.mark.parametrize("pattern", ["*/data.csv", "*", "*/*", "[NS]*/*.csv", "**/data.csv"])
def test_patterns(tmp_path: Path, pattern: str) -> None:
    """The folder below the fixed part of the pattern is the client."""
    write(tmp_path, "North/data.csv", "South/data.csv")
    assert list(list_clients(tmp_path / pattern).values()) == ["North", "South"]


def test_hidden_files_do_not_count(tmp_path: Path) -> None:
    """What a Mac, Windows or Excel leaves in a folder is no file of the table."""
    left = [".DS_Store", "._North.csv", "__MACOSX/._North.csv", "Thumbs.db", "desktop.ini"]
    hidden = [*left, "~$North.csv", ".~lock.North.csv#", ".ipynb_checkpoints/North.csv"]
    found = find_files(write(tmp_path, "North.csv", *hidden))
    assert [file.name for file in found.files] == ["North.csv"]
    assert found.passed_over == ()


def test_other_files_are_passed_over_and_named(tmp_path: Path) -> None:
    """Text beside tables is a note, Excel a code book; folders beside tables are not read."""
    write(tmp_path, "North.csv", "notes.txt", "codes.xlsx", "old/North.csv", "README.md")
    found = find_files(tmp_path)
    assert [file.name for file in found.files] == ["North.csv"]
    assert set(found.passed_over) == {"notes.txt", "codes.xlsx", "old/North.csv", "README.md"}


def test_a_folder_without_tables(tmp_path: Path) -> None:
    """The endings that are read, and what is there, are named."""
    with pytest.raises(ValueError, match=r"ends in \.csv, \.parquet, .* but nothing$"):
        find_files(tmp_path)
    write(tmp_path, *(f"{letter}.sav" for letter in "abcdefg"))
    with pytest.raises(ValueError, match=r"but a\.sav, b\.sav, .* e\.sav and 2 more$"):
        find_files(tmp_path)


@pytest.mark.parametrize(
    "names", [("a.csv", "a.parquet"), ("a.csv", "a.csv.gz"), ("N/a.csv", "N/a.pq")]
)
def test_one_table_in_two_formats(tmp_path: Path, names: tuple[str, str]) -> None:
    """It would be read twice."""
    with pytest.raises(ValueError, match=r"there are several files called a$"):
        find_files(write(tmp_path, *names))


@pytest.mark.parametrize(
    ("names", "pair"),
    [
        (["test", "train"], ("train", "test")),
        (["heart_Train", "heart_test"], ("heart_Train", "heart_test")),
        (["train-00000-of-00001", "validation-00000-of-00001"],
         ("train-00000-of-00001", "validation-00000-of-00001")),
        (["North", "South", "test"], None),
        (["train_a", "test_b"], None),
        (["Trainor", "Testa"], None),
    ],
)  # fmt: skip
def test_files_for_training_and_testing(names: list[str], pair: tuple[str, str] | None) -> None:
    """Names that differ in one word only, train and test."""
    assert find_test_file(names) == pair


def test_stems() -> None:
    """Of a compressed file both endings are left out."""
    assert [get_stem(Path(name)) for name in ("a.b.csv.gz", "a.b.csv", "a.GZ")] == [
        "a.b",
        "a.b",
        "a",
    ]
