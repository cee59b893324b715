"""Alone or together: the global model against those that clients without priority train alone."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import torch
from fedquorum.records.checkpoint import CheckpointStore
from fedquorum.records.reader import Run
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
from client_app.arrays import load_arrays
from client_app.evaluation import evaluate_clients
from client_app.examples import Examples
from server_app.in_process import HostedNodes
from server_app.report.methods import has_gate, is_local_only
from server_app.report.rebuild import load_trained_model, reload_data

TESTED, WHOLE = "tested", "whole"
TEST_HEADINGS = {TESTED: "classes of the client", WHOLE: "all classes"}
"""What an accuracy by client is of: its own test part, or the test parts of all clients."""

LocalRuns = Mapping[int, LoggedRun]
"""The runs in which every client trains alone, by seed."""


def collect_local_only_numbers(run: Run) -> Mapping[str, Any]:
    """Return FedALIGN's numbers, and three things of the clients without priority.

    ``admitted``: those that ever had a weight. ``tested``: by client the last model's accuracy on
    its test part. ``whole``: by client the same on the test parts of all clients together, so that
    all classes count; runs that were kept before 2026-11-24 lack it.
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
    """Return the tables of an experiment beside clients that train alone.

    ``non_priority``: accuracy of clients without priority on their own test parts over the run.
    ``admitted``: the same at the end for the clients that the gate ever admitted. ``whole``: on the
    test parts of all clients together. ``better_off``: the share of the clients without priority
    whose accuracy with the global model is above that of the model they train alone, percent; a tie
    is not above. ``better_off_differences``: the same of FedALIGN minus each baseline.
    ``over_local``: the accuracy of each global model minus that of the models trained alone.
    """
    found = group_methods(runs)
    alone = {run.seed: run for one in found if is_local_only(one.strategy) for run in one.runs}
    together = [one for one in found if not is_local_only(one.strategy)]
    shares = {
        heading: partial(_compute_better_off, alone, key) for key, heading in TEST_HEADINGS.items()
    }
    tables = {
        "non_priority": build_seed_table(found, "strategy", get_accuracies(found, "non_priority")),
        "admitted": _build_admitted_table(found, alone),
        "better_off": build_seed_table(together, "better off with the global model, %", shares),
        "better_off_differences": build_baseline_table(
            together, "difference of the share, points", shares
        ),
    }
    whole = partial(_compute_mean_accuracy, key=WHOLE)
    if any(WHOLE in run.numbers for run in runs):
        tables[WHOLE] = build_seed_table(found, "accuracy on all classes, %", {"end": whole})
    tested = partial(get_accuracy, moment="end", clients="non_priority")
    ends = dict(zip(TEST_HEADINGS.values(), (tested, whole), strict=True))
    rows = (
        build_difference_row(f"{one.name} - {other.name}", one, other, ends)
        for one in together
        for other in found
        if is_local_only(other.strategy)
    )
    tables["over_local"] = ResultTable(("difference of the accuracy, points", *ends), tuple(rows))
    return tables


def _compute_better_off(local_runs: LocalRuns, key: str, run: LoggedRun) -> float:
    """Return the share of clients with a better accuracy than alone, percent; NaN if unknown."""
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
    """Return the unweighted mean over clients, percent; NaN where it is not kept."""
    clients = run.numbers.get(key, {})
    return (
        100 * statistics.mean(run.get_number(key, k) for k in clients) if clients else float("nan")
    )


def _build_admitted_table(found: Sequence[MethodRuns], local_runs: LocalRuns) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for method in (one for one in found if has_gate(one.strategy)):
        counts: list[float] = []
        ours: list[float] = []
        theirs: list[float] = []
        for run in (one for one in method.runs if one.seed in local_runs):
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
    """Return by client without priority its last model's accuracy on all clients' test parts."""
    data, settings = reload_data(run)
    model = load_trained_model(run, settings, data)
    everyone = range(data.num_clients)
    x, y = Examples(data.get_pooled_split("test", everyone), torch.device("cpu")).select_clients(
        everyone
    )
    others = [k for k in everyone if k not in data.priority]

    def evaluate_client(tested: nn.Module) -> float:
        return evaluate_clients(tested, x, y, [len(y)])[0].accuracy

    if not is_local_only(run.strategy):
        return dict.fromkeys(others, evaluate_client(model))
    return {
        k: evaluate_client(kept) for k, kept in _load_local_models(run, model) if k in set(others)
    }


def _load_local_models(run: Run, model: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """Yield every client with the model it trained alone, from the run's last checkpoint.

    It is the same module each time, with other weights.
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
