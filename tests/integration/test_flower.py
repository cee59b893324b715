"""Real Flower: ``flwr run`` on a separate SuperLink, clients on Ray."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders_runs import MASKED_STRATEGIES, MASKS, read_lines, read_rows, run_here
from tests.cases import is_long
from tests.integration.conftest import (
    BIN,
    ROOT,
    Outcome,
    Shell,
    assert_same_bits,
    find_free_port,
    start_local_superlink,
    wait_for,
)
from tests.reference.fedalign import find_mismatches

pytestmark = [pytest.mark.slow, pytest.mark.flower]

# To stop a run takes seconds, in which Ray does ten rounds and more.
STOPPED_ROUNDS = 120  # more than pass until a busy machine has stopped the run
# The state of Markov availability lives in Flower's context, on Ray as in process.
STOPPED = (
    *("client.local_epochs=1", "engine.checkpoint_every=2"),
    *("availability=markov", "availability.p=0.5"),
)


def run_config(shell: Shell, name: str, overrides: str, experiment: str = "") -> str:
    words = f'overrides="{overrides}" output-dir="{shell.cwd / name}"'
    return f'{words} experiment="{experiment}"' if experiment else words


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make in process the run that is stopped on Ray, to compare with."""
    directory = tmp_path_factory.mktemp("never-stopped") / "run"
    return run_here(directory, f"rounds={STOPPED_ROUNDS}", *STOPPED)


def test_masks_give_the_bits_of_one_process(flower: Shell, tmp_path: Path) -> None:
    """The same model file by ``flwr run`` as in process."""
    for name in MASKED_STRATEGIES if is_long() else ["average_all"]:
        words = (*MASKS, f"strategy={name}", "rounds=2", "engine.num_supernodes=5")
        done = flower("fedquorum", "engine=flower", *words, f"hydra.run.dir=masks-{name}")
        assert done.status == 0, done.stdout + done.stderr
        there = flower.cwd / f"masks-{name}"
        assert_same_bits(there, run_here(tmp_path / name, *words), 2)
        assert json.loads((there / "manifest.json").read_text())["masks"]["nodes"] == 5


@pytest.fixture(scope="module")
def swept(flower: Shell) -> Outcome:
    """Interrupt a sweep on Ray in the second of three jobs, which is in the folder ``swept``."""
    jobs = f"rounds=1,{STOPPED_ROUNDS},{STOPPED_ROUNDS + 1}"
    words = ["-m", "engine=flower", jobs, *STOPPED, "hydra.sweep.dir=swept"]
    return interrupt_command(flower, words, flower.cwd / "swept" / "1" / "rounds.jsonl", 2)


@pytest.fixture(scope="module", params=["in a sweep", "alone"] if is_long() else ["in a sweep"])
def stopped_run(request: pytest.FixtureRequest, flower: Shell) -> Path:
    """Return a run on Ray that was stopped by Ctrl-C after some rounds."""
    run = flower.cwd / "swept" / "1"
    if request.param == "alone":
        run = flower.cwd / "stopped-alone"
        words = ["engine=flower", f"rounds={STOPPED_ROUNDS}", *STOPPED, f"hydra.run.dir={run.name}"]
        assert interrupt_command(flower, words, run / "rounds.jsonl", 2).status == 130
    else:
        request.getfixturevalue("swept")
    assert_readable(run)
    manifest = json.loads((run / "manifest.json").read_text())
    assert 2 <= manifest["rounds_completed"] < STOPPED_ROUNDS
    return run


@pytest.mark.parametrize("engine", ["flower", "in-process"])
def test_a_stopped_run_resumes(
    flower: Shell, stopped_run: Path, never_stopped: Path, engine: str
) -> None:
    """``resume`` of a run on Ray, there or in process, gives the bits of an uninterrupted run."""
    run = shutil.copytree(stopped_run, flower.cwd / f"{engine}-{stopped_run.name}")
    completed = json.loads((run / "manifest.json").read_text())["rounds_completed"]
    done = flower("fedquorum", f"resume={run.name}", f"engine={engine}")
    assert done.status == 0, done.stdout + done.stderr
    manifest = json.loads((run / "manifest.json").read_text())
    (going_on,) = manifest["resumed"]
    assert going_on["round"] == completed // 2 * 2
    assert f"Continuing after round {going_on['round']} of the run in {run}" in done.stdout
    assert (manifest["status"], manifest["rounds_completed"]) == ("completed", STOPPED_ROUNDS)
    assert_same_bits(run, never_stopped, STOPPED_ROUNDS)
    tables = [read_rows(directory) for directory in (run, never_stopped)]
    there = [[(row["round"], row["client"], row["status"]) for row in rows] for rows in tables]
    assert there[0] == there[1]
    assert {status for _, _, status in there[0]} >= {"trained", "unavailable"}
    assert find_mismatches(run).problems == []


def test_the_flower_engine_reports_a_failed_run(flower: Shell) -> None:
    """The command exits with 1 and says why, where ``flwr run --stream`` exits with 0."""
    missing = "data.root must be a folder with the four files of Fashion-MNIST"
    words = ["experiment=fedalign/fmnist", f"data.root={flower.cwd}/none", "data.download=false"]
    if is_long():
        config = run_config(flower, "died", " ".join(words[1:]), "fedalign/fmnist")
        plain = flower("flwr", "run", str(ROOT), "--stream", "--run-config", config)
        assert plain.status == 0
        assert missing in plain.stdout
        assert "Traceback" not in plain.stdout
    done = flower("fedquorum", "engine=flower", *words)
    assert done.status == 1
    (line,) = done.stderr.splitlines()
    assert "ended as finished:failed" in line
    assert missing in line
    for text in ("Traceback", "raised an exception", "Exit Code", missing):
        assert text not in done.stdout


