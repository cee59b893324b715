"""Rounds per second: stock Flower, this project on Ray and in process, and the bare arithmetic.

    python benchmarks/engines.py --workload fmnist_logreg --json results.json

runs the competitors one after the other on the same data and prints a table; run it on a machine
that does nothing else, and compare ratios, which are of one run. Every competitor trains the same
clients with the same numbers of samples, steps and batches; nobody evaluates before the last
round. The first rounds, in which data is loaded, are left out of the time per round.

``growth`` has no competitors: the same 50 clients' work in ever larger federations.
"""

import argparse
import json
import os
import platform
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
WARM = 2  # rounds that are not timed
MARK = "FEDQUORUM_BENCHMARK"


@dataclass(frozen=True)
class Workload:
    """What is trained.

    ``shape`` of one input, uint8 images (h, w) or (h, w, c), or float32 (d,); ``sizes`` samples
    of each client; ``asked`` how many train in a round; ``hidden`` None for logistic regression,
    else a CNN.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    asked: int
    batch_size: int
    local_epochs: int = 1
    local_steps: int | None = None
    hidden: tuple[int, ...] | None = None
    lr: float = 0.05
    # Of equal clients the same as FedAvg, and like stock Flower's it does not measure their losses.
    strategy: str = "strategy=average_participating"


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
GROWTH = (10, 100, 1_000, 10_000)


@dataclass(frozen=True)
class Result:
    """One competitor's; ``start_seconds`` from the command to the end of the first round."""

    name: str
    rounds_per_second: float
    peak_memory_mb: float | None
    start_seconds: float | None = None


def main() -> None:
    """Run a workload and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=[*WORKLOADS, "growth"], required=True)
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each competitor")
    parser.add_argument("--only", nargs="*", help="names of competitors, by default all")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [
            result
            for name, run in _competitors(options, Path(folder))
            if not options.only or name in options.only
            for result in [run()]
        ]
    _print(options.workload, results)
    if options.json is not None:
        text = {"results": [vars(result) for result in results], "machine": machine()}
        options.json.write_text(json.dumps({"workload": options.workload, **text}, indent=2))


def _competitors(
    options: argparse.Namespace, folder: Path
) -> Iterator[tuple[str, Callable[[], Result]]]:
    rounds = options.rounds + WARM
    if options.workload == "growth":
        for clients in GROWTH:
            work = Workload((28, 28), (50,) * clients, min(50, clients), 10)
            name = f"{clients}_clients"
            yield name, partial(_in_process, work, folder, rounds, name=name, device=options.device)
        return
    work = WORKLOADS[options.workload]
    yield "stock_flower", lambda: _stock_flower(work, folder, rounds)
    yield "ray_2_nodes", lambda: _on_ray(work, folder, rounds, options.device)
    for batching in ("batched", "sequential"):
        name = f"in_process_{batching}"
        yield (
            name,
            partial(
                _in_process,
                work,
                folder,
                rounds,
                name=name,
                device=options.device,
                batching=batching,
            ),
        )
    yield "bare_arithmetic", lambda: _bare(work, options.device)


# --- data --------------------------------------------------------------------------------------


def _data(work: Workload, folder: Path) -> Path:
    """Write the clients' data: random, since only its size matters here."""
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


def _overrides(work: Workload, path: Path, device: str) -> list[str]:
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
        f"strategy.fraction={work.asked / len(work.sizes)}",
        f"client.lr={work.lr}",
        f"client.batch_size={work.batch_size}",
        f"client.local_epochs={work.local_epochs}",
        *steps,
        f"client.device={device}",
        "evaluation.every=1000000",
    ]


# --- competitors -------------------------------------------------------------------------------


def _in_process(
    work: Workload, folder: Path, rounds: int, *, name: str, device: str, batching: str = "batched"
) -> Result:
    words = _overrides(work, _data(work, folder), device)
    run = folder / name
    words += [f"client.batching={batching}", f"rounds={rounds}", f"hydra.run.dir={run}"]
    times = folder / f"{name}-times"
    started = time.time()
    with _memory({"PYTHONPATH": str(HERE.parent)}) as (peak, env):
        _call([sys.executable, str(HERE / "timed.py"), str(times), *words], env)
    noted = [float(line) for line in times.read_text().split()]
    # The last round is not timed: it alone evaluates.
    speed = (len(noted) - WARM - 1) / (noted[-2] - noted[WARM - 1])
    return Result(name, speed, peak(), noted[0] - started)


def _on_ray(work: Workload, folder: Path, rounds: int, device: str) -> Result:
    words = _overrides(work, _data(work, folder), device)
    run = folder / "ray"
    words += ["engine=flower", "engine.num_supernodes=2"]
    words += [f"rounds={rounds}", f"hydra.run.dir={run}"]
    started = time.time()
    with _flower(folder / "flwr-ray") as variables, _memory(variables) as (peak, env):
        _call([_command("fedquorum"), *words], env)
        memory = peak()
    return _of_run("ray_2_nodes", run, memory, started)


