"""Measure memory and time of the server by the size of the model; no client trains.

    OMP_NUM_THREADS=1 python benchmarks/large_models.py --parameters 1_000_000 --json large.json

prints Markdown. For every drop-in strategy it has the peak memory of a round above that of the
process without a model, in models (float32), with and without pages of files, which the system
reclaims when it needs memory; the processor time of a round; and the server's state between rounds.
Every case runs in a separate process. The replies are Flower's messages, made one by one when they
are fetched, so no reply takes memory before its turn. The time to make them is not counted.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.run import Run

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fedquorum
from fedquorum import Robustness, WaitingGrid
from fedquorum.flower.codec import decode_arrays, encode_arrays, select_records
from fedquorum.flower.strategies import DropInStrategy
from fedquorum.flower.waiting_grid import AwaitableGrid

from server_app.engines.in_process import assign_id, set_task_identity

NUM_LAYERS = 16
NUM_ROUNDS = 3  # the first round is not measured
POLL_SECONDS = 0.002
TEMPORARY_FOLDER = "FOLDER"
"""A placeholder for a temporary folder of the case."""

CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FedAvg": ("FedAvg", {}),
    "FedAU": ("FedAU", {}),
    "FedAvg, clip_norm": ("FedAvg", {"robustness": Robustness(clip_norm=1e-3)}),
    "FedAvg, Adam": ("FedAvg", {"server_optimizer": fedquorum.rules.server_optimizer.Adam}),
    "FedALIGN": (
        "FedALIGN",
        {"num_rounds": NUM_ROUNDS, "priority": [0, 1], "epsilon": 10.0, "warmup_fraction": 0.0},
    ),
    "AAggFF-S": ("AAggFFS", {}),
    "q-FedAvg": ("QFedAvg", {}),
    "FedMGDA+": ("FedMGDAPlus", {}),
    "FedAvg, max_weight": ("FedAvg", {"robustness": Robustness(max_weight=0.5)}),
    "FedVarp": ("FedVarp", {}),
    "MIFA": ("MIFA", {}),
    "FedVarp, memory_dir": ("FedVarp", {"memory_dir": TEMPORARY_FOLDER}),
}


@dataclass(frozen=True)
class CaseCost:
    """The cost of one case; memory and state are in models of float32.

    Parameters
    ----------
    memory : float
        The peak memory above that of the process without a model.
    anonymous : float
        The same without pages of files.
    seconds : float
        Processor time of one round, without making the replies.
    state : float
        The server's state between rounds besides the model.
    """

    name: str
    parameters: int
    clients: int
    memory: float
    anonymous: float
    seconds: float
    state: float


class LazyReplyGrid(AwaitableGrid):
    """A grid that makes each reply when it is fetched, one by one."""

    def __init__(self, clients: int, on_second_round: Callable[[], None]) -> None:
        set_task_identity()
        self._clients = clients
        self._on_second_round = on_second_round
        self._waiting: dict[str, Message] = {}
        self._ready: list[str] = []
        self._pushes = 0
        self.seconds = 0.0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Store the messages; the second round starts here."""
        pushed = {assign_id(message): message for message in messages}
        self._waiting |= pushed
        self._pushes += 1
        if self._pushes == 2:  # noqa: PLR2004 - the second round
            self._on_second_round()
        return list(pushed)

    def wait(self, message_ids: Collection[str], timeout: float) -> None:
        """Make one reply available."""
        self._ready = [key for key in self._waiting if key in message_ids][:1]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Build the available replies."""
        ready, self._ready = self._ready, []
        return [self._build_reply(self._waiting.pop(key)) for key in ready]

    def _build_reply(self, message: Message) -> Message:
        started = time.thread_time()
        node = message.metadata.dst_node_id
        updated = ArrayRecord()
        for name, array in select_records(message.content, ArrayRecord)["arrays"].items():
            layer = decode_arrays(ArrayRecord({name: array}))[name]
            layer += np.float32(1e-4 * node)
            updated[name] = encode_arrays({name: layer})[name]
        metrics = MetricRecord({"num-examples": 100 + node, "loss": 1.0 + 0.1 * node})
        content = RecordDict({"arrays": updated, "metrics": metrics})
        reply = Message(content, reply_to=message)
        self.seconds += time.thread_time() - started
        return reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Wait as ``WaitingGrid`` does."""
        return WaitingGrid(self).send_and_receive(messages, timeout=timeout)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return range(1, self._clients + 1)

    def set_run(self, run: Run) -> None:
        """Do nothing; the run is never read."""

    @property
    def run(self) -> Run:
        """An empty run."""
        return Run.create_empty(0)

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Raise, because strategies create their messages themselves."""
        raise NotImplementedError


class MemoryWatcher:
    """Record the peak memory of this process, sampled every other millisecond."""

    def __init__(self) -> None:
        self.anonymous = self.memory = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def reset(self) -> None:
        """Start again from zero."""
        self.anonymous = self.memory = 0

    def _watch(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            pages = read_resident_memory()
            self.anonymous = max(self.anonymous, pages["RssAnon"])
            self.memory = max(self.memory, pages["VmRSS"])


def read_resident_memory() -> dict[str, int]:
    """Return the resident memory of this process by kind, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.startswith(("VmRSS", "RssAnon")))
    return {kind.rstrip(":"): 1024 * int(size) for kind, size, *_ in fields}


