"""A new weighting: its file, a row, a row of tests and a golden test, and it is everywhere.

The guide ``docs/own-rule.md`` is followed as it stands.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fedquorum.audit.cli import format_summary_line

from tests.builders_runs import make_client_overrides
from tests.cases import is_long
from tests.integration.conftest import ROOT, Outcome, Shell, find_results_directory

GUIDE = (ROOT / "docs" / "own-rule.md").read_text()
BLOCKS = dict(re.findall(r"^`(\S+)`\n\n```\w+\n(.*?)```", GUIDE, re.DOTALL | re.MULTILINE))
RULE = "strategies/fedquorum/rules/weighting/one_plus_loss.py"
TABLE = "strategies/fedquorum/rules/weighting/__init__.py"
ROWS = "tests/fedquorum/rows.py"
GOLDEN = "tests/fedquorum/rules/weighting/test_one_plus_loss.py"
DOCUMENTS = {
    *("README.md", "SECURITY.md"),
    *(f"docs/{page}.md" for page in ("composition", "methods", "scale", "stability")),
}
LAST = {
    TABLE: r"^ {8}FedGPWeighting,\n",
    ROWS: r"^ {4}Row\(\n {8}FedGPWeighting,\n(?: {8}.*\n)+ {4}\),\n",
}
"""The last rows of weightings in the tables, in front of the new one."""
SMALL = ("rounds=3", *make_client_overrides(4, 2, samples=20), "strategy.fraction=0.5")


def follow(folder: Path) -> None:
    """Do in a copy of the sources what the guide says."""
    for path in (RULE, GOLDEN):
        assert not (folder / path).exists()
        (folder / path).write_text(BLOCKS[path])
    for path, last in LAST.items():
        imported, _, row = BLOCKS[path].partition("\n")
        text = (folder / path).read_text()
        [before] = re.finditer(last, text, re.MULTILINE)
        imports = text.index("\nfrom ") + 1
        changed = text[:imports] + imported + "\n" + text[imports : before.end()] + row
        (folder / path).write_text(changed + text[before.end() :])


def places_touched(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each file of the copy that is not as in the sources, with its added lines."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        before = (ROOT / name).read_text() if (ROOT / name).exists() else ""
        if path.read_text() != before:
            yield name, len(path.read_text().splitlines()) - len(before.splitlines())


@pytest.fixture(scope="module")
def copy(clone: Path) -> Path:
    """Return a copy of the sources in which the guide was followed."""
    follow(clone)
    return clone


@pytest.fixture
def copy_shell(copy: Path, tmp_path: Path) -> Shell:
    """Return a shell in an empty folder, whose commands are those of the copy."""
    return Shell(tmp_path, {"PYTHONPATH": os.pathsep.join(map(str, (copy, copy / "strategies")))})


SEVERAL = """
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from server_app.cli.commands import main

outcomes = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["fedquorum", *words]
    with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code or 0
    outcomes.append((status, stdout.getvalue(), stderr.getvalue()))
print(json.dumps(outcomes))
"""


def in_one_process(shell: Shell, *commands: Sequence[str]) -> list[Outcome]:
    """Run commands one after the other; a process for each would import everything again."""
    done = shell("python", "-c", SEVERAL, json.dumps(commands))
    assert done.status == 0, done.stderr
    return [Outcome(*outcome) for outcome in json.loads(done.stdout)]


def test_a_new_rule_needs_four_edits(copy: Path) -> None:
    """One file, one row and one row of tests, each with its import, and one golden test."""
    places = dict(places_touched(copy))
    print(*(f"{lines} lines in {name}" for name, lines in places.items()), sep="\n")
    assert set(places) == {RULE, TABLE, ROWS, GOLDEN} == set(BLOCKS)
    assert (places[TABLE], places[ROWS]) == (2, 8)
    assert places[RULE] < 40


@pytest.mark.slow
def test_its_rows_in_the_documents_are_written(copy: Path, copy_shell: Shell) -> None:
    """One command writes them, and writes nothing else."""
    done = copy_shell("python", "-m", "docs.tables")
    assert done.status == 0, done.stderr
    assert set(done.stdout.split()) == DOCUMENTS
    for name in DOCUMENTS:
        old, new = ((folder / name).read_text().splitlines() for folder in (ROOT, copy))
        # Names stand in rows that other names share; all other rows are as they were.
        added = [line for line in new if line not in old]
        assert added
        assert all("one_plus_loss" in line or "OnePlusLoss" in line for line in added), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("strategy=one_plus_loss", "strategy.a=0.5"),
        (
            "strategy=composed",
            "strategy/selection=everyone",
            "strategy/weighting=one_plus_loss",
            "strategy.weighting.a=0.5",
        ),
        ("strategy=composed", "strategy/weighting=one_plus_loss", "strategy.weighting.a=0.5"),
    ],
)
def test_it_runs_and_is_decided_again(copy_shell: Shell, words: tuple[str, ...]) -> None:
    """By its name and as a part, the audit agrees with it, and one decision is explained."""
    audit = ("audit", "run")
    done, audited, *explained = in_one_process(
        copy_shell,
        (*words, *SMALL, "hydra.run.dir=run"),
        audit,
        *((*audit, "--round", "2", "--client", str(client)) for client in range(4)),
    )
    assert done.status == 0, done.stderr
    assert audited.status == 0, audited.stdout + audited.stderr
    assert "completed: 3 of 3 rounds" in audited.stdout
    assert format_summary_line(0) in audited.stdout
    assert [one.status for one in explained] == [0] * 4
    weights = [one.stdout for one in explained if "c_k = " in one.stdout]
    assert weights
    assert all("OnePlusLoss(a=0.5)" in text for text in weights)


@pytest.mark.slow
def test_its_settings_are_in_the_help(copy_shell: Shell) -> None:
    """It is an option of both groups, and its parameter a setting with its default."""
    done = copy_shell("fedquorum", "--help", "strategy=one_plus_loss")
    assert done.status == 0, done.stderr
    options, settings = done.stdout.split("Settings and their values for these words:")
    assert options.count("one_plus_loss") == 2
    assert re.search(
        r"^strategy:\n  name: one_plus_loss\n(?:  \w.*\n)*  a: 1\.0$", settings, re.MULTILINE
    )


MISTAKES = {
    ("strategy=one_plus_los",): "'one_plus_los' (did you mean one_plus_loss?)",
    (
        "strategy=composed",
        "strategy/weighting=oneplusloss",
    ): "'oneplusloss' (did you mean one_plus_loss?)",
    ("strategy=one_plus_loss", "strategy.a=-1"): "strategy.a must be a number >= 0, got -1.0",
}


@pytest.mark.slow
def test_mistakes_are_answered(copy_shell: Shell) -> None:
    """Its name mistyped with the nearest one, its parameter out of range with the range."""
    answers = in_one_process(copy_shell, *MISTAKES)
    for done, said in zip(answers, MISTAKES.values(), strict=True):
        assert done.status == 1
        assert done.stderr.strip().endswith(said)
        assert done.stderr.count("\n") == 1


PYTHON = """
import fedquorum
from fedquorum.errors import ParameterError
from fedquorum.registry import build_rules
from fedquorum.rules.rule import RunContext

