r"""Measure the simulation on a GPU, and write a page.

    python -m benchmarks.peers.install DIR pfl
    python benchmarks/gpu.py --peers-dir DIR --page docs/gpu.md --json gpu.json

writes these tables. A line names each competitor that is not installed or needs more GPUs:

speed        this project, stock Flower and pfl-research in interleaved pairs, with the peak memory
             and the mean utilization of the GPU in a separate run
agreement    the difference between models trained on the GPU and on the CPU with equal settings
cohorts      milliseconds of one client's local training, by the number of clients in a round
workers      ``engine=ray`` with one to eight workers, each with a GPU
switches     TF32, ``torch.compile``, deterministic algorithms, and one client at a time
waiting      how often the host waits for the GPU within a round, by the number of local steps

``--device cpu`` tries the script where there is no GPU. Tables may be measured one by one, and
written together:

    python benchmarks/gpu.py --only speed --pairs 3 --json speed.json
    python benchmarks/gpu.py --only waiting --json waiting.json
    python benchmarks/gpu.py --combine speed.json waiting.json --page docs/gpu.md
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import engines
from benchmarks.engines import NUM_WARMUP_ROUNDS, WORKLOADS, Checkout, Competitor
from benchmarks.pairing import compute_paired_ratio
from benchmarks.peers.install import DEFAULT_ENVIRONMENTS, find_missing_peers
from client_app.data.base import PooledSplit, RowIndex
from client_app.data.examples import Examples
from client_app.losses import CrossEntropy
from client_app.models import SmallCNN
from client_app.training.batched import BatchedTrainer
from client_app.training.local_sgd import LocalSGDConfig, TrainingSetup
from client_app.training.workers import count_available_cores

HERE = Checkout(Path(__file__).resolve().parent.parent, sys.executable)
COMPARED_WORKLOADS = {"(a)": "fmnist_logreg", "(b)": "pfl_cifar10", "(f)": "fedau_cnn"}
OURS = "in_process_auto"
COHORT_SIZES = (1, 10, 50, 250, 1_000)
MAX_WORKERS = 8
SWITCHES = {
    "TF32": "client.tf32=true",
    "compile": "client.compile=true",
    "deterministic": "client.deterministic=true",
    "one client at a time": "client.batching=sequential",
}
QUERY_FLAGS = ("--query-gpu=memory.used,utilization.gpu", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class GpuTable:
    """A table of the page, with the reasons for missing rows."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out: Sequence[str] = ()

    def to_markdown(self) -> str:
        """Return the section of the page."""
        lines = [f"## {self.title}", ""]
        if self.rows:
            lines += [
                _format_row(self.header),
                _format_row(["---", *["---:"] * (len(self.header) - 1)]),
            ]
            lines += [*map(_format_row, self.rows), ""]
        lines += [f"Left out: {reason}." for reason in self.left_out]
        return "\n".join(lines).strip() + "\n"


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class GpuUsage:
    """The GPU usage of a run: peak MB above idle, and the mean percentage of busy time."""

    peak_mb: float
    busy_percent: float

    @classmethod
    def from_output(cls, before: str, during: str) -> "GpuUsage":
        """Parse the output of ``nvidia-smi``: lines of memory and utilization."""
        (idle, *_), samples = _parse_samples(before), _parse_samples(during)
        peak = max((memory for memory, _ in samples), default=idle[0])
        return cls(peak - idle[0], statistics.mean(busy for _, busy in samples or [idle]))


def _parse_samples(printed: str) -> list[tuple[float, float]]:
    lines = re.findall(r"^(\d+), (\d+)$", printed, re.MULTILINE)
    return [(float(memory), float(busy)) for memory, busy in lines]


@contextmanager
def watch_gpu() -> Iterator[Callable[[], GpuUsage]]:
    """Sample ``nvidia-smi`` five times a second; yield a function that returns the usage."""
    command = ["nvidia-smi", "--id=0", *QUERY_FLAGS]
    before = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen([*command, "--loop-ms=200"], stdout=printed) as watcher,
    ):
        try:
            yield lambda: GpuUsage.from_output(before, _read_text(printed))
        finally:
            watcher.terminate()


