"""A study of a federation whose data nobody may pool: SuperLink and SuperNodes over TLS.

The first seed runs on them. The further ones are run in this process into the study's folder, which
then finds them completed: on devices they would take minutes (``--long``).
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedquorum.errors import SettingsError
from fedquorum.records.reader import read_client_names
from fedquorum.rng import derive_seed

import fedquorum_app
from conf.compose import compose_overrides
from server_app.cli.study import start_study
from server_app.runs.job import SweepUnfinished
from server_app.study.rivals import build_rival_overrides
from server_app.sweeps.jobs import CONFIG_FILE, SweepFolder, read_complete_rounds
from tests.builders_runs import read_rows, run_here
from tests.cases import is_long
from tests.integration.deployed import Deployment, make_client_data, start_deployment

pytestmark = [pytest.mark.slow, pytest.mark.flower]

CLIENTS, ROUNDS, SEEDS = 3, 2, 5
CLASSES, COLUMNS = ("a", "b", "c"), [f"x{number}" for number in range(8)]
SHARED = (
    f"data=csv rounds={ROUNDS} data.num_clients={CLIENTS} data.target=y "
    "data.priority=all client.local_epochs=1 evaluation.every=2"
)
ON_DEVICES = (
    f"{SHARED} data.client_column=null data.path=rows.csv engine=flower "
    f"data.columns={{numbers:[{','.join(COLUMNS)}],classes:[{','.join(CLASSES)}]}} "
    "engine.superlink=deployment engine.node_keys=nodes.txt"
)
NODE = Path(__file__).parent / "quick_supernode.py"
POLICIES = {
    1: "{withhold: [test-accuracy], client_name: North, scales: true}",
    2: "{accept: {strategies: [fedavg]}, scales: true}",
}
"""Client 1 is in no score and gives its name, client 2 takes no part with q-FedAvg.

Both share their scales, client 0 does not.
"""


def make_table(client: int) -> pd.DataFrame:
    """Return the rows of a client."""
    data = make_client_data(client)
    x, y = (np.concatenate([data[f"{name}_train"], data[f"{name}_test"]]) for name in "xy")
    table = pd.DataFrame(x.astype(np.float64), columns=COLUMNS)
    return table.assign(y=np.array(CLASSES)[y])


@pytest.fixture
def deployment(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployment]:
    """Return devices with their data and policies; this process is the operator's."""
    with start_deployment(tmp_path_factory.mktemp("study")) as made:
        names = [f"node-{client}" for client in range(CLIENTS)]
        made.register_clients(names)
        for client, name in enumerate(names):
            home = made.folder / "devices" / name
            home.mkdir(parents=True)
            make_table(client).to_csv(home / "rows.csv", index=False)
            (home / "node.yaml").write_text(POLICIES.get(client, ""))
            config = f'client-id={client} data-path="{home / "rows.csv"}"'
            made.start_script(name, NODE, config, "--isolation", "process")
        for key, value in made.env.items():
            monkeypatch.setenv(key, value)
        monkeypatch.chdir(made.folder)
        yield made


def simulate(study: Path, data: Path, *changes: str) -> None:
    """Run what a device study would, in this process, into the folder where it looks for it."""
    words = ("experiment=custom", "data.validation_fraction=0.2", *changes)
    study.mkdir(exist_ok=True)
    job = SweepFolder(study).get_job((*words, *ON_DEVICES.split()), "", SEEDS)
    settings = (job.directory / CONFIG_FILE).read_text()
    run_here(job.directory, *words, *SHARED.split(), "data.client_column=k", f"data.path={data}")
    (job.directory / CONFIG_FILE).write_text(settings)


