"""Check who measured a model, and what, in ``evaluations/``.

The objective and the summaries of ``rounds.jsonl`` follow from these rows, which
``fedquorum.audit.check`` compares. Here the rows are compared with the population, with the rounds
and with each other.
"""

from collections import Counter
from collections.abc import Iterator

from ..composition import RuleSet
from ..metrics import get_metric
from ..records.round_record import SPLITS
from .replay import DROP_IN_KEY, AuditInput, TableRow

EvaluationMismatch = tuple[int, int | None, str]
"""A round, a client or None, and what is wrong."""

_SPLITS_BY_PREFIX = {"": "training", **{f"{part}_": part for part in SPLITS}}
"""The parts of a client's data, by what the names of their columns begin with."""


def find_evaluation_mismatches(
    recorded: AuditInput, rules: RuleSet
) -> Iterator[EvaluationMismatch]:
    """Yield what does not fit in ``evaluations/``, by round and client.

    Parameters
    ----------
    recorded : Recorded
        The records of the run.
    rules : Rules
        Its rules.
    """
    measures_others = (
        DROP_IN_KEY in recorded.run.config
        or rules.trains_local_models
        or rules.hooks.before_round is not None
        or rules.hooks.report is not None
    )
    last = len(recorded.run.rounds)
    counts: dict[tuple[int, str], int] = {}
    for number in sorted(recorded.evaluation_rows.row_ranges):
        if number > last + (recorded.run.status == "running"):
            yield number, None, "evaluations/ has rows of a round that rounds.jsonl lacks"
        rows = recorded.evaluation_rows[number]
        for client, count in Counter(row["client"] for row in rows).items():
            if count > 1:
                yield number, client, f"{count} rows in evaluations/, not one"
        for row in rows:
            problems = (
                *_find_client_mismatches(recorded, number, row),
                *_find_split_mismatches(recorded, number, row, evaluates_others=measures_others),
                *(_find_count_mismatches(row, counts) if _is_simulated(recorded, number) else ()),
            )
            yield from ((number, row["client"], f"evaluations/: {text}") for text in problems)


def _find_client_mismatches(recorded: AuditInput, number: int, row: TableRow) -> Iterator[str]:
    """Yield what is wrong of the client: whether there is one, and what it is."""
    client, population = row["client"], recorded.population
    if client not in population.hosted_clients:
        yield "the population has no such client"
        return
    # A client that comes while a model is measured joins in the round after.
    joined = recorded.joined_rounds.get(client, 0)
    if joined > number + 1:
        yield f"the client joined in round {joined}"
    expected = {
        "priority": client in population.priority,
        "held_out": client in population.held_out,
    }
    for name, value in expected.items():
        if row[name] != value:
            yield f"{name} is {row[name]}, the population says {value}"


def _find_split_mismatches(
    recorded: AuditInput, number: int, row: TableRow, *, evaluates_others: bool
) -> Iterator[str]:
    """Yield what was measured of a part without rows, or without anybody asking for it."""
    metric = recorded.run.find_leg(number).settings.get("evaluation.metric", "accuracy")
    simulated = _is_simulated(recorded, number)
    for prefix, part in _SPLITS_BY_PREFIX.items():
        measures = ("loss", "accuracy", "metric")
        given = [name for name in measures if row.get(prefix + name) is not None]
        if simulated and prefix and not given and row[f"{prefix}num_examples"] is not None:
            yield f"examples of a {part} part of which nothing was measured"
        for name in given if simulated else ():
            possible = get_metric(str(metric) if name == "metric" else name)
            if not possible.contains(row[prefix + name]):
                yield f"{prefix}{name} is {row[prefix + name]:g}, which none can be"
        if given and simulated and row[f"{prefix}num_examples"] is None:
            yield f"{given[0]} of a {part} part without any examples"
        others = not prefix and not evaluates_others
        if given and others and row["client"] not in recorded.population.priority:
            yield f"{given[0]} of a training part that counts in no objective"
        if "metric" in given and metric in ("accuracy", "loss"):
            yield f"{prefix}metric, where the run measures {metric} alone"


def _is_simulated(recorded: AuditInput, number: int) -> bool:
    """Say whether the clients are the app's own, whose data was made once for the whole run."""
    engine = recorded.run.find_leg(number).settings.get("engine.name")
    return engine in ("in-process", "ray")


def _find_count_mismatches(row: TableRow, counts: dict[tuple[int, str], int]) -> Iterator[str]:
    """Yield the sizes of a client's parts that are not as before, and keep them in ``counts``."""
    for prefix, part in _SPLITS_BY_PREFIX.items():
        count = row[f"{prefix}num_examples"]
        before = counts.setdefault((row["client"], prefix), count) if count is not None else None
        if before != count:
            yield f"the {part} part has {count} examples, and had {before} in an earlier round"
