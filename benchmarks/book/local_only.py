"""Compare the global model with the local models of clients without priority."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import torch
from fedquorum.records.checkpoint import CheckpointStore
from fedquorum.records.reader import Run
from fedquorum.report.methods import has_gate, is_local_only
from torch import nn

from benchmarks.book.fedalign import (
    build_baseline_table,
    build_difference_row,
    build_seed_table,
    collect_fedalign_numbers,
    get_accuracies,
    get_accuracy,
)
from benchmarks.book.methods import MethodRuns, group_methods
from benchmarks.book.results import Cell, ResultTable, summarize_seeds
from benchmarks.book.runs_log import LoggedRun
from client_app.app import StoredModel, app
from client_app.data.examples import Examples
from client_app.evaluation.passes import evaluate_clients
from client_app.training.local_sgd import load_arrays
from server_app.engines.in_process import HostedNodes
from server_app.runs.reload import load_trained_model, reload_data

TESTED, WHOLE = "tested", "whole"
TEST_HEADINGS = {TESTED: "classes of the client", WHOLE: "all classes"}
"""The data of a client's accuracy: its test split, or the test splits of all clients."""

LocalRuns = Mapping[int, LoggedRun]
"""The local-only runs by seed."""


def collect_local_only_numbers(run: Run) -> Mapping[str, Any]:
    """Return FedALIGN's numbers, and three more about the clients without priority.

    ``admitted``: the clients that ever had a weight. ``tested``: the last model's accuracy on each
    client's test split. ``whole``: its accuracy on the test splits of all clients, which have all
    classes; runs logged before 2026-11-24 lack it.
    """
    table = pq.read_table(run.directory / "clients").to_pylist()
    admitted = {row["client"] for row in table if row["weight"] > 0 and not row["priority"]}
    last = pq.read_table(
        run.directory / "evaluations", filters=[("round", "=", len(run.rounds))]
    ).to_pylist()
    return {
        **collect_fedalign_numbers(run),
        "admitted": sorted(admitted),
        TESTED: {row["client"]: row["test_accuracy"] for row in last if not row["priority"]},
        WHOLE: _evaluate_on_all_clients(run),
    }


def build_local_only_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build the tables that compare global models with local-only training.

    ``non_priority``: accuracy of clients without priority on their test splits over the run.
    ``admitted``: that accuracy at the end for the clients that the gate ever admitted. ``whole``:
    accuracy on the test splits of all clients. ``better_off``: the percentage of clients without
    priority whose accuracy is higher with the global model than with their local one; a tie does
    not count. ``better_off_differences``: FedALIGN minus each baseline. ``over_local``: the
    accuracy of each global model minus that of the local models.
    """
    methods = group_methods(runs)
    local_runs = {run.seed: run for m in methods if is_local_only(m.strategy) for run in m.runs}
    global_methods = [m for m in methods if not is_local_only(m.strategy)]
    percentages = {
        heading: partial(_compute_better_off, local_runs, key)
        for key, heading in TEST_HEADINGS.items()
    }
    tables = {
        "non_priority": build_seed_table(
            methods, "strategy", get_accuracies(methods, "non_priority")
        ),
        "admitted": _build_admitted_table(methods, local_runs),
        "better_off": build_seed_table(
            global_methods, "better off with the global model, %", percentages
        ),
        "better_off_differences": build_baseline_table(
            global_methods, "difference of the share, points", percentages
        ),
    }
    whole = partial(_compute_mean_accuracy, key=WHOLE)
    if any(WHOLE in run.numbers for run in runs):
        tables[WHOLE] = build_seed_table(methods, "accuracy on all classes, %", {"end": whole})
    tested = partial(get_accuracy, moment="end", clients="non_priority")
    ends = dict(zip(TEST_HEADINGS.values(), (tested, whole), strict=True))
    rows = (
        build_difference_row(f"{one.name} - {other.name}", one, other, ends)
        for one in global_methods
        for other in methods
        if is_local_only(other.strategy)
    )
    tables["over_local"] = ResultTable(("difference of the accuracy, points", *ends), tuple(rows))
    return tables


def _compute_better_off(local_runs: LocalRuns, key: str, run: LoggedRun) -> float:
    """Return the percentage of clients that beat their local model; NaN if unknown."""
    if (
        run.seed not in local_runs
        or key not in run.numbers
        or key not in local_runs[run.seed].numbers
    ):
        return float("nan")
    clients = run.numbers[key]
    ahead = (run.get_number(key, k) > local_runs[run.seed].get_number(key, k) for k in clients)
    return 100 * sum(ahead) / len(clients)


def _compute_mean_accuracy(run: LoggedRun, key: str) -> float:
    """Return the unweighted mean accuracy over clients, percent; NaN if not logged."""
    clients = run.numbers.get(key, {})
    return (
        100 * statistics.mean(run.get_number(key, k) for k in clients) if clients else float("nan")
    )


def _build_admitted_table(methods: Sequence[MethodRuns], local_runs: LocalRuns) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for method in (m for m in methods if has_gate(m.strategy)):
        counts: list[float] = []
        ours: list[float] = []
        theirs: list[float] = []
        for run in (r for r in method.runs if r.seed in local_runs):
            admitted = run.numbers["admitted"]
            counts.append(float(len(admitted)))
            if admitted:
                ours.append(statistics.mean(_get_test_accuracies(run, admitted)))
                theirs.append(statistics.mean(_get_test_accuracies(local_runs[run.seed], admitted)))
        ahead = sum(a > b for a, b in zip(ours, theirs, strict=True))
        cells = (
            summarize_seeds(counts),
            summarize_seeds(ours),
            summarize_seeds(theirs),
            f"{ahead} of {len(ours)}",
        )
        rows.append((method.name, *cells))
    headings = ("strategy", "clients ever admitted", "global model", "their own models")
    return ResultTable((*headings, "seeds with the global one ahead"), tuple(rows))


def _get_test_accuracies(run: LoggedRun, clients: Sequence[int]) -> Iterator[float]:
    """Yield the clients' test accuracies after the last round, in percent."""
    for client in clients:
        yield 100 * run.get_number(TESTED, str(client))


def _evaluate_on_all_clients(run: Run) -> dict[int, float]:
    """Evaluate each client without priority: its last model on all clients' test splits."""
    data, settings = reload_data(run)
    model = load_trained_model(run, settings, data)
    everyone = range(data.num_clients)
    examples = Examples(data.get_pooled_split("test", everyone), torch.device("cpu"))
    x, y = examples.select_clients(everyone)
    others = [k for k in everyone if k not in data.priority]

    def evaluate_model(evaluated: nn.Module) -> float:
        return evaluate_clients(evaluated, x, y, [len(y)])[0].accuracy

    if not is_local_only(run.strategy):
        return dict.fromkeys(others, evaluate_model(model))
    return {
        k: evaluate_model(local_model)
        for k, local_model in _load_local_models(run, model)
        if k in set(others)
    }


def _load_local_models(run: Run, model: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """Yield every client with its local model from the run's last checkpoint.

    Each item is the same module, loaded with other weights.
    """
    checkpoint = CheckpointStore(run.directory).find_newest().checkpoint
    if checkpoint is None:
        return
    count = len(checkpoint.nodes)
    nodes = HostedNodes(app, {}, range(1, count + 1), count)
    nodes.restore(checkpoint.nodes)
    clients = pq.read_table(run.directory / "population.parquet", columns=["client"])
    for context in nodes.contexts.values():
        for client in clients["client"].to_pylist():
            arrays = StoredModel(context, client).load({})
            if arrays:
                load_arrays(list(arrays.values()), model)
                yield client, model
