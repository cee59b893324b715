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

from ..client.decisions import joins
from ..composition import Rules
from ..records.fairness import mean_of, sum_of
from ..records.reader import Run
from ..records.round_record import (
    MEAN_GROUP,
    PARTS,
    PartSummary,
    RoundRecord,
    evaluation_summary,
    weight_error,
)
from ..report import STATUSES
from ..round import NOT_FINITE, NOT_SOLVED, TOO_HEAVY, divergence
from ..types import ByClient
from .clock import ClockCheck
from .evaluations import evaluation_problems
from .replay import (
    Recorded,
    Replayed,
    Row,
    UndecidableError,
    read_recorded,
    refusing_damage,
    replay,
    rules_of,
)

TOLERANCE = 1e-9
SHOWN_DIGITS = 9

NO_SQUARE = 1e-155
"""Norms below it are not exact: float64 has no squares of such numbers, or few of their bits."""


@dataclass(frozen=True)
class Problem:
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
class Audit:
    """The result of replaying a run.

    Parameters
    ----------
    run : Run
        The run.
    rounds, decisions : int
        Number of replayed rounds, and of replayed rows of the clients table.
    problems : tuple of Problem
        The mismatches.
    unknown : tuple of str
        Facts that the records cannot show, with the reason.
    """

    run: Run
    rounds: int
    decisions: int
    problems: tuple[Problem, ...]
    unknown: tuple[str, ...]


def audit(directory: Path, *, trust: bool = False) -> Audit:
    """Replay a run from its records and compare.

    Parameters
    ----------
    directory : Path
        The run's folder.
    trust : bool
        As in ``read_recorded``.

    Raises
    ------
    RunError
        If a record is missing or damaged, or the run names a rule by import path without ``trust``.
    """
    with refusing_damage(directory):
        return _audit(read_recorded(directory, trust=trust))


def _audit(recorded: Recorded) -> Audit:
    rules = rules_of(recorded, recorded.run.config)
    problems = [
        *_order_problems(recorded),
        *_leg_problems(recorded.run),
        *(Problem(*found) for found in evaluation_problems(recorded, rules)),
    ]
    rounds = decisions = 0
    before: float | None = None
    clock = ClockCheck.of(recorded.run.settings)
    statuses: Counter[str] = Counter()
    admitted: Counter[int] = Counter()
    try:
        for replayed in replay(recorded):
            problems += _round_problems(recorded, replayed, before)
            if clock is not None:
                number = replayed.record.round
                found = clock.problems(replayed.rows, replayed.record)
                problems += [Problem(number, client, text) for client, text in found]
            before = replayed.record.decision_loss_sum
            rounds, decisions = rounds + 1, decisions + len(replayed.rows)
            statuses.update(_kind(row) for row in replayed.rows)
            admitted.update(row["client"] for row in replayed.rows if row["weight"] != 0.0)
    except UndecidableError as error:
        problems.append(Problem(error.number, None, f"the rules refuse what is recorded: {error}"))
    else:
        problems += _missing_rows(recorded, rounds)
    problems += _summary_problems(recorded, admitted)
    unknown = tuple(_unknown(recorded, rules, statuses, rounds))
    return Audit(recorded.run, rounds, decisions, tuple(problems), unknown)


# --- the order of the records -----------------------------------------------------------------


def _order_problems(recorded: Recorded) -> Iterator[Problem]:
    settings = recorded.run.settings
    for name, noted, value in (
        ("strategy", recorded.run.strategy, settings.get("strategy.name")),
        ("seed", recorded.run.seed, settings.get("seed")),
    ):
        if noted != value:
            yield Problem(None, None, f"the manifest's {name} is {noted}, config.yaml has {value}")
    numbers = [record.round for record in recorded.run.rounds]
    if numbers != list(range(1, len(numbers) + 1)):
        yield Problem(None, None, "the rounds in rounds.jsonl are not 1, 2, 3, ...")
    begun = {len(numbers) + 1} if recorded.run.status == "running" else set[int]()
    for number in sorted(recorded.rows.places.keys() - {*numbers, *begun}):
        yield Problem(number, None, "clients/ has rows of a round that rounds.jsonl lacks")
    for number in recorded.rows.places:
        clients = Counter(row["client"] for row in recorded.rows[number])
        for client in (k for k, count in clients.items() if count > 1):
            yield Problem(number, client, f"{clients[client]} rows in clients/, not one")


