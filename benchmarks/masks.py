r"""Measure rounds with masks against rounds without, in this process.

    OMP_NUM_THREADS=1 python benchmarks/masks.py --nodes 3 10 100 --pairs 3

prints Markdown, a line for each number of nodes and each kind of round, with the medians over all
pairs. The rounds of a pair take turns, so that both meet the same load. Each node has one client,
which draws its update and trains nothing. The times are CPU time: of a node, with the weighted sum
of its update; of the server, all the rest of the round. ``models`` is the default without masks,
where nodes send float32; ``sums`` are what nodes mask, without the masks.
"""

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fedquorum import ComposedStrategy, NativeProtocol, Population, SecureAggregation
from fedquorum.flower.codec import encode_arrays
from fedquorum.registry import build_rules
from fedquorum.rules.rule import RunContext
from flwr.app import ConfigRecord, Context, Message

from server_app.engines.in_process import InProcessGrid
from tests.builders_masks import build_app

NUM_NUMBERS = 1_100_000
KINDS: Mapping[str, dict[str, Any]] = {
    "models": {},
    "sums": {"requires_sums": True, "fixed_bins": True},
    "masks": {"secure_aggregation": SecureAggregation()},
}
MEASURES = ("a node, s", "the server, s", "a node sends, MB", "a node receives, MB")


class TimedGrid(InProcessGrid):
    """Adds up the CPU time of the nodes."""

    node_seconds = 0.0

    def _handle(self, message: Message) -> Message:
        started = time.process_time()
        reply = super()._handle(message)
        self.node_seconds += time.process_time() - started
        return reply


def find_client(context: Context) -> int:
    """Return the client of a node."""
    return int(context.node_config["partition-id"])


def draw_array(client: int, array: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Return random numbers instead of training."""
    return np.random.default_rng(client).normal(0, 1e-3, array.shape).astype(np.float32)


def measure_round(num_nodes: int, num_numbers: int, options: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of ``MEASURES`` of the first round."""
    rules = build_rules({"name": "average_all"}, {"name": "sgd"}, RunContext(1, 0))
    strategy = ComposedStrategy(
        rules, population=Population.from_size(num_nodes), communication=NativeProtocol(**options)
    )
    grid = TimedGrid(build_app(find_client, draw_array), {}, num_nodes)
    strategy.find_nodes(grid, range(num_nodes))
    arrays = encode_arrays({"w": np.zeros(num_numbers, np.float32)})
    before, grid.node_seconds, started = strategy.step_result.traffic, 0.0, time.process_time()
    messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    model, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
    seconds = time.process_time() - started
    assert model is not None, "the round has no model"
    after = strategy.step_result.traffic
    values = (
        grid.node_seconds / num_nodes,
        seconds - grid.node_seconds,
        (after.bytes_up - before.bytes_up) / num_nodes / 1e6,
        (after.bytes_down - before.bytes_down) / num_nodes / 1e6,
    )
    return dict(zip(MEASURES, values, strict=True))


def main() -> None:
    """Run all pairs of the command line, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("--numbers", type=int, default=NUM_NUMBERS, help="of the model")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    measure_round(3, 1000, KINDS["masks"])  # imports on use
    print(f"| nodes (k, t) | | {' | '.join(MEASURES)} |")
    print(f"| --- | --- |{' ---: |' * len(MEASURES)}", flush=True)
    for num_nodes in options.nodes:
        size = SecureAggregation().choose_size(num_nodes, 1.0)
        rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(options.pairs):
            for kind, given in KINDS.items():
                rounds[kind].append(measure_round(num_nodes, options.numbers, given))
        for kind, measured in rounds.items():
            cells = [statistics.median(one[name] for one in measured) for name in MEASURES]
            nodes = f"{num_nodes} ({size.num_neighbors}, {size.threshold})"
            first, second, *sizes = cells
            row = [nodes, kind, f"{first:.3f}", f"{second:.2f}", *(f"{one:.3f}" for one in sizes)]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
