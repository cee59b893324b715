"""Profile a deployed round: a SuperLink and SuperNodes over TLS on loopback.

    python benchmarks/deployed.py --rounds 10 --json deployed.json [--before DIR]

prints Markdown: the median seconds of a round and of each stage of a message at its node. FedAvg
trains one local epoch on rows of 8 numbers, so communication dominates the time. DIR is a checkout
of an earlier version, whose app runs on the same kind of deployment.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.engines import describe_machine
from tests.integration.conftest import ROOT
from tests.integration.deployed import Deployment, make_client_data, start_deployment

STAGES = {
    "Receiving: ": "until the SuperNode asks for it",
    "Received successfully": "the SuperNode receives it",
    "Start `flwr-clientapp` process": "Flower's task interval, and the imports of Flower",
    "Sending: ": "the client app: imports of PyTorch and the app, its work, Flower's 0.5 s polls",
    "Sent successfully": "the SuperNode sends the reply",
}
"""The text in a SuperNode's log that ends each stage, in the order of a message."""

MAX_RUN_SECONDS = 1800.0
POLL_SECONDS = 0.02  # seconds between two reads of the logs
NUM_SKIPPED_ROUNDS = 2  # rounds in which nodes fetch and unpack the app


@dataclass(frozen=True)
class NodeSetup:
    """The app, and the settings of the nodes that run it."""

    app: Path
    preload: bool
    interval: float = 1.0


def main() -> None:
    """Measure all setups of the command line, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    competitors = {
        **(
            {"before": NodeSetup(options.before.resolve(), preload=False)} if options.before else {}
        ),
        "own_wait": NodeSetup(ROOT, preload=False),
        "task_interval": NodeSetup(ROOT, preload=False, interval=0.1),
        "preload": NodeSetup(ROOT, preload=True, interval=0.1),
    }
    results = {}
    for name, competitor in competitors.items():
        print(f"{name} ...", file=sys.stderr)
        results[name] = measure_setup(competitor, options.nodes, options.rounds)
    if options.json:
        options.json.write_text(
            json.dumps({"machine": describe_machine(), "results": results}, indent=1)
        )
    print(format_stage_table(results))


def measure_setup(setup: NodeSetup, nodes: int, rounds: int) -> dict[str, Any]:
    """Measure the seconds of every round, and of every stage of every message."""
    with (
        start_nodes(setup, nodes) as deployment,
        watch_logs([deployment.log(f"node-{k}") for k in range(nodes)]) as lines,
    ):
        records = run_deployment(deployment, setup.app, nodes, rounds)
    return {
        "seconds_a_round": [one["duration_seconds"] for one in records[NUM_SKIPPED_ROUNDS:]],
        "stages": compute_stage_times(lines),
    }


@contextmanager
def start_nodes(setup: NodeSetup, nodes: int) -> Iterator[Deployment]:
    """Start a deployment whose nodes have one client each."""
    with (
        tempfile.TemporaryDirectory(prefix="deployed-") as folder,
        start_deployment(Path(folder)) as deployment,
    ):
        names = [f"node-{k}" for k in range(nodes)]
        deployment.register_clients(names)
        deployment.env["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = str(setup.interval)
        for k, name in enumerate(names):
            data = deployment.folder / f"{name}.npz"
            np.savez(data, **make_client_data(k))
            deployment.start_node(name, k, data=data, preload=setup.preload)
        yield deployment


def run_deployment(
    deployment: Deployment,
    app: Path,
    nodes: int,
    rounds: int,
    *,
    words: str = "strategy=fedavg evaluation.every=1000",
    name: str = "run",
) -> list[dict[str, Any]]:
    """Run a strategy with ``flwr run``, and return the records of its rounds."""
    overrides = (
        f"data=npz data.partition=device data.path=here.npz data.num_clients={nodes} "
        "data.input_shape=[8] data.num_classes=3 data.priority=[0] client.local_epochs=1 "
        f"{words} rounds={rounds} engine.node_keys={deployment.nodes}"
    )
    config = f'experiment="custom" overrides="{overrides}" output-dir="{deployment.folder / name}"'
    command = ("run", str(app), "deployment", "--stream", "--run-config", config)
    done = deployment.run_flwr(*command, timeout=MAX_RUN_SECONDS)
    if done.status:
        sys.exit(done.stdout + done.stderr)
    lines = (deployment.folder / name / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@contextmanager
def watch_logs(paths: Sequence[Path]) -> Iterator[list[list[tuple[float, str]]]]:
    """Record the time of each new line of each log."""
    lines: list[list[tuple[float, str]]] = [[] for _ in paths]
    sizes = [path.stat().st_size for path in paths]
    ended = Event()

    def poll() -> None:
        while not ended.wait(POLL_SECONDS):
            for index, path in enumerate(paths):
                with path.open("rb") as file:
                    file.seek(sizes[index])
                    new = file.read()
                complete = new[: new.rfind(b"\n") + 1]
                sizes[index] += len(complete)
                now = time.monotonic()
                lines[index] += [(now, line) for line in complete.decode().splitlines()]

    thread = Thread(target=poll)
    thread.start()
    try:
        yield lines
    finally:
        ended.set()
        thread.join()


def compute_stage_times(lines: Sequence[Sequence[tuple[float, str]]]) -> dict[str, list[float]]:
    """Return the seconds of every stage of all messages at all nodes."""
    seconds: dict[str, list[float]] = {stage: [] for stage in STAGES.values()}
    for node_lines in lines:
        ends = [
            (end, stage)
            for end, line in node_lines
            for text, stage in STAGES.items()
            if text in line
        ]
        for (start, _), (end, stage) in itertools.pairwise(ends):
            seconds[stage].append(end - start)
    return seconds


def format_stage_table(results: Mapping[str, Any]) -> str:
    """Format the medians as Markdown, a column for each competitor."""

    def build_row(name: str, medians: Iterable[float]) -> list[str]:
        return [name, *[f"{seconds:.2f}" for seconds in medians]]

    columns = results.values()
    rows = [
        ["", *results],
        ["---", *["---:"] * len(results)],
        *[
            build_row(stage, (_compute_median(r["stages"][stage]) for r in columns))
            for stage in STAGES.values()
        ],
        build_row("**a round**", (_compute_median(r["seconds_a_round"]) for r in columns)),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _compute_median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


if __name__ == "__main__":
    main()
