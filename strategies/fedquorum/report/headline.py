"""Summarize an experiment in a few sentences."""

import math
from collections.abc import Iterator, Sequence

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


def format_headline(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """Yield paragraphs that name the best method and its lead on the clients that matter.

    These are the priority clients if non-priority clients exist, otherwise all. Only methods
    with the same data, availability and number of rounds are compared, one paragraph for each such
    combination, and only over the seeds that all of them have. Methods with the same printed mean
    tie. Validation splits decide if all methods have them, because the settings may have been
    chosen by the results; the test metric is then beside theirs. Runs that are not completed are
    left out.

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
        yield tuple(_Comparison(candidates, distinguishing).format_sentences())
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


class _Comparison:
    """Comparable methods, by the split that decides and over the seeds that all have.

    Parameters
    ----------
    rows : sequence of Row
        The methods.
    distinguishing : sequence of str
        The settings, each as ``key=value``, that introduce the sentences instead of the methods'.
    """

    def __init__(self, rows: Sequence[Row], distinguishing: Sequence[str]) -> None:
        self.rows = rows
        self.distinguishing = distinguishing
        self.metric = rows[0].group.metric
        self.higher_is_better = get_metric(self.metric).higher_is_better
        self.unit = METRIC_NAMES[self.metric].partition(", ")[2]
        self.has_validation = all(row.compute_statistic("validation") for row in rows)
        self.key = "validation" if self.has_validation else "test"
        self.seeds = self._list_common_seeds(self.key)

    def _list_common_seeds(self, key: str) -> list[int]:
        """List the seeds in which every method has the number."""
        defined = [
            {seed for seed, values in row.by_seed.items() if not math.isnan(values[key])}
            for row in self.rows
        ]
        return sorted(set.intersection(*defined))

    def format_sentences(self) -> Iterator[str]:
        """Yield the sentences."""
        if not self.seeds:
            yield self._introduce(
                "the methods have no seed in common, so they are not compared: "
                f"{self._format_seeds_by_method()}."
            )
            return
        best = self._select_best(self.key, self.seeds)
        yield self._format_first_sentence(best)
        rivals = [row for row in self.rows if row not in best]
        if rivals:
            yield self._format_leads(best, rivals)
        yield from self._format_worst_tenth(best)

    def _introduce(self, sentence: str) -> str:
        """Begin a sentence with the settings that distinguish the compared methods' runs."""
        settings = self.rows[0].group.runs[0].settings
        where = ", ".join(format_setting(word, settings) for word in self.distinguishing)
        sentence = f"{where}: {sentence}" if where else sentence
        return f"{sentence[0].upper()}{sentence[1:]}"

    def _format_first_sentence(self, best: Sequence[Row]) -> str:
        name = METRIC_NAMES[self.metric].partition(", ")[0]
        extreme = "highest" if self.higher_is_better else "lowest"
        what = f"the {extreme} {self.key} {name} on {CLIENT_GROUP_NAMES[best[0].clients]}"
        values = self._format_values(best, self.key, self.seeds)
        coverage = best[0].coverage if len(best) == 1 and not self.has_validation else ""
        values += f", of {coverage}" if coverage else ""
        if self.has_validation:
            values += f"; test {name} {self._format_values(best, 'test', self.seeds)}"
        over = self._format_seeds()
        if len(best) == 1:
            return self._introduce(
                f"{what} is that of {self._format_title(best[0])}: {values} ({over})."
            )
        same = ", the same in every seed" if self._are_equal_by_seed(best) else ""
        names = _join_names([self._format_title(row) for row in best])
        return self._introduce(f"{what} is a tie of {names}{same}: {values} ({over}).")

    def _format_values(self, rows: Sequence[Row], key: str, seeds: Sequence[int]) -> str:
        """Format the methods' means over seeds, once if all are equal."""
        cells = dict.fromkeys(self._format_cell(row, key, seeds) for row in rows)
        if len(cells) > 1:
            cells = dict.fromkeys(cell.partition(" ± ")[0] for cell in cells)
        shown = list(cells)[:MAX_METHODS_NAMED]
        more = ", ..." if len(cells) > len(shown) else ""
        return f"{', '.join(shown)}{more} {self.unit}".rstrip()

    def _format_cell(self, row: Row, key: str, seeds: Sequence[int]) -> str:
        found = compute_mean_and_sd(row.by_seed[seed][key] for seed in seeds)
        return format_cell(found, key, self.metric)

    def _format_seeds(self) -> str:
        """Say over which seeds the means are, and how many each method has."""
        number = len(self.seeds)
        over = f"mean ± standard deviation over {number} seeds" if number > 1 else "1 seed"
        if all(len(row.by_seed) == number for row in self.rows):
            return over if number == 1 else f"{over} of each method"
        every = "both methods" if len(self.rows) == MIN_METHODS else "all methods"
        return f"{over} that {every} have; {self._format_seeds_by_method()}"

    def _format_seeds_by_method(self) -> str:
        """Format how many seeds each method has, such as "FedAvg has 6 seeds; TERM has 1"."""
        by_number: dict[int, list[str]] = {}
        for row in self.rows:
            by_number.setdefault(len(row.by_seed), []).append(self._format_title(row))
        parts = [
            f"{_join_names(names)} {'have' if names[1:] else 'has'} {_format_num_seeds(number)}"
            for number, names in sorted(by_number.items(), reverse=True)
        ]
        return "; ".join(parts)

    def _format_leads(self, best: Sequence[Row], rivals: Sequence[Row]) -> str:
        """Format the lead of the best method, the first of those that tie, over each rival."""
        leads = {id(row): self._compute_leads(best[0], row) for row in rivals}
        ordered = sorted(rivals, key=lambda row: sum(leads[id(row)]))
        parts = [self._format_lead(row, leads[id(row)]) for row in ordered[:MAX_METHODS_NAMED]]
        more = len(ordered) - len(parts)
        if more:
            parts.append(f"of {more} other{'s' if more > 1 else ''} by more")
        subject = "it" if len(best) == 1 else self._format_title(best[0])
        joined = parts[0] if len(parts) == 1 else f"{'; '.join(parts[:-1])}; and {parts[-1]}"
        return f"Paired by seed, {subject} is ahead {joined}."

    def _compute_leads(self, best: Row, row: Row) -> list[float]:
        sign = 1 if self.higher_is_better else -1
        return [
            sign * (best.by_seed[seed][self.key] - row.by_seed[seed][self.key])
            for seed in self.seeds
        ]

    def _format_lead(self, row: Row, leads: Sequence[float]) -> str:
        gap = format_cell(compute_mean_and_sd(leads), self.key, self.metric)
        unit = " points" if get_metric(self.metric).is_fraction else ""
        above = sum(value > 0 for value in leads)
        evidence = f"in {above} of {_format_num_seeds(len(leads))}"
        if self.has_validation:
            evidence += f"; test {self._format_values([row], 'test', self.seeds)}"
        return f"of {self._format_title(row)} by {gap}{unit} ({evidence})"

    def _format_worst_tenth(self, best: Sequence[Row]) -> Iterator[str]:
        """Yield which methods are best on the worst tenth of the clients, if all have that."""
        key = "validation_worst10" if self.has_validation else "worst10"
        seeds = self._list_common_seeds(key)
        if not seeds:
            return
        worst = self._select_best(key, seeds)
        names = "it" if [*worst] == [*best] and len(best) == 1 else self._join_titles(worst)
        value = self._format_values(worst, key, seeds)
        if self.has_validation:
            value = f"validation {value}, test {self._format_values(worst, 'worst10', seeds)}"
        over = "" if seeds == self.seeds else f" ({_format_num_seeds(len(seeds))})"
        verb = "is best" if len(worst) == 1 else "tie"
        yield f"On the worst 10 % of these clients, {names} {verb}: {value}{over}."

    def _select_best(self, key: str, seeds: Sequence[int]) -> list[Row]:
        """Return the methods whose mean over the seeds prints as the best one does."""

        def compute_mean(row: Row) -> float:
            found = compute_mean_and_sd(row.by_seed[seed][key] for seed in seeds)
            return math.nan if found is None else found.mean

        choose = max if self.higher_is_better else min
        first = choose(self.rows, key=compute_mean)
        printed = self._format_cell(first, key, seeds).partition(" ± ")[0]
        return [
            row
            for row in self.rows
            if self._format_cell(row, key, seeds).partition(" ± ")[0] == printed
        ]

    def _are_equal_by_seed(self, rows: Sequence[Row]) -> bool:
        first, *others = rows
        return not any(any(self._compute_leads(first, row)) for row in others)

    def _join_titles(self, rows: Sequence[Row]) -> str:
        return _join_names([self._format_title(row) for row in rows])

    def _format_title(self, row: Row) -> str:
        return row.group.format_title(self.distinguishing)


def _join_names(names: Sequence[str]) -> str:
    """Join the names of methods, which may have commas: the first three, and how many more."""
    named, more = list(names[:MAX_METHODS_NAMED]), len(names) - MAX_METHODS_NAMED
    if more > 0:
        named.append(f"{more} other{'s' if more > 1 else ''}")
    if len(named) == 1:
        return named[0]
    separator = "; " if any(", " in name for name in named) else ", "
    last = "; and " if separator == "; " else " and "
    return f"{separator.join(named[:-1])}{last}{named[-1]}"


def _format_num_seeds(number: int) -> str:
    return f"{number} seed{'s' if number != 1 else ''}"