def _read_text(file: Any) -> str:
    file.seek(0)
    text: str = file.read()
    return text


def _select_workloads(options: argparse.Namespace) -> list[tuple[str, str]]:
    names = options.workloads or COMPARED_WORKLOADS.values()
    return [(label, name) for label, name in COMPARED_WORKLOADS.items() if name in names]


# --- tables ------------------------------------------------------------------------------------


def measure_speed(options: argparse.Namespace, folder: Path) -> GpuTable:
    """Compare the speed with stock Flower and pfl, in pairs."""
    rows, reasons = [], _list_missing(options)
    for label, workload in _select_workloads(options):
        selected = argparse.Namespace(**vars(options), workload=workload, baseline=None)
        selected.variants = False
        selected.peers = not find_missing_peers(options.peers_dir, ["pfl"])
        names = {OURS, "pfl", "pfl_channels_last"} | ({"stock_flower"} if _has_flower() else set())
        competitors = [c for c in engines.build_competitors(selected, folder) if c.name in names]
        results = engines.measure_competitors(
            competitors, options.rounds + NUM_WARMUP_ROUNDS, options.pairs, memory=False
        )
        times = {result.name: result.ms_a_round for result in results}
        for competitor in competitors:
            name = competitor.name
            ratio = "1" if name == OURS else _format_ratio(times, name, OURS)
            usage = _measure_usage(competitor, options)
            rows.append([f"{label} {workload}", name, f"{min(times[name]):.1f}", ratio, *usage])
    header = ["workload", "by", "ms a round, smallest", "times ours", "peak MB", "GPU busy, %"]
    return GpuTable("Speed", header, rows, reasons)


def _measure_usage(competitor: Competitor, options: argparse.Namespace) -> list[str]:
    if options.device != "cuda":
        return ["", ""]
    with watch_gpu() as usage:
        competitor.run(options.rounds + NUM_WARMUP_ROUNDS)
        measured = usage()
    return [f"{measured.peak_mb:.0f}", f"{measured.busy_percent:.0f}"]


def _format_ratio(times: Mapping[str, Sequence[float]], name: str, reference: str) -> str:
    ratio = compute_paired_ratio(name, reference, times[name], times[reference])
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _has_flower() -> bool:
    return find_spec("ray") is not None and find_spec("flwr") is not None


def _list_missing(options: argparse.Namespace) -> list[str]:
    reasons = [] if _has_flower() else ["stock Flower, which needs flwr[simulation]"]
    if find_missing_peers(options.peers_dir, ["pfl"]):
        reasons.append(f"pfl, which is not in {options.peers_dir}")
    return reasons


def measure_agreement(options: argparse.Namespace, folder: Path) -> GpuTable:
    """Compare models of the GPU with those of the CPU after a few rounds."""
    rows = []
    for label, workload in _select_workloads(options):
        models = []
        for device in ("cpu", options.device):
            run, _ = engines.run_workload(
                WORKLOADS[workload], folder, HERE, NUM_WARMUP_ROUNDS + 2, device=device
            )
            models.append(load_file(run / "model.safetensors"))
        on_cpu, on_device = models
        gap = max(float(np.abs(on_cpu[name] - on_device[name]).max()) for name in on_cpu)
        size = max(float(np.abs(array).max()) for array in on_cpu.values())
        rows.append([f"{label} {workload}", f"{gap:.1e}", f"{gap / size:.1e}"])
    header = ["workload", "largest difference of a weight", "over the largest weight"]
    return GpuTable(f"Agreement with the CPU after {NUM_WARMUP_ROUNDS + 2} rounds", header, rows)


