"""What the folders of a sweep say of its jobs."""

from pathlib import Path

import pytest
import yaml
from fedquorum.locks import lock
from omegaconf import DictConfig

import server_app.job
from conf.compose import compose_overrides
from server_app.job import build_resume_overrides
from server_app.sweep_jobs import Job, SweepFolder, count_complete_rounds, read_complete_rounds
from tests.builders_runs import run_here
from tests.server_app.conftest import write_run

WORDS = ("rounds=5", "seed=2")


def job_in(directory: Path) -> Job:
    return Job(3, WORDS, "seed=2", directory, compose_overrides(WORDS))


def test_a_job_that_was_never_run_waits(tmp_path: Path) -> None:
    """Without a folder there is nothing to say."""
    job = job_in(tmp_path / "3")
    assert (job.read_state().status, job.read_state().reason) == ("waiting", "")
    assert str(job) == "job 3 (seed=2)"
    assert job.rounds == 5


@pytest.mark.parametrize(
    ("left", "status", "reason"),
    [
        ("completed", "completed", ""),
        ("interrupted", "interrupted", "interrupted after round 2 of 5"),
        ("failed", "failed", "it broke"),
        ("running", "died", "its process was killed after round 2 of 5"),
    ],
)
def test_the_manifest_records_how_a_job_ended(
    tmp_path: Path, left: str, status: str, reason: str
) -> None:
    """A manifest that says running, with nobody at work, is of a killed process."""
    write_run(tmp_path / "3", WORDS, left)
    state = job_in(tmp_path / "3").read_state()
    assert (state.status, state.reason) == (status, reason)


def test_a_folder_without_a_manifest_is_no_run(tmp_path: Path) -> None:
    """Its rounds count for nothing, and its checkpoint is not gone on from."""
    directory = tmp_path / "3"
    words = ("rounds=2", "data.num_clients=4", "data.num_priority=2", "data.samples_per_client=20")
    run_here(directory, *words)
    expected = read_complete_rounds(directory)
    (directory / "manifest.json").unlink()
    assert (count_complete_rounds(directory), read_complete_rounds(directory)) == (0, [])
    job = Job(3, words, "", directory, compose_overrides(words))
    assert job.read_state().status == "waiting"
    assert build_resume_overrides(words, directory) == words
    assert sorted(path.name for path in directory.iterdir()) == ["config.yaml"]
    run_here(directory, *words)
    assert len(read_complete_rounds(directory)) == len(expected) == 2


