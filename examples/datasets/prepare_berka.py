"""Write Berka's loans into one table, which experiment=aaggff/berka reads.

It has one row for each loan; the target is whether the loan was not paid, status B or D. Only
transactions of the account up to the day of the loan count, because a bank knows no others when it
decides. The published preprocessing of AAggFF uses all transactions. As there, north Bohemia with
its one default is left out.
"""

import argparse
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from preparation import build_parser, prepare
from pyarrow import csv

NEEDED = {
    "loan": ("account_id", "date", "amount", "duration", "payments", "status"),
    "account": ("account_id", "district_id", "frequency", "date"),
    "district": ("A1", "A3", "A4", "A11", "A12", "A13", "A14", "A15", "A16"),
    "order": ("account_id", "amount"),
    "trans": ("account_id", "date", "amount", "balance"),
}
ROWS = {"loan": 682, "account": 4_500, "district": 77, "order": 6_471, "trans": 1_056_320}
DEFAULT = {"A": 0, "B": 1, "C": 0, "D": 1}
LEFT_OUT = "north Bohemia"
WANTED = (
    f"{', '.join(f'{name}.asc' for name in NEEDED)} (unpack data_berka.zip from "
    "https://sorry.vse.cz/~berka/challenge/pkdd1999/; .csv is as good as .asc)"
)


def write(options: argparse.Namespace, path: Path) -> str:
    """Write the loans in the order of their table, and return a description."""
    loans = make_loans({name: read_table(options.folder, name) for name in NEEDED})
    selected = loans[loans["region"] != LEFT_OUT]
    selected.to_csv(path, index=False)
    return f"{len(selected)} loans of {selected['region'].nunique()} regions"


def read_table(folder: Path, name: str) -> Any:
    """Return an official table; raise ValueError if it is incomplete."""
    paths = [path for end in ("asc", "csv") if (path := folder / f"{name}.{end}").is_file()]
    if not paths:
        raise ValueError(f"there is no {name}.asc")
    table = csv.read_csv(
        paths[0],
        parse_options=csv.ParseOptions(delimiter=";"),
        convert_options=csv.ConvertOptions(
            include_columns=list(NEEDED[name]), null_values=["?", ""], strings_can_be_null=True
        ),
    )
    if table.num_rows != ROWS[name]:
        raise ValueError(f"{paths[0]} must have {ROWS[name]} rows, got {table.num_rows}")
    return table.to_pandas()


def make_loans(tables: dict[str, Any]) -> Any:
    """Return the output columns of every loan."""
    loan = tables["loan"]
    unknown = sorted({str(status) for status in loan["status"]} - set(DEFAULT))
    if unknown:
        raise ValueError(f"the status of a loan must be A, B, C or D, got {unknown[0]}")
    account = find_rows(tables["account"], "account_id", loan["account_id"])
    district = find_rows(tables["district"], "A1", account["district_id"])
    orders, order_sum = sum_by_loan(tables["order"], loan, "amount")
    trans = tables["trans"]
    granted = loan.set_index("account_id")["date"].reindex(trans["account_id"])
    before = trans[trans["date"] <= granted.to_numpy()]
    count, amount, balance = sum_by_loan(before, loan, "amount", "balance")
    columns = {
        "region": district["A3"],
        "default": loan["status"].map(DEFAULT),
        "loan_amount": loan["amount"],
        "duration": loan["duration"],
        "payments": loan["payments"],
        "account_days_at_loan": [
            (parse_day(end) - parse_day(start)).days
            for start, end in zip(account["date"], loan["date"], strict=True)
        ],
        "num_inhabitants": district["A4"],
        "average_salary": district["A11"],
        "entrepreneur_rate": district["A14"],
        # The mean of 1995 and 1996, or one of them if the other is missing.
        "average_unemployment_rate": district[["A12", "A13"]].mean(axis=1),
        "average_crime_rate": district[["A15", "A16"]].mean(axis=1),
        "average_order_amount": order_sum / orders,
        "num_trans": count,
        "average_trans_amount": amount / count,
        "average_trans_balance": balance / count,
        "frequency": account["frequency"],
    }
    return pd.DataFrame(columns)


def find_rows(table: Any, key: str, wanted: Any) -> Any:
    """Return the row of each wanted key; raise ValueError for a missing key."""
    indices = pd.Index(table[key]).get_indexer(wanted)
    if (indices < 0).any():
        raise ValueError(f"there is no {key} {wanted[indices < 0].iloc[0]}")
    return table.iloc[indices].reset_index(drop=True)


def sum_by_loan(table: Any, loan: Any, *columns: str) -> list[Any]:
    """Return the number of each loan's account rows, and the sums of columns."""
    indices = pd.Index(loan["account_id"]).get_indexer(table["account_id"])
    rows = table[indices >= 0]
    weights = [None, *(rows[column] for column in columns)]
    return [
        pd.Series(np.bincount(indices[indices >= 0], weights=weight, minlength=len(loan)))
        for weight in weights
    ]


def parse_day(yymmdd: int) -> date:
    """Return the date of a number YYMMDD of the twentieth century."""
    return date(1900 + yymmdd // 10_000, yymmdd // 100 % 100, yymmdd % 100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write the file."""
    parser = build_parser(__doc__, "the folder with the official tables", "berka_loans.csv")
    prepare(parser.parse_args(arguments), WANTED, write)


if __name__ == "__main__":
    main()