def _leg_problems(run: Run) -> Iterator[Problem]:
    """Yield what no resume changes, but one is said to have changed."""
    for resume in run.resumed:
        for key in resume.refused:
            text = f"the resume after round {resume.round} changed {key}, which no resume may"
            yield Problem(None, None, text)
    for earlier, later in pairwise(run.legs):
        for before, after in zip(earlier.planned, later.planned, strict=True):
            if before != after and not (before or 0) < (after or 0):
                text = f"fewer rounds are planned than before: {_text(after)} after {_text(before)}"
                yield Problem(later.first, None, text)


def _missing_rows(recorded: Recorded, rounds: int) -> Iterator[Problem]:
    missing = recorded.run.rounds[rounds:]
    if missing and recorded.run.status != "running":
        yield Problem(missing[0].round, None, "clients/ has no rows of this round")


# --- one round --------------------------------------------------------------------------------


def _round_problems(
    recorded: Recorded, replayed: Replayed, loss_sum_before: float | None
) -> Iterator[Problem]:
    number, rules = replayed.record.round, replayed.rules
    tolerance = rules.weighting.tolerance
    yield from _asked_problems(replayed)
    yield from _unmeasured_problems(recorded, rules, replayed)
    if replayed.refused is None:
        for client, text in rules.weighting.check_recorded(replayed.round.decided):
            yield Problem(number, client, text)
    compared = _expected_rows(recorded, replayed)
    for row in replayed.rows:
        expected = compared.get(row["client"], {})
        for name, value in expected.items():
            if not _same(row[name], value, tolerance):
                yield Problem(number, row["client"], _differs(name, row[name], value))
        yield from _answer_problems(recorded, replayed, row)
    record = replayed.record
    for name, value in _expected_record(recorded, replayed, loss_sum_before).items():
        if not _same(getattr(record, name), value, tolerance):
            yield Problem(number, None, _differs(name, getattr(record, name), value))
    if record.stale_clients != replayed.objective.stale:
        given, expected_stale = list(record.stale_clients), list(replayed.objective.stale)
        yield Problem(number, None, _differs("stale_clients", given, expected_stale))
    yield from _movement_problems(replayed)
    yield from _test_problems(recorded, replayed)


def _asked_problems(replayed: Replayed) -> Iterator[Problem]:
    asked, rows = set(replayed.call.clients), {row["client"] for row in replayed.rows}
    for client in sorted(rows - asked):
        yield Problem(replayed.record.round, client, "has a row, but the rule does not ask it")
    for client in sorted(asked - rows):
        yield Problem(replayed.record.round, client, "the rule asks it, but it has no row")


def _unmeasured_problems(recorded: Recorded, rules: Rules, replayed: Replayed) -> Iterator[Problem]:
    """Compare who is said to be missing in F(w_t) with who measured it."""
    record, priority = replayed.record, replayed.population.priority
    evaluations = recorded.evaluations(record.round - 1)
    measured = {e.client for e in evaluations if e.measured}
    for client in record.unmeasured:
        if client in measured or client not in priority:
            why = "its measurement counts" if client in measured else "it has no priority"
            yield Problem(record.round, client, f"is in unmeasured, though {why}")
    if recorded.standard or recorded.joined or not rules.needs_objective:
        return  # whom the evaluation asked is not recorded
    selection = rules.selection
    asked = (
        priority.intersection(replayed.call.clients) if selection.samples_objective else priority
    )
    named = {*(e.client for e in evaluations), *record.stale_clients, *record.unmeasured}
    for client in sorted(selection.compared(asked) - named):
        yield Problem(record.round, client, "did not measure global_loss, and is not in unmeasured")


def _expected_rows(recorded: Recorded, replayed: Replayed) -> dict[int, dict[str, Any]]:
    """Return what the rules give of each row, by client and column."""
    tested = {e.client: e for e in recorded.evaluations(replayed.record.round)}
    usable = set(replayed.round.clients)
    found: dict[int, dict[str, Any]] = {}
    for decision in replayed.report.decisions:
        evaluation = tested.get(decision.client)
        expected: dict[str, Any] = {
            "priority": decision.priority,
            "test_loss": None if evaluation is None else evaluation.test_loss,
            "test_accuracy": None if evaluation is None else evaluation.test_accuracy,
        }
        if decision.client in usable and replayed.statuses_known:
            expected["status"] = decision.status
        if replayed.decidable:
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


