"""Test runs that resume from their checkpoints."""

import errno
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from fedquorum.errors import RunError, SettingsError
from fedquorum.records import runner as runner_module
from fedquorum.records.checkpoint import Checkpoint, CheckpointStore
from fedquorum.records.run_dir import lock_run
from fedquorum.records.runner import Runner
from fedquorum.registry import NAMED_STRATEGIES

from client_app.node.node import resolve_device
from client_app.training.numerics import NUMERICS_VERSION
from conf.compose import compose_overrides
from server_app.runs.resume import list_trust_overrides, merge_resumed_overrides
from tests.builders import NEEDED_WORDS
from tests.builders_runs import make_client_overrides, read_lines, run_here
from tests.cases import sample_cases
from tests.integration.conftest import ROOT, assert_same_bits, assert_same_run, interrupt_at_round

SMALL = ("rounds=7", "engine.checkpoint_every=2", *make_client_overrides(6, 3))


def run(directory: Path, *overrides: str) -> Path:
    return run_here(directory, *SMALL, *overrides)


def interrupt_run(
    monkeypatch: pytest.MonkeyPatch, directory: Path, *overrides: str, in_round: int = 6
) -> Path:
    """Interrupt a run at the start of a round, before the round has any effect."""
    with interrupt_at_round(monkeypatch, in_round):
        run(directory, *overrides)
    return directory


COMPOSED = "composed strategy.selection.epsilon=2 strategy/participation=fedau"

CHOOSING = "composed strategy/selection=power_of_choice strategy.fraction=0.4 data.priority=all"


def get_recorded_instructions() -> str | None:
    """Return the manifest's entry for the vector instructions of this machine."""
    on_cpu = resolve_device("auto").type == "cpu"
    return torch.backends.cpu.get_cpu_capability() if on_cpu else None


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    sample_cases(
        [
            *sorted(NAMED_STRATEGIES),
            f"{COMPOSED} strategy/weighting=aaggff_d server_optimizer=yogi",
            f"{COMPOSED} server_optimizer=adam",
            f"{CHOOSING} strategy.selection.loss_source=evaluated evaluation.every=5",
            f"{CHOOSING} strategy.selection.loss_source=reported",
            "fedau server_optimizer=momentum",
            "fedavg server_optimizer=adagrad",
        ],
        10,
    ),
)
def test_a_resumed_run_is_bit_identical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Every strategy resumes exactly, with intermittent clients and the states of two nodes."""
    overrides = [*f"strategy={strategy}".split(), "availability=markov", "availability.p=0.6"]
    overrides += ["engine.num_supernodes=2", *NEEDED_WORDS.get(strategy, ())]
    whole = run(tmp_path / "whole", *overrides)
    stopped = interrupt_run(monkeypatch, tmp_path / "stopped", *overrides)
    run(stopped, *overrides, f"resume={stopped}")
    assert_same_run(whole, stopped)
    manifest = json.loads((stopped / "manifest.json").read_text())
    assert [entry["round"] for entry in manifest["resumed"]] == [4]
    settings = (stopped / "config.yaml").read_text()
    assert settings == (whole / "config.yaml").read_text()


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy.fraction=0.5",),
        ("strategy.priority_samples=4",),
        ("model=mlp", "model.hidden=8", "client.lr_schedule=exponential", "client.lr_decay=0.9"),
        ("strategy=fedvarp", "strategy.memory_dir={}/memory", "availability=cyclic"),
        ("evaluation.every=3", "evaluation.clients=priority"),
        ("availability=bernoulli", "availability.p=0.3", "strategy=fedau", "strategy.cutoff=2"),
    ],
)
@pytest.mark.slow
def test_a_run_with_more_state_is_bit_identical_from_any_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    """The settings add sampling, schedules, a memory in files and rare evaluations."""
    formatted = tuple(override.format(tmp_path) for override in overrides)
    whole = run(tmp_path / "whole", *formatted)
    for in_round in (1, 2, 7):
        stopped = interrupt_run(
            monkeypatch, tmp_path / str(in_round), *formatted, in_round=in_round
        )
        run(stopped, *formatted, f"resume={stopped}")
        assert_same_run(whole, stopped)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        [
            "strategy=empirical",
            "availability=bernoulli",
            "availability.p=0.6",
            "availability.rest=1",
        ],
        [
            "strategy=known_statistics",
            "availability=sine",
            "availability.period=4",
            "availability.p=0.6",
        ],
    ],
)
def test_resting_clients_and_varying_rates_resume_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    """They need no stored state, because sampling and availability follow from the seed."""
    whole = run(tmp_path / "whole", *overrides)
    stopped = interrupt_run(monkeypatch, tmp_path / "stopped", *overrides)
    run(stopped, *overrides, f"resume={stopped}")
    assert_same_run(whole, stopped)


@pytest.mark.slow
def test_a_run_resumes_any_number_of_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest lists every resumption."""
    whole = run(tmp_path / "whole")
    stopped = interrupt_run(monkeypatch, tmp_path / "stopped", in_round=4)
    interrupt_run(monkeypatch, stopped, f"resume={stopped}", in_round=5)
    interrupt_run(monkeypatch, stopped, f"resume={stopped}", in_round=7)
    run(stopped, f"resume={stopped}")
    assert_same_run(whole, stopped)
    manifest = json.loads((stopped / "manifest.json").read_text())
    assert [entry["round"] for entry in manifest["resumed"]] == [2, 4, 6]