def build_equal_layers(num_parameters: int) -> ArrayRecord:
    """Build a random model of equal layers."""
    layers = ArrayRecord()
    for index in range(NUM_LAYERS):
        size = num_parameters * (index + 1) // NUM_LAYERS - num_parameters * index // NUM_LAYERS
        rng = np.random.default_rng(index)
        layer = rng.standard_normal(size, dtype=np.float32)
        layers[f"layer.{index}"] = encode_layer(layer)
    return layers


def encode_layer(layer: np.ndarray[Any, np.dtype[np.float32]]) -> Any:
    """Encode one array for Flower's ArrayRecord."""
    return encode_arrays({"layer": layer})["layer"]


def measure_case(name: str, parameters: int, clients: int, options: Mapping[str, Any]) -> CaseCost:
    """Measure one case in this process."""
    class_name, arguments = CASES[name]
    strategy_class: type[DropInStrategy] = getattr(fedquorum, class_name)
    with tempfile.TemporaryDirectory() as folder, MemoryWatcher() as watch:
        resolved = {
            key: folder if value == TEMPORARY_FOLDER else value for key, value in arguments.items()
        }
        strategy = strategy_class(
            fraction_evaluate=0.0, client_ids="node-order", **resolved, **options
        )
        before, started = read_resident_memory(), 0.0
        grid: LazyReplyGrid

        def start_measuring() -> None:
            nonlocal started
            watch.reset()
            started = time.thread_time() - grid.seconds

        grid = LazyReplyGrid(clients, start_measuring)
        strategy.start(
            strategy.build_waiting_grid(grid), build_equal_layers(parameters), num_rounds=NUM_ROUNDS
        )
        seconds = (time.thread_time() - grid.seconds - started) / (NUM_ROUNDS - 1)
        size = 4 * parameters
        return CaseCost(
            name,
            parameters,
            clients,
            memory=(watch.memory - before["VmRSS"]) / size,
            anonymous=(watch.anonymous - before["RssAnon"]) / size,
            seconds=seconds,
            state=strategy.step_result.state_bytes / size,
        )


def main() -> None:
    """Print the table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--reply-memory", type=int, help="bytes of replies held in memory")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    reply_memory = arguments.reply_memory
    options = {} if reply_memory is None else {"reply_memory": reply_memory}
    if arguments.child:
        logging.disable()
        cost = measure_case(arguments.cases[0], arguments.parameters[0], arguments.clients, options)
        print(json.dumps(asdict(cost)))
        return
    print("| strategy | parameters | clients | memory | anonymous | s a round | state |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    results = []
    for parameters in arguments.parameters:
        for name in arguments.cases:
            cost = measure_in_child(name, parameters, arguments)
            results.append(asdict(cost))
            print(
                f"| {name} | {parameters:,} | {cost.clients} | {cost.memory:.1f} "
                f"| {cost.anonymous:.1f} | {cost.seconds:.3f} | {cost.state:.1f} |",
                flush=True,
            )
    if arguments.json is not None:
        from benchmarks.engines import describe_machine

        content = {"workload": "large_models", "results": results, "machine": describe_machine()}
        arguments.json.write_text(json.dumps(content, indent=2))


def measure_in_child(name: str, parameters: int, arguments: argparse.Namespace) -> CaseCost:
    """Measure one case in a separate process."""
    options = ["--child", "--cases", name, "--parameters", parameters]
    options += ["--clients", arguments.clients]
    if arguments.reply_memory is not None:
        options += ["--reply-memory", arguments.reply_memory]
    command = [sys.executable, __file__, *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return CaseCost(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
