"""Tables for AAggFF's claims: the spread of the clients' test metrics for every method."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedquorum.records.reader import Run
from fedquorum.registry import ALL_WEIGHTINGS, NAMED_STRATEGIES
from fedquorum.report.final_metrics import (
    compute_client_metrics,
    compute_row_weighted_metrics,
    compute_run_metrics,
    list_evaluated_groups,
)
from fedquorum.report.methods import is_baseline
from fedquorum.report.published import find_published_results
from fedquorum.report.seed_groups import Group
from fedquorum.rules.description import Goal
from fedquorum.rules.weighting import Weighting

from benchmarks.book.methods import MethodRuns, compute_paired_differences, group_methods
from benchmarks.book.results import (
    Cell,
    ResultTable,
    SeedStatistic,
    summarize_differences,
    summarize_seeds,
)
from benchmarks.book.runs_log import LoggedRun

FRACTION_METRICS = {
    "average": "average, unweighted",
    "average_by_rows": "average, weighted by test rows",
    "worst": "worst",
    "worst10": "worst 10 %, unweighted",
    "worst10_by_rows": "worst 10 %, weighted by test rows",
    "best": "best",
    "best10": "best 10 %, unweighted",
    "best10_by_rows": "best 10 %, weighted by test rows",
    "gini": "Gini",
}
LOSS_METRICS = {"largest_training_loss": "largest training loss, nats"}
COMPARED_METRICS = (
    "average",
    "average_by_rows",
    "worst",
    "worst10",
    "gini",
    "largest_training_loss",
)
PUBLISHED_HEADINGS = {
    "average": FRACTION_METRICS["average_by_rows"],
    "worst": FRACTION_METRICS["worst"],
    "worst10": FRACTION_METRICS["worst10_by_rows"],
    "best": FRACTION_METRICS["best"],
    "best10": FRACTION_METRICS["best10_by_rows"],
    "gini": FRACTION_METRICS["gini"],
}
"""The headings of the published statistics. The authors weight means by test rows."""

VARIANT_KEYS = ("strategy.lipschitz", "strategy.variant")
"""The settings that select the variant of a rule behind the published tables."""

PROOF_LABELS = {1.0: "yes", 0.0: "not proven here"}
STAND_INS = {
    "aaggff/mnist_writers": ("aaggff/celeba", "CelebA"),
    "aaggff/shakespeare": ("aaggff/reddit", "Reddit"),
    "aaggff/spoken_digits": ("aaggff/speech", "Speech Commands"),
}


def collect_aaggff_numbers(run: Run) -> Mapping[str, Any]:
    """Return the final statistics of a run over its evaluated clients."""
    (clients, *_) = list_evaluated_groups(Group(run.experiment, run.strategy, (), (run,))) or (
        "all",
    )
    return {
        **compute_client_metrics(run, clients),
        **compute_row_weighted_metrics(run),
        **compute_run_metrics(run),
    }


def build_aaggff_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build the tables of one experiment.

    ``fairness``: the test metric over the clients' test splits (percent, except a loss), and the
    largest training loss of a client. ``differences``: AAggFF minus each other method with the same
    settings except those of the rule, paired by seed. ``regret``: AAggFF's regret, its bound, and
    whether the bound is proven.
    """
    methods = sorted(
        group_methods(runs), key=lambda m: (not m.strategy.startswith("aaggff"), m.strategy)
    )
    names = FRACTION_METRICS | LOSS_METRICS
    ours = [method for method in methods if not is_baseline(method.strategy)]
    others = [method for method in methods if is_baseline(method.strategy)]
    with_regret = [
        method
        for method in methods
        if summarize_seeds(method.compute_values(lambda run: run.get_number("regret")))
    ]
    return {
        "fairness": ResultTable(
            ("method", "seeds", *names.values()),
            tuple(
                (_format_title(method), len(method.runs), *_build_cells(method, names))
                for method in methods
            ),
        ),
        "differences": ResultTable(
            ("difference", *(names[name] for name in COMPARED_METRICS)),
            tuple(
                (
                    f"{_format_title(one)} - {_format_title(other)}",
                    *_compute_differences(one, other),
                )
                for one in ours
                for other in others
                if _get_shared_settings(one) == _get_shared_settings(other)
            ),
        ),
        "regret": ResultTable(
            ("method", "regret", "bound", "bound proven"),
            tuple(
                (_format_title(m), *_build_cells(m, ("regret", "regret_bound")), _format_proof(m))
                for m in with_regret
            ),
        ),
    }


