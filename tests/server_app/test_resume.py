"""Runs that go on from their checkpoints."""

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
from fedquorum.named import NAMED_STRATEGIES
from fedquorum.records import checkpoint
from fedquorum.records.checkpoint import Checkpoint, CheckpointStore
from fedquorum.records.run_dir import lock_run

import server_app.job
import server_app.loop
from client_app.node import resolve_device
from client_app.numerics import NUMERICS_VERSION
from conf.compose import compose_overrides
from server_app.resume import merge_resumed_overrides
from tests.builders import NEEDED_WORDS
from tests.builders_runs import make_client_overrides, read_lines, run_here
from tests.cases import sample_cases
from tests.integration.conftest import ROOT, assert_same_bits, assert_same_run, interrupt_at_round

SMALL = ("rounds=7", "engine.checkpoint_every=2", *make_client_overrides(6, 3))


def run(directory: Path, *words: str) -> Path:
    return run_here(directory, *SMALL, *words)


def interrupt_run(
    monkeypatch: pytest.MonkeyPatch, directory: Path, *words: str, in_round: int = 6
) -> Path:
    """Run until a round, which breaks off before it has any effect."""
    with interrupt_at_round(monkeypatch, in_round):
        run(directory, *words)
    return directory


COMPOSED = "composed strategy.selection.epsilon=2 strategy/participation=fedau"

CHOOSING = "composed strategy/selection=power_of_choice strategy.fraction=0.4 data.priority=all"


def instructions_here() -> str | None:
    """Return what the manifest says of this machine's processor."""
    on_cpu = resolve_device("auto").type == "cpu"
    return torch.backends.cpu.get_cpu_capability() if on_cpu else None


@pytest.mark.parametrize(
    "strategy",
    sample_cases(
        [
            *sorted(NAMED_STRATEGIES),
            f"{COMPOSED} strategy/weighting=aaggff_d server_optimizer=yogi",
            f"{COMPOSED} server_optimizer=adam",
            f"{CHOOSING} strategy.selection.losses=measured evaluation.every=5",
            f"{CHOOSING} strategy.selection.losses=told",
            "fedau server_optimizer=momentum",
            "fedavg server_optimizer=adagrad",
        ],
        10,
    ),
)
def test_a_resumed_run_is_bit_identical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Every strategy, with clients that come and go and what its nodes keep: as never stopped."""
    words = [*f"strategy={strategy}".split(), "availability=markov", "availability.p=0.6"]
    words += ["engine.num_supernodes=2", *NEEDED_WORDS.get(strategy, ())]
    whole = run(tmp_path / "whole", *words)
    stopped = interrupt_run(monkeypatch, tmp_path / "stopped", *words)
    run(stopped, *words, f"resume={stopped}")
    assert_same_run(whole, stopped)
    manifest = json.loads((stopped / "manifest.json").read_text())
    assert [going_on["round"] for going_on in manifest["resumed"]] == [4]
    settings = (stopped / "config.yaml").read_text()
    assert settings == (whole / "config.yaml").read_text()


@pytest.mark.parametrize(
    "words",
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
def test_settings_that_change_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Sampling, schedules, a memory in files, rare evaluations: bit-identical, from any round."""
    overrides = tuple(word.format(tmp_path) for word in words)
    whole = run(tmp_path / "whole", *overrides)
    for in_round in (1, 2, 7):
        stopped = interrupt_run(
            monkeypatch, tmp_path / str(in_round), *overrides, in_round=in_round
        )
        run(stopped, *overrides, f"resume={stopped}")
        assert_same_run(whole, stopped)


