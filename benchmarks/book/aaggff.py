"""AAggFF's claims, measured: how the clients' test metrics are spread, for every method."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedquorum.named import ALL_WEIGHTINGS, NAMED
from fedquorum.records.reader import Run
from fedquorum.rule import Question
from fedquorum.weighting import Weighting

from benchmarks.book.kept import KeptRun
from benchmarks.book.measured import Cell, Number, Table, differences, numbers
from benchmarks.book.methods import Method, methods, paired
from server_app.report.groups import Group
from server_app.report.measures import (
    client_measures,
    measured_groups,
    measures_by_rows,
    run_measures,
)
from server_app.report.methods import is_baseline
from server_app.report.published import published_values

SHARES = {
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
LOSS = {"largest_training_loss": "largest training loss, nats"}
COMPARED = ("average", "average_by_rows", "worst", "worst10", "gini", "largest_training_loss")
PUBLISHED = {
    "average": SHARES["average_by_rows"],
    "worst": SHARES["worst"],
    "worst10": SHARES["worst10_by_rows"],
    "best": SHARES["best"],
    "best10": SHARES["best10_by_rows"],
    "gini": SHARES["gini"],
}
"""The headings of the published measures: the authors' means are weighted by test rows."""

OF_THE_RULE = ("strategy.lipschitz", "strategy.variant")
"""The settings that choose the form of a rule that made the published tables."""

PROVEN = {1.0: "yes", 0.0: "not proven here"}
STAND_INS = {
    "aaggff/mnist_writers": ("aaggff/celeba", "CelebA"),
    "aaggff/shakespeare": ("aaggff/reddit", "Reddit"),
    "aaggff/spoken_digits": ("aaggff/speech", "Speech Commands"),
}


def aaggff_numbers(run: Run) -> Mapping[str, Any]:
    """Return what a run comes to, over the clients whose test parts it measured."""
    (clients, *_) = measured_groups(Group(run.experiment, run.strategy, (), (run,))) or ("all",)
    return {**client_measures(run, clients), **measures_by_rows(run), **run_measures(run)}


def aaggff_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return the tables of one experiment.

    ``fairness``: the test metric over the clients' own test parts (percent, but for a loss), and
    the largest training loss of a client. ``differences``: AAggFF minus each other method that ran
    with the same settings but for those of the rule, seed by seed. ``regret``: AAggFF's beside its
    bound, and whether that is proven.
    """
    found = sorted(methods(runs), key=lambda m: (not m.strategy.startswith("aaggff"), m.strategy))
    names = SHARES | LOSS
    ours = [method for method in found if not is_baseline(method.strategy)]
    others = [method for method in found if is_baseline(method.strategy)]
    with_regret = [m for m in found if numbers(m.values(lambda run: run.number("regret")))]
    return {
        "fairness": Table(
            ("method", "seeds", *names.values()),
            tuple((_title(method), len(method.runs), *_cells(method, names)) for method in found),
        ),
        "differences": Table(
            ("difference", *(names[name] for name in COMPARED)),
            tuple(
                (f"{_title(one)} - {_title(other)}", *_gaps(one, other))
                for one in ours
                for other in others
                if _world(one) == _world(other)
            ),
        ),
        "regret": Table(
            ("method", "regret", "bound", "bound proven"),
            tuple(
                (_title(m), *_cells(m, ("regret", "regret_bound")), _proof(m)) for m in with_regret
            ),
        ),
    }


def aaggff_published(experiment: str, tables: Mapping[str, Table]) -> Mapping[str, Table]:
    """Return the paper's numbers for the methods measured, of what ``experiment`` stands in for."""
    source, data = STAND_INS.get(experiment, (experiment, ""))
    rows: dict[str, tuple[Cell, ...]] = {}
    keys: list[str] = []
    for method, *_ in tables["fairness"].rows:
        for name in _published_names(re.split("[ ,]", str(method))[0]):
            found = published_values(source, {"strategy.name": name})
            if found:
                keys = [key for key in PUBLISHED if key in found[0].values]
                title = _named(name, _rule(name).authors_form)
                rows[title] = (title, *(Number(100 * found[0].values[key]) for key in keys))
                break
    title = f"published on {data}, %" if data else "published, %"
    headings = (title, *(PUBLISHED[key] for key in keys))
    return {"published": Table(headings, tuple(rows.values()))}


def _title(method: Method) -> str:
    """Return the method's name, with the form of its rule and the optimizer it is plugged into."""
    words = method.runs[0].settings
    plugged = "server_optimizer" in words or "client.proximal_mu" in words
    rule = _rule(method.strategy)
    title = _named(method.strategy, rule.default_form)
    if any(key in words for key in OF_THE_RULE):
        title = _named(method.strategy, rule.authors_form)
    elif plugged:
        title = f"{method.strategy}, Fed{words.get('server_optimizer', 'prox').title()}"
    share = words.get("strategy.fraction")
    return title if share is None else f"{title}, {float(share):.1%} in a round"


def _rule(strategy: str) -> type[Weighting[Any]]:
    """Return the weighting of a strategy: its own, or FedAvg's."""
    return ALL_WEIGHTINGS.get(strategy, Weighting)


def _named(strategy: str, form: str) -> str:
    return f"{strategy}, {form}" if form else strategy


def _world(method: Method) -> Mapping[str, str]:
    """Return the words that two methods must share to be compared."""
    apart = ("seed", "strategy", *OF_THE_RULE)
    return {key: of for key, of in method.runs[0].settings.items() if key not in apart}


def _proof(method: Method) -> str | None:
    (found, *_) = method.values(lambda run: run.number("regret_bound_proven"))
    return PROVEN.get(found)


def _published_names(method: str) -> Sequence[str]:
    """Return a method's name, then that of AAggFF's other variant, which a stand-in may need."""
    variants = [
        key
        for key, declared in NAMED.items()
        if declared.answers == Question.FAIRNESS and not declared.baseline
    ]
    others = [key for key in variants if key != method] if method in variants else []
    return (method, *others)


def _cells(method: Method, names: Sequence[str] | Mapping[str, str]) -> list[Number | None]:
    return [numbers(method.values(_measure(name))) for name in names]


def _gaps(one: Method, other: Method) -> list[Number | None]:
    return [differences(paired(one, other, _measure(name))) for name in COMPARED]


def _measure(name: str) -> Callable[[KeptRun], float]:
    unit = 100.0 if name in SHARES else 1.0
    return lambda run: unit * run.number(name)
