"""Tests of the script that plants faults."""

import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.planted_faults import (
    Fault,
    TableError,
    check_table,
    load_faults,
    plant_fault,
    try_all,
    try_fault,
)

TESTS = ("test_half.py",)
SIGN = Fault("sign", "half.py", "x / 2", "-x / 2", TESTS)
ZERO = Fault("zero", "half.py", "if x < 0:", "if x <= 0:", TESTS)
SYNTAX = Fault("syntax", "half.py", "return None", "return None)", TESTS)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with a module, and a test that does not try it at 0."""
    (tmp_path / "half.py").write_text(
        "def half(x):\n    if x < 0:\n        return None\n    return x / 2\n"
    )
    (tmp_path / "test_half.py").write_text(
        "from half import half\n\n\ndef test_half():\n    assert half(4) == 2\n"
    )
    return tmp_path


def run(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Do what the test of the tree does, without pytest."""
    half = runpy.run_path(str(tree / "half.py"))["half"]
    return int(half(4) != 2), " ".join(tests)


def test_caught_faults_are_distinguished_from_missed_ones(tree: Path) -> None:
    outcomes = list(try_all([tree], [SIGN, ZERO], run))
    assert [(one.name, one.verdict, one.right) for one in outcomes] == [
        ("", "passed", True),
        ("sign", "caught", True),
        ("zero", "NOT CAUGHT", False),
    ]


def test_tests_that_fail_without_a_fault_are_reported(tree: Path) -> None:
    (tree / "half.py").write_text("def half(x):\n    return x\n")
    first, *_ = try_all([tree], [Fault("none", "half.py", "return x", "return x", TESTS)], run)
    assert (first.verdict, first.right) == ("FAILED without a fault", False)


@pytest.mark.slow
def test_pytest_runs_on_the_code_of_the_tree(tree: Path) -> None:
    assert try_fault(tree, SIGN).verdict == "caught"


@pytest.mark.slow
def test_a_fault_that_cannot_be_tested_is_not_caught(tree: Path) -> None:
    outcome = try_fault(tree, SYNTAX)
    assert (outcome.verdict, outcome.right) == ("ERROR: pytest ended with 2", False)
    assert "SyntaxError" in outcome.output


def test_a_fault_is_undone(tree: Path) -> None:
    path = tree / "half.py"
    before = path.read_text(), path.stat().st_mtime_ns
    with plant_fault(tree, SIGN):
        assert "-x / 2" in path.read_text()
    assert (path.read_text(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("gone", "half.py", "x / 3", "x / 2", TESTS), "gone: half.py has its text 0 times"),
        (Fault("often", "half.py", "return", "", TESTS), "often: half.py has its text 2 times"),
        (Fault("moved", "third.py", "x / 2", "", TESTS), "moved: third.py has its text 0 times"),
        (SIGN, "sign: two faults have this name"),
    ],
)
def test_a_table_that_does_not_fit_the_code_is_refused(
    tree: Path, fault: Fault, reason: str
) -> None:
    check_table(tree, [SIGN])
    with pytest.raises(TableError, match=reason):
        check_table(tree, [SIGN, fault])


def test_the_table_fits_the_code() -> None:
    root = Path(__file__).parent.parent
    faults = load_faults()
    check_table(root, faults)
    missing = {test for fault in faults for test in fault.tests if not has_test(root, test)}
    assert not missing


def has_test(root: Path, test: str) -> bool:
    """Say whether a file has a test that the table names as FILE or FILE::NAME[CASE]."""
    file, _, name = test.partition("::")
    path = root / file
    return path.is_file() and f"def {name.partition('[')[0]}" in path.read_text()


def test_the_checklist_states_how_many_there_are() -> None:
    text = (Path(__file__).parent.parent / "docs" / "releasing.md").read_text()
    assert f"plants {len(load_faults())} faults" in text
