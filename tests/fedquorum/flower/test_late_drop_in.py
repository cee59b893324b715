"""Late updates in drop-in strategies: Flower's loop, any ClientApp, records and their audit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import FedAU, FedAvgParticipating
from fedquorum.audit.check import audit_run
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input
from fedquorum.errors import ParameterError
from fedquorum.flower.codec import NamedArrays, Status, TrainResult, TrainTask, encode_arrays
from fedquorum.flower.strategies import DropInStrategy
from fedquorum.records import runner
from fedquorum.records.reader import load_run, read_dataset
from fedquorum.report.client_status import ClientStatusTable
from fedquorum.server.under_way import LOST_REASON
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from tests.builders_flower import (
    DROP_INS,
    NEEDED,
    WRAPPERS,
    make_grid,
    make_scripted_app,
    make_simulation_grid,
    make_standard_app,
    train_round,
    wrap_strategy,
)
from tests.builders_superlink import ENOUGH, Device, Federation

START = encode_arrays({"w": np.zeros(2, np.float32)})


def start(
    strategy: DropInStrategy,
    federation: Federation,
    rounds: int,
    steps: dict[int, Callable[[], object]],
) -> Result:
    """Run as an app of Flower does; take a step after rounds, which ``evaluate_fn`` sees."""

    def take_step(server_round: int, _: ArrayRecord) -> MetricRecord | None:
        steps.get(server_round, lambda: None)()
        return None

    return strategy.start(
        federation.grid.inner, START, rounds, timeout=ENOUGH, evaluate_fn=take_step
    )


def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
    """Add client + 1 to the model received."""
    trained = {"w": arrays["w"] + np.float32(client + 1)}
    return TrainResult(client, Status.DONE, num_examples=10, arrays=trained)


def read_clients(run: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_dataset(run / "clients").to_pylist()
    return rows


def test_flowers_apps_count_late_updates_with_two_keywords(tmp_path: Path) -> None:
    """The last evaluation waits for all; the audit replays the weights, and explains them."""
    devices = [Device(make_standard_app(), i, 3) for i in range(3)]
    slow, other = devices[2], devices[1]
    with Federation(*devices) as federation:

        def swap() -> None:
            slow.gate.set()
            other.gate.clear()

        result = start(
            FedAU(late_replies="count", quorum=2, min_available_nodes=3, records=tmp_path / "run"),
            federation,
            5,
            {0: slow.gate.clear, 2: swap, 3: other.gate.set},
        )
    assert result.arrays
    rows = read_clients(tmp_path / "run")
    [late] = [row for row in rows if row["staleness"] == 2]
    assert (late["round"], late["start_round"], late["status"]) == (3, 1, "trained")
    assert late["discount"] == 3**-0.5
    assert late["weight"] == pytest.approx(late["participation_correction"] / 3 * 3**-0.5)
    assert [group for group in slow.asked if "evaluate" in group][-1] == "evaluate 5"
    assert "evaluate 2" not in slow.asked
    audited = audit_run(tmp_path / "run")
    assert not audited.mismatches
    recorded = read_audit_input(tmp_path / "run")
    lines = describe_decision(recorded, late["client"], 3)
    assert "asked: in round 1, and it trained from the model of that round" in lines
    between = describe_decision(recorded, late["client"], 2)
    assert between[-1] == "asked: no; it is under way since an earlier round"


def test_nodes_of_several_clients_and_free_ones(tmp_path: Path) -> None:
    """The draw leaves out clients whose node trains; an evaluation of free ones is not of all."""
    app = make_scripted_app(8, fit, num_test_examples=5.0)
    devices = [Device(app, i, 2) for i in range(2)]
    slow = devices[1]
    with Federation(*devices) as federation:
        keywords: dict[str, Any] = {"late_replies": "count", "quorum": 1, "concurrency": 2}
        strategy = FedAU(protocol="fedquorum", records=tmp_path / "run", **keywords)
        start(strategy, federation, 6, {0: slow.gate.clear, 5: slow.gate.set})
    rows, rounds = read_clients(tmp_path / "run"), load_run(tmp_path / "run").rounds
    busy = {(row["round"], row["client"]) for row in rows if row["status"] == "busy"}
    assert {client for _, client in busy} < {1, 3, 5, 7}
    assert not audit_run(tmp_path / "run").mismatches
    number, client = min(busy)
    lines = describe_decision(read_audit_input(tmp_path / "run"), client, number)
    assert "asked: no; its node trained for another of its clients" in lines
    for record in rounds:
        some_busy = any(one == record.round for one, _ in busy) and record.round < 5
        test = record.test or {}
        if some_busy:
            assert test["all"] is None
            assert (test["free"] or {})["evaluated"] == 4
    last = rounds[-1].test or {}
    assert (last["all"] or {})["evaluated"] == 8
    assert "free" not in last


def test_what_an_interrupted_run_lost_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resumed run records the client as failed, and the audit replays both parts."""
    monkeypatch.setattr(runner, "MIN_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(runner, "MAX_TIME_FRACTION", 1e9)
    devices = [Device(make_standard_app(), i, 3) for i in range(3)]
    slow = devices[2]
    given: dict[str, Any] = {"late_replies": "count", "quorum": 2, "min_available_nodes": 3}

    def interrupt() -> None:
        raise KeyboardInterrupt

    with Federation(*devices) as federation:
        with pytest.raises(KeyboardInterrupt):
            start(
                FedAvgParticipating(records=tmp_path / "run", **given),
                federation,
                4,
                {0: slow.gate.clear, 2: interrupt},
            )
        table = ClientStatusTable(load_run(tmp_path / "run")).to_text_table("run")
        assert [row[1] for row in table.rows].count("under way since round 1, from model 0") == 1
        slow.gate.set()
        strategy = FedAvgParticipating(resume_from=tmp_path / "run", **given)
        start(strategy, federation, 4, {})
    rows = read_clients(tmp_path / "run")
    [lost] = [row for row in rows if row["reason"] == LOST_REASON]
    assert (lost["round"], lost["start_round"], lost["status"]) == (3, 1, "failed")
    assert not audit_run(tmp_path / "run").mismatches
    with pytest.raises(Exception, match="late_replies must be"):
        start(FedAvgParticipating(resume_from=tmp_path / "run", quorum=2), federation, 5, {})


def test_flowers_simulation_counts_late_updates(tmp_path: Path) -> None:
    """Its grid has no store of a SuperLink; the rounds, the records and the audit are the same."""
    strategy = FedAU(late_replies="count", quorum=2, records=tmp_path / "run")
    strategy.start(make_simulation_grid(make_standard_app(), 4), START, 4)
    rows = read_clients(tmp_path / "run")
    assert {row["round"] for row in rows} == {1, 2, 3, 4}
    assert {row["status"] for row in rows} <= {"trained", "late"}
    assert not audit_run(tmp_path / "run").mismatches


@pytest.mark.parametrize("name", sorted(DROP_INS))
def test_every_strategy_counts_late_updates_or_says_why_not(name: str) -> None:
    """By the rules' own reason, as in the app."""
    needed = NEEDED.get(name, {})
    reason = DROP_INS[name](**needed).rules.late_unsupported_reason
    if not reason:
        assert DROP_INS[name](**needed, late_replies="count", quorum=2).communication.late_updates
        return
    with pytest.raises(ParameterError, match=r"late_replies must be discard with \w+ \(") as error:
        DROP_INS[name](**needed, late_replies="count", quorum=2)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"late_replies": "maybe"}, "late_replies must be one of discard, count, got 'maybe'"),
        ({"quorum": 1.5}, "quorum must be a share in"),
        ({"concurrency": 3}, 'concurrency must be None with late_replies="discard"'),
        ({"max_staleness": 3}, 'max_staleness must be None with late_replies="discard"'),
        (
            {"late_replies": "count", "concurrency": 3, "quorum": 4},
            "quorum must be at most 3, the concurrency",
        ),
        (
            {"late_replies": "count", "concurrency": 3, "fraction_train": 0.5},
            "concurrency must be None with a fraction below 1",
        ),
        ({"late_replies": "count", "staleness_exponent": -1}, "staleness_exponent must be"),
    ],
)
def test_keywords_that_contradict_each_other_are_refused(
    keywords: dict[str, Any], message: str
) -> None:
    """One line names the keyword, what it may be, and the reason."""
    with pytest.raises(ParameterError) as error:
        FedAU(**keywords)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", sorted(WRAPPERS))
def test_wrappers_refuse_a_quorum(kind: str) -> None:
    """They wait for all replies themselves, so that nobody could be late."""
    wrapped = wrap_strategy(kind, FedAvgParticipating(late_replies="count", quorum=2))
    with pytest.raises(ParameterError, match="quorum must be None inside one of Flower's wrappers"):
        train_round(wrapped, make_grid(make_standard_app(), 4))