def measure_cohorts(options: argparse.Namespace, folder: Path) -> GpuTable:
    """Time one client's local training by the number of clients in a round."""
    rows = []
    for label, workload in _select_workloads(options):
        work, row = WORKLOADS[workload], []
        for cohort in COHORT_SIZES:
            sizes = (work.sizes[0],) * max(COHORT_SIZES)
            large = replace(work, sizes=sizes, clients_per_round=cohort)
            timing = engines.measure_workload(
                large, folder, HERE, options.rounds + NUM_WARMUP_ROUNDS, device=options.device
            )
            row.append(f"{1000 / timing.rounds_per_second / cohort:.2f}")
        rows.append([f"{label} {workload}", *row])
    header = ["ms a client, of a round with", *map(str, COHORT_SIZES)]
    return GpuTable("Cohorts", header, rows)


def measure_workers(options: argparse.Namespace, folder: Path) -> GpuTable:
    """Time ``engine=ray`` with one worker for each GPU, at most eight."""
    title = "Workers of engine=ray"
    if not _has_flower():
        return GpuTable(title, (), (), ["Ray is not installed"])
    is_cuda = options.device == "cuda"
    num_devices = torch.cuda.device_count() if is_cuda else count_available_cores()
    counts = range(1, min(num_devices, MAX_WORKERS) + 1)
    rows = []
    for label, workload in _select_workloads(options):
        row = []
        for count in counts:
            overrides = (*engines.RAY_OVERRIDES, f"engine.workers={count}")
            timing = engines.measure_workload(
                WORKLOADS[workload],
                folder,
                HERE,
                options.rounds + NUM_WARMUP_ROUNDS,
                device=options.device,
                overrides=overrides,
            )
            row.append(f"{1000 / timing.rounds_per_second:.1f}")
        rows.append([f"{label} {workload}", *row])
    left_out = []
    if num_devices < MAX_WORKERS:
        left_out.append(f"more than {num_devices} workers, because each needs a GPU")
    return GpuTable(title, ["ms a round, workers", *map(str, counts)], rows, left_out)


def measure_switches(options: argparse.Namespace, folder: Path) -> GpuTable:
    """Compare numeric settings with the default, in pairs."""
    rows, device = [], options.device
    for label, workload in _select_workloads(options):
        switches = {"": (), **{name: (override,) for name, override in SWITCHES.items()}}
        competitors = []
        for name, overrides in switches.items():
            run = partial(
                engines.measure_workload,
                WORKLOADS[workload],
                folder,
                HERE,
                device=device,
                overrides=overrides,
            )
            competitors.append(Competitor(name, run))
        results = engines.measure_competitors(
            competitors, options.rounds + NUM_WARMUP_ROUNDS, options.pairs, memory=False
        )
        times = {result.name: result.ms_a_round for result in results}
        rows.append([f"{label} {workload}", *(_format_ratio(times, name, "") for name in SWITCHES)])
    return GpuTable("Switches, time over that of the default", ["workload", *SWITCHES], rows)


def measure_waits(options: argparse.Namespace, _folder: Path) -> GpuTable:
    """Count PyTorch's warnings in one round that the host waits for the GPU."""
    title = "Waiting for the GPU within a round"
    if options.device != "cuda":
        return GpuTable(title, (), (), ["there is no GPU"])
    steps = (1, 5, 25)
    waits = [str(count_gpu_waits(count)) for count in steps]
    return GpuTable(
        title, ["local steps", *map(str, steps)], [["times that the host waits", *waits]]
    )


