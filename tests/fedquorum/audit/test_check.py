"""Tests of the audit: correct records, changed records, and damaged records."""

import itertools
import json
import math
import re
import shutil
from collections.abc import Callable, Container
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import piqp
import pyarrow.parquet as pq
import pytest
from fedquorum.audit.check import _find_norm_mismatches, audit_run
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input, replay_rounds
from fedquorum.errors import RunError
from fedquorum.records.reader import read_runs, read_table
from fedquorum.rules import simplex
from fedquorum.rules.round import NOT_FINITE, NOT_SOLVED, WEIGHT_EXCEEDS_BOUND
from fedquorum.rules.state_arrays import to_arrays
from fedquorum.rules.weighting import AverageAll

from tests.fedquorum.audit.runs import CONFIGURATIONS, OVERRIDES, PARTS, REFUSED
from tests.fedquorum.records.made import change_round, change_table, write_table
from tests.server_app.made_runs import make_real_run

Rows = list[dict[str, Any]]


# --- correct records --------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_decision_of_every_strategy_follows_from_its_records(
    runs: Callable[[str], Path], name: str
) -> None:
    """The audit replays every round and outcome, and finds no mismatch."""
    found = audit_run(runs(name))
    assert [str(problem) for problem in found.mismatches] == []
    assert found.num_rounds == 5
    assert found.num_decisions >= 5 * 3
    assert ("inner products" in " ".join(found.unverifiable)) == (name in {"fedmgda", "fedgp"})


@pytest.mark.parametrize("name", PARTS)
def test_every_decision_of_composed_strategies_follows_from_its_records(
    runs: Callable[[str], Path], name: str
) -> None:
    """The runs have a warm-up, samples, and clients that are not always available."""
    found = audit_run(runs(name))
    assert [str(problem) for problem in found.mismatches] == []
    assert found.num_rounds == 5


@pytest.mark.parametrize("name", REFUSED)
def test_refused_rounds_do_not_change_later_decisions(
    runs: Callable[[str], Path], name: str
) -> None:
    """If the model would not be finite, no update counts, and the state is unchanged."""
    found = audit_run(runs(name))
    assert [str(problem) for problem in found.mismatches] == []
    recorded = read_audit_input(runs(name))
    rounds = list(replay_rounds(recorded))
    trained = [replayed for replayed in rounds if replayed.decision.clients]
    assert len(trained) >= 4
    for replayed in trained:
        assert {row["weight"] for row in replayed.rows} == {0.0}
        assert {row["reason"] for row in replayed.rows if row["num_examples"]} == {NOT_FINITE}
        assert replayed.decision.next_state is replayed.decision.previous_state
    first, last = (
        to_arrays(replayed.decision.previous_state.weighting, "w")
        for replayed in (rounds[0], rounds[-1])
    )
    assert all((array == first[key]).all() for key, array in last.items())


@pytest.mark.parametrize("name", ["fedmgda", "aaggff_s"])
def test_a_round_without_weights_is_rejected_and_reported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A solver's failure does not end the run; the audit follows the records."""
    solve, calls = simplex._solve, itertools.count(1)

    def fail_once(*problem: Any) -> tuple[Any, Any]:
        solution, status = solve(*problem)
        return solution, piqp.PIQP_NUMERICS if next(calls) == 2 else status

    monkeypatch.setattr(simplex, "_solve", fail_once)
    make_real_run(tmp_path / name, *OVERRIDES[name])
    monkeypatch.undo()
    found = audit_run(tmp_path / name)
    assert [str(problem) for problem in found.mismatches] == []
    assert found.num_rounds == 5
    rounds = replay_rounds(read_audit_input(tmp_path / name))
    refused = [replayed for replayed in rounds if replayed.refusal]
    assert len(refused) == 1
    reasons = {row["reason"] for row in refused[0].rows if row["num_examples"]}
    (reason,) = reasons
    assert reason.startswith(f"{NOT_SOLVED}: the quadratic program of ")
    client = next(row["client"] for row in refused[0].rows if row["num_examples"])
    lines = describe_decision(read_audit_input(tmp_path / name), client, refused[0].record.round)
    assert f"weight: 0; {reason}; recorded 0" in lines