def build_aaggff_published(
    experiment: str, tables: Mapping[str, ResultTable]
) -> Mapping[str, ResultTable]:
    """Return the paper's numbers for the measured methods; a stand-in has those of its original."""
    source, data = STAND_INS.get(experiment, (experiment, ""))
    rows: dict[str, tuple[Cell, ...]] = {}
    keys: list[str] = []
    for method, *_ in tables["fairness"].rows:
        for name in _list_published_names(re.split("[ ,]", str(method))[0]):
            results = find_published_results(source, {"strategy.name": name})
            if results:
                values = results[0].values
                keys = [key for key in PUBLISHED_HEADINGS if key in values]
                title = _format_variant(name, _get_weighting(name).description.authors_form)
                rows[title] = (title, *(SeedStatistic(100 * values[key]) for key in keys))
                break
    title = f"published on {data}, %" if data else "published, %"
    headings = (title, *(PUBLISHED_HEADINGS[key] for key in keys))
    return {"published": ResultTable(headings, tuple(rows.values()))}


def _format_title(method: MethodRuns) -> str:
    """Return the method's name with its variant, optimizer and fraction of clients."""
    settings = method.runs[0].settings
    has_optimizer = "server_optimizer" in settings or "client.proximal_mu" in settings
    description = _get_weighting(method.strategy).description
    title = _format_variant(method.strategy, description.default_form)
    if any(key in settings for key in VARIANT_KEYS):
        title = _format_variant(method.strategy, description.authors_form)
    elif has_optimizer:
        title = f"{method.strategy}, Fed{settings.get('server_optimizer', 'prox').title()}"
    fraction = settings.get("strategy.fraction")
    return title if fraction is None else f"{title}, {float(fraction):.1%} in a round"


def _get_weighting(strategy: str) -> type[Weighting[Any]]:
    """Return the weighting of a strategy; FedAvg's is the default."""
    return ALL_WEIGHTINGS.get(strategy, Weighting)


def _format_variant(strategy: str, form: str) -> str:
    return f"{strategy}, {form}" if form else strategy


def _get_shared_settings(method: MethodRuns) -> Mapping[str, str]:
    """Return the settings that two methods must share to be compared."""
    excluded = ("seed", "strategy", *VARIANT_KEYS)
    settings = method.runs[0].settings
    return {key: value for key, value in settings.items() if key not in excluded}


def _format_proof(method: MethodRuns) -> str | None:
    (is_proven, *_) = method.compute_values(lambda run: run.get_number("regret_bound_proven"))
    return PROOF_LABELS.get(is_proven)


def _list_published_names(method: str) -> Sequence[str]:
    """Return a method's name and, for AAggFF, its other variant, which a stand-in may need."""
    variants = [
        key
        for key, entry in NAMED_STRATEGIES.items()
        if entry.goal == Goal.FAIRNESS and not entry.is_baseline
    ]
    others = [key for key in variants if key != method] if method in variants else []
    return (method, *others)


def _build_cells(
    method: MethodRuns, names: Sequence[str] | Mapping[str, str]
) -> list[SeedStatistic | None]:
    return [summarize_seeds(method.compute_values(_get_metric(name))) for name in names]


def _compute_differences(one: MethodRuns, other: MethodRuns) -> list[SeedStatistic | None]:
    return [
        summarize_differences(compute_paired_differences(one, other, _get_metric(name)))
        for name in COMPARED_METRICS
    ]


def _get_metric(name: str) -> Callable[[LoggedRun], float]:
    unit = 100.0 if name in FRACTION_METRICS else 1.0
    return lambda run: unit * run.get_number(name)
