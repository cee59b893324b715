"""What an experiment comes to, in a few sentences, before any table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedquorum.metrics import metric_called

from server_app.naming import setting_words
from server_app.report.groups import statistic_of, telling_keys
from server_app.report.tables import METRIC_NAMES, Row, cell, compared_rows, world_settings

FEWEST_SEEDS = 5
"""``fedquorum study`` has no verdict with fewer."""

STUDY = "fedquorum study tunes every method alike and says how sure a difference is."
TWO = 2
MOST_NAMED = 3
CLIENTS = {"priority": "the priority clients", "all": "all clients"}


@dataclass(frozen=True)
class _Rival:
    """Another method, and by how much the best one is ahead of it in each common seed."""

    row: Row
    leads: tuple[float, ...]


def lead(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """Yield paragraphs: which method measured best on the clients that matter, how far ahead it is.

    These are the priority clients where there are others, and all clients elsewhere. Methods that
    met different data, availability or numbers of rounds are not compared: each such world has
    a paragraph of its own. Runs that are not completed are left out.

    Parameters
    ----------
    rows : sequence of Row
        Those of one experiment.
    """
    worlds = [
        candidates
        for world in compared_rows(rows)
        if len(candidates := _candidates(world)) >= TWO
        and len({row.group.metric for row in candidates}) == 1
    ]
    settings = [world_settings(candidates[0].group) for candidates in worlds]
    telling = telling_keys(settings)
    for candidates, values in zip(worlds, settings, strict=True):
        told = tuple(f"{key}={values[key]}" for key in telling if key in values)
        yield tuple(_sentences(candidates, told))
    fewest = min((len(row.by_seed) for world in worlds for row in world), default=FEWEST_SEEDS)
    if fewest < FEWEST_SEEDS:
        yield (f"{_seeds(fewest)} {'decides' if fewest == 1 else 'decide'} little; {STUDY}",)


def _candidates(world: Sequence[Row]) -> list[Row]:
    """Return the completed rows of the clients that matter."""
    clients = "priority" if any(row.clients == "priority" for row in world) else "all"
    return [
        row
        for row in world
        if row.clients == clients and not row.group.unfinished and row.statistic("test") is not None
    ]


def _sentences(candidates: Sequence[Row], told: Sequence[str]) -> Iterator[str]:
    """Yield the sentences of one world, which ``told`` tells apart from others."""

    def title(row: Row) -> str:
        return row.group.title_without(told)

    settings = candidates[0].group.runs[0].settings
    where = ", ".join(setting_words(word, settings) for word in told)
    metric = candidates[0].group.metric
    higher = metric_called(metric).higher_is_better
    best = _best(candidates, "test")
    name, _, unit = METRIC_NAMES[metric].partition(", ")
    value = f"{cell(best.statistic('test'), 'test', metric)} {unit}".rstrip()
    seeds = len(best.by_seed)
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "1 seed"
    said = f"the {'highest' if higher else 'lowest'} test {name} on {CLIENTS[best.clients]} is that"
    said = f"{where}: {said}" if where else said
    yield f"{said[0].upper()}{said[1:]} of {title(best)}: {value} ({over})."
    rivals = [rival for row in candidates if row is not best and (rival := _rival(best, row))]
    ahead = sorted((r for r in rivals if any(r.leads)), key=lambda r: sum(r.leads) / len(r.leads))
    if ahead:
        behind = [_behind(title(rival.row), rival.leads, metric) for rival in ahead]
        yield f"Paired by seed, it is ahead {_listed(behind)}."
    equal = [title(rival.row) for rival in rivals if not any(rival.leads)]
    if equal:
        yield f"In every seed, {'; '.join(equal[:MOST_NAMED])} measured the same."
    worst = _best(candidates, "worst10")
    if worst.statistic("worst10") is not None:
        same = "it" if worst is best else title(worst)
        value = f"{cell(worst.statistic('worst10'), 'worst10', metric)} {unit}".rstrip()
        yield f"On the worst 10 % of these clients, {same} is best: {value}."


def _best(candidates: Sequence[Row], name: str) -> Row:
    """Return the row with the best mean of a measure; the first of several."""
    higher = metric_called(candidates[0].group.metric).higher_is_better

    def rank(row: Row) -> float:
        found = row.statistic(name)
        return float("-inf") if found is None else found.mean if higher else -found.mean

    return max(candidates, key=rank)


def _rival(best: Row, row: Row) -> _Rival | None:
    """Return another method with the best one's leads; None without a common seed."""
    sign = 1 if metric_called(best.group.metric).higher_is_better else -1
    common = sorted(best.by_seed.keys() & row.by_seed.keys())
    leads = tuple(sign * (best.by_seed[s]["test"] - row.by_seed[s]["test"]) for s in common)
    known = tuple(gap for gap in leads if gap == gap)  # noqa: PLR0124 - NaN is not
    return _Rival(row, known) if known else None


def _behind(name: str, leads: Sequence[float], metric: str) -> str:
    gap = cell(statistic_of(leads), "test", metric)
    unit = " points" if metric_called(metric).is_share else ""
    above = sum(value > 0 for value in leads)
    return f"of {name} by {gap}{unit} (in {above} of {_seeds(len(leads))})"


def _listed(parts: Sequence[str]) -> str:
    named, more = list(parts[:MOST_NAMED]), len(parts) - MOST_NAMED
    if more > 0:
        named.append(f"of {more} other{'s' if more > 1 else ''} by more")
    return named[0] if len(named) == 1 else f"{'; '.join(named[:-1])}; and {named[-1]}"


def _seeds(number: int) -> str:
    return f"{number} seed{'s' if number != 1 else ''}"
