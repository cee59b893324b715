r"""Measure rounds per second of stock Flower, this project's engines, and the bare arithmetic.

    python benchmarks/engines.py --workload fmnist_logreg --json results.json

runs the competitors one after the other on the same data and prints a table. Use an idle machine,
and compare ratios within one run. Every competitor trains the same clients with the same numbers of
samples, steps and batches, and evaluates only in the last round. The time per round excludes the
first rounds, which load the data.

Memory is measured in a separate run, because watching it slows the run. Small differences, or
precise ratios, need pairs:

    python benchmarks/engines.py --workload pfl_cifar10 --peers --pairs 10
    python benchmarks/engines.py --workload pfl_cifar10 --only in_process_auto --pairs 10 \
        --baseline ../before --baseline-python ../before/venv/bin/python

run the competitors forward, backward, forward, ..., and print the median of the paired ratios with
its bootstrap interval of 95 %. ``--peers`` adds other simulators (benchmarks/peers/README.md),
``--baseline`` this project in another checkout.

``growth`` has no competitors: it runs the same work of 50 clients in ever larger federations.
"""

import argparse
import json
import os
import platform
import re
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bare_arithmetic import MODES
from benchmarks.pairing import Ratio, compute_paired_ratio, plan_repetitions
from benchmarks.peers.install import DEFAULT_ENVIRONMENTS, PEERS, find_missing_peers, get_python

HERE = Path(__file__).resolve().parent
NUM_WARMUP_ROUNDS = 2  # rounds that are not timed
MIN_ROUNDS = 2  # the last round evaluates and is not timed
NUM_MEMORY_ROUNDS = NUM_WARMUP_ROUNDS + 2  # rounds of the run that watches memory
REFERENCE = "in_process_auto"
BATCHING_MODES = ("auto", "batched", "sequential")
IMAGE_NDIM = 2  # dimensions of an image without channels
VARIANTS = {
    "fedprox": ("client.proximal_mu=0.1",),
    "local_momentum": ("client.momentum=0.9",),
    "weight_decay": ("client.weight_decay=0.001",),
}
"""Client optimizers beyond plain SGD."""
RAY_OVERRIDES = ("engine=ray", "engine.address=local")
BASELINE_PREFIX = "before_"
MARK_VARIABLE = "FEDQUORUM_BENCHMARK"


@dataclass(frozen=True)
class Workload:
    """A training workload.

    ``shape`` is that of one input: uint8 images (h, w) or (h, w, c), or float32 (d,). ``sizes`` has
    the number of samples of each client. ``hidden`` is None for logistic regression, else the
    widths of a CNN.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    clients_per_round: int
    batch_size: int
    local_epochs: int = 1
    local_steps: int | None = None
    hidden: tuple[int, ...] | None = None
    lr: float = 0.05
    # With equal clients this is FedAvg; like stock Flower's, it does not evaluate their losses.
    strategy: str = "strategy=average_participating"

    @property
    def channels(self) -> int:
        """The number of channels of an image."""
        return self.shape[2] if len(self.shape) > IMAGE_NDIM else 1

    @property
    def model(self) -> str:
        """The name of the model in stock_flower/stock_model.py."""
        if self.hidden is None:
            return f"logreg:{int(np.prod(self.shape))}:10"
        return ":".join(map(str, ("cnn", self.channels, self.shape[0], *self.hidden)))

    def count_steps(self, num_examples: int) -> int:
        """Return the number of local steps of a client in a round."""
        return self.local_steps or self.local_epochs * -(-num_examples // self.batch_size)

    @property
    def steps(self) -> float:
        """The expected number of local steps of a round's clients."""
        return sum(map(self.count_steps, self.sizes)) * self.clients_per_round / len(self.sizes)


WORKLOADS = {
    "fmnist_logreg": Workload((28, 28), (1_000,) * 60, 60, 32, local_epochs=5),
    "pfl_cifar10": Workload((32, 32, 3), (50,) * 1_000, 50, 10, hidden=(256, 64)),
    "flute_mnist": Workload((28, 28), (60,) * 1_000, 10, 10),
    "synth": Workload(
        (60,),
        tuple(50 + 30 * k for k in range(20)),
        20,
        32,
        local_epochs=5,
        lr=0.01,
        strategy="strategy=fedavg",
    ),
    "fedau_cnn": Workload(
        (28, 28),
        (240,) * 250,
        25,
        16,
        local_steps=5,
        hidden=(128,),
    ),
}
GROWTH_CLIENTS = (10, 100, 1_000, 10_000)
MAX_PEER_ATTEMPTS = 3  # torchrun's processes sometimes abort, also after their last round
PEER_WORKLOADS = ("fmnist_logreg", "pfl_cifar10", "fedau_cnn", "flute_mnist")


