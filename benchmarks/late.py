r"""Measure rounds in which late updates count against synchronous rounds of as many updates.

    OMP_NUM_THREADS=1 python benchmarks/late.py --pairs 3 --rows 4 100

prints Markdown, a line for each pair of runs, which take turns so that both meet the same load. A
synchronous round asks 50 clients and waits for them. In the other run 500 clients are under way,
and a round closes with 50 replies. The times are CPU time of all rounds but the first, which
includes the start, and the last, which evaluates. ``with a clock`` is the synchronous run with
simulated response times, which the other run also draws.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.engines import describe_machine
from benchmarks.scale import CLIENTS_PER_ROUND, build_job, measure_job, write_data

UNDER_WAY = 500
CLOCK = ("response_time=lognormal",)
VARIANTS: dict[str, tuple[str, ...]] = {
    "synchronous": (),
    "with a clock": CLOCK,
    "late updates count": (
        *(*CLOCK, "engine.late_replies=count", "strategy.fraction=1"),
        f"engine.quorum={CLIENTS_PER_ROUND}",
    ),
}
HEADINGS = ("rows a client", *(f"{name}, s" for name in VARIANTS), "ratio", "ratio with a clock")


def main() -> None:
    """Run all pairs of the command line, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--under-way", type=int, default=UNDER_WAY)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 100])
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    print(f"| {' | '.join(HEADINGS)} |\n|{' ---: |' * len(HEADINGS)}", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in options.rows:
            for _ in range(options.pairs):
                results.append(measure_pair(Path(folder), rows, options))
                print(f"| {' | '.join(format_cells(results[-1]))} |", flush=True)
    if options.json is not None:
        options.json.write_text(
            json.dumps({"results": results, "machine": describe_machine()}, indent=2)
        )


def measure_pair(folder: Path, rows: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of one run of each variant, and the ratios."""
    data = folder / f"clients-of-{rows}.npz"
    if not data.exists():
        write_data(data, options.clients, num_train_rows=rows)
    seconds = {}
    for name, words in VARIANTS.items():
        late = (f"engine.concurrency={options.under_way}",) if name == [*VARIANTS][-1] else ()
        given = argparse.Namespace(
            rounds=options.rounds,
            engine="in-process",
            word=[f"data.path={data}", f"client.batch_size={rows}", *words, *late],
        )
        job = build_job(folder, "fedau", options.clients, given)
        seconds[name] = measure_job(job)["rounds_s"]
    synchronous, clock, late_seconds = seconds.values()
    ratios = {"ratio": late_seconds / synchronous, "ratio_with_clock": late_seconds / clock}
    return {"rows": rows, "seconds": seconds, **ratios}


def format_cells(result: dict[str, Any]) -> list[str]:
    """Return the cells of one line of the table."""
    return [
        str(result["rows"]),
        *(f"{seconds:.2f}" for seconds in result["seconds"].values()),
        f"{result['ratio']:.2f}",
        f"{result['ratio_with_clock']:.2f}",
    ]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
