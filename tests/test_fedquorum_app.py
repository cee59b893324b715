"""Tests of the Python interface: the commands as functions."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from fedquorum.errors import DataError, FedQuorumError, RunError, SettingsError
from fedquorum.records.round_record import RoundRecord
from flwr.common.logger import console_handler
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

import fedquorum_app
from fedquorum_app import SweepError, load, load_sweep, run, sweep
from server_app.cli.fedquorum import main
from server_app.runs.display import Display
from tests.builders_runs import make_client_overrides
from tests.integration.conftest import assert_same_rounds, read_round_lines

SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"num_clients": 4, "num_priority": 2, "sizes": "equal", "samples_per_client": 20},
    "client": {"local_epochs": 1},
}
OVERRIDES = ("rounds=2", *make_client_overrides(4, 2, samples=20))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def get_process_state() -> dict[str, object]:
    """Return the global state that a run could change."""
    return {
        "folder": Path.cwd(),
        "environment": {**os.environ, "PYTEST_CURRENT_TEST": ""},
        "signals": [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "hook": threading.excepthook,
        "output": (sys.stdout, sys.stderr),
        "path": list(sys.path),
        "root log": (logging.root.level, list(logging.root.handlers)),
        "flwr log": (logging.getLogger("flwr").level, logging.getLogger("flwr").disabled),
        "flwr output": (console_handler.stream, console_handler.colored),
        "hydra": (GlobalHydra.instance().is_initialized(), HydraConfig.instance().cfg),
        "torch": (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()),
        "tf32": (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32),
        "random": torch.random.get_rng_state().tolist(),
    }


@pytest.fixture(scope="module")
def sweep_imports(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what a sweep imports, because Flower and joblib change state once."""
    sweep(verbose=False, output=tmp_path_factory.mktemp("first"), seed=[1], **SMALL)


@pytest.fixture
def unchanged_process(sweep_imports: None) -> Iterator[None]:
    """Fail if the test changes the process."""
    before = get_process_state()
    yield
    assert find_process_changes(before) == set()


def find_process_changes(before: dict[str, object]) -> set[str]:
    """Return the changed parts of the process's state."""
    after = get_process_state()
    return {key for key in before if before[key] != after[key]}


