"""Runs on Ray: two raylets on this machine, one core each, as a cluster of two machines."""

import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import ray
from fedquorum.audit.check import audit_run
from fedquorum.errors import RunError
from fedquorum.records.runner import Runner
from ray.cluster_utils import Cluster

from conf.compose import compose_overrides
from server_app.engines.ray.cluster import join_cluster
from server_app.provenance import collect_code_facts
from server_app.runs.job import run_on_ray
from tests.builders_runs import COUNTING, MASKED_STRATEGIES, MASKS, read_lines, read_rows, run_here
from tests.cases import is_long
from tests.integration.conftest import (
    Shell,
    assert_same_bits,
    find_processes,
    read_round_lines,
    start_command,
    wait_for,
)

pytestmark = [
    pytest.mark.slow,
    # Ray leaves files open.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

FEDALIGN = ("experiment=fedalign/synth_low", "engine.checkpoint_every=2")
FEDAU = (
    "experiment=fedau/fmnist",
    "data.num_clients=40",
    "data.samples_per_client=20",
    "client.local_steps=2",
    "availability.p=0.5",
)
HANDED = ("engine.num_supernodes=20", "engine.share_data=true")
PERSONAL = ("evaluation.finetune_epochs=2", "evaluation.alone_epochs=3")
CASES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "synth": ((*FEDALIGN, "strategy.warmup_fraction=0.25", *PERSONAL), 6),
    "fmnist": ((*FEDAU, *HANDED), 2),
    "late updates": ((*COUNTING, "client.local_epochs=1"), 6),
    **{
        f"masks, {name}": ((*MASKS, f"strategy={name}"), 3)
        for name in (MASKED_STRATEGIES if is_long() else ["known_statistics"])
    },
}
FAST = (*FEDALIGN, "strategy=fedavg", "client.local_epochs=1", "evaluation.every=100")

Hooks = Mapping[int, Callable[[Any], None]]
"""What to do with the grid at the beginning of a round."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder for Ray's files whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="fq-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start two raylets and join them; nothing else on this machine finds them by itself.

    All runs of this process stay in the cluster: a process in which Ray is left and joined again
    and again may crash in Ray's own threads.
    """
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        made = Cluster(initialize_head=True, head_node_args={"include_dashboard": False})
        made.add_node()
        signal.signal(signal.SIGTERM, handler)
        with join_cluster(made.address):
            yield made
        made.shutdown()


@pytest.fixture
def run(cluster: Cluster) -> Callable[..., Path]:
    """Return what makes a run on the cluster; a hook may act at the beginning of a round."""

    def go(directory: Path, *words: str, hooks: Hooks | None = None) -> Path:
        with acting(hooks or {}):
            run_on_ray(compose_overrides(("engine=ray", *words)), str(directory))
        return directory

    return go


def in_process(directory: Path, *words: str, hooks: Hooks | None = None) -> Path:
    """Make the same run in one process."""
    with acting(hooks or {}):
        run_here(directory, *words)
    return directory


@contextmanager
def acting(hooks: Hooks) -> Iterator[None]:
    """Act at the beginning of rounds."""
    play = Runner.run_round

    def run_hook(runner: Any, server_round: int) -> None:
        if server_round in hooks:
            hooks[server_round](runner.grid.inner)
        play(runner, server_round)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "run_round", run_hook)
        yield


def worker(grid: Any, index: int) -> dict[str, Any]:
    """Return what Ray knows of a worker: its process, and the raylet that it is at."""
    known = ray._private.state.actors(grid._pool.workers[index].actor._actor_id.hex())
    return {"process": known["Pid"], "raylet": known["Address"]["NodeID"]}


