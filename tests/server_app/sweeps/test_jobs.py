"""Test the states of a sweep's jobs, read from their folders."""

from pathlib import Path

import pytest
import yaml
from fedquorum.io import lock
from omegaconf import DictConfig

import server_app.runs.job
from conf.compose import compose_overrides
from server_app.runs.job import build_resume_overrides
from server_app.sweeps.jobs import Job, SweepFolder, count_complete_rounds, read_complete_rounds
from tests.builders_runs import run_here
from tests.server_app.conftest import write_run

OVERRIDES = ("rounds=5", "seed=2")


def make_job(directory: Path) -> Job:
    return Job(3, OVERRIDES, "seed=2", directory, compose_overrides(OVERRIDES))


def test_a_job_without_a_folder_waits(tmp_path: Path) -> None:
    """A waiting job has no reason."""
    job = make_job(tmp_path / "3")
    assert (job.read_state().status, job.read_state().reason) == ("waiting", "")
    assert str(job) == "job 3 (seed=2)"
    assert job.rounds == 5


@pytest.mark.parametrize(
    ("recorded", "status", "reason"),
    [
        ("completed", "completed", ""),
        ("interrupted", "interrupted", "interrupted after round 2 of 5"),
        ("failed", "failed", "it broke"),
        ("running", "died", "its process was killed after round 2 of 5"),
    ],
)
def test_the_manifest_records_how_a_job_ended(
    tmp_path: Path, recorded: str, status: str, reason: str
) -> None:
    """If the manifest says "running" and no process has the lock, the process was killed."""
    write_run(tmp_path / "3", OVERRIDES, recorded)
    state = make_job(tmp_path / "3").read_state()
    assert (state.status, state.reason) == (status, reason)


def test_a_folder_without_a_manifest_is_not_a_run(tmp_path: Path) -> None:
    """Its rounds do not count, and its checkpoint is not used."""
    directory = tmp_path / "3"
    overrides = (
        "rounds=2",
        "data.num_clients=4",
        "data.num_priority=2",
        "data.samples_per_client=20",
    )
    run_here(directory, *overrides)
    expected = read_complete_rounds(directory)
    (directory / "manifest.json").unlink()
    assert (count_complete_rounds(directory), read_complete_rounds(directory)) == (0, [])
    job = Job(3, overrides, "", directory, compose_overrides(overrides))
    assert job.read_state().status == "waiting"
    assert build_resume_overrides(overrides, directory) == overrides
    assert sorted(path.name for path in directory.iterdir()) == ["config.yaml"]
    run_here(directory, *overrides)
    assert len(read_complete_rounds(directory)) == len(expected) == 2