@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        ((*OVERRIDES, "strategy=fedau", "strategy.cutoff=5", "seed=3"), {}),
        (OVERRIDES, {"strategy": {"name": "fedau", "cutoff": 5}, "seed": 3}),
        ((), {**SMALL, "strategy": "fedau", "strategy.cutoff": 5, "seed": 3}),
        (("fedalign/synth_low",), {**SMALL, "strategy": "fedau", "strategy.cutoff": 5, "seed": 3}),
    ],
)
def test_a_run_equals_that_of_the_command(
    overrides: tuple[str, ...], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are equal byte by byte, however its settings are given."""
    command = [*OVERRIDES, "strategy=fedau", "strategy.cutoff=5", "seed=3", "hydra.run.dir=command"]
    monkeypatch.setattr("sys.argv", ["fedquorum", *command])
    main()
    result = run(*overrides, output="python", verbose=False, **settings)
    assert (result.directory, result.status) == (Path.cwd() / "python", "completed")
    assert read_round_lines(result.directory) == read_round_lines(Path("command"))
    for name in ("config.yaml", "model.safetensors"):
        assert (result.directory / name).read_bytes() == (Path("command") / name).read_bytes()
    assert set(result.records.overrides) == set(load("command").records.overrides)


def test_runs_get_new_folders_like_those_of_the_command() -> None:
    """Two runs in the same second do, too."""
    first, other = run(verbose=False, **SMALL), run(verbose=False, **SMALL)
    assert (
        first.directory.parent
        == other.directory.parent
        == Path.cwd() / "outputs/fedalign/synth_low"
    )
    assert first.directory != other.directory
    assert read_round_lines(first.directory) == read_round_lines(other.directory)


def test_hydra_run_dir_sets_the_folder() -> None:
    """It may have interpolations."""
    overrides = ("hydra.run.dir=here/${hydra:runtime.choices.strategy}", "strategy=fedavg")
    assert run(*overrides, verbose=False, **SMALL).directory == Path.cwd() / "here" / "fedavg"


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"rounds": 0}, "rounds=0"),
    ({"roundz": 3}, "roundz=3"),
    ({"client.lr": "fast"}, "client.lr=fast"),
    ({"strategy": "fedua"}, "strategy=fedua"),
    ({"strategy": {"epsilonn": 1}}, "strategy.epsilonn=1"),
    ({"rounds": [1, 2]}, "rounds=[1,2]"),
    ({"experiment": "fedalign/nope"}, "experiment=fedalign/nope"),
    ({"data": "npz", "data.path": "none.npz"}, "data=npz data.path=none.npz"),
    ({"resume": "nowhere"}, "resume=nowhere"),
    ({"output": "/proc/nope"}, "hydra.run.dir=/proc/nope"),
    ({"engine": "ray", "engine.address": "nowhere"}, "engine=ray engine.address=nowhere"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "overrides"), MISTAKES)
def test_a_mistake_raises_the_line_of_the_command(
    settings: dict[str, Any],
    overrides: str,
    sweep_imports: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is an exception of the library; nothing is printed or left."""
    monkeypatch.setattr("sys.argv", ["fedquorum", *overrides.split()])
    with pytest.raises(SystemExit):
        main()
    line, before = capsys.readouterr().err, get_process_state()
    with pytest.raises(FedQuorumError) as error:
        run(**settings)
    assert f"fedquorum: {error.value}\n" == line
    assert error.value.__cause__ is None
    assert find_process_changes(before) == set()
    assert not [path for path in Path().rglob("*") if path.is_file()]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("seed=1,2",), "seed must be one value"),
        (("fedalign/fmnist", "fast"), "a setting must be NAME=VALUE, got 'fast'"),
        (("-m", "seed=1"), "experiment must be one of"),
        (("hydra.job.chdir=true",), r"a run in Python has hydra\.run\.dir alone, got hydra\.job"),
        (("hydra.mode=MULTIRUN",), r"a run in Python has hydra\.run\.dir alone, got hydra\.mode"),
    ],
)
def test_overrides_that_a_function_refuses(given: tuple[str, ...], message: str) -> None:
    """Several values belong to a sweep, and Hydra's own settings to a process."""
    with pytest.raises(SettingsError, match=message):
        run(*given)


@pytest.mark.usefixtures("unchanged_process")
def test_a_run_leaves_the_process_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    """It does so after completion, after a failure, and with PyTorch's switches set."""
    run(verbose=False, **SMALL)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(DataError):
        run(data={"name": "npz", "path": "none.npz"})
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("medium")
    try:
        run(verbose=False, **SMALL)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("unchanged_process")
def test_a_run_within_the_users_own_hydra_app() -> None:
    """Hydra in progress stays in progress."""
    with initialize_config_module("conf", version_base="1.3", job_name="the user's"):
        run(verbose=False, **SMALL)
        assert GlobalHydra.instance().is_initialized()


@pytest.mark.slow
@pytest.mark.usefixtures("unchanged_process")
def test_a_run_in_another_thread() -> None:
    """Signal handlers cannot be set there; a sweep works, too."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, verbose=False, **SMALL).result().status == "completed"
        assert len(pool.submit(sweep, verbose=False, seed=[2], **SMALL).result()) == 1


def test_a_run_prints_the_output_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """``verbose=False`` suppresses it."""
    result = run(**SMALL)
    output = capsys.readouterr().out
    assert output.count(f"Results in {result.directory}\n") == 2
    assert "round 2/2" in output


@pytest.mark.slow
def test_an_interrupted_run_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is a KeyboardInterrupt; a resumed run has the rounds of an uninterrupted one."""
    settings = {**SMALL, "rounds": 4, "engine.checkpoint_every": 2}
    whole = run(output="whole", verbose=False, **settings)

    def show(_: Display, record: RoundRecord) -> None:
        if record.round == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as interrupting:
        interrupting.setattr(Display, "show", show)
        with pytest.raises(KeyboardInterrupt):
            run(output="it's, [broken]", verbose=False, **settings)
    broken = load("it's, [broken]")
    assert (broken.status, len(broken.rounds)) == ("interrupted", 3)
    done = broken.resume(verbose=False)
    assert (done.directory, done.status, len(done.rounds)) == (broken.directory, "completed", 4)
    assert_same_rounds(done.directory, whole.directory, tolerance=0.0)
    with pytest.raises(SettingsError, match="seed"):
        broken.resume(seed=9, verbose=False)