@pytest.mark.slow
def test_rounds_whose_weights_exceed_the_bound_are_rejected_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit finds no mismatch if weights exceed a rule's stated bound."""
    monkeypatch.setattr(AverageAll, "compute_max_share", lambda *_: 1e-9)
    overrides = ("strategy=average_all", "privacy=dp_fixed_server", "rounds=2")
    with pytest.raises(RunError, match=r"no client trained .*: an update would count for more"):
        make_real_run(tmp_path / "run", *overrides)
    monkeypatch.undo()
    found = audit_run(tmp_path / "run")
    assert [str(problem) for problem in found.mismatches] == []
    rounds = list(replay_rounds(read_audit_input(tmp_path / "run")))
    assert [replayed.refusal for replayed in rounds] == [WEIGHT_EXCEEDS_BOUND]
    assert all(replayed.decision.report.is_empty for replayed in rounds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_records_with_a_training_loss_of_0_are_valid(seed: int, tmp_path: Path) -> None:
    """In q-FedAvg the response is then -inf; the run is loaded, audited and its table read."""
    overrides = (
        *("data=synth", "strategy=qfedavg", "server_optimizer=momentum"),
        *("model=logistic_regression", "rounds=30", f"seed={seed}", "data.num_clients=10"),
        *("data.priority=all", "data.sizes=equal", "data.samples_per_client=40", "client.lr=0.2"),
        "strategy.fraction=0.3",
    )
    make_real_run(tmp_path / "run", *overrides)
    assert read_runs([tmp_path])[1] == ()
    found = audit_run(tmp_path / "run")
    assert (found.mismatches, found.num_rounds) == ((), 30)
    responses = read_table(tmp_path / "run" / "clients")["response"].to_pylist()
    assert -math.inf in responses


def test_a_diverged_run_is_replayed(tmp_path: Path) -> None:
    """Its losses are infinite in the evaluations, too, which differ from missing ones."""
    overrides = ("strategy=fedalign", "strategy.epsilon=inf", "client.lr=1e14", "rounds=4")
    make_real_run(tmp_path / "run", *overrides)
    found = audit_run(tmp_path / "run")
    assert [str(problem) for problem in found.mismatches] == []
    losses = read_table(tmp_path / "run" / "evaluations")["loss"].to_pylist()
    assert math.inf in losses
    assert math.inf in [record.global_loss for record in found.run.rounds]


def test_a_refused_round_is_named(runs: Callable[[str], Path]) -> None:
    """The records have the server's statement, but not the updates from which it follows."""
    text = " ".join(audit_run(runs("refused fedau")).unverifiable)
    assert f"that {NOT_FINITE} (" in text
    assert "that the model would" not in " ".join(audit_run(runs("fedau")).unverifiable)


def test_unverifiable_facts_are_listed(runs: Callable[[str], Path]) -> None:
    """Declined rounds, absence and memories are listed with their reasons."""
    text = " ".join(audit_run(runs("fedalign")).unverifiable)
    assert "why clients declined" in text
    text = " ".join(audit_run(runs("mifa")).unverifiable)
    assert "unavailable" in text
    assert "memory of updates" in text


def test_only_unverifiable_facts_are_listed(runs: Callable[[str], Path]) -> None:
    """Recorded facts are not listed."""
    (unverifiable,) = audit_run(runs("slow")).unverifiable
    assert re.fullmatch(r"that clients were unavailable.* \(\d+ times\)", unverifiable)


def test_unusable_updates_are_listed(run_copy: Callable[[str], Path]) -> None:
    """They were rejected for their content, and no record has an update."""
    run = run_copy("average_participating")

    def make_unusable(rows: Rows) -> None:
        find_row(rows, 5, client=1).update(
            num_examples=None,
            loss=None,
            accuracy=None,
            status="rejected",
            reason="an array is not finite",
        )

    change_table(run, "clients", make_unusable)
    (text,) = [text for text in audit_run(run).unverifiable if "unusable" in text]
    assert "unusable (1 times)" in text


def test_a_killed_run_is_checked_up_to_its_last_rows(
    run_copy: Callable[[str], Path],
) -> None:
    """A running run may lack its last rows; any other run may not."""
    run = run_copy("qfedavg")
    change_table(run, "clients", lambda rows: remove(rows, lambda row: row["round"] > 3))
    first = audit_run(run).mismatches[0]
    assert str(first) == "round 4: clients/ has no rows of this round"
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["summary"]
    (run / "manifest.json").write_text(json.dumps(manifest | {"status": "running"}))
    found = audit_run(run)
    assert (found.num_rounds, found.mismatches) == (3, ())
    assert "the last 2 rounds" in " ".join(found.unverifiable)


# --- changed records --------------------------------------------------------------------------


def remove(rows: Rows, is_removed: Callable[[dict[str, Any]], bool]) -> None:
    rows[:] = [row for row in rows if not is_removed(row)]


def find_row(rows: Rows, number: int, **values: Any) -> dict[str, Any]:
    """Return the first row of a round with these values."""
    return next(
        row
        for row in rows
        if row["round"] == number and all(row[key] == value for key, value in values.items())
    )


def set_all(**values: Any) -> Callable[[Rows], None]:
    """Return a function that sets columns of all rows."""

    def set_columns(rows: Rows) -> None:
        for row in rows:
            row.update(values)

    return set_columns


def scale_column(number: int, column: str, factor: float) -> Callable[[Rows], None]:
    """Return a function that multiplies a number of a round's first trained client."""

    def scale(rows: Rows) -> None:
        row = find_row(rows, number, status="trained")
        row[column] = type(row[column])(row[column] * factor)

    return scale


@pytest.mark.parametrize(
    ("name", "column", "factor"),
    [
        ("fedalign", "weight", 1.001),
        ("fedalign", "num_examples", 2),
        ("fedau", "participation_correction", 1.5),
        ("fedau", "weight", 0.5),
        ("known_statistics", "participation_correction", 2.0),
        ("average_participating", "weight", 1.01),
        ("mifa", "weight", 1.01),
        ("aaggff_s", "loss", 1.1),
        ("aaggff_s", "response", 1.1),
        ("aaggff_s", "mixing_coefficient", 1.01),
        ("aaggff_d", "loss", 1.1),
        ("aaggff_d", "weight", 1.01),
        ("qfedavg", "loss", 1.1),
        ("lipschitz", "update_norm", 1.1),
        ("term", "loss", 1.1),
        ("propfair", "response", 1.1),
        ("afl", "mixing_coefficient", 1.01),
        ("fedmgda", "weight", 1.01),
        ("fedmgda", "mixing_coefficient", 1.5),
        ("fedgp", "weight", 1.01),
        ("draws", "weight", 1.01),
        ("fedalign", "test_loss", 1.1),
        ("slow", "reply_seconds", 100.0),
    ],
)
def test_a_changed_number_of_a_client_is_found(
    run_copy: Callable[[str], Path], name: str, column: str, factor: float
) -> None:
    """The mismatch names round and client, or the round if the number affects all clients."""
    run = run_copy(name)
    change_table(run, "clients", scale_column(2, column, factor))
    problems = audit_run(run).mismatches
    assert {problem.round for problem in problems} >= {2}
    assert any(problem.client is not None for problem in problems if problem.round == 2)


@pytest.mark.parametrize("priority", [True, False])
def test_an_impossible_weight_of_fedgp_is_found(
    run_copy: Callable[[str], Path], *, priority: bool
) -> None:
    """The weight of a priority client follows from its data; other weights have a bound.

    The model did not move by the larger weight.
    """
    run = run_copy("fedgp")

    def increase_weight(rows: Rows) -> None:
        row = next(r for r in rows if r["round"] == 3 and r["priority"] == priority and r["weight"])
        row["weight"] *= 1.001 if priority else 1000.0

    change_table(run, "clients", increase_weight)
    problem, *others = audit_run(run).mismatches
    text = "the other records give" if priority else "its update moves the model by"
    assert text in str(problem)
    assert all("update_norm" in str(other) for other in others)
    assert len(others) == (not priority)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedalign", {"global_loss": 0.123}),
        ("fedalign", {"global_accuracy": 0.123}),
        ("fedalign", {"epsilon": 0.3}),
        ("fedalign", {"inclusion_mass": 0.5}),
        ("fedalign", {"theta": 0.9}),
        ("fedalign", {"selected": 7}),
        ("fedalign", {"declined": 1, "trained": 7}),
        ("fedalign", {"admitted": 1}),
        ("fedalign", {"test": None}),
        ("fedalign", {"test": {"priority": None, "non_priority": None, "all": None}}),
        ("slow", {"simulated_seconds": 1.0}),
        ("slow", {"late_replies": []}),
        ("draws", {"priority_data": 17.0}),
        ("fedau", {"weight_error": 0.1}),
        ("fedau", {"unregistered": [0, 1, 2]}),
        ("aaggff_s", {"decision_loss": -0.5}),
        ("aaggff_s", {"decision_loss_sum": -0.5}),
        ("aaggff_s", {"kl_to_data": 0.5}),
    ],
)
def test_a_changed_number_of_a_round_is_found(
    run_copy: Callable[[str], Path], name: str, changes: dict[str, Any]
) -> None:
    """Each number of a line of rounds.jsonl follows from the other records."""
    run = run_copy(name)
    change_round(run, 3, **changes)
    assert 3 in {problem.round for problem in audit_run(run).mismatches}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: remove(rows, lambda row: (row["round"], row["client"]) == (2, 0)),
            "round 2, client 0: the rule asks it, but it has no row",
        ),
        (
            lambda rows: rows.append(find_row(rows, 2, client=0) | {"client": 77}),
            "round 2, client 77: has a row, but the rule does not ask it",
        ),
        (
            lambda rows: rows.append(dict(find_row(rows, 2, client=0))),
            "round 2, client 0: 2 rows in clients/, not one",
        ),
        (
            lambda rows: find_row(rows, 2, client=0).update(status="rejected"),
            "round 2, client 0: status is rejected, the other records give trained",
        ),
        (
            lambda rows: find_row(rows, 2, client=0).update(num_examples=None, weight=0.0),
            "round 2, client 0: trained, but nothing usable of it is recorded",
        ),
        (
            lambda rows: find_row(rows, 2, status="declined").update(weight=0.1),
            ": weight is 0.1, the other records give 0",
        ),
        (
            lambda rows: find_row(rows, 2, status="declined").update(status="asleep"),
            ": status is 'asleep', which is none",
        ),
        (
            lambda rows: find_row(rows, 2, client=7).update(
                status="trained", num_examples=10, loss=9.0, accuracy=0.1, weight=0.1
            ),
            "round 2, client 7: sent an update, though its loss 9 is outside its own half",
        ),
        (
            lambda rows: find_row(rows, 2, client=0).update(priority=False),
            "round 2, client 0: priority is False, the other records give True",
        ),
    ],
)
def test_a_changed_outcome_is_found(
    run_copy: Callable[[str], Path], change: Callable[[Rows], None], message: str
) -> None:
    """Rows are missing, superfluous, or impossible for their client."""
    run = run_copy("fedalign")
    change_table(run, "clients", change)
    assert any(message in str(problem) for problem in audit_run(run).mismatches)