def test_an_incomplete_line_is_not_a_round(tmp_path: Path) -> None:
    """A killed process may have written only part of its last line."""
    write_run(tmp_path / "3", OVERRIDES, "running")
    with (tmp_path / "3" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "glo')
    assert (
        make_job(tmp_path / "3").read_state().reason == "its process was killed after round 2 of 5"
    )


def test_a_free_lock_without_records_means_a_killed_job(tmp_path: Path) -> None:
    """The process was killed before the run wrote its manifest."""
    (tmp_path / "job.lock").write_text("1 elsewhere")
    assert make_job(tmp_path).read_state().status == "died"


def test_the_lock_precedes_the_todo_mark_and_the_error(tmp_path: Path) -> None:
    """A locked job is running, a marked job waits, and an error means that the job failed."""
    write_run(tmp_path / "3", OVERRIDES, "running")
    job = make_job(tmp_path / "3")
    job.mark_failed("no data")
    assert (job.read_state().status, job.read_state().reason) == ("failed", "no data")
    job.mark_todo()
    assert job.read_state().status == "waiting"
    with lock(job.directory / "job.lock"):
        assert job.read_state().status == "running"


def test_jobs_are_identified_by_their_settings(tmp_path: Path) -> None:
    """A known job finds its folder by any number and spelling; a new job gets a free folder."""
    write_run(tmp_path / "0", ("seed=1", "rounds=5"))
    write_run(tmp_path / "1", ("seed=2", "rounds=5"), "interrupted")
    folder = SweepFolder(tmp_path)
    new = folder.get_job(("rounds=5", "seed=7"), "seed=7", 0)
    known = [folder.get_job(("rounds=5", f"seed={seed}"), "", seed + 5) for seed in (2, 1)]
    further = folder.get_job(("rounds=5", "seed=8"), "", 5)
    assert [job.number for job in (new, *known, further)] == [2, 1, 0, 5]
    assert [job.read_state().status for job in known] == ["interrupted", "completed"]


def test_equal_settings_are_the_same_job(tmp_path: Path) -> None:
    """Another spelling of the same settings does not create another job."""
    folder = SweepFolder(tmp_path)
    first = folder.get_job(("strategy.epsilon=0.5",), "", 0)
    assert folder.get_job(("strategy.epsilon=5e-1",), "", 1) is first


def test_of_several_runs_the_completed_one_counts(tmp_path: Path) -> None:
    """The job does not run again."""
    write_run(tmp_path / "0", OVERRIDES, "failed")
    write_run(tmp_path / "4", OVERRIDES)
    assert SweepFolder(tmp_path).get_job(OVERRIDES, "", 0).number == 4


def test_settings_that_are_not_allowed_fail_at_once(tmp_path: Path) -> None:
    """The job's folder has the reason, and the job has no settings."""
    job = SweepFolder(tmp_path).get_job(("strategy.epsilon=-1",), "strategy.epsilon=-1", 2)
    assert job.composed is None
    assert job.read_state().status == "failed"
    assert (tmp_path / "2" / "error.txt").read_text() == (
        "strategy.epsilon must be a number >= 0 (inf allowed), got -1.0\n"
    )


def test_the_folder_of_refused_settings_is_reused(tmp_path: Path) -> None:
    """The error of the refused job does not count for the new job."""
    SweepFolder(tmp_path).get_job(("strategy.epsilon=-1",), "", 0)
    job = SweepFolder(tmp_path).get_job(("strategy.epsilon=1",), "", 0)
    assert (job.number, job.read_state().status) == (0, "waiting")
    assert SweepFolder(tmp_path).get_job(("strategy.epsilon=1",), "", 7).number == 0


def test_paths_of_flower_jobs_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on Flower records absolute paths, by which the job is found again."""
    monkeypatch.chdir(tmp_path)
    overrides = ("engine=flower", "experiment=fedalign/fmnist", "data.root=here")
    absolute = ("engine=flower", "experiment=fedalign/fmnist", f"data.root={tmp_path / 'here'}")
    write_run(tmp_path / "6", absolute)
    assert SweepFolder(tmp_path).get_job(overrides, "", 0).number == 6


def test_a_job_is_found_with_its_settings_in_another_order(tmp_path: Path) -> None:
    """Another program may have written the file."""
    overrides = ("strategy=fedavg", "seed=2")
    write_run(tmp_path / "7", overrides)
    config = tmp_path / "7" / "config.yaml"
    settings = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(settings, sort_keys=True))
    folder = SweepFolder(tmp_path)
    assert folder.get_job(overrides, "", 0).number == 7
    assert folder.get_job(("strategy=fedavg", "seed=3"), "", 0).number == 0


def test_a_flower_run_interrupted_while_sending_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower ends such a ServerApp with an error, so its records have the status "failed"."""

    def fail_and_interrupt(_overrides: tuple[str, ...], directory: Path) -> None:
        (directory / "manifest.json").write_text('{"status": "failed", "error": "no session"}')
        raise KeyboardInterrupt

    monkeypatch.setattr(server_app.runs.job, "_check_config", lambda *_: None)
    monkeypatch.setattr(
        server_app.runs.job, "build_resume_overrides", lambda overrides, _directory: overrides
    )
    monkeypatch.setattr(server_app.runs.job, "run_overrides", fail_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        server_app.runs.job._run_in_sweep(DictConfig({}), (), tmp_path)
    assert Job(0, (), "", tmp_path, None).read_state().status == "waiting"