@dataclass(frozen=True)
class RunTiming:
    """The speed of one run, and the seconds from the command to the end of the first round."""

    rounds_per_second: float
    start_seconds: float | None = None


@dataclass(frozen=True)
class Competitor:
    """A competitor; ``run(rounds)`` makes one run of it."""

    name: str
    run: Callable[[int], RunTiming]
    measures_memory: bool = True


@dataclass(frozen=True)
class Result:
    """The result of one competitor over all its runs.

    ``rounds_per_second`` and ``start_seconds`` are medians over the runs. ``ms_a_round`` has the
    milliseconds per round of each run, in order. ``peak_memory_mb`` comes from a separate run.
    """

    name: str
    rounds_per_second: float
    peak_memory_mb: float | None
    start_seconds: float | None
    ms_a_round: list[float]


def main() -> None:
    """Run a workload and print its table."""
    options = _parse_options()
    with tempfile.TemporaryDirectory() as folder:
        competitors = select_competitors(build_competitors(options, Path(folder)), options.only)
        results = measure_competitors(
            competitors, options.rounds + NUM_WARMUP_ROUNDS, options.pairs, memory=options.memory
        )
    ratios = compute_ratios(results, options.reference, options.pairs)
    machine = describe_machine()
    print(f"{machine['processor']}, {machine['instruction_set']}, {machine['cores']} cores\n")
    _print_results(options.workload, results)
    _print_ratios(ratios)
    if options.json is not None:
        content = {
            "workload": options.workload,
            "results": [vars(result) for result in results],
            "ratios": [vars(ratio) for ratio in ratios],
            "machine": machine,
        }
        options.json.write_text(json.dumps(content, indent=2))


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=[*WORKLOADS, "growth"], required=True)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each competitor")
    parser.add_argument("--only", nargs="*", help="names of competitors (default: all)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--pairs", type=int, default=0, help="repetitions, forward and backward")
    parser.add_argument(
        "--reference",
        help=f"the competitor that --pairs compares with (default: {REFERENCE} or the first)",
    )
    parser.add_argument(
        "--memory",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure memory in separate runs",
    )
    parser.add_argument("--peers", action="store_true", help="also run other simulators")
    parser.add_argument(
        "--peers-dir", type=Path, default=DEFAULT_ENVIRONMENTS, help="the peers' environments"
    )
    parser.add_argument(
        "--variants", action="store_true", help="also run FedProx, momentum and weight decay"
    )
    parser.add_argument("--baseline", type=Path, help="another checkout of this project")
    parser.add_argument(
        "--baseline-python", default=sys.executable, help="the interpreter of --baseline"
    )
    options = parser.parse_args()
    if options.rounds < MIN_ROUNDS:
        parser.error(f"--rounds must be at least {MIN_ROUNDS}, got {options.rounds}")
    if options.peers:
        if options.workload not in PEER_WORKLOADS:
            parser.error(f"--peers needs one of the workloads {', '.join(PEER_WORKLOADS)}")
        check_peers(options.peers_dir, select_peers(options.only))
    return options


def select_peers(only: Sequence[str] | None) -> list[str]:
    """Return the peers whose competitors ``only`` names, by default all."""
    return [
        peer
        for peer in PEERS
        if not only or any(name == peer or name.startswith(f"{peer}_") for name in only)
    ]


def check_peers(environments: Path, peers: Sequence[str]) -> None:
    """Exit with the installing command if peers are missing."""
    names = " ".join(find_missing_peers(environments, list(peers)))
    if names:
        sys.exit(
            f"no {names} in {environments}; "
            f"install with: python -m benchmarks.peers.install {environments} {names}"
        )


def select_competitors(
    competitors: Iterator[Competitor], only: list[str] | None
) -> list[Competitor]:
    """Return the competitors named in ``only``, all by default; exit if a name is unknown."""
    available = list(competitors)
    unknown = set(only or ()) - {competitor.name for competitor in available}
    if unknown:
        names = ", ".join(competitor.name for competitor in available)
        sys.exit(f"--only must name some of {names}, got {', '.join(sorted(unknown))}")
    # A competitor's baseline runs whenever the competitor does.
    return [
        c
        for c in available
        if not only or c.name.removeprefix(BASELINE_PREFIX) in only or c.name in only
    ]