def test_the_weight_of_a_client_without_an_update_is_found(
    run_copy: Callable[[str], Path],
) -> None:
    """It is found even if the records do not determine the weights, as for fedmgda."""
    run = run_copy("fedmgda")
    nothing = dict.fromkeys(
        ("num_examples", "loss", "accuracy", "mixing_coefficient", "update_norm")
    )
    failed = {"status": "failed", "weight": 0.1, **nothing}
    change_table(run, "clients", lambda rows: find_row(rows, 2, client=0).update(failed))
    text = "round 2, client 0: weight is 0.1, the other records give 0"
    assert text in map(str, audit_run(run).mismatches)


def test_changed_evaluations_are_found(run_copy: Callable[[str], Path]) -> None:
    """F(w) has the training losses after the previous round; test summaries have this round's."""
    run = run_copy("fedalign")
    change_table(
        run,
        "evaluations",
        lambda rows: find_row(rows, 2, client=0).update(loss=5.0, test_accuracy=0.0),
    )
    problems = [str(problem) for problem in audit_run(run).mismatches]
    assert any(text.startswith("round 3: global_loss is") for text in problems)
    assert any(text.startswith("round 2: test.priority.accuracy is") for text in problems)


def test_a_changed_loss_of_a_candidate_is_found(run_copy: Callable[[str], Path]) -> None:
    """The selection of round 3 follows from the candidates' losses after round 2."""
    run = run_copy("evaluated x participating")

    def raise_lowest_loss(rows: Rows) -> None:
        evaluated = [r for r in rows if r["round"] == 2 and r["loss"] is not None]
        min(evaluated, key=lambda row: row["loss"])["loss"] = 99.0

    change_table(run, "evaluations", raise_lowest_loss)
    problems = [str(problem) for problem in audit_run(run).mismatches]
    assert any(re.match(r"round 3, client \d: the rule asks it", text) for text in problems)