@contextmanager
def interrupted_after_a_round(run: Path) -> Iterator[None]:
    """Interrupt this process as Ctrl-C does, once a run has a round."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            if read_complete_rounds(run):
                os.kill(os.getpid(), signal.SIGINT)
                return

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with pytest.raises(SweepUnfinished):
            yield
    finally:
        ended.set()
        watching.join()


def test_a_study_of_devices(deployment: Deployment, capfd: pytest.CaptureFixture[str]) -> None:
    """It resumes after an interruption, keeps its budget, and uses only the devices' reports."""
    study, pooled = deployment.folder / "study", deployment.folder / "pooled.csv"
    tables = [make_table(client).assign(k=client) for client in range(CLIENTS)]
    pd.concat(tables).to_csv(pooled, index=False)
    if not is_long():
        fedavg = (
            "strategy=fedavg",
            *build_rival_overrides(compose_overrides(tuple(ON_DEVICES.split())).settings),
        )
        simulate(
            study, pooled, "strategy=fedavg", "data.seed=3", f"seed={derive_seed(3, 'restart')}"
        )
        for seed in range(4, 3 + SEEDS):
            simulate(study, pooled, *fedavg, f"seed={seed}")
            simulate(study, pooled, "strategy=qfedavg", f"seed={seed}")
    words = f"goal=average methods=[qfedavg] trials=0 budget={2 * SEEDS + 1}runs {ON_DEVICES}"
    arguments = [*words.split(), f"output={study}"]
    with interrupted_after_a_round(study / "0"):
        start_study(arguments)
    assert not (study / "study.json").exists()
    start_study(arguments)
    answer = json.loads((study / "study.json").read_text())
    assert_decided(answer)
    assert answer["spent"]["spent"] == answer["spent"]["amount"] == (2 * SEEDS + 1) * ROUNDS
    assert "1 seed compared over 1 of 3 clients" in capfd.readouterr().out
    for name in ("0", "1"):
        assert_withheld(read_rows(study / name, "evaluations"))
        assert read_client_names(study / name).names == {1: "North"}
    assert_shared(study / "0", [(1, "North"), (2, None)], deployment.folder)
    assert_shared(study / "1", [(1, "North")], deployment.folder)
    assert_no_row_in(study, deployment.folder / "state")


def assert_decided(answer: dict[str, Any]) -> None:
    """Check what the answer says; on devices, client 0 alone reports with both methods."""
    assert answer["verdict"] in {"qfedavg", "no difference", "undecided"}
    assert (answer["baseline"], answer["best"]) == ("fedavg", "qfedavg")
    assert answer["methods"] == ["fedavg", "qfedavg"]
    assert answer["seeds"] == SEEDS
    plain, other = (result["runs"] for result in answer["results"])
    for run in (*plain, *other) if is_long() else (plain[0], other[0]):
        assert run["clients"] == {"0": run["score"]}
    differences = [b["score"] - a["score"] for a, b in zip(plain, other, strict=True)]
    assert answer["difference"] == pytest.approx(np.mean(differences))
    low, high = answer["interval"]
    assert low <= answer["difference"] <= high


def assert_withheld(rows: list[dict[str, Any]]) -> None:
    """Check that client 1 tells its losses alone, and others their scores, too."""
    tested = [row for row in rows if row["test_num_examples"]]
    assert {row["client"] for row in tested} >= {0, 1}
    for row in tested:
        for part in ("test", "validation"):
            assert row[f"{part}_loss"] is not None
            assert (row[f"{part}_accuracy"] is None) == (row["client"] == 1)


def assert_shared(run: Path, expected: list[tuple[int, str | None]], folder: Path) -> None:
    """Check that the card has these clients' scales, which predict as their devices do."""
    card = json.loads((run / "model_card.json").read_text())
    shared = card["inputs"]["scaling"]["clients"]
    assert [(one["id"], one["name"]) for one in shared] == expected
    model, rows = fedquorum_app.load(run), make_table(0)[COLUMNS]
    for client, _ in expected:
        data = folder / "devices" / f"node-{client}" / "rows.csv"
        there = model.predict(rows, client=client, data=data)
        assert model.predict(rows, client=client).equals(there)
    with pytest.raises(SettingsError, match="of those whose devices share their scales"):
        model.predict(rows, client=0)


def assert_no_row_in(*folders: Path) -> None:
    """Check that no row of any client is in what the server keeps, as text or as numbers."""
    inputs = []
    for client in range(CLIENTS):
        rows = make_table(client)[COLUMNS]
        inputs += [line.encode() for line in rows.to_csv(index=False, header=False).splitlines()]
        inputs += [row.tobytes() for kind in "fd" for row in rows.to_numpy().astype(kind)]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert {"study.json", "superlink.db", "model.safetensors"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not any(row in content for row in inputs), path
