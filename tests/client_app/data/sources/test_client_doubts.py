"""What is odd about the clients of a table: persons in several rows, gaps, one class."""

from pathlib import Path
from typing import Any

import pytest

from client_app.data.sources.csv_table import read_csv_table
from conf.schema.data import CsvSettings


def load_warnings(path: Path, header: str, rows: list[str], **settings: Any) -> list[str]:
    path.write_text("\n".join([header, *rows]) + "\n")
    defaults: dict[str, Any] = {"path": str(path), "client_column": "site", "target": "ill"}
    table = read_csv_table(CsvSettings(**{**defaults, **settings}))
    return [*table.warnings]


def make_rows(values: list[str]) -> list[str]:
    return [
        f"{'ab'[i % 2]},{value},{i}.5,{'no' if i % 3 else 'yes'}" for i, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    "name", ["patient", "PatientID", "subject_nr", "id", "Nr", "case no", "MRN"]
)
def test_values_that_return_may_be_persons(tmp_path: Path, name: str) -> None:
    """The doubt names both settings, and ends with one of them."""
    numbers = [str(i // 4) for i in range(40)]
    header = f"site,{name},age,ill"
    (doubt,) = load_warnings(tmp_path / "a.csv", header, make_rows(numbers))
    assert doubt.startswith(f"{name} has values that return and may name persons")
    assert f"data.group_column={name} keeps" in doubt
    assert f"data.drop_columns=[{name}] leaves" in doubt
    for settings in ({"group_column": name}, {"drop_columns": [name]}):
        doubts = load_warnings(tmp_path / "a.csv", header, make_rows(numbers), **settings)
        assert not [doubt for doubt in doubts if "may name persons" in doubt]


def test_codes_of_persons(tmp_path: Path) -> None:
    """Text counts in a column of persons, whether or not it is an input."""
    for each in (4, 2):
        codes = [f"P{i // each:03}" for i in range(40)]
        doubts = load_warnings(tmp_path / "a.csv", "site,patient,age,ill", make_rows(codes))
        assert sum("data.group_column=patient" in doubt for doubt in doubts) == 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("smoker_no", ["0", "1"] * 20),
        ("dose", ["1", "2", "3", "4"] * 10),
        ("patients_per_day", ["1", "2", "3", "4"] * 10),
        ("id", [str(i) for i in range(40)]),
        ("id", [f"{i % 7}.5" for i in range(40)]),
        ("site_id", [str(3 + i % 2) for i in range(40)]),
        ("key", ["x", "y", "z", "w"] * 10),
    ],
)
def test_columns_that_are_not_doubted(tmp_path: Path, name: str, values: list[str]) -> None:
    """Flags, amounts, row numbers, fractions, codes of clients and words."""
    doubts = load_warnings(tmp_path / "a.csv", f"site,{name},age,ill", make_rows(values))
    assert not [doubt for doubt in doubts if "persons" in doubt]


def test_what_single_clients_lack(tmp_path: Path) -> None:
    """A column without cells, and all classes but one."""
    rows = ["a,1,x,no", "a,2,y,yes", "b,,x,no", "b,,y,no", "c,3,,no", "c,4,,yes", "c,,,yes"]
    assert load_warnings(tmp_path / "a.csv", "site,dose,job,ill", rows) == [
        "dose has no cells at b",
        "job has no cells at c",
        "rows of one class only: b (no)",
    ]
    many = [f"s{i:02},1,{'no' if i % 9 else 'yes'}" for i in range(9) for _ in range(2)]
    (doubt,) = load_warnings(tmp_path / "a.csv", "site,dose,ill", many)
    assert doubt.endswith("s00 (yes), s01 (no), s02 (no), s03 (no), s04 (no) and 4 more")
    assert not load_warnings(tmp_path / "a.csv", "site,x,dose,ill", ["a,,1,no", "b,,2,no"] * 2,
                             target="dose", regression=True, drop_columns=["ill"])  # fmt: skip


def test_doubts_name_no_client_without_names(tmp_path: Path) -> None:
    """With data.names=false each doubt has ids, of the clients that remain."""
    sites = ["Xqzab", "XQZAB", "NA", "Wvutb", "wvutb"]
    rows = [
        f"{site},{'' if site == 'NA' else i + 0.5},{'no' if site == 'XQZAB' or i % 2 else 'yes'}"
        for site in sites
        for i in range(2 if site == "wvutb" else 6)
    ]
    given = {"names": False, "min_samples": 3, "missing": ["-999"]}
    doubts = load_warnings(tmp_path / "a.csv", "site,dose,ill", rows, **given)
    first = "client 1 and a client left out, client 2 and client 3"
    text = "\n".join(doubts)
    assert f"site has clients whose names may be the same: {first};" in text
    assert "site has words that may mean missing, which are taken as clients: client 0;" in text
    assert "dose has no cells at client 0" in doubts
    assert "rows of one class only: client 2 (no)" in doubts
    assert not [site for site in sites for doubt in doubts if site in doubt]
    named = load_warnings(tmp_path / "a.csv", "site,dose,ill", rows, min_samples=3)
    assert sum(any(site in doubt for site in sites) for doubt in named) == 4


@pytest.mark.parametrize("names", [True, False])
def test_files_and_folders_of_clients_may_be_similar(tmp_path: Path, names: bool) -> None:
    """Such a doubt names no client with data.names=false."""
    for name in ("Xqzab", "xqzab", "Wvu_train", "Wvu_test"):
        lines = [f"{i}.5,{'no' if i % 2 else 'yes'}" for i in range(6)]
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.csv").write_text("\n".join(["age,ill", *lines]))
    settings = CsvSettings(path=str(tmp_path), client_column="", target="ill", names=names)
    table = read_csv_table(settings)
    split, similar = table.warnings
    first = "'Xqzab' and 'xqzab'" if names else "client 2 and client 3"
    assert f"may be the same: {first}; files of one client belong in one folder" in similar
    assert ("Wvu" in split) == names


def test_a_client_with_one_number_to_predict(tmp_path: Path) -> None:
    """Its R2 is not defined; where all clients have one, it is no doubt."""
    rows = [f"{'ab'[i % 2]},{i}.5,{7 if i % 2 else i}" for i in range(12)]
    path = tmp_path / "a.csv"
    assert load_warnings(path, "site,dose,ill", rows, regression=True) == [
        "the same number to predict in all rows: b"
    ]
    rows = [f"{'ab'[i % 2]},{i}.5,{i % 2}" for i in range(12)]
    assert load_warnings(path, "site,dose,ill", rows, regression=True) == []


def test_groups_at_several_clients(tmp_path: Path) -> None:
    """Each client divides its own rows, so a person at two of them may be on both sides."""
    path, given = tmp_path / "a.csv", {"group_column": "patient"}
    rows = make_rows([str(i // 4) for i in range(40)])
    (doubt,) = load_warnings(path, "site,patient,age,ill", rows, **given)
    assert doubt.startswith("10 values of patient are at several clients: if they are the same")
    rows = make_rows([f"{i % 2}-{i // 4}" for i in range(40)])
    assert load_warnings(path, "site,patient,age,ill", rows, **given) == []
