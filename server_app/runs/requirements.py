"""Read clients' requirements from settings, or from the records of this run or of another."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from fedquorum.contrib.maxfl import build_appeal_hooks, find_requirement, restore_appeal_hooks
from fedquorum.errors import RunError, SettingsError
from fedquorum.records.reader import POPULATION_FILE, Run, load_run, read_population, read_table
from fedquorum.records.safe_files import SafeRunDir
from fedquorum.records.settings import find_setting_changes
from fedquorum.rules.decisions import ALONE, EPOCH_SETTINGS
from fedquorum.rules.hooks import Hooks

ROW_NEUTRAL_SETTINGS = frozenset(
    {
        *("data.priority_weights", "data.holdout_client_fraction"),
        *("data.root", "data.path", "data.download", "data.cache_dir"),
    }
)
"""Data settings that do not change a client's rows: priority weights, and paths of files."""

COMPARED_SETTINGS = ("seed", "client.loss", "client.class_weights")
"""Settings beside those of the data that must agree for training losses to be comparable."""


def load_run_requirements(
    nodes: Mapping[str, Any],
    settings: Mapping[str, Any],
    num_clients: int,
    resume: Path | None = None,
) -> Hooks:
    """Return the requirements of a run from its settings, or no hooks if there are none.

    Parameters
    ----------
    nodes : mapping
        The settings of the evaluation and of each rule, by their key.
    settings : mapping
        All settings, by dotted key.
    num_clients : int
        The number of clients in the data.
    resume : Path, optional
        The directory of a resumed run. Its requirements come from its records, since their source
        may have changed.

    Raises
    ------
    RunError
        If the settings name no run of the same clients with ``evaluation.alone_epochs``.
    SettingsError
        If a list has not one number for each client, or a mapping names other clients.
    """
    setting, given = find_requirement(nodes)
    if given is None:
        return Hooks()
    if resume is not None:
        recorded = read_recorded_requirements(resume)
        if recorded.columns:
            return recorded
    if isinstance(given, str):
        return load_alone_requirements(Path(given).expanduser(), settings)
    return build_appeal_hooks(_convert_to_mapping(setting, given, num_clients))


def load_alone_requirements(directory: Path, settings: Mapping[str, Any]) -> Hooks:
    """Return the requirements from a run at whose end each client trained a model alone.

    rho_k is the training loss of that model, with its test accuracy beside it.

    Parameters
    ----------
    directory : Path
        The directory of that run.
    settings : mapping
        The settings of the run that gets the requirements, by dotted key. Seed, data and loss
        function must be the same, since otherwise the losses of client k are not comparable.

    Raises
    ------
    RunError
        If there is no such run, it is damaged, not completed or of other clients, its clients did
        not train alone, or none has a finite training loss.
    """
    run = load_run(directory)
    _check_completed(run)
    _check_same_clients(run, settings)
    table = read_table(run.directory / "evaluations")
    if f"{ALONE}_loss" not in table.column_names:
        raise RunError(
            f"{run.directory}: expected a run with {EPOCH_SETTINGS[ALONE]}=N, at whose end every "
            f"client trains a model alone, got one of {run.strategy} without it"
        )
    losses, accuracies = _read_alone_evaluations(table)
    if not losses:
        raise RunError(
            f"{run.directory}: expected the training losses of the clients' models in "
            "evaluations/, got none that is finite"
        )
    return build_appeal_hooks(losses, accuracies)


def read_recorded_requirements(directory: Path) -> Hooks:
    """Return the requirements in a run's records.

    Raises
    ------
    RunError
        If the table of clients is damaged.
    """
    if SafeRunDir(directory).get_file_id(POPULATION_FILE) is None:
        return Hooks()
    table = read_population(directory)
    return restore_appeal_hooks({name: table[name].to_pylist() for name in table.column_names})


def _convert_to_mapping(setting: str, given: Any, num_clients: int) -> dict[int, float]:
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(range(num_clients)), key=str)
        if unknown:
            raise SettingsError(
                f"{setting} must name client ids from 0 to {num_clients - 1}, got {unknown[0]}"
            )
        return {client: float(loss) for client, loss in given.items()}
    if not isinstance(given, Sequence):
        return dict.fromkeys(range(num_clients), float(given))
    if len(given) != num_clients:
        raise SettingsError(
            f"{setting} must have one number for each of the {num_clients} clients in the data, "
            f"got {len(given)}"
        )
    return dict(enumerate(map(float, given)))


def _check_completed(run: Run) -> None:
    if run.status != "completed":
        raise RunError(f"{run.directory}: expected a completed run, got one that is {run.status}")


def _check_same_clients(run: Run, settings: Mapping[str, Any]) -> None:
    for key, then, now in find_setting_changes(run.settings, settings, _determines_rows):
        raise RunError(
            f"{run.directory}: expected a run of the same clients, got one with {key}={then} where "
            f"this run has {now}"
        )


def _determines_rows(setting: str) -> bool:
    return setting in COMPARED_SETTINGS or (
        setting.startswith("data.") and setting not in ROW_NEUTRAL_SETTINGS
    )


def _read_alone_evaluations(table: pa.Table) -> tuple[dict[int, float], dict[int, float]]:
    """Return the training loss of each client's model, and its test accuracy, NaN if unknown."""
    losses: dict[int, float] = {}
    accuracies: dict[int, float] = {}
    for row in table.select(("client", f"{ALONE}_loss", f"{ALONE}_test_accuracy")).to_pylist():
        client, loss, accuracy = row.values()
        if loss is not None:
            losses[client] = loss
            accuracies[client] = math.nan if accuracy is None else accuracy
    return losses, accuracies
