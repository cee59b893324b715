"""The command ``fedquorum`` in a separate process."""

import json
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

from tests.builders_runs import read_rows
from tests.cases import is_long
from tests.integration.conftest import BIN, ROOT, Shell, find_results_directory

SMALL = ("data.sizes=equal", "data.samples_per_client=20", "client.local_epochs=1")


def test_a_run_prints_where_its_results_are(shell: Shell) -> None:
    """The absolute path is printed, and all records are there."""
    done = shell("fedquorum", "rounds=2", "hydra.run.dir=here")
    run = find_results_directory(done.stdout)
    assert run == shell.cwd / "here"
    names = {path.name for path in run.iterdir()}
    assert names == {
        "config.yaml",
        "manifest.json",
        "population.parquet",
        "rounds.jsonl",
        "checkpoints",
        "clients",
        "evaluations",
        "model.safetensors",
        "model_card.json",
        "tensorboard",
    }
    again = shell("fedquorum", "rounds=2", "hydra.run.dir=here")
    assert again.status == 1
    message = "fedquorum: the folder of a new run must not hold a run, got"
    todo = "which has one: choose another folder, or resume the run in it"
    assert again.stderr == f"{message} {run}, {todo}\n"


def test_a_sweep(shell: Shell) -> None:
    """-m runs every combination, baselines beside FedALIGN, each with its own records."""
    strategies = ("fedalign", "fedavg", "fedavg_priority") if is_long() else ("fedalign", "fedavg")
    words = (f"strategy={','.join(strategies)}", "seed=1,2", "rounds=2", *SMALL)
    done = shell("fedquorum", "-m", *words)
    assert done.status == 0, done.stderr
    manifests = [json.loads(p.read_text()) for p in shell.cwd.rglob("manifest.json")]
    assert sorted((m["strategy"], m["seed"], m["status"]) for m in manifests) == [
        (strategy, seed, "completed") for strategy in strategies for seed in (1, 2)
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["strategy.epsilon=-1"], "strategy.epsilon must be a number >= 0 (inf allowed), got -1"),
        (["strategy.epsilonn=1"], "strategy.epsilonn is not a setting; strategy has"),
        (["data.num_priority=21"], "data.num_priority must be at most data.num_clients (20)"),
        (["data.num_priority=0"], "data.num_priority must be a whole number >= 1, got 0"),
        (["client.batch_size=0"], "client.batch_size must be a whole number >= 1, got 0"),
        (["experiment=fedalign/nope"], "experiment must be one of fedalign/alone"),
        (
            ["experiment=fedalign/fmnist", "data.root=empty", "data.download=false"],
            "data.root must be a folder with the four files of Fashion-MNIST",
        ),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(
    shell: Shell, words: list[str], message: str
) -> None:
    """Exit status 1, one line on stderr, nothing on stdout, no run left behind."""
    done = shell("fedquorum", *words)
    assert done.status == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"fedquorum: {message}")
    assert done.stderr.count("\n") == 1
    assert not list(shell.cwd.rglob("manifest.json"))


def test_a_node_that_cannot_take_part_is_one_line(shell: Shell) -> None:
    """A problem on the clients' side, such as a missing GPU, is one line as well."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = shell("fedquorum", "client.device=cuda")
    assert done.status == 1
    assert done.stderr == (
        "fedquorum: a node cannot take part: client.device must be auto or cpu "
        "where there is no GPU, got cuda\n"
    )


def test_fewer_shards_than_clients(shell: Shell, real_data: Path) -> None:
    """The message has the number of shards that there are."""
    done = shell(
        "fedquorum", "experiment=fedalign/fmnist", f"data.root={real_data}", "data.num_clients=61"
    )
    assert done.status == 1
    assert "must be at most 120, the number of single-class shards" in done.stderr
    assert done.stderr.endswith("got 61 * 2 = 122\n")
    assert done.stderr.count("\n") == 1


def test_a_sweep_over_the_cutoff(shell: Shell) -> None:
    """FedAU's K from 1 to infinity, one run each, from one command."""
    large = ["10", "20", "50", "100", "1000", "inf"] if is_long() else ["10", "inf"]
    cutoffs = ["1", "2", "5", *large]
    done = shell(
        "fedquorum",
        "-m",
        "strategy=fedau",
        f"strategy.cutoff={','.join(cutoffs)}",
        "availability=bernoulli",
        "availability.p=0.3",
        "rounds=6",
        *SMALL,
        "hydra.sweep.dir=sweep",
    )
    assert done.status == 0, done.stderr
    errors = [
        json.loads((shell.cwd / "sweep" / str(job) / "rounds.jsonl").read_text().splitlines()[-1])
        for job in range(len(cutoffs))
    ]
    assert {round(e["weight_error"], 12) for e in errors[3:]} == {errors[-1]["weight_error"]}
    assert errors[0]["weight_error"] == pytest.approx(0.7**2)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_rounds(shell: Shell, how: signal.Signals) -> None:
    """Ctrl-C and kill give status 130, complete rounds, the model, and the command to resume."""
    # A shell starts background jobs with SIGINT ignored, which children inherit; a handler is
    # reset to the default in them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [str(BIN / "fedquorum"), "rounds=100000", "hydra.run.dir=here"],
        cwd=shell.cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rounds = shell.cwd / "here" / "rounds.jsonl"
    deadline = time.monotonic() + 120
    try:
        while not (rounds.exists() and rounds.read_text().count("\n") >= 3):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(how)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stderr.splitlines() == [
        "fedquorum: interrupted; the records hold all complete rounds",
        f"fedquorum: to continue: fedquorum resume={shell.cwd / 'here'}",
    ]
    manifest = json.loads((shell.cwd / "here" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    complete = [json.loads(line)["round"] for line in rounds.read_text().splitlines()]
    assert complete == list(range(1, manifest["rounds_completed"] + 1))
    rows = read_rows(shell.cwd / "here")
    assert {row["round"] for row in rows} == set(complete)
    assert load_file(shell.cwd / "here" / "model.safetensors")


def test_help_shows_settings(shell: Shell) -> None:
    """--help names the groups and the settings, those of the options given with it."""
    done = shell("fedquorum", "--help", "strategy=fedau")
    assert done.status == 0
    assert "strategy                  aaggff_d, aaggff_s, afl, " in done.stdout
    assert "schema_" not in done.stdout
    assert "  cutoff: .inf" in done.stdout
    wrong = shell("fedquorum", "--help", "strategy=fedaux")
    assert wrong.status != 0
    assert wrong.stderr.startswith("fedquorum: strategy must be one of ")


def test_presets_of_ones_own(shell: Shell) -> None:
    """The folder of docs/running.md, with its commands."""
    page = (ROOT / "docs" / "running.md").read_text()
    _, _, section = page.partition("## Your own presets\n")
    section, _, _ = section.partition("\n## ")
    data, experiment = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    for name, text in (("data", data), ("experiment", experiment)):
        (shell.cwd / "presets" / name).mkdir(parents=True)
        (shell.cwd / "presets" / name / "patients.yaml").write_text(text)
    (shell.cwd / "examples").symlink_to(ROOT / "examples")
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)  # test_readme.py runs bash
    for command in commands.splitlines():
        done = shell(*shlex.split(command))
        assert done.status == 0, done.stderr
        manifest = json.loads((find_results_directory(done.stdout) / "manifest.json").read_text())
        assert (manifest["rounds"], manifest["data"]["clients"]) == (3, 6)
