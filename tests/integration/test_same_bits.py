"""The same settings give the same bits: on any number of nodes and threads, on Ray, and resumed.

Presets at their own settings, with fewer rounds, and without ``--long`` fewer images. SGD is not
stable at the rate of synth_low: a difference in the last bit of one update would be one in the
first digits of the loss at the end.
"""

import os
import re
import signal
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
from fedquorum.records.runner import Runner

from tests.builders_runs import COUNTING, read_rows, run_here
from tests.cases import is_long
from tests.integration.conftest import Shell, assert_same_bits, get_forks

ROUNDS = 12
CNN_ROUNDS = 2
FEDALIGN = "experiment=fedalign/synth_low"
FEDAU = "experiment=fedau/fmnist"
AAGGFF = "experiment=aaggff/berka"
# Without noise: that comes from the operating system. What is clipped, and by which norm, does not.
PRIVATE = "privacy=dp_adaptive_client"
# To measure F on 60,000 images takes longer than to train.
FEWER_IMAGES = () if is_long() else ("data.num_clients=50", "data.samples_per_client=80")
LATE = "engine.late_replies=count"
CHECKPOINT_EVERY = 5
PRESETS = {
    FEDALIGN: (FEDALIGN, f"rounds={ROUNDS}", f"engine.checkpoint_every={CHECKPOINT_EVERY}"),
    FEDAU: (
        FEDAU,
        *FEWER_IMAGES,
        "model=logistic_regression",
        f"rounds={ROUNDS}",
        "evaluation.every=6",
        f"engine.checkpoint_every={CHECKPOINT_EVERY}",
    ),
    AAGGFF: (AAGGFF, f"rounds={ROUNDS}", f"engine.checkpoint_every={CHECKPOINT_EVERY}"),
    PRIVATE: (
        "experiment=custom",
        f"rounds={ROUNDS}",
        "strategy=fedau",
        "strategy.cutoff=3",
        "availability=bernoulli",
        PRIVATE,
        "privacy.noise_multiplier=0",
        f"engine.checkpoint_every={CHECKPOINT_EVERY}",
    ),
    LATE: (
        "experiment=custom",
        f"rounds={ROUNDS}",
        *COUNTING,
        "response_time.by_class=[1,1,1,1,1,4,4,4,4,4]",
        "evaluation.every=null",
        "evaluation.every_seconds=10",
        f"engine.checkpoint_every={CHECKPOINT_EVERY}",
    ),
}
FEW_IMAGES = () if is_long() else ("data.num_clients=12", "data.samples_per_client=40")
CNN = (FEDAU, f"rounds={CNN_ROUNDS}", *FEW_IMAGES, "evaluation.finetune_epochs=1")

Whole = Callable[[str], Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, berka_file: Path) -> Whole:
    """Return what makes the run of a preset in process, on one node and never stopped, once."""
    folder = tmp_path_factory.mktemp("whole")
    assert os.environ["FEDQUORUM_DATA"] == str(berka_file.parent)
    return lru_cache(lambda preset: run_here(folder / re.sub(r"\W", "-", preset), *PRESETS[preset]))


@pytest.mark.parametrize("nodes", [2, 20])
@pytest.mark.parametrize("preset", PRESETS)
def test_in_process(tmp_path: Path, whole: Whole, preset: str, nodes: int) -> None:
    """Clients share a node, and so products and sums, with others in each of the runs."""
    again = run_here(tmp_path / "run", *PRESETS[preset], f"engine.num_supernodes={nodes}")
    assert_same_bits(again, whole(preset), ROUNDS)


def run_until_killed(directory: Path, words: tuple[str, ...], in_round: int, data: str) -> None:
    """Run until a round, in which the process is killed.

    The server that forks it began with the environment of some other test.
    """
    os.environ["FEDQUORUM_DATA"] = data
    play = Runner.run_round

    def until(runner: Runner, server_round: int) -> None:
        if server_round == in_round:
            os.kill(os.getpid(), signal.SIGKILL)
        play(runner, server_round)

    Runner.run_round = until  # type: ignore[method-assign, assignment]
    run_here(directory, *words)


@pytest.mark.parametrize("preset", PRESETS)
def test_killed_and_resumed(tmp_path: Path, whole: Whole, preset: str) -> None:
    """By the checkpoint before, in another process."""
    stopped, words = tmp_path / "stopped", PRESETS[preset]
    process = get_forks().Process(
        target=run_until_killed, args=(stopped, words, 9, os.environ["FEDQUORUM_DATA"])
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    run_here(stopped, *words, f"resume={stopped}")
    assert_same_bits(stopped, whole(preset), ROUNDS)


def test_updates_are_under_way_at_a_checkpoint(whole: Whole) -> None:
    """The run that is killed resumes from one, and updates of earlier rounds count after it."""
    rows = [row for row in read_rows(whole(LATE)) if row["staleness"]]
    assert any(row["start_round"] <= CHECKPOINT_EVERY < row["round"] for row in rows)


@pytest.fixture(scope="module")
def cnn_run(tmp_path_factory: pytest.TempPathFactory, real_data: Path) -> Path:
    """Return the run of the small CNN in one thread, on one node."""
    return run_with_threads(tmp_path_factory.mktemp("cnn"), 1, 1)


def run_with_threads(folder: Path, threads: int, nodes: int) -> Path:
    """Run the small CNN in a separate process with this many torch threads."""
    shell = Shell(folder, {"OMP_NUM_THREADS": str(threads)})
    words = (*CNN, f"engine.num_supernodes={nodes}", "hydra.run.dir=run")
    done = shell("fedquorum", *words)
    assert done.status == 0, done.stderr
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "nodes"), [(1, 2), (2, 1), (2, 2)] if is_long() else [(2, 2)])
def test_convolutions(tmp_path: Path, cnn_run: Path, threads: int, nodes: int) -> None:
    """The preset's network, whose clients train each alone, divided among the threads."""
    assert_same_bits(run_with_threads(tmp_path, threads, nodes), cnn_run, CNN_ROUNDS)


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.skipif(not is_long(), reason="only with --long")
@pytest.mark.parametrize(
    ("preset", "nodes"),
    # test_bundle.py has synth_low on 2 nodes, Flower's default, test_python_engines.py berka with
    # a client a node, and below is fmnist with its network.
    [(FEDALIGN, 20), (FEDAU, 2), (FEDAU, 20), (AAGGFF, 2), (AAGGFF, 7), (PRIVATE, 2)],
)
def test_on_ray(flower: Shell, whole: Whole, preset: str, nodes: int) -> None:
    """Flower's simulation, in other processes: as in this one."""
    name = f"{preset.rpartition('=')[2].rpartition('/')[2]}-{nodes}"
    words = (*PRESETS[preset], f"engine.num_supernodes={nodes}", f"hydra.run.dir={name}")
    done = flower("fedquorum", "engine=flower", *words)
    assert done.status == 0, done.stdout + done.stderr
    assert_same_bits(flower.cwd / name, whole(preset), ROUNDS)


@pytest.mark.slow
@pytest.mark.flower
def test_convolutions_on_ray(flower: Shell, cnn_run: Path) -> None:
    """The preset's network on two nodes."""
    words = ("engine=flower", *CNN, "engine.num_supernodes=2", "hydra.run.dir=cnn")
    done = flower("fedquorum", *words)
    assert done.status == 0, done.stdout + done.stderr
    assert_same_bits(flower.cwd / "cnn", cnn_run, CNN_ROUNDS)