def measure_competitors(
    competitors: list[Competitor], rounds: int, pairs: int, *, memory: bool = True
) -> list[Result]:
    """Time every competitor in ``pairs`` interleaved repetitions, then measure its memory."""
    by_name = {competitor.name: competitor for competitor in competitors}
    runs: dict[str, list[RunTiming]] = {name: [] for name in by_name}
    for names in plan_repetitions(list(by_name), max(1, pairs)):
        for name in names:
            runs[name].append(by_name[name].run(rounds))
    watched = [c for c in competitors if memory and c.measures_memory]
    peaks = {c.name: _measure_peak_memory(c, min(rounds, NUM_MEMORY_ROUNDS)) for c in watched}
    return [_summarize_runs(name, runs[name], peaks.get(name)) for name in by_name]


def _measure_peak_memory(competitor: Competitor, rounds: int) -> float:
    """Return the peak memory of an untimed run, in MB."""
    with _watch_memory() as peak:
        competitor.run(rounds)
    return peak()


def _summarize_runs(name: str, runs: list[RunTiming], memory: float | None) -> Result:
    starts = [run.start_seconds for run in runs if run.start_seconds is not None]
    return Result(
        name,
        statistics.median(run.rounds_per_second for run in runs),
        memory,
        statistics.median(starts) if starts else None,
        [1000 / run.rounds_per_second for run in runs],
    )


def compute_ratios(results: list[Result], reference: str | None, pairs: int) -> list[Ratio]:
    """Return the paired ratios to the reference and to the baseline; none without pairs."""
    if pairs == 0:
        return []
    times = {result.name: result.ms_a_round for result in results}
    if reference is None:
        reference = REFERENCE if REFERENCE in times else next(iter(times))
    if reference not in times:
        sys.exit(f"--reference must be one of {', '.join(times)}, got {reference}")
    names = [name for name in times if not name.startswith(BASELINE_PREFIX)]
    pairings = [(name, reference) for name in names if name != reference]
    pairings += [
        (name, BASELINE_PREFIX + name) for name in names if BASELINE_PREFIX + name in times
    ]
    return [
        compute_paired_ratio(name, other, times[name], times[other]) for name, other in pairings
    ]


def build_competitors(options: argparse.Namespace, folder: Path) -> Iterator[Competitor]:
    """Yield the competitors of a workload; ``folder`` holds their data and output."""
    here = Checkout(HERE.parent, sys.executable)
    if options.workload == "growth":
        for clients in GROWTH_CLIENTS:
            work = Workload((28, 28), (50,) * clients, min(50, clients), 10)
            yield Competitor(
                f"{clients}_clients",
                partial(measure_workload, work, folder, here, device=options.device),
            )
        return
    work = WORKLOADS[options.workload]
    yield Competitor("stock_flower", partial(_run_stock_flower, work, folder, options.device))
    yield Competitor("flower_ray_2_nodes", partial(_run_on_flower, work, folder, options.device))
    run = partial(
        measure_workload,
        work,
        folder,
        here,
        device=options.device,
        overrides=(*RAY_OVERRIDES, "engine.workers=2"),
    )
    yield Competitor("ray_2_workers", run)
    checkouts = {"": here}
    if options.baseline is not None:
        checkouts[BASELINE_PREFIX] = Checkout(options.baseline.resolve(), options.baseline_python)
    for batching in BATCHING_MODES:
        for prefix, checkout in checkouts.items():
            run = partial(
                measure_workload, work, folder, checkout, device=options.device, batching=batching
            )
            yield Competitor(f"{prefix}in_process_{batching}", run)
    if options.variants:
        for name, overrides in VARIANTS.items():
            run = partial(
                measure_workload, work, folder, here, device=options.device, overrides=overrides
            )
            yield Competitor(f"in_process_{name}", run)
    yield Competitor("bare_arithmetic", BareArithmetic(work, options.device), measures_memory=False)
    if options.peers:
        yield from _build_peers(work, folder, options.peers_dir, options.device)


# --- data --------------------------------------------------------------------------------------


