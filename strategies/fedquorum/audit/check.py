"""Replay every decision of a run and compare it with the records.

The audit compares the selected clients, the threshold, F(w), the admitted fractions, responses,
mixing coefficients, omega, weights, inclusion mass, decision losses, divergence, counts, the
summaries of the clients' test metrics, and the clients that evaluated a model. It lists everything
that the records cannot show.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..client.gate import should_train
from ..errors import RunError
from ..metrics.fairness import exact_mean, exact_sum
from ..records.checkpoint import CHECKPOINTS_DIR, CheckpointStore
from ..records.client_names import NO_NAMES, ClientNames
from ..records.data_fingerprint import (
    FINGERPRINT,
    get_fingerprint,
    list_data_changes,
    read_checkpoint_fingerprint,
)
from ..records.reader import Run
from ..records.round_record import (
    FREE_GROUP,
    MEAN_GROUP,
    SPLITS,
    RoundRecord,
    SplitSummary,
    compute_weight_error,
    summarize_evaluations,
)
from ..rules.composition import RuleSet
from ..rules.decisions import STATUSES
from ..rules.round import REJECTION_REASONS, compute_divergence
from ..rules.selection.base import samples_objective, select_objective_clients
from ..rules.types import PerClient
from ..rules.weighting.base import find_contradictions
from .clock_check import build_clock_check
from .evaluations import find_evaluation_mismatches
from .replay import (
    AuditInput,
    ReplayedRound,
    TableRow,
    UndecidableError,
    build_recorded_rules,
    convert_damage_errors,
    read_audit_input,
    replay_rounds,
)

TOLERANCE = 1e-9
DISPLAY_DIGITS = 9

MIN_EXACT_NORM = 1e-155
"""Smaller norms are not exact, because their squares underflow or lose bits in float64."""


@dataclass(frozen=True)
class Mismatch:
    """A mismatch: a record that does not follow from the other records.

    ``round`` is None for the run as a whole, ``client`` is None for the round as a whole.
    """

    round: int | None
    client: int | None
    text: str

    def __str__(self) -> str:
        return self.format(NO_NAMES)

    def format(self, names: ClientNames) -> str:
        """Return the mismatch as one line, with the client's name."""
        where = [] if self.round is None else [f"round {self.round}"]
        where += [] if self.client is None else [f"client {names.format(self.client)}"]
        return f"{', '.join(where) or 'run'}: {self.text}"


@dataclass(frozen=True)
class AuditResult:
    """The result of replaying a run.

    Parameters
    ----------
    run : Run
    num_rounds, num_decisions : int
        Number of replayed rounds, and of replayed rows of the clients table.
    mismatches : tuple of Mismatch
    unverifiable : tuple of str
        Facts that the records cannot show, with the reason.
    """

    run: Run
    num_rounds: int
    num_decisions: int
    mismatches: tuple[Mismatch, ...]
    unverifiable: tuple[str, ...]


def audit_run(directory: Path, *, trust: bool = False) -> AuditResult:
    """Replay a run from its records and compare.

    Parameters
    ----------
    directory : Path
        The run's folder.
    trust : bool
        As in ``read_audit_input``.

    Raises
    ------
    RunError
        If a record is missing or damaged, or the run names a rule by import path without ``trust``.
    """
    with convert_damage_errors(directory):
        return _audit_input(read_audit_input(directory, trust=trust))


