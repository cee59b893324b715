"""Replay every decision of a run and compare it with the records.

The audit compares the clients asked, the threshold, F(w), the admitted shares, responses, mixing
coefficients, omega, weights, inclusion mass, decision losses, divergence, counts, the summaries of
the clients' test metrics, and who measured a model. It names everything that the records cannot
show.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..client.gate import should_train
from ..composition import RuleSet
from ..decisions import STATUSES
from ..records.fairness import exact_mean, exact_sum
from ..records.reader import Run
from ..records.round_record import (
    MEAN_GROUP,
    SPLITS,
    RoundRecord,
    SplitSummary,
    compute_weight_error,
    summarize_evaluations,
)
from ..round import NOT_FINITE, NOT_SOLVED, WEIGHT_EXCEEDS_BOUND, compute_divergence
from ..types import PerClient
from .clock_check import ClockCheck
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
"""Norms below it are not exact: float64 has no squares of such numbers, or few of their bits."""


@dataclass(frozen=True)
class Mismatch:
    """A mismatch: a record that does not follow from the other records.

    ``round`` is None for the run as a whole, ``client`` is None for the round as a whole.
    """

    round: int | None
    client: int | None
    text: str

    def __str__(self) -> str:
        words = [] if self.round is None else [f"round {self.round}"]
        words += [] if self.client is None else [f"client {self.client}"]
        return f"{', '.join(words) or 'run'}: {self.text}"


@dataclass(frozen=True)
class AuditResult:
    """The result of replaying a run.

    Parameters
    ----------
    run : Run
        The run.
    num_rounds, num_decisions : int
        Number of replayed rounds, and of replayed rows of the clients table.
    mismatches : tuple of Problem
        The mismatches.
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
    problems = [
        *_find_order_mismatches(recorded),
        *_find_leg_mismatches(recorded.run),
        *(Mismatch(*found) for found in find_evaluation_mismatches(recorded, rules)),
    ]
    rounds = decisions = 0
    before: float | None = None
    clock = ClockCheck.from_settings(recorded.run.settings)
    statuses: Counter[str] = Counter()
    admitted: Counter[int] = Counter()
    try:
        for replayed in replay_rounds(recorded):
            problems += _find_round_mismatches(recorded, replayed, before)
            if clock is not None:
                number = replayed.record.round
                found = clock.find_mismatches(replayed.rows, replayed.record)
                problems += [Mismatch(number, client, text) for client, text in found]
            before = replayed.record.decision_loss_sum
            rounds, decisions = rounds + 1, decisions + len(replayed.rows)
            statuses.update(_get_status_kind(row) for row in replayed.rows)
            admitted.update(row["client"] for row in replayed.rows if row["weight"] != 0.0)
    except UndecidableError as error:
        problems.append(Mismatch(error.number, None, f"the rules refuse what is recorded: {error}"))
    else:
        problems += _find_missing_rows(recorded, rounds)
    problems += _find_summary_mismatches(recorded, admitted)
    unknown = tuple(_list_unverifiable(recorded, rules, statuses, rounds))
    return AuditResult(recorded.run, rounds, decisions, tuple(problems), unknown)


# --- the order of the records -----------------------------------------------------------------


def _find_order_mismatches(recorded: AuditInput) -> Iterator[Mismatch]:
    settings = recorded.run.settings
    for name, noted, value in (
        ("strategy", recorded.run.strategy, settings.get("strategy.name")),
        ("seed", recorded.run.seed, settings.get("seed")),
    ):
        if noted != value:
            yield Mismatch(None, None, f"the manifest's {name} is {noted}, config.yaml has {value}")
    numbers = [record.round for record in recorded.run.rounds]
    if numbers != list(range(1, len(numbers) + 1)):
        yield Mismatch(None, None, "the rounds in rounds.jsonl are not 1, 2, 3, ...")
    begun = {len(numbers) + 1} if recorded.run.status == "running" else set[int]()
    for number in sorted(recorded.client_rows.row_ranges.keys() - {*numbers, *begun}):
        yield Mismatch(number, None, "clients/ has rows of a round that rounds.jsonl lacks")
    for number in recorded.client_rows.row_ranges:
        clients = Counter(row["client"] for row in recorded.client_rows[number])
        for client in (k for k, count in clients.items() if count > 1):
            yield Mismatch(number, client, f"{clients[client]} rows in clients/, not one")


