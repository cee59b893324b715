"""Berka, on tiny tables in the official format."""

import csv
from pathlib import Path
from typing import Any

import pytest

from client_app.data import load_data
from conf.compose import compose_settings
from tests.examples.datasets.scripts import Script, load_script

# Account k of district k % 3 + 1 has loan 100 + k; account 9 has none.
REGIONS = ("Prague", "south Bohemia", "north Bohemia")
STATUS = "ABCDABCDA"
DISTRICT_HEADER = ";".join(f'"A{i}"' for i in range(1, 17))
TRANS_HEADER = (
    '"trans_id";"account_id";"date";"type";"operation";"amount";"balance";"k_symbol";"bank";'
    '"account"'
)
TABLES = {
    "account": [
        '"account_id";"district_id";"frequency";"date"',
        *(
            f'{k};{k % 3 + 1};"POPLATEK {"TYDNE" if k == 4 else "MESICNE"}";930101'
            for k in range(9)
        ),
        '9;1;"POPLATEK MESICNE";930101',
    ],
    "district": [
        DISTRICT_HEADER,
        '1;"Hl.m. Praha";"Prague";1204949;0;0;0;1;1;100.0;12541;0.29;0.43;167;85677;99107',
        '2;"Benesov";"south Bohemia";88884;80;26;6;2;5;46.7;8507;1.67;1.85;132;2159;2674',
        '3;"Jesenik";"north Bohemia";42821;4;13;5;1;3;48.4;8173;?;7.01;124;?;1358',
    ],
    "loan": [
        '"loan_id";"account_id";"date";"amount";"duration";"payments";"status"',
        *(
            f'{100 + k};{k};940105;{1000 * (k + 1)};12;{100.5 + k};"{STATUS[k]}"'
            for k in (3, 0, 1, 2, 4, 5, 6, 7, 8)
        ),
    ],
    "order": [
        '"order_id";"account_id";"bank_to";"account_to";"amount";"k_symbol"',
        '1;0;"YZ";8;100.00;"SIPO"',
        '2;0;"YZ";8;200.00;" "',
        '3;9;"YZ";8;900.00;"UVER"',
    ],
    "trans": [
        TRANS_HEADER,
        '1;0;930105;"PRIJEM";"VKLAD";100;100;;;',
        '2;0;940105;"PRIJEM";"VKLAD";300;400;;;',
        '3;0;940106;"PRIJEM";"VKLAD";9000;9400;;;',
        '4;9;930105;"PRIJEM";"VKLAD";700;700;"UROK";"AB";41403269',
        '5;1;931231;"VYDAJ";;50;-20;"";"";',
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the five tables as the official archive has them."""
    for name, lines in TABLES.items():
        (tmp_path / f"{name}.asc").write_text("\r\n".join(lines) + "\r\n")
    return tmp_path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return the script, for so few rows."""
    constants = {"ROWS": {name: len(lines) - 1 for name, lines in TABLES.items()}}
    wanted = "loan.asc, account.asc, district.asc, order.asc, trans.asc (unpack data_berka.zip"
    return load_script("prepare_berka", wanted, monkeypatch, constants)


def read_rows(folder: Path, script: Script) -> list[dict[str, str]]:
    path = script.run(folder)
    with path.open(newline="") as file:
        read = list(csv.DictReader(file))
    path.unlink()
    return read


def get_loan(folder: Path, script: Script, k: int) -> dict[str, Any]:
    """Return the row of a loan, by its amount; the numbers as such, None where one is missing."""
    overrides = {"region", "frequency"}
    for row in read_rows(folder, script):
        if row["loan_amount"] == str(1000 * (k + 1)):
            return {
                name: cell if name in overrides else float(cell) if cell else None
                for name, cell in row.items()
            }
    raise AssertionError(k)


def change_table(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / f"{name}.asc"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_loans_and_regions(folder: Path, script: Script) -> None:
    """One row a loan in the file's order, without north Bohemia, and whether it was not paid."""
    stored = [k for k in (3, 0, 1, 2, 4, 5, 6, 7, 8) if REGIONS[k % 3] != "north Bohemia"]
    found = read_rows(folder, script)
    assert [row["region"] for row in found] == [REGIONS[k % 3] for k in stored]
    assert [row["default"] for row in found] == [str(int(STATUS[k] in "BD")) for k in stored]
    assert [row["loan_amount"] for row in found] == [str(1000 * (k + 1)) for k in stored]


def test_nothing_after_the_loan_counts(folder: Path, script: Script) -> None:
    """Transactions up to the day of the loan are counted, those of the day after are not."""
    zero = get_loan(folder, script, 0)
    assert (zero["num_trans"], zero["average_trans_amount"]) == (2, 200)
    assert zero["average_trans_balance"] == 250
    change_table(folder, "trans", "940106", "990106")
    assert get_loan(folder, script, 0) == zero
    change_table(folder, "trans", "990106", "940105")
    assert get_loan(folder, script, 0)["num_trans"] == 3


def test_columns_of_a_loan(folder: Path, script: Script) -> None:
    """Account, district and orders are those of the loan's account."""
    row = get_loan(folder, script, 0)
    assert row["average_unemployment_rate"] == pytest.approx(0.36)
    del row["average_unemployment_rate"]
    assert row == {
        "region": "Prague",
        "default": 0,
        "loan_amount": 1000,
        "duration": 12,
        "payments": 100.5,
        "account_days_at_loan": 369,
        "num_inhabitants": 1204949,
        "average_salary": 12541,
        "entrepreneur_rate": 167,
        "average_crime_rate": 92392,
        "average_order_amount": 150,
        "num_trans": 2,
        "average_trans_amount": 200,
        "average_trans_balance": 250,
        "frequency": "POPLATEK MESICNE",
    }
    assert get_loan(folder, script, 4)["frequency"] == "POPLATEK TYDNE"


def test_what_is_missing(folder: Path, script: Script) -> None:
    """Without orders or transactions a mean is missing; of two years one may be."""
    change_table(folder, "district", "north Bohemia", "east Bohemia")
    row = get_loan(folder, script, 2)
    assert row["num_trans"] == 0
    assert (row["average_trans_amount"], row["average_order_amount"]) == (None, None)
    assert (row["average_unemployment_rate"], row["average_crime_rate"]) == (7.01, 1358)


def test_same_columns_as_the_prepared_table(folder: Path, script: Script, berka_file: Path) -> None:
    """The columns are those of the table of the tests, in its order, and Prague's the same."""
    with berka_file.open(newline="") as file:
        first = next(csv.DictReader(file))
    found = read_rows(folder, script)[0]
    assert list(found) == list(first)
    assert first["region"] == found["region"] == "Prague"
    for name in ("average_unemployment_rate", "average_crime_rate", "average_salary"):
        assert float(found[name]) == pytest.approx(float(first[name]))


def test_the_experiment_reads_it(folder: Path, script: Script) -> None:
    """Every region is a client."""
    path = script.run(folder).rename(folder / "berka_loans.csv")
    data = load_data(
        compose_settings("aaggff/berka", f"data.path={path} data.expected_rows=6").settings.data, 1
    )
    assert (data.num_clients, data.input_shape, data.num_classes) == (2, (15,), 2)
    assert [sorted([*one.y_train, *one.y_test]) for one in map(data.get_client, range(2))] == [
        [0, 0, 1],
        [0, 1, 1],
    ]


@pytest.mark.parametrize("name", TABLES)
def test_csv_is_as_good_as_asc(folder: Path, script: Script, name: str) -> None:
    """Some copies of the tables end in .csv."""
    path = folder / f"{name}.asc"
    path.rename(path.with_suffix(".csv"))
    assert len(read_rows(folder, script)) == 6


@pytest.mark.parametrize("name", TABLES)
def test_missing_table(folder: Path, script: Script, name: str) -> None:
    """A table that is not there is named."""
    (folder / f"{name}.asc").unlink()
    script.assert_refused(folder, f"there is no {name}.asc$")


@pytest.mark.parametrize("name", TABLES)
def test_truncated_table(folder: Path, script: Script, name: str) -> None:
    """A table that lacks its last line is refused by its number of rows."""
    path = folder / f"{name}.asc"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    count = len(TABLES[name]) - 1
    script.assert_refused(folder, f"{name}.asc must have {count} rows, got {count - 1}$")


@pytest.mark.parametrize(
    ("name", "change_of", "reason"),
    [
        ("loan", ('"status"', '"state"'), "status"),
        ("loan", ('"A"', '"E"'), "the status of a loan must be A, B, C or D, got E$"),
        ("account", ("4;2;", "44;2;"), "there is no account_id 4$"),
        ("district", ('2;"Ben', '7;"Ben'), "there is no A1 2$"),
        ("loan", ("940105", "949905"), "month must be in 1..12"),
        ("trans", (";", ","), "account_id"),
    ],
)
def test_foreign_table(
    folder: Path, script: Script, name: str, change_of: tuple[str, str], reason: str
) -> None:
    """A column that is missing, and values that cannot be, are one line."""
    change_table(folder, name, *change_of)
    script.assert_refused(folder, reason)
