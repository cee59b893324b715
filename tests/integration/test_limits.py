"""Methods at a limit of a parameter are others, to the last bit of a whole run.

At the rate of the preset SGD is not stable on SYNTH: a difference in the last bit of one update
grows to a difference in the first digit of the loss within 50 rounds.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.rules.types import FloatArray, IntArray

from tests.builders_runs import read_lines, run_here
from tests.cases import is_long
from tests.integration.conftest import assert_same_bits, read_round_lines

pytestmark = pytest.mark.slow

ROUNDS, EVERY = (50, 10) if is_long() else (10, 5)
AWAY = "availability=bernoulli", "availability.p=0.5"
PLAIN: tuple[str, ...] = ()
NO_WARM_UP = "strategy.warmup_fraction=0"


class Runs:
    """Runs of the preset, each made once, by the words that they add to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.of = lru_cache(self._made)

    def _made(self, words: tuple[str, ...]) -> Path:
        directory = self._folder / ",".join(words or ("plain",))
        common = ("experiment=fedalign/synth_low", f"rounds={ROUNDS}", f"evaluation.every={EVERY}")
        short = () if is_long() else ("client.local_epochs=1",)
        return run_here(directory, *common, *short, *words)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return the runs of this module."""
    return Runs(tmp_path_factory.mktemp("limits"))


def losses(run: Path) -> list[dict[str, Any]]:
    """Return what the rounds say of the model, not of the clients that were asked."""
    lines = read_lines(run)
    keys = ("round", "global_loss", "global_accuracy", "test")
    return [{key: line[key] for key in keys} for line in lines]


@pytest.mark.parametrize(
    ("limit", "method"),
    [
        (("strategy.epsilon=0",), ("strategy=fedavg_priority",)),
        (("strategy.epsilon=inf",), ("strategy=fedavg",)),
        (("strategy.epsilon=inf", NO_WARM_UP), ("strategy=fedavg", NO_WARM_UP)),
        (("strategy=fedau", "strategy.cutoff=1", *AWAY), ("strategy=average_all", *AWAY)),
    ],
    ids=["epsilon 0", "epsilon inf", "epsilon inf, no warm-up", "cutoff 1"],
)
def test_the_limit_is_another_method(
    runs: Runs, limit: Sequence[str], method: Sequence[str]
) -> None:
    """Every loss of every round and the last model: a closed gate, an open one, a cutoff of 1."""
    one, other = runs.of(tuple(limit)), runs.of(tuple(method))
    assert losses(one) == losses(other)
    assert len(losses(one)) == ROUNDS
    models = [(run / "model.safetensors").read_bytes() for run in (one, other)]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("limit", "plain"),
    [
        (("client.proximal_mu=0",), PLAIN),
        (("strategy.fraction=1.0",), PLAIN),
        (("strategy=fedavg", "strategy.fraction=1.0"), ("strategy=fedavg",)),
    ],
    ids=["mu 0", "fraction 1 of a gate", "fraction 1"],
)
def test_the_limit_changes_nothing(runs: Runs, limit: Sequence[str], plain: Sequence[str]) -> None:
    """FedProx without its term, and a sample of everyone: all that the rounds record."""
    assert_same_bits(runs.of(tuple(limit)), runs.of(tuple(plain)), ROUNDS)


def skip_correction(
    response: FloatArray, position: IntArray, num_clients: int, fraction: float, rbar: float
) -> FloatArray:
    """Return the responses as they are, of all clients."""
    assert fraction == 1.0
    everyone = np.full(num_clients, np.nan)
    everyone[position] = response
    return everyone


def test_responses_of_everyone_need_no_correction(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AAggFF-D with C = 1 decides by the responses themselves."""
    corrected = runs.of(("strategy=aaggff_d", "strategy.fraction=1.0"))
    with monkeypatch.context() as patch:
        patch.setattr("fedquorum.rules.weighting.aaggff_d.estimate_doubly_robust", skip_correction)
        plain = runs.of(("strategy=aaggff_d",))
    assert_same_bits(corrected, plain, ROUNDS)


def test_the_methods_differ(runs: Runs) -> None:
    """Otherwise equal runs would say nothing: here every two methods end elsewhere."""
    methods: list[tuple[str, ...]] = [
        PLAIN,
        ("strategy=fedavg_priority",),
        ("strategy=fedavg",),
        ("strategy=fedavg", NO_WARM_UP),
        ("strategy=average_all", *AWAY),
        ("strategy=aaggff_d", "strategy.fraction=1.0"),
        ("client.proximal_mu=1.0",),
    ]
    found = [runs.of(words) for words in methods]
    assert len({(run / "model.safetensors").read_bytes() for run in found}) == len(methods)
    assert len({read_round_lines(run) for run in found}) == len(methods)
