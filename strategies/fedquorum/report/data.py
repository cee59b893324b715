"""Say how the runs of an experiment interpreted their data."""

from ..records.data_facts import list_data_facts, list_data_lines
from ..records.reader import POPULATION_FILE, Run, read_population
from .experiment import Experiment

MAX_PAGE_NAMES = 40
"""The maximum number of names in a fact on a page; the manifest has all."""


def list_experiment_lines(experiment: Experiment) -> list[str]:
    """Return the facts about the data of an experiment's first run as lines of a terminal.

    Raises
    ------
    RunError
        If the run's table of clients is damaged.
    """
    runs = _list_runs(experiment)
    if not runs:
        return []
    return list_data_lines(experiment.name, runs[0].data, _read_client_names(runs[0]))


def list_experiment_facts(experiment: Experiment) -> list[tuple[str, str]]:
    """Return the facts about the data of an experiment's first run, and which others differ.

    Raises
    ------
    RunError
        If the run's table of clients is damaged.
    """
    runs = _list_runs(experiment)
    if not runs:
        return []
    first, *others = runs
    names = _read_client_names(first)
    facts = list_data_facts(first.data, client_names=names, limit=MAX_PAGE_NAMES)
    different = [run for run in others if _drop_shares(run) != _drop_shares(first)]
    if different:
        facts.append(("Other data", f"in {len(different)} of {len(runs)} runs; this is the first"))
    return facts


def _list_runs(experiment: Experiment) -> list[Run]:
    return [run for group in experiment.groups for run in group.runs if run.data]


def _drop_shares(run: Run) -> dict[str, object]:
    """Return the entry without the numbers that differ with the seed's division."""
    return {key: value for key, value in run.data.items() if key != "constant_accuracy"}


def _read_client_names(run: Run) -> list[str]:
    """Return the names of a run's clients, by id; none if one has no name."""
    if not (run.directory / POPULATION_FILE).is_file():
        return []
    table = read_population(run.directory)
    names = table["name"].to_pylist() if "name" in table.column_names else []
    return names if all(isinstance(name, str) and name for name in names) else []
