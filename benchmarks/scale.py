r"""What a run costs by the number of clients: time, memory and records.

    OMP_NUM_THREADS=1 python benchmarks/scale.py --clients 10000 200000 --strategy fedau --rounds 30

prints Markdown, a line for each run. Clients have 8 numbers a row, 4 rows for training and 2 for
testing; 50 of them are asked a round, and all are evaluated after the last one, on both parts.
Every run has a process of its own. Seconds a round and of the evaluation are CPU time of that
process, and ``wall`` beside them the time that passed; of other engines than in-process only that
tells something. Memory is the largest resident set of the process; ``a worker`` is the most that
one of Ray's workers had, what it shares divided among those that share it (Linux, ``engine=ray``).
``per client`` is what the memory grows by with each client, beyond that of the smallest run.
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
POLL_SECONDS = 0.5  # seconds between two looks at the workers
NUM_WARMUP_ROUNDS = 2  # rounds that are not timed: the first ones make what the others use
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
    """Run what the command line says, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10_000, 200_000])
    parser.add_argument("--strategy", nargs="+", default=["fedau"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--engine", default="in-process", choices=("in-process", "ray", "flower"))
    parser.add_argument("--word", nargs="*", default=[], help="further KEY=VALUE of fedquorum")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--keep", type=Path, help="a folder that keeps data and records")
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
        options.json.write_text(json.dumps(results, indent=2))


def build_job(
    folder: Path, strategy: str, clients: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what one run is, with its data written."""
    data = folder / f"clients-{clients}.npz"
    if not data.exists():
        write_data(data, clients)
    name = f"{strategy}-{clients}-{options.engine}-{time.time_ns()}"
    words = [
        *("experiment=custom", "data=npz", f"data.path={data}", "data.partition=natural"),
        *("data.priority=all", "model=logistic_regression", f"strategy={strategy}"),
        *(f"strategy.fraction={CLIENTS_PER_ROUND / clients!r}", f"rounds={options.rounds}"),
        *("client.batch_size=4", "client.local_epochs=1", f"evaluation.every={options.rounds}"),
        *(f"engine={options.engine}", f"hydra.run.dir={folder / name}", *options.word),
    ]
    facts = {"strategy": strategy, "engine": options.engine, "clients": clients}
    return {**facts, "words": words, "records": str(folder / name)}


def write_data(path: Path, clients: int) -> None:
    """Write the file of a federation in which every client has rows of its own."""
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(DIMENSION).astype(np.float32)
    arrays: dict[str, Any] = {}
    for part, rows in (("train", NUM_TRAIN_ROWS), ("test", NUM_TEST_ROWS)):
        x = rng.standard_normal((rows * clients, DIMENSION), dtype=np.float32)
        noise = rng.standard_normal(len(x), dtype=np.float32)
        arrays[f"x_{part}"] = x
        arrays[f"y_{part}"] = (x @ direction + noise > 0).astype(np.int8)
        arrays[f"client_{part}"] = np.repeat(np.arange(clients, dtype=np.int32), rows)
    np.savez(path, **arrays)


def measure_job(job: dict[str, Any]) -> dict[str, Any]:
    """Make one run in a process of its own, and return what it cost."""
    command = [sys.executable, __file__, "--child", json.dumps(job)]
    worker = 0.0
    with (
        tempfile.TemporaryFile("w+") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True) as child,
    ):
        while child.poll() is None:
            time.sleep(POLL_SECONDS)
            worker = max([worker, *get_workers_mib(child.pid)])
        out.seek(0)
        lines = out.read().splitlines()
    if child.returncode != 0:
        sys.exit("\n".join([" ".join(job["words"]), *lines[-50:]]))
    found: dict[str, Any] = next(
        json.loads(line) for line in reversed(lines) if line.startswith("{")
    )
    return {**job, **found, "worker_mib": worker or math.nan}


def get_workers_mib(parent: int) -> list[float]:
    """Return what each of Ray's workers below a process has now; none where Linux is not."""
    parents: dict[int, int] = {}
    workers: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            name, _, rest = (folder / "stat").read_text().rpartition(")")
            parents[int(folder.name)] = int(rest.split()[1])
            if "(ray::" in name:
                workers.append(int(folder.name))
    found = []
    for worker in workers:
        above = worker
        while above not in {parent, 0}:
            above = parents.get(above, 0)
        if above == parent:
            with suppress(OSError):
                rollup = Path(f"/proc/{worker}/smaps_rollup").read_text().split("Pss:")[1]
                found.append(int(rollup.split()[0]) / 1024)
    return found


def run_child(job: dict[str, Any]) -> None:
    """Make one run in this process and print what it cost, as JSON."""
    from fedquorum.records.writer import RunWriter

    from server_app.command_line import main as fedquorum

    cpu, peaks = [], []
    written = RunWriter.add_round

    def note_peak(self: RunWriter, *arguments: Any) -> None:
        written(self, *arguments)
        cpu.append(time.process_time())
        peaks.append(get_peak_mib())

    RunWriter.add_round = note_peak  # type: ignore[method-assign]
    sys.argv = ["fedquorum", *job["words"]]
    started = time.time()
    fedquorum()
    records = Path(job["records"])
    print(json.dumps(compute_costs(job, records, cpu, peaks, started)))


def compute_costs(
    job: dict[str, Any], records: Path, cpu: list[float], peaks: list[float], started: float
) -> dict[str, Any]:
    """Return the costs of a run that has ended.

    Parameters
    ----------
    job : dict
        The run.
    records : Path
        Its directory.
    cpu : list of float
        The process's CPU time after every round; empty where rounds are made elsewhere.
    peaks : list of float
        The largest resident set so far, after every round.
    started : float
        When it was started.
    """
    lines = (records / "rounds.jsonl").read_text().splitlines()
    wall = [json.loads(line)["duration_seconds"] for line in lines]
    spent = list(np.diff(cpu)) if job["engine"] == "in-process" else wall[1:]
    typical = statistics.median(spent[NUM_WARMUP_ROUNDS - 1 : -1])
    evaluation = max(spent[-1] - typical, 1e-9)
    files = [path for path in records.rglob("*") if path.is_file()]
    saved = [path.stat().st_size for path in files if path.suffix == ".safetensors"]
    checkpoint = max(saved)
    return {
        "setup": cpu[0] if cpu else time.time() - started - sum(wall),
        "round_ms": 1000 * typical,
        "round_wall_ms": 1000 * statistics.median(wall[NUM_WARMUP_ROUNDS:-1]),
        "evaluation": evaluation,
        "evaluated": job["clients"] / evaluation,
        "peak_mib": get_peak_mib(),
        "rounds_mib": peaks[-2] if peaks else float("nan"),
        "records_mb": (sum(path.stat().st_size for path in files) - sum(saved)) / 1e6,
        "checkpoint_mb": checkpoint / 1e6,
    }


def get_peak_mib() -> float:
    """Return the largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
