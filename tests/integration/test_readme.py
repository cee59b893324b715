"""The README's commands and code, run as they stand there."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from server_app.in_process import InProcessGrid
from strategies.codec import (
    Status,
    TrainRequest,
    decode_replies,
    encode_arrays,
    encode_train_request,
)
from strategies.types import Call, GlobalMeasure
from tests.integration.conftest import BIN, ROOT
from tests.strategies.test_adapter import MODEL, moved, scripted_app

README = (ROOT / "README.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.strip().splitlines()
]
# What installs is done before the tests can run, and what tests is running now.
DONE_BY_CI = ["pip install -e .", 'pip install -e ".[dev]"', "pytest"]


def test_the_commands_of_ci_are_in_the_readme() -> None:
    """What CI runs by itself is what the README says."""
    assert [c for c in COMMANDS if c in DONE_BY_CI] == DONE_BY_CI


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in DONE_BY_CI])
def test_every_command_works(
    command: str, clone: Path, flower_env: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """Each command, in the order of the README, in a copy of the repository."""
    env = {**os.environ, **flower_env, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
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
        assert "theta_T" in done.stdout
    manifests = [p.read_text() for p in clone.rglob("manifest.json")]
    assert manifests
    assert all('"status": "completed"' in text for text in manifests)


def test_the_mistake_shown_is_what_one_gets(tmp_path: Path) -> None:
    """The console block of the README, to the letter."""
    ((command, answer),) = re.findall(r"```console\n\$ (.*?)\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [BIN / command.split()[0], *command.split()[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, answer)


def test_the_code_of_the_readme_runs() -> None:
    """The strategy in someone's own app, with four clients that train."""
    strategy_code, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    grid = InProcessGrid(scripted_app(4, lambda k, config, arrays: moved(k, 1.0)), {}, 4)
    names = {"grid": grid, "initial_arrays": encode_arrays(MODEL)}
    exec(strategy_code, names)  # noqa: S102 - our own README
    result: object = names["result"]
    assert sorted(getattr(result, "evaluate_metrics_clientapp", {})) == [1, 2, 3]


def test_the_mod_of_the_readme_keeps_clients_away() -> None:
    """In someone's own ClientApp, one client a node: it answers in some rounds only."""
    _, code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - our own README
    app = names["app"]
    assert isinstance(app, ClientApp)
    trained = scripted_app(1, lambda k, config, arrays: moved(k, 1.0))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return trained(message, context)

    grid = InProcessGrid(app, {}, 1)
    statuses = []
    for server_round in range(1, 41):
        request = encode_train_request(
            encode_arrays(MODEL),
            TrainRequest(server_round, Call((0,)), (True,), GlobalMeasure(1.0, 0.5)),
        )
        (reply,) = grid.send_and_receive([Message(request, 1, "train")])
        statuses.append(decode_replies(reply.content)[0].status)
    assert set(statuses) == {Status.DONE, Status.UNAVAILABLE}


def test_links_lead_somewhere() -> None:
    """Every relative link and picture of the README exists."""
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