@pytest.mark.slow
def test_a_complete_run_may_resume_for_more_rounds(tmp_path: Path) -> None:
    """It equals the longer run, if nothing depends on the number of rounds."""
    whole = run(tmp_path / "whole", "strategy=fedavg", "rounds=9")
    extended = run(tmp_path / "grown", "strategy=fedavg", "rounds=6")
    run(extended, "strategy=fedavg", "rounds=9", f"resume={extended}")
    assert read_lines(extended) == read_lines(whole)
    model = (extended / "model.safetensors").read_bytes()
    assert model == (whole / "model.safetensors").read_bytes()
    before = read_lines(extended)
    run(extended, "strategy=fedavg", "rounds=9", f"resume={extended}")  # no round is left to run
    assert read_lines(extended) == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "client.lr=0.2",
            r"client\.lr must be 0\.1, as in the run so far, got 0\.2 \(resume=.*/run\)",
        ),
        ("seed=2", r"seed must be 1, as in the run so far, got 2"),
        ("strategy=fedavg", r"strategy must be fedalign, .* got fedavg"),
        ("rounds=5", r"rounds must be at least 7, as in the run so far, got 5"),
    ],
)
def test_changed_settings_are_refused(tmp_path: Path, override: str, message: str) -> None:
    """The error names the setting with both values, and the records do not change."""
    directory = run(tmp_path / "run")
    before = (directory / "rounds.jsonl").read_bytes()
    with pytest.raises(SettingsError, match=message):
        run(directory, override, f"resume={directory}")
    assert (directory / "rounds.jsonl").read_bytes() == before


@pytest.mark.slow
def test_settings_of_the_engine_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timeouts may change, and the number of nodes unless nodes store models."""
    overrides = ("availability=markov", "availability.p=0.6")
    whole = run(tmp_path / "whole", *overrides)
    stopped = interrupt_run(monkeypatch, tmp_path / "stopped", *overrides)
    again = shutil.copytree(stopped, tmp_path / "again")
    changes = (f"resume={stopped}", "engine.checkpoint_every=3", "engine.round_timeout=9")
    run(stopped, *overrides, *changes)
    assert read_lines(stopped) == read_lines(whole)
    run(again, *overrides, f"resume={again}", "engine.num_supernodes=3")
    assert_same_bits(again, whole, 7)


def test_a_run_killed_before_its_first_round_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint it has no round to lose."""
    whole = run(tmp_path / "whole")
    stopped = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(
            "fedquorum.records.checkpoint.CheckpointStore.save", _make_raiser(KeyboardInterrupt())
        )
        with pytest.raises(KeyboardInterrupt):
            run(stopped)
    run(stopped, f"resume={stopped}")
    assert_same_run(whole, stopped)


