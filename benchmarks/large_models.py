"""Memory and time of the server alone, by the size of the model: no client trains.

    OMP_NUM_THREADS=1 python benchmarks/large_models.py --parameters 1_000_000 --json large.json

prints Markdown: for every drop-in strategy the largest memory of a round above that of the process
before it had a model, in models (float32), once of all pages and once without those of files,
which the system takes back where it needs memory; the processor time of a round; and what the
server keeps between rounds. Every case runs in a process of its own. The replies are Flower's
messages, made one by one as they are fetched, so no reply takes memory before its turn; making
them is not counted.
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
from fedquorum.flower.waiting import AwaitableGrid

from server_app.in_process import assign_id, set_task_identity

NUM_LAYERS = 16
NUM_ROUNDS = 3  # the first is not measured
POLL_SECONDS = 0.002
TEMPORARY_FOLDER = "FOLDER"
"""Stands for a folder that is made for the case."""

CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FedAvg": ("FedAvg", {}),
    "FedAU": ("FedAU", {}),
    "FedAvg, clip_norm": ("FedAvg", {"robustness": Robustness(clip_norm=1e-3)}),
    "FedAvg, Adam": ("FedAvg", {"server_optimizer": fedquorum.server_optimizer.Adam}),
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
    """One case; memory and state in models of float32.

    Parameters
    ----------
    memory : float
        The largest memory above that of the process without a model.
    anonymous : float
        The same without the pages of files.
    seconds : float
        Processor time of one round, without making the replies.
    state : float
        What the server keeps between rounds beside the model.
    """

    name: str
    parameters: int
    clients: int
    memory: float
    anonymous: float
    seconds: float
    state: float


class LazyReplyGrid(AwaitableGrid):
    """Nodes whose replies are made when they are fetched, one by one."""

    def __init__(self, clients: int, started: Callable[[], None]) -> None:
        set_task_identity()
        self._clients = clients
        self._started = started
        self._waiting: dict[str, Message] = {}
        self._ready: list[str] = []
        self._pushes = 0
        self.seconds = 0.0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note what is asked; the second round begins to be measured here."""
        given = {assign_id(message): message for message in messages}
        self._waiting |= given
        self._pushes += 1
        if self._pushes == 2:  # noqa: PLR2004 - the second round
            self._started()
        return list(given)

    def wait(self, message_ids: Collection[str], timeout: float) -> None:
        """Let one reply be there."""
        self._ready = [key for key in self._waiting if key in message_ids][:1]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Make the replies that are there."""
        ready, self._ready = self._ready, []
        return [self._build_reply(self._waiting.pop(key)) for key in ready]

    def _build_reply(self, message: Message) -> Message:
        begin = time.thread_time()
        node = message.metadata.dst_node_id
        moved = ArrayRecord()
        for name, array in select_records(message.content, ArrayRecord)["arrays"].items():
            layer = decode_arrays(ArrayRecord({name: array}))[name]
            layer += np.float32(1e-4 * node)
            moved[name] = encode_arrays({name: layer})[name]
        metrics = MetricRecord({"num-examples": 100 + node, "loss": 1.0 + 0.1 * node})
        content = RecordDict({"arrays": moved, "metrics": metrics})
        reply = Message(content, reply_to=message)
        self.seconds += time.thread_time() - begin
        return reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Wait as ``WaitingGrid`` does."""
        return WaitingGrid(self).send_and_receive(messages, timeout=timeout)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes."""
        return range(1, self._clients + 1)

    def set_run(self, run: Run) -> None:
        """Do nothing: nobody asks."""

    @property
    def run(self) -> Run:
        """An empty one."""
        return Run.create_empty(0)

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Make no message: strategies make their own."""
        raise NotImplementedError


class MemoryWatcher:
    """Notes the largest memory of this process, by looking every other millisecond."""

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
        """Forget what was seen so far."""
        self.anonymous = self.memory = 0

    def _watch(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            pages = read_resident_memory()
            self.anonymous = max(self.anonymous, pages["RssAnon"])
            self.memory = max(self.memory, pages["VmRSS"])


def read_resident_memory() -> dict[str, int]:
    """Return what memory this process has, in bytes, by kind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kinds = (line.split() for line in lines if line.startswith(("VmRSS", "RssAnon")))
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in kinds}


def build_equal_layers(num_parameters: int) -> ArrayRecord:
    """Return a model of so many numbers in equal layers."""
    layers = ArrayRecord()
    for place in range(NUM_LAYERS):
        size = num_parameters * (place + 1) // NUM_LAYERS - num_parameters * place // NUM_LAYERS
        rng = np.random.default_rng(place)
        layer = rng.standard_normal(size, dtype=np.float32)
        layers[f"layer.{place}"] = encode_layer(layer)
    return layers


def encode_layer(layer: np.ndarray[Any, np.dtype[np.float32]]) -> Any:
    """Return one array as Flower's record has it."""
    return encode_arrays({"layer": layer})["layer"]


def measure_case(name: str, parameters: int, clients: int, options: Mapping[str, Any]) -> CaseCost:
    """Return what one case takes, in this process."""
    kind, given = CASES[name]
    made: type[DropInStrategy] = getattr(fedquorum, kind)
    with tempfile.TemporaryDirectory() as folder, MemoryWatcher() as watch:
        words = {
            key: folder if value == TEMPORARY_FOLDER else value for key, value in given.items()
        }
        strategy = made(fraction_evaluate=0.0, client_ids="node-order", **words, **options)
        before, begin = read_resident_memory(), 0.0
        grid: LazyReplyGrid

        def start_worker() -> None:
            nonlocal begin
            watch.reset()
            begin = time.thread_time() - grid.seconds

        grid = LazyReplyGrid(clients, start_worker)
        strategy.start(
            strategy.build_waiting_grid(grid), build_equal_layers(parameters), num_rounds=NUM_ROUNDS
        )
        seconds = (time.thread_time() - grid.seconds - begin) / (NUM_ROUNDS - 1)
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
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--reply-memory", type=int, help="bytes of replies kept in memory")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    options = {} if given.reply_memory is None else {"reply_memory": given.reply_memory}
    if given.child:
        logging.disable()
        measured = measure_case(given.cases[0], given.parameters[0], given.clients, options)
        print(json.dumps(asdict(measured)))
        return
    print("| strategy | parameters | clients | memory | anonymous | s a round | state |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    results = []
    for parameters in given.parameters:
        for name in given.cases:
            found = measure_in_child(name, parameters, given)
            results.append(asdict(found))
            print(
                f"| {name} | {parameters:,} | {found.clients} | {found.memory:.1f} "
                f"| {found.anonymous:.1f} | {found.seconds:.3f} | {found.state:.1f} |",
                flush=True,
            )
    if given.json is not None:
        from benchmarks.engines import describe_machine

        text = {"workload": "large_models", "results": results, "machine": describe_machine()}
        given.json.write_text(json.dumps(text, indent=2))


def measure_in_child(name: str, parameters: int, given: argparse.Namespace) -> CaseCost:
    """Return what one case takes in a process of its own."""
    words = ["--child", "--cases", name, "--parameters", parameters, "--clients", given.clients]
    if given.reply_memory is not None:
        words += ["--reply-memory", given.reply_memory]
    command = [sys.executable, __file__, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return CaseCost(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