@pytest.mark.parametrize(
    "words",
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
def test_clients_that_rest_and_rates_that_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Nothing of them is kept: who is drawn, and who is there, follow from the seed again."""
    whole = run(tmp_path / "whole", *words)
    stopped = interrupt_run(monkeypatch, tmp_path / "stopped", *words)
    run(stopped, *words, f"resume={stopped}")
    assert_same_run(whole, stopped)


def test_a_run_resumes_any_number_of_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may break off any number of times; the manifest has them all."""
    whole = run(tmp_path / "whole")
    stopped = interrupt_run(monkeypatch, tmp_path / "stopped", in_round=4)
    interrupt_run(monkeypatch, stopped, f"resume={stopped}", in_round=5)
    interrupt_run(monkeypatch, stopped, f"resume={stopped}", in_round=7)
    run(stopped, f"resume={stopped}")
    assert_same_run(whole, stopped)
    manifest = json.loads((stopped / "manifest.json").read_text())
    assert [going_on["round"] for going_on in manifest["resumed"]] == [2, 4, 6]


def test_a_complete_run_may_resume_for_more_rounds(tmp_path: Path) -> None:
    """With more rounds it is the longer run, where nothing depends on their number."""
    whole = run(tmp_path / "whole", "strategy=fedavg", "rounds=9")
    grown = run(tmp_path / "grown", "strategy=fedavg", "rounds=6")
    run(grown, "strategy=fedavg", "rounds=9", f"resume={grown}")
    assert read_lines(grown) == read_lines(whole)
    model = (grown / "model.safetensors").read_bytes()
    assert model == (whole / "model.safetensors").read_bytes()
    before = read_lines(grown)
    run(grown, "strategy=fedavg", "rounds=9", f"resume={grown}")  # nothing is left to do
    assert read_lines(grown) == before


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (
            "client.lr=0.2",
            r"client\.lr must be 0\.1, as in the run so far, got 0\.2 \(resume=.*/run\)",
        ),
        ("seed=2", r"seed must be 1, as in the run so far, got 2"),
        ("strategy=fedavg", r"strategy\.criterion must be loss, .* got null"),
        ("rounds=5", r"rounds must be at least 7, as in the run so far, got 5"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, word: str, told: str) -> None:
    """The setting is named with both values, and the records stay as they are."""
    directory = run(tmp_path / "run")
    before = (directory / "rounds.jsonl").read_bytes()
    with pytest.raises(SettingsError, match=told):
        run(directory, word, f"resume={directory}")
    assert (directory / "rounds.jsonl").read_bytes() == before


def test_where_it_runs_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other timeouts, and another number of nodes unless they keep models: the same run."""
    words = ("availability=markov", "availability.p=0.6")
    whole = run(tmp_path / "whole", *words)
    stopped = interrupt_run(monkeypatch, tmp_path / "stopped", *words)
    again = shutil.copytree(stopped, tmp_path / "again")
    elsewhere = (f"resume={stopped}", "engine.checkpoint_every=3", "engine.round_timeout=9")
    run(stopped, *words, *elsewhere)
    assert read_lines(stopped) == read_lines(whole)
    run(again, *words, f"resume={again}", "engine.num_supernodes=3")
    assert_same_bits(again, whole, 7)
    kept = run(tmp_path / "kept", "strategy=local_only", "rounds=2")
    with pytest.raises(SettingsError, match=r"engine\.num_supernodes must be 1, as when"):
        run(kept, "strategy=local_only", f"resume={kept}", "engine.num_supernodes=2")


def test_a_run_that_was_killed_before_its_first_round_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any checkpoint there is no round to lose."""
    whole = run(tmp_path / "whole")
    stopped = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(
            "fedquorum.records.checkpoint.CheckpointStore.save", _raise(KeyboardInterrupt())
        )
        with pytest.raises(KeyboardInterrupt):
            run(stopped)
    run(stopped, f"resume={stopped}")
    assert_same_run(whole, stopped)


def _raise(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_a_run_without_checkpoints_cannot_resume(tmp_path: Path) -> None:
    """Its rounds are not thrown away."""
    directory = run(tmp_path / "run", "engine.checkpoint_every=null")
    assert not (directory / "checkpoints").exists()
    with pytest.raises(RunError, match=r"resume needs a checkpoint, and the run in .* wrote none"):
        run(directory, f"resume={directory}")
    assert len(read_lines(directory)) == 7


def test_default_checkpoints_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait until the run has lasted twenty times as long as the last one took."""
    now = 0.0
    written: list[int] = []
    save, play = CheckpointStore.save, server_app.loop._run_round

    def save_and_note(self: CheckpointStore, after: Checkpoint) -> None:
        nonlocal now
        save(self, after)
        now += 2.0 if after.server_round else 0.01
        written.append(after.server_round)

    def play_slowly(*given: Any) -> Any:
        nonlocal now
        now += 0.3 if given[2] < 10 else 15.0
        return play(*given)

    monkeypatch.setattr(CheckpointStore, "save", save_and_note)
    monkeypatch.setattr(server_app.loop, "_run_round", play_slowly)
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(checkpoint, "time", clock)
    run(tmp_path / "run", "engine.checkpoint_every=auto", "rounds=14")
    # After a second of quick rounds; then after 40 s, three rounds of 15 s; and after the last.
    assert written == [0, 4, 12, 14]


def test_a_missing_run_cannot_resume(tmp_path: Path) -> None:
    """The directory is named."""
    with pytest.raises(
        RunError, match=r"resume must be the folder of a run, got .*/none: there is no such folder$"
    ):
        run(tmp_path / "none", f"resume={tmp_path}/none")
    with pytest.raises(SettingsError, match="output-dir must be empty or the folder in resume"):
        run(tmp_path / "other", f"resume={tmp_path}/none")


# --- folders without a run -------------------------------------------------------------------


@pytest.fixture
def killed_run(tmp_path: Path) -> Path:
    """Return a folder as after a start that was killed, with rounds of a run before it."""
    directory = run(tmp_path / "killed", "strategy=fedau", "rounds=5", "seed=3")
    (directory / "manifest.json").unlink()
    (directory / "notes.txt").write_text("mine")
    return directory


AS_KILLED = ("strategy=fedau", "rounds=5", "seed=3")


@pytest.mark.parametrize("resumes", [True, False])
def test_a_start_clears_what_a_killed_start_left(
    tmp_path: Path, killed_run: Path, capsys: pytest.CaptureFixture[str], *, resumes: bool
) -> None:
    """With and without ``resume``: no round of before is continued, and no checkpoint is used."""
    whole = run(tmp_path / "whole", "rounds=3")
    capsys.readouterr()
    run(killed_run, "rounds=3", *([f"resume={killed_run}"] if resumes else []))
    assert_same_run(whole, killed_run)
    assert (killed_run / "notes.txt").read_text() == "mine"
    said = f"Nothing was done yet in {killed_run}: the run starts" in capsys.readouterr().out
    assert said == resumes
    manifest = json.loads((killed_run / "manifest.json").read_text())
    assert (manifest["resumed"], manifest["status"]) == ([], "completed")
    assert not any("resume" in word for word in manifest["overrides"])


@pytest.mark.parametrize("words", [(), ("rounds=4",), ("engine.checkpoint_every=2", "seed=4")])
def test_a_killed_start_is_repeated_by_its_folder(
    tmp_path: Path, killed_run: Path, words: tuple[str, ...]
) -> None:
    """Its settings are there; what is said again wins."""
    whole = run(tmp_path / "whole", *AS_KILLED, *words)
    run_here(killed_run, *merge_resumed_overrides([f"resume={killed_run}", *words])[:-1])
    assert read_lines(killed_run) == read_lines(whole)
    for name in ("model.safetensors", "population.parquet"):
        assert (killed_run / name).read_bytes() == (whole / name).read_bytes()
    assert (killed_run / "config.yaml").read_text() == (whole / "config.yaml").read_text()


def test_words_that_say_what_is_run_say_all_of_it(killed_run: Path) -> None:
    """Settings that were left there do not mix with those of another command."""
    words = (*SMALL, "experiment=custom", "strategy=fedavg", "rounds=2", f"resume={killed_run}")
    given = compose_overrides(merge_resumed_overrides(words)[:-1]).settings
    assert given == compose_overrides((*words[:-1], f"resume={killed_run}")).settings
    run_here(killed_run, *merge_resumed_overrides(words)[:-1])
    assert len(read_lines(killed_run)) == 2


@pytest.mark.parametrize("words", [(), ("engine=ray", "engine.num_supernodes=2", "-h")])
def test_where_nothing_says_what_to_run_nothing_is_started(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """An empty folder may be of a start that was killed, or a slip of the pen."""
    with pytest.raises(RunError) as refused:
        merge_resumed_overrides([f"resume={tmp_path}", *words])
    assert str(refused.value) == (
        f"resume must be with the settings of the run where nothing was done yet, got only "
        f"{tmp_path}: type them again (fedquorum data=... strategy=... resume={tmp_path})"
    )
    assert list(tmp_path.iterdir()) == []


def test_code_that_a_killed_start_names_is_not_run(tmp_path: Path) -> None:
    """Its settings may come from anybody, as those of a run."""
    text = compose_overrides(("strategy=custom", "strategy.path=a.B")).to_yaml()
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SettingsError, match=r"strategy\.path must be given again to resume"):
        merge_resumed_overrides([f"resume={tmp_path}"])


def test_a_folder_of_runs_is_no_folder_of_a_run(tmp_path: Path) -> None:
    """Nothing starts above the runs that are there, which were meant."""
    run(tmp_path / "outputs" / "custom" / "today", "rounds=1")
    before = set(tmp_path.rglob("*"))
    told = r"resume must be the folder of a run, got .*/outputs: it has no manifest\.json$"
    words = ("strategy=fedavg", f"resume={tmp_path}/outputs")
    with pytest.raises(RunError, match=told):
        merge_resumed_overrides(words)
    with pytest.raises(RunError, match=told):
        run(tmp_path / "outputs", *words)
    assert set(tmp_path.rglob("*")) == before


def test_a_start_that_another_process_is_at_is_left_alone(killed_run: Path) -> None:
    """It has no manifest yet, and nothing of it is removed."""
    lock = lock_run(killed_run)
    before = {path: path.stat().st_size for path in killed_run.rglob("*")}
    for words in ((), (f"resume={killed_run}",)):
        with pytest.raises(RunError, match="another process is at work on the run in"):
            run(killed_run, *words)
    os.close(lock)
    assert {path: path.stat().st_size for path in killed_run.rglob("*")} == before


def test_a_run_at_work_is_left_alone(tmp_path: Path) -> None:
    """While one process writes the records of a run, no other goes on with it."""
    directory = tmp_path / "run"
    seen: list[str] = []
    play = server_app.loop._run_round

    def meanwhile(parts: Any, arrays: Any, server_round: int) -> Any:
        if server_round == 3:
            with pytest.raises(RunError, match="another process is at work on the run in") as told:
                run(directory, f"resume={directory}")
            seen.append(str(told.value))
        return play(parts, arrays, server_round)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server_app.loop._run_round", meanwhile)
        run(directory)
    assert len(seen) == 1
    assert len(read_lines(directory)) == 7


def test_the_overrides_of_a_resumed_run(tmp_path: Path) -> None:
    """``resume=DIR`` alone is enough on the command line; what is said again wins."""
    directory = run(tmp_path / "it's a run", "client.lr=0.5")
    words = merge_resumed_overrides([f"resume={directory}", "rounds=9"])
    composed = compose_overrides(words)
    assert composed.settings.client.lr == 0.5
    assert composed.settings.rounds == 9
    assert composed.settings.resume == str(directory)
    assert f"hydra.run.dir='{tmp_path}/it\\'s a run'" in words
    assert merge_resumed_overrides(["rounds=9"]) == ("rounds=9",)
    assert merge_resumed_overrides(["resume=null"]) == ("resume=null",)
    with pytest.raises(
        RunError, match=r"resume must be without -m, got .*: to continue a sweep, type its"
    ):
        merge_resumed_overrides(["-m", f"resume={directory}", "seed=1,2"])


# --- directories of somebody else -----------------------------------------------------------


@pytest.fixture
def planted_file(tmp_path: Path) -> Path:
    """Return a Python file that leaves a file ``ran`` beside it when it is imported."""
    path = tmp_path / "planted.py"
    path.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    return path


def claiming(run: Path, *overrides: str) -> str:
    """Make a run's manifest name these overrides, and return the word that resumes it."""
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"overrides": overrides}))
    return f"resume={run}"