def _make_raiser(error: BaseException) -> Callable[..., Any]:
    def raise_error(*_: Any, **__: Any) -> Any:
        raise error

    return raise_error


def test_a_run_without_checkpoints_cannot_resume(tmp_path: Path) -> None:
    """Its rounds are not deleted."""
    directory = run(tmp_path / "run", "engine.checkpoint_every=null")
    assert not (directory / "checkpoints").exists()
    with pytest.raises(RunError, match=r"resume needs a checkpoint, and the run in .* wrote none"):
        run(directory, f"resume={directory}")
    assert len(read_lines(directory)) == 7


def test_default_checkpoints_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one waits until the run has lasted twenty times as long as the last one took."""
    now = 0.0
    written: list[int] = []
    save, play = CheckpointStore.save, Runner.run_round

    def save_slowly(self: CheckpointStore, after: Checkpoint) -> None:
        nonlocal now
        save(self, after)
        now += 2.0 if after.server_round else 0.01
        written.append(after.server_round)

    def play_slowly(runner: Runner, server_round: int) -> None:
        nonlocal now
        now += 0.3 if server_round < 10 else 15.0
        play(runner, server_round)

    monkeypatch.setattr(CheckpointStore, "save", save_slowly)
    monkeypatch.setattr(Runner, "run_round", play_slowly)
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(runner_module, "time", clock)
    run(tmp_path / "run", "engine.checkpoint_every=auto", "rounds=14")
    # After one second of short rounds, then after 40 s (three rounds of 15 s), and after the last.
    assert written == [0, 4, 12, 14]


def test_a_missing_run_cannot_resume(tmp_path: Path) -> None:
    """The error names the directory."""
    with pytest.raises(
        RunError, match=r"resume must be the folder of a run, got .*/none: there is no such folder$"
    ):
        run(tmp_path / "none", f"resume={tmp_path}/none")
    with pytest.raises(SettingsError, match="output-dir must be empty or the folder in resume"):
        run(tmp_path / "other", f"resume={tmp_path}/none")


# --- folders without a run -------------------------------------------------------------------


@pytest.fixture
def killed_run(tmp_path: Path) -> Path:
    """Return the folder of a killed start, with rounds of an earlier run."""
    directory = run(tmp_path / "killed", "strategy=fedau", "rounds=5", "seed=3")
    (directory / "manifest.json").unlink()
    (directory / "notes.txt").write_text("mine")
    return directory


AS_KILLED = ("strategy=fedau", "rounds=5", "seed=3")


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [True, False])
def test_a_start_clears_the_files_of_a_killed_start(
    tmp_path: Path, killed_run: Path, capsys: pytest.CaptureFixture[str], *, resumes: bool
) -> None:
    """With and without ``resume``, earlier rounds and checkpoints are not used."""
    whole = run(tmp_path / "whole", "rounds=3")
    capsys.readouterr()
    run(killed_run, "rounds=3", *([f"resume={killed_run}"] if resumes else []))
    assert_same_run(whole, killed_run)
    assert (killed_run / "notes.txt").read_text() == "mine"
    is_printed = f"Nothing was done yet in {killed_run}: the run starts" in capsys.readouterr().out
    assert is_printed == resumes
    manifest = json.loads((killed_run / "manifest.json").read_text())
    assert (manifest["resumed"], manifest["status"]) == ([], "completed")
    assert not any("resume" in override for override in manifest["overrides"])


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), ("rounds=4",), ("engine.checkpoint_every=2", "seed=4")])
def test_a_killed_start_is_repeated_with_its_settings(
    tmp_path: Path, killed_run: Path, overrides: tuple[str, ...]
) -> None:
    """They are in its folder; overrides given again replace them."""
    whole = run(tmp_path / "whole", *AS_KILLED, *overrides)
    run_here(killed_run, *merge_resumed_overrides([f"resume={killed_run}", *overrides])[:-1])
    assert read_lines(killed_run) == read_lines(whole)
    for name in ("model.safetensors", "population.parquet"):
        assert (killed_run / name).read_bytes() == (whole / name).read_bytes()
    assert (killed_run / "config.yaml").read_text() == (whole / "config.yaml").read_text()


def test_overrides_that_choose_options_replace_all_settings(killed_run: Path) -> None:
    """The settings of a killed start do not mix with those of another command."""
    overrides = (*SMALL, "experiment=custom", "strategy=fedavg", "rounds=2", f"resume={killed_run}")
    settings = compose_overrides(merge_resumed_overrides(overrides)[:-1]).settings
    assert settings == compose_overrides((*overrides[:-1], f"resume={killed_run}")).settings
    run_here(killed_run, *merge_resumed_overrides(overrides)[:-1])
    assert len(read_lines(killed_run)) == 2


@pytest.mark.parametrize("overrides", [(), ("engine=ray", "engine.num_supernodes=2", "-h")])
def test_an_empty_folder_without_settings_starts_nothing(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    """An empty folder may belong to a killed start, or be a typo."""
    with pytest.raises(RunError) as refused:
        merge_resumed_overrides([f"resume={tmp_path}", *overrides])
    assert str(refused.value) == (
        f"resume must be with the settings of the run where nothing was done yet, got only "
        f"{tmp_path}: type them again (fedquorum data=... strategy=... resume={tmp_path})"
    )
    assert list(tmp_path.iterdir()) == []


def test_code_named_by_a_killed_start_is_not_run(tmp_path: Path) -> None:
    """Its settings may come from an untrusted source, like those of a run."""
    text = compose_overrides(("strategy=custom", "strategy.path=a.B")).to_yaml()
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SettingsError, match=r"strategy\.path must be given again to resume"):
        merge_resumed_overrides([f"resume={tmp_path}"])


def test_a_folder_with_runs_below_it_cannot_be_resumed(tmp_path: Path) -> None:
    """No run starts in it, because the user probably meant one of its runs."""
    run(tmp_path / "outputs" / "custom" / "today", "rounds=1")
    before = set(tmp_path.rglob("*"))
    message = r"resume must be the folder of a run, got .*/outputs: it has no manifest\.json$"
    overrides = ("strategy=fedavg", f"resume={tmp_path}/outputs")
    with pytest.raises(RunError, match=message):
        merge_resumed_overrides(overrides)
    with pytest.raises(RunError, match=message):
        run(tmp_path / "outputs", *overrides)
    assert set(tmp_path.rglob("*")) == before


def test_a_folder_locked_by_another_start_is_not_touched(killed_run: Path) -> None:
    """It has no manifest yet, and none of its files is removed."""
    lock = lock_run(killed_run)
    before = {path: path.stat().st_size for path in killed_run.rglob("*")}
    for overrides in ((), (f"resume={killed_run}",)):
        with pytest.raises(RunError, match="another process is at work on the run in"):
            run(killed_run, *overrides)
    os.close(lock)
    assert {path: path.stat().st_size for path in killed_run.rglob("*")} == before


def test_a_running_run_cannot_be_resumed(tmp_path: Path) -> None:
    """While one process writes the records of a run, no other one resumes it."""
    directory = tmp_path / "run"
    refused: list[int] = []
    play = Runner.run_round

    def resume_in_round_3(runner: Runner, server_round: int) -> None:
        if server_round == 3:
            with pytest.raises(RunError, match="another process is at work on the run in"):
                run(directory, f"resume={directory}")
            refused.append(server_round)
        play(runner, server_round)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "run_round", resume_in_round_3)
        run(directory)
    assert refused == [3]
    assert len(read_lines(directory)) == 7


def test_resume_needs_only_the_folder(tmp_path: Path) -> None:
    """The other overrides are in the records; overrides given again replace them."""
    directory = run(tmp_path / "it's a run", "client.lr=0.5")
    overrides = merge_resumed_overrides([f"resume={directory}", "rounds=9"])
    composed = compose_overrides(overrides)
    assert composed.settings.client.lr == 0.5
    assert composed.settings.rounds == 9
    assert composed.settings.resume == str(directory)
    assert f"hydra.run.dir='{tmp_path}/it\\'s a run'" in overrides
    assert merge_resumed_overrides(["rounds=9"]) == ("rounds=9",)
    assert merge_resumed_overrides(["resume=null"]) == ("resume=null",)
    with pytest.raises(
        RunError, match=r"resume must be without -m, got .*: to continue a sweep, type its"
    ):
        merge_resumed_overrides(["-m", f"resume={directory}", "seed=1,2"])


# --- untrusted directories ------------------------------------------------------------------


@pytest.fixture
def planted_file(tmp_path: Path) -> Path:
    """Return a Python file that creates a file ``ran`` beside it when it is imported."""
    path = tmp_path / "planted.py"
    path.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    return path


def record_overrides(run: Path, *overrides: str) -> str:
    """Write overrides into a run's manifest, and return the override that resumes the run."""
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"overrides": overrides}))
    return f"resume={run}"


