"""Tests of explanations: the rules' formulas with the recorded numbers."""

import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pyarrow.parquet as pq
import pytest
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import AuditInput, read_audit_input
from fedquorum.errors import RunError
from fedquorum.registry import ALL_SELECTIONS, ALL_WEIGHTINGS
from fedquorum.rules.participation import PARTICIPATIONS
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS
from fedquorum.server.virtual_clock import LATE_REASON

from tests.builders_runs import make_client_overrides, run_here
from tests.fedquorum.audit.runs import CONFIGURATIONS, PARTS
from tests.fedquorum.records.made import write_table


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_explained_weight_is_the_recorded_one(runs: Callable[[str], Path], name: str) -> None:
    """For every strategy, the formula ends with the recorded weight of a client that trained."""
    recorded = read_audit_input(runs(name))
    row = next(row for row in recorded.client_rows[4] if row["status"] == "trained")
    lines = describe_decision(recorded, row["client"], 4)
    assert lines[0].startswith(f"round 4, client {row['client']} (")
    assert lines[1].startswith("asked: yes; ")
    assert lines[2].startswith(f"answered: an update, with D_k = {row['num_examples']}")
    assert lines[-1] == f"weight recorded: {row['weight']:.6g}"
    formula = " ".join(line for line in lines if line.startswith("weight: "))
    if name == "fedmgda":
        p, norm = map(float, formula.rsplit("=", 1)[1].split(" / "))
        assert p / norm == pytest.approx(row["weight"], rel=1e-4)
    elif name == "capped":
        assert row["weight"] == 0.05
        assert "weight: at most robustness.max_weight = 0.05" in formula
    else:
        assert f"= {row['weight']:.6g}" in formula


@pytest.mark.parametrize("name", ["fedavg", "fedau", "aaggff_s", "average_all", "term"])
def test_priority_is_no_word_of_a_run_in_which_all_have_it(name: str, tmp_path: Path) -> None:
    """Neither of who trains nor of a weight: there are no other clients."""
    run_here(
        tmp_path / "run",
        *("data=synth", *make_client_overrides(4, 2), "data.priority=all"),
        *(f"strategy={name}", "rounds=2"),
    )
    lines = describe_decision(read_audit_input(tmp_path / "run"), 1, 2)
    assert lines[0] == f"round 2, client 1, strategy {name}"
    assert lines[-1].startswith("weight recorded: 0.")
    assert not [line for line in lines if "priority" in line or "over P" in line]


def test_fedaligns_gate_is_explained(runs: Callable[[str], Path]) -> None:
    """Warm-up, declining and the server's half of the gate have their numbers."""
    recorded = read_audit_input(runs("fedalign"))
    (selection,) = describe_decision(recorded, 7, 1)[1:]
    assert selection.startswith("asked: no; rounds 1 to 1 are warm-up")
    declined = next(row for row in recorded.client_rows[2] if row["status"] == "declined")
    lines = describe_decision(recorded, declined["client"], 2)
    assert lines[2].startswith("answered: declined; ")
    assert lines[-1].startswith("weight: 0; ")
    open_gate = read_audit_input(runs("accuracy"))
    other = next(
        row
        for number in (2, 3, 4)
        for row in open_gate.client_rows[number]
        if not row["priority"] and row["status"] in ("trained", "rejected")
    )
    (gate,) = [
        text
        for text in describe_decision(open_gate, other["client"], other["round"])
        if text.startswith("admitted: ")
    ]
    assert f"acc_k = {other['accuracy']:.6g}" in gate


def test_draws_and_samples_are_explained(runs: Callable[[str], Path]) -> None:
    """The lines state how often a priority client was sampled, by which stream, and who was not."""
    recorded = read_audit_input(runs("draws"))
    sampled_row = next(row for row in recorded.client_rows[3] if row["num_draws"])
    (selection,) = [
        line
        for line in describe_decision(recorded, sampled_row["client"], 3)
        if line.startswith("asked: ")
    ]
    assert f"drawn {sampled_row['num_draws']} times of 6" in selection
    assert '(seed 1, "selection", round 3)' in selection
    sampled = read_audit_input(runs("afl"))
    absent = set(sampled.population.clients) - {row["client"] for row in sampled.client_rows[3]}
    _, selection = describe_decision(sampled, min(absent), 3)
    assert selection.startswith("asked: no; ")
    assert "a fraction 0.5" in selection


def test_a_late_or_busy_client_has_no_weight(runs: Callable[[str], Path]) -> None:
    """After the selection, the explanation ends with the status and its reason."""
    recorded = read_audit_input(runs("slow"))
    found = {row["status"]: row for number in range(1, 6) for row in recorded.client_rows[number]}
    for status, reason in (("late", LATE_REASON), ("busy", found["busy"]["reason"])):
        row = found[status]
        outcome, weight = describe_decision(recorded, row["client"], row["round"])[-2:]
        assert outcome == f"answered: {status}: {reason}"
        assert weight.startswith("weight: 0; ")


def test_a_client_that_never_trains_is_explained(runs: Callable[[str], Path]) -> None:
    """Any round gives the explanation, without a replay."""
    recorded = read_audit_input(runs("unseen"))
    client = min(recorded.population.held_out)
    (line,) = describe_decision(recorded, client, 1)
    assert line.startswith(f"client {client} never trains: it is a held-out client")


