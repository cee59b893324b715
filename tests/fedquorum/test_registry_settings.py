"""The settings derived from rules build the same rules again."""

import math
import sys
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.registry import (
    NAMED_STRATEGIES,
    StrategyEntry,
    build_rules,
    refuse_import,
    to_builtins,
    to_settings,
)
from fedquorum.rules.participation import FedAUCorrection
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection import EpsilonGate, Sampling
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS
from fedquorum.rules.weighting import AFLWeighting, AverageAll

CONTEXT = RunContext(num_rounds=7, seed=3)
OPTIONS: dict[str, dict[str, Any]] = {
    "fedalign": {"epsilon": 0.5, "warmup_rounds": 2},
    "fedau": {"cutoff": 50},
    "empirical": {"max_weight": 50.0},
    "known_statistics": {"probabilities": {0: 0.5, 4: 1.0}},
    "fedvarp": {"memory_dir": "/somewhere"},
    "maxfl": {"requirement": {0: 0.5, 4: 1.0}},
}


COMBINATIONS = [
    *((key, "sgd") for key in NAMED_STRATEGIES),
    *(("fedau", optimizer) for optimizer in SERVER_OPTIMIZERS),
]


@pytest.mark.parametrize(("key", "optimizer"), COMBINATIONS)
def test_every_named_strategy_is_built_again(key: str, optimizer: str) -> None:
    """With its parameters, its sampling and every server optimizer."""
    rules = NAMED_STRATEGIES[key].build_rules(
        OPTIONS.get(key, {}),
        CONTEXT,
        sampling=Sampling(1.0, seed=3, minimum=4),
        server_optimizer=SERVER_OPTIMIZERS[optimizer].from_options(
            {"learning_rate": 0.25}, CONTEXT
        ),
    )
    settings = to_settings(NAMED_STRATEGIES[key], OPTIONS.get(key, {}), rules)
    strategy, server_optimizer = settings["strategy"], settings["server_optimizer"]
    assert build_rules(strategy, server_optimizer, CONTEXT, importer=refuse_import) == rules


def test_a_strategy_in_no_table_is_described_by_its_parts() -> None:
    """The library's parts have keys, so that nothing is imported."""
    mine = StrategyEntry("mine", "A gate with another weighting.", AverageAll, EpsilonGate)
    sampling, optimizer = Sampling(0.5, seed=3), SERVER_OPTIMIZERS["sgd"]()
    rules = mine.build_rules(
        {"epsilon": 2.0}, CONTEXT, sampling=sampling, server_optimizer=optimizer
    )
    settings = to_settings(mine, {"epsilon": 2.0}, rules)
    assert settings["strategy"]["name"] == "composed"
    strategy, server_optimizer = settings["strategy"], settings["server_optimizer"]
    assert build_rules(strategy, server_optimizer, CONTEXT, importer=refuse_import) == rules


def test_a_correction_is_described_with_its_parameters() -> None:
    """The given ones, and defaults for the others."""
    mine = StrategyEntry("mine", "Another weighting.", AFLWeighting, participation=FedAUCorrection)
    options = {"cutoff": 20.0}
    optimizer = SERVER_OPTIMIZERS["sgd"]()
    rules = mine.build_rules(options, CONTEXT, sampling=Sampling(), server_optimizer=optimizer)
    settings = to_settings(mine, options, rules)["strategy"]["participation"]
    assert settings == {"name": "fedau", "cutoff": 20.0}
    settings = to_settings(mine, {}, rules)["strategy"]["participation"]
    assert settings == {"name": "fedau", "cutoff": math.inf}


def test_a_rule_of_the_users_program_is_described_by_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other program could import it from ``__main__``."""
    own = type("Mine", (AverageAll,), {"__module__": "__main__", "key": "mine"})
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    mine = StrategyEntry("mine", "A custom weighting.", own)
    optimizer = SERVER_OPTIMIZERS["sgd"]()
    rules = mine.build_rules({}, CONTEXT, sampling=Sampling(), server_optimizer=optimizer)
    assert to_settings(mine, {}, rules)["strategy"]["weighting"] == {
        "name": "custom",
        "path": f"{__file__}:Mine",
        "args": {},
    }


def test_a_memory_in_no_table_has_no_settings() -> None:
    """It is refused before any file is written."""
    mifa = NAMED_STRATEGIES["mifa"]
    mine = StrategyEntry("mine", "Another memory.", mifa.weighting, memory=mifa.memory)
    optimizer = SERVER_OPTIMIZERS["sgd"]()
    rules = mine.build_rules({}, CONTEXT, sampling=Sampling(), server_optimizer=optimizer)
    with pytest.raises(ParameterError, match="records must be None for a strategy with a memory"):
        to_settings(mine, {}, rules)


def test_numpy_numbers_become_python_numbers() -> None:
    """At any depth, since YAML has no other numbers."""
    value = to_builtins({"a": (np.float64(0.5), 1, None, "text")})
    assert value == {"a": [0.5, 1, None, "text"]}
    assert type(value["a"][0]) is float