def _find_leg_mismatches(run: Run) -> Iterator[Mismatch]:
    """Yield what no resume changes, but one is said to have changed."""
    for resume in run.resumed:
        for key in resume.forbidden_changes:
            text = f"the resume after round {resume.round} changed {key}, which no resume may"
            yield Mismatch(None, None, text)
    for earlier, later in pairwise(run.legs):
        for before, after in zip(earlier.planned_rounds, later.planned_rounds, strict=True):
            if before != after and not (before or 0) < (after or 0):
                text = f"fewer rounds are planned than before: {_format_value(after)} after {_format_value(before)}"
                yield Mismatch(later.first_round, None, text)


def _find_missing_rows(recorded: AuditInput, rounds: int) -> Iterator[Mismatch]:
    missing = recorded.run.rounds[rounds:]
    if missing and recorded.run.status != "running":
        yield Mismatch(missing[0].round, None, "clients/ has no rows of this round")


# --- one round --------------------------------------------------------------------------------


def _find_round_mismatches(
    recorded: AuditInput, replayed: ReplayedRound, loss_sum_before: float | None
) -> Iterator[Mismatch]:
    number, rules = replayed.record.round, replayed.rules
    tolerance = rules.weighting.tolerance
    yield from _find_selection_mismatches(replayed)
    yield from _find_unmeasured_mismatches(recorded, rules, replayed)
    if replayed.refusal is None:
        for client, text in rules.weighting.check_unreplayable(replayed.decision.trace):
            yield Mismatch(number, client, text)
    compared = _compute_expected_rows(recorded, replayed)
    for row in replayed.rows:
        expected = compared.get(row["client"], {})
        for name, value in expected.items():
            if not _is_close(row[name], value, tolerance):
                yield Mismatch(number, row["client"], _describe_difference(name, row[name], value))
        yield from _find_outcome_mismatches(recorded, replayed, row)
    record = replayed.record
    for name, value in _compute_expected_record(recorded, replayed, loss_sum_before).items():
        if not _is_close(getattr(record, name), value, tolerance):
            yield Mismatch(number, None, _describe_difference(name, getattr(record, name), value))
    if record.stale_clients != replayed.objective.stale_clients:
        given, expected_stale = list(record.stale_clients), list(replayed.objective.stale_clients)
        yield Mismatch(number, None, _describe_difference("stale_clients", given, expected_stale))
    yield from _find_norm_mismatches(replayed)
    yield from _find_evaluation_mismatches(recorded, replayed)


def _find_selection_mismatches(replayed: ReplayedRound) -> Iterator[Mismatch]:
    asked, rows = set(replayed.plan.clients), {row["client"] for row in replayed.rows}
    for client in sorted(rows - asked):
        yield Mismatch(replayed.record.round, client, "has a row, but the rule does not ask it")
    for client in sorted(asked - rows):
        yield Mismatch(replayed.record.round, client, "the rule asks it, but it has no row")


def _find_unmeasured_mismatches(
    recorded: AuditInput, rules: RuleSet, replayed: ReplayedRound
) -> Iterator[Mismatch]:
    """Compare who is said to be missing in F(w_t) with who measured it."""
    record, priority = replayed.record, replayed.population.priority
    evaluations = recorded.get_evaluations(record.round - 1)
    measured = {e.client for e in evaluations if e.has_objective_loss}
    for client in record.unmeasured:
        if client in measured or client not in priority:
            why = "its measurement counts" if client in measured else "it has no priority"
            yield Mismatch(record.round, client, f"is in unmeasured, though {why}")
    if recorded.is_standard or recorded.joined_rounds or not rules.needs_objective:
        return  # whom the evaluation asked is not recorded
    selection = rules.selection
    asked = (
        priority.intersection(replayed.plan.clients) if selection.samples_objective else priority
    )
    named = {*(e.client for e in evaluations), *record.stale_clients, *record.unmeasured}
    for client in sorted(selection.select_objective_clients(asked) - named):
        yield Mismatch(
            record.round, client, "did not measure global_loss, and is not in unmeasured"
        )


def _compute_expected_rows(
    recorded: AuditInput, replayed: ReplayedRound
) -> dict[int, dict[str, Any]]:
    """Return what the rules give of each row, by client and column."""
    tested = {e.client: e for e in recorded.get_evaluations(replayed.record.round)}
    usable = set(replayed.decision.clients)
    found: dict[int, dict[str, Any]] = {}
    for decision in replayed.report.decisions:
        evaluation = tested.get(decision.client)
        expected: dict[str, Any] = {
            "priority": decision.priority,
            "test_loss": None if evaluation is None else evaluation.test_loss,
            "test_accuracy": None if evaluation is None else evaluation.test_accuracy,
        }
        if decision.client in usable and replayed.has_known_statuses:
            expected["status"] = decision.status
        if replayed.is_decidable:
            for name in (
                "response",
                "weight",
                "mixing_coefficient",
                "participation_correction",
                "num_draws",
            ):
                expected[name] = getattr(decision, name)
        found[decision.client] = expected
    return found