@pytest.fixture(scope="module")
def completed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a completed run."""
    return run(tmp_path_factory.mktemp("completed") / "run", "rounds=2")


@pytest.fixture
def untrusted_run(completed_run: Path, tmp_path: Path) -> Path:
    """Return a copy of a completed run."""
    return Path(shutil.copytree(completed_run, tmp_path / "run"))


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        (("strategy=custom", "strategy.path={}:Rule"), "strategy.path"),
        (("engine.trust_code=true", "strategy=custom", "strategy.path={}:Rule"), "strategy.path"),
        (("model=module", "model.path={}:Model"), "model.path"),
        (
            (
                "strategy=composed",
                "strategy/weighting=custom",
                "strategy.weighting.path={}:Rule",
            ),
            "strategy.weighting.path",
        ),
        (("server_optimizer=custom", "server_optimizer.path=os.system"), "server_optimizer.path"),
        (("engine=ray", "engine.address=198.51.100.1:6379"), "engine.address"),
        (("tracker=mlflow", "tracker.uri=https://198.51.100.1"), "tracker.uri"),
    ],
)
def test_code_named_only_by_the_records_is_not_imported(
    untrusted_run: Path, planted_file: Path, overrides: tuple[str, ...], setting: str
) -> None:
    """The same holds for connections; the error says what to type to trust the records."""
    recorded = tuple(override.format(planted_file) for override in overrides)
    resume = record_overrides(untrusted_run, *recorded)
    before = {p: p.read_bytes() for p in untrusted_run.rglob("*") if p.is_file()}
    with pytest.raises(SettingsError) as refused:
        merge_resumed_overrides([resume])
    command = shlex.join(["fedquorum", resume, "engine.trust_code=true"])
    assert str(refused.value).startswith(f"{setting} must be given again to resume a run whose ")
    assert str(refused.value).endswith(f"if you trust whoever wrote {untrusted_run}: {command}")
    repeated = [override for override in recorded if override.startswith(setting)]
    for given in (["engine.trust_code=true"], repeated):
        assert set(recorded) - {"engine.trust_code=true"} <= {
            *merge_resumed_overrides([resume, *given])
        }
    assert {p: p.read_bytes() for p in untrusted_run.rglob("*") if p.is_file()} == before
    assert not (planted_file.parent / "ran").exists()


@pytest.mark.parametrize(
    "override",
    [
        "hydra.callbacks.x._target_=os.system",
        "+hydra.callbacks={x: {_target_: os.system}}",
        "++hydra={callbacks: {x: {_target_: os.system}}}",
        "hydra/launcher=joblib",
        "hydra.searchpath=[pkg://antigravity]",
        "~hydra.run",
        "data@hydra.callbacks=synth",
        "--multirun",
        "-cd=/tmp",
        "",
    ],
)
def test_records_cannot_override_hydras_settings(untrusted_run: Path, override: str) -> None:
    """Hydra's settings name classes to create, so they are refused also with trust."""
    with pytest.raises(SettingsError):
        merge_resumed_overrides(
            [record_overrides(untrusted_run, override), "engine.trust_code=true"]
        )


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a,b", "hydra@b", ""])
def test_a_recorded_experiment_must_be_the_name_of_a_preset(untrusted_run: Path, name: str) -> None:
    """A path is refused."""
    path = untrusted_run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"experiment": name}))
    with pytest.raises(SettingsError, match="experiment must be the name of a preset, got "):
        merge_resumed_overrides([f"resume={untrusted_run}"])


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients", "checkpoints"])
def test_a_run_with_symbolic_links_does_not_resume(
    untrusted_run: Path, tmp_path: Path, name: str
) -> None:
    """The targets of the links do not change."""
    outside = tmp_path / "outside"
    (untrusted_run / name).rename(outside)
    (untrusted_run / name).symlink_to(outside)
    files = [outside, *outside.rglob("*")]
    before = {path: path.read_bytes() for path in files if path.is_file()}
    overrides = [f"resume={untrusted_run}", "rounds=3"]
    with pytest.raises(RunError, match="link"):
        run_here(untrusted_run, *merge_resumed_overrides(overrides))
    assert {path: path.read_bytes() for path in files if path.is_file()} == before


