"""The commands and code of the README and of the guide to experiments, run as they stand there."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import FedAU
from fedquorum.audit.cli import audit_runs
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from server_app.engines.in_process import InProcessGrid
from tests.builders_runs import run_here
from tests.integration import preloaded
from tests.integration.conftest import BIN, ROOT

README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "running.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", README + GUIDE, re.DOTALL)
    for line in block.replace("\\\n", "").strip().splitlines()
]
(STRATEGY,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(MOD,) = re.findall(
    r"To simulate clients that come and go.*?```python\n(.*?)```",
    (ROOT / "docs" / "drop-in.md").read_text(),
    re.DOTALL,
)
(EXPLANATION,) = re.findall(r"<!-- explanation -->\n```text\n(.*?)```", README, re.DOTALL)
NUMBER = re.compile(r"\d+\.\d+")
MOST_LINES = 100
"""Of ``flwr run`` with 200 rounds: half are Flower's and the table, the others one in 10 s."""

# What installs is done before the tests can run, and what tests is running now.
DONE_BY_CI = ["pip install -e .", 'pip install -e ".[dev]"', "pytest"]
(CLONES,) = [command for command in COMMANDS if command.startswith("git clone ")]
MOST_WORDS = 450


def test_the_commands_of_ci_are_in_the_readme() -> None:
    """What CI runs by itself is what the README says."""
    assert [c for c in COMMANDS if c in DONE_BY_CI] == DONE_BY_CI


def test_the_clone_is_of_the_project(tmp_path: Path) -> None:
    """The address is that of pyproject.toml; git takes this checkout in its place."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    here = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": project["urls"]["Repository"],
    }
    command = ["bash", "-c", f"{CLONES} && ls"]
    found = subprocess.check_output(command, cwd=tmp_path, env={**os.environ, **here}, text=True)
    assert {"README.md", "pyproject.toml", "strategies"} <= set(found.split())


def test_the_readme_is_short() -> None:
    """Outside of tables, code, badges and pictures."""
    text = re.sub(
        r"```.*?```|<!--.*?-->|^[|].*?$|!\[[^]]*\]", "", README, flags=re.DOTALL | re.MULTILINE
    )
    words = re.sub(r"\]\([^)]*\)", "]", text).split()
    assert len(words) <= MOST_WORDS


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in [*DONE_BY_CI, CLONES]])
def test_every_command_works(
    command: str, clone: Path, flower_env: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """Each command, in the order of the README, in a copy of the repository."""
    folders = (preloaded.get_folder("fedquorum"), BIN, os.environ["PATH"])
    env = {**os.environ, **flower_env, "PATH": os.pathsep.join(map(str, folders))}
    if "fmnist" in command:
        env["FEDQUORUM_DATA"] = str(request.getfixturevalue("real_data"))
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=clone,
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    if "flwr run" in command:  # exits with 0 also when the run died
        assert "Results in " in done.stdout
        assert "configure_train" not in done.stdout
        assert len(done.stdout.splitlines()) < MOST_LINES
        assert "theta_T" in done.stdout
    manifests = [p.read_text() for p in clone.rglob("manifest.json")]
    assert manifests
    assert all('"status": "completed"' in text for text in manifests)


def test_the_mistake_shown_is_what_one_gets(tmp_path: Path) -> None:
    """The console block of the guide, to the letter."""
    ((command, answer),) = re.findall(r"```console\n\$ (.*?)\n(.*?)```", GUIDE, re.DOTALL)
    done = subprocess.run(
        [preloaded.get_folder("fedquorum") / command.split()[0], *command.split()[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, answer)


def for_fedavg(app: ClientApp, trained: list[tuple[Any, Any]]) -> ClientApp:
    """Make an app one that is written for Flower's FedAvg, and notes (round, client) in a list."""

    @app.train()
    def train(message: Message, context: Context) -> Message:
        server_round = message.content["config"]["server-round"]
        trained.append((server_round, context.node_config["partition-id"]))
        arrays = message.content.array_records["arrays"]
        moved = {name: Array(array.numpy() + 1.0) for name, array in arrays.items()}
        return reply(message, arrays=ArrayRecord(moved))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return reply(message)

    def reply(message: Message, **arrays: ArrayRecord) -> Message:
        metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
        return Message(RecordDict({**arrays, "metrics": metrics}), reply_to=message)

    return app


def test_the_decision_is_explained_as_shown(tmp_path: Path) -> None:
    """Word by word; the numbers are those of one kind of machine, and nearly those of others.

    SYNTH's steps are so long that rounding to float32, which differs by processor, grows: by a
    tenth of a percent in round 3, and by a tenth in round 10.
    """
    run = run_here(tmp_path / "run", "rounds=20")
    explained = "\n".join(describe_decision(read_audit_input(run), client=10, number=3)) + "\n"
    assert NUMBER.sub("#", explained) == NUMBER.sub("#", EXPLANATION)
    numbers, shown = ([float(n) for n in NUMBER.findall(text)] for text in (explained, EXPLANATION))
    assert numbers == pytest.approx(shown, rel=1e-2)


def test_the_code_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The strategy in someone's own app, with four clients that are always there."""
    monkeypatch.chdir(tmp_path)
    trained: list[tuple[Any, Any]] = []
    names: dict[str, Any] = {
        "grid": InProcessGrid(for_fedavg(ClientApp(), trained), {}, 4),
        "initial_arrays": ArrayRecord({"w": Array(np.zeros(2))}),
    }
    exec(STRATEGY, names)  # noqa: S102 - our own README
    assert sorted(names["result"].evaluate_metrics_clientapp) == [1, 2, 3]
    assert names["result"].arrays["w"].numpy() == pytest.approx([3.0, 3.0])
    assert {server_round for server_round, _ in trained} == {1, 2, 3}
    assert audit_runs(tmp_path / "runs" / "first", print) == 0


def test_the_mod_of_the_readme_keeps_clients_away() -> None:
    """In someone's own ClientApp, one client a node: each trains in some rounds only."""
    names: dict[str, Any] = {}
    exec(MOD, names)  # noqa: S102 - our own README
    trained: list[tuple[Any, Any]] = []
    grid = InProcessGrid(for_fedavg(names["app"], trained), {}, 2)
    FedAU().start(grid, ArrayRecord({"w": Array(np.zeros(2))}), num_rounds=100)
    for client in range(2):
        assert 0 < sum(k == client for _, k in trained) < 100


def test_links_lead_somewhere() -> None:
    """Every relative link and picture of the README exists."""
    for target in re.findall(r"\]\(([^)#]+)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