def _answer_problems(recorded: Recorded, replayed: Replayed, row: Row) -> Iterator[Problem]:
    """Yield what does not go together in what one client answered."""
    number, client, call = replayed.record.round, row["client"], replayed.call
    if row["status"] not in STATUSES:
        yield Problem(number, client, f"status is {row['status']!r}, which is none")
    answered = row["num_examples"] is not None
    if not answered and row["status"] == "trained":
        yield Problem(number, client, "trained, but nothing usable of it is recorded")
    if not answered and (row["loss"] is not None or row["accuracy"] is not None):
        yield Problem(number, client, "has measurements, but no usable answer")
    if not answered and row["weight"] != 0.0:
        yield Problem(number, client, _differs("weight", row["weight"], 0.0))
    gated = call.epsilon is not None and client not in recorded.population.priority
    if answered and gated and call.clients_decide:
        record = replayed.record
        joined = joins(
            call.criterion,
            call.epsilon or 0.0,
            global_loss=record.global_loss,
            global_accuracy=record.global_accuracy,
            loss=_nan(row["loss"]),
            accuracy=_nan(row["accuracy"]),
        )
        if not joined:
            yield Problem(
                number,
                client,
                f"sent an update, though its {call.criterion} {_text(row[call.criterion])} is "
                "outside its own half of the gate",
            )


def _movement_problems(replayed: Replayed) -> Iterator[Problem]:
    """Yield an update that is longer or shorter than the weights and the clients' updates allow.

    Where these have recorded norms, max(0, 2 max_k l_k - sum_k l_k) <= |sum_k c_k Delta_k| <=
    sum_k l_k with l_k = |c_k| |Delta_k|; of one client that is an equality.
    """
    record = replayed.record
    counting = [row for row in replayed.rows if row["weight"] != 0.0]
    norms = [row["update_norm"] for row in counting]
    if None in norms or not norms:
        if record.update_norm is not None:
            yield Problem(record.round, None, _differs("update_norm", record.update_norm, None))
        return
    lengths = [abs(row["weight"]) * row["update_norm"] for row in counting]
    longest = sum_of(lengths)
    if not math.isfinite(longest):
        return
    weights = sum_of([1.0, *(abs(row["weight"]) for row in counting)])
    shortest = max(0.0, 2.0 * max(lengths) - longest)
    slack = TOLERANCE * longest + NO_SQUARE * weights
    norm = _nan(record.update_norm)
    if not shortest - slack <= norm <= longest + slack:
        yield Problem(
            record.round,
            None,
            f"update_norm is {_text(record.update_norm)}, the weights and the updates' norms give "
            f"{_text(shortest)} to {_text(longest)}",
        )


def _expected_record(
    recorded: Recorded, replayed: Replayed, loss_sum_before: float | None
) -> dict[str, Any]:
    rows, call, report = replayed.rows, replayed.call, replayed.report
    record = replayed.record
    statuses = Counter(row["status"] for row in rows)
    expected: dict[str, Any] = {
        "epsilon": call.epsilon,
        "global_loss": replayed.objective.loss,
        "global_accuracy": replayed.objective.accuracy,
        "selected": len(call.clients),
        **{status: statuses[status] for status in STATUSES},
        "admitted": sum(row["weight"] != 0.0 for row in rows),
        "priority_data": None if call.draws is None else call.draws.priority_data,
        "theta": None if record.inclusion_mass is None else 1.0 / (1.0 + record.inclusion_mass),
        "decision_loss_sum": _loss_sum(loss_sum_before, record.decision_loss),
    }
    if replayed.decidable:
        loss = report.decision_loss
        expected |= {
            "inclusion_mass": report.inclusion_mass,
            "theta": report.theta,
            "weight_error": _expected_weight_error(recorded, replayed),
            "decision_loss": loss,
            "decision_loss_sum": _loss_sum(loss_sum_before, loss),
            "kl_to_data": report.divergence,
        }
    else:
        expected |= _expected_divergence(replayed)
        if all(row["participation_correction"] is None for row in rows):
            expected["weight_error"] = None
    return expected


def _expected_weight_error(recorded: Recorded, replayed: Replayed) -> float | None:
    """Return the weight error, or what is recorded if another leg of the run tells whether it is.

    A resume may change the engine and the quorum, and with these whether the rates of being counted
    are known. The table of clients has those of the first leg.
    """
    error = weight_error(replayed.report, recorded.rates_in(replayed.record.round))
    noted = replayed.record.weight_error
    unlike = (error is None) != (noted is None)
    return noted if unlike and len(recorded.run.legs) > 1 else error


def _loss_sum(before: float | None, loss: float | None) -> float | None:
    return before if loss is None else (before or 0.0) + loss


def _expected_divergence(replayed: Replayed) -> dict[str, float | None]:
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
    mixing = ByClient.of(recorded).at(population.ascending, 0.0)
    examples = replayed.round.decided.responses.examples
    return {"kl_to_data": divergence(population, mixing, examples)}