def thread_states(process: int) -> Iterator[str]:
    """Yield what Linux says of a process's threads, such as "R" of one that runs."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        # The name between brackets may hold anything.
        yield (thread / "stat").read_text().rpartition(")")[2].split()[0]


def statuses(directory: Path) -> dict[tuple[int, int], tuple[str, str]]:
    """Return status and reason by round and client."""
    rows = read_rows(directory)
    return {(row["round"], row["client"]): (row["status"], row["reason"]) for row in rows}


def has_text(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def manifest_of(directory: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    return manifest


@pytest.mark.parametrize("case", CASES)
def test_same_bits(tmp_path: Path, real_data: Path, run: Callable[..., Path], case: str) -> None:
    """The bits are the same on two workers with separate raylets, on 20 nodes, and in process."""
    words, rounds = CASES[case]
    words = (*words, f"rounds={rounds}")
    raylets: set[str] = set()

    def look(grid: Any) -> None:
        raylets.update(worker(grid, index)["raylet"] for index in range(2))

    there = run(tmp_path / "ray", *words, hooks={1: look})
    assert len(raylets) == 2
    assert_same_bits(there, in_process(tmp_path / "here", *words), rounds)
    manifest = manifest_of(there)
    assert (manifest["engine"], manifest["status"]) == ("ray", "completed")
    assert manifest["arithmetic"]["same_bits"] is True


def test_a_worker_that_is_killed(tmp_path: Path, run: Callable[..., Path]) -> None:
    """Its clients fail in this round with a reason, and return in the next one."""

    def kill(grid: Any) -> None:
        os.kill(worker(grid, 0)["process"], signal.SIGKILL)

    directory = run(tmp_path / "run", *FAST, "rounds=5", hooks={3: kill})
    assert manifest_of(directory)["status"] == "completed"
    for (server_round, client), (status, reason) in statuses(directory).items():
        if (server_round, client % 2) == (3, 0):
            assert status == "failed"
            assert reason.startswith("the worker of its node was lost: The actor is dead because")
        else:
            assert status == "trained", (server_round, client, reason)
    assert audit_run(directory).mismatches == ()


def test_a_quorum_does_not_wait_for_a_slow_worker(tmp_path: Path, run: Callable[..., Path]) -> None:
    """Its clients are late, then busy, and trained again once their reply has come."""
    stopped: list[int] = []

    def stop(grid: Any) -> None:
        stopped.append(worker(grid, 1)["process"])
        os.kill(stopped[0], signal.SIGSTOP)
        # The signal reaches one thread after another, and one that still runs answers in time.
        wait_for("all threads stopped", lambda: set(thread_states(stopped[0])) == {"T"}, 30)

    def go_on(grid: Any) -> None:
        os.kill(stopped[0], signal.SIGCONT)
        replies = [sent.reply for sent in grid._sent.values()]
        ray.wait(replies, num_returns=len(replies), timeout=120)

    words = (
        *FAST,
        "engine.quorum=0.5",
        "engine.grace_seconds=1",
        "engine.checkpoint_every=1",
        "rounds=6",
    )
    directory = run(tmp_path / "run", *words, hooks={2: stop, 4: go_on})
    found = statuses(directory)
    of_client_1 = [found[server_round, 1][0] for server_round in range(1, 7)]
    assert of_client_1[:3] == ["trained", "late", "busy"]
    assert of_client_1[5] == "trained"
    assert all(found[server_round, 0][0] == "trained" for server_round in range(1, 7))
    lines = read_lines(directory)
    late = [reply for line in lines for reply in line["late_replies"]]
    assert {reply["client"] for reply in late} >= {1, 3, 19}
    assert audit_run(directory).mismatches == ()


def interrupt(_: Any) -> None:
    raise KeyboardInterrupt


def test_resumed_from_ray_in_process(tmp_path: Path, run: Callable[..., Path]) -> None:
    """With Markov availability, the bits are those of an uninterrupted run."""
    kept = ("strategy=fedavg", "availability=markov", "availability.p=0.6")
    words = (*FAST, *kept, "engine.num_supernodes=2", "engine.workers=1", "rounds=6")
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        run(stopped, *words, hooks={6: interrupt})
    assert manifest_of(stopped)["status"] == "interrupted"
    in_process(stopped, *words, f"resume={stopped}")
    assert_same_bits(stopped, in_process(tmp_path / "whole", *words), 6)


def test_resumed_from_one_process_on_ray(tmp_path: Path, run: Callable[..., Path]) -> None:
    """Where clients keep nothing that is not found again, the number of nodes may change."""
    words = (*FEDALIGN, "availability=markov", "availability.p=0.6", "engine.workers=1", "rounds=6")
    whole = in_process(tmp_path / "whole", *words)
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        in_process(stopped, *words, hooks={6: interrupt})
    run(stopped, *words, f"resume={stopped}")
    assert_same_bits(stopped, whole, 6)
    assert manifest_of(stopped)["engine"] == "ray"


def test_workers_with_other_code(
    tmp_path: Path, run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, before there is a directory."""
    facts = {**collect_code_facts(), "numpy": "0.1"}
    monkeypatch.setattr("server_app.engines.ray.engine.collect_code_facts", lambda: facts)
    message = (
        r"^all workers must have the code of the run's process: numpy is \S+ on \S+, and 0\.1 th"
    )
    with pytest.raises(RunError, match=message):
        run(tmp_path / "run", *FAST, "engine.workers=1")
    assert not (tmp_path / "run").exists()


