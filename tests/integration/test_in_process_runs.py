"""Whole runs in this process: the same code as ``fedquorum``, without its start-up."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fedquorum.audit.check import audit_run
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input
from safetensors.numpy import load_file

from client_app.data import load_data
from conf import SettingsError
from conf.compose import compose_settings, options
from server_app.api.result import RunResult
from tests.builders_runs import read_rounds, read_rows
from tests.builders_runs import run_here as run
from tests.cases import is_long
from tests.integration.conftest import ROOT, assert_same_bits
from tests.reference import fedau
from tests.reference.fedalign import find_mismatches
from tests.reference.idx import write_idx

SHORT = ("rounds=20", "strategy.warmup_fraction=0.2", "client.local_epochs=1")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("strategy.epsilon_schedule=step", "strategy.epsilon_step_fraction=0.6"),
        ("strategy.epsilon_schedule=linear", "strategy.epsilon=1.0"),
        ("strategy.epsilon_schedule=cosine", "strategy.epsilon=1.0"),
        ("strategy.epsilon_schedule=exponential", "strategy.epsilon=1.0"),
        ("strategy.epsilon_schedule=sqrt", "strategy.warmup_rounds=2"),
        ("strategy.criterion=accuracy", "strategy.epsilon=0.05"),
        ("strategy.fraction=0.5",),
        ("strategy.fraction=0.5", "strategy.objective_clients=sampled"),
        ("strategy.objective_client=7", "strategy.epsilon=1.0"),
        ("strategy.priority_samples=6", "strategy.fraction=0.7"),
        ("data.priority_weights={10: 0.5, 11: 0.25, 3: 0.1}",),
        ("data.noise=flip", "data.noise_skew=5.0", "strategy.epsilon=0.1"),
        ("strategy.epsilon=inf", "strategy.warmup_fraction=0.0"),
    ],
)
def test_every_decision_recomputes_from_the_records(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    """Admissions, weights, theta, thresholds and counts follow from the records alone."""
    found = find_mismatches(run(tmp_path / "run", *SHORT, *overrides))
    assert found.problems == []
    assert found.weights >= 20 * 5
    assert found.gates > 0


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    """The script in docs/records.md recomputes a run, and fails on a run that was changed."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/records.md").read_text(), re.DOTALL)
    directory = run(tmp_path / "run", *SHORT)

    def can_recompute() -> bool:
        done = subprocess.run(
            [sys.executable, "-c", code, str(directory)], capture_output=True, check=False
        )
        return done.returncode == 0

    assert can_recompute()
    path = directory / "rounds.jsonl"
    path.write_text(path.read_text().replace('"theta": 0.8', '"theta": 0.7'))
    assert not can_recompute()


def test_the_recomputation_notices_a_changed_record(tmp_path: Path) -> None:
    """The reference is no rubber stamp."""
    directory = run(tmp_path / "run", *SHORT)
    path = directory / "rounds.jsonl"
    lines = path.read_text().splitlines()
    changed = json.loads(lines[10])
    changed["global_loss"] -= 0.5
    lines[10] = json.dumps(changed)
    path.write_text("\n".join(lines) + "\n")
    assert any("round 11" in problem for problem in find_mismatches(directory).problems)


