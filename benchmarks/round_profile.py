"""Where the time of a round goes: the workloads of engines.py under Python's profiler.

    OMP_NUM_THREADS=1 python benchmarks/round_profile.py --rounds 12

prints Markdown: for each workload the shares of its rounds' time by what took it. With one thread
all work is done where the profiler sees it. The profiler itself makes every call of Python slower,
so the shares of Python are upper bounds.

With ``--engine ray`` it is the CPU time of the process that drives two workers, which train beside
it: what a round costs there without the work of the clients.
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
from server_app.job import run_in_process, run_on_ray

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
"""The first pattern that a function's file and name match says which part its own time is."""

OTHER_PART = "everything else"


def main() -> None:
    """Profile what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--engine", choices=("in-process", "ray"), default="in-process")
    words = parser.parse_args()
    on_ray = words.engine == "ray"
    with tempfile.TemporaryDirectory() as folder:
        shares = {
            name: profile_run(WORKLOADS[name], Path(folder), words.rounds, on_ray=on_ray)
            for name in words.workload
        }
    print(format_profile_table(shares))


def profile_run(
    work: Workload, folder: Path, rounds: int, *, on_ray: bool = False
) -> Mapping[str, float]:
    """Return the share of each part in the time of a run's rounds but the first ones."""
    profile = cProfile.Profile(time.thread_time) if on_ray else cProfile.Profile()
    written = RunWriter.add_round
    done = 0

    def note_call(self: RunWriter, *arguments: Any) -> None:
        nonlocal done
        written(self, *arguments)
        done += 1
        if done == NUM_WARMUP_ROUNDS:
            profile.enable()
        elif done == rounds - 1:  # the last one evaluates
            profile.disable()

    given = [*build_overrides(work, write_workload_data(work, folder), "cpu"), f"rounds={rounds}"]
    run, more = (run_on_ray, RAY_OVERRIDES) if on_ray else (run_in_process, ())
    with (
        patch.object(RunWriter, "add_round", note_call),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        run(compose_overrides((*given, *more)), tempfile.mkdtemp(dir=folder))
    seconds: Counter[str] = Counter()
    for (file, _, function), (_, _, itself, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        seconds[find_part(file, function)] += itself
    return {part: spent / seconds.total() for part, spent in seconds.items()}


def find_part(file: str, function: str) -> str:
    """Return the part that a function belongs to."""
    builtin = file == "~"
    for part, pattern in PART_PATTERNS.items():
        if part.startswith("Python") == builtin:
            continue  # a module of ours may be named like a function of torch's
        if re.search(pattern, function if builtin else file):
            return part
    return OTHER_PART


def format_profile_table(shares: Mapping[str, Mapping[str, float]]) -> str:
    """Return the shares in per cent as Markdown, a column for each workload."""

    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    found = shares.values()
    lines = [
        row(["", *shares]),
        row(["---", *["---:"] * len(shares)]),
        *[
            row([part, *[f"{of.get(part, 0.0):.0%}" for of in found]])
            for part in (*PART_PATTERNS, OTHER_PART)
        ],
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
