"""The ways of newcomers: messy tables, a price to predict, a broken model, data that changed."""

import csv
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from client_app.data import load_data
from conf import compose_settings
from fedquorum_app import load
from tests.integration.conftest import ROOT, Shell

PAGE = (ROOT / "docs" / "predict.md").read_text()
BLOCKS = dict(re.findall(r"<!-- (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))


def write_hospital_table(path: Path) -> None:
    """Write what a hospital exports: quotes, gaps, dates, patients that return, odd spellings."""
    rng = np.random.default_rng(1)
    lines = ["patient_id,seen,hospital,age,smoker,dose,ill,,"]
    for i in range(180):
        hospital = ("North", "South", "West")[i % 3]
        age, dose = int(rng.integers(20, 90)), float(rng.uniform(0.5, 9.5))
        smoker = ("yes", "no")[int(rng.integers(2))]
        ill = "yes" if (age - 55) / 15 + (dose - 5) / 3 + (smoker == "yes") * 2 > 1 else "no"
        cells = (
            str(1000 + i // 6 * 3 + i % 3),
            f"2026-{i % 12 + 1:02d}-{i % 28 + 1:02d}",
            f" {hospital.lower()} " if i % 40 == 3 else hospital,
            "-" if i % 11 == 4 else f" {age}",
            "" if i % 17 == 5 else f'"{smoker}"',
            "<0.5" if i == 90 else "#N/A" if i % 13 == 6 else f"{dose:.2f}",
            ill.upper() if i % 50 == 7 else ill,
        )
        lines.append(",".join([*cells, "", ""]))
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")


def find_setting(key: str, text: str) -> str:
    """Return the first setting that a message says to type, as a shell takes it."""
    found = re.search(rf"'data\.{key}=[^']*'|data\.{key}=[^\s,;]+", text)
    assert found, text
    command = ["sh", "-c", f"printf '%s\\n' {found[0]}"]
    (word,) = subprocess.check_output(command, text=True).splitlines()
    return word


@pytest.mark.slow
def test_from_a_hospitals_table_to_a_page_and_a_prediction(shell: Shell) -> None:
    """Each message says what to type next; a colleague predicts from the run's folder alone."""
    write_hospital_table(shell.cwd / "patients.csv")
    words = "data=csv data.path=patients.csv data.client_column=hospital data.target=ill"
    words += " strategy=fedavg model=mlp rounds=8"
    typed = words.split()
    for key, message in (
        ("invalid_cells", "dose: line 92 has '<0.5': <0.5 is a limit, as of detection"),
        ("replace", "2 leaves out west; hospital has clients that may be the same: "),
    ):
        done = shell("fedquorum", *typed)
        assert (done.status, len(done.stderr.splitlines())) == (1, 1)
        assert message in done.stderr
        typed.append(find_setting(key, done.stderr))
    done = shell("fedquorum", "data", *typed)
    assert done.status == 0, done.stderr
    assert "ill has classes that may be the same: 'no' and 'NO'" in done.stdout
    typed.append(find_setting("replace", done.stdout))
    typed.append(find_setting("group_column", done.stdout))
    done = shell("fedquorum", *typed, "hydra.run.dir=run")
    assert done.status == 0, done.stderr
    assert "Warning" not in done.stdout
    for line in (
        "Data csv: 3 clients (North, South, West), 180 rows; target ill, one of 2 classes; ",
        "Missing, share of rows: age 8.9%, dose 8.3%, smoker 6.1%",
        "Taken as missing by data.invalid_cells: dose (1 cell)",
    ):
        assert line in done.stdout
    done = shell("fedquorum", "report", "run")
    assert done.status == 0, done.stderr
    page = (shell.cwd / "report" / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("North", "South", "West", "smoker", "no 52.8%"))
    colleague = shell.cwd / "colleague"
    shutil.move(shell.cwd / "run", colleague / "run")
    patients = (shell.cwd / "patients.csv").rename(colleague / "new.csv")

    old = {"dose": "9.1", "smoker": "yes", "age": 85, "name": "X"}
    young = {"dose": 0.7, "smoker": "no", "age": 24}
    found = load(colleague / "run").predict([old, young], client="North")
    assert found["prediction"].tolist() == ["yes", "no"]
    assert found.loc[0, "probability_yes"] > 0.9

    # The command says the same of one patient, with the scales of the site that asks.
    in_colleagues_folder = Shell(colleague)
    pd.DataFrame([old]).to_csv(colleague / "one.csv", index=False)
    command = ["fedquorum", "predict", "run", "one.csv", "--client", "North", "--output", "old.csv"]
    done = in_colleagues_folder(*command)
    assert done.status == 0, done.stderr
    one = pd.read_csv(colleague / "old.csv")
    assert one["prediction"].tolist() == ["yes"]
    # The smaller probability shows the scale: the larger one is near 1 with that of any site.
    assert one.loc[0, "probability_no"] == pytest.approx(found.loc[0, "probability_no"], rel=1e-3)

    done = in_colleagues_folder("fedquorum", "predict", "run", "new.csv", "--output", "out.csv")
    assert done.status == 0, done.stderr
    with (colleague / "out.csv").open() as file:
        predicted = [row["prediction"] for row in csv.DictReader(file)]
    with patients.open(encoding="utf-8-sig") as file:
        right = [row["ill"].lower() for row in csv.DictReader(file)]
    assert np.mean([a == b for a, b in zip(predicted, right, strict=True)]) > 0.85


def write_houses(path: Path) -> None:
    """Write prices of houses in three towns."""
    rng = np.random.default_rng(2)
    lines = ["town,area,garden,price"]
    for i in range(300):
        area, garden = int(rng.integers(50, 220)), ("yes", "no", "shared")[int(rng.integers(3))]
        price = 60_000 + 2_600 * area + 50_000 * (garden == "yes") + rng.normal(scale=10_000)
        town = ("Aachen", "Bonn", "Celle")[i % 3]
        lines.append(f"{town},{'' if i % 29 == 3 else area},{garden},{price:.0f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.slow
def test_a_price_to_predict(shell: Shell) -> None:
    """At the default rate; the scale is said, and predictions and metrics are in euros."""
    write_houses(shell.cwd / "houses.csv")
    words = "data=csv data.path=houses.csv data.client_column=town data.target=price"
    words += " data.regression=true strategy=fedavg model=mlp rounds=20 hydra.run.dir=run"
    done = shell("fedquorum", *words.split())
    assert done.status == 0, done.stderr
    assert re.search(r"Scale of the target: mean 4\d\d,\d{3}, standard deviation", done.stdout)
    shown = re.search(r"test R2, by data[^\d-]+(-?[\d.]+)", done.stdout)
    assert shown is not None, done.stdout
    assert float(shown[1]) > 0.9
    run = load(shell.cwd / "run")
    last = run.evaluations[run.evaluations["round"] == 20].set_index("client")
    assert (last["test_r2"] > 0.9).all()

    house = {"area": 120, "garden": "yes"}
    others = [house | {"garden": "roof"}, house | {"area": None}]
    with pytest.warns(UserWarning, match="garden had no roof in training"):
        price, unknown, missing = run.predict([house, *others], client="Bonn")["prediction"]
    assert abs(price - (60_000 + 2_600 * 120 + 50_000)) < 40_000
    assert all(150_000 < value < 700_000 for value in (price, unknown, missing))
    # The recorded error of Bonn is that of the predictions for its test rows.
    manifest = json.loads((shell.cwd / "run" / "manifest.json").read_text())
    scale = manifest["data"]["scales"]["target"]
    settings = compose_settings("", f"{words} data.path={shell.cwd / 'houses.csv'}").settings
    scaled = load_data(settings.data, settings.seed).get_client(1).y_test
    prices = np.round(scaled * scale["deviation"] + scale["mean"]).astype(int)
    houses = pd.read_csv(shell.cwd / "houses.csv")
    tested = houses[(houses["town"] == "Bonn") & houses["price"].isin(prices)]
    assert len(tested) == len(prices)
    errors = run.predict(tested, client="Bonn")["prediction"].to_numpy() - tested["price"]
    assert np.sqrt((errors**2).mean()) == pytest.approx(last.loc[1, "test_metric"], rel=1e-3)


MODEL = """
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        assert not self.training, "this line is from debugging"
        return self.layers(x)
"""


@pytest.mark.slow
def test_a_run_that_fails_and_a_resume_with_other_data(shell: Shell) -> None:
    """Either stops at once with one line that says why; nothing is lost."""
    houses, model = shell.cwd / "houses.csv", shell.cwd / "mine.py"
    write_houses(houses)
    model.write_text(MODEL)
    words = "data=csv data.path=houses.csv data.client_column=town data.target=price rounds=6"
    words += " data.regression=true data.priority=all strategy=fedavg model=module"
    words += " model.path=mine.py:Model"
    done = shell("fedquorum", *words.split(), "hydra.run.dir=broken")
    last = done.stderr.splitlines()[-1]
    assert done.status == 1
    assert last.startswith("fedquorum: no client trained with success in round 1, so the model is")
    assert "AssertionError: this line is from debugging" in last
    assert (
        "(3 clients, such as Aachen); the run stops, because all clients fail for the same reason"
        in last
    )
    assert done.stderr.count("Traceback") == 1
    manifest = json.loads((shell.cwd / "broken" / "manifest.json").read_text())
    assert manifest["status"] == "failed"

    model.write_text(re.sub("assert .*", "", MODEL))
    done = shell("fedquorum", *words.split(), "hydra.run.dir=run", "engine.stop_after_round=2")
    assert done.status == 0, done.stderr
    before = {path: path.read_bytes() for path in (shell.cwd / "run").rglob("*") if path.is_file()}
    whole = houses.read_text()
    houses.write_text("".join(line for line in whole.splitlines(True) if "Bonn,9" not in line))
    done = shell("fedquorum", "resume=run", "engine.trust_code=true")
    assert done.status == 1
    (line,) = done.stderr.splitlines()
    assert re.search(r"houses\.csv with other data: rows of clients? Bonn 100 -> \d+", line)
    assert {path: path.read_bytes() for path in before} == before
    houses.write_text(whole)
    done = shell("fedquorum", "resume=run", "engine.trust_code=true")
    assert done.status == 0, done.stderr
    assert load(shell.cwd / "run").rounds["round"].tolist() == [1, 2, 3, 4, 5, 6]
    done = shell("fedquorum", "audit", "run", "--trust")
    assert done.status == 0, done.stdout


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
