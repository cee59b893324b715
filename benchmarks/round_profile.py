"""Profile the rounds of the workloads of engines.py with Python's profiler.

    OMP_NUM_THREADS=1 python benchmarks/round_profile.py --rounds 12

prints Markdown: the percentage of each part in the time of a workload's rounds. With one thread the
profiler sees all work. It slows every call of Python, so the percentages of Python are upper
bounds.

``--engine ray`` profiles the CPU time of the process that drives two workers, so it excludes the
clients' training.
"""

import argparse
import cProfile
import io
import pstats
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fedquorum.records.writer import RunWriter

from benchmarks.engines import (
    NUM_WARMUP_ROUNDS,
    WORKLOADS,
    Workload,
    build_overrides,
    write_workload_data,
)
from conf.compose import compose_overrides
from server_app.runs.job import run_in_process, run_on_ray

RAY_OVERRIDES = ("engine=ray", "engine.workers=2")
PART_PATTERNS = {
    "products and convolutions": r"b?add\w*mm_?\b|\b(b|)mm\b|matmul|convolution|linear\b",
    "rows gathered and scaled": r"index_select|\btake\b|\bgather\b|\brows\b|div_",
    "orders of samples": r"permut|shuffle|random|Generator",
    "other arithmetic of PyTorch and NumPy": r"torch|numpy|ufunc|TensorBase",
    "pickling and Ray's core": r"pickle|Pickler|raylet",
    "Python: clients": r"/client_app/",
    "Python: rules, messages, records": r"/fedquorum/|/server_app/",
    "Python: Flower": r"/flwr/",
    "Python: Ray": r"/ray/",
}
"""The parts of a round; a function counts for the first part whose pattern it matches."""

OTHER_PART = "everything else"


def main() -> None:
    """Profile the workloads of the command line, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--engine", choices=("in-process", "ray"), default="in-process")
    options = parser.parse_args()
    on_ray = options.engine == "ray"
    with tempfile.TemporaryDirectory() as folder:
        fractions = {
            name: profile_run(WORKLOADS[name], Path(folder), options.rounds, on_ray=on_ray)
            for name in options.workload
        }
    print(format_profile_table(fractions))


def profile_run(
    work: Workload, folder: Path, rounds: int, *, on_ray: bool = False
) -> Mapping[str, float]:
    """Return the fraction of each part in the time of a run's rounds after warm-up."""
    profile = cProfile.Profile(time.thread_time) if on_ray else cProfile.Profile()
    end_round = RunWriter.end_round
    num_rounds = 0

    def add_profiled_round(self: RunWriter, *arguments: Any) -> None:
        nonlocal num_rounds
        end_round(self, *arguments)
        num_rounds += 1
        if num_rounds == NUM_WARMUP_ROUNDS:
            profile.enable()
        elif num_rounds == rounds - 1:  # the last round evaluates
            profile.disable()

    data = write_workload_data(work, folder)
    overrides = (*build_overrides(work, data, "cpu"), f"rounds={rounds}")
    run, engine_overrides = (run_on_ray, RAY_OVERRIDES) if on_ray else (run_in_process, ())
    with (
        patch.object(RunWriter, "end_round", add_profiled_round),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        run(compose_overrides((*overrides, *engine_overrides)), tempfile.mkdtemp(dir=folder))
    seconds: Counter[str] = Counter()
    for (file, _, function), (_, _, self_seconds, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        seconds[find_part(file, function)] += self_seconds
    return {part: spent / seconds.total() for part, spent in seconds.items()}


def find_part(file: str, function: str) -> str:
    """Return the part of a function."""
    is_builtin = file == "~"
    for part, pattern in PART_PATTERNS.items():
        if part.startswith("Python") == is_builtin:
            continue  # a module may have the name of a function of torch
        if re.search(pattern, function if is_builtin else file):
            return part
    return OTHER_PART


def format_profile_table(fractions: Mapping[str, Mapping[str, float]]) -> str:
    """Format the percentages as Markdown, a column for each workload."""

    def build_row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    columns = fractions.values()
    lines = [
        build_row(["", *fractions]),
        build_row(["---", *["---:"] * len(fractions)]),
        *[
            build_row([part, *[f"{column.get(part, 0.0):.0%}" for column in columns]])
            for part in (*PART_PATTERNS, OTHER_PART)
        ],
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
