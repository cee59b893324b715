"""Tests of the benchmark of engines without real runs: order, paired ratios, memory, peers."""

import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from benchmarks import engines
from benchmarks.bare_arithmetic import BareCNN, BareJob, build_round_work, measure_rounds
from benchmarks.engines import Competitor, RunTiming, Workload, compute_ratios, measure_competitors
from benchmarks.pairing import compute_paired_ratio, plan_repetitions
from benchmarks.peers.install import PEERS, get_python
from client_app.training.local_sgd import LocalSGDConfig

ROOT = Path(__file__).resolve().parents[2]
CNN = BareJob((3, 8, 12), 4, 5, 3.0, (7, 6), "threads", 3)


@pytest.mark.parametrize("variants", [False, True])
def test_variants_are_optional(variants: bool, tmp_path: Path) -> None:
    """FedProx, momentum and weight decay run only with ``variants``."""
    options = Namespace(
        workload="synth", device="cpu", baseline=None, peers=False, variants=variants
    )
    names = {competitor.name for competitor in engines.build_competitors(options, tmp_path)}
    optional = {"in_process_fedprox", "in_process_local_momentum", "in_process_weight_decay"}
    assert names & optional == (optional if variants else set())
    always = {"stock_flower", "flower_ray_2_nodes", "ray_2_workers", "bare_arithmetic"}
    always |= {f"in_process_{batching}" for batching in ("auto", "batched", "sequential")}
    assert names == always | (optional if variants else set())


def test_repetitions_alternate_direction() -> None:
    """Every competitor runs once in each repetition, and none always follows another."""
    assert plan_repetitions(["a", "b", "c"], 3) == [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["a", "b", "c"],
    ]


def test_a_machine_that_slows_down_does_not_change_a_paired_ratio() -> None:
    """The drift cancels within a pair; the interval contains the true ratio and excludes 1."""
    rng = np.random.default_rng(1)
    drift = np.linspace(1.0, 2.0, 12)
    reference = 100 * drift * rng.lognormal(0.0, 0.02, 12)
    times = 80 * drift * rng.lognormal(0.0, 0.02, 12)
    ratio = compute_paired_ratio("new", "old", times.tolist(), reference.tolist())
    assert ratio.low < 0.8 < ratio.high < 0.85
    assert ratio.low <= ratio.median <= ratio.high
    assert (ratio.name, ratio.reference, ratio.pairs) == ("new", "old", 12)
    assert ratio == compute_paired_ratio("new", "old", times.tolist(), reference.tolist())


def test_more_noise_makes_the_interval_wider() -> None:
    """Ten times the noise gives more than three times the width."""

    def compute_width(noise: float) -> float:
        rng = np.random.default_rng(2)
        times = rng.lognormal(0.0, noise, 10).tolist()
        ratio = compute_paired_ratio("a", "b", times, [1.0] * 10)
        return ratio.high - ratio.low

    assert compute_width(0.3) > 3 * compute_width(0.03) > 0


def test_unpaired_times_are_rejected() -> None:
    """A missing run would pair times of different machine states."""
    with pytest.raises(ValueError, match=r"times must come in pairs.*got 2 of a and 1 of b"):
        compute_paired_ratio("a", "b", [1.0, 2.0], [1.0])


class FakeRun:
    """A run that logs its name, its rounds, and whether its memory is watched."""

    def __init__(self, name: str, speed: float, log: list[tuple[str, int, bool]]) -> None:
        self.name, self.speed, self.log = name, speed, log

    def __call__(self, rounds: int) -> RunTiming:
        self.log.append((self.name, rounds, engines.MARK_VARIABLE in os.environ))
        return RunTiming(self.speed, 1.5)


def test_memory_is_measured_in_a_separate_run() -> None:
    """All timed runs come first, in pairs and unwatched; only some competitors have memory."""
    log: list[tuple[str, int, bool]] = []
    a = Competitor("a", FakeRun("a", 10.0, log))
    b = Competitor("b", FakeRun("b", 20.0, log), measures_memory=False)
    results = measure_competitors([a, b], 14, 2)
    timed = [("a", 14, False), ("b", 14, False), ("b", 14, False), ("a", 14, False)]
    assert log == [*timed, ("a", engines.NUM_MEMORY_ROUNDS, True)]
    assert engines.MARK_VARIABLE not in os.environ
    assert [result.ms_a_round for result in results] == [[100.0, 100.0], [50.0, 50.0]]
    assert results[0].peak_memory_mb is not None
    assert results[1].peak_memory_mb is None
    assert (results[0].rounds_per_second, results[0].start_seconds) == (10.0, 1.5)
    log.clear()
    measure_competitors([a], 14, 0, memory=False)
    assert log == [("a", 14, False)]


@pytest.mark.slow
def test_the_watcher_measures_child_processes() -> None:
    """The peak includes the 200 MB of a child that holds them for over a second."""
    code = "import time; held = bytearray(b'1') * 200_000_000; time.sleep(1.5)"
    with engines._watch_memory() as peak:
        subprocess.run([sys.executable, "-c", code], check=True)
    assert 190 < peak() < 400