@pytest.mark.slow
@pytest.mark.usefixtures("unchanged_process")
def test_a_sweep_has_a_row_for_each_run() -> None:
    """It has the settings that vary, and the last evaluation."""
    result = sweep(strategy=["fedalign", "fedavg"], seed=range(1, 3), verbose=False, **SMALL)
    frame = result.frame
    assert list(frame.index) == ["0", "1", "2", "3"]
    assert list(zip(frame["strategy"], frame["seed"], strict=True)) == [
        ("fedalign", 1),
        ("fedalign", 2),
        ("fedavg", 1),
        ("fedavg", 2),
    ]
    assert list(frame.columns[:5]) == ["strategy", "seed", "status", "round", "global_loss"]
    assert set(frame["status"]) == {"completed"}
    assert frame["round"].dtype.kind == "i"
    for one, (_, row) in zip(result, frame.iterrows(), strict=True):
        assert row["test.all.worst"] == one.rounds["test.all.worst"].iloc[-1]
    assert result[3].settings["strategy.name"] == "fedavg"
    assert result.failed == {}
    labels = [text.get_text() for text in result.plot().axes[0].texts]
    assert labels == ["FedALIGN", "FedAvg"]
    assert "data:image/png" in result._repr_html_()
    pd.testing.assert_frame_equal(load_sweep(result.directory).frame, frame)


@pytest.mark.slow
def test_overrides_of_a_sweep_are_axes() -> None:
    """They are as on the command line; a tuple is one value."""
    settings = {**SMALL, "data.priority": [(0,), (1, 2)]}
    result = sweep("fedalign/synth_low", "seed=1,2", verbose=False, output="sweep", **settings)
    assert result.directory == Path.cwd() / "sweep"
    assert list(result.frame["data.priority"]) == [[0], [1, 2], [0], [1, 2]]


