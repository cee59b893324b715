"""AAggFF's claims, measured: how the clients' test metrics are spread, for every method."""

from collections.abc import Mapping, Sequence

from fedquorum.named import NAMED
from fedquorum.records.reader import Run
from fedquorum.rule import Question

from benchmarks.book import measured
from benchmarks.book.measured import Cell, Number, Table, numbers
from server_app.report.groups import group_runs
from server_app.report.published import published_values
from server_app.report.tables import Row, differences, summarize

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


def aaggff_tables(runs: Sequence[Run]) -> Mapping[str, Table]:
    """Return the tables of one experiment.

    ``fairness``: the test metric over the clients' own test parts (percent, but for a loss), and
    the largest training loss of a client. ``differences``: AAggFF minus each other method, seed by
    seed. ``regret``: AAggFF's beside its bound.
    """
    rows = sorted(
        summarize(group_runs(runs)),
        key=lambda row: (not row.group.strategy.startswith("aaggff"), row.group.strategy),
    )
    names = SHARES | LOSS
    return {
        "fairness": Table(
            ("method", "seeds", *names.values()),
            tuple((row.group.method, len(row.by_seed), *_cells(row, names)) for row in rows),
        ),
        "differences": Table(
            ("difference", *(names[name] for name in COMPARED)),
            tuple(
                (
                    f"{pair.one.group.method} - {pair.other.group.method}",
                    *(
                        measured.differences([_unit(n) * gap[n] for gap in pair.by_seed.values()])
                        for n in COMPARED
                    ),
                )
                for pair in differences(rows)
            ),
        ),
        "regret": Table(
            ("method", "regret", "bound"),
            tuple(
                (row.group.method, *_cells(row, ("regret", "regret_bound")))
                for row in rows
                if row.statistic("regret") is not None
            ),
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


def _cells(row: Row, names: Sequence[str] | Mapping[str, str]) -> list[Number | None]:
    return [numbers([_unit(n) * of[n] for of in row.by_seed.values()]) for n in names]


def _unit(name: str) -> float:
    return 100.0 if name in SHARES else 1.0
