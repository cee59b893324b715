"""Test the display of a sweep, which reads the jobs' folders."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from fedquorum.io import lock
from rich.console import Console

from conf.compose import compose_overrides
from server_app.sweeps.display import SweepDisplay
from server_app.sweeps.jobs import Job
from tests.server_app.conftest import write_run


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    """Return three jobs with four rounds."""
    combinations = [("rounds=4", f"seed={seed}") for seed in (1, 2, 3)]
    return [
        Job(number, overrides, overrides[1], tmp_path / str(number), compose_overrides(overrides))
        for number, overrides in enumerate(combinations)
    ]


def read_lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_plain_lines_show_ended_jobs_and_progress(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every job that ends has a line; after a while without one, a line shows the progress."""
    console = Console(file=io.StringIO())
    now = 0.0
    monkeypatch.setattr("server_app.sweeps.display.time.monotonic", lambda: now)
    monkeypatch.setattr("server_app.sweeps.display.POLL_SECONDS", 3600.0)
    with SweepDisplay(console) as display:
        display.add(jobs, completed_before=2, total=5)
        write_run(jobs[0].directory, jobs[0].overrides, "running", rounds=2)
        with lock(jobs[0].directory / "job.lock"):
            display.show()
            assert read_lines(console) == []
            now = 20.0
            display.show()
        write_run(jobs[0].directory, jobs[0].overrides, rounds=4)
        jobs[1].directory.mkdir()
        jobs[1].mark_failed("no data")
        write_run(jobs[2].directory, jobs[2].overrides, "interrupted", rounds=1)
    assert read_lines(console) == [
        "[2/5] 1 running, 0:01:40 left  job 0 round 2/4",
        "[3/5] job 0 (seed=1) completed  loss 0.2500  admitted 3 of 4 selected",
        "[4/5] job 1 (seed=2) failed  no data",
        "[5/5] job 2 (seed=3) interrupted after round 1 of 4",
    ]


def test_a_study_shows_its_remaining_budget(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no number of jobs, and a trial that can resume later is not shown as completed."""
    console = Console(file=io.StringIO())
    now = 0.0
    monkeypatch.setattr("server_app.sweeps.display.time.monotonic", lambda: now)
    monkeypatch.setattr("server_app.sweeps.display.POLL_SECONDS", 3600.0)
    trial = replace(jobs[0], stop_after=2)
    with SweepDisplay(console) as display:
        display.left = lambda: "56 rounds left"
        now = 40.0
        display.show()
        assert read_lines(console) == []
        now = 0.0
        display.add([trial, jobs[1]], completed_before=0, total=2)
        write_run(trial.directory, trial.overrides, "interrupted", rounds=2)
        write_run(jobs[1].directory, jobs[1].overrides, "running", rounds=1)
        with lock(jobs[1].directory / "job.lock"):
            now = 20.0
            display.show()
        write_run(jobs[1].directory, jobs[1].overrides, rounds=4)
    assert read_lines(console) == [
        "[1] job 0 (seed=1) round 2 of 4  loss 0.5000  admitted 3 of 4 selected",
        "[2] job 1 (seed=2) completed  loss 0.2500  admitted 3 of 4 selected",
    ]


def test_the_live_line_of_a_study(jobs: list[Job]) -> None:
    """It shows the remaining budget, because the number of jobs is unknown."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    with SweepDisplay(console) as display:
        display.left = lambda: "12:30 min left"
        display.add(jobs[:1], completed_before=0, total=1)
        write_run(jobs[0].directory, jobs[0].overrides, rounds=4)
        display.show()
        display._progress.refresh()
    assert "study" in out.getvalue()
    assert "1/? 12:30 min left" in out.getvalue()


def test_the_time_left_counts_only_rounds_of_this_call(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of an earlier call and jobs that failed at once do not make it shorter."""
    console = Console(file=io.StringIO())
    now = 0.0
    monkeypatch.setattr("server_app.sweeps.display.time.monotonic", lambda: now)
    monkeypatch.setattr("server_app.sweeps.display.POLL_SECONDS", 3600.0)
    write_run(jobs[0].directory, jobs[0].overrides, "interrupted", rounds=2)
    jobs[0].mark_todo()
    refused = Job(3, ("rounds=0",), "rounds=0", jobs[0].directory.with_name("3"), None)
    refused.mark_failed("rounds must be a whole number >= 1, got 0")
    with SweepDisplay(console) as display:
        display.add([refused, *jobs[:2]], completed_before=0, total=3)
        (jobs[0].directory / "job.todo").unlink()
        write_run(jobs[0].directory, jobs[0].overrides, "running", rounds=3)
        with lock(jobs[0].directory / "job.lock"):
            display.show()
            now = 20.0
            display.show()
    # one of the six rounds that were left: two of job 0 and four of job 1
    assert "[1/3] 1 failed, 1 running, 0:01:40 left  job 0 round 3/4" in read_lines(console)


def test_the_rounds_of_a_restarted_job_are_read_again(jobs: list[Job]) -> None:
    """Rounds of an earlier attempt do not hide the new ones."""
    console = Console(file=io.StringIO())
    with SweepDisplay(console) as display:
        display.add(jobs[:1], completed_before=0, total=1)
        write_run(jobs[0].directory, jobs[0].overrides, "running", rounds=4)
        with lock(jobs[0].directory / "job.lock"):
            display.show()
            write_run(jobs[0].directory, jobs[0].overrides, "running", rounds=1)
            display.show()
        write_run(jobs[0].directory, jobs[0].overrides, "completed", rounds=2)
    assert read_lines(console)[-1].endswith("completed  loss 0.5000  admitted 3 of 4 selected")


def test_a_terminal_has_live_lines(jobs: list[Job]) -> None:
    """It has one line for the sweep, and one for every running job with its last numbers."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    with SweepDisplay(console) as display:
        display.add(jobs, completed_before=0, total=3)
        write_run(jobs[1].directory, jobs[1].overrides, "running", rounds=2)
        with lock(jobs[1].directory / "job.lock"):
            display.show()
            display._progress.refresh()
    text = out.getvalue()
    assert "sweep" in text
    assert "0/3" in text
    assert "job 1 (seed=2)" in text
    assert "2/4" in text
    assert "loss 0.5000" in text