@pytest.mark.parametrize(
    ("client", "number", "problem"),
    [
        (8, 1, "client must be an id from 0 to 7 or the name of a client, got 8"),
        (-1, 1, "client must be .*, got -1"),
        (0, 0, "round must be from 1 to 5, the run's rounds, got 0"),
        (0, 6, "round must be .*, got 6"),
    ],
)
def test_an_unknown_client_or_round_is_refused(
    runs: Callable[[str], Path], client: int, number: int, problem: str
) -> None:
    """The error states the valid clients or rounds."""
    with pytest.raises(RunError, match=f"^{problem}$"):
        describe_decision(read_audit_input(runs("fedalign")), client, number)


def test_a_decision_whose_records_are_missing_is_refused(
    run_copy: Callable[[str], Path],
) -> None:
    """Rounds before the gap are still explained."""
    run = run_copy("qfedavg")
    rows = pq.read_table(run / "clients").to_pylist()
    write_table(run, "clients", [row for row in rows if row["round"] < 4])
    recorded = read_audit_input(run)
    assert describe_decision(recorded, 0, 3)[-1].startswith("weight recorded: ")
    for number in (4, 5):
        with pytest.raises(RunError, match=rf"^clients/ has no rows of round {number}$"):
            describe_decision(recorded, 0, number)


def test_a_decision_after_one_that_the_rules_refuse_is_refused(
    run_copy: Callable[[str], Path],
) -> None:
    """The later decisions are unknown; the error has the rule's reason."""
    run = run_copy("term")
    rows = pq.read_table(run / "clients").to_pylist()
    write_table(run, "clients", [row | {"loss": None} for row in rows])
    message = r"^round 1: the rules refuse what is recorded: weights by losses need each client's"
    with pytest.raises(RunError, match=message):
        describe_decision(read_audit_input(run), 0, 3)


# --- composed strategies ------------------------------------------------------------------------


def test_the_composed_runs_cover_every_part() -> None:
    """Each in at least one run."""
    parts = list(map(set, zip(*PARTS.values(), strict=True)))
    expected = ({*ALL_SELECTIONS}, {*ALL_WEIGHTINGS}, {"none", *PARTICIPATIONS})
    assert parts == [*expected, {*SERVER_OPTIMIZERS}]


def find_counted_updates(recorded: AuditInput) -> list[tuple[int, int]]:
    """Return round and client of the first and the last update that counted in each round."""
    found = []
    for number in recorded.client_rows.row_ranges:
        clients = [row["client"] for row in recorded.client_rows[number] if row["weight"] != 0.0]
        found += [(number, client) for client in sorted({*clients[:1], *clients[-1:]})]
    return found


@pytest.mark.parametrize("name", PARTS)
def test_the_weights_of_a_composed_run_are_explained(
    runs: Callable[[str], Path], name: str
) -> None:
    """With and without warm-up and priority, the formula ends with the weight."""
    recorded = read_audit_input(runs(name))
    assert len(find_counted_updates(recorded)) >= 6
    for number, client in find_counted_updates(recorded):
        row = next(row for row in recorded.client_rows[number] if row["client"] == client)
        lines = describe_decision(recorded, client, number)
        assert lines[1].startswith("asked: yes; ")
        assert lines[-1] == f"weight recorded: {row['weight']:.6g}"
        if "fedmgda" in name:
            assert f"p_k = {row['mixing_coefficient']:.6g}, w_k = " in lines[-3]
        else:
            assert lines[-2].endswith(f"= {row['weight']:.6g}") or (
                f": c_k = {row['weight']:.6g}" in lines[-3]
            )


SAMPLED = [name for name, parts in PARTS.items() if parts[1:3] == ("aaggff_d", "none")]


@pytest.mark.parametrize("name", SAMPLED)
def test_the_sampled_fraction_is_of_the_eligible_clients(
    runs: Callable[[str], Path], name: str
) -> None:
    """C is selected / eligible; only priority clients are eligible in warm-up or by the rule.

    The explained estimate r~_k follows from the recorded responses with this C, and the explained
    p_k is the recorded one, so the rule decides with it, too.
    """
    recorded = read_audit_input(runs(name))
    always_priority = PARTS[name][0] == "priority_only"
    warmup = 2 if PARTS[name][0] == "epsilon_gate" else 0
    fractions, means = set(), list[float]()
    for record in recorded.run.rounds:
        number, rows = record.round, recorded.client_rows[record.round]
        priority_only = always_priority or number <= warmup
        num_eligible = (
            len(recorded.population.priority) if priority_only else len(recorded.population.clients)
        )
        fraction = len(rows) / num_eligible
        responses = {r["client"]: r["response"] for r in rows if r["response"] is not None}
        for client, response in responses.items():
            text = " ".join(describe_decision(recorded, client, number))
            found = re.search(r"r~_k = \(1 - 1/C\) rbar \+ r_k / C = (\S+) with C = (\S+)", text)
            assert found is not None
            assert float(found[2]) == pytest.approx(fraction, rel=1e-5)
            row = next(row for row in rows if row["client"] == client)
            assert f"p_k = {row['mixing_coefficient']:.6g}" in text
            if "running" not in name or means:
                rbar = fmean(means if "running" in name else responses.values())
                expected = (1 - 1 / fraction) * rbar + response / fraction
                assert float(found[1]) == pytest.approx(expected, rel=1e-4)
        if responses:
            means.append(fmean(responses.values()))
            fractions.add((fraction, priority_only))
    assert len(fractions) >= 2 or always_priority or not warmup
