"""A drop-in strategy and this project's ClientApp on real nodes that host several clients each."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.builders_runs import run_here
from tests.integration.conftest import Outcome, read_round_lines
from tests.integration.deployed import Deployment, start_deployment

pytestmark = [pytest.mark.slow, pytest.mark.flower]

NODES, ROUNDS = 2, 3
NODE = Path(__file__).parent / "quick_supernode.py"
WORDS = (
    *("data.num_clients=6", "data.num_priority=3", "data.sizes=equal"),
    *("data.samples_per_client=40", "client.local_epochs=1", f"rounds={ROUNDS}"),
    *("strategy=fedalign", "strategy.epsilon=0.2", "strategy.warmup_fraction=0", "seed=1"),
)
SERVER = """
from fedquorum import FedALIGN
from flwr.serverapp import ServerApp

from client_app.data import load_data
from conf.compose import compose_overrides
from server_app.runs.build import build_initial_arrays

app = ServerApp()

@app.main()
def main(grid, context):
    given = context.run_config
    settings = compose_overrides(("experiment=custom", *given["overrides"].split())).settings
    is_standard = given["protocol"] == "standard"
    strategy = FedALIGN(
        protocol=given["protocol"],
        client_ids="node-order" if is_standard else None,
        priority=range(2 if is_standard else 3),
        num_rounds=settings.rounds,
        epsilon=0.2,
        warmup_fraction=0.0,
        seed=settings.seed,
        records=given["output-dir"],
    )
    arrays = build_initial_arrays(settings, load_data(settings.data, settings.seed))
    strategy.start(grid, arrays, num_rounds=settings.rounds)
"""


@pytest.fixture(scope="module")
def app(clone: Path) -> Path:
    """Return a copy of this app whose server is a drop-in strategy."""
    (clone / "server_app" / "drop_in.py").write_text(SERVER)
    project = (clone / "pyproject.toml").read_text()
    for before, after in (
        ('serverapp = "server_app.app:app"', 'serverapp = "server_app.drop_in:app"'),
        ('output-dir = ""', 'output-dir = ""\nprotocol = ""'),
    ):
        assert project.count(before) == 1
        project = project.replace(before, after)
    (clone / "pyproject.toml").write_text(project)
    return clone


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Return a SuperLink with two SuperNodes, each of which hosts half of the clients."""
    with start_deployment(tmp_path_factory.mktemp("deployment")) as made:
        names = [f"node-{number}" for number in range(NODES)]
        made.register_clients(names)
        for number, name in enumerate(names):
            config = f"partition-id={number} num-partitions={NODES}"
            made.start_script(name, NODE, config, "--isolation", "process")
        yield made


def run(deployment: Deployment, app: Path, protocol: str) -> Outcome:
    """Run the app with a protocol, its records in a folder of this name."""
    config = f'experiment="custom" overrides="{" ".join(WORDS)}" protocol="{protocol}"'
    config += f' output-dir="{deployment.folder / protocol}"'
    return deployment.run_flwr("run", str(app), "deployment", "--stream", "--run-config", config)


def test_the_keyword_makes_the_apps_run(deployment: Deployment, app: Path, tmp_path: Path) -> None:
    """Rounds, decisions and model have the bits of the app's own run in process."""
    done = run(deployment, app, "fedquorum")
    found, expected = (
        deployment.folder / "fedquorum",
        run_here(tmp_path / "app", "experiment=custom", *WORDS),
    )
    assert (found / "manifest.json").is_file(), done.stdout[-4000:] + done.stderr[-2000:]
    assert json.loads((found / "manifest.json").read_text())["status"] == "completed"
    assert read_round_lines(found) == read_round_lines(expected)
    for table in ("clients", "evaluations"):
        assert pq.read_table(found / table).equals(pq.read_table(expected / table)), table
    names = [path / "model.safetensors" for path in (found, expected)]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_without_it_the_run_stops_in_round_1_and_names_it(
    deployment: Deployment, app: Path
) -> None:
    """Before anything counts."""
    done = run(deployment, app, "standard")
    found = deployment.folder / "standard" / "manifest.json"
    assert found.is_file(), done.stdout[-4000:] + done.stderr[-2000:]
    manifest = json.loads(found.read_text())
    assert (manifest["status"], manifest["rounds_completed"]) == ("failed", 0), done.stdout[-4000:]
    assert manifest["error"].endswith(
        "every client that trained in round 1 replied in FedQuorum's protocol, for several clients "
        'of a node: set protocol="fedquorum" (not inside one of Flower\'s wrappers)'
    )
