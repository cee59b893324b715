"""Read clients' requirements from the records of a ``local_only`` run or of the run itself."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..appeal import Requirements
from ..errors import ParameterError, RunError
from ..imports import no_rule_at
from ..named import build
from ..rule import RunFacts
from .folder import RunFolder
from .reader import POPULATION, Run, load_run, read_population, read_table
from .settings import differences

NOT_OF_ROWS = frozenset(
    {
        *("data.priority_weights", "data.unseen_fraction"),
        *("data.root", "data.path", "data.download", "data.cache_dir"),
    }
)
"""Settings of the data that change no client's rows: who counts, and where the files lie."""

COMPARED = ("seed", "client.loss", "client.class_weights")
"""Settings beside the data's that must agree for two training losses to be comparable."""


def local_requirements(directory: Path, settings: Mapping[str, Any]) -> Requirements:
    """Return the results of a run in which each client trained a local model.

    rho_k is the training loss of k's model in its last evaluation, beside its test accuracy then.

    Parameters
    ----------
    directory : Path
        The run's.
    settings : mapping
        Those of the run that takes the requirements, by dotted key. Seed, data and loss function
        must be the same, or else the losses of client k would not be comparable.

    Raises
    ------
    RunError
        If there is no such run, it is damaged, not completed, of other clients, its clients share
        a model, or nobody measured a training loss.
    """
    run = load_run(directory)
    _check_alone(run)
    _check_same_clients(run, settings)
    found = _last_measured(read_table(run.directory / "evaluations"))
    if not found:
        raise RunError(
            f"{run.directory}: expected the training losses of the clients' models in "
            "evaluations/, got none that is finite"
        )
    return Requirements(
        {client: loss for client, (loss, _) in found.items()},
        {client: accuracy for client, (_, accuracy) in found.items()},
    )


def recorded_requirements(directory: Path) -> Requirements | None:
    """Return the requirements that a run's records have, None where it had none.

    Raises
    ------
    RunError
        If the table of clients is damaged.
    """
    if RunFolder(directory).identity(POPULATION) is None:
        return None
    table = read_population(directory)
    losses = _by_client(table, "requirement")
    if not losses:
        return None
    return Requirements(losses, _by_client(table, "local_accuracy"))


def _by_client(table: pa.Table, name: str) -> dict[int, float]:
    """Return a column by client id without its nulls."""
    rows = zip(table["client"].to_pylist(), table[name].to_pylist(), strict=True)
    return {client: value for client, value in rows if value is not None}


def _check_alone(run: Run) -> None:
    try:
        rules = build(
            run.config["strategy"], {"name": "sgd"}, RunFacts(num_rounds=1), custom=no_rule_at
        )
    except KeyError as error:
        raise RunError(f"{run.directory}/config.yaml: {error} is missing") from None
    except (ParameterError, TypeError) as error:
        raise RunError(f"{run.directory}/config.yaml: {error}") from None
    if not rules.keeps_models:
        raise RunError(
            f"{run.directory}: expected a run of local_only, in which every client trains a model "
            f"of its own, got one of {run.strategy}"
        )
    if run.status != "completed":
        raise RunError(f"{run.directory}: expected a completed run, got one that is {run.status}")


def _check_same_clients(run: Run, settings: Mapping[str, Any]) -> None:
    for key, then, now in differences(run.settings, settings, _tells_rows):
        raise RunError(
            f"{run.directory}: expected a run of the same clients, got one with {key}={then} where "
            f"this run has {now}"
        )


def _tells_rows(setting: str) -> bool:
    return setting in COMPARED or (setting.startswith("data.") and setting not in NOT_OF_ROWS)


def _last_measured(table: pa.Table) -> dict[int, tuple[float, float]]:
    """Return each client's training loss and test accuracy in the last round that has its loss."""
    found: dict[int, tuple[float, float]] = {}
    names = ("round", "client", "loss", "test_accuracy")
    ordered = table.select(names).sort_by("round")
    for number, client, loss, accuracy in zip(
        *(ordered[name].to_pylist() for name in names), strict=True
    ):
        if loss is not None and number > 0:
            found[client] = loss, math.nan if accuracy is None else accuracy
    return found