def test_a_torn_line_is_no_round(tmp_path: Path) -> None:
    """What a killed process left of its last line does not count."""
    write_run(tmp_path / "3", WORDS, "running")
    with (tmp_path / "3" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "glo')
    assert job_in(tmp_path / "3").read_state().reason == "its process was killed after round 2 of 5"


def test_a_killed_job_before_its_run(tmp_path: Path) -> None:
    """A lock that nobody holds, without records, is of a killed process too."""
    (tmp_path / "job.lock").write_text("1 elsewhere")
    assert job_in(tmp_path).read_state().status == "died"


def test_a_job_at_work_and_one_that_failed(tmp_path: Path) -> None:
    """The lock goes before all else, then what is to be run again, then the error."""
    write_run(tmp_path / "3", WORDS, "running")
    job = job_in(tmp_path / "3")
    job.mark_failed("no data")
    assert (job.read_state().status, job.read_state().reason) == ("failed", "no data")
    job.mark_todo()
    assert job.read_state().status == "waiting"
    with lock(job.directory / "job.lock"):
        assert job.read_state().status == "running"


def test_jobs_are_identified_by_their_settings(tmp_path: Path) -> None:
    """However it is written and numbered, a job finds its own folder; a new one gets a new one."""
    write_run(tmp_path / "0", ("seed=1", "rounds=5"))
    write_run(tmp_path / "1", ("seed=2", "rounds=5"), "interrupted")
    folder = SweepFolder(tmp_path)
    new = folder.get_job(("rounds=5", "seed=7"), "seed=7", 0)
    known = [folder.get_job(("rounds=5", f"seed={seed}"), "", seed + 5) for seed in (2, 1)]
    further = folder.get_job(("rounds=5", "seed=8"), "", 5)
    assert [job.number for job in (new, *known, further)] == [2, 1, 0, 5]
    assert [job.read_state().status for job in known] == ["interrupted", "completed"]


def test_the_same_job_twice_is_one(tmp_path: Path) -> None:
    """Two ways to write the same settings do not make two jobs."""
    folder = SweepFolder(tmp_path)
    first = folder.get_job(("strategy.epsilon=0.5",), "", 0)
    assert folder.get_job(("strategy.epsilon=5e-1",), "", 1) is first


def test_of_several_runs_the_completed_one_counts(tmp_path: Path) -> None:
    """A job that was run twice is not run a third time."""
    write_run(tmp_path / "0", WORDS, "failed")
    write_run(tmp_path / "4", WORDS)
    assert SweepFolder(tmp_path).get_job(WORDS, "", 0).number == 4


def test_settings_that_are_not_allowed_fail_at_once(tmp_path: Path) -> None:
    """The job is in its folder with the reason, and has no settings to run with."""
    job = SweepFolder(tmp_path).get_job(("strategy.epsilon=-1",), "strategy.epsilon=-1", 2)
    assert job.composed is None
    assert job.read_state().status == "failed"
    assert (tmp_path / "2" / "error.txt").read_text() == (
        "strategy.epsilon must be a number >= 0 (inf allowed), got -1.0\n"
    )


def test_a_folder_of_settings_that_were_not_allowed_is_free(tmp_path: Path) -> None:
    """What failed there before says nothing of the job that has the folder now."""
    SweepFolder(tmp_path).get_job(("strategy.epsilon=-1",), "", 0)
    job = SweepFolder(tmp_path).get_job(("strategy.epsilon=1",), "", 0)
    assert (job.number, job.read_state().status) == (0, "waiting")
    assert SweepFolder(tmp_path).get_job(("strategy.epsilon=1",), "", 7).number == 0


def test_paths_of_flower_jobs_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on Flower records absolute paths, and is found again by them."""
    monkeypatch.chdir(tmp_path)
    words = ("engine=flower", "experiment=fedalign/fmnist", "data.root=here")
    absolute = ("engine=flower", "experiment=fedalign/fmnist", f"data.root={tmp_path / 'here'}")
    write_run(tmp_path / "6", absolute)
    assert SweepFolder(tmp_path).get_job(words, "", 0).number == 6


def test_a_job_is_found_however_its_settings_were_written(tmp_path: Path) -> None:
    """In another order, by another program: it is not run again."""
    words = ("strategy=fedavg", "seed=2")
    write_run(tmp_path / "7", words)
    config = tmp_path / "7" / "config.yaml"
    settings = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(settings, sort_keys=True))
    folder = SweepFolder(tmp_path)
    assert folder.get_job(words, "", 0).number == 7
    assert folder.get_job(("strategy=fedavg", "seed=3"), "", 0).number == 0


def test_a_run_that_was_stopped_while_it_sent_is_to_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower ends such a ServerApp with an error, so that its records say that it failed."""

    def fail_and_stop(_words: tuple[str, ...], directory: Path) -> None:
        (directory / "manifest.json").write_text('{"status": "failed", "error": "no session"}')
        raise KeyboardInterrupt

    monkeypatch.setattr(server_app.job, "_check_config", lambda *_: None)
    monkeypatch.setattr(server_app.job, "build_resume_overrides", lambda words, _directory: words)
    monkeypatch.setattr(server_app.job, "run_overrides", fail_and_stop)
    with pytest.raises(KeyboardInterrupt):
        server_app.job._run_in_sweep(DictConfig({}), (), tmp_path)
    assert Job(0, (), "", tmp_path, None).read_state().status == "waiting"
