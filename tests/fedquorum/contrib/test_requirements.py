"""Requirements read from records: of a run of local models, and those that a run had itself."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fedquorum.contrib.maxfl import build_appeal_hooks
from fedquorum.contrib.requirements import load_local_requirements, read_recorded_requirements
from fedquorum.errors import RunError
from fedquorum.hooks import Hooks
from fedquorum.types import Population

from tests.fedquorum.records.made import (
    make_round_line,
    make_run,
    open_records,
    write_population,
    write_table,
)

LOCAL = "strategy:\n  name: local_only\ndata:\n  alpha: 0.5\n  root: /here\n"
SETTINGS = {
    "seed": 1,
    "data.alpha": 0.5,
    "data.root": "/there",
    "data.holdout_client_fraction": 0.2,
}
"""Those of a run with the same clients: who counts and where files lie changes no rows."""

MEASURED = ((0, 7, 0.1, 0.1), (1, 7, 0.9, 0.5), (2, 7, 0.4, 0.75))
"""Round, client, training loss and test accuracy."""


def local_run(
    directory: Path,
    measured: Sequence[tuple[int, int, float | None, float | None]] = MEASURED,
    *,
    settings: str = LOCAL,
    **manifest: Any,
) -> Path:
    """Write a run in which each client trained a model of its own."""
    run = make_run(
        directory, [make_round_line(1), make_round_line(2)], settings=settings, **manifest
    )
    names = ("round", "client", "loss", "test_accuracy")
    rows = [dict(zip(names, one, strict=True)) | {"priority": True} for one in measured]
    write_table(run, "evaluations", rows)
    return run


def column(hooks: Hooks, name: str = "requirement") -> dict[int, float]:
    """Return the numbers of clients in a column, by client id."""
    return dict(hooks.columns[name])


def test_a_requirement_is_the_last_loss_that_a_client_measured(tmp_path: Path) -> None:
    """Beside its test accuracy then, if any; before it trained no client has a model of its own."""
    measured = (
        (2, 3, None, 0.9),
        (1, 3, 0.25, None),
        (0, 5, 0.125, 0.1),
        *reversed(MEASURED),
    )
    found = load_local_requirements(local_run(tmp_path / "run", measured), SETTINGS)
    assert column(found) == {3: 0.25, 7: 0.4}
    accuracy = column(found, "local_accuracy")
    assert accuracy.keys() == {3, 7}
    assert math.isnan(accuracy[3])
    assert accuracy[7] == 0.75


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"settings": "strategy:\n  name: fedavg\n", "strategy": "fedavg"},
            ": expected a run of local_only, in which every client trains a model of its own, got",
        ),
        ({"status": "interrupted"}, ": expected a completed run, got one that is interrupted"),
        ({"settings": "data: {}\n"}, "/config.yaml: 'strategy' is missing"),
        (
            {"settings": "strategy:\n  name: none\n"},
            "/config.yaml: strategy must be one of fedalign, ",
        ),
        (
            {"settings": "strategy:\n  name: custom\n  path: os.system\n"},
            "/config.yaml: path must be absent from records that are only read",
        ),
        (
            {"seed": 2},
            ": expected a run of the same clients, got one with seed=2 where this run has 1",
        ),
        (
            {"settings": LOCAL.replace("0.5", "2.0")},
            ": expected a run of the same clients, got one with data.alpha=2.0 where this run has",
        ),
        (
            {"measured": ((0, 7, 0.5, 0.5), (1, 7, None, 0.5))},
            ": expected the training losses of the clients' models in evaluations/, got none",
        ),
    ],
)
def test_a_run_without_comparable_losses_is_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    """With its folder and what is expected instead."""
    run = local_run(tmp_path / "run", **changes)
    with pytest.raises(RunError, match=f"^{re.escape(f'{run}{problem}')}"):
        load_local_requirements(run, SETTINGS)


def test_a_setting_that_is_no_number_is_the_same_one(tmp_path: Path) -> None:
    """Two runs of the same clients may both have a NaN, which is two objects."""
    run = local_run(tmp_path / "run", settings=LOCAL + "  scale: [1.0, .nan]\n")
    expected = load_local_requirements(local_run(tmp_path / "other"), SETTINGS)
    found = load_local_requirements(run, SETTINGS | {"data.scale": [1.0, math.nan]})
    assert column(found) == column(expected)
    with pytest.raises(RunError, match=r"got one with data\.scale=\[1\.0, nan\] where this run"):
        load_local_requirements(run, SETTINGS | {"data.scale": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("then", "now", "problem"),
    [
        ("data.priority_weights: {1: 0.5}", {"data.priority_weights.1": 0.7}, None),
        ("data.priority_weights: {1: 0.5}", {"data.priority_weights": None}, None),
        (
            "data.columns: {}",
            {"data.columns.age": 1},
            "data.columns={} where this run has {'age': 1}",
        ),
        (
            "data.columns: {age: 1, sex: 2}",
            {"data.columns.age": 1},
            "data.columns={'age': 1, 'sex': 2} where this run has {'age': 1}",
        ),
        ("data.columns: {age: .nan}", {"data.columns.age": math.nan}, None),
    ],
)
def test_mappings_are_compared_whole(
    tmp_path: Path, then: str, now: dict[str, Any], problem: str | None
) -> None:
    """Those that say who counts are not compared, whatever is in them."""
    setting = then.replace("data.", "  ", 1)
    run = local_run(tmp_path / "run", settings=f"{LOCAL}{setting}\n")
    if problem is None:
        assert column(load_local_requirements(run, SETTINGS | now)) == {7: 0.4}
        return
    told = re.escape(f"expected a run of the same clients, got one with {problem}")
    with pytest.raises(RunError, match=told):
        load_local_requirements(run, SETTINGS | now)


def test_a_run_has_the_requirements_that_were_written(tmp_path: Path) -> None:
    """Also infinite ones, which no table of a run holds, and none of a client without."""
    given = build_appeal_hooks({0: math.inf, 1: -math.inf, 3: 0.5}, {3: 0.25})
    with open_records(tmp_path / "run") as records:
        records.save_population(Population.from_size(4, [0]), None, columns=given.columns)
    found = read_recorded_requirements(tmp_path / "run")
    for name in ("requirement", "local_accuracy"):
        assert column(found, name) == column(given, name)
    assert found.report is given.report


def test_a_run_may_have_no_requirements(tmp_path: Path) -> None:
    """Nor has one that stopped before it wrote its clients."""
    run = make_run(tmp_path / "run", [])
    assert read_recorded_requirements(run) == Hooks()
    write_population(run, [0.5, 0.5], [True, False])
    assert read_recorded_requirements(run) == Hooks()