def test_a_machine_that_is_lost(tmp_path: Path, cluster: Cluster, run: Callable[..., Path]) -> None:
    """One raylet of three is killed during the run; its worker restarts at another one."""
    third = cluster.add_node()
    lost: list[int] = []

    def lose(grid: Any) -> None:
        workers = [worker(grid, index) for index in range(3)]
        raylets = [known["raylet"] for known in workers]
        assert len(set(raylets)) == 3
        lost.append(raylets.index(third.node_id))
        cluster.remove_node(third, allow_graceful=False)
        with suppress(ProcessLookupError):  # it may outlive its raylet by a round, no machine does
            os.kill(workers[lost[0]]["process"], signal.SIGKILL)

    directory = run(tmp_path / "run", *FAST, "rounds=5", hooks={3: lose})
    assert manifest_of(directory)["status"] == "completed"
    for (server_round, client), (status, reason) in statuses(directory).items():
        failed = (server_round, client % 3) == (3, lost[0])
        assert status == ("failed" if failed else "trained"), (server_round, client, reason)
    assert audit_run(directory).mismatches == ()


def test_ctrl_c_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is started for the run and stopped with it; the records hold all complete rounds."""
    directory, files = tmp_path / "run", folder / "alone"
    lines = directory / "rounds.jsonl"
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    words = ["engine=ray", "engine.workers=2", "rounds=100000", f"hydra.run.dir={directory}"]
    with start_command("fedquorum", *FAST, *words, cwd=tmp_path, RAY_TMPDIR=str(files)) as process:
        try:
            wait_for("a round", lambda: has_text(lines), 120)
            assert find_processes(re.escape(str(files)))
        finally:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "fedquorum: interrupted; the records hold all complete rounds" in stderr
    assert find_processes(re.escape(str(files))) == {}
    manifest = manifest_of(directory)
    assert manifest["status"] == "interrupted"
    assert manifest["rounds_completed"] == len(lines.read_text().splitlines())


@pytest.mark.skipif(not is_long(), reason="only with --long")
def test_a_sweep(cluster: Cluster, tmp_path: Path) -> None:
    """One job after the other on the cluster."""
    shell = Shell(tmp_path, {"RAY_ADDRESS": cluster.address})
    words = ["-m", "engine=ray", *FAST, "rounds=2", "seed=1,2", "hydra.sweep.dir=sweep"]
    done = shell("fedquorum", *words)
    assert done.status == 0, done.stderr
    assert {manifest_of(tmp_path / "sweep" / job)["status"] for job in "01"} == {"completed"}
    shutil.rmtree(tmp_path / "sweep")


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_sweep_of_tasks(cluster: Cluster, tmp_path: Path) -> None:
    """A job is a task. Ctrl-C ends all jobs, and the same command resumes with the same bits."""
    sweep = tmp_path / "sweep"
    jobs = [sweep / str(job) for job in range(2)]
    sizes = ("data.num_clients=4", "data.num_priority=2", "evaluation.every=100000")
    # A warm-up is a share of the rounds, and would end at another round of fewer.
    words_of_all = (*FAST, *sizes, "strategy.warmup_fraction=0")
    words = ("-m", "hydra/launcher=ray", *words_of_all, "rounds=100000", "seed=1,2")

    def run_until(rounds: Sequence[int]) -> str:
        """Interrupt the sweep when each job has this many rounds."""
        command = ("fedquorum", *words, f"hydra.sweep.dir={sweep}")
        with start_command(*command, cwd=tmp_path, RAY_ADDRESS=cluster.address) as process:
            done = [job / "rounds.jsonl" for job in jobs]
            wait_for(
                "two jobs at work",
                lambda: all(count_lines(d) >= n for d, n in zip(done, rounds, strict=True)),
                180,
            )
            assert len({(job / "job.lock").read_text() for job in jobs}) == 2
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 130, stderr
        assert "Traceback" not in stderr
        assert "0 of 2 jobs completed" in stdout
        assert {manifest_of(job)["status"] for job in jobs} == {"interrupted"}
        return stdout

    run_until([1, 1])
    before = [count_lines(job / "rounds.jsonl") for job in jobs]
    stdout = run_until([n + 3 for n in before])
    assert "job 0 (seed=1) is taken up again: interrupted after round" in stdout
    later = before.index(min(before))
    rounds = before[later] + 3
    alone = in_process(
        tmp_path / "alone", *words_of_all, f"seed={later + 1}", f"rounds={rounds + 1}"
    )
    assert (
        read_round_lines(jobs[later]).splitlines()[:rounds]
        == (read_round_lines(alone).splitlines()[:rounds])
    )