def write_workload_data(work: Workload, folder: Path) -> Path:
    """Write random data of the clients; only its size matters."""
    path = folder / f"{len(work.sizes)}-{'x'.join(map(str, work.shape))}.npz"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    n = sum(work.sizes)
    x: NDArray[Any]
    if len(work.shape) > 1:
        x = rng.integers(256, size=(n, *work.shape), dtype=np.uint8)
    else:
        x = rng.standard_normal((n, *work.shape), dtype=np.float32)
    client = np.repeat(np.arange(len(work.sizes)), work.sizes)
    np.savez(
        path,
        x_train=x,
        y_train=rng.integers(10, size=n),
        client_train=client,
        x_test=x[: len(work.sizes)],
        y_test=rng.integers(10, size=len(work.sizes)),
        client_test=np.arange(len(work.sizes)),
    )
    return path


def build_overrides(work: Workload, path: Path, device: str) -> list[str]:
    """Return the overrides of this app for a workload."""
    model = ["model=logistic_regression"]
    if work.hidden is not None:
        model = ["model=small_cnn", f"model.hidden={list(work.hidden)}"]
    steps = [] if work.local_steps is None else [f"client.local_steps={work.local_steps}"]
    return [
        "data=npz",
        f"data.path={path}",
        "data.partition=natural",
        "data.priority=all",
        *model,
        work.strategy,
        f"strategy.fraction={work.clients_per_round / len(work.sizes)}",
        f"client.lr={work.lr}",
        f"client.batch_size={work.batch_size}",
        f"client.local_epochs={work.local_epochs}",
        *steps,
        f"client.device={device}",
        "evaluation.every=1000000",
    ]


# --- competitors -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkout:
    """A folder with this project, and an interpreter with its dependencies."""

    folder: Path
    python: str


