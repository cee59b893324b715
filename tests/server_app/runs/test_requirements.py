"""Requirements from records: of a run whose clients train alone, and of the run itself."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fedquorum.contrib.maxfl import build_appeal_hooks
from fedquorum.errors import RunError
from fedquorum.rules.hooks import Hooks
from fedquorum.rules.types import Population

from server_app.runs.requirements import load_alone_requirements, read_recorded_requirements
from tests.fedquorum.records.made import (
    make_round_line,
    make_run,
    open_records,
    write_population,
    write_table,
)

GIVEN = "strategy:\n  name: fedavg\ndata:\n  alpha: 0.5\n  root: /here\n"
SETTINGS = {
    "seed": 1,
    "data.alpha": 0.5,
    "data.root": "/there",
    "data.holdout_client_fraction": 0.2,
}
"""The settings of a run with the same clients: priority and paths of files change no rows."""

EVALUATIONS = ((1, 7, None, None), (2, 7, 0.4, 0.75))
"""Round, client, and training loss and test accuracy of the model that it trained alone."""


def write_alone_run(
    directory: Path,
    evaluations: Sequence[tuple[int, int, float | None, float | None]] = EVALUATIONS,
    *,
    settings: str = GIVEN,
    prefix: str = "alone",
    **manifest: Any,
) -> Path:
    """Write a run after whose last round each client trained a model alone."""
    run = make_run(
        directory, [make_round_line(1), make_round_line(2)], settings=settings, **manifest
    )
    names = ("round", "client", f"{prefix}_loss", f"{prefix}_test_accuracy")
    added = {"priority": True, f"{prefix}_epochs": 5}
    rows = [dict(zip(names, one, strict=True)) | added for one in evaluations]
    write_table(run, "evaluations", rows)
    return run


def get_column(hooks: Hooks, name: str = "requirement") -> dict[int, float]:
    """Return the numbers of clients in a column, by client id."""
    return dict(hooks.columns[name])


def test_a_requirement_is_the_training_loss_of_a_client_alone(tmp_path: Path) -> None:
    """With its test accuracy, if any; a client without such a model has none."""
    evaluations = ((2, 3, 0.25, None), (2, 5, None, 0.9), *reversed(EVALUATIONS))
    found = load_alone_requirements(write_alone_run(tmp_path / "run", evaluations), SETTINGS)
    assert get_column(found) == {3: 0.25, 7: 0.4}
    accuracy = get_column(found, "local_accuracy")
    assert accuracy.keys() == {3, 7}
    assert math.isnan(accuracy[3])
    assert accuracy[7] == 0.75


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"prefix": "finetuned"},
            ": expected a run with evaluation.alone_epochs=N, at whose end every client trains",
        ),
        ({"status": "interrupted"}, ": expected a completed run, got one that is interrupted"),
        (
            {"seed": 2},
            ": expected a run of the same clients, got one with seed=2 where this run has 1",
        ),
        (
            {"settings": GIVEN.replace("0.5", "2.0")},
            ": expected a run of the same clients, got one with data.alpha=2.0 where this run has",
        ),
        (
            {"evaluations": ((1, 7, None, None), (2, 7, None, 0.5))},
            ": expected the training losses of the clients' models in evaluations/, got none",
        ),
    ],
)
def test_a_run_without_comparable_losses_is_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    """The error has its directory and the expected kind of run."""
    run = write_alone_run(tmp_path / "run", **changes)
    with pytest.raises(RunError, match=f"^{re.escape(f'{run}{problem}')}"):
        load_alone_requirements(run, SETTINGS)


def test_nan_in_a_setting_equals_nan(tmp_path: Path) -> None:
    """Two runs of the same clients may both have a NaN in their settings."""
    run = write_alone_run(tmp_path / "run", settings=GIVEN + "  scale: [1.0, .nan]\n")
    expected = load_alone_requirements(write_alone_run(tmp_path / "other"), SETTINGS)
    found = load_alone_requirements(run, SETTINGS | {"data.scale": [1.0, math.nan]})
    assert get_column(found) == get_column(expected)
    with pytest.raises(RunError, match=r"got one with data\.scale=\[1\.0, nan\] where this run"):
        load_alone_requirements(run, SETTINGS | {"data.scale": [1.0, 2.0]})


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
    """Priority weights are not compared."""
    setting = then.replace("data.", "  ", 1)
    run = write_alone_run(tmp_path / "run", settings=f"{GIVEN}{setting}\n")
    if problem is None:
        assert get_column(load_alone_requirements(run, SETTINGS | now)) == {7: 0.4}
        return
    message = re.escape(f"expected a run of the same clients, got one with {problem}")
    with pytest.raises(RunError, match=message):
        load_alone_requirements(run, SETTINGS | now)


def test_recorded_requirements_are_restored(tmp_path: Path) -> None:
    """Also infinite ones; a client without a requirement has none."""
    given = build_appeal_hooks({0: math.inf, 1: -math.inf, 3: 0.5}, {3: 0.25})
    with open_records(tmp_path / "run") as records:
        records.save_population(Population.from_size(4, [0]), None, columns=given.columns)
    restored = read_recorded_requirements(tmp_path / "run")
    for name in ("requirement", "local_accuracy"):
        assert get_column(restored, name) == get_column(given, name)
    assert restored.report is given.report


def test_a_run_may_have_no_requirements(tmp_path: Path) -> None:
    """Neither has a run that stopped before it recorded its clients."""
    run = make_run(tmp_path / "run", [])
    assert read_recorded_requirements(run) == Hooks()
    write_population(run, [0.5, 0.5], [True, False])
    assert read_recorded_requirements(run) == Hooks()
