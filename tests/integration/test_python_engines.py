"""The Python API on the other engines, in processes of their own, as a script uses it."""

import tempfile
from pathlib import Path

import pytest

from tests.builders_runs import COUNTING, run_here
from tests.cases import is_long
from tests.integration.conftest import Outcome, Shell, assert_same_bits

pytestmark = pytest.mark.slow

ROUNDS = 6
SCRIPT = """
from fedquorum_app import run
from fedquorum.errors import FedQuorumError

if __name__ == "__main__":
    settings = dict(rounds={rounds}, client={{"local_epochs": 1}}, **{engine!r})
    for output in {outputs!r}:
        result = run(output=output, **settings)
        print(output, result.status, len(result.rounds), result.audit().is_consistent)
    if {mistake!r}:
        try:
            run(output="bad", **settings, data="npz", **{{"data.path": "none.npz"}})
        except FedQuorumError as error:
            print("error:", error)
"""


def assert_as_in_process(done: Outcome, runs: list[Path], tmp_path: Path, *words: str) -> None:
    """Check that the script's runs completed, with the records of the run in process."""
    assert done.status == 0, done.stdout[-3000:] + done.stderr[-3000:]
    given = (*words, f"rounds={ROUNDS}", "client.local_epochs=1")
    expected = run_here(tmp_path / "here", *given)
    for run in runs:
        assert f"{run.name} completed {ROUNDS} True" in done.stdout.splitlines()
        assert_same_bits(run, expected, ROUNDS)


def test_runs_on_ray(tmp_path: Path) -> None:
    """Ray is started and left twice in one process, and the error is the one of this process."""
    engine, outputs = {"engine": "ray", "engine.workers": 1}, ["first", "second"]
    script = SCRIPT.format(rounds=ROUNDS, engine=engine, outputs=outputs, mistake=True)
    (tmp_path / "script.py").write_text(script)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="fq-") as folder:
        shell = Shell(tmp_path, {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"})
        done = shell("python", "script.py")
    assert_as_in_process(done, [tmp_path / name for name in outputs], tmp_path)
    assert "\nerror: data.path must be " in done.stdout


@pytest.mark.flower
def test_runs_on_flower(flower: Shell, tmp_path: Path, berka_file: Path) -> None:
    """By ``flwr run``, whose true status is the run's; an error has Flower's words.

    A client a node, and late updates count: test_bundle.py has 2 nodes, and test_same_bits.py other
    presets.
    """
    late = dict(override.split("=") for override in COUNTING)
    data = {"data.path": str(berka_file)} | late
    engine = {"experiment": "aaggff/berka", "engine": "flower", "engine.num_supernodes": 7} | data
    script = SCRIPT.format(rounds=ROUNDS, engine=engine, outputs=["run"], mistake=is_long())
    (flower.cwd / "script.py").write_text(script)
    done = flower("python", "script.py")
    assert_as_in_process(done, [flower.cwd / "run"], tmp_path, "experiment=aaggff/berka", *COUNTING)
    assert ("\nerror: the Flower run " in done.stdout) == is_long()