def _stock_flower(work: Workload, folder: Path, rounds: int) -> Result:
    times = folder / "times"
    model = f"logreg:{int(np.prod(work.shape))}:10"
    if work.hidden is not None:
        channels = work.shape[2] if len(work.shape) > 2 else 1  # noqa: PLR2004
        model = ":".join(map(str, ("cnn", channels, work.shape[0], *work.hidden)))
    config = {
        "data": str(_data(work, folder)),
        "model": model,
        "rounds": rounds,
        "clients": len(work.sizes),
        "clients-per-round": work.asked,
        "lr": work.lr,
        "batch-size": work.batch_size,
        "local-epochs": work.local_epochs,
        "local-steps": work.local_steps or 0,
        "times": str(times),
    }
    command = [_command("flwr"), "run", str(HERE / "stock_flower"), "--stream"]
    command += ["--run-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
    # One core for a client: with the default of two, two cores train one client at a time.
    federation = f"num-supernodes={len(work.sizes)} client-resources-num-cpus=1"
    command += ["--federation-config", federation]
    with _flower(folder / "flwr-stock") as variables, _memory(variables) as (peak, env):
        _call(command, env)
        memory = peak()
        status = _status(env)
    noted = [float(line) for line in times.read_text().split()]
    if status != "finished:completed" or len(noted) != rounds + 1:
        sys.exit(f"stock Flower ended as {status} after {len(noted) - 1} rounds of {rounds}")
    return Result("stock_flower", (rounds - WARM) / (noted[-1] - noted[WARM]), memory)


def _of_run(name: str, run: Path, memory: float, started: float) -> Result:
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines][WARM:-1]
    manifest = json.loads((run / "manifest.json").read_text())
    begin = datetime.fromisoformat(manifest["started"]).timestamp()
    return Result(name, len(seconds) / sum(seconds), memory, begin - started + lines[0]["seconds"])


def _bare(work: Workload, device: str) -> Result:
    """Time the products of a round alone: no data, no loss, no update, no federation."""
    steps = work.local_steps or work.local_epochs * -(-max(work.sizes) // work.batch_size)
    k, b = work.asked, work.batch_size
    if work.hidden is None:
        x = torch.rand(k, b, int(np.prod(work.shape)), device=device)
        w, g = torch.rand(k, 10, x.shape[2], device=device), torch.rand(k, 10, b, device=device)

        def step() -> None:
            torch.bmm(w, x.transpose(1, 2))
            torch.bmm(g, x)

        repeats = steps * (sum(work.sizes) / (max(work.sizes) * len(work.sizes)))
    else:
        from client_app.models import SmallCNN

        channels = work.shape[2] if len(work.shape) > 2 else 1  # noqa: PLR2004
        model = SmallCNN((channels, *work.shape[:2]), 10, work.hidden).to(device)
        model = model.to(memory_format=torch.channels_last)
        images = torch.rand(b, channels, *work.shape[:2], device=device)
        labels = torch.randint(10, (b,), device=device)

        def step() -> None:
            functional.cross_entropy(model(images), labels).backward()

        repeats = steps * k

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(max(1, int(repeats))):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * repeats / max(1, int(repeats))

    seconds()
    return Result("bare_arithmetic", 1 / statistics.median(seconds() for _ in range(5)), None)


# --- processes ---------------------------------------------------------------------------------


def _command(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _call(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def _status(env: dict[str, str]) -> str:
    """Return how the only run of a SuperLink ended: flwr run --stream does not tell."""
    command = [_command("flwr"), "list", "--format", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return str(json.loads(done.stdout)["runs"][0]["status"])


@contextmanager
def _flower(home: Path) -> Iterator[dict[str, str]]:
    """Give Flower a home and ports of its own, and stop its SuperLink in the end."""
    port = _free_port()
    yield {
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_LOCAL_CONTROL_API_PORT": str(_free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }
    found = subprocess.run(
        ["pgrep", "-f", f"flower-superlink .*--port {port} "],
        capture_output=True,
        text=True,
        check=False,
    )
    for pid in found.stdout.split():
        os.kill(int(pid), 15)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _memory(extra: dict[str, str]) -> Iterator[tuple[Callable[[], float], dict[str, str]]]:
    """Watch the memory of all processes that are started with the environment it yields.

    Their proportional set sizes are added up four times a second: pages that processes share
    count once.
    """
    mark = f"{MARK}={os.getpid()}-{time.monotonic_ns()}"
    key, _, value = mark.partition("=")
    stop, highest = threading.Event(), [0.0]

    def watch() -> None:
        while not stop.wait(0.25):
            highest[0] = max(highest[0], sum(map(_pss, _marked(mark.encode()))))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield (lambda: round(highest[0] / 1024, 1)), {**os.environ, **extra, key: value}
    finally:
        stop.set()
        thread.join()


def _marked(mark: bytes) -> Iterator[Path]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield folder
        except OSError:
            continue


def _pss(folder: Path) -> int:
    """Return a process's proportional set size in kB, 0 where it has ended."""
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


# --- output ------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Return what was measured on."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor()


def _print(workload: str, results: list[Result]) -> None:
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


if __name__ == "__main__":
    main()