@pytest.mark.slow
def test_a_sweep_resumes_in_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """Completed jobs are not repeated."""
    sweep(seed=[1], output="sweep", verbose=False, **SMALL)
    before = Path("sweep/0/manifest.json").read_bytes()
    result = sweep(seed=[1, 2], output="sweep", **SMALL)
    assert "1 of 2 jobs are completed already" in capsys.readouterr().out
    assert Path("sweep/0/manifest.json").read_bytes() == before
    assert list(result.frame["seed"]) == [1, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("unchanged_process")
def test_a_sweep_with_failed_jobs_runs_the_others() -> None:
    """The final error lists the failed jobs, and has the result."""
    with pytest.raises(
        SweepError, match=r"that failed \(1\): job 0: client\.lr must be a n"
    ) as error:
        sweep(**{**SMALL, "client": {"lr": ["fast", 0.1], "local_epochs": 1}}, verbose=False)
    result = error.value.sweep
    assert [one.status for one in result] == ["completed"]
    assert list(result.failed) == ["0"]
    assert "job 0" not in repr(result)
    assert "failed: 0" in result._repr_html_()
    again = load_sweep(result.directory)
    assert (len(again), again.failed) == (1, result.failed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": [1, 2], "rounds": 0}, "rounds must be a whole number >= 1, got 0"),
        ({"seed": [1, 2], "strategy.epsilonn": 1}, r"strategy\.epsilonn is not a setting"),
        ({"seed": [1, 2], "engine": {"jobs": 0}}, r"engine\.jobs must be a whole number >= 1"),
        (
            {"seed": [1, 2], "resume": "x"},
            r"resume is of run\(\), not of sweep\(\): to continue a sweep, call it",
        ),
        ({"seed": []}, "seed must have at least one value in a sweep"),
    ],
)
def test_an_error_in_every_job_is_reported_once(
    settings: dict[str, Any],
    message: str,
    unchanged_process: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is reported before any job runs."""
    with pytest.raises(FedQuorumError, match=message):
        sweep(output="sweep", **settings)
    assert not Path("sweep").exists()
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.usefixtures("unchanged_process")
def test_an_interrupted_sweep_raises_keyboardinterrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call continues it."""
    with monkeypatch.context() as interrupting:
        interrupting.setattr(
            "server_app.runs.job.run_in_process", lambda *_: signal.raise_signal(signal.SIGINT)
        )
        with pytest.raises(KeyboardInterrupt):
            sweep(seed=[1, 2], output="sweep", verbose=False, **SMALL)
    assert len(sweep(seed=[1, 2], output="sweep", verbose=False, **SMALL)) == 2


@pytest.mark.slow
def test_jobs_of_a_sweep_run_in_processes() -> None:
    """Two jobs run at a time; the records equal those of one process."""
    result = sweep(seed=[1, 2], engine={"jobs": 2}, verbose=False, **SMALL)
    alone = run(seed=2, verbose=False, **SMALL)
    assert read_round_lines(result[1].directory) == read_round_lines(alone.directory)


@pytest.mark.slow
def test_folders_without_runs_are_reported() -> None:
    """``load`` loads one run, ``load_sweep`` several."""
    sweep(seed=[1, 2], output="sweep", verbose=False, **SMALL)
    with pytest.raises(RunError, match=r"manifest\.json"):
        load("sweep")
    with pytest.raises(RunError, match=r"expected a folder that can be read, got .*nowhere"):
        load_sweep("nowhere")
    assert len(load_sweep("sweep")) == 2


# --- the module ---------------------------------------------------------------------------------


def run_python(code: str, **variables: str) -> str:
    """Return the output of code in a separate process, errors included."""
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout + process.stderr


@pytest.mark.parametrize("name", fedquorum_app.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    """Names that are imported on demand are, too."""
    assert getattr(fedquorum_app, name).__doc__


def test_importing_the_module_imports_nothing_else() -> None:
    """The commands start here."""
    slow = ("hydra", "omegaconf", "torch", "flwr", "pandas", "pyarrow", "numpy", "server_app")
    code = f"import fedquorum_app, sys; print([name for name in {slow} if name in sys.modules])"
    assert run_python(code) == "[]\n"


@pytest.mark.slow
def test_a_mistake_waits_for_no_slow_import() -> None:
    """A typo does not import PyTorch, Flower or Arrow."""
    code = (
        "import fedquorum_app, sys\n"
        "try: fedquorum_app.run(roundz=3)\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print([name for name in ('torch', 'flwr', 'scipy') if name in sys.modules])"
    )
    assert run_python(code) == "SettingsError\n[]\n"


@pytest.mark.slow
def test_users_packages_of_the_same_names_are_ignored() -> None:
    """They may be the app in a notebook's folder; the path is unchanged."""
    for package in ("server_app", "client_app", "conf"):
        Path(package).mkdir()
        Path(package, "__init__.py").write_text("raise RuntimeError('not this one')")
    code = (
        "import sys; before = [*sys.path]; import fedquorum_app\n"
        "try: fedquorum_app.run(roundz=3)\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    assert run_python(code) == "SettingsError\n"


@pytest.mark.parametrize("package", ["server_app", "client_app"])
def test_a_users_package_that_is_already_imported_is_named(package: str) -> None:
    """A process cannot have two packages with the same name."""
    Path(f"{package}.py").write_text("")
    output = run_python(f"import {package}, fedquorum_app; fedquorum_app.run(rounds=1)")
    assert re.search(rf"ImportError: {package} must be FedQuorum's, in .*, got the one in ", output)