options = {"name": "one_plus_loss", "a": 0.5, "fraction": 0.5}
rules = build_rules(options, {"name": "sgd"}, RunContext())
print(rules.weighting, rules.selection.sampling.fraction)
print(fedquorum.get_strategy("one_plus_loss", a=0.25).rules.weighting)
try:
    fedquorum.get_strategy("one_plus_los")
except ParameterError as error:
    print(error)
"""


@pytest.mark.slow
def test_it_is_in_the_library(copy_shell: Shell) -> None:
    """Python builds it by the same path, and as a strategy for Flower's ClientApps."""
    done = copy_shell("python", "-c", PYTHON)
    assert done.status == 0, done.stderr
    built, strategy, mistake = done.stdout.splitlines()
    assert built == "OnePlusLoss(a=0.5) 0.5"
    assert strategy == "OnePlusLoss(a=0.25)"
    assert "did you mean one_plus_loss?" in mistake


TESTS = (
    GOLDEN,
    "tests/fedquorum/test_conformance.py",
    "tests/fedquorum/test_combinations.py",
    "tests/fedquorum/audit/test_check.py",
)


@pytest.mark.slow
def test_it_has_the_tests_of_all_rules(copy: Path) -> None:
    """Its golden test, what all weightings promise, every combination, and the audit of a run."""
    paths = os.pathsep.join(map(str, (copy, copy / "strategies")))
    shell = Shell(copy, {"PYTHONPATH": paths})
    done = shell("pytest", "-n0", "-q", "-rp", *TESTS, "-k", "OnePlusLoss or one_plus_loss")
    assert done.status == 0, done.stdout[-4000:]
    for file in TESTS:
        assert f"\nPASSED {file}::" in done.stdout


OUTSIDE = (
    BLOCKS[RULE]
    .replace("from ..", "from fedquorum.rules.")
    .replace("from .", "from fedquorum.rules.weighting.")
)
STEPS = '''"""A selection and a step of one's own."""

from dataclasses import dataclass

from fedquorum.rules.selection import AllClients
from fedquorum.rules.server_optimizer import SGD


@dataclass(frozen=True)
class MySelection(AllClients):
    """All clients."""


@dataclass(frozen=True)
class MyStep(SGD):
    """The plain step."""
'''


BY_PATH = (
    "strategy=custom",
    "strategy.path=./my_rule.py:OnePlusLoss",
    "strategy.args={a: 2.0}",
)
BY_IMPORT = ("strategy=custom", "strategy.path=my_rule.OnePlusLoss")
AS_PARTS = (
    "strategy=composed",
    "strategy/selection=custom",
    "strategy.selection.path=rules/steps.py:MySelection",
    "strategy/weighting=custom",
    "strategy.weighting.path=my_rule.py:OnePlusLoss",
    "server_optimizer=custom",
    "server_optimizer.path=rules/steps.py:MyStep",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [BY_PATH, BY_IMPORT, AS_PARTS] if is_long() else [BY_IMPORT, AS_PARTS]
)
def test_rules_outside_of_the_repository(shell: Shell, words: tuple[str, ...]) -> None:
    """By file or by import path, from the working directory, without any PYTHONPATH."""
    (shell.cwd / "my_rule.py").write_text(OUTSIDE)
    (shell.cwd / "rules").mkdir()
    (shell.cwd / "rules" / "steps.py").write_text(STEPS)
    done = shell("fedquorum", *words, *SMALL)
    assert done.status == 0, done.stderr
    audit = ("fedquorum", "audit", str(find_results_directory(done.stdout)))
    assert "--trust" in shell(*audit).stderr
    audited = shell(*audit, "--trust")
    assert format_summary_line(0) in audited.stdout, audited.stdout + audited.stderr
