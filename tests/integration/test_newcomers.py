"""The ways of newcomers: from a table as a hospital has it to a page and a prediction."""

import csv
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedquorum_app import load
from tests.integration.conftest import ROOT, Shell

PAGE = (ROOT / "docs" / "predict.md").read_text()
BLOCKS = dict(re.findall(r"<!-- (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))


def write_hospital_table(path: Path) -> None:
    """Write a table with a byte order mark, CRLF, quotes, gaps, dates and an identifier."""
    rng = np.random.default_rng(1)
    lines = ["patient_id,seen,hospital,age,smoker,dose,ill"]
    for i in range(180):
        hospital = ("North", "South", "West")[i % 3]
        age, dose = int(rng.integers(20, 90)), float(rng.uniform(0.5, 9.5))
        smoker = ("yes", "no")[int(rng.integers(2))]
        risk = (age - 55) / 15 + (dose - 5) / 3 + (smoker == "yes") * 2 - 1
        cells = (
            f"P{i:05d}",
            f"2026-{i % 12 + 1:02d}-{i % 28 + 1:02d}",
            hospital,
            "" if i % 11 == 4 else str(age),
            "" if i % 17 == 5 else f'"{smoker}"',
            "NA" if i % 13 == 6 else f"{dose:.2f}",
            "yes" if risk > 0 else "no",
        )
        lines.append(",".join(cells))
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")


@pytest.mark.slow
def test_from_a_hospitals_table_to_a_page_and_a_prediction(shell: Shell) -> None:
    """The run, its page, and then the folder alone at a colleague's: one patient, and a file."""
    write_hospital_table(shell.cwd / "patients.csv")
    words = "experiment=custom data=csv data.path=patients.csv data.client_column=hospital"
    words += " data.target=ill strategy=fedavg model=mlp client.lr=0.1 rounds=8"
    done = shell("fedquorum", *words.split(), "hydra.run.dir=run")
    assert done.status == 0, done.stderr
    assert "Columns left out: patient_id" in done.stdout
    done = shell("fedquorum", "report", "run")
    assert done.status == 0, done.stderr
    colleague = shell.cwd / "colleague"
    shutil.copytree(shell.cwd / "run", colleague / "run")
    shutil.rmtree(shell.cwd / "run")
    patients = (shell.cwd / "patients.csv").rename(colleague / "new.csv")

    old = {"dose": "9.1", "smoker": "yes", "age": 85, "name": "X"}
    young = {"dose": 0.7, "smoker": "no", "age": 24}
    found = load(colleague / "run").predict([old, young], client="North")
    assert found["prediction"].tolist() == ["yes", "no"]
    assert found.loc[0, "probability_yes"] > 0.9

    done = shell("fedquorum", "predict", "colleague/run", str(patients), "--output", "out.csv")
    assert done.status == 0, done.stderr
    with (shell.cwd / "out.csv").open() as file:
        predicted = [row["prediction"] for row in csv.DictReader(file)]
    with patients.open(encoding="utf-8-sig") as file:
        right = [row["ill"] for row in csv.DictReader(file)]
    assert np.mean([a == b for a, b in zip(predicted, right, strict=True)]) > 0.85


@pytest.mark.slow
def test_the_page_about_predictions(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands and its lines of Python run as they stand there."""
    shutil.copytree(ROOT / "examples", shell.cwd / "examples", ignore=lambda *_: ["quickstart"])
    for line in BLOCKS["commands"].replace("\\\n", " ").splitlines():
        done = shell(*shlex.split(line))
        assert done.status == 0, done.stderr
    assert len((shell.cwd / "predictions.csv").read_text().splitlines()) == 301
    monkeypatch.chdir(shell.cwd)
    exec(BLOCKS["python"], {})  # noqa: S102 - our own page
    assert "probability_yes" in capsys.readouterr().out
