"""UCI heart disease: patients of four hospitals."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from fedquorum.errors import DataError, one_line
from pyarrow import csv

from client_app.data.sources.csv_table import Table, arrow_table
from conf.schema.data import CsvSettings, HeartSettings

FOLDER = "heart_disease"
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
PATIENTS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
GRADES = 4


def heart_table(settings: HeartSettings) -> Table:
    """Return the 920 patients with 13 numbers each, clients by hospital, in the alphabet's order.

    The target is whether ``num``, the grade of the disease, is above 0. Missing values are ``?``,
    and a cholesterol of 0.

    Raises
    ------
    DataError
        If ``data.root`` does not lead to UCI's processed files.
    """
    root = Path(settings.root).expanduser().resolve()
    folder = root / FOLDER
    try:
        table = pa.concat_tables([_hospital(folder, name) for name in PATIENTS])
    except Exception as error:
        files = ", ".join(f"processed.{name}.data" for name in PATIENTS)
        raise DataError(
            f"data.root must be a folder with {files} in {FOLDER} (there is no download: they are "
            f"in heart+disease.zip of https://archive.ics.uci.edu/dataset/45/heart+disease), got "
            f"{root}: {one_line(error)}"
        ) from None
    columns = CsvSettings(
        client_column="hospital",
        target="target",
        drop=["num"],
        zero_is_missing=["chol"],
        min_samples=settings.min_samples,
    )
    return arrow_table(folder, table, columns)


def _hospital(folder: Path, name: str) -> Any:
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
    wrong = [grade for grade in grades if grade not in range(GRADES + 1)]
    if wrong:
        raise ValueError(f"num must be a grade from 0 to {GRADES} in {path}, got {wrong[0]}")
    return table.append_column("hospital", pa.array([name] * len(grades))).append_column(
        "target", pa.array([int(grade > 0) for grade in grades])
    )
