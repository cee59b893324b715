"""Test sweeps whose jobs call a function of the test."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from fedquorum.errors import RunError, SettingsError
from fedquorum.io import lock
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from server_app.runs.job import SweepUnfinished
from server_app.sweeps.sweep import expand_sweep_override, run_grid
from tests.server_app.conftest import ScriptedLauncher, write_run

pytestmark = pytest.mark.slow  # each composes the settings of several jobs


def run(config: DictConfig, launcher: ScriptedLauncher, *overrides: str) -> None:
    run_grid(config, launcher, OverridesParser.create().parse_overrides(list(overrides)))


def test_every_combination_runs_once(
    sweep_config: DictConfig,
    launcher: ScriptedLauncher,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every combination is a numbered job; completed jobs do not run again."""
    run(sweep_config, launcher, "seed=1,2", "strategy=fedalign,fedavg", "rounds=2")
    assert launcher.launched == [[0, 1, 2, 3]]
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"4 of 4 jobs completed in {tmp_path / 'sweep'}",
        f"  figures and tables    fedquorum report {tmp_path / 'sweep'}",
        f"  replay all decisions  fedquorum audit {tmp_path / 'sweep'}",
    ]
    run(sweep_config, launcher, "strategy=fedalign,fedavg", "rounds=2", "seed=2,3")
    assert launcher.launched[1:] == [[4, 5]]
    out = capsys.readouterr().out
    assert "2 of 4 jobs are completed already" in out
    assert "[4/4] job 5 (strategy=fedavg seed=3) completed  loss 0.5000  admitted 3 of 4" in out


