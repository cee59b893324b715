"""``fedquorum -m`` with several processes, as a user has them."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.builders_runs import make_client_overrides, run_here
from tests.integration.conftest import (
    Shell,
    assert_same_bits,
    find_processes,
    start_command,
    wait_for,
)

pytestmark = pytest.mark.slow

SMALL = (*make_client_overrides(4, 2, samples=20), "hydra.sweep.dir=sweep")


def status(run: Path) -> str:
    """Return the status in the manifest of a job, "" where there is none."""
    path = run / "manifest.json"
    return str(json.loads(path.read_text())["status"]) if path.exists() else ""


def group(leader: int) -> set[int]:
    """Return the processes of a group."""
    found = set()
    for pid in psutil.pids():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            if os.getpgid(pid) == leader:
                found.add(pid)
    return found


def test_several_jobs_at_a_time(shell: Shell) -> None:
    """Two processes share the jobs; all complete, an impossible one is reported."""
    words = ("engine.jobs=2", "rounds=2", "strategy=fedalign,fedavg", "client.lr=0.1,0.2,0", *SMALL)
    done = shell("fedquorum", "-m", *words)
    assert done.status == 1, done.stdout + done.stderr
    assert done.stdout.count("completed  loss") == 4
    assert "4 of 6 jobs completed" in done.stdout
    assert done.stderr.count(" failed: client.lr must be a number > 0, got 0.0\n") == 2
    sweep = shell.cwd / "sweep"
    assert [status(sweep / job) for job in "013425"] == ["completed"] * 4 + [""] * 2
    assert not list(sweep.rglob("*.lock"))


def test_a_killed_process_and_an_interrupted_sweep(shell: Shell) -> None:
    """A kill costs its job a second attempt; Ctrl-C ends what runs and leaves the rest."""
    words = ("engine.jobs=2", "rounds=2,100000,100001", *SMALL)
    sweep = shell.cwd / "sweep"
    with start_command("fedquorum", "-m", *words, cwd=shell.cwd) as process:
        at_work = [sweep / job / "rounds.jsonl" for job in "12"]
        wait_for(
            "two jobs at work",
            lambda: all(path.exists() and path.stat().st_size for path in at_work),
            180,
        )
        manifest = sweep / "1" / "manifest.json"
        first = manifest.stat().st_mtime_ns
        os.kill(int((sweep / "1" / "job.lock").read_text().split()[0]), signal.SIGKILL)
        wait_for(
            "a second attempt",
            lambda: manifest.exists() and manifest.stat().st_mtime_ns > first,
            180,
        )
        wait_for("its rounds", lambda: at_work[0].stat().st_size > 0, 180)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "1 of 3 jobs completed" in stdout
    assert "fedquorum: interrupted; the records hold all complete rounds\n" in stderr
    assert "Traceback" not in stderr
    assert stderr.splitlines()[-1].startswith("fedquorum: to continue the sweep: ")
    assert status(sweep / "0") == "completed"
    assert status(sweep / "1") == "interrupted"
    rounds = [json.loads(line)["round"] for line in at_work[0].read_text().splitlines()]
    assert rounds == list(range(1, len(rounds) + 1))
    wait_for(
        "no process left", lambda: not group(process.pid) & find_processes("joblib").keys(), 180
    )


def test_a_job_that_slurm_takes_the_machine_from(shell: Shell) -> None:
    """Submitit requeues it, and it resumes from its checkpoint with the same bits."""
    words = (*SMALL[:-1], "engine.checkpoint_every=2", "evaluation.every=1000", "rounds=150")
    sweep = shell.cwd / "sweep"
    job = sweep / "0"
    slurm = ("hydra/launcher=submitit_local", "hydra.launcher.timeout_min=60")
    with start_command(
        "fedquorum", "-m", *slurm, *words, "seed=1,2", SMALL[-1], cwd=shell.cwd
    ) as process:
        lines = job / "rounds.jsonl"
        wait_for("a round", lambda: lines.exists() and lines.stat().st_size > 0, 180)
        os.kill(int((job / "job.lock").read_text().split()[0]), signal.SIGUSR2)
        stdout, stderr = process.communicate(timeout=180)
    assert process.returncode == 0, stdout + stderr
    assert "2 of 2 jobs completed" in stdout
    logs = [path.read_text() for path in sweep.glob(".submitit/*/*_log.out")]
    assert sum("Requeued job" in log for log in logs) == 1
    assert all("Job completed successfully" in log for log in logs)
    assert "Continuing after round" in (job / "output.log").read_text()
    assert_same_bits(job, run_here(shell.cwd / "alone", *words, "seed=1"), 150)