def _audit_input(recorded: AuditInput) -> AuditResult:
    rules = build_recorded_rules(recorded, recorded.run.config)
    mismatches = [
        *_find_order_mismatches(recorded),
        *_find_leg_mismatches(recorded.run),
        *_find_data_mismatches(recorded.run),
        *(Mismatch(*found) for found in find_evaluation_mismatches(recorded, rules)),
    ]
    rounds = decisions = 0
    loss_sum_before: float | None = None
    clock = build_clock_check(recorded.run.settings)
    statuses: Counter[str] = Counter()
    admitted: Counter[int] = Counter()
    try:
        for replayed in replay_rounds(recorded):
            mismatches += _find_round_mismatches(recorded, replayed, loss_sum_before)
            if clock is not None:
                number = replayed.record.round
                found = clock.find_mismatches(replayed.rows, replayed.record)
                mismatches += [Mismatch(number, client, text) for client, text in found]
            loss_sum_before = replayed.record.decision_loss_sum
            rounds, decisions = rounds + 1, decisions + len(replayed.rows)
            statuses.update(_get_status_kind(recorded, replayed, row) for row in replayed.rows)
            admitted.update(row["client"] for row in replayed.rows if row["weight"] != 0.0)
    except UndecidableError as error:
        mismatches.append(
            Mismatch(error.number, None, f"the rules refuse what is recorded: {error}")
        )
    else:
        mismatches += _find_missing_rows(recorded, rounds)
    mismatches += _find_summary_mismatches(recorded, admitted)
    unverifiable = tuple(_list_unverifiable(recorded, rules, statuses, rounds))
    return AuditResult(recorded.run, rounds, decisions, tuple(mismatches), unverifiable)


# --- the order of the records -----------------------------------------------------------------


def _find_order_mismatches(recorded: AuditInput) -> Iterator[Mismatch]:
    settings = recorded.run.settings
    for name, in_manifest, value in (
        ("strategy", recorded.run.strategy, settings.get("strategy.name")),
        ("seed", recorded.run.seed, settings.get("seed")),
    ):
        if in_manifest != value:
            yield Mismatch(
                None, None, f"the manifest's {name} is {in_manifest}, config.yaml has {value}"
            )
    numbers = [record.round for record in recorded.run.rounds]
    if numbers != list(range(1, len(numbers) + 1)):
        yield Mismatch(None, None, "the rounds in rounds.jsonl are not 1, 2, 3, ...")
    unfinished = {len(numbers) + 1} if recorded.run.status == "running" else set[int]()
    for number in sorted(recorded.client_rows.row_ranges.keys() - {*numbers, *unfinished}):
        yield Mismatch(number, None, "clients/ has rows of a round that rounds.jsonl lacks")
    for number in recorded.client_rows.row_ranges:
        clients = Counter(row["client"] for row in recorded.client_rows[number])
        for client in (k for k, count in clients.items() if count > 1):
            yield Mismatch(number, client, f"{clients[client]} rows in clients/, not one")


def _find_leg_mismatches(run: Run) -> Iterator[Mismatch]:
    """Yield the settings that a resume changed although no resume may."""
    for resume in run.resumed:
        for key in resume.forbidden_changes:
            text = f"the resume after round {resume.round} changed {key}, which no resume may"
            yield Mismatch(None, None, text)
    for earlier, later in pairwise(run.legs):
        for before, after in zip(earlier.planned_rounds, later.planned_rounds, strict=True):
            if before != after and not (before or 0) < (after or 0):
                values = f"{_format_value(after)} after {_format_value(before)}"
                text = f"fewer rounds are planned than before: {values}"
                yield Mismatch(later.first_round, None, text)


def _find_data_mismatches(run: Run) -> Iterator[Mismatch]:
    """Yield the checkpoints whose data is not that of the manifest."""
    in_manifest = run.data.get(FINGERPRINT)
    found_by_name = {}
    with suppress(RunError):  # a damaged checkpoint says nothing about the decisions
        for name in CheckpointStore(run.directory).list_files():
            found_by_name[name] = read_checkpoint_fingerprint(run.directory, CHECKPOINTS_DIR, name)
    for name, found in found_by_name.items():
        if found and found != in_manifest:
            changes = list_data_changes(found, get_fingerprint({"data": run.data}))
            text = "; ".join(changes) or "the manifest's fingerprint differs"
            yield Mismatch(None, None, f"the data is not that of {name}: {text}")


def _find_missing_rows(recorded: AuditInput, rounds: int) -> Iterator[Mismatch]:
    missing = recorded.run.rounds[rounds:]
    if missing and recorded.run.status != "running":
        yield Mismatch(missing[0].round, None, "clients/ has no rows of this round")


# --- one round --------------------------------------------------------------------------------


