"""Measure start times: errors of the command line, a run of one round, and a message's imports.

    python benchmarks/start.py --times 5 --baseline DIR

prints Markdown: the smallest and the median CPU and elapsed seconds of this version and of DIR, a
checkout of another one. Versions and cases are interleaved, each time in a new process. On a shared
machine compare CPU seconds: a start uses little more than one core.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

HERE = Path(__file__).resolve().parent.parent
COMMAND = "from server_app.cli.fedquorum import main; main()"
FLOWER = "import flwr.supernode.cli.flwr_clientapp, torch; "
NODE = (
    "import client_app.app as a; a.get_node({'experiment': 'fedalign/synth_low', 'overrides': ''})"
)
CASES: Mapping[str, tuple[str, ...]] = {
    "help": (COMMAND, "--help"),
    "roundz=3": (COMMAND, "roundz=3"),
    "strategy=fedauu": (COMMAND, "strategy=fedauu"),
    "client.lr=abc": (COMMAND, "client.lr=abc"),
    "rounds=-1": (COMMAND, "rounds=-1"),
    "one round": (COMMAND, "experiment=fedalign/synth_low", "rounds=1", "hydra.run.dir=run"),
    "a message's Flower and PyTorch": (FLOWER,),
    "the same, the app and its settings": (FLOWER + NODE,),
}
"""The arguments of ``python -c`` for each case."""


@dataclass(frozen=True)
class ProcessTime:
    """The seconds of one process."""

    cpu: float
    wall: float


def main() -> None:
    """Measure the cases of the command line, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    options = parser.parse_args()
    checkouts = {"now": HERE}
    if options.baseline is not None:
        checkouts = {"before": options.baseline.resolve(), **checkouts}
    print(format_start_table(measure_cases(options.only, checkouts, options.times)))


def measure_cases(
    cases: Sequence[str], checkouts: Mapping[str, Path], repetitions: int
) -> dict[tuple[str, str], list[ProcessTime]]:
    """Measure each case in each checkout, interleaved."""
    times: dict[tuple[str, str], list[ProcessTime]] = {}
    for _ in range(repetitions):
        for case in cases:
            for version, checkout in checkouts.items():
                times.setdefault((case, version), []).append(measure_process(CASES[case], checkout))
    return times


def measure_process(arguments: Sequence[str], checkout: Path) -> ProcessTime:
    """Measure ``python -c`` with these arguments in an empty folder."""
    path = os.pathsep.join(map(str, (checkout, checkout / "strategies")))
    with tempfile.TemporaryDirectory() as folder:
        before, started = getrusage(RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            check=False,
        )
        wall, after = time.perf_counter() - started, getrusage(RUSAGE_CHILDREN)
    return ProcessTime(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def format_start_table(times: Mapping[tuple[str, str], Sequence[ProcessTime]]) -> str:
    """Format the seconds as Markdown, a row for each case and version."""

    def build_row(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    lines = [
        build_row(["", "version", "CPU s, smallest", "median", "s, smallest", "median"]),
        build_row(["---", "---", *["---:"] * 4]),
    ]
    for (case, version), runs in times.items():
        columns = [run.cpu for run in runs], [run.wall for run in runs]
        numbers = [number for column in columns for number in (min(column), median(column))]
        lines.append(build_row([case, version, *[f"{number:.2f}" for number in numbers]]))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
