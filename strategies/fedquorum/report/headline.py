"""Summarize an experiment in a few sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..rules.metrics import get_metric
from .names import format_setting
from .seed_groups import compute_mean_and_sd, find_distinguishing_keys
from .tables import METRIC_NAMES, Row, format_cell, group_comparable_rows, select_shared_settings

MIN_SEEDS_FOR_VERDICT = 5
"""``fedquorum study`` has no verdict with fewer."""

STUDY_HINT = "fedquorum study tunes every method equally and reports how certain a difference is."
MIN_METHODS = 2
MAX_METHODS_NAMED = 3
CLIENT_GROUP_NAMES = {"priority": "the priority clients", "all": "all clients"}


@dataclass(frozen=True)
class _Rival:
    """Another method with the best method's lead over it in each common seed."""

    row: Row
    leads: tuple[float, ...]


def format_headline(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """Yield paragraphs that name the best method and its lead on the clients that matter.

    These are the priority clients if non-priority clients exist, otherwise all. Only methods
    with the same data, availability and number of rounds are compared, one paragraph for each such
    combination. Runs that are not completed are left out.

    Parameters
    ----------
    rows : sequence of Row
        The rows of one experiment.
    """
    worlds = [
        candidates
        for world in group_comparable_rows(rows)
        if len(candidates := _select_candidates(world)) >= MIN_METHODS
        and len({row.group.metric for row in candidates}) == 1
    ]
    settings = [select_shared_settings(candidates[0].group) for candidates in worlds]
    distinguishing_keys = find_distinguishing_keys(settings)
    for candidates, values in zip(worlds, settings, strict=True):
        distinguishing = tuple(f"{k}={values[k]}" for k in distinguishing_keys if k in values)
        yield tuple(_format_sentences(candidates, distinguishing))
    min_seeds = min(
        (len(row.by_seed) for world in worlds for row in world), default=MIN_SEEDS_FOR_VERDICT
    )
    if min_seeds < MIN_SEEDS_FOR_VERDICT:
        verb = "decides" if min_seeds == 1 else "decide"
        yield (f"{_format_num_seeds(min_seeds)} {verb} little; {STUDY_HINT}",)


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
    """Yield the sentences on comparable methods; the settings ``distinguishing`` introduce them."""

    def format_title(row: Row) -> str:
        return row.group.format_title(distinguishing)

    settings = candidates[0].group.runs[0].settings
    where = ", ".join(format_setting(word, settings) for word in distinguishing)
    metric = candidates[0].group.metric
    higher = get_metric(metric).higher_is_better
    best = _select_best(candidates, "test")
    name, _, unit = METRIC_NAMES[metric].partition(", ")
    value = f"{format_cell(best.compute_statistic('test'), 'test', metric)} {unit}".rstrip()
    seeds = len(best.by_seed)
    value += f", of {best.coverage}" if best.coverage else ""
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "1 seed"
    extreme, clients = "highest" if higher else "lowest", CLIENT_GROUP_NAMES[best.clients]
    sentence = f"the {extreme} test {name} on {clients} is that"
    sentence = f"{where}: {sentence}" if where else sentence
    yield f"{sentence[0].upper()}{sentence[1:]} of {format_title(best)}: {value} ({over})."
    rivals = [rival for row in candidates if row is not best and (rival := _build_rival(best, row))]
    ahead = sorted((r for r in rivals if any(r.leads)), key=lambda r: sum(r.leads) / len(r.leads))
    if ahead:
        behind = [_format_lead(format_title(rival.row), rival.leads, metric) for rival in ahead]
        yield f"Paired by seed, it is ahead {_join_parts(behind)}."
    equal = [format_title(rival.row) for rival in rivals if not any(rival.leads)]
    if equal:
        yield f"In every seed, {'; '.join(equal[:MAX_METHODS_NAMED])} scored the same."
    worst = _select_best(candidates, "worst10")
    if worst.compute_statistic("worst10") is not None:
        same = "it" if worst is best else format_title(worst)
        value = (
            f"{format_cell(worst.compute_statistic('worst10'), 'worst10', metric)} {unit}".rstrip()
        )
        yield f"On the worst 10 % of these clients, {same} is best: {value}."


def _select_best(candidates: Sequence[Row], name: str) -> Row:
    """Return the first row with the best mean of a metric."""
    higher = get_metric(candidates[0].group.metric).higher_is_better

    def compute_rank(row: Row) -> float:
        found = row.compute_statistic(name)
        return float("-inf") if found is None else found.mean if higher else -found.mean

    return max(candidates, key=compute_rank)


def _build_rival(best: Row, row: Row) -> _Rival | None:
    """Build a rival with the best method's leads over it; None without a common seed."""
    sign = 1 if get_metric(best.group.metric).higher_is_better else -1
    common = sorted(best.by_seed.keys() & row.by_seed.keys())
    leads = tuple(sign * (best.by_seed[s]["test"] - row.by_seed[s]["test"]) for s in common)
    defined = tuple(gap for gap in leads if gap == gap)  # noqa: PLR0124 - NaN is not
    return _Rival(row, defined) if defined else None


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