def test_the_first_evaluation_is_checked(run_copy: Callable[[str], Path]) -> None:
    """F(w_0), which decides round 1, follows from the evaluations of round 0."""
    run = run_copy("fedalign")
    change_table(run, "evaluations", lambda rows: find_row(rows, 0, client=0).update(loss=5.0))
    assert str(audit_run(run).mismatches[0]).startswith("round 1: global_loss is")


def drop_measurements(client: int, rounds: Container[int]) -> Callable[[Rows], None]:
    """Return a function that removes a client's losses and accuracies after these rounds."""

    def drop(rows: Rows) -> None:
        for row in rows:
            if row["client"] == client and row["round"] in rounds:
                row.update(loss=None, accuracy=None)

    return drop


def test_a_stale_client_counts_with_its_last_evaluation(
    run_copy: Callable[[str], Path],
) -> None:
    """F(w) of round 3 uses client 0's evaluation after round 1; without any, the rules refuse."""
    run = run_copy("plain")
    rows = pq.read_table(run / "evaluations").to_pylist()
    counted = [find_row(rows, 1, client=0)] + [
        row for row in rows if row["round"] == 2 and row["loss"] is not None and row["client"] != 0
    ]
    data = sum(row["num_examples"] for row in counted)
    mean = {
        f"global_{name}": sum(row["num_examples"] * row[name] for row in counted) / data
        for name in ("loss", "accuracy")
    }
    change_table(run, "evaluations", drop_measurements(0, {2}))
    change_round(run, 3, stale_clients=[0], **mean)
    assert audit_run(run).mismatches == ()
    change_table(run, "evaluations", drop_measurements(0, {0, 1, 2}))
    text = "client 0 is stale, but has measured nothing before round 2"
    problems = [str(problem) for problem in audit_run(run).mismatches]
    assert f"round 3: the rules refuse what is recorded: {text}" in problems


