"""Test trackers with the real MLflow and Weights & Biases, offline, and their failures."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fedquorum.errors import RunError, SettingsError
from fedquorum.records.callback import FinishedRound, RunObserver
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.selection import AllClients
from fedquorum.rules.weighting import DataFraction
from torch.utils.tensorboard import FileWriter

import server_app.runs.trackers
from conf import compose_settings
from server_app.runs.recording import create_run_writer
from server_app.runs.trackers import TensorBoard, Trackers
from tests.fedquorum.records.made import add, make_finished_round
from tests.integration.conftest import ROOT

if TYPE_CHECKING:  # MLflow takes a second to import, as W&B does, which every worker would do
    from mlflow import MlflowClient
    from mlflow.entities import Run

# MLflow uses an option that SQLAlchemy 2.1 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy:DeprecationWarning")

RULES = RuleSet(AllClients(), DataFraction())


def read_events(run: Path) -> Any:
    """Return a run's events as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run / "tensorboard")).Reload()


@pytest.fixture(autouse=True)
def _set_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep trackers from contacting a server, and from writing outside of the test's folder."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of MLflow's database for all tests, which the first test creates."""
    return tmp_path_factory.mktemp("mlflow") / "below" / "mlflow.db"


def create_mlflow_client(database: Path) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{database}")


def find_mlflow_runs(database: Path, experiment: str) -> "list[Run]":
    client = create_mlflow_client(database)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return list(client.search_runs([found.experiment_id]))


@pytest.mark.slow
def test_mlflow_receives_all_of_a_run(tmp_path: Path, database: Path) -> None:
    """An SQLite file has the settings as parameters, rounds as steps, and records as tags."""
    composed = compose_settings("", f"tracker=mlflow tracker.uri={database} strategy.epsilon=inf")
    with create_run_writer(tmp_path / "run", composed, RULES, engine="in-process") as records:
        add(records, 1)
        add(records, 2)
    (run,) = find_mlflow_runs(database, "fedalign/synth_low")
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "fedalign, seed 1"
    assert run.data.params["strategy.epsilon"] == "inf"
    assert run.data.params["data.num_clients"] == "20"
    assert run.data.metrics["round/theta"] == 0.8
    history = create_mlflow_client(database).get_metric_history(
        run.info.run_id, "round/global_loss"
    )
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.25), (2, 1.25)]
    assert run.data.tags["status"] == "completed"
    assert run.data.tags["directory"] == str(tmp_path / "run")
    assert run.data.tags["rounds.jsonl"] == str(tmp_path / "run" / "rounds.jsonl")
    assert "model.safetensors" not in run.data.tags  # this run wrote none


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "KILLED"), (ValueError("no"), "FAILED")]
)
def test_mlflow_knows_how_a_run_ended(
    tmp_path: Path, database: Path, error: BaseException, status: str
) -> None:
    """An interrupted run is "killed"; the experiment may have another name."""
    composed = compose_settings(
        "", f"tracker=mlflow tracker.uri={database} tracker.experiment={status}"
    )

    def fail() -> None:
        with create_run_writer(tmp_path / "run", composed, RULES, engine="in-process") as records:
            add(records, 1)
            raise error

    with pytest.raises(type(error)):
        fail()
    (run,) = find_mlflow_runs(database, status)
    assert run.info.status == status


@pytest.mark.slow
def test_wandb_writes_into_the_runs_folder(tmp_path: Path) -> None:
    """``wandb sync`` can upload its offline files later; TensorBoard's files are written, too."""
    import wandb

    composed = compose_settings("", "tracker=wandb tracker.project=mine")
    with create_run_writer(tmp_path / "run", composed, RULES, engine="in-process") as records:
        add(records, 1)
    wandb.teardown()  # as at the end of a process: all data is written
    (written,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    content = written.read_bytes()
    for text in (b"strategy.epsilon", b"round/global_loss", b"fedalign, seed 1", b"completed"):
        assert text in content
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "completed"
    events = read_events(tmp_path / "run")
    assert [event.value for event in events.Scalars("round/global_loss")] == [1.25]


def test_tensorboard_writes_once_a_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rounds are buffered, and each write has all rounds of the buffer."""
    now = 100.0
    written: list[tuple[int, float]] = []
    monkeypatch.setattr(
        FileWriter, "add_summary", lambda _, __, step, at: written.append((step, at))
    )
    monkeypatch.setattr(server_app.runs.trackers, "time", SimpleNamespace(time=lambda: now))
    board = TensorBoard()
    board.start(tmp_path)
    board.end_round(make_finished_round(0))
    assert written.pop() == (0, 100.0), "the first round is written at once"
    for server_round in range(1, 6):
        board.end_round(make_finished_round(server_round))
        now += 0.5
    assert written == [(1, 100.0), (2, 100.5), (3, 101.0), (4, 101.5)]
    board.close()
    assert written[4:] == [(5, 102.0)]


def test_tensorboard_is_part_of_the_records(tmp_path: Path) -> None:
    """All numbers of a round are on the disk before a checkpoint stores the file's length."""
    with create_run_writer(
        tmp_path / "run", compose_settings(), RULES, engine="in-process"
    ) as records:
        add(records, 1)
        position = records.flush_and_get_offsets()
        (name,) = (name for name in position if name.startswith("tensorboard/"))
        events = read_events(tmp_path / "run")
        assert [event.value for event in events.Scalars("round/global_loss")] == [1.25]
        add(records, 2)
    assert (tmp_path / "run" / name).stat().st_size > position[name]
    events = read_events(tmp_path / "run")
    found = [(event.step, event.value) for event in events.Scalars("test_priority/accuracy")]
    assert found == [(1, 0.75), (2, 0.75)]


@pytest.mark.parametrize(("name", "package"), [("mlflow", "mlflow-skinny"), ("wandb", "wandb")])
def test_a_tracker_that_is_not_installed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    """The error is one line with the command to install it; the run has no folder yet."""
    monkeypatch.setattr("server_app.runs.trackers.find_spec", lambda _: None)
    with pytest.raises(SettingsError) as refused:
        create_run_writer(
            tmp_path / "run", compose_settings("", f"tracker={name}"), RULES, engine="in-process"
        )
    assert str(refused.value) == (
        f"tracker must be tensorboard where {name} is not installed (pip install {package}), "
        f"got {name}"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_tracker_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    """The file of the database has other content."""
    (tmp_path / "mlflow.db").write_text("no database, but some text " * 100)
    composed = compose_settings("", f"tracker=mlflow tracker.uri={tmp_path / 'mlflow.db'}")
    with pytest.raises(RunError, match="tracker=mlflow cannot start: DatabaseError"):
        create_run_writer(tmp_path / "run", composed, RULES, engine="in-process")


class FailingTracker(RunObserver):
    """A tracker that stores its inputs, and fails in one round, or at the end if negative."""

    def __init__(self, failing_round: int = 0) -> None:
        self.failing_round = failing_round
        self.rounds: list[int] = []
        self.status = ""

    def end_round(self, finished: FinishedRound) -> None:
        server_round = finished.record.round
        if server_round == self.failing_round:
            raise ConnectionError("no server")
        self.rounds.append(server_round)

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        if self.failing_round < 0:
            raise ConnectionError("no server at the end")
        self.status = status


def test_a_failing_tracker_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The run and the other trackers continue, and one line reports the failure."""
    good, bad, late = (FailingTracker(failing_round) for failing_round in (0, 2, -1))
    trackers = Trackers([bad, late, good])
    for server_round in (1, 2, 3):
        trackers.end_round(make_finished_round(server_round))
    trackers.finish("completed", {})
    assert good.rounds == late.rounds == [1, 2, 3]
    assert bad.rounds == [1]
    assert (good.status, bad.status) == ("completed", "")
    warning = "fedquorum: Failing is left out from here on, the records are not affected: "
    assert capsys.readouterr().err.splitlines() == [
        f"{warning}ConnectionError: no server",
        f"{warning}ConnectionError: no server at the end",
    ]


@pytest.mark.slow
def test_trackers_are_imported_only_on_demand() -> None:
    """Modules that do not need trackers or Optuna do not import them."""
    code = (
        "import sys, server_app.cli.fedquorum, server_app.runs.loop, server_app.sweeps.sweep, "
        "hydra_plugins.fedquorum_sweeper; "
        "print({'mlflow', 'wandb', 'optuna', 'tensorboard'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