def _find_outcome_mismatches(
    recorded: AuditInput, replayed: ReplayedRound, row: TableRow
) -> Iterator[Mismatch]:
    """Yield what does not go together in what one client answered."""
    number, client, call = replayed.record.round, row["client"], replayed.plan
    if row["status"] not in STATUSES:
        yield Mismatch(number, client, f"status is {row['status']!r}, which is none")
    answered = row["num_examples"] is not None
    if not answered and row["status"] == "trained":
        yield Mismatch(number, client, "trained, but nothing usable of it is recorded")
    if not answered and (row["loss"] is not None or row["accuracy"] is not None):
        yield Mismatch(number, client, "has measurements, but no usable answer")
    if not answered and row["weight"] != 0.0:
        yield Mismatch(number, client, _describe_difference("weight", row["weight"], 0.0))
    gated = call.epsilon is not None and client not in recorded.population.priority
    if answered and gated and call.clients_apply_gate:
        record = replayed.record
        joined = should_train(
            call.criterion,
            call.epsilon or 0.0,
            global_loss=record.global_loss,
            global_accuracy=record.global_accuracy,
            loss=_none_to_nan(row["loss"]),
            accuracy=_none_to_nan(row["accuracy"]),
        )
        if not joined:
            yield Mismatch(
                number,
                client,
                f"sent an update, though its {call.criterion} {_format_value(row[call.criterion])} is "
                "outside its own half of the gate",
            )


def _find_norm_mismatches(replayed: ReplayedRound) -> Iterator[Mismatch]:
    """Yield an update that is longer or shorter than the weights and the clients' updates allow.

    Where these have recorded norms, max(0, 2 max_k l_k - sum_k l_k) <= |sum_k c_k Delta_k| <=
    sum_k l_k with l_k = |c_k| |Delta_k|; of one client that is an equality.
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
    longest = exact_sum(lengths)
    if not math.isfinite(longest):
        return
    weights = exact_sum([1.0, *(abs(row["weight"]) for row in counting)])
    shortest = max(0.0, 2.0 * max(lengths) - longest)
    slack = TOLERANCE * longest + MIN_EXACT_NORM * weights
    norm = _none_to_nan(record.update_norm)
    if not shortest - slack <= norm <= longest + slack:
        yield Mismatch(
            record.round,
            None,
            f"update_norm is {_format_value(record.update_norm)}, the weights and the updates' norms give "
            f"{_format_value(shortest)} to {_format_value(longest)}",
        )


def _compute_expected_record(
    recorded: AuditInput, replayed: ReplayedRound, loss_sum_before: float | None
) -> dict[str, Any]:
    rows, call, report = replayed.rows, replayed.plan, replayed.report
    record = replayed.record
    statuses = Counter(row["status"] for row in rows)
    expected: dict[str, Any] = {
        "epsilon": call.epsilon,
        "global_loss": replayed.objective.loss,
        "global_accuracy": replayed.objective.accuracy,
        "selected": len(call.clients),
        **{status: statuses[status] for status in STATUSES},
        "admitted": sum(row["weight"] != 0.0 for row in rows),
        "priority_data": None
        if call.replacement_sample is None
        else call.replacement_sample.priority_data,
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
    """Return the weight error, or what is recorded if another leg of the run tells whether it is.

    A resume may change the engine and the quorum, and with these whether the rates of being counted
    are known. The table of clients has those of the first leg.
    """
    error = compute_weight_error(replayed.report, recorded.get_rates(replayed.record.round))
    noted = replayed.record.weight_error
    unlike = (error is None) != (noted is None)
    return noted if unlike and len(recorded.run.legs) > 1 else error


def _add_decision_loss(before: float | None, loss: float | None) -> float | None:
    return before if loss is None else (before or 0.0) + loss


def _compute_expected_divergence(replayed: ReplayedRound) -> dict[str, float | None]:
    """Return KL(p || w) by the recorded p, where the rows have all of it."""
    recorded = {
        row["client"]: row["mixing_coefficient"]
        for row in replayed.rows
        if row["mixing_coefficient"] is not None
    }
    if not recorded:
        return {"kl_to_data": None} if replayed.rows else {}
    total, population = sum(recorded.values()), replayed.population
    if total != 0.0 and not math.isclose(total, 1.0, rel_tol=replayed.rules.weighting.tolerance):
        return {}
    mixing = PerClient.from_mapping(recorded).get_array(population.sorted_clients, 0.0)
    examples = replayed.decision.trace.updates.reported_examples
    return {"kl_to_data": compute_divergence(population, mixing, examples)}


def _find_evaluation_mismatches(
    recorded: AuditInput, replayed: ReplayedRound
) -> Iterator[Mismatch]:
    settings = recorded.run.find_leg(replayed.record.round).settings
    for part in SPLITS:
        expected = summarize_evaluations(
            recorded.get_evaluations(replayed.record.round),
            str(settings.get("evaluation.metric", "accuracy")),
            settings.get("evaluation.clients", "all") == "all",
            part,
            hooks=replayed.rules.hooks,
        )
        yield from _find_split_mismatches(replayed.record, part, expected)


def _find_split_mismatches(
    record: RoundRecord, split: str, expected: SplitSummary | None
) -> Iterator[Mismatch]:
    """Compare what a round says of the clients' test or validation parts."""
    given, number = getattr(record, split), record.round
    if (given is None) != (expected is None):
        yield Mismatch(number, None, f"{split} is not what evaluations/ gives")
        return
    for group in (given or {}).keys() - {*(expected or {}), MEAN_GROUP}:
        yield Mismatch(number, None, f"{split}.{group} is not what evaluations/ gives")
    for group, values in (expected or {}).items():
        noted = (given or {}).get(group)
        if (noted is None) != (values is None):
            yield Mismatch(number, None, f"{split}.{group} is not what evaluations/ gives")
            continue
        for name in sorted((noted or {}).keys() - (values or {}).keys()):
            yield Mismatch(number, None, f"{split}.{group}.{name} is not what evaluations/ gives")
        for name, value in (values or {}).items():
            if not _is_close((noted or {}).get(name), value, TOLERANCE):
                text = _describe_difference(
                    f"{split}.{group}.{name}", (noted or {}).get(name), value
                )
                yield Mismatch(number, None, text)