def _test_problems(recorded: Recorded, replayed: Replayed) -> Iterator[Problem]:
    settings = recorded.run.leg_of(replayed.record.round).settings
    for part in PARTS:
        expected = evaluation_summary(
            recorded.evaluations(replayed.record.round),
            str(settings.get("evaluation.metric", "accuracy")),
            settings.get("evaluation.clients", "all") == "all",
            part,
            hooks=replayed.rules.hooks,
        )
        yield from _part_problems(replayed.record, part, expected)


def _part_problems(
    record: RoundRecord, part: str, expected: PartSummary | None
) -> Iterator[Problem]:
    """Compare what a round says of the clients' test or validation parts."""
    given, number = getattr(record, part), record.round
    if (given is None) != (expected is None):
        yield Problem(number, None, f"{part} is not what evaluations/ gives")
        return
    for group in (given or {}).keys() - {*(expected or {}), MEAN_GROUP}:
        yield Problem(number, None, f"{part}.{group} is not what evaluations/ gives")
    for group, values in (expected or {}).items():
        noted = (given or {}).get(group)
        if (noted is None) != (values is None):
            yield Problem(number, None, f"{part}.{group} is not what evaluations/ gives")
            continue
        for name in sorted((noted or {}).keys() - (values or {}).keys()):
            yield Problem(number, None, f"{part}.{group}.{name} is not what evaluations/ gives")
        for name, value in (values or {}).items():
            if not _same((noted or {}).get(name), value, TOLERANCE):
                text = _differs(f"{part}.{group}.{name}", (noted or {}).get(name), value)
                yield Problem(number, None, text)


# --- the whole run ----------------------------------------------------------------------------


def _summary_problems(recorded: Recorded, admitted: Mapping[int, int]) -> Iterator[Problem]:
    """Compare the manifest's summary with the rounds, and with who was admitted how often."""
    if not recorded.summary:
        return
    rounds = recorded.run.rounds
    masses = [r.inclusion_mass for r in rounds if r.inclusion_mass is not None]
    thetas = [r.theta for r in rounds if r.theta is not None]
    expected = {
        "theta": mean_of(thetas),
        "inclusion_mass": mean_of(masses),
        "empty_rounds": sum(record.admitted == 0 for record in rounds),
    }
    given = dict(recorded.summary)
    mixing = given.get("mixing")
    if mixing is not None and rounds:
        given["decision_loss_sum"] = mixing.get("decision_loss_sum")
        expected["decision_loss_sum"] = rounds[-1].decision_loss_sum
    for name, value in expected.items():
        if not _same(given.get(name), value, TOLERANCE):
            text = _differs(f"the manifest's {name}", given.get(name), value)
            yield Problem(None, None, text)
    if given.get("admitted_rounds") != {str(k): n for k, n in sorted(admitted.items())}:
        yield Problem(None, None, "the manifest's admitted_rounds are not those of clients/")


def _unknown(
    recorded: Recorded, rules: Rules, statuses: Mapping[str, int], rounds: int
) -> Iterator[str]:
    if rules.weighting.not_recorded:
        yield rules.weighting.not_recorded
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
    yield from _refusals(recorded.run)
    missing = len(recorded.run.rounds) - rounds
    if missing and recorded.run.status == "running":
        yield f"the last {missing} rounds, whose rows in clients/ are not (or never) written"


def _refusals(run: Run) -> Iterator[str]:
    """Yield why the server refused rounds, for which its record is the only word."""
    times = Counter(record.refused for record in run.rounds)
    for reason in (NOT_FINITE, NOT_SOLVED, TOO_HEAVY):
        if times[reason]:
            yield (
                f"that {reason} ({times[reason]} times), for which the server refused the round: "
                "the updates are not in the records"
            )


def _kind(row: Row) -> str:
    if row["status"] in ("unavailable", "failed", "late", "busy"):
        return "absent"
    if row["status"] == "rejected" and row["num_examples"] is None:
        return "unusable"
    return str(row["status"])


# --- comparing --------------------------------------------------------------------------------


def _same(recorded: Any, expected: Any, tolerance: float) -> bool:
    """Compare numbers to rounding; what is not a number is None, and None is only None."""
    one, other = _none(recorded), _none(expected)
    if one is None or other is None or isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    return math.isclose(float(one), float(other), rel_tol=tolerance, abs_tol=tolerance * 1e-3)


def _none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


def _differs(name: str, recorded: Any, expected: Any) -> str:
    return f"{name} is {_text(recorded)}, the other records give {_text(expected)}"


def _text(value: Any) -> str:
    if _none(value) is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.{SHOWN_DIGITS}g}"
    return str(value)
