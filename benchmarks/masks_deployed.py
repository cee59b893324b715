r"""Measure rounds with masks against rounds without, on SuperNodes over TLS on loopback.

    python benchmarks/masks_deployed.py --nodes 5 --pairs 2

prints Markdown: of a round the median seconds by the clock, and of a node the bytes. The runs of a
pair take turns on one deployment, so that both meet the same load. FedAU trains one local epoch on
rows of 8 numbers, so communication dominates the time.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.deployed import NodeSetup, run_deployment, start_nodes
from tests.integration.conftest import ROOT

KINDS = {"models": "none", "masks": "masks"}
NUM_ROUNDS = 2
NUM_SKIPPED_ROUNDS = 1  # in which nodes fetch and unpack the app


def main() -> None:
    """Run all pairs of the command line, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=2)
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    with start_nodes(NodeSetup(ROOT, preload=True, interval=0.1), options.nodes) as deployment:
        for pair in range(options.pairs):
            for kind, name in KINDS.items():
                words = f"strategy=fedau evaluation.every=null secure_aggregation={name}"
                folder = f"{kind}-{pair}"
                records = run_deployment(
                    deployment, ROOT, options.nodes, NUM_ROUNDS, words=words, name=folder
                )
                rounds[kind] += records[NUM_SKIPPED_ROUNDS:]
                print(f"{folder}: {records[-1]['duration_seconds']:.1f} s", file=sys.stderr)
    print("| | a round, s | a node sends, kB | a node receives, kB |")
    print("| --- | ---: | ---: | ---: |")
    for kind, records in rounds.items():
        seconds, sent, received = (
            statistics.median(one[key] for one in records)
            for key in ("duration_seconds", "bytes_up", "bytes_down")
        )
        sizes = " | ".join(f"{size / options.nodes / 1e3:.2f}" for size in (sent, received))
        print(f"| {kind} | {seconds:.1f} | {sizes} |")


if __name__ == "__main__":
    main()
