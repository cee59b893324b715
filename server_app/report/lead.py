"""What an experiment comes to, in a few sentences, before any table."""

from collections.abc import Iterator, Sequence

from fedquorum.metrics import metric_called

from server_app.report.groups import Statistic
from server_app.report.tables import METRIC_NAMES, Difference, Row, cell

FEWEST_SEEDS = 5
"""``fedquorum-study`` has no verdict with fewer."""

TWO = 2
MOST_SENTENCES = 3
CLIENTS = {"priority": "the priority clients", "all": "all clients"}


def lead(rows: Sequence[Row], pairs: Sequence[Difference]) -> Iterator[str]:
    """Yield which method measured best on the clients that matter, and how it differs from others.

    These are the priority clients where there are others, and all clients elsewhere.

    Parameters
    ----------
    rows : sequence of Row
        Those of one experiment.
    pairs : sequence of Difference
        Their differences, paired by seed.
    """
    clients = "priority" if any(row.clients == "priority" for row in rows) else "all"
    found = [(row, test) for row in rows if (test := _test(row, clients)) is not None]
    metrics = {row.group.metric for row, _ in found}
    if len(found) < TWO or len(metrics) > 1:
        return
    (metric,) = metrics
    higher = metric_called(metric).higher_is_better
    best, test = max(found, key=lambda one: one[1].mean if higher else -one[1].mean)
    seeds = len(best.by_seed)
    name, _, unit = METRIC_NAMES[metric].partition(", ")
    yield (
        f"{best.group.title} has the {'highest' if higher else 'lowest'} test {name} on "
        f"{CLIENTS[clients]}: {cell(test, 'test', metric)} {unit}".rstrip()
        + f" over {seeds} seed{'s' if seeds > 1 else ''}."
    )
    for pair in [pair for pair in pairs if pair.one is best][:MOST_SENTENCES]:
        gap = cell(pair.statistic("test"), "test", metric)
        above, common = pair.above("test")
        yield (
            f"Its difference from {pair.other.group.title}, paired by seed, is {gap}, above 0 in "
            f"{above} of {common}."
        )
    if min(len(row.by_seed) for row, _ in found) < FEWEST_SEEDS:
        yield (
            f"Fewer than {FEWEST_SEEDS} seeds decide little; fedquorum-study tunes every method "
            "alike and says how sure a difference is."
        )


def _test(row: Row, clients: str) -> Statistic | None:
    return row.statistic("test") if row.clients == clients else None
