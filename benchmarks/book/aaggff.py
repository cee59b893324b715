"""AAggFF's claims, measured: how the clients' test metrics are spread, for every method."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedquorum.named import NAMED
from fedquorum.records.reader import Run
from fedquorum.rule import Question

from benchmarks.book.kept import KeptRun
from benchmarks.book.measured import Cell, Number, Table, differences, numbers
from benchmarks.book.methods import Method, methods, paired
from server_app.report.groups import Group
from server_app.report.measures import client_measures, measured_groups, run_measures
from server_app.report.methods import is_baseline
from server_app.report.published import published_values

SHARES = {
    "average": "average",
    "worst": "worst",
    "worst10": "worst 10 %",
    "best": "best",
    "best10": "best 10 %",
    "gini": "Gini",
}
LOSS = {"largest_training_loss": "largest training loss, nats"}
COMPARED = ("average", "worst", "worst10", "gini", "largest_training_loss")
ORDER = ("average", "worst", "worst10", "best", "best10", "gini")
STAND_INS = {
    "aaggff/mnist_writers": ("aaggff/celeba", "CelebA"),
    "aaggff/shakespeare": ("aaggff/reddit", "Reddit"),
    "aaggff/spoken_digits": ("aaggff/speech", "Speech Commands"),
}


def aaggff_numbers(run: Run) -> Mapping[str, Any]:
    """Return what a run comes to, over the clients whose test parts it measured."""
    (clients, *_) = measured_groups(Group(run.experiment, run.strategy, (), (run,))) or ("all",)
    return {**client_measures(run, clients), **run_measures(run)}


def aaggff_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return the tables of one experiment.

    ``fairness``: the test metric over the clients' own test parts (percent, but for a loss), and
    the largest training loss of a client. ``differences``: AAggFF minus each other method, seed by
    seed. ``regret``: AAggFF's beside its bound.
    """
    found = sorted(methods(runs), key=lambda m: (not m.strategy.startswith("aaggff"), m.strategy))
    names = SHARES | LOSS
    ours = [method for method in found if not is_baseline(method.strategy)]
    others = [method for method in found if is_baseline(method.strategy)]
    with_regret = [m for m in found if numbers(m.values(lambda run: run.number("regret")))]
    return {
        "fairness": Table(
            ("method", "seeds", *names.values()),
            tuple((method.name, len(method.runs), *_cells(method, names)) for method in found),
        ),
        "differences": Table(
            ("difference", *(names[name] for name in COMPARED)),
            tuple(
                (f"{one.name} - {other.name}", *_gaps(one, other))
                for one in ours
                for other in others
            ),
        ),
        "regret": Table(
            ("method", "regret", "bound"),
            tuple((m.name, *_cells(m, ("regret", "regret_bound"))) for m in with_regret),
        ),
    }


def aaggff_published(experiment: str, tables: Mapping[str, Table]) -> Mapping[str, Table]:
    """Return the paper's numbers for the methods measured, of what ``experiment`` stands in for."""
    source, data = STAND_INS.get(experiment, (experiment, ""))
    rows: list[tuple[Cell, ...]] = []
    keys: list[str] = []
    for method, *_ in tables["fairness"].rows:
        for name in _published_names(str(method)):
            found = published_values(source, {"strategy.name": name})
            if found:
                keys = [key for key in ORDER if key in found[0].values]
                rows.append((name, *(Number(100 * found[0].values[key]) for key in keys)))
                break
    title = f"published on {data}, %" if data else "published, %"
    return {"published": Table((title, *(SHARES[key] for key in keys)), tuple(rows))}


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