# --- the whole run ----------------------------------------------------------------------------


def _find_summary_mismatches(
    recorded: AuditInput, admitted: Mapping[int, int]
) -> Iterator[Mismatch]:
    """Compare the manifest's summary with the rounds, and with who was admitted how often."""
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
    given = dict(recorded.summary)
    mixing = given.get("mixing")
    if mixing is not None and rounds:
        given["decision_loss_sum"] = mixing.get("decision_loss_sum")
        expected["decision_loss_sum"] = rounds[-1].decision_loss_sum
    for name, value in expected.items():
        if not _is_close(given.get(name), value, TOLERANCE):
            text = _describe_difference(f"the manifest's {name}", given.get(name), value)
            yield Mismatch(None, None, text)
    if given.get("admitted_rounds") != {str(k): n for k, n in sorted(admitted.items())}:
        yield Mismatch(None, None, "the manifest's admitted_rounds are not those of clients/")


def _list_unverifiable(
    recorded: AuditInput, rules: RuleSet, statuses: Mapping[str, int], rounds: int
) -> Iterator[str]:
    if rules.weighting.unreplayable:
        yield rules.weighting.unreplayable
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
    missing = len(recorded.run.rounds) - rounds
    if missing and recorded.run.status == "running":
        yield f"the last {missing} rounds, whose rows in clients/ are not (or never) written"


def _list_refusals(run: Run) -> Iterator[str]:
    """Yield why the server refused rounds, for which its record is the only word."""
    times = Counter(record.refused for record in run.rounds)
    for reason in (NOT_FINITE, NOT_SOLVED, WEIGHT_EXCEEDS_BOUND):
        if times[reason]:
            yield (
                f"that {reason} ({times[reason]} times), for which the server refused the round: "
                "the updates are not in the records"
            )


def _get_status_kind(row: TableRow) -> str:
    if row["status"] in ("unavailable", "failed", "late", "busy"):
        return "absent"
    if row["status"] == "rejected" and row["num_examples"] is None:
        return "unusable"
    return str(row["status"])


# --- comparing --------------------------------------------------------------------------------


def _is_close(recorded: Any, expected: Any, tolerance: float) -> bool:
    """Compare numbers to rounding; what is not a number is None, and None is only None."""
    one, other = _nan_to_none(recorded), _nan_to_none(expected)
    if one is None or other is None or isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    return math.isclose(float(one), float(other), rel_tol=tolerance, abs_tol=tolerance * 1e-3)


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