@pytest.mark.parametrize(
    ("overrides", "trust"),
    [
        (("strategy=custom", "strategy.path=a.B"), ("engine.trust_code=true",)),
        (("model=mlp", "engine.trust_code=true"), ()),
    ],
)
def test_the_resume_command_is_complete(overrides: tuple[str, ...], trust: tuple[str, ...]) -> None:
    """The command after an interruption is not refused, and trusts code only if it must."""
    assert list_trust_overrides(compose_overrides(overrides).settings) == trust


def test_trust_is_not_recorded(untrusted_run: Path) -> None:
    """It holds for one resumption only."""
    overrides = [f"resume={untrusted_run}", "rounds=3", "engine.trust_code=true"]
    run_here(untrusted_run, *merge_resumed_overrides(overrides))
    assert "trust" not in (untrusted_run / "manifest.json").read_text()
    assert "trust_code: false" in (untrusted_run / "config.yaml").read_text()


# --- changed arithmetic ------------------------------------------------------------------------


def test_another_version_of_the_arithmetic_is_refused(completed_run: Path, tmp_path: Path) -> None:
    """It is allowed by a setting; without it, the records do not change."""
    directory = tmp_path / "it's old"
    shutil.copytree(completed_run, directory)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["arithmetic"] |= {"version": 1, "mode": "sequential, autograd"}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    earlier = {key: manifest["arithmetic"][key] for key in ("device", "instructions")}
    before = (directory / "rounds.jsonl").read_bytes()
    overrides = [f"resume={directory}", "rounds=3"]
    with pytest.raises(SettingsError) as refused:
        run_here(directory, *merge_resumed_overrides(overrides))
    command = shlex.join(["fedquorum", f"resume={directory}", "engine.on_numerics_change=any"])
    assert str(refused.value) == (
        "engine.on_numerics_change must be any to resume a run of arithmetic 1 (sequential, "
        f"autograd) by arithmetic {NUMERICS_VERSION} (batched, closed form), which rounds "
        f"otherwise, got same; to resume it all the same: {command}"
    )
    assert (directory / "rounds.jsonl").read_bytes() == before
    run_here(directory, *merge_resumed_overrides([*overrides, "engine.on_numerics_change=any"]))
    manifest = json.loads((directory / "manifest.json").read_text())
    # The permission holds for one resumption only.
    assert not [
        item for item in manifest["overrides"] if item.startswith("engine.on_numerics_change")
    ]
    run_here(directory, *merge_resumed_overrides([*overrides, "rounds=4"]))
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["rounds_completed"] == 4
    assert manifest["arithmetic"]["same_bits"] is False
    assert manifest["arithmetic"]["earlier"] == [
        {"version": 1, "mode": "sequential, autograd", **earlier}
    ]