def run_workload(
    work: Workload,
    folder: Path,
    checkout: Checkout,
    rounds: int,
    *,
    device: str,
    batching: str = "auto",
    overrides: Sequence[str] = (),
) -> tuple[Path, RunTiming]:
    """Run a workload in a checkout; return the run's directory and speed."""
    home = _make_run_folder(folder)
    run, times = home / "run", home / "times"
    arguments = [
        *build_overrides(work, write_workload_data(work, folder), device),
        f"client.batching={batching}",
        *overrides,
        f"rounds={rounds}",
        f"hydra.run.dir={run}",
    ]
    paths = [checkout.folder, checkout.folder / "strategies"]
    started = time.time()
    _call(
        [checkout.python, str(checkout.folder / "benchmarks" / "timed.py"), str(times), *arguments],
        {"PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    # Only the last round evaluates, so it is not timed.
    return run, _compute_timing([float(line) for line in times.read_text().split()][:-1], started)


def measure_workload(*arguments: Any, **settings: Any) -> RunTiming:
    """Run a workload as ``run_workload`` does; return the speed."""
    return run_workload(*arguments, **settings)[1]


def _compute_timing(times: list[float], started: float) -> RunTiming:
    """Return the speed of a run from the time after each round."""
    return RunTiming(
        (len(times) - NUM_WARMUP_ROUNDS) / (times[-1] - times[NUM_WARMUP_ROUNDS - 1]),
        times[0] - started,
    )


def _make_run_folder(folder: Path) -> Path:
    """Create an empty folder for a run."""
    return Path(tempfile.mkdtemp(dir=folder))


def _run_on_flower(work: Workload, folder: Path, device: str, rounds: int) -> RunTiming:
    home = _make_run_folder(folder)
    run = home / "run"
    overrides = build_overrides(work, write_workload_data(work, folder), device)
    overrides += ["engine=flower", "engine.num_supernodes=2"]
    overrides += [f"rounds={rounds}", f"hydra.run.dir={run}"]
    started = time.time()
    with isolate_flower(home / "flwr") as variables:
        _call([_find_command("fedquorum"), *overrides], variables)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    seconds = [line["duration_seconds"] for line in lines][NUM_WARMUP_ROUNDS:-1]
    manifest = json.loads((run / "manifest.json").read_text())
    run_started = datetime.fromisoformat(manifest["started"]).timestamp()
    return RunTiming(
        len(seconds) / sum(seconds), run_started - started + lines[0]["duration_seconds"]
    )


def _run_stock_flower(work: Workload, folder: Path, device: str, rounds: int) -> RunTiming:
    home = _make_run_folder(folder)
    times = home / "times"
    config = {
        "data": str(write_workload_data(work, folder)),
        "model": work.model,
        "rounds": rounds,
        "clients": len(work.sizes),
        "clients-per-round": work.clients_per_round,
        "lr": work.lr,
        "batch-size": work.batch_size,
        "local-epochs": work.local_epochs,
        "local-steps": work.local_steps or 0,
        "times": str(times),
    }
    command = [_find_command("flwr"), "run", str(HERE / "stock_flower"), "--stream"]
    command += ["--run-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
    # One core for each client; the default of two would train one client at a time on two cores.
    federation = f"num-supernodes={len(work.sizes)} client-resources-num-cpus=1"
    if device == "cuda":  # one client for each core shares the GPU
        federation += f" client-resources-num-gpus={1 / len(os.sched_getaffinity(0))}"
    command += ["--federation-config", federation]
    with isolate_flower(home / "flwr") as variables:
        _call(command, variables)
        status = _get_status({**os.environ, **variables})
    ends = [float(line) for line in times.read_text().split()]
    if status != "finished:completed" or len(ends) != rounds + 1:
        sys.exit(f"stock Flower ended as {status} after {len(ends) - 1} rounds of {rounds}")
    return RunTiming((rounds - NUM_WARMUP_ROUNDS) / (ends[-1] - ends[NUM_WARMUP_ROUNDS]))


class BareArithmetic:
    """The bare arithmetic of a round, in the faster mode of sharing the cores.

    Interleaved trials select the mode once. Selecting it in every run would make the times bimodal.
    """

    TRIALS = 3

    def __init__(self, work: Workload, device: str) -> None:
        height = work.shape[:IMAGE_NDIM] if work.hidden is not None else work.shape
        self._job = {
            "shape": [work.channels, *height] if work.hidden is not None else list(height),
            "clients": work.clients_per_round,
            "batch_size": work.batch_size,
            "steps": work.steps / work.clients_per_round,
            "hidden": work.hidden,
            "device": device,
        }
        self._modes = MODES if device == "cpu" else MODES[-1:]

    def __call__(self, rounds: int) -> RunTiming:
        """Return the speed of the median round."""
        if len(self._modes) > 1:
            trials = [
                (self._measure(mode, rounds), mode)
                for _ in range(self.TRIALS)
                for mode in self._modes
            ]
            self._modes = (min(trials)[1],)
            print(f"bare arithmetic shares the cores by: {self._modes[0]}", file=sys.stderr)
        return RunTiming(1 / self._measure(self._modes[0], rounds))

    def _measure(self, mode: str, rounds: int) -> float:
        job = json.dumps(self._job | {"mode": mode, "rounds": rounds})
        printed = _call([sys.executable, str(HERE / "bare_arithmetic.py"), job], {})
        return statistics.median(json.loads(printed.splitlines()[-1])[NUM_WARMUP_ROUNDS:])


def _build_peers(
    work: Workload, folder: Path, environments: Path, device: str
) -> Iterator[Competitor]:
    """Yield the other simulators; pfl also with two processes and with channels last."""
    for layout in ("", "_channels_last") if work.hidden is not None else ("",):
        for processes, suffix in ((1, ""), (2, "_2_processes")):
            command = [str(get_python(environments, "pfl"))]
            if processes > 1:
                command += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
            run = partial(
                _run_peer, work, folder, "pfl", command, channels_last=bool(layout), device=device
            )
            yield Competitor(f"pfl{layout}{suffix}", run)
    for peer in PEERS:
        if peer != "pfl":
            command = [str(get_python(environments, peer))]
            yield Competitor(peer, partial(_run_peer, work, folder, peer, command))


def _run_peer(
    work: Workload,
    folder: Path,
    peer: str,
    command: list[str],
    rounds: int,
    *,
    channels_last: bool = False,
    device: str = "cpu",
) -> RunTiming:
    job = {
        "data": str(write_workload_data(work, folder)),
        "model": work.model,
        "clients": len(work.sizes),
        "clients_per_round": work.clients_per_round,
        "rounds": rounds,
        "batch_size": work.batch_size,
        "local_epochs": work.local_epochs,
        "local_steps": work.local_steps,
        "lr": work.lr,
        "channels_last": channels_last,
    }
    runner = HERE / "peers" / f"{peer}_runner.py"
    started = time.time()
    command = [*command, str(runner), json.dumps(job)]
    variables = {"PFL_PYTORCH_DEVICE": device}
    printed = _call(command, variables, cwd=_make_run_folder(folder), retries=MAX_PEER_ATTEMPTS - 1)
    report = json.loads(printed.splitlines()[-1])
    check_steps(peer, report["steps"], work.steps * rounds)
    return _compute_timing(report["times"], started)


def check_steps(peer: str, steps: int, expected: float) -> None:
    """Exit if a peer has trained more or fewer steps than this project would."""
    if steps != expected:
        sys.exit(f"{peer} made {steps} local steps where this project makes {expected:.0f}")


# --- processes ---------------------------------------------------------------------------------


def _find_command(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _call(
    command: list[str], variables: dict[str, str], cwd: Path | None = None, *, retries: int = 0
) -> str:
    """Run a command, again up to ``retries`` times if it fails; return its output."""
    env = {**os.environ, **variables}
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    problem = f"{shlex.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    if not retries:
        sys.exit(problem)
    print(f"Failed, running again: {problem}", file=sys.stderr)
    return _call(command, variables, cwd, retries=retries - 1)


def _get_status(env: dict[str, str]) -> str:
    """Return the status of the SuperLink's only run, which flwr run --stream does not report."""
    command = [_find_command("flwr"), "list", "--format", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return str(json.loads(done.stdout)["runs"][0]["status"])


@contextmanager
def isolate_flower(home: Path) -> Iterator[dict[str, str]]:
    """Give Flower a separate home and ports, and stop its SuperLink at the end."""
    port = _find_free_port()
    yield {
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_LOCAL_CONTROL_API_PORT": str(_find_free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # the process has ended
            if re.search(f"flower-superlink .*--port {port} ", " ".join(process.cmdline())):
                process.terminate()


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _watch_memory() -> Iterator[Callable[[], float]]:
    """Watch the memory of all processes that start within the context.

    Sums their proportional set sizes four times a second, so that shared pages count once. This
    slows the watched processes.
    """
    value = f"{os.getpid()}-{time.monotonic_ns()}"
    stop, peak = threading.Event(), [0.0]

    def watch() -> None:
        mark = f"{MARK_VARIABLE}={value}".encode()
        while not stop.wait(0.25):
            peak[0] = max(peak[0], sum(map(_read_pss, _find_marked(mark))))

    os.environ[MARK_VARIABLE] = value
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: round(peak[0] / 1024, 1)
    finally:
        del os.environ[MARK_VARIABLE]
        stop.set()
        thread.join()


def _find_marked(mark: bytes) -> Iterator[Path]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield folder
        except OSError:
            continue


def _read_pss(folder: Path) -> int:
    """Return a process's proportional set size in kB, 0 if it has ended."""
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


# --- output ------------------------------------------------------------------------------------


def describe_machine() -> dict[str, Any]:
    """Describe this machine and its software."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "platform": platform.platform(),
        "processor": _get_processor(),
        "instruction_set": _get_instruction_set(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _get_processor() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor()


def _get_instruction_set() -> str:
    """Return the widest vector instructions that torch uses, such as "AVX2", and AMX if present."""
    path = Path("/proc/cpuinfo")
    has_amx = path.exists() and "amx_tile" in path.read_text().split()
    return torch.backends.cpu.get_cpu_capability() + (" and AMX" if has_amx else "")


def _print_results(workload: str, results: list[Result]) -> None:
    base = next((r.rounds_per_second for r in results if r.name == "stock_flower"), None)
    bare = next((r.rounds_per_second for r in results if r.name == "bare_arithmetic"), None)
    print(f"| {workload} | ms a round | rounds/s | times stock Flower | times bare | peak MB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for r in results:
        speed = r.rounds_per_second
        print(
            f"| {r.name} | {1000 / speed:.1f} | {speed:.2f} "
            f"| {'' if base is None else f'{speed / base:.1f}'} "
            f"| {'' if bare is None else f'{bare / speed:.2f}'} "
            f"| {'' if r.peak_memory_mb is None else f'{r.peak_memory_mb:.0f}'} |"
        )


def _print_ratios(ratios: list[Ratio]) -> None:
    if not ratios:
        return
    print(f"\n| time of | over time of | median of {ratios[0].pairs} pairs | 95 % interval |")
    print("| --- | --- | ---: | ---: |")
    for r in ratios:
        print(f"| {r.name} | {r.reference} | {r.median:.3f} | {r.low:.3f} to {r.high:.3f} |")


if __name__ == "__main__":
    main()
