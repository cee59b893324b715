"""Berka: loans of a Czech bank, from the tables of PKDD'99; regions are clients."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fedquorum.errors import DataError, one_line
from numpy.typing import NDArray
from pyarrow import csv

from client_app.data.sources.csv_table import Table, arrow_table
from conf.schema.data import BerkaSettings, CsvSettings

FOLDER = "berka"
NEEDED = {
    "loan": ("account_id", "date", "amount", "duration", "payments", "status"),
    "account": ("account_id", "district_id", "frequency", "date"),
    "district": ("A1", "A3", "A4", "A11", "A12", "A13", "A14", "A15", "A16"),
    "order": ("account_id", "amount"),
    "trans": ("account_id", "date", "amount", "balance"),
}
ROWS = {"loan": 682, "account": 4_500, "district": 77, "order": 6_471, "trans": 1_056_320}
DEFAULT = {"A": 0, "B": 1, "C": 0, "D": 1}

Numbers = NDArray[np.float64]


def berka_table(settings: BerkaSettings) -> Table:
    """Return one row a loan; the target is whether it was not paid, status B or D.

    Of an account, the transactions up to the day of its loan count, none after it: what a bank
    knows when it decides. Their number, mean amount and mean balance are columns, beside the loan,
    the account's age in days and the frequency of its statements, the mean of its permanent
    orders, and six numbers of its district (unemployment and crime as the mean of 1995 and 1996).
    The published preprocessing of AAggFF takes all transactions.

    ``data.drop_regions`` are left out: north Bohemia, with one default, as AAggFF does.

    Raises
    ------
    DataError
        If ``data.root`` does not lead to the official tables, or a region is not in them.
    """
    root = Path(settings.root).expanduser().resolve()
    folder = root / FOLDER
    try:
        tables = {name: _read(folder, name) for name in NEEDED}
        loans = _loans(tables)
    except Exception as error:
        raise DataError(
            f"data.root must be a folder with {', '.join(f'{name}.asc' for name in NEEDED)} in "
            f"{FOLDER} (there is no download: unpack data_berka.zip from "
            "https://sorry.vse.cz/~berka/challenge/pkdd1999/ into it; .csv is as good as .asc), "
            f"got {root}: {one_line(error)}"
        ) from None
    regions = loans["region"].to_pylist()
    for region in settings.drop_regions:
        if region not in regions:
            raise DataError(
                f"data.drop_regions must be of {', '.join(sorted(set(regions)))}, got {region!r}"
            )
    kept = loans.filter(pa.array([region not in settings.drop_regions for region in regions]))
    return arrow_table(
        folder,
        kept,
        CsvSettings(client_column="region", target="default", min_samples=settings.min_samples),
    )


def _read(folder: Path, name: str) -> Any:
    paths = [path for end in ("asc", "csv") if (path := folder / f"{name}.{end}").is_file()]
    if not paths:
        raise ValueError(f"there is no {name}.asc in {folder}")
    table = csv.read_csv(
        paths[0],
        parse_options=csv.ParseOptions(delimiter=";"),
        convert_options=csv.ConvertOptions(
            include_columns=list(NEEDED[name]), null_values=["?", ""], strings_can_be_null=True
        ),
    )
    if table.num_rows != ROWS[name]:
        raise ValueError(f"{paths[0]} must have {ROWS[name]} rows, got {table.num_rows}")
    return table


def _loans(tables: dict[str, Any]) -> Any:
    loan, account, district = (tables[name] for name in ("loan", "account", "district"))
    ids = _whole(loan["account_id"])
    account_rows = _rows_of(_whole(account["account_id"]), ids, "account")
    districts = _whole(account["district_id"])[account_rows]
    district_rows = _rows_of(_whole(district["A1"]), districts, "district")
    status = loan["status"].to_pylist()
    unknown = sorted({str(one) for one in status} - set(DEFAULT))
    if unknown:
        raise ValueError(f"the status of a loan must be A, B, C or D, got {unknown[0]}")
    granted, opened = _whole(loan["date"]), _whole(account["date"])[account_rows]
    order_count, order_sum = _sums(tables["order"], ids, ("amount",))
    count, amount, balance = _sums(tables["trans"], ids, ("amount", "balance"), until=granted)
    of_district = {name: _floats(district[name])[district_rows] for name in NEEDED["district"][2:]}
    columns = {
        "region": [district["A3"][int(row)].as_py() for row in district_rows],
        "default": [DEFAULT[one] for one in status],
        "loan_amount": _floats(loan["amount"]),
        "duration": _floats(loan["duration"]),
        "payments": _floats(loan["payments"]),
        "account_days_at_loan": [
            float((_day(end) - _day(start)).days)
            for start, end in zip(opened, granted, strict=True)
        ],
        "num_inhabitants": of_district["A4"],
        "average_salary": of_district["A11"],
        "entrepreneur_rate": of_district["A14"],
        "average_unemployment_rate": _mean_known(of_district["A12"], of_district["A13"]),
        "average_crime_rate": _mean_known(of_district["A15"], of_district["A16"]),
        "average_order_amount": _ratio(order_sum, order_count),
        "num_trans": count,
        "average_trans_amount": _ratio(amount, count),
        "average_trans_balance": _ratio(balance, count),
        "frequency": [account["frequency"][int(row)].as_py() for row in account_rows],
    }
    return pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})


def _sums(
    table: Any, ids: NDArray[np.int64], names: Sequence[str], until: NDArray[np.int64] | None = None
) -> list[Numbers]:
    """Return for each account of ``ids`` the number of its rows, and the sums of columns.

    With ``until`` only rows whose date is not after it; dates are numbers yymmdd of one century.
    """
    order = np.argsort(ids)
    accounts = _whole(table["account_id"])
    place = order[np.searchsorted(ids[order], accounts).clip(max=len(ids) - 1)]
    counted = ids[place] == accounts
    if until is not None:
        counted &= _whole(table["date"]) <= until[place]
    place = place[counted]
    sums = [np.bincount(place, minlength=len(ids)).astype(np.float64)]
    for name in names:
        values = _floats(table[name])[counted]
        total: Any = np.bincount(place, weights=values, minlength=len(ids))
        sums.append(total.astype(np.float64))
    return sums


def _rows_of(keys: NDArray[np.int64], wanted: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """Return the row of each key, which all have to be there."""
    order = np.argsort(keys)
    rows = order[np.searchsorted(keys[order], wanted).clip(max=len(keys) - 1)]
    missing = wanted[keys[rows] != wanted]
    if len(missing):
        raise ValueError(f"{name} {missing[0]} is missing in its table")
    return np.asarray(rows, dtype=np.int64)


def _whole(column: Any) -> NDArray[np.int64]:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _floats(column: Any) -> Numbers:
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def _day(yymmdd: int) -> date:
    number = int(yymmdd)
    return date(1900 + number // 10_000, number // 100 % 100, number % 100)


def _mean_known(one: Numbers, other: Numbers) -> Numbers:
    """Return the mean of two columns, the other where one is missing."""
    return np.where(np.isnan(one), other, np.where(np.isnan(other), one, (one + other) / 2))


def _ratio(total: Numbers, count: Numbers) -> Numbers:
    """Return the mean, missing where there is nothing."""
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
