"""The benchmark scripts run and write what they print; how fast they are no test asks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def results_of(directory: Path, script: str, *words: str) -> list[dict[str, Any]]:
    path = directory / "results.json"
    command = [sys.executable, str(BENCHMARKS / script), *words, "--json", str(path)]
    subprocess.run(command, check=True, cwd=directory, capture_output=True, timeout=480)
    written = json.loads(path.read_text())
    assert written["machine"]["cores"] > 0
    results: list[dict[str, Any]] = written["results"]
    for result in results:
        assert result["rounds_per_second"] > 0
    return results


@pytest.mark.slow
def test_engines(tmp_path: Path) -> None:
    """Named competitors with their speed, paired ratio, and memory where there is one."""
    names = ["in_process_batched", "bare_arithmetic"]
    words = ["--workload", "flute_mnist", "--rounds", "2", "--pairs", "1", "--only", *names]
    in_process, bare = results_of(tmp_path, "engines.py", *words)
    assert [in_process["name"], bare["name"]] == names
    (ratio,) = json.loads((tmp_path / "results.json").read_text())["ratios"]
    assert (ratio["name"], ratio["reference"], ratio["pairs"]) == (*reversed(names), 1)
    assert ratio["median"] == bare["ms_a_round"][0] / in_process["ms_a_round"][0]
    assert bare["ms_a_round"] == [pytest.approx(1000 / bare["rounds_per_second"])]
    assert in_process["peak_memory_mb"] > 100
    assert in_process["start_seconds"] > 0
    assert bare["peak_memory_mb"] is None


@pytest.mark.slow
def test_decisions(tmp_path: Path) -> None:
    """Every rule up to a million clients, with time and memory of one decision."""
    results = results_of(tmp_path, "decisions.py", "--rounds", "1")
    names = [result["name"] for result in results]
    assert "AAggFF-D, K = 1000000, heard 10000" in names
    assert all(result["peak_memory_mb"] >= 0 for result in results)