def test_the_seed_decides(tmp_path: Path) -> None:
    """The same seed gives the same run; another seed another."""
    first, again, other = (
        read_rounds(run(tmp_path / str(i), "rounds=3", f"seed={seed}"))
        for i, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert first != other


def test_fashion_mnist(tmp_path: Path, real_data: Path) -> None:
    """Real images: trains, admits by accuracy, and every decision recomputes."""
    directory = run(
        tmp_path / "run", "experiment=fedalign/fmnist", f"data.root={real_data}", "rounds=12"
    )
    found = find_mismatches(directory)
    assert found.problems == []
    assert found.gates > 0
    rounds = read_rounds(directory)
    assert rounds[-1]["global_loss"] < rounds[0]["global_loss"]
    assert rounds[-1]["test"]["priority"]["accuracy"] > 0.5
    assert [r["epsilon"] for r in rounds] == [0, 0] + [0.2] * 4 + [0.0] * 6


FEDALIGN = [n for n in options("experiment") if n == "custom" or n.startswith("fedalign/")]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", FEDALIGN)
def test_every_fedalign_preset_runs_two_rounds(
    tmp_path: Path, experiment: str, real_data: Path, real_file: Callable[[str], Path]
) -> None:
    """One round of warm-up and one with the gate, at one local epoch, for every preset.

    CIFAR-10 is its real subset here, EMNIST noise in the official format, and its stand-in MNIST.
    """
    words = [f"experiment={experiment}", "rounds=2", "strategy.warmup_rounds=1"]
    words.append("client.local_epochs=1")
    data = compose_settings(experiment).settings.data.name
    if data == "fmnist":
        words.append(f"data.root={real_data}")
    elif data == "emnist":
        write_emnist(tmp_path, rows_per_class=(62, 31))
        words += [f"data.root={tmp_path}", "data.shard_size=2"]
    elif data == "npz":
        words.append(f"data.path={real_file('mnist_by_writer.npz')}")
        words += [] if is_long() else ["data.samples_per_shard=10"]
    elif data == "cifar10":
        words += ["data=npz", f"data.path={real_file('cifar10_15k3k.npz')}"]
        few = ["data.num_clients=6", "data.num_priority=2", "data.shard_size=20"]
        words += ["data.shard_size=125"] if is_long() else few
    directory = run(tmp_path / "run", *words)
    found = find_mismatches(directory)
    assert found.problems == []
    assert found.weights > 0
    first, second = read_rounds(directory)
    assert first["trained"] == first["selected"]
    assert second["failed"] == 0


@pytest.mark.parametrize("availability", ["bernoulli", "markov", "cyclic"])
def test_fedau_runs_under_every_process(tmp_path: Path, availability: str, real_data: Path) -> None:
    """250 clients on Fashion-MNIST: omega, weights and counts follow from the availability."""
    directory = run(
        tmp_path / "run",
        "experiment=fedau/fmnist",
        f"data.root={real_data}",
        "model=logistic_regression",
        f"availability={availability}",
        "strategy.cutoff=4",
        "rounds=12",
        "evaluation.every=6",
    )
    rounds = read_rounds(directory)
    table = read_rows(directory)
    compared = 0
    for client in range(250):
        rows = [row for row in table if row["client"] == client]
        history = [row["status"] == "trained" for row in rows]
        assert len(history) == 12
        expected = fedau.compute_omegas(history, 4)
        for row, omega in zip(rows, expected, strict=False):
            assert row["participation_correction"] == pytest.approx(float(omega), rel=1e-12)
            weight = float(omega) / 250 if row["status"] == "trained" else 0.0
            assert row["weight"] == pytest.approx(weight, rel=1e-12)
            compared += row["participation_correction"] > 1
    assert compared > 1000
    assert all(0 < r["trained"] < 60 and r["unavailable"] == 250 - r["trained"] for r in rounds)
    assert [r["test"] is not None for r in rounds] == [False] * 5 + [True] + [False] * 5 + [True]
    assert [r["global_loss"] is not None for r in rounds] == [False] * 6 + [True] + [False] * 5
    assert all(r["weight_error"] > 0 for r in rounds)
    assert {r["state_bytes"] for r in rounds} == {250 * 4 * 8}


@pytest.mark.parametrize("name", ["fmnist", "cifar10"])
def test_fedau_trains_its_network_on_real_images(
    tmp_path: Path, name: str, real_data: Path, cifar10_subset: Path
) -> None:
    """Two rounds with the preset's network: 40 images a client, or CIFAR-10's subset."""
    words = [f"data.root={real_data}", "data.samples_per_client=40"]
    if name == "cifar10":
        words = ["data=npz", f"data.path={cifar10_subset}"]
    directory = run(
        tmp_path / "run", f"experiment=fedau/{name}", *words, "rounds=2", "evaluation.every=2"
    )
    rounds = read_rounds(directory)
    assert all(r["trained"] > 5 and r["failed"] == 0 for r in rounds)
    assert rounds[1]["test"]["all"]["accuracy"] > 0


CHOOSING = (
    "strategy=composed",
    "strategy/selection=power_of_choice",
    "strategy/weighting=average_participating",
    "strategy.fraction=0.25",
)


@pytest.mark.parametrize(
    "words",
    [
        ("strategy=fedgp",),
        (*CHOOSING, "data.priority=all", "evaluation.every=4"),
        (*CHOOSING, "strategy.selection.loss_source=reported"),
    ],
)
def test_priority_and_choice_have_the_same_bits_on_one_node_and_on_four(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Projections, evaluated losses and reported losses do not depend on the nodes."""
    one, four = (
        run(tmp_path / n, *words, "client.local_epochs=1", "rounds=4", f"engine.num_supernodes={n}")
        for n in ("1", "4")
    )
    assert_same_bits(one, four, 4)
    assert [str(problem) for problem in audit_run(four).mismatches] == []
    weights = pq.read_table(one / "clients")["weight"].to_pylist()
    if "strategy=fedgp" in words:
        assert 0 < sum(weight > 0 for weight in weights) <= 4 * 20
    else:
        asked = 5 if "data.priority=all" in words else 2 + 2
        assert weights == [1 / asked] * asked * 4


def test_participation_baselines_run_on_the_same_clients(tmp_path: Path) -> None:
    """All methods see the same clients come and go, and differ in weights and state."""
    words = ("availability=bernoulli", "availability.p=0.4", "rounds=5", "client.local_steps=3")
    runs = {
        name: run(tmp_path / name, f"strategy={name}", *words)
        for name in (
            "fedau",
            "empirical",
            "average_participating",
            "average_all",
            "known_statistics",
            "fedvarp",
            "mifa",
        )
    }
    there = set()
    for name, directory in runs.items():
        table = read_rows(directory)
        there.add(tuple(row["status"] for row in table))
        present = [row for row in table if row["status"] == "trained"]
        weights = {"average_all": 1 / 20, "mifa": 1 / 20, "known_statistics": 1 / 20 / 0.4}
        if name in weights:
            assert [row["weight"] for row in present] == pytest.approx(
                [weights[name]] * len(present)
            )
        if name in ("average_participating", "fedvarp"):
            counts = [r["trained"] for r in read_rounds(directory)]
            assert [row["weight"] for row in present] == pytest.approx(
                [1 / counts[row["round"] - 1] for row in present]
            )
    assert len(there) == 1
    model = 10 * 60 + 10
    state = {name: read_rounds(directory)[-1]["state_bytes"] for name, directory in runs.items()}
    assert state == {
        "fedau": 20 * 4 * 8,
        "empirical": 20 * 3 * 8,
        "average_participating": 0,
        "average_all": 0,
        "known_statistics": 0,
        "fedvarp": 20 * model * 4 + model * 8,
        "mifa": 20 * model * 4 + model * 8,
    }


def test_a_trace_decides_which_clients_are_available(tmp_path: Path) -> None:
    """Clients train in the rounds that the file lists, and the file must be there."""
    trace = tmp_path / "trace.csv"
    lines = [f"{t},{k},{int((t + k) % 3 == 0)}" for t in range(1, 5) for k in range(20)]
    trace.write_text("round,client,available\n" + "\n".join(lines) + "\n")
    words = ("strategy=fedau", "availability=trace", "rounds=4")
    directory = run(tmp_path / "run", *words, f"availability.path={trace}")
    table = read_rows(directory)
    assert all(
        (row["status"] == "trained") == ((row["round"] + row["client"]) % 3 == 0) for row in table
    )
    assert [r["weight_error"] for r in read_rounds(directory)] == [None] * 4
    with pytest.raises(SettingsError, match=r"strategy\.probabilities must be a list of p_n"):
        run(
            tmp_path / "known",
            "strategy=known_statistics",
            *words[1:],
            f"availability.path={trace}",
        )


FAIR = ("data.priority=all", "data.sizes=equal", "client.local_epochs=1", "rounds=8")


@pytest.mark.parametrize(
    "words",
    [
        ("strategy=aaggff_s",),
        ("strategy=aaggff_d", "strategy.fraction=0.25", "strategy.baseline_response=running"),
        ("strategy=qfedavg",),
        ("strategy=qfedavg", "strategy.lipschitz=10"),
        ("strategy=term",),
        ("strategy=propfair",),
        ("strategy=afl",),
        ("strategy=fedmgda", "strategy.max_deviation=0.1"),
    ],
)
def test_fair_strategies(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Losses come first, then weights on the simplex; one node and four give the same run."""
    one, four = (
        run(tmp_path / nodes, *words, *FAIR, f"engine.num_supernodes={nodes}")
        for nodes in ("1", "4")
    )
    assert_same_bits(one, four, 8)
    table = read_rows(one)
    asked = 5 if "strategy.fraction=0.25" in words else 20
    assert len(table) == 8 * asked
    assert all(row["loss"] > 0 and row["status"] == "trained" for row in table)
    for number in range(1, 9):
        rows = [row for row in table if row["round"] == number]
        weights = [row["weight"] for row in rows]
        assert min(weights) >= 0
        if "strategy=fedmgda" not in words and "strategy.lipschitz=10" not in words:
            assert sum(weights) == pytest.approx(1)
            reported = sum(row["mixing_coefficient"] for row in rows)
            assert weights == pytest.approx([row["mixing_coefficient"] / reported for row in rows])
    manifest = json.loads((one / "manifest.json").read_text())
    if words[0].startswith("strategy=aaggff"):
        summary = manifest["summary"]["mixing"]
        assert summary["decisions"] == 8
        losses = [r["decision_loss"] for r in read_rounds(one)]
        assert summary["decision_loss_sum"] == pytest.approx(sum(losses))
        assert -1e-9 <= summary["regret"] <= summary["regret_bound"]
        # The server knows all amounts of data once it has asked everyone.
        assert all(r["kl_to_data"] >= 0 for r in read_rounds(one)[1:])
    else:
        assert manifest["summary"]["mixing"] is None


def fewer_rows(path: Path, fewer: Path) -> Path:
    """Write a file of clients' data with every fourth training row, and return the new file."""
    with np.load(path) as arrays:
        step = {name: 4 if name.endswith("_train") else 1 for name in arrays}
        np.savez(fewer, **{name: arrays[name][:: step[name]] for name in arrays})
    return fewer


FILES = {
    "berka": "berka_loans.csv",
    "heart": "heart_uci.csv",
    "spoken_digits": "spoken_digits_by_speaker.npz",
    "mnist_writers": "mnist_by_writer.npz",
    "shakespeare": "tinyshakespeare_by_role.csv.gz",
    "mqp": "mqp.csv",
}


@pytest.mark.parametrize(
    ("experiment", "words", "clients"),
    [
        ("berka", (), 7),
        ("heart", (), 4),
        ("spoken_digits", (), 6),
        ("mnist_writers", ("model=logistic_regression",), 5),
        ("shakespeare", ("model.hidden=16", "model.embedding=8", "model.layers=1"), 5),
        ("mqp", ("data.length=40",), 11),
    ],
)
def test_every_aaggff_preset_runs_two_rounds(
    tmp_path: Path,
    experiment: str,
    words: tuple[str, ...],
    clients: int,
    real_file: Callable[[str], Path],
) -> None:
    """Real data with its own clients: all train, and the mixing coefficients leave uniform."""
    path = real_file(FILES[experiment])
    assert os.environ["FEDQUORUM_DATA"] == str(path.parent)
    if experiment == "spoken_digits" and not is_long():
        path = fewer_rows(path, tmp_path / "fewer.npz")
        words = (f"data.path={path}", "client.batch_size=5", "model.channels=8")
    directory = run(tmp_path / "run", f"experiment=aaggff/{experiment}", "rounds=2", *words)
    table = read_rows(directory)
    assert len(table) == 2 * clients
    assert {row["status"] for row in table} == {"trained"}
    assert len({row["mixing_coefficient"] for row in table}) > 2
    test = read_rounds(directory)[-1]["test"]["all"]
    assert 0 <= test["worst"] <= test["average"] <= test["best"] <= 1
    assert ("auroc" in test) == (experiment in ("berka", "heart", "mqp"))


@pytest.mark.slow
def test_the_auroc_of_a_certain_model_is_that_of_its_logits(
    tmp_path: Path, real_data: Path
) -> None:
    """Hospitals whose model has logits around 30, which float32 takes for certainties."""
    strategy = ("strategy=fedavg", "rounds=40", "evaluation.every=40", "evaluation.metric=auroc")
    model = ("model=mlp", "client.local_epochs=20", "client.lr=0.3")
    words = (f"data.path={real_data / 'heart_uci.csv'}", *strategy, *model)
    directory = run(tmp_path / "run", "experiment=aaggff/heart", *words)
    result = RunResult.read(directory)
    data = load_data(
        compose_settings("aaggff/heart", " ".join(words)).settings.data, result.records.seed
    )
    last = result.evaluations.query("round == 40").set_index("client")["test_metric"]
    largest = 0.0
    for client in range(data.num_clients):
        part = data.get_client(client)
        with torch.no_grad():
            z = result.load_model()(torch.tensor(part.x_test)).double().numpy()
        score = z[:, 0] if z.shape[1] == 1 else z[:, 1] - z[:, 0]
        ahead = score[part.y_test == 1][:, None] - score[part.y_test == 0]
        assert last[client] == pytest.approx(((ahead > 0) + 0.5 * (ahead == 0)).mean(), abs=1e-9)
        largest = max(largest, float(np.abs(score).max()))
    assert largest > 20


@pytest.mark.parametrize("metric", ["top5", "f1"])
def test_other_metrics_and_class_weights(tmp_path: Path, metric: str) -> None:
    """The metric is in the records under its name, balanced classes or not, and its spread too."""
    words = (f"evaluation.metric={metric}", "client.class_weights=balanced", "rounds=2")
    directory = run(tmp_path / "run", *words)
    test = read_rounds(directory)[-1]["test"]["all"]
    table = read_rows(directory, "evaluations")
    values = [row["test_metric"] for row in table if row["round"] == 2]
    assert len(values) == 20
    assert test["average"] == pytest.approx(sum(values) / len(values))
    assert (test["worst"], test["best"]) == (min(values), max(values))
    assert min(values) <= test[metric] <= max(values)
    assert test["left_out"] == 0


def test_one_number_is_no_list_of_probabilities(tmp_path: Path) -> None:
    """The known statistics are one for each client; a typo is one line."""
    with pytest.raises(SettingsError, match=r"strategy\.probabilities must be .*, got 0\.5$"):
        run(tmp_path / "run", "strategy=known_statistics", "strategy.probabilities=0.5", "rounds=1")


FOLLOWED = (
    "experiment=aaggff/berka",
    "client.lr_decay=0.5",
    "client.lr_decay_every=1",
    "client.batch_size=100",
)


@pytest.mark.usefixtures("berka_file")
def test_the_servers_rate_follows_the_clients(tmp_path: Path) -> None:
    """Halved on the clients, the second step is twice as long; a resumed run has the same bits."""
    constant = "server_optimizer.lr_schedule=constant"
    first = run(tmp_path / "first", *FOLLOWED, "rounds=1")
    plain = run(tmp_path / "plain", *FOLLOWED, constant, "rounds=2")
    whole = run(tmp_path / "whole", *FOLLOWED, "rounds=2")
    models = [load_file(folder / "model.safetensors") for folder in (first, plain, whole)]
    for name, after_one in models[0].items():
        step = models[1][name].astype(np.float64) - after_one
        doubled = models[2][name].astype(np.float64) - after_one
        assert np.abs(step).max() > 0
        np.testing.assert_allclose(doubled, 2 * step, atol=1e-6)
    parts = tmp_path / "parts"
    run(parts, *FOLLOWED, "rounds=2", "engine.stop_after_round=1")
    run(parts, *FOLLOWED, "rounds=2", f"resume={parts}")
    assert_same_bits(parts, whole, rounds=2)
    assert audit_run(parts).mismatches == ()
    (line,) = [
        x for x in describe_decision(read_audit_input(parts), 0, 2) if x.startswith("server's")
    ]
    assert line == "server's learning rate: server_lr lr_0 / lr_t = 1 x 2 = 2"


def test_the_newton_step_refuses_samples(tmp_path: Path) -> None:
    """AAggFF-S needs every client's response: a fraction is one line with the reason."""
    with pytest.raises(SettingsError, match=r"strategy\.fraction must be 1 for AAggFF-S") as caught:
        run(tmp_path / "run", "strategy=aaggff_s", "strategy.fraction=0.5", *FAIR)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def write_emnist(root: Path, rows_per_class: tuple[int, int]) -> None:
    """Write EMNIST Balanced's four files with noise for images."""
    folder = root / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    for part, rows in zip(("train", "test"), rows_per_class, strict=True):
        labels = np.repeat(np.arange(47, dtype=np.uint8), rows)
        images = np.random.default_rng(rows).integers(256, size=(len(labels), 28, 28))
        write_idx(folder / f"emnist-balanced-{part}-images-idx3-ubyte", images.astype(np.uint8))
        write_idx(folder / f"emnist-balanced-{part}-labels-idx1-ubyte", labels)


def test_only_priority_clients_are_evaluated_on_request(tmp_path: Path) -> None:
    """evaluation.clients=priority: non-priority clients report nothing; every n: nulls between."""
    directory = run(
        tmp_path / "run", "rounds=5", "evaluation.clients=priority", "evaluation.every=2"
    )
    tests = [record["test"] for record in read_rounds(directory)]
    assert [test is None for test in tests] == [True, False, True, False, False]
    assert all(test["all"] is None and test["priority"] for test in tests if test)


def test_priority_clients_are_sampled_with_replacement(tmp_path: Path) -> None:
    """Weights count draws out of |S|, over 1 + A; F(w_t) is of the sampled clients if set."""
    words = ("strategy.priority_samples=6", "strategy.objective_clients=sampled")
    directory = run(tmp_path / "run", *SHORT, *words)
    table = read_rows(directory)
    for record in read_rounds(directory):
        here = [row for row in table if row["round"] == record["round"] and row["priority"]]
        draws = [row["weight"] * 6 / record["theta"] for row in here]
        assert draws == pytest.approx([row["num_draws"] for row in here], abs=1e-9)
        assert sum(row["num_draws"] for row in here) == 6
        data = sum(row["num_examples"] for row in here)
        loss = sum(row["num_examples"] / data * row["loss"] for row in here)
        assert record["global_loss"] == pytest.approx(loss, rel=1e-6)