def _find_round_mismatches(
    recorded: AuditInput, replayed: ReplayedRound, loss_sum_before: float | None
) -> Iterator[Mismatch]:
    number, rules = replayed.record.round, replayed.rules
    tolerance = rules.weighting.traits.tolerance
    yield from _find_selection_mismatches(replayed)
    yield from _find_unmeasured_mismatches(recorded, rules, replayed)
    if replayed.refusal is None:
        for client, text in find_contradictions(rules.weighting, replayed.decision.trace):
            yield Mismatch(number, client, text)
    expected_rows = _compute_expected_rows(recorded, replayed)
    for row in replayed.rows:
        expected = expected_rows.get(row["client"], {})
        for name, value in expected.items():
            if not _is_close(row[name], value, tolerance):
                yield Mismatch(number, row["client"], _describe_difference(name, row[name], value))
        yield from _find_outcome_mismatches(recorded, replayed, row)
    record = replayed.record
    for name, value in _compute_expected_record(recorded, replayed, loss_sum_before).items():
        if not _is_close(getattr(record, name), value, tolerance):
            yield Mismatch(number, None, _describe_difference(name, getattr(record, name), value))
    if record.stale_clients != replayed.objective.stale_clients:
        recorded_stale, expected_stale = (
            list(record.stale_clients),
            list(replayed.objective.stale_clients),
        )
        yield Mismatch(
            number, None, _describe_difference("stale_clients", recorded_stale, expected_stale)
        )
    yield from _find_norm_mismatches(replayed)
    yield from _find_evaluation_mismatches(recorded, replayed)


def _find_selection_mismatches(replayed: ReplayedRound) -> Iterator[Mismatch]:
    selected, rows = set(replayed.plan.clients), {row["client"] for row in replayed.rows}
    under_way = replayed.under_way
    replying = frozenset[int]()
    if under_way is not None:
        replying = frozenset(under_way.clients.tolist()).union(under_way.blocked)
    for client in sorted(rows - selected - replying):
        yield Mismatch(replayed.record.round, client, "has a row, but the rule does not ask it")
    for client in sorted(selected - rows):
        yield Mismatch(replayed.record.round, client, "the rule asks it, but it has no row")


def _find_unmeasured_mismatches(
    recorded: AuditInput, rules: RuleSet, replayed: ReplayedRound
) -> Iterator[Mismatch]:
    """Compare the clients recorded as missing in F(w_t) with those that evaluated it."""
    record, priority = replayed.record, replayed.population.priority
    evaluations = recorded.get_evaluations(record.round - 1)
    evaluated = {e.client for e in evaluations if e.has_objective_loss}
    for client in record.unmeasured:
        if client in evaluated or client not in priority:
            reason = "its measurement counts" if client in evaluated else "it has no priority"
            yield Mismatch(record.round, client, f"is in unmeasured, though {reason}")
    if recorded.is_standard or recorded.has_masks or recorded.joined_rounds:
        return  # the clients selected for the evaluation, or their measurements, are not recorded
    if not rules.needs_objective:
        return
    selection = rules.selection
    candidates = (
        priority.intersection(replayed.plan.clients) if samples_objective(selection) else priority
    )
    accounted = {*(e.client for e in evaluations), *record.stale_clients, *record.unmeasured}
    for client in sorted(select_objective_clients(selection, candidates) - accounted):
        yield Mismatch(
            record.round, client, "did not measure global_loss, and is not in unmeasured"
        )


def _compute_expected_rows(
    recorded: AuditInput, replayed: ReplayedRound
) -> dict[int, dict[str, Any]]:
    """Return the values that follow from the rules, by client and column."""
    evaluation_by_client = {e.client: e for e in recorded.get_evaluations(replayed.record.round)}
    usable = set(replayed.decision.clients)
    expected_rows: dict[int, dict[str, Any]] = {}
    for decision in replayed.report.decisions:
        evaluation = evaluation_by_client.get(decision.client)
        expected: dict[str, Any] = {
            "priority": decision.priority,
            "test_loss": None if evaluation is None else evaluation.test_loss,
            "test_accuracy": None if evaluation is None else evaluation.test_accuracy,
        }
        if decision.client in usable and replayed.has_known_statuses:
            expected["status"] = decision.status
        if replayed.is_decidable:
            late_columns = () if replayed.under_way is None else ("staleness", "discount")
            for name in (
                *late_columns,
                "response",
                "weight",
                "mixing_coefficient",
                "participation_correction",
                "num_draws",
            ):
                expected[name] = getattr(decision, name)
        expected_rows[decision.client] = expected
    return expected_rows


