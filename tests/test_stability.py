"""Tests that docs/records.md and docs/stability.md list what users may rely on."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from fedquorum.audit import cli as auditing
from fedquorum.metrics.fairness import compute_dispersion
from fedquorum.records import checkpoint, round_record, tables, writer
from fedquorum.records.provenance import RunInfo
from fedquorum.records.run_dir import RECORD_NAMES
from fedquorum.report import cli as reporting
from fedquorum.rules.metrics import AVERAGE_PRECISION

from server_app.cli import data as showing
from server_app.runs import job

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "stability.md").read_text()
RECORDS_PAGE = (ROOT / "docs" / "records.md").read_text()

Table = dict[str, list[str]]


def get_section(page: str, heading: str) -> str:
    """Return the text below a heading."""
    text = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert text, heading
    return text


def extract_code(text: str) -> list[str]:
    """Return what is set as code in a text."""
    return re.findall(r"`([^`]+)`", text)


def parse_table(text: str) -> Table:
    """Return the code in the second cell of each row by that in the first, where there is any."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", text, re.MULTILINE)
    return {name: extract_code(second) for first, second in rows for name in extract_code(first)}


def test_a_table_is_read_as_it_stands() -> None:
    """Several names in the first cell; a heading and a row without code are none."""
    text = "| a | b |\n| --- | --- |\n| `x`, `y` | `1`, two, `3` | `z` |\n| plain | `4` |\n"
    assert parse_table(text) == {"x": ["1", "3"], "y": ["1", "3"]}


def test_the_exit_statuses() -> None:
    """As the page has them."""
    text = " ".join(get_section(PAGE, "Commands").split())
    assert f"{job.EXIT_ERROR} after a mistake" in text
    assert f"{job.EXIT_INTERRUPTED} after an interruption" in text
    assert auditing.EXIT_ERROR == showing.EXIT_ERROR == reporting.EXIT_ERROR == job.EXIT_ERROR


def list_manifest_keys() -> Iterable[str]:
    """Return the keys of a manifest: of every run, of one that ended, and of some runs."""
    identity = RunInfo("", (), "", 0, "", "", 0, "", None, {})
    return {*writer._build_manifest(identity), "summary", *writer.LATER_ENTRIES}


def list_round_fields(text: str) -> list[str]:
    """Return the fields of a round, without those of its ``test``."""
    return [*parse_table(text.partition("The statuses exclude")[0])]


RECORDED: Mapping[str, Iterable[str]] = {
    "clients/": tables.CLIENTS_SCHEMA.names,
    "evaluations/": tables.EVALUATIONS_SCHEMA.names,
    "population.parquet": tables.POPULATION_SCHEMA.names,
    "manifest.json": list_manifest_keys(),
    "rounds.jsonl": [item.name for item in fields(round_record.RoundRecord)],
}


@pytest.mark.parametrize("file", RECORDED)
def test_the_fields_of_the_records(file: str) -> None:
    """Each has its row in docs/records.md, and each row is one of a field."""
    text, _, _ = get_section(RECORDS_PAGE, f"`{file}`").partition("\n### ")
    documented = list_round_fields(text) if file == "rounds.jsonl" else [*parse_table(text)]
    assert sorted(documented) == sorted(RECORDED[file])


def test_the_columns_of_models_of_the_clients_own() -> None:
    """The page has those of the fine-tuned model; the others have the same names."""
    section = get_section(RECORDS_PAGE, "`evaluations/`")
    documented = [*parse_table(section.partition("\n### ")[2])]
    finetuned, alone = (
        [column.name for column in tables.PERSONAL_COLUMNS[name]] for name in ("finetuned", "alone")
    )
    assert sorted(documented) == sorted(n for n in finetuned if AVERAGE_PRECISION not in n)
    assert alone == [name.replace("finetuned", "alone") for name in finetuned]


def test_the_spread_over_clients() -> None:
    """What ``test`` says beside weighted means."""
    text = get_section(RECORDS_PAGE, "`rounds.jsonl`").partition("the number of epochs:")[2]
    assert {*compute_dispersion(np.array([0.5, 0.7]), higher_is_better=True)} < {*parse_table(text)}


def test_the_files_of_a_run() -> None:
    """Each that a run may write is in the first table of docs/records.md."""
    documented = {name.rstrip("/") for name in parse_table(RECORDS_PAGE.partition("\n## ")[0])}
    assert {*RECORD_NAMES, writer.MEAN_MODEL, checkpoint.CHECKPOINTS_DIR} == documented - {"wandb"}