def test_another_training_mode_is_refused(tmp_path: Path) -> None:
    """The version of the arithmetic is the same, but clients train in another mode."""
    directory = run(tmp_path / "run", "rounds=2")
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["arithmetic"]["mode"] == "batched, closed form"
    assert manifest["arithmetic"]["same_bits"] is (manifest["arithmetic"]["device"] == "cpu")
    assert manifest["arithmetic"]["earlier"] == []
    manifest["arithmetic"]["mode"] = "sequential, autograd"
    path.write_text(json.dumps(manifest))
    now = rf"{NUMERICS_VERSION} \(batched, clo"
    message = rf"{NUMERICS_VERSION} \(sequential, autograd\) by arithmetic {now}"
    with pytest.raises(SettingsError, match=message):
        run(directory, "rounds=3", f"resume={directory}")
    run(directory, "rounds=3", f"resume={directory}", "engine.on_numerics_change=any")
    again = json.loads(path.read_text())["arithmetic"]
    machine = {key: again[key] for key in ("device", "instructions")}
    assert again["earlier"] == [
        {"version": NUMERICS_VERSION, "mode": "sequential, autograd", **machine}
    ]


# --- full disks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        "fedquorum.records.checkpoint.save_arrays",
        "fedquorum.records.writer.save_arrays",
        "fedquorum.records.tables.pq.write_table",
        "fedquorum.records.writer.RunWriter._write_line",
    ],
)
def test_a_full_disk_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """No file is damaged, and with free space the run resumes with identical bits."""
    whole = run(tmp_path / "whole")
    stopped = tmp_path / "stopped"
    full = _make_raiser(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    play = Runner.run_round

    def fill_disk(runner: Runner, server_round: int) -> None:
        if server_round == 4:
            patch.setattr(function, full)
        play(runner, server_round)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run_round", fill_disk)
        with pytest.raises(RunError, match=r"cannot be written: No space left on device"):
            run(stopped)
    assert not list(stopped.rglob("*.part"))
    manifest = json.loads((stopped / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert "No space left on device" in manifest["error"]
    for table in ("clients", "evaluations"):
        pq.read_table(stopped / table)
    read_lines(stopped)
    run(stopped, f"resume={stopped}")
    assert_same_run(whole, stopped)


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_one_clear_error(tmp_path: Path) -> None:
    """If the system truncates a file, the command prints one line and leaves no partial file."""
    directory = tmp_path / "run"
    command = [str(Path(sys.executable).with_name("fedquorum")), *SMALL, "data.num_clients=20"]
    done = subprocess.run(
        [*command, f"hydra.run.dir={directory}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        # Python does not notice a truncated bytecode file, and would read it the next time.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=_set_file_size_limit,
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("fedquorum: ")
    assert re.search("cannot be written: .*File too large", done.stderr)
    assert "Traceback" not in done.stderr
    assert not list(directory.rglob("*.part"))
    read_lines(directory)


def _set_file_size_limit() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