def _find_outcome_mismatches(
    recorded: AuditInput, replayed: ReplayedRound, row: TableRow
) -> Iterator[Mismatch]:
    """Yield contradictions in one client's outcome."""
    number, client, plan = replayed.record.round, row["client"], replayed.plan
    if row["status"] not in STATUSES:
        yield Mismatch(number, client, f"status is {row['status']!r}, which is none")
    is_usable = recorded.is_usable(row, replayed.record)
    if not is_usable and row["status"] == "trained":
        yield Mismatch(number, client, "trained, but nothing usable of it is recorded")
    if not is_usable and (row["loss"] is not None or row["accuracy"] is not None):
        yield Mismatch(number, client, "has measurements, but no usable answer")
    if not is_usable and row["weight"] != 0.0:
        yield Mismatch(number, client, _describe_difference("weight", row["weight"], 0.0))
    is_gated = plan.epsilon is not None and client not in recorded.population.priority
    if is_usable and is_gated and plan.clients_apply_gate:
        record = replayed.record
        trains = should_train(
            plan.criterion,
            plan.epsilon or 0.0,
            global_loss=record.global_loss,
            global_accuracy=record.global_accuracy,
            loss=_none_to_nan(row["loss"]),
            accuracy=_none_to_nan(row["accuracy"]),
        )
        if not trains:
            yield Mismatch(
                number,
                client,
                f"sent an update, though its {plan.criterion} "
                f"{_format_value(row[plan.criterion])} is outside its own half of the gate",
            )


def _find_norm_mismatches(replayed: ReplayedRound) -> Iterator[Mismatch]:
    """Yield a norm of the update that the weights and the clients' norms rule out.

    If the norms are recorded, max(0, 2 max_k l_k - sum_k l_k) <= |sum_k c_k Delta_k| <= sum_k l_k
    with l_k = |c_k| |Delta_k|; for one client, this is an equality.
    """
    record = replayed.record
    counting = [row for row in replayed.rows if row["weight"] != 0.0]
    norms = [row["update_norm"] for row in counting]
    if None in norms or not norms:
        if record.update_norm is not None:
            yield Mismatch(
                record.round, None, _describe_difference("update_norm", record.update_norm, None)
            )
        return
    lengths = [abs(row["weight"]) * row["update_norm"] for row in counting]
    max_norm = exact_sum(lengths)
    if not math.isfinite(max_norm):
        return
    weights = exact_sum([1.0, *(abs(row["weight"]) for row in counting)])
    min_norm = max(0.0, 2.0 * max(lengths) - max_norm)
    slack = TOLERANCE * max_norm + MIN_EXACT_NORM * weights
    norm = _none_to_nan(record.update_norm)
    if not min_norm - slack <= norm <= max_norm + slack:
        yield Mismatch(
            record.round,
            None,
            f"update_norm is {_format_value(record.update_norm)}, the weights and the updates' "
            f"norms give {_format_value(min_norm)} to {_format_value(max_norm)}",
        )


def _compute_expected_record(
    recorded: AuditInput, replayed: ReplayedRound, loss_sum_before: float | None
) -> dict[str, Any]:
    rows, plan, report = replayed.rows, replayed.plan, replayed.report
    record = replayed.record
    statuses = Counter(row["status"] for row in rows)
    expected: dict[str, Any] = {
        "epsilon": plan.epsilon,
        "global_loss": replayed.objective.loss,
        "global_accuracy": replayed.objective.accuracy,
        "selected": len(plan.clients),
        **{status: statuses[status] for status in STATUSES},
        "admitted": sum(row["weight"] != 0.0 for row in rows),
        "priority_data": None
        if plan.replacement_sample is None
        else plan.replacement_sample.priority_data,
        "theta": None if record.inclusion_mass is None else 1.0 / (1.0 + record.inclusion_mass),
        "decision_loss_sum": _add_decision_loss(loss_sum_before, record.decision_loss),
    }
    if replayed.is_decidable:
        loss = report.decision_loss
        expected |= {
            "inclusion_mass": report.inclusion_mass,
            "theta": report.theta,
            "weight_error": _compute_expected_weight_error(recorded, replayed),
            "decision_loss": loss,
            "decision_loss_sum": _add_decision_loss(loss_sum_before, loss),
            "kl_to_data": report.divergence,
        }
    else:
        expected |= _compute_expected_divergence(replayed)
        if all(row["participation_correction"] is None for row in rows):
            expected["weight_error"] = None
    return expected


