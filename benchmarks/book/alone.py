"""Compare the global model with the models that clients without priority train alone."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import torch
from fedquorum.records.reader import Run
from fedquorum.report.methods import has_gate
from fedquorum.rules.decisions import ALONE, EPOCH_SETTINGS
from torch import nn

from benchmarks.book.fedalign import (
    build_baseline_table,
    build_difference_row,
    build_seed_table,
    collect_fedalign_numbers,
    get_accuracies,
)
from benchmarks.book.methods import MethodRuns, group_methods
from benchmarks.book.results import Cell, ResultTable, summarize_seeds
from benchmarks.book.runs_log import LoggedRun
from client_app.data import FederatedData
from client_app.data.examples import Examples
from client_app.evaluation.passes import evaluate_clients
from client_app.models import build_model_for
from client_app.node.node import Node
from client_app.training.local_sgd import load_arrays
from conf import Settings
from server_app.runs.reload import load_trained_model, reload_data

TESTED, WHOLE = "tested", "whole"
TEST_HEADINGS = {TESTED: "classes of the client", WHOLE: "all classes"}
"""The data of a client's accuracy: its test split, or the test splits of all clients."""


def collect_alone_numbers(run: Run) -> Mapping[str, Any]:
    """Return FedALIGN's numbers, and more about the clients without priority.

    ``admitted``: the clients that ever had a weight. ``tested``: the last model's accuracy on each
    client's test split. ``whole``: its accuracy on the test splits of all clients, which have all
    classes; runs logged before 2026-11-24 lack it. ``alone``, for runs with
    ``evaluation.alone_epochs``: the last two of the models that the clients train alone.
    """
    table = pq.read_table(run.directory / "clients").to_pylist()
    admitted = {row["client"] for row in table if row["weight"] > 0 and not row["priority"]}
    last = pq.read_table(
        run.directory / "evaluations", filters=[("round", "=", len(run.rounds))]
    ).to_pylist()
    tested = [row for row in last if not row["priority"]]
    data, settings = reload_data(run)
    others = [k for k in range(data.num_clients) if k not in data.priority]
    whole = _evaluate_on_all_clients(load_trained_model(run, settings, data), data)
    numbers = {
        **collect_fedalign_numbers(run),
        "admitted": sorted(admitted),
        TESTED: {row["client"]: row["test_accuracy"] for row in tested},
        WHOLE: dict.fromkeys(others, whole),
    }
    if run.settings.get(EPOCH_SETTINGS[ALONE]):
        numbers[ALONE] = {
            TESTED: {row["client"]: row[f"{ALONE}_test_accuracy"] for row in tested},
            WHOLE: {
                client: _evaluate_on_all_clients(model, data)
                for client, model in train_alone(settings, data, others)
            },
        }
    return numbers