def test_jobs_with_the_same_data_follow_each_other(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """The data is built once for all jobs with the same data settings and seed."""
    run(sweep_config, launcher, "strategy=fedalign,fedavg", "seed=1,2", "data.alpha=0.5,1")
    assert launcher.launched == [[0, 4, 1, 5, 2, 6, 3, 7]]


def test_no_sweep_without_posix_signals(
    sweep_config: DictConfig, launcher: ScriptedLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them, as on Windows, a job could not write its records after an interruption."""
    monkeypatch.delattr("signal.pthread_sigmask")
    with pytest.raises(SettingsError, match=r"a sweep \(-m\) needs POSIX signals"):
        run(sweep_config, launcher, "seed=1,2", "rounds=2")
    assert launcher.launched == []


def test_a_glob_expands_to_options() -> None:
    """``glob`` expands to the options that match it."""

    class Loader:
        def get_group_options(self, *_: object, **__: object) -> list[str]:
            return ["fedau", "fedavg", "mifa"]

    [override] = OverridesParser.create().parse_overrides(["strategy=glob(*au)"])
    override.config_loader = cast("ConfigLoader", Loader())
    assert expand_sweep_override(override) == ["strategy=fedau"]


def test_a_failed_job_does_not_stop_the_others(
    sweep_config: DictConfig,
    launcher: ScriptedLauncher,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The other jobs run, the exit status is 1, and the next call runs only failed jobs again."""

    def run_job(directory: Path, overrides: tuple[str, ...]) -> None:
        if "seed=2" in overrides:
            (directory / "error.txt").write_text("no such thing\n\nTraceback ...\n")
        else:
            write_run(directory, overrides)

    launcher.run_job = run_job
    with pytest.raises(SweepUnfinished) as end:
        run(sweep_config, launcher, "seed=1,2,3", "rounds=2,0")
    assert end.value.code == 1
    assert launcher.launched == [[0, 2, 4]]
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "fedquorum: job 1 (seed=1 rounds=0) failed: rounds must be a whole number >= 1, got 0",
        "fedquorum: job 2 (seed=2 rounds=2) failed: no such thing",
        "fedquorum: job 3 (seed=2 rounds=0) failed: rounds must be a whole number >= 1, got 0",
        "fedquorum: job 5 (seed=3 rounds=0) failed: rounds must be a whole number >= 1, got 0",
    ]
    assert "2 of 6 jobs completed" in captured.out

    launcher.run_job = write_run
    run(sweep_config, launcher, "seed=1,2,3", "rounds=2")
    assert launcher.launched[1:] == [[2]]
    assert "job 2 (seed=2) is taken up again: no such thing" in capsys.readouterr().out


def test_a_killed_process_fails_only_its_job(
    sweep_config: DictConfig, launcher: ScriptedLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    """All running jobs are run again alone, to find the job that causes the death."""
    attempts: list[tuple[str, ...]] = []

    def run_job(directory: Path, overrides: tuple[str, ...]) -> None:
        attempts.append(overrides)
        write_run(directory, overrides, "running")
        if overrides == ("seed=2",):
            if attempts.count(overrides) == 1:  # the attempt with the other jobs
                write_run(directory.with_name("0"), ("seed=1",), "running")
            raise RuntimeError("a worker was killed")
        write_run(directory, overrides)

    launcher.run_job = run_job
    with pytest.raises(SweepUnfinished):
        run(sweep_config, launcher, "seed=1,2,3,4")
    assert launcher.launched == [[0, 1, 2, 3], [0], [1], [2, 3]]
    assert [attempt[0] for attempt in attempts].count("seed=2") == 2
    assert capsys.readouterr().err == (
        "fedquorum: job 1 (seed=2) failed: its process was killed after round 2 of 200\n"
    )


def test_a_failing_launcher_ends_the_sweep(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """An error that belongs to no job ends the sweep with one line, without retries."""

    def launch(job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[object]:
        raise OSError("no such cluster")

    setattr(launcher, "launch", launch)  # noqa: B010 - mypy knows that it is a method
    with pytest.raises(RunError, match="the launcher failed: OSError: no such cluster"):
        run(sweep_config, launcher, "seed=1,2")


def test_an_interruption_starts_no_other_job(
    sweep_config: DictConfig, launcher: ScriptedLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 130; the same command runs the interrupted job and the others."""

    def run_job(directory: Path, overrides: tuple[str, ...]) -> None:
        if overrides == ("seed=2",):
            write_run(directory, overrides, "interrupted", rounds=7)
            raise KeyboardInterrupt
        write_run(directory, overrides)

    launcher.run_job = run_job
    with pytest.raises(SweepUnfinished) as end:
        run(sweep_config, launcher, "seed=1,2,3")
    assert end.value.code == 130
    captured = capsys.readouterr()
    assert "1 of 3 jobs completed" in captured.out
    assert captured.err == "fedquorum: interrupted; the records hold all complete rounds\n"

    launcher.run_job = write_run
    run(sweep_config, launcher, "seed=1,2,3")
    assert launcher.launched[1:] == [[1, 2]]
    assert (
        "job 1 (seed=2) is taken up again: interrupted after round 7 of 200"
        in capsys.readouterr().out
    )


def test_two_sweeps_do_not_share_a_folder(
    sweep_config: DictConfig, launcher: ScriptedLauncher, tmp_path: Path
) -> None:
    """The second is refused, also if only a job of the first is still running."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    with (
        lock(folder / "sweep.lock"),
        pytest.raises(RunError, match=r"must not be in use by another sweep, got .*sweep$"),
    ):
        run(sweep_config, launcher, "seed=1")
    write_run(folder / "0", ("seed=1",), "running")
    with lock(folder / "0" / "job.lock"), pytest.raises(RunError, match="job 0 is still running"):
        run(sweep_config, launcher, "seed=1")
    assert launcher.launched == []


@pytest.mark.parametrize(
    ("hydra_overrides", "override", "message"),
    [
        (
            [],
            "client.lr=interval(0,1)",
            "client.lr must be a list of values in a sweep, got client.lr=i",
        ),
        (["hydra.sweep.subdir=a"], "seed=1,2", "hydra.sweep.subdir must not be set"),
    ],
)
def test_invalid_sweeps_are_refused(
    sweep_config: DictConfig,
    launcher: ScriptedLauncher,
    hydra_overrides: list[str],
    override: str,
    message: str,
) -> None:
    """An interval has no list of values, and job folders must be numbered."""
    OmegaConf.update(sweep_config, "hydra.overrides.hydra", hydra_overrides)
    with pytest.raises(SettingsError, match=message):
        run(sweep_config, launcher, override)


def test_a_folder_that_cannot_be_created_is_one_line(
    sweep_config: DictConfig, launcher: ScriptedLauncher, tmp_path: Path
) -> None:
    """The folder's path belongs to a file."""
    (tmp_path / "sweep").write_text("")
    with pytest.raises(RunError, match=r"hydra\.sweep\.dir must be a folder to write to"):
        run(sweep_config, launcher, "seed=1")


def test_values_of_every_kind_reach_the_jobs(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """The jobs receive lists, infinity, ranges and a single choice as they were written."""
    seen: list[tuple[str, ...]] = []

    def run_job(directory: Path, overrides: tuple[str, ...]) -> None:
        seen.append(overrides)
        write_run(directory, overrides)

    launcher.run_job = run_job
    run(
        sweep_config,
        launcher,
        "strategy=choice(fedau)",
        "strategy.cutoff=10,inf",
        "seed=range(1,3)",
        "data.priority=choice([0,1],[2,3])",
    )
    expected = itertools.product(
        ["strategy=fedau"],
        ["strategy.cutoff=10", "strategy.cutoff=inf"],
        ["seed=1", "seed=2"],
        ["data.priority=[0,1]", "data.priority=[2,3]"],
    )
    assert sorted(seen) == sorted(expected)
