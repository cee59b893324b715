"""Where the time of a deployed round goes: a SuperLink and SuperNodes over TLS on loopback.

    python benchmarks/deployed.py --rounds 10 --json deployed.json [--before DIR]

prints Markdown: seconds a round, and the stages of a message at its node, both medians. FedAvg, one
local epoch on rows of 8 numbers, so that nothing but the way to the clients takes time. DIR is a
checkout of an earlier version, whose app is run on the same kind of deployment.
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
    "Sending: ": "the client app: imports of PyTorch and the app, its work, Flower's 0.5 s looks",
    "Sent successfully": "the SuperNode sends the reply",
}
"""What a SuperNode's log says at the end of a stage, in their order within a message."""

POLL_SECONDS = 0.02  # seconds between two looks into the logs
NUM_SKIPPED_ROUNDS = 2  # in which nodes fetch and unpack the app


@dataclass(frozen=True)
class NodeSetup:
    """A way to run the nodes, and the app that runs on them."""

    app: Path
    preload: bool
    interval: float = 1.0


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    competitors = {
        **({"before": NodeSetup(words.before.resolve(), preload=False)} if words.before else {}),
        "own_wait": NodeSetup(ROOT, preload=False),
        "task_interval": NodeSetup(ROOT, preload=False, interval=0.1),
        "preload": NodeSetup(ROOT, preload=True, interval=0.1),
    }
    results = {}
    for name, competitor in competitors.items():
        print(f"{name} ...", file=sys.stderr)
        results[name] = measure_setup(competitor, words.nodes, words.rounds)
    if words.json:
        words.json.write_text(
            json.dumps({"machine": describe_machine(), "results": results}, indent=1)
        )
    print(format_stage_table(results))


def measure_setup(setup: NodeSetup, nodes: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of every round, and of every stage of every message."""
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
        with watch_logs([deployment.log(name) for name in names]) as lines:
            run_deployment(deployment, setup.app, nodes, rounds)
        records = (deployment.folder / "run" / "rounds.jsonl").read_text().splitlines()
    return {
        "seconds_a_round": [json.loads(line)["duration_seconds"] for line in records][
            NUM_SKIPPED_ROUNDS:
        ],
        "stages": compute_stage_times(lines),
    }


def run_deployment(deployment: Deployment, app: Path, nodes: int, rounds: int) -> None:
    """Run FedAvg with ``flwr run``."""
    overrides = (
        f"data=npz data.partition=device data.path=here.npz data.num_clients={nodes} "
        "data.input_shape=[8] data.num_classes=3 data.priority=[0] client.local_epochs=1 "
        f"strategy=fedavg evaluation.every=1000 rounds={rounds} engine.node_keys={deployment.nodes}"
    )
    config = f'experiment="custom" overrides="{overrides}" output-dir="{deployment.folder / "run"}"'
    done = deployment.run_flwr("run", str(app), "deployment", "--stream", "--run-config", config)
    if done.status:
        sys.exit(done.stdout + done.stderr)


@contextmanager
def watch_logs(paths: Sequence[Path]) -> Iterator[list[list[tuple[float, str]]]]:
    """Note when each new line of each log was seen."""
    lines: list[list[tuple[float, str]]] = [[] for _ in paths]
    sizes = [path.stat().st_size for path in paths]
    ended = Event()

    def look() -> None:
        while not ended.wait(POLL_SECONDS):
            for place, path in enumerate(paths):
                with path.open("rb") as file:
                    file.seek(sizes[place])
                    new = file.read()
                complete = new[: new.rfind(b"\n") + 1]
                sizes[place] += len(complete)
                now = time.monotonic()
                lines[place] += [(now, line) for line in complete.decode().splitlines()]

    thread = Thread(target=look)
    thread.start()
    try:
        yield lines
    finally:
        ended.set()
        thread.join()


def compute_stage_times(lines: Sequence[Sequence[tuple[float, str]]]) -> dict[str, list[float]]:
    """Return the seconds of every stage of all messages at all nodes."""
    found: dict[str, list[float]] = {name: [] for name in STAGES.values()}
    for of_node in lines:
        ends = [
            (when, stage)
            for when, line in of_node
            for text, stage in STAGES.items()
            if text in line
        ]
        for (before, _), (when, stage) in itertools.pairwise(ends):
            found[stage].append(when - before)
    return found


def format_stage_table(results: Mapping[str, Any]) -> str:
    """Return what was measured as Markdown, a column for each competitor."""

    def row(name: str, medians: Iterable[float]) -> list[str]:
        return [name, *[f"{seconds:.2f}" for seconds in medians]]

    found = results.values()
    rows = [
        ["", *results],
        ["---", *["---:"] * len(results)],
        *[
            row(stage, (_compute_median(r["stages"][stage]) for r in found))
            for stage in STAGES.values()
        ],
        row("**a round**", (_compute_median(r["seconds_a_round"]) for r in found)),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _compute_median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


if __name__ == "__main__":
    main()