def build_alone_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build the tables that compare global models with clients that train alone.

    Runs of one round count only for their clients that train alone. ``non_priority``: accuracy of
    clients without priority on their test splits over the run. ``admitted``: that accuracy at the
    end for the clients that the gate ever admitted. ``whole``: accuracy on the test splits of all
    clients. ``better_off``: the percentage of clients without priority whose accuracy is higher
    with the global model than alone; a tie does not count. ``better_off_differences``: FedALIGN
    minus each baseline. ``over_alone``: the accuracy of each global model minus that of the models
    alone.
    """
    methods = group_methods([run for run in runs if run.rounds > 1])
    alone_runs = {
        run.seed: replace(run, numbers=run.numbers[ALONE]) for run in runs if ALONE in run.numbers
    }
    alone = MethodRuns(ALONE, tuple(alone_runs[seed] for seed in sorted(alone_runs)))
    percentages = {
        heading: partial(_compute_better_off, alone_runs, key)
        for key, heading in TEST_HEADINGS.items()
    }
    over_time = build_seed_table(methods, "strategy", get_accuracies(methods, "non_priority"))
    at_the_end = summarize_seeds(alone.compute_values(partial(_compute_mean_accuracy, key=TESTED)))
    tables = {
        "non_priority": replace(
            over_time,
            rows=(*over_time.rows, (ALONE, len(alone.runs), None, None, None, at_the_end)),
        ),
        "admitted": _build_admitted_table(methods, alone_runs),
        "better_off": build_seed_table(methods, "better off with the global model, %", percentages),
        "better_off_differences": build_baseline_table(
            methods, "difference of the share, points", percentages
        ),
    }
    if any(WHOLE in run.numbers for run in runs):
        whole = {"end": partial(_compute_mean_accuracy, key=WHOLE)}
        tables[WHOLE] = build_seed_table([*methods, alone], "accuracy on all classes, %", whole)
    ends = {
        heading: partial(_compute_mean_accuracy, key=key) for key, heading in TEST_HEADINGS.items()
    }
    rows = (build_difference_row(f"{one.name} - {ALONE}", one, alone, ends) for one in methods)
    tables["over_alone"] = ResultTable(("difference of the accuracy, points", *ends), tuple(rows))
    return tables


def train_alone(
    settings: Settings, data: FederatedData, clients: Sequence[int]
) -> Iterator[tuple[int, nn.Module]]:
    """Yield each client with the model that it trained alone, as at the end of a run.

    Each item is the same module, loaded with other weights.
    """
    model = build_model_for(settings, data)
    start = [tensor.numpy().copy() for tensor in model.state_dict().values()]
    node = Node(settings)
    node.load_clients(clients)
    epochs = settings.evaluation.alone_epochs
    for client, trained in node.trainer.finetune_clients(start, clients, 0, epochs):
        if isinstance(trained, Exception):
            raise trained
        load_arrays(trained, model)
        yield client, model


def _compute_better_off(alone_runs: Mapping[int, LoggedRun], key: str, run: LoggedRun) -> float:
    """Return the percentage of clients that beat their model alone; NaN if unknown."""
    alone = alone_runs.get(run.seed)
    if alone is None or key not in run.numbers or key not in alone.numbers:
        return float("nan")
    clients = run.numbers[key]
    ahead = (run.get_number(key, k) > alone.get_number(key, k) for k in clients)
    return 100 * sum(ahead) / len(clients)


def _compute_mean_accuracy(run: LoggedRun, key: str) -> float:
    """Return the unweighted mean accuracy over clients, percent; NaN if not logged."""
    clients = run.numbers.get(key, {})
    return (
        100 * statistics.mean(run.get_number(key, k) for k in clients) if clients else float("nan")
    )


def _build_admitted_table(
    methods: Sequence[MethodRuns], alone_runs: Mapping[int, LoggedRun]
) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for method in (m for m in methods if has_gate(m.strategy)):
        counts: list[float] = []
        ours: list[float] = []
        theirs: list[float] = []
        for run in (r for r in method.runs if r.seed in alone_runs):
            admitted = run.numbers["admitted"]
            counts.append(float(len(admitted)))
            if admitted:
                ours.append(statistics.mean(_get_test_accuracies(run, admitted)))
                theirs.append(statistics.mean(_get_test_accuracies(alone_runs[run.seed], admitted)))
        ahead = sum(a > b for a, b in zip(ours, theirs, strict=True))
        cells = (
            summarize_seeds(counts),
            summarize_seeds(ours),
            summarize_seeds(theirs),
            f"{ahead} of {len(ours)}",
        )
        rows.append((method.name, *cells))
    headings = ("strategy", "clients ever admitted", "global model", "alone")
    return ResultTable((*headings, "seeds with the global one ahead"), tuple(rows))


def _get_test_accuracies(run: LoggedRun, clients: Sequence[int]) -> Iterator[float]:
    """Yield the clients' test accuracies after the last round, in percent."""
    for client in clients:
        yield 100 * run.get_number(TESTED, str(client))


def _evaluate_on_all_clients(model: nn.Module, data: FederatedData) -> float:
    """Return a model's accuracy on the test splits of all clients."""
    everyone = range(data.num_clients)
    examples = Examples(data.get_pooled_split("test", everyone), torch.device("cpu"))
    x, y = examples.select_clients(everyone)
    return evaluate_clients(model, x, y, [len(y)])[0].accuracy