@pytest.fixture(scope="module")
def completed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that completed."""
    return run(tmp_path_factory.mktemp("completed") / "run", "rounds=2")


@pytest.fixture
def somebody_elses(completed_run: Path, tmp_path: Path) -> Path:
    """Return a copy of a run."""
    return Path(shutil.copytree(completed_run, tmp_path / "run"))


@pytest.mark.parametrize(
    ("words", "setting"),
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
def test_what_only_the_records_name_is_not_imported(
    somebody_elses: Path, planted_file: Path, words: tuple[str, ...], setting: str
) -> None:
    """Nor connected to; the error says what to type if it is to be."""
    words = tuple(word.format(planted_file) for word in words)
    resume = claiming(somebody_elses, *words)
    before = {p: p.read_bytes() for p in somebody_elses.rglob("*") if p.is_file()}
    with pytest.raises(SettingsError) as refused:
        merge_resumed_overrides([resume])
    command = shlex.join(["fedquorum", resume, "engine.trust_code=true"])
    assert str(refused.value).startswith(f"{setting} must be given again to resume a run whose ")
    assert str(refused.value).endswith(f"if you trust whoever wrote {somebody_elses}: {command}")
    for given in (["engine.trust_code=true"], [word for word in words if word.startswith(setting)]):
        assert set(words) - {"engine.trust_code=true"} <= {
            *merge_resumed_overrides([resume, *given])
        }
    assert {p: p.read_bytes() for p in somebody_elses.rglob("*") if p.is_file()} == before
    assert not (planted_file.parent / "ran").exists()


@pytest.mark.parametrize(
    "word",
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
def test_records_say_nothing_to_hydra(somebody_elses: Path, word: str) -> None:
    """Its own settings name classes to make, also where all else is trusted."""
    with pytest.raises(SettingsError):
        merge_resumed_overrides([claiming(somebody_elses, word), "engine.trust_code=true"])


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a,b", "hydra@b", ""])
def test_a_recorded_experiment_is_the_name_of_a_preset(somebody_elses: Path, name: str) -> None:
    """And no path."""
    path = somebody_elses / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"experiment": name}))
    with pytest.raises(SettingsError, match="experiment must be the name of a preset, got "):
        merge_resumed_overrides([f"resume={somebody_elses}"])


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients", "checkpoints"])
def test_a_run_with_links_does_not_resume(somebody_elses: Path, tmp_path: Path, name: str) -> None:
    """What they lead to stays as it is."""
    outside = tmp_path / "outside"
    (somebody_elses / name).rename(outside)
    (somebody_elses / name).symlink_to(outside)
    files = [outside, *outside.rglob("*")]
    before = {path: path.read_bytes() for path in files if path.is_file()}
    words = [f"resume={somebody_elses}", "rounds=3"]
    with pytest.raises(RunError, match="link"):
        run_here(somebody_elses, *merge_resumed_overrides(words))
    assert {path: path.read_bytes() for path in files if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "trust"),
    [
        (("strategy=custom", "strategy.path=a.B"), ("engine.trust_code=true",)),
        (("model=mlp", "engine.trust_code=true"), ()),
    ],
)
def test_the_resume_command_is_complete(words: tuple[str, ...], trust: tuple[str, ...]) -> None:
    """What is typed after an interruption is not refused, and trusts no more than it must."""
    assert server_app.job._get_trust_overrides(words) == trust


def test_trust_is_meant_for_one_interruption(somebody_elses: Path) -> None:
    """It is not recorded."""
    words = [f"resume={somebody_elses}", "rounds=3", "engine.trust_code=true"]
    run_here(somebody_elses, *merge_resumed_overrides(words))
    assert "trust" not in (somebody_elses / "manifest.json").read_text()
    assert "trust_code: false" in (somebody_elses / "config.yaml").read_text()


# --- another arithmetic ------------------------------------------------------------------------


def test_a_run_of_another_arithmetic_is_refused(completed_run: Path, tmp_path: Path) -> None:
    """Unless that is said; the records of a run that is refused stay as they are."""
    directory = tmp_path / "it's old"
    shutil.copytree(completed_run, directory)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["arithmetic"] |= {"version": 1, "way": "alone, autograd"}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    earlier = {key: manifest["arithmetic"][key] for key in ("device", "instructions")}
    before = (directory / "rounds.jsonl").read_bytes()
    words = [f"resume={directory}", "rounds=3"]
    with pytest.raises(SettingsError) as refused:
        run_here(directory, *merge_resumed_overrides(words))
    assert str(refused.value) == (
        "engine.on_numerics_change must be any to resume a run of arithmetic 1 (alone, autograd) "
        f"by arithmetic {NUMERICS_VERSION} (batched, closed form), which rounds otherwise, got same; to "
        "resume it all the same: "
        + shlex.join(["fedquorum", f"resume={directory}", "engine.on_numerics_change=any"])
    )
    assert (directory / "rounds.jsonl").read_bytes() == before
    run_here(directory, *merge_resumed_overrides([*words, "engine.on_numerics_change=any"]))
    manifest = json.loads((directory / "manifest.json").read_text())
    # What was said of one interruption does not hold for the next one.
    assert not [
        word for word in manifest["overrides"] if word.startswith("engine.on_numerics_change")
    ]
    run_here(directory, *merge_resumed_overrides([*words, "rounds=4"]))
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["rounds_completed"] == 4
    assert manifest["arithmetic"]["same_bits"] is False
    assert manifest["arithmetic"]["earlier"] == [
        {"version": 1, "way": "alone, autograd", **earlier}
    ]


def test_another_way_of_training_is_refused(tmp_path: Path) -> None:
    """The same version of the arithmetic, and yet clients train otherwise."""
    directory = run(tmp_path / "run", "rounds=2")
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["arithmetic"]["way"] == "batched, closed form"
    assert manifest["arithmetic"]["same_bits"] is (manifest["arithmetic"]["device"] == "cpu")
    assert manifest["arithmetic"]["earlier"] == []
    manifest["arithmetic"]["way"] = "alone, autograd"
    path.write_text(json.dumps(manifest))
    words = (
        rf"{NUMERICS_VERSION} \(alone, autograd\) by arithmetic {NUMERICS_VERSION} \(batched, clo"
    )
    with pytest.raises(SettingsError, match=words):
        run(directory, "rounds=3", f"resume={directory}")
    run(directory, "rounds=3", f"resume={directory}", "engine.on_numerics_change=any")
    again = json.loads(path.read_text())["arithmetic"]
    there = {key: again[key] for key in ("device", "instructions")}
    assert again["earlier"] == [{"version": NUMERICS_VERSION, "way": "alone, autograd", **there}]


# --- disks that are full ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        "fedquorum.records.checkpoint.save_file",
        "fedquorum.records.writer.save_file",
        "fedquorum.records.tables.pq.write_table",
        "fedquorum.records.writer.RunWriter._write_line",
    ],
)
def test_a_full_disk_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Wherever it shows: no broken file, and with room again the run goes on, bit-identical."""
    whole = run(tmp_path / "whole")
    stopped = tmp_path / "stopped"
    full = _raise(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    play = server_app.loop._run_round

    def fills(parts: Any, arrays: Any, server_round: int) -> Any:
        if server_round == 4:
            patch.setattr(place, full)
        return play(parts, arrays, server_round)

    with monkeypatch.context() as patch:
        patch.setattr("server_app.loop._run_round", fills)
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
def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    """A file that the system cuts off: the command says so in one line and leaves no torn file."""
    directory = tmp_path / "run"
    command = [str(Path(sys.executable).with_name("fedquorum")), *SMALL, "data.num_clients=20"]
    done = subprocess.run(
        [*command, f"hydra.run.dir={directory}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        # Python does not notice that a bytecode file is cut off, and would read it the next time.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=_limit_files,
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("fedquorum: ")
    assert re.search("cannot be written: .*File too large", done.stderr)
    assert "Traceback" not in done.stderr
    assert not list(directory.rglob("*.part"))
    read_lines(directory)


def _limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