def _compute_expected_weight_error(recorded: AuditInput, replayed: ReplayedRound) -> float | None:
    """Return the weight error, or the recorded one if its presence depends on another leg.

    A resume may change the engine and the quorum, and thereby whether the rates of being counted
    are known. The table of clients has the rates of the first leg.
    """
    error = compute_weight_error(replayed.report, recorded.get_rates(replayed.record.round))
    recorded_error = replayed.record.weight_error
    differs = (error is None) != (recorded_error is None)
    return recorded_error if differs and len(recorded.run.legs) > 1 else error


def _add_decision_loss(before: float | None, loss: float | None) -> float | None:
    return before if loss is None else (before or 0.0) + loss


def _compute_expected_divergence(replayed: ReplayedRound) -> dict[str, float | None]:
    """Return KL(p || w) of the recorded p, if the rows have all of p."""
    recorded = {
        row["client"]: row["mixing_coefficient"]
        for row in replayed.rows
        if row["mixing_coefficient"] is not None
    }
    if not recorded:
        return {"kl_to_data": None} if replayed.rows else {}
    total, population = sum(recorded.values()), replayed.population
    tolerance = replayed.rules.weighting.traits.tolerance
    if total != 0.0 and not math.isclose(total, 1.0, rel_tol=tolerance):
        return {}
    mixing = PerClient.from_mapping(recorded).get_array(population.sorted_clients, 0.0)
    examples = replayed.decision.trace.updates.reported_examples
    return {"kl_to_data": compute_divergence(population, mixing, examples)}


def _find_evaluation_mismatches(
    recorded: AuditInput, replayed: ReplayedRound
) -> Iterator[Mismatch]:
    if recorded.has_masks:  # the records have no single evaluations
        return
    settings = recorded.run.find_leg(replayed.record.round).settings
    for split in SPLITS:
        expected = summarize_evaluations(
            recorded.get_evaluations(replayed.record.round),
            str(settings.get("evaluation.metric", "accuracy")),
            settings.get("evaluation.clients", "all") == "all",
            split,
            hooks=replayed.rules.hooks,
            some_busy=FREE_GROUP in (getattr(replayed.record, split) or {}),
        )
        yield from _find_split_mismatches(replayed.record, split, expected)


def _find_split_mismatches(
    record: RoundRecord, split: str, expected: SplitSummary | None
) -> Iterator[Mismatch]:
    """Compare a round's summary of the clients' test or validation splits."""
    recorded, number = getattr(record, split), record.round
    if (recorded is None) != (expected is None):
        yield Mismatch(number, None, f"{split} is not what evaluations/ gives")
        return
    for group in (recorded or {}).keys() - {*(expected or {}), MEAN_GROUP}:
        yield Mismatch(number, None, f"{split}.{group} is not what evaluations/ gives")
    for group, values in (expected or {}).items():
        recorded_values = (recorded or {}).get(group)
        if (recorded_values is None) != (values is None):
            yield Mismatch(number, None, f"{split}.{group} is not what evaluations/ gives")
            continue
        for name in sorted((recorded_values or {}).keys() - (values or {}).keys()):
            yield Mismatch(number, None, f"{split}.{group}.{name} is not what evaluations/ gives")
        for name, value in (values or {}).items():
            if not _is_close((recorded_values or {}).get(name), value, TOLERANCE):
                text = _describe_difference(
                    f"{split}.{group}.{name}", (recorded_values or {}).get(name), value
                )
                yield Mismatch(number, None, text)


