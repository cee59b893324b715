"""Whether the decisions of a run follow from its records: each is made again and compared.

What is compared: who was asked, the threshold, F(w), what was admitted, responses, mixing
coefficients, omega, weights, inclusion mass, decision losses, counts, and the summaries of the
clients' test metrics. What the records cannot show is named, and not passed over.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from client_app.decisions import joins
from conf.schema.strategy import ComposedSettings
from server_app.records.round_record import evaluation_summary, weight_error
from server_app.report.replay import (
    Recorded,
    Replayed,
    Row,
    UndecidableError,
    needs_inner_products,
    read_recorded,
    replay,
    weighting_name,
)
from server_app.report.runs import Run
from strategies.weighting.exponentiated_gradient import base_weights

TOLERANCE = 1e-9
SOLVER_TOLERANCE = 1e-6
SOLVED = frozenset({"aaggff_s", "fedmgda"})
"""Weightings whose p is the answer of a solver, not a formula: other machines round otherwise."""

STATUSES = ("trained", "silent", "unavailable", "rejected", "failed")
SHOWN_DIGITS = 9


@dataclass(frozen=True)
class Problem:
    """Something recorded that does not follow from the other records.

    ``round`` None is the run as a whole, ``client`` None the round as a whole.
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
    """What came of deciding a run again.

    Parameters
    ----------
    run : Run
        The run.
    rounds, decisions : int
        How many rounds, and rows of the clients table, were decided again.
    problems : tuple of Problem
        What does not fit.
    unknown : tuple of str
        What cannot be decided again, and why.
    """

    run: Run
    rounds: int
    decisions: int
    problems: tuple[Problem, ...]
    unknown: tuple[str, ...]


def audit(directory: Path) -> Audit:
    """Decide a run again from its records and compare.

    Raises
    ------
    RunError
        If a record is missing or damaged.
    """
    recorded = read_recorded(directory)
    problems = list(_order_problems(recorded))
    rounds = decisions = 0
    before: float | None = None
    statuses: Counter[str] = Counter()
    admitted: Counter[int] = Counter()
    try:
        for replayed in replay(recorded):
            problems += _round_problems(recorded, replayed, before)
            before = replayed.record.decision_loss_sum
            rounds, decisions = rounds + 1, decisions + len(replayed.rows)
            statuses.update(_kind(row) for row in replayed.rows)
            admitted.update(row["client"] for row in replayed.rows if row["weight"] != 0.0)
    except UndecidableError as error:
        problems.append(Problem(error.number, None, f"the rules refuse what is recorded: {error}"))
    else:
        problems += _missing_rows(recorded, rounds)
    problems += _summary_problems(recorded, admitted)
    unknown = tuple(_unknown(recorded, statuses, rounds))
    return Audit(recorded.run, rounds, decisions, tuple(problems), unknown)


# --- the order of the records -----------------------------------------------------------------


def _order_problems(recorded: Recorded) -> Iterator[Problem]:
    settings = recorded.settings
    for name, told, value in (
        ("strategy", recorded.run.strategy, settings.strategy.name),
        ("seed", recorded.run.seed, settings.seed),
    ):
        if told != value:
            yield Problem(None, None, f"the manifest's {name} is {told}, config.yaml has {value}")
    numbers = [record.round for record in recorded.run.rounds]
    if numbers != list(range(1, len(numbers) + 1)):
        yield Problem(None, None, "the rounds in rounds.jsonl are not 1, 2, 3, ...")
    for number in sorted(set(recorded.rows.places) - set(numbers)):
        yield Problem(number, None, "clients/ has rows of a round that rounds.jsonl lacks")
    for number in recorded.rows.places:
        clients = Counter(row["client"] for row in recorded.rows[number])
        for client in (k for k, count in clients.items() if count > 1):
            yield Problem(number, client, f"{clients[client]} rows in clients/, not one")


def _missing_rows(recorded: Recorded, rounds: int) -> Iterator[Problem]:
    missing = recorded.run.rounds[rounds:]
    if missing and recorded.run.status != "running":
        yield Problem(missing[0].round, None, "clients/ has no rows of this round")


