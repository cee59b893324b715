"""Write UCI's heart disease into one table, which experiment=aaggff/heart reads.

It has 920 patients of four hospitals, with 13 numbers each. The target is whether num, the grade
of the disease, is above 0.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from preparation import build_parser, prepare
from pyarrow import csv

COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
PATIENTS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
GRADES = range(5)
WANTED = (
    f"{', '.join(f'processed.{name}.data' for name in PATIENTS)} (from heart+disease.zip of "
    "https://archive.ics.uci.edu/dataset/45/heart+disease)"
)


def write(options: argparse.Namespace, path: Path) -> str:
    """Write one row for each patient, hospital by hospital, and return a description."""
    table = pa.concat_tables([read_hospital(options.folder, name) for name in PATIENTS])
    table.to_pandas().to_csv(path, index=False)
    return f"{table.num_rows} patients of {len(PATIENTS)} hospitals"


def read_hospital(folder: Path, name: str) -> Any:
    """Return the patients of a hospital; raise ValueError if some are missing."""
    path = folder / f"processed.{name}.data"
    table = csv.read_csv(
        path,
        read_options=csv.ReadOptions(column_names=list(COLUMNS)),
        convert_options=csv.ConvertOptions(
            null_values=["?"], column_types=dict.fromkeys(COLUMNS, pa.float64())
        ),
    )
    if table.num_rows != PATIENTS[name]:
        raise ValueError(f"{path} must have {PATIENTS[name]} patients, got {table.num_rows}")
    grades = table["num"].to_pylist()
    for grade in grades:
        if grade not in GRADES:
            raise ValueError(f"num must be a grade from 0 to {GRADES[-1]} in {path}, got {grade}")
    columns = {"hospital": pa.array([name] * len(grades))}
    columns |= {column: table[column] for column in COLUMNS[:-1]}
    columns |= {"num": pa.array(map(int, grades)), "target": pa.array(int(g > 0) for g in grades)}
    return pa.table(columns)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write the file."""
    parser = build_parser(__doc__, "the folder with UCI's processed files", "heart_uci.csv")
    prepare(parser.parse_args(arguments), WANTED, write)


if __name__ == "__main__":
    main()
