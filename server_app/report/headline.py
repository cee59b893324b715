"""What an experiment comes to, in a few sentences, before any table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedquorum.metrics import get_metric

from server_app.names import format_setting
from server_app.report.seed_groups import compute_mean_and_sd, find_distinguishing_keys
from server_app.report.tables import (
    METRIC_NAMES,
    Row,
    format_cell,
    group_comparable_rows,
    select_shared_settings,
)

MIN_SEEDS_FOR_VERDICT = 5
"""``fedquorum study`` has no verdict with fewer."""

STUDY_HINT = "fedquorum study tunes every method alike and says how sure a difference is."
MIN_METHODS = 2
MAX_METHODS_NAMED = 3
CLIENT_GROUP_NAMES = {"priority": "the priority clients", "all": "all clients"}


@dataclass(frozen=True)
class _Rival:
    """Another method, and by how much the best one is ahead of it in each common seed."""

    row: Row
    leads: tuple[float, ...]


def format_headline(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
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
        for world in group_comparable_rows(rows)
        if len(candidates := _select_candidates(world)) >= MIN_METHODS
        and len({row.group.metric for row in candidates}) == 1
    ]
    settings = [select_shared_settings(candidates[0].group) for candidates in worlds]
    telling = find_distinguishing_keys(settings)
    for candidates, values in zip(worlds, settings, strict=True):
        told = tuple(f"{key}={values[key]}" for key in telling if key in values)
        yield tuple(_format_sentences(candidates, told))
    fewest = min(
        (len(row.by_seed) for world in worlds for row in world), default=MIN_SEEDS_FOR_VERDICT
    )
    if fewest < MIN_SEEDS_FOR_VERDICT:
        yield (
            f"{_format_num_seeds(fewest)} {'decides' if fewest == 1 else 'decide'} little; {STUDY_HINT}",
        )


def _select_candidates(world: Sequence[Row]) -> list[Row]:
    """Return the completed rows of the clients that matter."""
    clients = "priority" if any(row.clients == "priority" for row in world) else "all"
    return [
        row
        for row in world
        if row.clients == clients
        and not row.group.unfinished_statuses
        and row.compute_statistic("test") is not None
    ]


def _format_sentences(candidates: Sequence[Row], distinguishing: Sequence[str]) -> Iterator[str]:
    """Yield the sentences of one world, which ``distinguishing`` tells apart from others."""

    def title(row: Row) -> str:
        return row.group.format_title(distinguishing)

    settings = candidates[0].group.runs[0].settings
    where = ", ".join(format_setting(word, settings) for word in distinguishing)
    metric = candidates[0].group.metric
    higher = get_metric(metric).higher_is_better
    best = _select_best(candidates, "test")
    name, _, unit = METRIC_NAMES[metric].partition(", ")
    value = f"{format_cell(best.compute_statistic('test'), 'test', metric)} {unit}".rstrip()
    seeds = len(best.by_seed)
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "1 seed"
    said = f"the {'highest' if higher else 'lowest'} test {name} on {CLIENT_GROUP_NAMES[best.clients]} is that"
    said = f"{where}: {said}" if where else said
    yield f"{said[0].upper()}{said[1:]} of {title(best)}: {value} ({over})."
    rivals = [rival for row in candidates if row is not best and (rival := _build_rival(best, row))]
    ahead = sorted((r for r in rivals if any(r.leads)), key=lambda r: sum(r.leads) / len(r.leads))
    if ahead:
        behind = [_format_lead(title(rival.row), rival.leads, metric) for rival in ahead]
        yield f"Paired by seed, it is ahead {_join_parts(behind)}."
    equal = [title(rival.row) for rival in rivals if not any(rival.leads)]
    if equal:
        yield f"In every seed, {'; '.join(equal[:MAX_METHODS_NAMED])} measured the same."
    worst = _select_best(candidates, "worst10")
    if worst.compute_statistic("worst10") is not None:
        same = "it" if worst is best else title(worst)
        value = (
            f"{format_cell(worst.compute_statistic('worst10'), 'worst10', metric)} {unit}".rstrip()
        )
        yield f"On the worst 10 % of these clients, {same} is best: {value}."


def _select_best(candidates: Sequence[Row], name: str) -> Row:
    """Return the row with the best mean of a measure; the first of several."""
    higher = get_metric(candidates[0].group.metric).higher_is_better

    def rank(row: Row) -> float:
        found = row.compute_statistic(name)
        return float("-inf") if found is None else found.mean if higher else -found.mean

    return max(candidates, key=rank)


def _build_rival(best: Row, row: Row) -> _Rival | None:
    """Return another method with the best one's leads; None without a common seed."""
    sign = 1 if get_metric(best.group.metric).higher_is_better else -1
    common = sorted(best.by_seed.keys() & row.by_seed.keys())
    leads = tuple(sign * (best.by_seed[s]["test"] - row.by_seed[s]["test"]) for s in common)
    known = tuple(gap for gap in leads if gap == gap)  # noqa: PLR0124 - NaN is not
    return _Rival(row, known) if known else None


def _format_lead(name: str, leads: Sequence[float], metric: str) -> str:
    gap = format_cell(compute_mean_and_sd(leads), "test", metric)
    unit = " points" if get_metric(metric).is_fraction else ""
    above = sum(value > 0 for value in leads)
    return f"of {name} by {gap}{unit} (in {above} of {_format_num_seeds(len(leads))})"


def _join_parts(parts: Sequence[str]) -> str:
    named, more = list(parts[:MAX_METHODS_NAMED]), len(parts) - MAX_METHODS_NAMED
    if more > 0:
        named.append(f"of {more} other{'s' if more > 1 else ''} by more")
    return named[0] if len(named) == 1 else f"{'; '.join(named[:-1])}; and {named[-1]}"


def _format_num_seeds(number: int) -> str:
    return f"{number} seed{'s' if number != 1 else ''}"