# --- one round --------------------------------------------------------------------------------


def _round_problems(
    recorded: Recorded, replayed: Replayed, loss_sum_before: float | None
) -> Iterator[Problem]:
    number = replayed.record.round
    yield from _asked_problems(replayed)
    if needs_inner_products(recorded):
        yield from _direction_problems(recorded, replayed)
    compared = _expected_rows(recorded, replayed)
    tolerance = _tolerance(recorded)
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
    yield from _test_problems(recorded, replayed)


def _asked_problems(replayed: Replayed) -> Iterator[Problem]:
    asked, rows = set(replayed.call.clients), {row["client"] for row in replayed.rows}
    for client in sorted(rows - asked):
        yield Problem(replayed.record.round, client, "has a row, but the rule does not ask it")
    for client in sorted(asked - rows):
        yield Problem(replayed.record.round, client, "the rule asks it, but it has no row")


def _expected_rows(recorded: Recorded, replayed: Replayed) -> dict[int, dict[str, Any]]:
    """Return what the rules give of each row, by client and column."""
    weights, draws = replayed.weights, replayed.call.draws
    population = recorded.population
    tested = {e.client: e for e in recorded.evaluations(replayed.record.round)}
    found: dict[int, dict[str, Any]] = {}
    for row in replayed.rows:
        client = row["client"]
        own = tested.get(client)
        found[client] = {
            "priority": client in population.priority,
            "test_loss": None if own is None else own.test_loss,
            "test_accuracy": None if own is None else own.test_accuracy,
        }
        if weights is not None:
            found[client] |= {"response": None, "weight": 0.0, "mixing": None}
            found[client] |= {"omega": weights.omega.get(client), "draws": None}
    for i, row in enumerate(replayed.usable):
        client = row["client"]
        found[client]["status"] = "trained" if replayed.admission.share[i] > 0 else "rejected"
        if weights is not None:
            found[client] |= {
                "draws": None if draws is None else draws.count.get(client),
                "response": None if weights.response is None else weights.response[i],
                "weight": _capped(recorded, float(weights.weight[i])),
            }
    if weights is not None and weights.mixing is not None:
        clients = [row["client"] for row in replayed.rows]
        places = np.searchsorted(population.ascending, clients)
        for client, p in zip(clients, weights.mixing[places], strict=True):
            found[client]["mixing"] = p
    return found


def _capped(recorded: Recorded, weight: float) -> float:
    """Return what counts of a weight where one client's is bounded."""
    most = recorded.settings.robustness.max_weight
    return weight if most is None else min(weight, most)


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
    if answered and gated:
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


def _expected_record(
    recorded: Recorded, replayed: Replayed, loss_sum_before: float | None
) -> dict[str, Any]:
    rows, call, weights = replayed.rows, replayed.call, replayed.weights
    statuses = Counter(row["status"] for row in rows)
    expected: dict[str, Any] = {
        "epsilon": call.epsilon,
        "global_loss": replayed.measure.loss,
        "global_accuracy": replayed.measure.accuracy,
        "asked": len(call.clients),
        **{status: statuses[status] for status in STATUSES},
        "admitted": sum(row["weight"] != 0.0 for row in rows),
        "priority_data": None if call.draws is None else call.draws.priority_data,
    }
    if weights is not None:
        mass, loss = weights.inclusion_mass, weights.decision_loss
        omega = {k: v for k, v in weights.omega.items() if k in set(call.clients)}
        expected |= {
            "inclusion_mass": mass,
            "theta": None if mass is None else 1.0 / (1.0 + mass),
            "weight_error": weight_error(dict(sorted(omega.items())), recorded.rates),
            "decision_loss": loss,
            "decision_loss_sum": (
                loss_sum_before if loss is None else (loss_sum_before or 0.0) + loss
            ),
            "kl": replayed.divergence,
        }
    return expected