def test_the_clients_missing_in_the_objective_are_checked(run_copy: Callable[[str], Path]) -> None:
    """Only priority clients without an evaluation can be missing."""
    run = run_copy("plain")
    priority = {k["client"] for k in pq.read_table(run / "clients").to_pylist() if k["priority"]}
    other = next(k for k in range(8) if k not in priority)
    change_round(run, 3, unmeasured=[0, other])
    problems = [str(problem) for problem in audit_run(run).mismatches]
    assert sorted(problems) == [
        "round 3, client 0: is in unmeasured, though its measurement counts",
        f"round 3, client {other}: is in unmeasured, though it has no priority",
    ]


def test_a_client_without_an_evaluation_is_missing(run_copy: Callable[[str], Path]) -> None:
    """F(w) is of the other clients, and the round lists the missing one."""
    run = run_copy("plain")
    rows = pq.read_table(run / "evaluations").to_pylist()
    write_table(run, "evaluations", [r for r in rows if (r["round"], r["client"]) != (2, 0)])
    text = "round 3, client 0: did not measure global_loss, and is not in unmeasured"
    assert text in [str(problem) for problem in audit_run(run).mismatches]
    change_round(run, 3, unmeasured=[0])
    problems = [str(problem) for problem in audit_run(run).mismatches]
    assert problems
    assert not any("unmeasured" in problem for problem in problems)