def test_a_mistake_in_the_settings_is_the_last_line(flower: Shell) -> None:
    """Plain ``flwr run`` shows it without a trace, and the run counts as failed."""
    config = run_config(flower, "mistaken", "strategy.epsilon=-1")
    done = flower("flwr", "run", str(ROOT), "--stream", "--run-config", config)
    message = "fedquorum: strategy.epsilon must be a number >= 0 (inf allowed), got -1.0"
    assert done.stdout.splitlines()[-1] == message, done.stdout
    assert "Traceback" not in done.stdout
    run_id = done.stdout.partition("Successfully started run ")[2].split()[0]
    listed = flower("flwr", "list", "--run-id", run_id, "--format", "json")
    assert json.loads(listed.stdout)["runs"][0]["status"] == "finished:failed"
    assert not (flower.cwd / "mistaken").exists()


def test_a_ray_cluster_that_is_gone(tmp_path: Path) -> None:
    """The error is immediate, although Ray itself would wait for minutes."""
    address = f"127.0.0.1:{find_free_port()}"
    with start_local_superlink(tmp_path / "home") as variables:
        shell = Shell(tmp_path, {**variables, "RAY_ADDRESS": address})
        config = run_config(shell, "run", "rounds=1")
        done = shell("flwr", "run", str(ROOT), "--stream", "--run-config", config)
    # A fork of Flower's command has the ports of its caller, not those of its first process.
    assert f"127.0.0.1:{variables['FLWR_LOCAL_SUPERLINK_HTTP_API_PORT']}" in done.stdout
    message = "RAY_ADDRESS must be the HOST:PORT of a Ray cluster that runs"
    assert (
        f"{message}, got {address} ([Errno 111] Connection refused): start one with" in done.stdout
    )


def assert_readable(run: Path) -> None:
    """Check that an interrupted run is recorded as such, with its complete rounds."""
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    rounds = read_lines(run)
    assert [record["round"] for record in rounds] == list(range(1, len(rounds) + 1))
    assert manifest["rounds_completed"] == len(rounds)
    table = read_rows(run)
    assert {row["round"] for row in table} == {record["round"] for record in rounds}


@pytest.mark.skipif(not is_long(), reason="only with --long")
def test_flwr_stop_leaves_readable_records(flower: Shell) -> None:
    """As Ctrl-C does, by which ``fedquorum`` runs the same command."""
    run = flower.cwd / "stopped"
    config = run_config(flower, "stopped", "rounds=100000")
    started = flower("flwr", "run", str(ROOT), "--format", "json", "--run-config", config)
    run_id = str(json.loads(started.stdout)["run-id"])
    lines, ended = run / "rounds.jsonl", run / "manifest.json"
    wait_for("a round", lambda: lines.exists() and lines.stat().st_size > 0, 90)
    stopped = flower("flwr", "stop", run_id)
    assert stopped.status == 0, stopped.stderr
    wait_for("the end", lambda: json.loads(ended.read_text())["status"] != "running", 90)
    assert_readable(run)


def interrupt_command(shell: Shell, words: Sequence[str], rounds: Path, after: int) -> Outcome:
    """Press Ctrl-C when the file ``rounds`` has ``after`` lines."""
    # A shell starts background jobs with SIGINT ignored, which children inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [str(BIN / "fedquorum"), *words],
        cwd=shell.cwd,
        env={**os.environ, **shell.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_for(
                f"{after} rounds",
                lambda: rounds.exists() and rounds.read_bytes().count(b"\n") >= after,
                240,
            )
        finally:
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=120)
    return Outcome(process.returncode, stdout, stderr)


def test_the_bundle_holds_what_it_needs(tmp_path: Path) -> None:
    """The app bundle has all code and all settings, and nothing of tests or outputs."""
    subprocess.run(
        [str(BIN / "flwr"), "build", "--app", str(ROOT)], cwd=tmp_path, check=True, timeout=60
    )
    (bundle,) = tmp_path.glob("*.fab")
    names = subprocess.check_output(
        [str(BIN / "python"), "-m", "zipfile", "-l", str(bundle)], text=True
    )
    found = {line.split()[0] for line in names.splitlines()[1:]}
    for package in ("strategies", "client_app", "server_app", "conf"):
        for path in (ROOT / package).rglob("*"):
            if path.suffix in (".py", ".yaml"):
                assert path.relative_to(ROOT).as_posix() in found
    assert "fedquorum_app.py" in found
    assert not [name for name in found if name.startswith(("tests/", "outputs/", "benchmarks/"))]


def test_a_sweep_on_flower_is_stopped_with_its_run(flower: Shell, swept: Outcome) -> None:
    """One job after the other by flwr run; Ctrl-C stops the Flower run at work, and says so."""
    sweep = flower.cwd / "swept"
    assert swept.status == 130
    interruption, again = swept.stderr.splitlines()
    assert interruption == "fedquorum: interrupted; the records hold all complete rounds"
    assert again.startswith("fedquorum: to continue the sweep: fedquorum -m engine=flower ")
    log = (sweep / "1" / "output.log").read_text()
    assert "\nfedquorum: stopped the Flower run " in log
    assert "1 of 3 jobs completed" in swept.stdout
    statuses = {
        job: json.loads((sweep / job / "manifest.json").read_text())["status"] for job in "01"
    }
    assert statuses == {"0": "completed", "1": "interrupted"}
    assert "Successfully started run" in (sweep / "0" / "output.log").read_text()
    assert not (sweep / "2" / "output.log").exists()
    runs = json.loads(flower("flwr", "list", "--format", "json").stdout)["runs"]
    assert "running" not in {run["status"] for run in runs}