def _test_problems(recorded: Recorded, replayed: Replayed) -> Iterator[Problem]:
    settings = recorded.settings.evaluation
    expected = evaluation_summary(
        recorded.evaluations(replayed.record.round),
        settings.metric,
        settings.clients == "all",
    )
    given, number = replayed.record.test, replayed.record.round
    if (given is None) != (expected is None):
        yield Problem(number, None, "test is not what evaluations/ gives")
        return
    for group, values in (expected or {}).items():
        told = (given or {}).get(group)
        if (told is None) != (values is None):
            yield Problem(number, None, f"test.{group} is not what evaluations/ gives")
            continue
        for name, value in (values or {}).items():
            if not _same((told or {}).get(name), value, TOLERANCE):
                text = _differs(f"test.{group}.{name}", (told or {}).get(name), value)
                yield Problem(number, None, text)


def _direction_problems(recorded: Recorded, replayed: Replayed) -> Iterator[Problem]:
    """Check of FedMGDA+ what its inner products are not needed for."""
    number = replayed.record.round
    own = recorded.settings.strategy
    rule = own.weighting if isinstance(own, ComposedSettings) else own
    deviation = getattr(rule, "deviation", 1.0)
    base = base_weights(replayed.call, replayed.responses, replayed.admission.share)
    total = 0.0
    for row, centre in zip(replayed.usable, base.tolist(), strict=True):
        p, norm = row["mixing"] or 0.0, row["update_norm"]
        total += p
        if abs(p - centre) > deviation + SOLVER_TOLERANCE:
            text = f"mixing {_text(p)} is further than {deviation:g} from w = {_text(centre)}"
            yield Problem(number, row["client"], text)
        expected = _capped(recorded, p / norm) if norm else 0.0
        if not _same(row["weight"], expected, TOLERANCE):
            yield Problem(number, row["client"], _differs("weight", row["weight"], expected))
    if (base > 0).any() and not _same(total, 1.0, SOLVER_TOLERANCE):
        yield Problem(number, None, f"the mixing coefficients sum to {_text(total)}, not to 1")


# --- the whole run ----------------------------------------------------------------------------


def _summary_problems(recorded: Recorded, admitted: Mapping[int, int]) -> Iterator[Problem]:
    """Compare the manifest's summary with the rounds, and with who was admitted how often."""
    if not recorded.summary:
        return
    rounds = recorded.run.rounds
    masses = [r.inclusion_mass for r in rounds if r.inclusion_mass is not None]
    thetas = [r.theta for r in rounds if r.theta is not None]
    expected = {
        "theta": fmean(thetas) if thetas else None,
        "inclusion_mass": fmean(masses) if masses else None,
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


def _unknown(recorded: Recorded, statuses: Mapping[str, int], rounds: int) -> Iterator[str]:
    name = recorded.settings.strategy.name
    if needs_inner_products(recorded):
        yield (
            f"mixing coefficients of {name}: they need the inner products of the updates, which "
            "no record holds (checked instead: simplex, box, and weight = p / |Delta|)"
        )
    if name in ("fedvarp", "mifa"):
        yield f"the memory of updates that corrects {name}'s step; its weights are checked"
    if statuses["silent"]:
        yield (
            f"why clients stayed silent ({statuses['silent']} times): a silent client tells "
            "nothing but that"
        )
    if statuses["unusable"]:
        yield (
            f"that updates were unusable ({statuses['unusable']} times): the updates are not in "
            "the records"
        )
    if statuses["absent"]:
        yield f"that clients were unavailable or failed ({statuses['absent']} times)"
    missing = len(recorded.run.rounds) - rounds
    if missing and recorded.run.status == "running":
        yield f"the last {missing} rounds, whose rows in clients/ are not (or never) written"


def _kind(row: Row) -> str:
    if row["status"] in ("unavailable", "failed"):
        return "absent"
    if row["status"] == "rejected" and row["num_examples"] is None:
        return "unusable"
    return str(row["status"])


# --- comparing --------------------------------------------------------------------------------


def _tolerance(recorded: Recorded) -> float:
    return SOLVER_TOLERANCE if weighting_name(recorded) in SOLVED else TOLERANCE


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