def test_changed_settings_are_found(run_copy: Callable[[str], Path]) -> None:
    """A seed that was changed afterwards gives other decisions."""
    run = run_copy("open")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("seed: 1", "seed: 2"))
    assert any("the rule asks it" in str(problem) for problem in audit_run(run).mismatches)


def test_settings_that_contradict_the_manifest_are_found(run_copy: Callable[[str], Path]) -> None:
    """If nothing is random, only the manifest reveals another seed."""
    run = run_copy("fedalign")
    config = run / "config.yaml"
    text = config.read_text()
    config.write_text(re.sub(r"(?m)^seed: \d+$", "seed: 77", text))
    assert config.read_text() != text
    problems = [str(problem) for problem in audit_run(run).mismatches]
    assert any(
        re.fullmatch(r"run: the manifest's seed is \d+, config.yaml has 77", p) for p in problems
    )


def test_a_changed_summary_is_found(run_copy: Callable[[str], Path]) -> None:
    """The manifest's summary follows from the rounds."""
    run = run_copy("aaggff_s")
    path = run / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["summary"]["mixing"]["decision_loss_sum"] = 0.0
    manifest["summary"]["admitted_rounds"]["0"] = 77
    path.write_text(json.dumps(manifest))
    assert [str(problem).split(" is ")[0] for problem in audit_run(run).mismatches] == [
        "run: the manifest's decision_loss_sum",
        "run: the manifest's admitted_rounds are not those of clients/",
    ]


def test_a_missing_round_is_found(run_copy: Callable[[str], Path]) -> None:
    """Rounds are numbered without a gap."""
    run = run_copy("fedalign")
    path = run / "rounds.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:1] + lines[2:]) + "\n")
    problems = [str(problem) for problem in audit_run(run).mismatches]
    assert "run: the rounds in rounds.jsonl are not 1, 2, 3, ..." in problems
    assert "round 2: clients/ has rows of a round that rounds.jsonl lacks" in problems


def test_records_that_the_rules_refuse_end_the_audit(run_copy: Callable[[str], Path]) -> None:
    """Without losses, a rule that weights by losses cannot decide; the mismatch says so."""
    run = run_copy("term")
    change_table(run, "clients", set_all(loss=None))
    problem, *_ = audit_run(run).mismatches
    assert problem.round == 1
    assert "the rules refuse what is recorded: weights by losses need each client's" in str(problem)


# --- records that are missing or damaged --------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("population.parquet", "expected a file of a run"),
        ("clients", "expected a folder of a run"),
    ],
)
def test_a_missing_record_is_named(
    run_copy: Callable[[str], Path], file: str, message: str
) -> None:
    """One line names the file and says that it is expected."""
    run = run_copy("qfedavg")
    path = run / file
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(RunError, match=rf"{file}.*{message}|{message}.*{file}"):
        audit_run(run)


