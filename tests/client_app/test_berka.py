"""Berka, on tiny tables in the official format."""

from pathlib import Path

import numpy as np
import pytest
from fedquorum.errors import DataError

from client_app.data import load_data
from client_app.data.sources import berka
from client_app.data.sources.berka import berka_table
from client_app.data.sources.csv_table import Table, csv_table
from conf.schema.data import BerkaSettings, CsvSettings

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
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the five tables as the official archive has them."""
    folder = tmp_path / "berka"
    folder.mkdir()
    for name, lines in TABLES.items():
        (folder / f"{name}.asc").write_text("\r\n".join(lines) + "\r\n")
    monkeypatch.setattr(berka, "ROWS", {name: len(lines) - 1 for name, lines in TABLES.items()})
    return tmp_path


def load(root: Path, *drop: str) -> Table:
    return berka_table(BerkaSettings(root=str(root), drop_regions=list(drop)))


def assert_refused(root: Path, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        load(root)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("data.root must be a folder with loan.asc, account.asc, district.asc")
    assert "data_berka.zip" in text


def change(root: Path, name: str, old: str, new: str) -> None:
    path = root / "berka" / f"{name}.asc"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def loan(table: Table, k: int) -> dict[str, float]:
    """Return the row of a loan, by its amount."""
    row = int(np.flatnonzero(table.numbers[:, 0] == 1000 * (k + 1))[0])
    cells = [*table.numbers[row].tolist(), *table.categories[row].tolist()]
    return dict(zip(table.columns, cells, strict=True))


def test_loans_and_regions(root: Path) -> None:
    """One row a loan in the file's order, with region and whether it was not paid."""
    table = load(root)
    assert table.client_names == ("Prague", "north Bohemia", "south Bohemia")
    order = (3, 0, 1, 2, 4, 5, 6, 7, 8)
    assert [table.client_names[c] for c in table.clients] == [REGIONS[k % 3] for k in order]
    assert table.labels.tolist() == [int(STATUS[k] in "BD") for k in order]
    np.testing.assert_array_equal(table.numbers[:, 0], [1000 * (k + 1) for k in order])


def test_nothing_after_the_loan_counts(root: Path) -> None:
    """Transactions up to the day of the loan are counted, those of the day after are not."""
    zero = loan(load(root), 0)
    assert (zero["num_trans"], zero["average_trans_amount"]) == (2, 200)
    assert zero["average_trans_balance"] == 250
    change(root, "trans", "940106", "990106")
    assert loan(load(root), 0) == zero
    change(root, "trans", "990106", "940105")
    assert loan(load(root), 0)["num_trans"] == 3


def test_columns_of_a_loan(root: Path) -> None:
    """Account, district and orders are those of the loan's account."""
    row = loan(load(root), 0)
    assert row["duration"] == 12
    assert row["payments"] == 100.5
    assert row["account_days_at_loan"] == 369
    assert row["average_order_amount"] == 150
    assert row["num_inhabitants"] == 1204949
    assert row["average_salary"] == 12541
    assert row["entrepreneur_rate"] == 167
    assert row["average_unemployment_rate"] == pytest.approx(0.36)
    assert row["average_crime_rate"] == 92392
    assert (row["frequency=POPLATEK MESICNE"], row["frequency=POPLATEK TYDNE"]) == (1, 0)
    assert loan(load(root), 4)["frequency=POPLATEK TYDNE"] == 1


def test_what_is_missing(root: Path) -> None:
    """Without orders or transactions a mean is missing; of two years one may be."""
    row = loan(load(root), 2)
    assert row["num_trans"] == 0
    assert np.isnan([row["average_trans_amount"], row["average_order_amount"]]).all()
    assert (row["average_unemployment_rate"], row["average_crime_rate"]) == (7.01, 1358)


def test_same_columns_as_the_prepared_table(root: Path, berka_file: Path) -> None:
    """The official tables give the columns of the prepared table, in its order."""
    prepared = csv_table(
        CsvSettings(path=str(berka_file), client_column="region", target="default")
    )
    table = load(root)
    names = [name for name in prepared.columns if not name.startswith("frequency=")]
    assert [name for name in table.columns if not name.startswith("frequency=")] == names
    # Prague's district is the same in both: its six numbers are of the same columns.
    row = dict(zip(prepared.columns, prepared.numbers[0].tolist(), strict=False))
    assert prepared.client_names[prepared.clients[0]] == "Prague"
    for name in ("average_unemployment_rate", "average_crime_rate", "average_salary"):
        assert loan(table, 0)[name] == pytest.approx(row[name])


def test_dropped_regions(root: Path) -> None:
    """North Bohemia is left out unless the settings say otherwise; a typo is refused."""
    settings = BerkaSettings(root=str(root))
    data = load_data(settings, 1)
    assert (data.num_clients, data.input_shape, data.num_classes) == (2, (15,), 2)
    assert load(root, "Prague").client_names == ("north Bohemia", "south Bohemia")
    message = r"^data\.drop_regions must be of Prague, north .*, got 'Moravia'$"
    with pytest.raises(DataError, match=message):
        load(root, "Moravia")


@pytest.mark.parametrize("name", TABLES)
def test_csv_is_as_good_as_asc(root: Path, name: str) -> None:
    """Some copies of the tables end in .csv."""
    path = root / "berka" / f"{name}.asc"
    path.rename(path.with_suffix(".csv"))
    assert len(load(root).labels) == 9


@pytest.mark.parametrize("name", TABLES)
def test_missing_table(root: Path, name: str) -> None:
    """A table that is not there is named."""
    (root / "berka" / f"{name}.asc").unlink()
    assert_refused(root, f"there is no {name}.asc in ")


@pytest.mark.parametrize("name", TABLES)
def test_truncated_table(root: Path, name: str) -> None:
    """A table that lacks its last line is refused by its number of rows."""
    path = root / "berka" / f"{name}.asc"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    rows = len(TABLES[name]) - 1
    assert_refused(root, f"{name}.asc must have {rows} rows, got {rows - 1}$")


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("loan", '"status"', '"state"', "status"),
        ("loan", '"A"', '"E"', "the status of a loan must be A, B, C or D, got E$"),
        ("account", "4;2;", "44;2;", "account 4 is missing in its table$"),
        ("district", '2;"Ben', '7;"Ben', "district 2 is missing in its table$"),
        ("loan", "940105", "949905", "month must be in 1..12"),
        ("trans", ";", ",", "account_id"),
    ],
)
def test_foreign_table(root: Path, name: str, old: str, new: str, reason: str) -> None:
    """A column that is missing, and values that cannot be, are one line."""
    change(root, name, old, new)
    assert_refused(root, reason)