# --- the whole run ----------------------------------------------------------------------------


def _find_summary_mismatches(
    recorded: AuditInput, admitted: Mapping[int, int]
) -> Iterator[Mismatch]:
    """Compare the manifest's summary with the rounds and with the admissions of each client."""
    if not recorded.summary:
        return
    rounds = recorded.run.rounds
    masses = [r.inclusion_mass for r in rounds if r.inclusion_mass is not None]
    thetas = [r.theta for r in rounds if r.theta is not None]
    expected = {
        "theta": exact_mean(thetas),
        "inclusion_mass": exact_mean(masses),
        "empty_rounds": sum(record.admitted == 0 for record in rounds),
    }
    summary = dict(recorded.summary)
    mixing = summary.get("mixing")
    if mixing is not None and rounds:
        summary["decision_loss_sum"] = mixing.get("decision_loss_sum")
        expected["decision_loss_sum"] = rounds[-1].decision_loss_sum
    for name, value in expected.items():
        if not _is_close(summary.get(name), value, TOLERANCE):
            text = _describe_difference(f"the manifest's {name}", summary.get(name), value)
            yield Mismatch(None, None, text)
    if summary.get("admitted_rounds") != {str(k): n for k, n in sorted(admitted.items())}:
        yield Mismatch(None, None, "the manifest's admitted_rounds are not those of clients/")


def _list_unverifiable(
    recorded: AuditInput, rules: RuleSet, statuses: Mapping[str, int], rounds: int
) -> Iterator[str]:
    if unreplayable := rules.weighting.description.unreplayable:
        yield unreplayable
    if rules.memory is not None:
        name = recorded.run.strategy
        yield f"the memory of updates that corrects {name}'s step; its weights are checked"
    if statuses["declined"]:
        yield (
            f"why clients declined ({statuses['declined']} times): a client that declines reports "
            "only that it declines"
        )
    if statuses["unusable"]:
        yield (
            f"that updates were unusable ({statuses['unusable']} times): the updates are not in "
            "the records"
        )
    if statuses["absent"]:
        yield (
            f"that clients were unavailable, late or busy, or failed ({statuses['absent']} times)"
        )
    yield from _list_refusals(recorded.run)
    if recorded.has_masks:
        yield "global_loss and the means of test and validation, which are sums with masks"
    missing = len(recorded.run.rounds) - rounds
    if missing and recorded.run.status == "running":
        yield f"the last {missing} rounds, whose rows in clients/ are not (or never) written"


def _list_refusals(run: Run) -> Iterator[str]:
    """Yield the reasons of refused rounds, which only the server's record states."""
    counts = Counter(record.refused for record in run.rounds)
    for reason in REJECTION_REASONS:
        if counts[reason]:
            yield (
                f"that {reason} ({counts[reason]} times), for which the server refused the round: "
                "the updates are not in the records"
            )


def _get_status_kind(recorded: AuditInput, replayed: ReplayedRound, row: TableRow) -> str:
    if row["status"] in ("unavailable", "failed", "late", "busy"):
        return "absent"
    if row["status"] == "rejected" and not recorded.is_usable(row, replayed.record):
        return "unusable"
    return str(row["status"])


# --- comparing --------------------------------------------------------------------------------


def _is_close(recorded: Any, expected: Any, tolerance: float) -> bool:
    """Compare numbers up to rounding; NaN equals None, and texts must be equal."""
    left, right = _nan_to_none(recorded), _nan_to_none(expected)
    if left is None or right is None or isinstance(left, str) or isinstance(right, str):
        return bool(left == right)
    return math.isclose(float(left), float(right), rel_tol=tolerance, abs_tol=tolerance * 1e-3)


def _nan_to_none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _none_to_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _describe_difference(name: str, recorded: Any, expected: Any) -> str:
    return f"{name} is {_format_value(recorded)}, the other records give {_format_value(expected)}"


def _format_value(value: Any) -> str:
    if _nan_to_none(value) is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.{DISPLAY_DIGITS}g}"
    return str(value)
