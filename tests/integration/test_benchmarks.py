"""The benchmark scripts run and write what they print; how fast they are no test asks."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import decision_time, engines
from tests.cases import is_long

SMALL = 1_000  # clients, of the decisions in the normal suite


def results_of(
    directory: Path, monkeypatch: pytest.MonkeyPatch, script: ModuleType, *words: str
) -> list[dict[str, Any]]:
    """Return what a script writes: here without its start-up, with ``--long`` as a command."""
    path = directory / "results.json"
    command = [str(script.__file__), *words, "--json", str(path)]
    if is_long():
        command = [sys.executable, *command]
        subprocess.run(command, check=True, cwd=directory, capture_output=True, timeout=480)
    else:
        monkeypatch.setattr("sys.argv", command)
        script.main()
    written = json.loads(path.read_text())
    assert written["machine"]["cores"] > 0
    results: list[dict[str, Any]] = written["results"]
    for result in results:
        assert result["rounds_per_second"] > 0
    return results


@pytest.mark.slow
def test_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named competitors with their speed, paired ratio, and memory where there is one."""
    names = ["in_process_batched", "bare_arithmetic"]
    workload = "flute_mnist" if is_long() else "synth"
    words = ["--workload", workload, "--rounds", "2", "--pairs", "1", "--only", *names]
    monkeypatch.setattr(engines.BareArithmetic, "TRIALS", 1)
    in_process, bare = results_of(tmp_path, monkeypatch, engines, *words)
    assert [in_process["name"], bare["name"]] == names
    (ratio,) = json.loads((tmp_path / "results.json").read_text())["ratios"]
    assert (ratio["name"], ratio["reference"], ratio["pairs"]) == (*reversed(names), 1)
    assert ratio["median"] == bare["ms_a_round"][0] / in_process["ms_a_round"][0]
    assert bare["ms_a_round"] == [pytest.approx(1000 / bare["rounds_per_second"])]
    assert in_process["peak_memory_mb"] > 100
    assert in_process["start_seconds"] > 0
    assert bare["peak_memory_mb"] is None


@pytest.mark.slow
def test_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule, with time and memory of one decision; with ``--long`` up to a million clients."""
    largest = 1_000_000 if is_long() else SMALL
    cases = [
        (name, rule, min(size, largest), part) for name, rule, size, part in decision_time.CASES
    ]
    monkeypatch.setattr(decision_time, "CASES", tuple(dict.fromkeys(cases)))
    results = results_of(tmp_path, monkeypatch, decision_time, "--rounds", "1")
    assert len(results) == len(decision_time.CASES)
    names = {result["name"] for result in results}
    assert f"AAggFF-D, K = {largest}, reporting {largest // 100}" in names
    assert all(result["peak_memory_mb"] >= 0 for result in results)
