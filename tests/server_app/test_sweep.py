"""A sweep over jobs that do what the test says."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from fedquorum.errors import RunError, SettingsError
from fedquorum.locks import lock
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from server_app.job import SweepUnfinished
from server_app.sweep import expand_sweep_override, run_grid
from tests.server_app.conftest import ScriptedLauncher, write_run

pytestmark = pytest.mark.slow  # each composes the settings of several jobs


def run(config: DictConfig, launcher: ScriptedLauncher, *words: str) -> None:
    run_grid(config, launcher, OverridesParser.create().parse_overrides(list(words)))


def test_all_combinations_once(
    sweep_config: DictConfig,
    launcher: ScriptedLauncher,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every combination is a job with a number; what was run already is not run again."""
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
    """Whatever is swept first: the data, made from its settings and the seed, is made once."""
    run(sweep_config, launcher, "strategy=fedalign,fedavg", "seed=1,2", "data.alpha=0.5,1")
    assert launcher.launched == [[0, 4, 1, 5, 2, 6, 3, 7]]


def test_no_sweep_without_posix_signals(
    sweep_config: DictConfig, launcher: ScriptedLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as on Windows, where a job could not be told to write its records."""
    monkeypatch.delattr("signal.pthread_sigmask")
    with pytest.raises(SettingsError, match=r"a sweep \(-m\) needs POSIX signals"):
        run(sweep_config, launcher, "seed=1,2", "rounds=2")
    assert launcher.launched == []


def test_a_glob_is_of_the_options() -> None:
    """``glob`` stands for the options that match it."""

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
    """The others run, the reasons are listed, the exit status is 1; only these run again."""

    def do(directory: Path, words: tuple[str, ...]) -> None:
        if "seed=2" in words:
            (directory / "error.txt").write_text("no such thing\n\nTraceback ...\n")
        else:
            write_run(directory, words)

    launcher.do = do
    with pytest.raises(SweepUnfinished) as end:
        run(sweep_config, launcher, "seed=1,2,3", "rounds=2,0")
    assert end.value.code == 1
    assert launcher.launched == [[0, 2, 4]]
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "fedquorum: job 1 (seed=1 rounds=0) failed: rounds must be a whole number >= 1, got 0",
        "fedquorum: job 2 (seed=2 rounds=2) failed: no such thing",
        "fedquorum: job 3 (seed=2 rounds=0) failed: rounds must be a whole number >= 1, got 0",
        "fedquorum: job 5 (seed=3 rounds=0) failed: rounds must be a whole number >= 1, got 0",
    ]
    assert "2 of 6 jobs completed" in told.out

    launcher.do = write_run
    run(sweep_config, launcher, "seed=1,2,3", "rounds=2")
    assert launcher.launched[1:] == [[2]]
    assert "job 2 (seed=2) is taken up again: no such thing" in capsys.readouterr().out


def test_a_killed_process_costs_its_own_job_only(
    sweep_config: DictConfig, launcher: ScriptedLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who was at work when a process died is run again alone; then the one to blame is known."""
    attempts: list[tuple[str, ...]] = []

    def do(directory: Path, words: tuple[str, ...]) -> None:
        attempts.append(words)
        write_run(directory, words, "running")
        if words == ("seed=2",):
            if attempts.count(words) == 1:  # with the others, not alone
                write_run(directory.with_name("0"), ("seed=1",), "running")
            raise RuntimeError("a worker was killed")
        write_run(directory, words)

    launcher.do = do
    with pytest.raises(SweepUnfinished):
        run(sweep_config, launcher, "seed=1,2,3,4")
    assert launcher.launched == [[0, 1, 2, 3], [0], [1], [2, 3]]
    assert [words[0] for words in attempts].count("seed=2") == 2
    assert capsys.readouterr().err == (
        "fedquorum: job 1 (seed=2) failed: its process was killed after round 2 of 200\n"
    )


def test_a_launcher_that_does_not_work(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """An error that is no job's ends the sweep with one line, not with endless attempts."""

    def launch(job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[object]:
        raise OSError("no such cluster")

    setattr(launcher, "launch", launch)  # noqa: B010 - mypy knows that it is a method
    with pytest.raises(RunError, match="the launcher failed: OSError: no such cluster"):
        run(sweep_config, launcher, "seed=1,2")


def test_an_interruption_leaves_the_others_undone(
    sweep_config: DictConfig, launcher: ScriptedLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 130, no further job; the same command runs the interrupted and the others."""

    def do(directory: Path, words: tuple[str, ...]) -> None:
        if words == ("seed=2",):
            write_run(directory, words, "interrupted", rounds=7)
            raise KeyboardInterrupt
        write_run(directory, words)

    launcher.do = do
    with pytest.raises(SweepUnfinished) as end:
        run(sweep_config, launcher, "seed=1,2,3")
    assert end.value.code == 130
    told = capsys.readouterr()
    assert "1 of 3 jobs completed" in told.out
    assert told.err == "fedquorum: interrupted; the records hold all complete rounds\n"

    launcher.do = write_run
    run(sweep_config, launcher, "seed=1,2,3")
    assert launcher.launched[1:] == [[1, 2]]
    assert (
        "job 1 (seed=2) is taken up again: interrupted after round 7 of 200"
        in capsys.readouterr().out
    )


def test_two_sweeps_do_not_share_a_folder(
    sweep_config: DictConfig, launcher: ScriptedLauncher, tmp_path: Path
) -> None:
    """The second is refused, and so is one while a job of the first is still at work."""
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
    ("hydra_words", "word", "message"),
    [
        (
            [],
            "client.lr=interval(0,1)",
            "client.lr must be a list of values in a sweep, got client.lr=i",
        ),
        (["hydra.sweep.subdir=a"], "seed=1,2", "hydra.sweep.subdir must not be set"),
    ],
)
def test_what_a_grid_cannot_do(
    sweep_config: DictConfig,
    launcher: ScriptedLauncher,
    hydra_words: list[str],
    word: str,
    message: str,
) -> None:
    """A sweep without an end of values, or with folders of another kind, is refused."""
    OmegaConf.update(sweep_config, "hydra.overrides.hydra", hydra_words)
    with pytest.raises(SettingsError, match=message):
        run(sweep_config, launcher, word)


def test_a_folder_that_cannot_be_made(
    sweep_config: DictConfig, launcher: ScriptedLauncher, tmp_path: Path
) -> None:
    """A file in the way is one line."""
    (tmp_path / "sweep").write_text("")
    with pytest.raises(RunError, match=r"hydra\.sweep\.dir must be a folder to write to"):
        run(sweep_config, launcher, "seed=1")


def test_words_of_every_kind(sweep_config: DictConfig, launcher: ScriptedLauncher) -> None:
    """Lists, infinity, ranges and a single choice reach the jobs as they were written."""
    seen: list[tuple[str, ...]] = []

    def do(directory: Path, words: tuple[str, ...]) -> None:
        seen.append(words)
        write_run(directory, words)

    launcher.do = do
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
