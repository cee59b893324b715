"""Check the rows of ``evaluations/`` against the population, the rounds and each other.

The objective and the summaries of ``rounds.jsonl`` follow from these rows;
``fedquorum.audit.check`` compares them.
"""

from collections import Counter
from collections.abc import Iterator

from ..metrics.calibration import add_bins
from ..records.round_record import SPLITS
from ..rules.composition import RuleSet
from ..rules.decisions import EPOCH_SETTINGS
from ..rules.metrics import AVERAGE_PRECISION, get_metric
from ..server.virtual_clock import Clock
from .replay import DROP_IN_KEY, AuditInput, TableRow

EvaluationMismatch = tuple[int, int | None, str]
"""A round, a client or None, and what is wrong."""

_SPLITS_BY_PREFIX = {"": "training", **{f"{split}_": split for split in SPLITS}}
"""The splits of a client's data, by the prefix of their columns' names."""


def find_evaluation_mismatches(
    recorded: AuditInput, rules: RuleSet
) -> Iterator[EvaluationMismatch]:
    """Yield contradictions in ``evaluations/``, by round and client.

    Parameters
    ----------
    recorded : AuditInput
        The records of the run.
    rules : RuleSet
        The rules of the run.
    """
    evaluates_others = (
        DROP_IN_KEY in recorded.run.config
        or rules.hooks.before_round is not None
        or rules.hooks.report is not None
    )
    num_rounds = len(recorded.run.rounds)
    counts: dict[tuple[int, str], int] = {}
    for number in sorted(recorded.evaluation_rows.row_ranges):
        if number > num_rounds + (recorded.run.status == "running"):
            yield number, None, "evaluations/ has rows of a round that rounds.jsonl lacks"
        rows = recorded.evaluation_rows[number]
        for client, count in Counter(row["client"] for row in rows).items():
            if count > 1:
                yield number, client, f"{count} rows in evaluations/, not one"
        for row in rows:
            mismatches = (
                *_find_client_mismatches(recorded, number, row),
                *_find_split_mismatches(recorded, number, row, evaluates_others=evaluates_others),
                *_find_personal_mismatches(recorded, number, row),
                *(_find_count_mismatches(row, counts) if _is_simulated(recorded, number) else ()),
            )
            yield from ((number, row["client"], f"evaluations/: {text}") for text in mismatches)


def _find_client_mismatches(recorded: AuditInput, number: int, row: TableRow) -> Iterator[str]:
    """Yield contradictions between a row's client and the population."""
    client, population = row["client"], recorded.population
    if client not in population.hosted_clients:
        yield "the population has no such client"
        return
    # A client that connects while a model is being evaluated joins in the next round.
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
    """Yield metrics of splits without rows, impossible metrics, and metrics not requested."""
    metric = recorded.run.find_leg(number).settings.get("evaluation.metric", "accuracy")
    simulated = _is_simulated(recorded, number)
    for prefix, split in _SPLITS_BY_PREFIX.items():
        names = ("loss", "accuracy", "metric", AVERAGE_PRECISION)
        reported = [name for name in names if row.get(prefix + name) is not None]
        if simulated and prefix and not reported and row[f"{prefix}num_examples"] is not None:
            yield f"examples of a {split} part of which nothing was measured"
        for name in reported if simulated else ():
            definition = get_metric(str(metric) if name == "metric" else name)
            if not definition.contains(row[prefix + name]):
                yield f"{prefix}{name} is {row[prefix + name]:g}, which none can be"
        if reported and simulated and row[f"{prefix}num_examples"] is None:
            yield f"{reported[0]} of a {split} part without any examples"
        is_unrequested = not prefix and not evaluates_others
        if reported and is_unrequested and row["client"] not in recorded.population.priority:
            yield f"{reported[0]} of a training part that counts in no objective"
        if "metric" in reported and metric in ("accuracy", "loss"):
            yield f"{prefix}metric, where the run measures {metric} alone"
        if AVERAGE_PRECISION in reported and metric != "auroc":
            yield f"{prefix}{AVERAGE_PRECISION}, which the run does not measure beside {metric}"
        if simulated and prefix:
            yield from _find_calibration_mismatches(row, prefix)


def _find_calibration_mismatches(row: TableRow, prefix: str) -> Iterator[str]:
    """Yield sums of bins of confidence that contradict the accuracy of the same predictions."""
    bins, accuracy = row.get(f"{prefix}calibration"), row.get(f"{prefix}accuracy")
    if not bins:
        return
    found = add_bins([bins])
    correct, count = int(found.correct.sum()), int(found.count.sum())
    if accuracy != correct / count:
        counted = f"{correct} of {count} correct"
        yield f"{prefix}calibration has {counted}, {prefix}accuracy is {accuracy}"


def _find_personal_mismatches(recorded: AuditInput, number: int, row: TableRow) -> Iterator[str]:
    """Yield personal models that the run did not ask for, and impossible metrics."""
    settings = recorded.run.find_leg(number).settings
    metric = settings.get("evaluation.metric", "accuracy")
    for model, key in EPOCH_SETTINGS.items():
        if row.get(f"{model}_epochs") is None:
            continue
        epochs, allowed = row[f"{model}_epochs"], settings.get(key, 0)
        candidates = allowed if isinstance(allowed, list) else [allowed]
        if candidates == [0] or not _is_last_round(recorded, number):
            yield f"the model {model}, where the run evaluates none"
        elif epochs not in candidates:
            yield f"{model}_epochs is {epochs}, which {key} does not allow"
        if row["held_out"]:
            yield f"the model {model} of a client that never trains"
        if not _is_simulated(recorded, number):
            continue
        kinds = {
            f"{model}_loss": "loss",
            **{f"{model}_{s}_{name}": name for s in SPLITS for name in ("loss", "accuracy")},
            **{f"{model}_{s}_metric": str(metric) for s in SPLITS},
        }
        for name, kind in kinds.items():
            value = row[name]
            if value is not None and not get_metric(kind).contains(value):
                yield f"{name} is {value:g}, which none can be"
        for split in SPLITS:
            yield from _find_calibration_mismatches(row, f"{model}_{split}_")


def _is_last_round(recorded: AuditInput, number: int) -> bool:
    """Say whether the run was to end after a round, by its number or by the virtual clock."""
    settings = recorded.run.find_leg(number).settings
    seconds, rounds = settings.get("engine.simulated_seconds"), recorded.run.rounds
    now = rounds[number - 1].simulated_seconds if number <= len(rounds) else None
    is_time_up = seconds is not None and now is not None and Clock(now).has_reached(seconds)
    return number == settings.get("rounds") or is_time_up


def _is_simulated(recorded: AuditInput, number: int) -> bool:
    """Say whether the app simulates the clients, with fixed data for the whole run."""
    engine = recorded.run.find_leg(number).settings.get("engine.name")
    return engine in ("in-process", "ray")


def _find_count_mismatches(row: TableRow, counts: dict[tuple[int, str], int]) -> Iterator[str]:
    """Yield changed sizes of a client's splits, and store the sizes in ``counts``."""
    for prefix, split in _SPLITS_BY_PREFIX.items():
        count = row[f"{prefix}num_examples"]
        before = counts.setdefault((row["client"], prefix), count) if count is not None else None
        if before != count:
            yield f"the {split} part has {count} examples, and had {before} in an earlier round"