def test_ratios_compare_with_reference_and_baseline() -> None:
    """A baseline is compared only with its competitor."""
    log: list[tuple[str, int, bool]] = []
    speeds = {"in_process_auto": 10.0, "before_in_process_auto": 5.0, "pfl": 2.0}
    results = measure_competitors(
        [Competitor(name, FakeRun(name, speed, log)) for name, speed in speeds.items()],
        14,
        3,
        memory=False,
    )
    ratios = {(r.name, r.reference): r.median for r in compute_ratios(results, None, 3)}
    assert ratios == {
        ("pfl", "in_process_auto"): pytest.approx(5.0),
        ("in_process_auto", "before_in_process_auto"): pytest.approx(0.5),
    }
    assert compute_ratios(results, None, 0) == []
    with pytest.raises(SystemExit, match=r"--reference must be one of in_process_auto, .* got no"):
        compute_ratios(results, "no", 3)


def test_missing_peers_are_named_with_the_command(tmp_path: Path) -> None:
    """The error has one command, which installs only the missing peers."""
    installed = get_python(tmp_path, "pfl")
    installed.parent.mkdir(parents=True)
    installed.touch()
    with pytest.raises(SystemExit) as error:
        engines.check_peers(tmp_path, list(PEERS))
    others = " ".join(peer for peer in PEERS if peer != "pfl")
    assert str(error.value) == (
        f"no {others} in {tmp_path}; "
        f"install with: python -m benchmarks.peers.install {tmp_path} {others}"
    )


@pytest.mark.parametrize(
    ("only", "peers"),
    [
        (None, list(PEERS)),
        (["in_process_auto"], []),
        (["in_process_auto", "pfl_channels_last_2_processes"], ["pfl"]),
        (["fluke", "pfl", "bare_arithmetic"], ["pfl", "fluke"]),
    ],
)
def test_only_the_named_peers_must_be_installed(only: list[str] | None, peers: list[str]) -> None:
    """--only with --peers asks for the environments of the peers that it names."""
    assert engines.select_peers(only) == peers


def test_the_machine_has_its_instruction_set() -> None:
    """Times on processors with other vector instructions are not comparable."""
    found = engines.describe_machine()["instruction_set"]
    assert found.removesuffix(" and AMX") == torch.backends.cpu.get_cpu_capability()


def test_every_peer_has_a_runner() -> None:
    """Every peer of the installer has a runner script."""
    assert all((ROOT / "benchmarks" / "peers" / f"{peer}_runner.py").exists() for peer in PEERS)


def test_a_different_number_of_local_steps_stops_the_benchmark() -> None:
    """A peer that trains fewer steps would seem faster."""
    engines.check_steps("pfl", 300, 300.0)
    with pytest.raises(SystemExit, match=r"pfl made 299 local steps where .* makes 300"):
        engines.check_steps("pfl", 299, 300.0)


@pytest.mark.parametrize("name", list(engines.WORKLOADS))
def test_workload_steps_equal_local_training(name: str) -> None:
    """Peers must train as many steps as this project's clients."""
    work: Workload = engines.WORKLOADS[name]
    config = LocalSGDConfig(
        lr=work.lr,
        batch_size=work.batch_size,
        local_epochs=work.local_epochs,
        local_steps=work.local_steps,
    )
    for size in set(work.sizes):
        assert work.count_steps(size) == config.count_steps(size, batch_norm=False)
    if len(set(work.sizes)) == 1:
        assert work.steps == work.clients_per_round * work.count_steps(work.sizes[0])


def test_manual_gradients_equal_autograd() -> None:
    """The bare arithmetic of the CNN computes the gradients of the mean cross entropy."""
    torch.manual_seed(0)
    net = BareCNN(CNN)
    tensors = [net.filters, net.filter_biases, net.weights, net.biases]
    for group in tensors:
        for i, tensor in enumerate(group):
            group[i] = (torch.randn_like(tensor) / 3).requires_grad_()
    x = net.images
    for weight, bias in zip(net.filters, net.filter_biases, strict=True):
        x = functional.max_pool2d(functional.conv2d(x, weight, bias, padding=1).relu(), 2)
    x = x.permute(0, 2, 3, 1).flatten(1)
    for weight, bias in zip(net.weights[:-1], net.biases[:-1], strict=True):
        x = (x @ weight + bias).relu()
    loss = functional.cross_entropy(x @ net.weights[-1] + net.biases[-1], net.labels)
    order_of_gradients = [
        *(t for pair in zip(net.filters, net.filter_biases, strict=True) for t in pair),
        *(t for pair in zip(net.weights, net.biases, strict=True) for t in pair),
    ]
    expected = torch.autograd.grad(loss, order_of_gradients)
    with torch.no_grad():
        computed = net.compute_gradients()
    for ours, theirs in zip(computed, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hidden", [None, (7, 6)])
def test_workers_share_all_steps(hidden: tuple[int, ...] | None) -> None:
    """The workers' steps sum to those of all clients."""
    job = replace(CNN, hidden=hidden, clients=5)
    work = build_round_work(job, 2)
    repeats = [task.args[1] for task in work]  # type: ignore[attr-defined]
    assert sum(repeats) == (15 if hidden is not None else 2 * 3)
    if hidden is None:
        assert len(build_round_work(replace(job, clients=1), 2)) == 1


@pytest.mark.parametrize("hidden", [None, (7, 6)])
def test_bare_arithmetic_times_every_round(hidden: tuple[int, ...] | None) -> None:
    """The mode ``shared`` leaves this process's thread settings unchanged."""
    times = measure_rounds(replace(CNN, hidden=hidden, mode="shared"))
    assert len(times) == CNN.rounds
    assert all(time > 0 for time in times)