def count_gpu_waits(local_steps: int, device_name: str = "cuda") -> int:
    """Train ten clients on the GPU; return how often the host waited for it."""
    device = torch.device(device_name)
    rng = np.random.default_rng(0)
    x = rng.random((500, 3, 32, 32), dtype=np.float32)
    rows = RowIndex(np.arange(10), np.full(10, 50), np.arange(500))
    model = SmallCNN((3, 32, 32), 10, (64,))
    arrays = [tensor.numpy() for tensor in model.state_dict().values()]
    examples = Examples(PooledSplit(x, rng.integers(10, size=500), rows), device)
    config = LocalSGDConfig(0.05, 10, 1, local_steps=local_steps, augmentation="crop_flip")
    setup = TrainingSetup(model.to(device), examples, config, CrossEntropy(), seed=0)
    training = BatchedTrainer(setup, memory_bytes=2**32)
    training.train_chunk(arrays, range(10), range(10), 0)  # the first call loads libraries
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            training.train_chunk(arrays, range(10), range(10), 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


TABLES: dict[str, Callable[[argparse.Namespace, Path], GpuTable]] = {
    "speed": measure_speed,
    "agreement": measure_agreement,
    "cohorts": measure_cohorts,
    "workers": measure_workers,
    "switches": measure_switches,
    "waiting": measure_waits,
}


def format_gpu_page(
    tables: Sequence[GpuTable], commands: Sequence[str], machine: dict[str, Any]
) -> str:
    """Format the page."""
    description = ", ".join(f"{name} {value}" for name, value in machine.items())
    introduction = [
        "# On a GPU",
        "",
        f"Measured on: {description}. By:",
        "",
        "```bash",
        *commands,
        "```",
        "",
        "Workloads (a), (b) and (f) are those of [performance.md](performance.md).",
        "Ratios are medians of interleaved pairs, with their bootstrap interval of 95 %.",
        "",
    ]
    return "\n".join(introduction) + "\n" + "\n".join(table.to_markdown() for table in tables)


def main() -> None:
    """Measure the tables, and write the page."""
    options = _parse_options()
    if options.combine:
        tables, commands, machine = combine_results(options.combine)
        print(format_gpu_page(tables, commands, machine))
        _write_files(options, tables, commands, machine)
        return
    command = " ".join(["python benchmarks/gpu.py", *sys.argv[1:]])
    machine = engines.describe_machine() | {"CUDA": torch.version.cuda}
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or TABLES:
            tables.append(TABLES[name](options, Path(folder)))
            print(tables[-1].to_markdown(), flush=True)
            # After each table: the machine may not be available until the last one.
            _write_files(options, tables, [command], machine)


def _write_files(
    options: argparse.Namespace,
    tables: Sequence[GpuTable],
    commands: Sequence[str],
    machine: dict[str, Any],
) -> None:
    if options.page is not None:
        options.page.write_text(format_gpu_page(tables, commands, machine))
    if options.json is not None:
        content = {
            "tables": [asdict(table) for table in tables],
            "commands": list(commands),
            "machine": machine,
        }
        options.json.write_text(json.dumps(content, indent=2))


def combine_results(
    paths: Sequence[Path],
) -> tuple[list[GpuTable], list[str], dict[str, Any]]:
    """Return the tables and commands of several JSON files, and their machine.

    Exits if they are from different machines.
    """
    tables, commands = [], []
    first: dict[str, Any] | None = None
    for path in paths:
        content = json.loads(path.read_text())
        first = first or content["machine"]
        if content["machine"] != first:
            sys.exit(f"{path} is from another machine than {paths[0]}: {content['machine']}")
        tables += [GpuTable(**table) for table in content["tables"]]
        commands += content["commands"]
    return tables, commands, first or {}


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, help="file for the page")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--only", nargs="*", choices=list(TABLES), help="tables (default: all)")
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=list(COMPARED_WORKLOADS.values()),
        help="rows of the tables (default: all)",
    )
    parser.add_argument(
        "--combine", nargs="+", type=Path, help="measure nothing, take these JSON files"
    )
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each run")
    parser.add_argument("--pairs", type=int, default=5, help="repetitions, forward and backward")
    parser.add_argument(
        "--peers-dir", type=Path, default=DEFAULT_ENVIRONMENTS, help="folder with pfl"
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    for name, minimum in (("rounds", engines.MIN_ROUNDS), ("pairs", 1)):
        if getattr(options, name) < minimum:
            parser.error(f"--{name} must be at least {minimum}, got {getattr(options, name)}")
    if not options.combine and options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device must be cpu where there is no GPU, got cuda")
    return options


if __name__ == "__main__":
    main()
