"""Test the terms of FedALIGN's bound with short real runs on SYNTH."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from fedquorum.errors import RunError
from fedquorum.records.reader import find_runs, load_run
from safetensors.numpy import load_file, save_file

from benchmarks.bound import BoundTerms, compute_bound_terms, compute_theta_of_iterations, main
from client_app.data import load_data
from conf.compose import compose_overrides
from tests.builders_runs import read_rows, run_here
from tests.reference import sgd

OVERRIDES = (
    "rounds=6",
    "data.num_clients=6",
    "data.num_priority=2",
    "data.sizes=equal",
    "data.samples_per_client=60",
    "strategy.epsilon=2.0",
)
STRATEGIES = ("fedalign", "fedavg", "fedavg_priority")
ALONE = "fedavg"
"""The strategy in whose run the clients also train alone."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one run for each strategy."""
    folder = tmp_path_factory.mktemp("runs")
    for name in STRATEGIES:
        overrides = [o for o in OVERRIDES if name == "fedalign" or not o.startswith("strategy.")]
        alone = ("evaluation.alone_epochs=30",) if name == ALONE else ()
        run_here(folder / name, f"strategy={name}", *overrides, *alone)
    return folder


def compute_terms(folder: Path) -> dict[str, BoundTerms]:
    terms = compute_bound_terms([load_run(directory) for directory in find_runs([folder])])
    return {one.run.strategy: one for one in terms}


def compute_training_losses(run: Path) -> list[float]:
    """Return F_k of a run's last model for all clients, computed by the reference."""
    settings = compose_overrides(OVERRIDES).settings
    data = load_data(settings.data, settings.seed)
    saved = load_file(run / "model.safetensors")
    model = sgd.read([saved["linear.weight"], saved["linear.bias"]])
    clients = [data.get_client(k) for k in range(6)]
    return [sgd.measure(model, client.x_train, client.y_train)[0] for client in clients]


@pytest.mark.slow
def test_the_terms_follow_their_formulas(runs: Path) -> None:
    """w* is the model with the lowest F; Gamma, theta and rho follow from the tables."""
    terms = compute_terms(runs)
    assert terms.keys() == {"fedalign", "fedavg", "fedavg_priority"}
    final_losses = {name: compute_training_losses(runs / name) for name in terms}
    objective = {name: np.mean(losses[:2]) for name, losses in final_losses.items()}  # equal data
    best = min(objective, key=lambda name: objective[name])
    evaluations = read_rows(runs / ALONE, "evaluations")
    alone = {row["client"]: row["alone_loss"] for row in evaluations if row["round"] == 6}
    for name, one in terms.items():
        assert one.optimum.strategy == best
        rows = read_rows(runs / name)
        rho = 0.0
        for k in range(2, 6):
            gamma = max(0.0, final_losses[best][k] - alone[k])
            assert one.gamma[k] == pytest.approx(gamma, abs=1e-6)
            rho += sum(row["weight"] * gamma for row in rows if row["client"] == k)
        assert one.rho == pytest.approx(rho / 6, abs=1e-6)
        thetas = [
            json.loads(text)["theta"]
            for text in (runs / name / "rounds.jsonl").read_text().splitlines()
        ]
        assert one.theta == pytest.approx(np.mean(thetas))
    assert max(terms["fedavg"].gamma.values()) > 0


@pytest.mark.slow
def test_admitting_more_clients_lowers_theta_and_raises_rho(runs: Path) -> None:
    """FedAvg on the priority clients has theta 1 and rho 0; on all clients, theta is smallest."""
    terms = compute_terms(runs)
    assert (terms["fedavg_priority"].theta, terms["fedavg_priority"].rho) == (1.0, 0.0)
    assert terms["fedavg_priority"].admitted_rounds == {}
    assert terms["fedavg"].theta < 1
    assert terms["fedavg"].rho >= terms["fedalign"].rho > 0
    assert terms["fedavg"].admitted_rounds == dict.fromkeys(range(2, 6), 5)  # one of 6 is warm-up


@pytest.mark.slow
def test_without_clients_alone_there_are_no_terms(runs: Path) -> None:
    """The terms need the local optima."""
    loaded = [load_run(runs / name) for name in ("fedalign", "fedavg_priority")]
    assert compute_bound_terms(loaded) == ()


@pytest.mark.slow
def test_the_command_prints_the_terms(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints one table of all runs below its folders."""
    main([str(runs)])
    assert "Terms of FedALIGN's bound" in capsys.readouterr().out


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_named(runs: Path) -> None:
    """A file with another model is one line with its path."""
    path = runs / "fedavg" / "model.safetensors"
    kept = path.read_bytes()
    save_file({"other": np.zeros(2, dtype=np.float32)}, path)
    try:
        with pytest.raises(RunError, match=r"fedavg/model\.safetensors: cannot be read"):
            compute_terms(runs)
    finally:
        path.write_bytes(kept)


def test_a_changed_mapping_is_named(tmp_path: Path) -> None:
    """New runs compose to their recorded settings; changed priority weights are named."""
    overrides = ("data.priority=[0,1]", "data.priority_weights={1:0.5}")
    alone = "evaluation.alone_epochs=1"
    run_here(tmp_path / "fedalign", *overrides, alone, "rounds=2", *OVERRIDES[1:5])
    assert compute_terms(tmp_path).keys() == {"fedalign"}
    path = tmp_path / "fedalign" / "config.yaml"
    path.write_text(path.read_text().replace("    1: 0.5\n", "    0: 0.5\n"))
    with pytest.raises(RunError, match=r"data\.priority_weights was \{'0': 0\.5\}, is"):
        compute_terms(tmp_path)


@pytest.mark.slow
def test_a_setting_whose_preset_changed_is_named(runs: Path) -> None:
    """A run is refused if its preset had another value when it was recorded."""
    path = runs / "fedavg" / "config.yaml"
    kept = path.read_text()
    for name in STRATEGIES:
        other = runs / name / "config.yaml"
        other.write_text(kept.replace("noise_skew: 0.5", "noise_skew: 0.75"))
    try:
        with pytest.raises(RunError, match=r"data\.noise_skew was 0\.75, is 0\.5"):
            compute_terms(runs)
    finally:
        for name in STRATEGIES:
            (runs / name / "config.yaml").write_text(kept)


@pytest.mark.slow
def test_a_model_that_records_name_is_not_imported(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints no terms, and one line that says why."""
    ran = tmp_path / "ran"
    (tmp_path / "planted.py").write_text(f"open({str(ran)!r}, 'w')")
    folder = Path(shutil.copytree(runs, tmp_path / "runs"))
    for path in folder.glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        manifest["overrides"] += ["model=module", f"model.path={tmp_path}/planted.py:Model"]
        path.write_text(json.dumps(manifest))
    with pytest.raises(SystemExit, match=r"no run has one with evaluation\.alone_epochs"):
        main([str(folder)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("left out: ")
    assert line.endswith("the model in model.path is code, which no report imports")
    assert not ran.exists()


def test_theta_follows_its_equation() -> None:
    """Theta is the sum over iterations 1 to T - 1, divided by T + gamma - 2."""
    thetas, steps = [1.0, 0.5, 0.25], 4
    total = steps * len(thetas)
    summed = sum(thetas[i // steps] for i in range(1, total))
    assert compute_theta_of_iterations(thetas, steps) == pytest.approx(summed / (total + steps - 2))
    assert compute_theta_of_iterations([1.0] * 10, 2) == pytest.approx(19 / 20)
    assert math.isnan(compute_theta_of_iterations([1.0], 1))
