"""Test the command ``fedquorum`` in this process; integration/ tests it in new processes."""

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fedquorum.records.round_record import RoundRecord
from fedquorum.registry import NAMED_STRATEGIES
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback

from conf.overrides import get_sweep_values
from server_app.cli.fedquorum import main, prepare_sweep_overrides
from server_app.runs.display import Display
from tests.builders_runs import make_client_overrides
from tests.integration.conftest import assert_same_rounds

SMALL = ("rounds=2", *make_client_overrides(4, 2, samples=20))
Command = Callable[..., int]
SLOW = ("torch", "flwr", "pyarrow", "pandas", "scipy", "matplotlib", "client_app.app")
"""Packages that take long to import, and that checking settings does not need."""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs ``fedquorum`` in an empty folder; it returns the exit status."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["fedquorum", *arguments])
        try:
            main()
        except SystemExit as end:
            return int(str(end.code))
        return 0

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["engine.jobs=0"], "engine.jobs must be a whole number >= 1, got 0"),
        (["engine.jobs=1,2"], "engine.jobs must be one value"),
        (
            ["hydra/launcher=cluster"],
            "hydra/launcher must be one of processes, ray, or an option of an installed",
        ),
        (
            ["hydra/sweeper=random"],
            "hydra/sweeper must be one of grid, optuna, study, or an option of an",
        ),
        (
            ["strategy=composed", "strategy.selection=everyone,priority_only"],
            "strategy.selection is not a setting; strategy/selection has after_warmup, custom, ",
        ),
        (
            ["hydra.sweeper=optuna"],
            "hydra.sweeper is not a setting; hydra/sweeper has grid, optuna, study, got optuna ",
        ),
        (["hydra.sweep.folder=x"], "hydra.sweep.folder is not a setting"),
        (["hydra.sweep.subdir=x"], "hydra.sweep.subdir must not be set: jobs have numbered"),
        (["seed"], "a setting must be NAME=VALUE, got 'seed' without a value"),
        (["strategy.epsilonn=0,1"], "strategy.epsilonn is not a setting; strategy has"),
        (["strategy=fedua"], "strategy must be one of fedau, "),
        (["rounds=0"], "rounds must be a whole number >= 1, got 0"),
        (["experiment=fedalign/nope"], "experiment must be one of fedalign/"),
        (
            ["client.lr=interval(0,1)"],
            "client.lr must be a list of values in a sweep, got client.lr=interval(0,1) (type ",
        ),
        (
            ["rounds=range(1,1)"],
            "rounds must have at least one value in a sweep, got rounds=range(",
        ),
        (["rounds="], "rounds must be a whole number, got ''"),
        (
            ["a=[1"],
            "a must be a value in Hydra's grammar, got 'a=[1': [ is not closed; type 'a=[1]'",
        ),
        (["--nothing"], "a flag must be -m, --help, or one that fedquorum --hydra-help lists, got"),
        (
            ["hydra/sweeper=optuna", "hydra.sweeper.trials=0"],
            "hydra.sweeper.trials must be a whole number >= 1, got 0",
        ),
    ],
)
def test_an_error_of_a_whole_sweep_is_one_line(
    command: Command, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """The exit status is 1, all jobs together print one line, and no file is written."""
    assert command("-m", "seed=1,2", *arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"fedquorum: {message}")
    assert captured.err.count("\n") == 1
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("strategy=fedua", "got 'fedua' (did you mean fedau?)"),
        ("strategy.epsilom=0", "got 'epsilom' (did you mean epsilon?)"),
        (
            "rounds",
            "a setting must be NAME=VALUE, got 'rounds' without a value (type rounds=VALUE)",
        ),
        ("help", "got 'help' without a value (type fedquorum --help)"),
        ("--client.lr=1", "must have no dashes, got --client.lr=1 (type client.lr=1)"),
        ("--rounds", "a setting must have no dashes, got --rounds (type rounds=VALUE)"),
        (
            "--nothing",
            "lists, got --nothing (settings are NAME=VALUE, without dashes)",
        ),
        ("experiment=fedau/fmnits", "got 'fedau/fmnits' (did you mean fedau/fmnist?)"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name(
    command: Command, capsys: pytest.CaptureFixture[str], word: str, end: str
) -> None:
    """The error of a single run is one line, which ends with the correction."""
    assert command(word) == 1
    error = capsys.readouterr().err
    assert error.endswith(f"{end}\n")
    assert error.count("\n") == 1


def test_the_help_has_every_option_and_the_settings(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lists the options of all groups, and the settings that the overrides compose to."""
    assert command("--help", "strategy=term", "strategy.tilt=2") == 0
    options, settings = capsys.readouterr().out.split(
        "Settings and their values for these words:\n"
    )
    for name in (
        *NAMED_STRATEGIES,
        *SERVER_OPTIMIZERS,
        "composed",
        "custom",
        "cifar10",
        "mlp",
        "ray",
    ):
        assert re.search(rf"(?<![\w/-]){name}(?![\w/-])", options), name
    assert settings.startswith("strategy:\n  name: term\n")
    assert "\n  tilt: 2.0\n" in settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--help"], 0), (["rounds=0"], 1), (["strategy=fedua"], 1), (["strategy.epsilom=0"], 1)],
)
def test_help_and_errors_wait_for_no_slow_import(arguments: list[str], status: int) -> None:
    """Neither PyTorch nor Flower is imported before the settings are checked."""
    code = (
        "import atexit, sys; "
        f"atexit.register(lambda: print([m for m in {SLOW} if m in sys.modules])); "
        "from fedquorum_app import main; main()"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def composed_overrides(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return a list that collects the overrides of each composition; runs do nothing."""
    compositions: list[list[str]] = []
    load = ConfigLoaderImpl.load_configuration

    def note_load(
        self: ConfigLoaderImpl,
        config_name: str | None,
        overrides: list[str],
        *rest: Any,
        **more: Any,
    ) -> Any:
        compositions.append(overrides)
        return load(self, config_name, overrides, *rest, **more)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", note_load)
    module = sys.modules["conf.compose"]
    monkeypatch.setattr(module, "_composed_configs", {})
    module._compose_options.cache_clear()
    monkeypatch.setattr("server_app.runs.job.run_in_process", lambda *_: None)
    return compositions


@pytest.mark.parametrize(
    "arguments",
    [
        ["seed=1"],
        ["rounds=3", "experiment=fedalign/synth_low", "hydra.run.dir=here"],
        ["--help", "strategy=fedau"],
    ],
)
def test_settings_are_composed_once(
    command: Command, composed_overrides: list[list[str]], arguments: list[str]
) -> None:
    """Hydra's own command would compose them three times, including the check before it."""
    assert command(*arguments) == 0
    assert composed_overrides == [[item for item in arguments if item != "--help"]]


def test_hydras_callbacks_are_called(
    command: Command, composed_overrides: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single run calls them in the order of Hydra's own command."""
    called: list[str] = []
    for name in ("on_run_start", "on_job_start", "on_job_end", "on_run_end"):
        monkeypatch.setattr(Callback, name, lambda *_, name=name, **__: called.append(name))
    target = "hydra.experimental.callback.Callback"
    assert command(f"hydra.callbacks.new_folders._target_={target}") == 0
    assert called == ["on_run_start", "on_job_start", "on_job_end", "on_run_end"]


def test_the_help_of_every_hydra_flag_is_a_string() -> None:
    """Python 3.14 refuses Hydra's help objects, which are formatted only when shown."""
    actions = get_args_parser()._actions
    assert {type(action.help) for action in actions} == {str}
    assert any("shell completion:" in (action.help or "") for action in actions)


@pytest.mark.slow
def test_hydras_mode_can_be_a_sweep(
    command: Command, composed_overrides: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """``hydra.mode=MULTIRUN`` starts a sweep as ``-m`` does."""
    command("hydra.mode=MULTIRUN", "hydra.sweep.dir=here")
    assert capsys.readouterr().out.startswith("Sweep in ")
    assert Path("here/0").is_dir()


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("${nope}", "Interpolation key 'nope' not found"),
        ("/proc/nope", "hydra.run.dir must be a folder that can be written, got /proc/nope"),
    ],
)
def test_a_run_folder_that_cannot_be_created_is_one_line(
    command: Command, capsys: pytest.CaptureFixture[str], folder: str, message: str
) -> None:
    """Hydra itself would print a trace."""
    assert command(f"hydra.run.dir='{folder}'") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"fedquorum: {message}")
    assert error.count("\n") == 1


def test_a_run_prints_only_its_own_lines(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints one line a round, none of Flower's, and the round after which it stops early."""
    assert command("rounds=9", *SMALL[1:], "engine.stop_after_round=1") == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert [line.split("  ")[1] for line in lines if "  round " in line] == ["round 1/9"]
    assert "Stopped after round 1 of 9 (engine.stop_after_round=1)" in lines
    assert "configure_train" not in out


@pytest.mark.slow
def test_a_setting_may_fit_the_swept_options_only(command: Command, tmp_path: Path) -> None:
    """A fixed setting that the default option lacks is composed for each job."""
    arguments = (
        "strategy=fedau,average_all",
        "availability=bernoulli,markov",
        "availability.p=0.5",
    )
    folder = f"hydra.sweep.dir={tmp_path / 'sweep'}"
    assert command("-m", *arguments, *SMALL, "data.priority=all", folder) == 0
    manifests = [json.loads(path.read_text()) for path in tmp_path.rglob("manifest.json")]
    assert [manifest["status"] for manifest in manifests] == ["completed"] * 4
    combinations = {
        (m["strategy"], next(o for o in m["overrides"] if "lability=" in o)) for m in manifests
    }
    assert combinations == {
        (strategy, f"availability={availability}")
        for strategy in ("fedau", "average_all")
        for availability in ("bernoulli", "markov")
    }


@pytest.mark.slow
def test_a_sweep_with_failures_resumes_where_it_ended(
    command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Wrong values and missing data fail single jobs; the printed command reruns only these."""
    arguments = ("data=synth,npz", "client.lr=0.1,fast", *SMALL[:3], *SMALL[5:])
    assert command("-m", *arguments, "hydra.sweep.dir=my sweep") == 1
    captured = capsys.readouterr()
    folder = tmp_path / "my sweep"
    no_number = "client.lr must be a number, got 'fast'"
    needs_path = "data.path must be the path of an .npz file, got ''"
    again = shlex.join(["fedquorum", "-m", *arguments, f"hydra.sweep.dir={folder}"])
    assert captured.err.splitlines() == [
        f"fedquorum: job 1 (data=synth client.lr=fast) failed: {no_number}",
        f"fedquorum: job 2 (data=npz client.lr=0.1) failed: {needs_path}",
        f"fedquorum: job 3 (data=npz client.lr=fast) failed: {no_number}",
        f"fedquorum: to continue the sweep: {again}",
    ]
    assert captured.out.splitlines()[-3:] == [
        f"1 of 4 jobs completed in {folder}",
        f"  figures and tables    fedquorum report '{folder}'",
        f"  replay all decisions  fedquorum audit '{folder}'",
    ]
    before = (folder / "0" / "manifest.json").read_bytes()

    assert command(*shlex.split(again)[1:]) == 1
    assert "1 of 4 jobs are completed already" in capsys.readouterr().out
    assert (folder / "0" / "manifest.json").read_bytes() == before


@pytest.mark.slow
def test_an_interrupted_job_resumes_from_its_checkpoint(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command resumes it; the rounds equal those of an uninterrupted sweep."""
    arguments = ("-m", "seed=1,2", "rounds=5", "engine.checkpoint_every=2", *SMALL[1:])
    assert command(*arguments, "hydra.sweep.dir=whole") == 0

    def show(display: Display, record: RoundRecord) -> None:
        if record.round == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as interrupting:
        interrupting.setattr(Display, "show", show)
        assert command(*arguments, "hydra.sweep.dir=sweep") == 130
    job = tmp_path / "sweep" / "0"
    assert json.loads((job / "manifest.json").read_text())["status"] == "interrupted"
    assert len((job / "rounds.jsonl").read_text().splitlines()) == 3

    assert command(*arguments, "hydra.sweep.dir=sweep") == 0
    assert "Continuing after round 2 of the run in" in (job / "output.log").read_text()
    assert_same_rounds(job, tmp_path / "whole" / "0", tolerance=0.0)
    assert_same_rounds(tmp_path / "sweep" / "1", tmp_path / "whole" / "1", tolerance=0.0)


@pytest.mark.slow
def test_a_job_writes_its_output_into_its_folder(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its output and warnings are not printed, and no lock file remains."""
    (tmp_path / "broken.npz").write_text("not a zip file")
    assert command("-m", "seed=1", *SMALL, "hydra.sweep.dir=good") == 0
    captured = capsys.readouterr()
    assert ("Results in" in captured.out, captured.err) == (False, "")
    log = (tmp_path / "good" / "0" / "output.log").read_text()
    assert log.count("Results in") == 2
    assert command("-m", "seed=1", "client.lr=1e30", *SMALL, "hydra.sweep.dir=diverged") == 1
    assert capsys.readouterr().err.startswith("fedquorum: job 0 failed: no client trained")
    log = (tmp_path / "diverged" / "0" / "output.log").read_text()
    assert log.count("no update counted, the model stays the same; array ") == 1
    assert "\033" not in log
    arguments = ("data=npz", "data.path=broken.npz", "seed=1,2", "rounds=2")
    assert command("-m", *arguments, "hydra.sweep.dir=bad") == 1
    assert "data.path must be" in (tmp_path / "bad" / "1" / "error.txt").read_text()
    assert not list(tmp_path.rglob("*.lock"))


@pytest.mark.slow
def test_an_unexpected_error_fails_only_its_job(
    command: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It prints one line, its trace is in the job's folder, and the other jobs run."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("server_app.runs.job.run_in_process", fail)
    assert command("-m", "seed=1,2", "hydra.sweep.dir=sweep") == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[:2] == [
        f"fedquorum: job {job} (seed={job + 1}) failed: ZeroDivisionError: by zero"
        for job in (0, 1)
    ]
    first, _, *trace = (tmp_path / "sweep" / "0" / "error.txt").read_text().splitlines()
    assert first == "ZeroDivisionError: by zero"
    assert trace[0] == "Traceback (most recent call last):"


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_a_sweep_in_this_process(
    command: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    signal_number: signal.Signals,
) -> None:
    """The running job ends as interrupted, and no other job starts."""
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        "server_app.runs.job.run_in_process", lambda *_: signal.raise_signal(signal_number)
    )
    assert command("-m", "seed=1,2,3", "hydra.sweep.dir=sweep") == 130
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == f"0 of 3 jobs completed in {tmp_path / 'sweep'}"
    first, last = captured.err.splitlines()
    assert first == "fedquorum: interrupted; the records hold all complete rounds"
    assert last.startswith("fedquorum: to continue the sweep: fedquorum -m seed=1,2,3")
    assert not (tmp_path / "sweep" / "1" / "output.log").exists()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_an_interruption_ends_a_single_run(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit status is 130, and one line is printed."""
    monkeypatch.setattr(
        "server_app.runs.job.run_in_process", lambda *_: signal.raise_signal(signal.SIGTERM)
    )
    assert command("seed=1") == 130
    assert capsys.readouterr().err == (
        "fedquorum: interrupted; the records hold all complete rounds\n"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("null", None),
        ("Null", None),
        ("", ""),
        ("7", 7),
        ("[null,1]", [None, 1]),
        ("north", "north"),
    ],
)
def test_a_sweep_defers_a_setting_as_it_is(value: str, expected: object) -> None:
    """Each job reads the value that was given; ``data.client_column=null`` is that of devices."""
    parser = OverridesParser.create()
    *_, argument = prepare_sweep_overrides(["seed=1,2", f"data.client_column={value}"])
    (text,) = get_sweep_values(parser.parse_override(argument))
    assert parser.parse_override(f"data.client_column={text}").value() == expected
