"""The code of docs/python.md, run as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
from fedquorum.audit.cli import format_summary_line

import fedquorum_app
from conf.overrides import to_overrides
from fedquorum_app import RunResult, SweepResult
from tests.integration.conftest import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()
BLOCKS = dict(re.findall(r"<!-- (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


def run_block(name: str, **names: Any) -> dict[str, Any]:
    """Return the names after a block of the page."""
    exec(BLOCKS[name], names)  # noqa: S102 - our own page
    return names


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """With frames, audit, explanation, model and figure."""
    result = run_block("example")["result"]
    assert isinstance(result, RunResult)
    assert result.settings["strategy.name"] == "fedau"
    output = capsys.readouterr().out
    assert f"20 rounds and 400 client answers replayed: {format_summary_line(0)}" in output
    assert "round 20, client 3 (" in output
    assert Path("participation.png").is_file()


@pytest.mark.slow
def test_the_sweep_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Six runs, each with its frames."""
    result = run_block("sweep")["result"]
    assert isinstance(result, SweepResult)
    assert len(result) == 6
    assert capsys.readouterr().out.count("\nfedavg ") == 3


def test_the_ways_to_give_settings_are_the_same() -> None:
    """Three calls, of one run."""
    called: list[set[str]] = []

    def run(*words: str, **settings: Any) -> None:
        called.append({*words, *to_overrides(settings)})

    run_block("settings", run=run)
    first, *others = called
    assert len(others) == 2
    assert all(words == first for words in others)


def test_every_public_name_is_on_the_page() -> None:
    """Functions, classes, and what a run has."""
    public = {name for name in vars(RunResult) if not name.startswith("_")} - {"read", "trusted"}
    for name in (*fedquorum_app.__all__, *public):
        assert re.search(rf"\b{name}\b", PAGE), name
