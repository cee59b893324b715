r"""Measure the cost of a run by the number of clients: time, memory and records.

    OMP_NUM_THREADS=1 python benchmarks/scale.py --clients 10000 200000 --strategy fedau --rounds 30

prints Markdown, a line for each run. Clients have 8 numbers a row, 4 rows for training and 2 for
testing. Each round selects 50 of them; after the last round all are evaluated, on both splits.
Every run has a separate process. The times of a round and of the evaluation are CPU time of that
process, and ``wall`` is elapsed time, the only meaningful one for engines other than in-process.
Memory is the peak resident set of the process. ``a worker`` is the peak memory of one of Ray's
workers (Linux, ``engine=ray``), with shared pages divided among the processes that share them.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

DIMENSION = 8
NUM_TRAIN_ROWS = 4
NUM_TEST_ROWS = 2
CLIENTS_PER_ROUND = 50
POLL_SECONDS = 0.5  # seconds between two samples of the workers
NUM_WARMUP_ROUNDS = 2  # untimed rounds, which build what the later ones use
SCALE_STRATEGIES = ("fedau", "aaggff_d", "fedavg")
COLUMNS = (
    ("strategy", "{strategy}"),
    ("engine", "{engine}"),
    ("clients", "{clients:,}"),
    ("setup, s", "{setup:.1f}"),
    ("ms a round", "{round_ms:.1f}"),
    ("wall", "{round_wall_ms:.1f}"),
    ("evaluation, s", "{evaluation:.1f}"),
    ("clients evaluated a second", "{evaluated:,.0f}"),
    ("peak MiB", "{peak_mib:,.0f}"),
    ("before evaluating", "{rounds_mib:,.0f}"),
    ("a worker, MiB", "{worker_mib:,.0f}"),
    ("records, MB", "{records_mb:.1f}"),
    ("checkpoint, MB", "{checkpoint_mb:.1f}"),
)


def main() -> None:
    """Run all jobs of the command line, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10_000, 200_000])
    parser.add_argument("--strategy", nargs="+", default=["fedau"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--engine", default="in-process", choices=("in-process", "ray", "flower"))
    parser.add_argument(
        "--word", nargs="*", default=[], help="more overrides KEY=VALUE of fedquorum"
    )
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--keep", type=Path, help="a permanent folder for data and records")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        run_child(json.loads(options.child))
        return
    results = []
    print(f"| {' | '.join(name for name, _ in COLUMNS)} |")
    print(f"| --- | --- | {' | '.join('---:' for _ in COLUMNS[2:])} |", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        for clients in options.clients:
            for strategy in options.strategy:
                job = build_job(folder.absolute(), strategy, clients, options)
                results.append(measure_job(job))
                cells = [cell.format(**results[-1]) for _, cell in COLUMNS]
                print(f"| {' | '.join(cells)} |", flush=True)
    if options.json is not None:
        # Here, because a child measures its own memory, and engines imports PyTorch.
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from benchmarks.engines import describe_machine

        options.json.write_text(
            json.dumps({"results": results, "machine": describe_machine()}, indent=2)
        )


def build_job(
    folder: Path, strategy: str, clients: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Write the data of one run, and return its job."""
    data = folder / f"clients-{clients}.npz"
    if not data.exists():
        write_data(data, clients)
    name = f"{strategy}-{clients}-{options.engine}-{time.time_ns()}"
    overrides = [
        *("experiment=custom", "data=npz", f"data.path={data}", "data.partition=natural"),
        *("data.priority=all", "model=logistic_regression", f"strategy={strategy}"),
        *(f"strategy.fraction={CLIENTS_PER_ROUND / clients!r}", f"rounds={options.rounds}"),
        *("client.batch_size=4", "client.local_epochs=1", f"evaluation.every={options.rounds}"),
        *(f"engine={options.engine}", f"hydra.run.dir={folder / name}", *options.word),
    ]
    description = {"strategy": strategy, "engine": options.engine, "clients": clients}
    return {**description, "overrides": overrides, "records": str(folder / name)}


def write_data(path: Path, clients: int, *, num_train_rows: int = NUM_TRAIN_ROWS) -> None:
    """Write the file of a federation in which the clients share no rows."""
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(DIMENSION).astype(np.float32)
    arrays: dict[str, Any] = {}
    for split, rows in (("train", num_train_rows), ("test", NUM_TEST_ROWS)):
        x = rng.standard_normal((rows * clients, DIMENSION), dtype=np.float32)
        noise = rng.standard_normal(len(x), dtype=np.float32)
        arrays[f"x_{split}"] = x
        arrays[f"y_{split}"] = (x @ direction + noise > 0).astype(np.int8)
        arrays[f"client_{split}"] = np.repeat(np.arange(clients, dtype=np.int32), rows)
    np.savez(path, **arrays)


def measure_job(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in a separate process, and return its costs."""
    command = [sys.executable, __file__, "--child", json.dumps(job)]
    worker_peak = 0.0
    with (
        tempfile.TemporaryFile("w+") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True) as child,
    ):
        while child.poll() is None:
            time.sleep(POLL_SECONDS)
            worker_peak = max([worker_peak, *get_workers_mib(child.pid)])
        out.seek(0)
        lines = out.read().splitlines()
    if child.returncode != 0:
        sys.exit("\n".join([" ".join(job["overrides"]), *lines[-50:]]))
    costs: dict[str, Any] = next(
        json.loads(line) for line in reversed(lines) if line.startswith("{")
    )
    return {**job, **costs, "worker_mib": worker_peak or math.nan}


def get_workers_mib(parent: int) -> list[float]:
    """Return the memory of each Ray worker below a process; none on systems other than Linux."""
    parents: dict[int, int] = {}
    workers: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            name, _, rest = (folder / "stat").read_text().rpartition(")")
            parents[int(folder.name)] = int(rest.split()[1])
            if "(ray::" in name:
                workers.append(int(folder.name))
    sizes = []
    for worker in workers:
        ancestor = worker
        while ancestor not in {parent, 0}:
            ancestor = parents.get(ancestor, 0)
        if ancestor == parent:
            with suppress(OSError):
                rollup = Path(f"/proc/{worker}/smaps_rollup").read_text().split("Pss:")[1]
                sizes.append(int(rollup.split()[0]) / 1024)
    return sizes


def run_child(job: dict[str, Any]) -> None:
    """Run a job in this process, and print its costs as JSON."""
    from fedquorum.records.writer import RunWriter

    from server_app.cli.fedquorum import main as fedquorum

    cpu, peaks = [], []
    end_round = RunWriter.end_round

    def end_measured_round(self: RunWriter, *arguments: Any) -> None:
        end_round(self, *arguments)
        cpu.append(time.process_time())
        peaks.append(get_peak_mib())

    RunWriter.end_round = end_measured_round  # type: ignore[method-assign]
    sys.argv = ["fedquorum", *job["overrides"]]
    started = time.time()
    fedquorum()
    records = Path(job["records"])
    print(json.dumps(compute_costs(job, records, cpu, peaks, started)))


def compute_costs(
    job: dict[str, Any], records: Path, cpu: list[float], peaks: list[float], started: float
) -> dict[str, Any]:
    """Compute the costs of a completed run.

    Parameters
    ----------
    job : dict
    records : Path
        The run's directory.
    cpu : list of float
        CPU seconds of the process after every round; empty if another process runs the rounds.
    peaks : list of float
        The peak resident set after every round, in MiB.
    started : float
        The start time, in seconds since the epoch.
    """
    lines = (records / "rounds.jsonl").read_text().splitlines()
    wall = [json.loads(line)["duration_seconds"] for line in lines]
    spent = list(np.diff(cpu)) if job["engine"] == "in-process" else wall[1:]
    typical = statistics.median(spent[NUM_WARMUP_ROUNDS - 1 : -1])
    evaluation = max(spent[-1] - typical, 1e-9)
    files = [path for path in records.rglob("*") if path.is_file()]
    model_sizes = [path.stat().st_size for path in files if path.suffix == ".safetensors"]
    checkpoint = max(model_sizes)
    return {
        "setup": cpu[0] if cpu else time.time() - started - sum(wall),
        "round_ms": 1000 * typical,
        "rounds_s": sum(spent[:-1]),
        "round_wall_ms": 1000 * statistics.median(wall[NUM_WARMUP_ROUNDS:-1]),
        "evaluation": evaluation,
        "evaluated": job["clients"] / evaluation,
        "peak_mib": get_peak_mib(),
        "rounds_mib": peaks[-2] if peaks else float("nan"),
        "records_mb": (sum(path.stat().st_size for path in files) - sum(model_sizes)) / 1e6,
        "checkpoint_mb": checkpoint / 1e6,
    }


def get_peak_mib() -> float:
    """Return the peak resident set of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
