"""Alone or together: the global model against those that clients without priority train alone."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import torch
from fedquorum.records.checkpoint import Checkpoints
from fedquorum.records.reader import Run
from torch import nn

from benchmarks.book.fedalign import (
    accuracies,
    accuracy,
    fedalign_numbers,
    gaps,
    of_methods,
    to_baselines,
)
from benchmarks.book.kept import KeptRun
from benchmarks.book.measured import Cell, Table, numbers
from benchmarks.book.methods import Method, methods
from client_app.app import KeptModel, app
from client_app.arrays import put
from client_app.evaluation import evaluate
from client_app.examples import Examples
from server_app.in_process import HostedNodes
from server_app.report.data import run_data, trained_model
from server_app.report.methods import has_gate, trains_alone

TESTED, WHOLE = "tested", "whole"
PARTS = {TESTED: "classes of the client", WHOLE: "all classes"}
"""What an accuracy by client is of: its own test part, or the test parts of all clients."""

Alone = Mapping[int, KeptRun]
"""The runs in which every client trains alone, by seed."""


def local_only_numbers(run: Run) -> Mapping[str, Any]:
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
        **fedalign_numbers(run),
        "admitted": sorted(admitted),
        TESTED: {row["client"]: row["test_accuracy"] for row in last if not row["priority"]},
        WHOLE: _on_all_test_parts(run),
    }


def local_only_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return the tables of an experiment beside clients that train alone.

    ``non_priority``: accuracy of clients without priority on their own test parts over the run.
    ``admitted``: the same at the end for the clients that the gate ever admitted. ``whole``: on the
    test parts of all clients together. ``better_off``: the share of the clients without priority
    whose accuracy with the global model is above that of the model they train alone, percent; a tie
    is not above. ``better_off_differences``: the same of FedALIGN minus each baseline.
    ``over_local``: the accuracy of each global model minus that of the models trained alone.
    """
    found = methods(runs)
    alone = {run.seed: run for one in found if trains_alone(one.strategy) for run in one.runs}
    together = [one for one in found if not trains_alone(one.strategy)]
    shares = {heading: partial(_share_better_off, alone, key) for key, heading in PARTS.items()}
    tables = {
        "non_priority": of_methods(found, "strategy", accuracies(found, "non_priority")),
        "admitted": _of_admitted(found, alone),
        "better_off": of_methods(together, "better off with the global model, %", shares),
        "better_off_differences": to_baselines(together, "difference of the share, points", shares),
    }
    whole = partial(_mean_accuracy, key=WHOLE)
    if any(WHOLE in run.numbers for run in runs):
        tables[WHOLE] = of_methods(found, "accuracy on all classes, %", {"end": whole})
    tested = partial(accuracy, moment="end", clients="non_priority")
    ends = dict(zip(PARTS.values(), (tested, whole), strict=True))
    rows = (
        gaps(f"{one.name} - {other.name}", one, other, ends)
        for one in together
        for other in found
        if trains_alone(other.strategy)
    )
    tables["over_local"] = Table(("difference of the accuracy, points", *ends), tuple(rows))
    return tables


def _share_better_off(alone: Alone, key: str, run: KeptRun) -> float:
    """Return the share of clients with a better accuracy than alone, percent; NaN if unknown."""
    if run.seed not in alone or key not in run.numbers or key not in alone[run.seed].numbers:
        return float("nan")
    clients = run.numbers[key]
    ahead = (run.number(key, k) > alone[run.seed].number(key, k) for k in clients)
    return 100 * sum(ahead) / len(clients)


def _mean_accuracy(run: KeptRun, key: str) -> float:
    """Return the unweighted mean over clients, percent; NaN where it is not kept."""
    clients = run.numbers.get(key, {})
    return 100 * statistics.mean(run.number(key, k) for k in clients) if clients else float("nan")


def _of_admitted(found: Sequence[Method], alone: Alone) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for method in (one for one in found if has_gate(one.strategy)):
        counts: list[float] = []
        ours: list[float] = []
        theirs: list[float] = []
        for run in (one for one in method.runs if one.seed in alone):
            admitted = run.numbers["admitted"]
            counts.append(float(len(admitted)))
            if admitted:
                ours.append(statistics.mean(_tested(run, admitted)))
                theirs.append(statistics.mean(_tested(alone[run.seed], admitted)))
        ahead = sum(a > b for a, b in zip(ours, theirs, strict=True))
        cells = (numbers(counts), numbers(ours), numbers(theirs), f"{ahead} of {len(ours)}")
        rows.append((method.name, *cells))
    headings = ("strategy", "clients ever admitted", "global model", "their own models")
    return Table((*headings, "seeds with the global one ahead"), tuple(rows))


def _tested(run: KeptRun, clients: Sequence[int]) -> Iterator[float]:
    """Yield the clients' test accuracies after the last round, in percent."""
    for client in clients:
        yield 100 * run.number(TESTED, str(client))


def _on_all_test_parts(run: Run) -> dict[int, float]:
    """Return by client without priority its last model's accuracy on all clients' test parts."""
    data, settings = run_data(run)
    model = trained_model(run, settings, data)
    everyone = range(data.num_clients)
    x, y = Examples(data.pool("test", everyone), torch.device("cpu")).of(everyone)
    others = [k for k in everyone if k not in data.priority]

    def measured(tested: nn.Module) -> float:
        return evaluate(tested, x, y, [len(y)])[0].accuracy

    if not trains_alone(run.strategy):
        return dict.fromkeys(others, measured(model))
    return {k: measured(kept) for k, kept in _models_kept(run, model) if k in set(others)}


def _models_kept(run: Run, model: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """Yield every client with the model it trained alone, from the run's last checkpoint.

    It is the same module each time, with other weights.
    """
    checkpoint = Checkpoints(run.directory).newest().checkpoint
    if checkpoint is None:
        return
    count = len(checkpoint.nodes)
    nodes = HostedNodes(app, {}, range(1, count + 1), count)
    nodes.restore(checkpoint.nodes)
    clients = pq.read_table(run.directory / "population.parquet", columns=["client"])
    for context in nodes.contexts.values():
        for client in clients["client"].to_pylist():
            arrays = KeptModel(context, client).load({})
            if arrays:
                put(list(arrays.values()), model)
                yield client, model