def test_a_run_that_stopped_in_its_first_round_has_nothing_to_replay(
    run_copy: Callable[[str], Path],
) -> None:
    """It may lack the table of clients, too."""
    run = run_copy("qfedavg")
    (run / "rounds.jsonl").write_text("")
    (run / "population.parquet").unlink()
    with pytest.raises(RunError, match="has no finished round: there is nothing to replay"):
        audit_run(run)


def test_damaged_records_are_named(run_copy: Callable[[str], Path]) -> None:
    """A torn table is an error with the file's name."""
    run = run_copy("qfedavg")
    (run / "population.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"population\.parquet: "):
        audit_run(run)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("tilt: -2.0", "tilt: much", "strategy.tilt must be a number"),
        ("name: sgd", "name: none", "server_optimizer must be one of sgd, momentum, adam,"),
        ("rounds: 5", "rounds: many", "invalid literal for int() with base 10: 'many'"),
        ("strategy:", "strategies:", "'strategy' is missing"),
    ],
)
def test_invalid_settings_are_named(
    run_copy: Callable[[str], Path], before: str, after: str, message: str
) -> None:
    """The error names the file and, if a rule refuses a setting, the setting."""
    run = run_copy("term")
    config = run / "config.yaml"
    text = config.read_text()
    assert before in text
    config.write_text(text.replace(before, after))
    with pytest.raises(RunError, match=f"^{re.escape(f'{config}: {message}')}"):
        audit_run(run)


def test_a_table_of_clients_without_rates_is_named(run_copy: Callable[[str], Path]) -> None:
    """The rates determine what can be replayed."""
    run = run_copy("qfedavg")
    path = run / "population.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["participation_rate"]), path)
    with pytest.raises(RunError, match=f"^{path}: expected a column participation_rate$"):
        audit_run(run)


def test_an_empty_table_is_a_mismatch_and_no_error(run_copy: Callable[[str], Path]) -> None:
    """A run killed before its first rows has rounds without them."""
    run = run_copy("qfedavg")
    write_table(run, "clients", [])
    found = audit_run(run)
    assert (found.num_rounds, str(found.mismatches[0])) == (
        0,
        "round 1: clients/ has no rows of this round",
    )
    assert math.isfinite(found.run.rounds[0].duration_seconds)


@pytest.mark.parametrize(
    ("terms", "norm", "problem"),
    [
        ([(0.5, 4.0)], 2.0, None),
        (
            [(0.5, 4.0)],
            2.000001,
            "2.000001, the weights and the updates' norms give 2 to 2$",
        ),
        ([(0.5, 4.0)], 1.9, "2 to 2$"),
        ([(0.5, 4.0), (0.5, 1.0)], 1.5, None),
        ([(0.5, 4.0), (0.5, 1.0)], 2.5, None),
        ([(0.5, 4.0), (0.5, 1.0)], 1.4, "1.5 to 2.5$"),
        ([(0.5, 4.0), (0.5, 1.0)], None, "update_norm is null"),
        ([(0.5, 4.0), (0.0, None)], 2.0, None),
        ([(0.5, 4.0), (0.5, None)], None, None),
        ([(0.5, 4.0), (0.5, None)], 2.0, "update_norm is 2, the other records give null"),
        ([(1e300, 1e300)], math.inf, None),
        ([], None, None),
    ],
)
def test_the_norm_of_the_update_follows_from_the_weights(
    terms: list[tuple[float, float | None]], norm: float | None, problem: str | None
) -> None:
    """|sum c_k Delta_k| is within the bounds of the norms; for one update, it is exact."""
    rows = [{"weight": weight, "update_norm": length} for weight, length in terms]
    replayed: Any = SimpleNamespace(
        record=SimpleNamespace(round=3, update_norm=norm), rows=tuple(rows)
    )
    found = [str(mismatch) for mismatch in _find_norm_mismatches(replayed)]
    assert len(found) == (problem is not None)
    if problem is not None:
        assert re.search(problem, found[0])
