"""Run records of drop-in strategies: equal to the app's, replayed by the audit, and resumed."""

import json
import logging
import math
import random
import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import fedquorum
import numpy as np
import pyarrow.parquet as pq
import pytest
from fedquorum import FedALIGN, FedAU, FedAvg, KnownStatistics
from fedquorum.audit.check import AuditResult, audit_run
from fedquorum.audit.explain import describe_decision
from fedquorum.audit.replay import read_audit_input
from fedquorum.client.gate import should_train
from fedquorum.errors import ParameterError, ProtocolError, RunError
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
    encode_train_reply,
)
from fedquorum.flower.strategies import DropInStrategy
from fedquorum.records import provenance, runner
from fedquorum.records.reader import load_run, read_dataset, read_runs
from fedquorum.registry import StrategyEntry
from fedquorum.rules.round import NOT_FINITE, NOT_SOLVED, WEIGHT_EXCEEDS_BOUND
from fedquorum.rules.server_optimizer import Adam
from fedquorum.rules.weighting import TERMWeighting
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Result
from numpy.typing import NDArray
from safetensors.numpy import load_file

from client_app.app import app
from client_app.data import load_data
from conf.compose import compose_overrides
from server_app.engines.in_process import InProcessGrid
from server_app.runs.build import build_initial_arrays
from tests.builders_flower import (
    DROP_INS,
    LOSSES,
    MODEL,
    ScriptedGrid,
    get_state_bytes,
    make_grid,
    make_scripted_app,
    make_simulation_grid,
    make_standard_app,
    make_standard_reply,
    make_train_result,
    read_kind_and_round,
)
from tests.cases import sample_cases
from tests.server_app.made_runs import SMALL, make_real_run

K, ROUNDS = 6, 5
GIVEN: Mapping[str, dict[str, Any]] = {
    "FedALIGN": {
        "priority": [0, 1],
        "num_rounds": ROUNDS,
        "epsilon": 0.25,
        "epsilon_schedule": "linear",
        "fraction_train": 0.5,
    },
    "FedGP": {"priority": [1, 2], "fraction_train": 0.5},
    "KnownStatistics": {"probabilities": dict.fromkeys(range(K), 0.5)},
    "MaxFL": {"requirement": {0: 0.5, 1: 1.0}},
    "AAggFFS": {},
    "FedAU": {"cutoff": 2, "fraction_train": 0.5},
}
FEW: dict[str, Any] = {"fraction_train": 0.5, "seed": 3}
STRATEGIES = tuple(DROP_INS)
PROTOCOLS = ("standard", "fedquorum")


def make_strategy(name: str, **options: Any) -> DropInStrategy:
    """Return a strategy that selects some of the clients, if it can."""
    return DROP_INS[name](**{**GIVEN.get(name, FEW), **options})


def make_changing_grid() -> ScriptedGrid:
    """Return nodes: one joins in round 2, another leaves in round 3 and returns in round 4."""
    every = {*range(1, K + 1)}
    then = {"train 1": every, "evaluate 2": every - {2}, "train 3": every}
    return ScriptedGrid(make_standard_app(), {}, K, there=every - {K}, then=then)


def make_native_app() -> ClientApp:
    """Return an app of the project's protocol, whose clients decide whether they train."""
    losses = {k: LOSSES[k % 3] for k in range(K)}

    def fit(client: int, task: TrainTask, model: NamedArrays) -> TrainResult:
        loss, objective = losses[client], task.objective
        numbers = {
            "global_loss": objective.loss,
            "global_accuracy": objective.accuracy,
            "loss": loss,
        }
        gated = task.epsilon is not None and not task.priority
        if gated and not should_train("loss", task.epsilon or 0.0, accuracy=0.5, **numbers):
            return TrainResult(client, Status.DECLINED)
        return make_train_result(client, 0.1 * client, loss=loss)

    return make_scripted_app(K, fit, losses)


def make_protocol_grid(protocol: str) -> InProcessGrid:
    """Return nodes with an app of this protocol, with one or two clients each."""
    return (
        make_grid(make_standard_app(), K)
        if protocol == "standard"
        else make_grid(make_native_app(), K // 2)
    )


def run_all_rounds(
    strategy: DropInStrategy, on: InProcessGrid, rounds: int = ROUNDS, **options: Any
) -> dict[str, bytes]:
    """Run all rounds and return the model."""
    result: Result = strategy.start(on, encode_arrays(MODEL), num_rounds=rounds, **options)
    return {name: array.tobytes() for name, array in decode_arrays(result.arrays).items()}


def make_interruption(after: int) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """Return a server evaluation that interrupts the run after a round."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round == after:
            raise KeyboardInterrupt
        return None

    return evaluate


def check_audit(run: Path) -> AuditResult:
    """Return the audit of a run, and assert that it found no problem."""
    found = audit_run(run)
    assert found.mismatches == ()
    return found


def read_rows(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_dataset(run / "clients").to_pylist()
    return found


def read_lines(run: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run, without their durations."""
    text = (run / "rounds.jsonl").read_text()
    return [{**json.loads(line), "duration_seconds": None} for line in text.splitlines()]


@pytest.fixture(autouse=True)
def checkpoint_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a checkpoint after every round."""
    monkeypatch.setattr(runner, "MIN_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(runner, "MAX_TIME_FRACTION", math.inf)


# --- the records -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_decision_follows_from_the_records(name: str, tmp_path: Path) -> None:
    """The audit replays every strategy, with joining, leaving and returning nodes."""
    model = run_all_rounds(make_strategy(name, records=tmp_path / "run"), make_changing_grid())
    assert model == run_all_rounds(make_strategy(name), make_changing_grid())
    found = check_audit(tmp_path / "run")
    assert (found.num_rounds, found.run.status, found.run.planned) == (ROUNDS, "completed", ROUNDS)
    assert found.num_decisions == len(read_rows(tmp_path / "run"))
    table = pq.read_table(tmp_path / "run" / "population.parquet").to_pylist()
    fixed = make_strategy(name).rules.weighting.traits.requires_fixed_population
    assert [row["joined_round"] for row in table] == [1] * (K - 1) + ([] if fixed else [2])
    away = [record.disconnected for record in found.run.rounds]
    assert away == [()] * ROUNDS if fixed else [(), (), (1,), (), ()]


@pytest.mark.parametrize("name", ["FedALIGN", "FedAU", "AAggFFS", "AFL", "FedVarp", "QFedAvg"])
def test_every_native_decision_follows_from_the_records(name: str, tmp_path: Path) -> None:
    """The records start in round 1, with evaluations of the initial model if needed."""
    strategy = make_strategy(name, protocol="fedquorum", records=tmp_path / "run")
    model = run_all_rounds(strategy, make_protocol_grid("fedquorum"))
    assert model == run_all_rounds(
        make_strategy(name, protocol="fedquorum"), make_protocol_grid("fedquorum")
    )
    found = check_audit(tmp_path / "run")
    assert found.num_rounds == ROUNDS
    table = pq.read_table(tmp_path / "run" / "population.parquet").to_pylist()
    assert [row["joined_round"] for row in table] == [1] * K
    measured = {row["round"] for row in read_dataset(tmp_path / "run" / "evaluations").to_pylist()}
    assert measured == {*range(0 if strategy.rules.needs_initial_evaluation else 1, ROUNDS + 1)}
    lines_of_one = describe_decision(read_audit_input(tmp_path / "run"), 0, 1)
    assert lines_of_one[0].startswith("round 1, client 0")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_audit_finds_what_was_changed(protocol: str, tmp_path: Path) -> None:
    """Changes: a parameter, disconnected clients, a joined round, a round without updates."""
    run = tmp_path / "run"
    on = make_changing_grid() if protocol == "standard" else make_protocol_grid(protocol)
    run_all_rounds(make_strategy("FedAU", protocol=protocol, records=run), on)
    for name, before, after in (
        ("config.yaml", "cutoff: 2", "cutoff: 1"),
        ("config.yaml", "minimum: 2", "minimum: 5"),
        (
            "rounds.jsonl",
            '"disconnected": [1]' if protocol == "standard" else '"disconnected": []',
            '"disconnected": [0, 1, 2]',
        ),
    ):
        text = (run / name).read_text()
        assert before in text
        (run / name).write_text(text.replace(before, after))
        assert audit_run(run).mismatches, (name, after)
        (run / name).write_text(text)
    assert check_audit(run)


def test_a_decision_is_explained(tmp_path: Path) -> None:
    """A decision is explained even for a client before it joined."""
    run_all_rounds(FedAU(cutoff=2, records=tmp_path / "run"), make_changing_grid())
    recorded = read_audit_input(tmp_path / "run")
    assert describe_decision(recorded, 5, 1)[-1] == "asked: no; it joined in round 2"
    assert describe_decision(recorded, 0, 3)[-1].startswith("weight recorded: ")


def test_an_update_that_the_server_refused_is_explained(tmp_path: Path) -> None:
    """In the standard protocol clients do not decide, and the server applies the whole gate.

    Client 3 reports a loss far above that of the priority clients.
    """
    strategy = FedALIGN(priority=[0, 1], num_rounds=2, warmup_rounds=1, records=tmp_path / "run")
    run_all_rounds(strategy, make_protocol_grid("standard"), rounds=2)
    (refused,) = [
        r for r in read_rows(tmp_path / "run") if r["status"] == "rejected" and r["client"] == 3
    ]
    lines = describe_decision(read_audit_input(tmp_path / "run"), 3, 2)
    assert lines[-2].startswith("admitted: no; F_k = 5 > F + eps_t = ")
    assert lines[-1] == "weight: 0; the server refused the update; recorded 0"
    assert refused["weight"] == 0.0


def make_failing_grid(app: ClientApp, count: int, last: int) -> ScriptedGrid:
    """Return nodes that fail to train in the first rounds, up to ``last``."""
    every = dict.fromkeys(range(1, count + 1), "broken")
    return ScriptedGrid(app, {}, count, failing=dict.fromkeys(range(1, last + 1), every))


@pytest.mark.parametrize("last", [1, 3])
def test_rounds_without_a_reply_count_nothing(last: int, tmp_path: Path) -> None:
    """Such rounds record the connected clients."""
    nodes = make_failing_grid(make_standard_app(), K, last)
    run_all_rounds(make_strategy("FedAvg", records=tmp_path / "run"), nodes, rounds=3)
    found = check_audit(tmp_path / "run")
    assert [record.admitted == 0 for record in found.run.rounds] == [n <= last for n in (1, 2, 3)]
    assert found.num_rounds == 3


def test_a_run_refused_for_its_protocol_resumes_in_no_other(tmp_path: Path) -> None:
    """The records lack the refused round, and the error names the keyword."""
    run = tmp_path / "run"
    nodes = make_failing_grid(make_native_app(), K // 2, 1)
    with pytest.raises(ProtocolError, match=r'every client .* in round 2 .*protocol="fedquorum"'):
        run_all_rounds(make_strategy("FedAvg", records=run), nodes, rounds=3)
    assert load_run(run).status == "failed"
    assert [record.round for record in load_run(run).rounds] == [1]
    with pytest.raises(ProtocolError, match="every client that trained in round 2 replied in"):
        run_all_rounds(
            make_strategy("FedAvg", resume_from=run), make_protocol_grid("fedquorum"), rounds=3
        )
    said = "^protocol must be standard, as in the run so far, got fedquorum$"
    with pytest.raises(RunError, match=said):
        run_all_rounds(
            make_strategy("FedAvg", protocol="fedquorum", resume_from=run),
            make_forbidden_grid(),
            rounds=3,
        )
    run_all_rounds(
        make_strategy("FedAvg", resume_from=run), make_protocol_grid("standard"), rounds=3
    )
    assert check_audit(run).num_rounds == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_other_protocol_is_refused_on_a_resume(protocol: str, tmp_path: Path) -> None:
    """One error names the keyword before any message; the same protocol resumes."""
    (other,) = {*PROTOCOLS} - {protocol}
    given: dict[str, Any] = {"client_ids": "query"} if protocol == "standard" else {}
    on = make_grid(make_named_app(), K) if given else make_protocol_grid(protocol)
    run_all_rounds(
        make_strategy("FedAU", protocol=protocol, records=tmp_path, **given), on, rounds=2
    )
    config = load_run(tmp_path).config["drop_in"]
    assert config["protocol"] == protocol
    assert ("weighted_by_key" in config) == (protocol == "standard")
    said = f"^protocol must be {protocol}, as in the run so far, got {other}$"
    with pytest.raises(RunError, match=said):
        run_all_rounds(
            make_strategy("FedAU", protocol=other, resume_from=tmp_path), make_forbidden_grid()
        )
    assert load_run(tmp_path).status == "completed"
    run_all_rounds(
        make_strategy("FedAU", protocol=protocol, resume_from=tmp_path, **given), on, rounds=3
    )
    assert check_audit(tmp_path).num_rounds == 3


def make_mixed_grid() -> ScriptedGrid:
    """Return standard nodes, which fail to train after round 2, and a node of two clients."""

    def reply(message: Message) -> Message | None:
        if read_kind_and_round(message)[0] == "train" and message.metadata.dst_node_id == 4:
            answers = [make_train_result(client, 1.0) for client in (0, 1)]
            return Message(encode_train_reply(answers), reply_to=message)
        return None

    failing = dict.fromkeys((3, 4), dict.fromkeys((1, 2, 3), "broken"))
    return ScriptedGrid(make_standard_app(), {}, 4, failing=failing, reply=reply)


def test_a_resumed_run_has_no_second_first_round(tmp_path: Path) -> None:
    """As clients trained before, a round of replies in the other form does not stop the run."""
    run_all_rounds(FedAU(records=tmp_path), make_mixed_grid(), rounds=2)
    run_all_rounds(FedAU(resume_from=tmp_path), make_mixed_grid(), rounds=4)
    found = check_audit(tmp_path)
    assert [record.admitted for record in found.run.rounds] == [3, 3, 0, 0]
    (row,) = [r for r in read_rows(tmp_path) if r["client"] == 3 and r["round"] == 4]
    assert (row["status"], row["weight"]) == ("rejected", 0.0)
    assert row["reason"].startswith("its reply is in FedQuorum's protocol, for 2 clients")


def read_content(path: Path) -> Any:
    """Return the rows of a table, or the bytes of a file."""
    return read_dataset(path).to_pylist() if path.is_dir() else path.read_bytes()


def test_records_equal_those_of_the_app(tmp_path: Path) -> None:
    """The same ClientApp and rule decide the same rounds to the last bit."""
    words = (
        *SMALL,
        "rounds=3",
        "strategy=fedalign",
        "strategy.epsilon=0.2",
        "strategy.warmup_fraction=0",
        "client.batch_size=1000",
        "seed=1",
    )
    make_real_run(tmp_path / "app", *words)
    composed = compose_overrides(words)
    strategy = FedALIGN(
        protocol="fedquorum",
        priority=range(4),
        num_rounds=3,
        epsilon=0.2,
        warmup_fraction=0.0,
        seed=1,
        records=tmp_path / "drop_in",
    )
    settings = composed.settings
    arrays = build_initial_arrays(settings, load_data(settings.data, settings.seed))
    strategy.start(InProcessGrid(app, composed.run_config, 4), arrays, num_rounds=3)
    check_audit(tmp_path / "drop_in")
    theirs, ours = (read_rows(tmp_path / name) for name in ("app", "drop_in"))
    assert ours == theirs
    assert {row["status"] for row in theirs} == {"trained", "declined", "rejected"}
    # The app has one node, which receives one model for all clients.
    sent = dict.fromkeys(("bytes_down", "bytes_up"), 0)
    theirs, ours = ([x | sent for x in read_lines(tmp_path / name)] for name in ("app", "drop_in"))
    assert ours == theirs
    for name in ("model.safetensors", "evaluations"):
        theirs, ours = (read_content(tmp_path / run / name) for run in ("app", "drop_in"))
        assert ours == theirs
    files = {path.name for path in (tmp_path / "drop_in").iterdir()}
    app_only = {"tensorboard", "model_card.json"}
    assert files == {path.name for path in (tmp_path / "app").iterdir()} - app_only


class Tilting(TERMWeighting):
    """A user's own rule."""


class Tilted(DropInStrategy, entry=StrategyEntry("tilted", "Tilted losses, once more.", Tilting)):
    """A user's own strategy."""


def test_a_users_rule_is_named_and_not_imported(tmp_path: Path) -> None:
    """The audit replays its decisions if the user trusts the code."""
    run_all_rounds(Tilted(tilt=2.0, records=tmp_path / "run"), make_protocol_grid("standard"))
    with pytest.raises(RunError, match=r"weighting.path|strategy.path must be absent"):
        audit_run(tmp_path / "run")
    assert audit_run(tmp_path / "run", trust=True).mismatches == ()


@pytest.mark.parametrize("number", [1e300, -1e300, math.inf, math.nan, 0.25])
def test_no_number_of_a_client_makes_the_records_unreadable(number: float, tmp_path: Path) -> None:
    """Numbers that no rule reads may be anything; an amount of data may be a fraction."""
    metrics = {"num-examples": 0.5, "loss": number, "accuracy": number}
    if abs(number) < math.inf and number > 0:
        metrics["num-examples"] = number
    on = make_grid(make_standard_app(lambda client: metrics), 3)
    run_all_rounds(FedAU(records=tmp_path / "run"), on)
    assert read_runs([tmp_path])[1] == ()
    check_audit(tmp_path / "run")


@pytest.mark.parametrize(
    "metrics",
    [
        *({"loss": value} for value in (math.inf, math.nan, 1e120, -1e120, 2**60 + 1, -0.0)),
        *({"accuracy": value} for value in (1e120, -math.inf, 5e-324, 2**62)),
        *({"num-examples": value} for value in (1e120, 1e-320, 1e308, 2**60 + 1, 0, -0.0)),
    ],
    ids=str,
)
def test_an_unusual_number_is_recorded_as_it_counted(
    metrics: dict[str, float], tmp_path: Path
) -> None:
    """The number is read back to the bit, and the audit makes the server's decision with it."""
    given = {"num-examples": 10, "loss": 1.0, "accuracy": 0.5}
    app = make_standard_app(
        lambda client: given | metrics if client == 1 else given,
        by=lambda client: 0.0 if client == 1 else 1.0,  # otherwise it is too large for the sum
    )
    run_all_rounds(FedAvg(records=tmp_path / "run"), make_grid(app, 3), rounds=2)
    found = check_audit(tmp_path / "run")
    assert found.num_rounds == 2
    ((name, value),) = metrics.items()
    row = next(row for row in read_rows(tmp_path / "run") if row["client"] == 1)
    if name == "num-examples":
        recorded = row["num_examples"] if row["data_weight"] is None else row["data_weight"]
    else:
        recorded = row[name]
    assert math.copysign(1.0, recorded) == math.copysign(1.0, value)
    assert recorded == float(value) or math.isnan(value)


WILD = (0.0, 0.0, 5e-324, 1e-300, 1e-12, 1.0, 1e15)


@pytest.mark.parametrize("name", STRATEGIES)
def test_losses_of_any_size_are_recorded_as_they_counted(name: str, tmp_path: Path) -> None:
    """Losses: 0, the smallest and largest numbers that reach a rule, and random ones."""
    read = make_strategy(name).rules.needs_losses
    losses = random.Random(name)
    among = WILD if read else (*WILD, math.nan, -math.inf, 1e120, 1.7e308)

    def metrics(client: int) -> dict[str, Any]:
        data = losses.choice((1, 10, 0.5, 1e-300, 1e120))
        return {"num-examples": data, "loss": losses.choice(among)}

    run_all_rounds(
        make_strategy(name, records=tmp_path / "run"), make_grid(make_standard_app(metrics), K)
    )
    assert check_audit(tmp_path / "run").num_rounds == ROUNDS


def test_a_loss_of_0_under_q_fedavg_is_recorded(tmp_path: Path) -> None:
    """Its response q log 0 is -inf."""
    app = make_standard_app(lambda client: {"num-examples": 10, "loss": round(0.4 * client, 2)})
    run_all_rounds(DROP_INS["QFedAvg"](records=tmp_path / "run"), make_grid(app, 3), rounds=2)
    check_audit(tmp_path / "run")
    responses = {row["client"]: row["response"] for row in read_rows(tmp_path / "run")}
    assert responses[0] == -math.inf


def test_a_weight_beyond_1e100_is_recorded(tmp_path: Path) -> None:
    """FedMGDA+ divides by |Delta|, and a float64 update may be 1e-130 long."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        step = np.array([1.0, 0.0]) if client < 2 else np.array([0.0, 1e-130])
        sent = message.content["arrays"]
        assert isinstance(sent, ArrayRecord)
        arrays = {name: array + step for name, array in decode_arrays(sent).items()}
        return make_standard_reply(message, arrays, {"num-examples": 10, "loss": 1.0})

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    strategy = DROP_INS["FedMGDAPlus"](records=tmp_path / "run")
    strategy.start(make_grid(app, 3), encode_arrays({"w": np.zeros(2)}), num_rounds=1)
    check_audit(tmp_path / "run")
    assert max(row["weight"] for row in read_rows(tmp_path / "run")) > 1e129


# --- reports of nodes --------------------------------------------------------------------------


@pytest.mark.parametrize("whom", [{3}, {1, 2, 3, 4}], ids=["one", "all"])
@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize(
    "reason",
    [
        "out of memory",
        NOT_FINITE,
        WEIGHT_EXCEEDS_BOUND,
        f"{NOT_SOLVED}: x",
        f"a second reply was ignored; {NOT_FINITE}",
        "\x1b[31m\u2028",
    ],
)
def test_the_reason_of_a_failure_decides_nothing(
    reason: str, when: int, whom: set[int], tmp_path: Path
) -> None:
    """With any reason of a client's failure, the round does not count as a rejected one."""
    failing = {when: dict.fromkeys(whom, reason)}
    nodes = ScriptedGrid(make_standard_app(), {}, 4, failing=failing)
    run_all_rounds(FedAU(records=tmp_path / "run"), nodes, rounds=4)
    found = check_audit(tmp_path / "run")
    assert (found.num_rounds, found.num_decisions) == (4, 16)
    assert [record.refused for record in found.run.rounds] == [None] * 4


def test_a_client_id_that_no_table_holds_is_refused(tmp_path: Path) -> None:
    """The node is left out with a reason, and the run continues with the others."""
    ids = {0: 7, 1: 2**40, 2: 9}
    app = make_standard_app()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"client-id": ids[int(context.node_config["partition-id"])]})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    run_all_rounds(
        FedAvg(client_ids="query", records=tmp_path / "run"), make_grid(app, 3), rounds=2
    )
    assert {row["client"] for row in read_rows(tmp_path / "run")} == {7, 9}
    check_audit(tmp_path / "run")


# --- refusals before any round -----------------------------------------------------------------


def make_forbidden_grid() -> InProcessGrid:
    """Return nodes that must not get any message."""

    def refuse(message: Message) -> None:
        raise AssertionError(message)

    return ScriptedGrid(make_standard_app(), {}, K, reply=refuse)


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    """The records stay unchanged; only a resumed run may use its folder."""
    run_all_rounds(FedAU(records=tmp_path), make_protocol_grid("standard"), rounds=2)
    before = read_lines(tmp_path)
    with pytest.raises(RunError, match=r"must not hold a run, got .* \(resume_from=FOLDER\)"):
        run_all_rounds(FedAU(records=tmp_path), make_forbidden_grid())
    assert read_lines(tmp_path) == before
    run_all_rounds(
        FedAU(records=tmp_path, resume_from=str(tmp_path)), make_protocol_grid("standard"), rounds=3
    )
    assert len(read_lines(tmp_path)) == 3


def test_a_missing_extra_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error comes before any round and says what to install."""
    monkeypatch.setattr(provenance, "AUDIT_PACKAGES", {"yaml": "pyyaml", "nowhere": "not-there"})
    for word in ("records", "resume_from"):
        with pytest.raises(RunError, match="the extra audit brings: pip install not-there"):
            make_strategy("FedAU", **{word: tmp_path})
    FedAU()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"records": 3}, "records must be the path of a folder, got 3"),
        ({"resume_from": " "}, "resume_from must be the path of a folder, got ' '"),
        ({"records": "a", "resume_from": "b"}, "records must be None or the folder in resume_from"),
    ],
)
def test_an_invalid_folder_is_refused(options: dict[str, Any], message: str) -> None:
    """The error names the keyword."""
    with pytest.raises(ParameterError, match=message):
        FedAU(**options)


def test_a_wrapper_of_flowers_cannot_be_recorded(tmp_path: Path) -> None:
    """A wrapper starts itself and changes the model after the strategy's decision."""
    private = DifferentialPrivacyServerSideFixedClipping(FedAU(records=tmp_path), 0.1, 5.0, K)
    with pytest.raises(
        ParameterError, match="records must be None inside one of Flower's wrappers"
    ):
        private.start(make_forbidden_grid(), encode_arrays(MODEL), num_rounds=2)
    assert not [*tmp_path.iterdir()]


# --- resume ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        *((name, "standard") for name in STRATEGIES),
        *((name, "fedquorum") for name in ("FedALIGN", "FedAU", "AAggFFD", "MIFA")),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    name: str, protocol: str, tmp_path: Path
) -> None:
    """Model, decisions, state and the numbers of every round have the same bits."""
    rule = make_strategy(name).rules.weighting
    along = rule.traits.needs_updates or rule.hooks.client_start  # the rule takes no other step
    options: dict[str, Any] = {} if along else {"server_optimizer": Adam, "server_lr": 0.1}
    options["protocol"] = protocol
    whole = run_all_rounds(
        make_strategy(name, records=tmp_path / "whole", **options), make_protocol_grid(protocol)
    )
    stopped = make_strategy(name, records=tmp_path / "run", **options)
    with pytest.raises(KeyboardInterrupt):
        run_all_rounds(stopped, make_protocol_grid(protocol), evaluate_fn=make_interruption(3))
    assert load_run(tmp_path / "run").status == "interrupted"
    resumed = make_strategy(name, resume_from=tmp_path / "run", **options)
    asked: list[int] = []
    result = resumed.start(
        make_protocol_grid(protocol),
        encode_arrays(MODEL),
        ROUNDS,
        evaluate_fn=lambda number, arrays: asked.append(number),
    )
    assert {k: a.tobytes() for k, a in decode_arrays(result.arrays).items()} == whole
    assert asked == [4, 5]
    assert read_lines(tmp_path / "run") == read_lines(tmp_path / "whole")
    assert read_rows(tmp_path / "run") == read_rows(tmp_path / "whole")
    for file in ("model.safetensors", "population.parquet"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    check_audit(tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["status"], [one["round"] for one in manifest["resumed"]]) == ("completed", [3])


def make_failing_app(protocol: str, failing: Container[int]) -> ClientApp:
    """Return an app whose clients cannot evaluate the models of some rounds."""
    inner, outer = make_standard_app() if protocol == "standard" else make_native_app(), ClientApp()

    def answer(message: Message, context: Context) -> Message:
        kind, _, number = message.metadata.group_id.partition(" ")
        if kind == "evaluate" and int(number) in failing:
            raise ArithmeticError("no such number")
        return inner(message, context)

    outer.query()(answer)
    outer.train()(answer)
    outer.evaluate()(answer)
    return outer


@pytest.mark.parametrize("nodes", [1, K // 2])
def test_an_evaluation_that_fails_everywhere_ends_the_run(tmp_path: Path, nodes: int) -> None:
    """In the project's protocol the run ends; its earlier rounds stay and can be resumed."""
    options: dict[str, Any] = {"min_available_nodes": nodes, "min_train_nodes": nodes}
    options["protocol"] = "fedquorum"
    whole = run_all_rounds(
        make_strategy("FedAU", records=tmp_path / "whole", **options),
        make_grid(make_native_app(), nodes),
    )
    failing = make_strategy("FedAU", records=tmp_path / "run", **options)
    error = f"none of {K} clients could measure the model after round 3: ArithmeticError: no such "
    with pytest.raises(RunError, match=f"^{error}number$"):
        run_all_rounds(failing, make_grid(make_failing_app("fedquorum", {3}), nodes))
    run = load_run(tmp_path / "run")
    assert (run.status, len(run.rounds)) == ("failed", 2)
    assert error in json.loads((tmp_path / "run" / "manifest.json").read_text())["error"]
    model = load_file(tmp_path / "run" / "model.safetensors")
    two_rounds = run_all_rounds(
        make_strategy("FedAU", **options), make_grid(make_native_app(), nodes), rounds=2
    )
    assert {k: a.tobytes() for k, a in model.items()} == two_rounds
    resumed = make_strategy("FedAU", resume_from=tmp_path / "run", **options)
    assert run_all_rounds(resumed, make_grid(make_native_app(), nodes)) == whole
    assert read_lines(tmp_path / "run") == read_lines(tmp_path / "whole")


def test_an_evaluation_of_flowers_standard_protocol_may_fail(tmp_path: Path) -> None:
    """The run continues, as with FedAvg: no rule reads these evaluations."""
    whole = run_all_rounds(
        make_strategy("FedAU", records=tmp_path / "whole"), make_protocol_grid("standard")
    )
    app = make_failing_app("standard", range(1, ROUNDS + 1))
    assert (
        run_all_rounds(make_strategy("FedAU", records=tmp_path / "run"), make_grid(app, K)) == whole
    )
    check_audit(tmp_path / "run")


def make_joining_grid(
    app: ClientApp, there: Sequence[Collection[int]], strategy: DropInStrategy
) -> ScriptedGrid:
    """Return nodes that are connected as listed in ``there`` for each look of a strategy.

    The looks are: round 1 trains, round 1 evaluates, round 2 trains, ... The first nodes are also
    connected for the evaluation of the initial model.
    """
    grid = ScriptedGrid(app, {}, max(map(max, there)), there=there[0])

    def after(
        configure: Callable[..., Any], there: Sequence[Collection[int]]
    ) -> Callable[..., Any]:
        def configure_present(server_round: int, *args: Any, **kwargs: Any) -> Any:
            grid.there = there[server_round - 1]
            return configure(server_round, *args, **kwargs)

        return configure_present

    for half, name in enumerate(("configure_train", "configure_evaluate")):
        setattr(strategy, name, after(getattr(strategy, name), there[half::2]))
    return grid


def make_named_app(*, by_round: bool = True) -> ClientApp:
    """Return an app whose nodes report their client k, and pull the model to 10 (k + 1)."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"client-id": int(context.node_config["partition-id"])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        content = message.content
        arrays, t = (
            content.array_records["arrays"],
            content.config_records["config"]["server-round"],
        )
        assert isinstance(t, int)
        new = {
            name: (w + 0.5 * (10.0 * (k + 1) - w) + 0.01 * t).astype(w.dtype)
            for name, w in decode_arrays(arrays).items()
        }
        loss = 1.0 + 0.1 * k + 0.01 * t if by_round else 1.0
        metrics = {"num-examples": 10 + k if by_round else 10, "loss": loss}
        return make_standard_reply(message, new, metrics)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize("name", ["FedVarp", "MIFA"])
def test_a_client_that_joins_between_others_keeps_its_own_update(name: str, tmp_path: Path) -> None:
    """Client 1 joins in round 3 and is disconnected in round 5; the run stops after round 4."""
    there = [nodes for t in range(1, 7) for nodes in [[1, 3] if t in {1, 2, 5} else [1, 2, 3]] * 2]

    def run(rounds: int, **options: Any) -> NDArray[Any]:
        strategy = DROP_INS[name](client_ids="query", **options)
        on = make_joining_grid(make_named_app(by_round=False), there, strategy)
        start = encode_arrays({"w": np.zeros(3, np.float32)})
        return decode_arrays(strategy.start(on, start, num_rounds=rounds).arrays)["w"]

    whole = run(6, records=tmp_path / "whole")
    run(4, records=tmp_path / "parts")
    parts = run(6, resume_from=tmp_path / "parts")
    assert parts.tobytes() == whole.tobytes()


def draw_connected_nodes(rng: np.random.Generator, *, stay: Collection[int] = ()) -> list[set[int]]:
    """Return the connected nodes in each half of all rounds; they join, leave and return.

    At least two of the first nodes, and the nodes in ``stay``, are always connected.
    """
    order = (rng.permutation(K) + 1).tolist()
    first = {*order[: int(rng.integers(2, K))], *stay}
    joined = {n: 0 if n in first else int(rng.integers(1, 2 * ROUNDS)) for n in order}
    halves = [{*first}]
    for half in range(1, 2 * ROUNDS):
        always = {*rng.choice(sorted(first), 2, replace=False).tolist(), *stay}
        here = {n for n in order if joined[n] <= half and rng.random() < 0.7}
        halves.append(always | here | {n for n in order if joined[n] == half})
    return halves


CASES = [*product(STRATEGIES, ("query", "fedquorum"), range(12))]


@pytest.mark.parametrize(("name", "ids", "seed"), sample_cases(CASES, 40))
def test_a_resumed_run_with_any_joiners_equals_an_uninterrupted_one(
    name: str, ids: str, seed: int, tmp_path: Path
) -> None:
    """Clients join in any order, and the run stops after any round, with the same bits.

    The bits are those of the model, the strategy's state and the records.
    """
    rng = np.random.default_rng([seed, STRATEGIES.index(name), ids == "fedquorum"])
    ours = {"protocol": "fedquorum"}
    options: dict[str, Any] = {"client_ids": "query"} if ids == "query" else ours
    if name in {"FedALIGN", "FedGP"}:
        options |= {"priority": [1, 2]}
    if name in {"FedVarp", "MIFA", "FedAWE"} and rng.random() < 0.5:
        (tmp_path / "memory").mkdir()
        options |= {"memory_dir": str(tmp_path / "memory")}
    # Rules of a fixed population accept no one else; two of its clients are enough for a round.
    fixed = make_strategy(name).rules.weighting.traits.requires_fixed_population
    there = draw_connected_nodes(
        rng, stay=range(1, K + 1) if fixed and ids == "fedquorum" else (2, 3)
    )
    stop = int(rng.integers(1, ROUNDS))

    def run(**given: Any) -> tuple[dict[str, bytes], dict[str, bytes]]:
        strategy = make_strategy(
            name, **options, **{k: v for k, v in given.items() if k != "evaluate_fn"}
        )
        on = make_joining_grid(
            make_named_app() if ids == "query" else make_native_app(), there, strategy
        )
        model = run_all_rounds(strategy, on, evaluate_fn=given.get("evaluate_fn"))
        return model, get_state_bytes(strategy)

    whole = run(records=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(records=tmp_path / "run", evaluate_fn=make_interruption(stop))
    assert run(resume_from=tmp_path / "run") == whole
    assert read_lines(tmp_path / "run") == read_lines(tmp_path / "whole")
    assert read_rows(tmp_path / "run") == read_rows(tmp_path / "whole")
    table = (tmp_path / "whole" / "population.parquet").read_bytes()
    assert (tmp_path / "run" / "population.parquet").read_bytes() == table


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("horizon", [3, 9])
def test_every_leg_is_replayed_by_its_own_settings(
    protocol: str, horizon: int, tmp_path: Path
) -> None:
    """A resumed run may have more rounds for schedules, and another memory for replies."""
    given: dict[str, Any] = {"num_rounds": 3, "epsilon_schedule": "cosine"}
    given |= {"warmup_fraction": 0.4, "protocol": protocol}
    first = make_strategy("FedALIGN", records=tmp_path, **given)
    run_all_rounds(first, make_protocol_grid(protocol), rounds=3)
    check_audit(tmp_path)
    again = {**given, "num_rounds": horizon, "reply_memory": 10**9}
    for rounds in (6, 9):
        run_all_rounds(
            make_strategy("FedALIGN", resume_from=tmp_path, **again),
            make_protocol_grid(protocol),
            rounds=rounds,
        )
        check_audit(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    changed = {"rounds": 3, "drop_in.reply_memory": None}
    changed |= {} if horizon == 3 else {"drop_in.num_rounds": 3}
    assert [one["before"] for one in manifest["resumed"]] == [changed, {"rounds": 6}]
    explained = describe_decision(read_audit_input(tmp_path), 3, 2)
    assert "rounds 1 to 2 are warm-up" in explained[1]
    fewer = make_strategy("FedALIGN", resume_from=tmp_path, **{**given, "num_rounds": 2})
    with pytest.raises(RunError, match="num_rounds must be at least"):
        run_all_rounds(fewer, make_forbidden_grid(), rounds=9)


def test_nodes_keep_their_clients_over_a_resume(tmp_path: Path) -> None:
    """A node that joined or was disconnected keeps its client."""
    whole = run_all_rounds(make_strategy("FedAU", records=tmp_path / "whole"), make_changing_grid())
    with pytest.raises(KeyboardInterrupt):
        run_all_rounds(
            make_strategy("FedAU", records=tmp_path / "run"),
            make_changing_grid(),
            evaluate_fn=make_interruption(2),
        )
    on = make_changing_grid()
    on.there = set(range(1, K + 1)) - {2}
    assert run_all_rounds(make_strategy("FedAU", resume_from=tmp_path / "run"), on) == whole
    assert read_rows(tmp_path / "run") == read_rows(tmp_path / "whole")


def test_other_nodes_are_refused_where_ids_identify_clients(tmp_path: Path) -> None:
    """A simulation draws new ids; the run refuses them before training."""
    run_all_rounds(
        FedAU(records=tmp_path), ScriptedGrid(make_standard_app(), {}, K, there={1, 2}), rounds=2
    )
    with pytest.raises(RunError, match=r"resume_from needs nodes that the run had before, got 2"):
        run_all_rounds(
            FedAU(resume_from=tmp_path), ScriptedGrid(make_standard_app(), {}, K, there={3, 4})
        )
    assert len(read_lines(tmp_path)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cutoff": 3}, "cutoff must be 2, as in the run so far, got 3"),
        ({"fraction_train": 1.0}, "fraction_train must be 0.5, as in the run so far, got 1.0"),
        ({"min_train_nodes": 3}, "min_train_nodes must be 2, as in the run so far, got 3"),
        ({"server_lr": 0.5}, "server_lr must be 1.0, as in the run so far, got 0.5"),
        ({"server_optimizer": Adam}, "beta1 must be null, as in the run so far, got 0.9"),
        ({"priority": [0]}, "priority must be null, as in the run so far"),
        ({"client_ids": "query"}, "client_ids must be node-order, as in the run so far, got query"),
        ({"seed": 1}, "seed must be 0, as in the run so far, got 1"),
    ],
)
def test_another_parameter_is_refused_by_its_name(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """The error comes before any round, and the records stay unchanged."""
    run_all_rounds(
        make_strategy("FedAU", records=tmp_path), make_protocol_grid("standard"), rounds=2
    )
    with pytest.raises(RunError, match=message):
        run_all_rounds(
            make_strategy("FedAU", resume_from=tmp_path, **options), make_forbidden_grid()
        )
    assert load_run(tmp_path).status == "completed"


def test_another_strategy_model_or_folder_is_refused(tmp_path: Path) -> None:
    """Each error names the problem; fewer rounds are refused too, more are allowed."""
    run = tmp_path / "run"
    run_all_rounds(FedAvg(records=run), make_protocol_grid("standard"), rounds=2)
    with pytest.raises(RunError, match="strategy must be fedavg, as in the run so far"):
        run_all_rounds(fedquorum.FedAvgAll(resume_from=run), make_forbidden_grid())
    with pytest.raises(RunError, match="rounds must be at least 2"):
        run_all_rounds(FedAvg(resume_from=run), make_forbidden_grid(), rounds=1)
    other = encode_arrays({"w": np.zeros(4, dtype=np.float32)})
    with pytest.raises(RunError, match="the checkpoint does not fit the strategy: 'w'"):
        FedAvg(resume_from=run).start(make_forbidden_grid(), other, num_rounds=3)
    with pytest.raises(RunError, match="resume_from must be the folder of a run, got"):
        run_all_rounds(FedAvg(resume_from=tmp_path), make_forbidden_grid())
    manifest = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(manifest.replace('"engine": "drop-in"', '"engine": "ray"'))
    with pytest.raises(RunError, match="got one of the app: resume it with fedquorum resume="):
        run_all_rounds(FedAvg(resume_from=run), make_forbidden_grid())


def test_a_run_resumes_from_the_newest_undamaged_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rounds after it are repeated, and the log has the reason."""
    whole = run_all_rounds(
        make_strategy("FedAU", records=tmp_path / "whole"), make_protocol_grid("standard")
    )
    with pytest.raises(KeyboardInterrupt):
        run_all_rounds(
            make_strategy("FedAU", records=tmp_path / "run"),
            make_protocol_grid("standard"),
            evaluate_fn=make_interruption(3),
        )
    *_, newest = sorted((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(b"damaged")
    assert (
        run_all_rounds(
            make_strategy("FedAU", resume_from=tmp_path / "run"), make_protocol_grid("standard")
        )
        == whole
    )
    assert f"Not used: {newest.name} is damaged" in caplog.text
    assert read_lines(tmp_path / "run") == read_lines(tmp_path / "whole")


@pytest.mark.parametrize("written", [True, False])
def test_a_run_stopped_before_its_first_round_starts(*, written: bool, tmp_path: Path) -> None:
    """It starts with its model, or with the given one if it has no complete checkpoint."""
    with pytest.raises(KeyboardInterrupt):
        run_all_rounds(
            FedAU(records=tmp_path),
            make_protocol_grid("standard"),
            evaluate_fn=make_interruption(0),
        )
    given = {"w": np.zeros(3, dtype=np.float32)} if written else MODEL
    if not written:
        (tmp_path / "checkpoints" / "round-000000.sha256").unlink()
    arrays = encode_arrays(given)
    FedAU(resume_from=tmp_path).start(make_protocol_grid("standard"), arrays, num_rounds=ROUNDS)
    run_all_rounds(FedAU(records=tmp_path / "whole"), make_protocol_grid("standard"))
    assert read_rows(tmp_path) == read_rows(tmp_path / "whole")
    models = [(d / "model.safetensors").read_bytes() for d in (tmp_path, tmp_path / "whole")]
    assert models[0] == models[1]


@pytest.mark.parametrize("keyword", ["records", "resume_from"])
def test_a_start_clears_what_a_killed_start_left(
    keyword: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder without a manifest is no run, whatever else it holds."""
    whole = run_all_rounds(
        make_strategy("FedAU", records=tmp_path / "whole"), make_protocol_grid("standard")
    )
    run = tmp_path / "run"
    run_all_rounds(make_strategy("FedAU", records=run, seed=7), make_protocol_grid("standard"))
    (run / "manifest.json").unlink()
    (run / "notes.txt").write_text("mine")
    with caplog.at_level("INFO", logger="flwr"):
        assert (
            run_all_rounds(make_strategy("FedAU", **{keyword: run}), make_protocol_grid("standard"))
            == whole
        )
    is_logged = f"Nothing was done yet in {run}: the run starts" in caplog.text
    assert is_logged == (keyword == "resume_from")
    assert read_lines(run) == read_lines(tmp_path / "whole")
    assert read_rows(run) == read_rows(tmp_path / "whole")
    assert (run / "notes.txt").read_text() == "mine"
    check_audit(run)


def test_rates_by_id_and_priority_are_restored(tmp_path: Path) -> None:
    """Mappings and lists survive YAML."""
    rates = {0: 0.5, 1: 1.0, 2: 0.25}
    strategy = KnownStatistics(probabilities=rates, records=tmp_path / "run")
    run_all_rounds(strategy, make_grid(make_standard_app(), 3), rounds=2)
    config = load_run(tmp_path / "run").config
    assert config["strategy"]["probabilities"] == rates
    check_audit(tmp_path / "run")
    run_all_rounds(
        KnownStatistics(probabilities=rates, resume_from=tmp_path / "run"),
        make_grid(make_standard_app(), 3),
    )


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_in_which_nobody_trained_has_failed(
    resumed: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its result has the initial model for the program; a resumed run counts all rounds."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    def fail(client: int) -> dict[str, Any]:
        raise RuntimeError(f"no GPU at {client}")

    run, grid = tmp_path / "run", make_grid(make_standard_app(fail), K)
    if resumed:
        with pytest.raises(KeyboardInterrupt):
            FedAvg(records=run).start(
                grid, encode_arrays(MODEL), num_rounds=3, evaluate_fn=make_interruption(1)
            )
    strategy = FedAvg(resume_from=run) if resumed else FedAvg(records=run)
    result = strategy.start(grid, encode_arrays(MODEL), num_rounds=3)
    assert decode_arrays(result.arrays)["w"].tolist() == MODEL["w"].tolist()
    loaded = load_run(run)
    assert (loaded.status, len(loaded.rounds)) == ("failed", 3)
    reason = rf"RuntimeError: no GPU at \d \({K} clients, such as 0, {3 * K} times\)"
    text = f"no client trained with success in any of 3 rounds, so the model .*: {reason}"
    assert re.fullmatch(f"RunError: {text}", loaded.error)
    assert re.search(f"The run has failed: {text}", caplog.text)


def test_a_run_whose_clients_have_no_data_has_not_failed(tmp_path: Path) -> None:
    """They trained, and no rule gives them a weight."""
    run = tmp_path / "run"
    app = make_standard_app(lambda _: {"num-examples": 0, "loss": 1.0})
    FedAvg(records=run).start(make_grid(app, K), encode_arrays(MODEL), num_rounds=1)
    assert load_run(run).status == "completed"


# --- records that can go on --------------------------------------------------------------------


@pytest.mark.parametrize(("client_ids", "warns"), [(None, True), ("query", False)])
def test_a_run_that_can_never_be_resumed_warns(
    client_ids: str | None, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A simulation draws new node ids; one line at the start names the setting."""
    grid = make_simulation_grid(make_query_app(), 3)
    FedAvg(records=tmp_path, client_ids=client_ids).start(grid, encode_arrays(MODEL), 1)
    found = [line for line in caplog.messages if "can never be resumed" in line]
    assert len(found) == int(warns)
    assert all('client_ids="query"' in line and "\n" not in line for line in found)


def make_query_app() -> ClientApp:
    """Return an app whose nodes report their partition as the client."""
    app = make_standard_app()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        content = RecordDict({"metrics": MetricRecord({"client-id": client})})
        return Message(content, reply_to=message)

    return app


@pytest.mark.parametrize(
    "option",
    [
        {"min_available_nodes": 3},
        {"arrayrecord_key": "model"},
        {"configrecord_key": "settings"},
        {"startup_timeout": 7.0},
        {"max_reply_bytes": 10**6},
    ],
)
def test_what_decides_nothing_may_change_on_a_resume(
    option: dict[str, Any], tmp_path: Path
) -> None:
    """The audit accepts the change too."""
    run_all_rounds(FedAU(records=tmp_path), make_protocol_grid("standard"), rounds=2)
    run_all_rounds(FedAU(resume_from=tmp_path, **option), make_protocol_grid("standard"), rounds=3)
    assert len(read_lines(tmp_path)) == 3
    check_audit(tmp_path)


def test_a_node_that_left_for_good_does_not_hold_a_resumed_run(tmp_path: Path) -> None:
    """With a lower minimum the run continues, even if that node had priority."""
    run_all_rounds(
        make_strategy("FedALIGN", records=tmp_path, min_available_nodes=K),
        ScriptedGrid(make_standard_app(), {}, K),
        rounds=2,
    )
    on = ScriptedGrid(make_standard_app(), {}, K, there={*range(2, K + 1)})
    resumed = make_strategy("FedALIGN", resume_from=tmp_path, min_available_nodes=2)
    run_all_rounds(resumed, on)
    assert len(read_lines(tmp_path)) == ROUNDS
    check_audit(tmp_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_failed_start_leaves_its_folder_free(error: type[BaseException], tmp_path: Path) -> None:
    """The next start with the same folder works; a run with a round keeps it."""

    def fail(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        raise error

    with pytest.raises(error):
        run_all_rounds(FedAU(records=tmp_path), make_protocol_grid("standard"), evaluate_fn=fail)
    assert load_run(tmp_path).status in {"failed", "interrupted"}
    run_all_rounds(FedAU(records=tmp_path), make_protocol_grid("standard"), rounds=1)
    assert load_run(tmp_path).status == "completed"
    with pytest.raises(RunError, match="must not hold a run"):
        run_all_rounds(FedAU(records=tmp_path), make_forbidden_grid())


def test_another_strategy_comes_before_lesser_differences(tmp_path: Path) -> None:
    """The error names the strategy, though others of its keywords differ too."""
    run_all_rounds(FedAU(cutoff=3, records=tmp_path), make_protocol_grid("standard"), rounds=2)
    with pytest.raises(RunError, match=r"^strategy must be fedau, as in .*, got fedavg"):
        run_all_rounds(
            FedAvg(resume_from=tmp_path, fraction_train=0.5, protocol="fedquorum"),
            make_forbidden_grid(),
        )


def test_the_log_of_a_resume_is_short(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has the name of the method, and one line for all rounds that are skipped."""
    run_all_rounds(FedAU(records=tmp_path), make_protocol_grid("standard"), rounds=4)
    caplog.clear()
    with caplog.at_level("INFO", logger="flwr"):
        run_all_rounds(
            FedAU(resume_from=tmp_path),
            make_protocol_grid("standard"),
            rounds=6,
            evaluate_fn=lambda number, arrays: None,
        )
    text = caplog.text
    assert "Starting FedAU strategy:" in text
    assert text.count("Rounds 1 to 4 are in the records and are not repeated") == 1
    assert re.findall(r"\[ROUND (\d)/6\]", text) == ["5", "6"]
    assert text.count("Global evaluation") == 2
    assert "Strategy execution finished" in text


def test_a_resume_of_a_complete_run_logs_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All rounds are skipped; the final result is still logged."""
    run_all_rounds(FedAU(records=tmp_path), make_protocol_grid("standard"), rounds=2)
    caplog.clear()
    with caplog.at_level("INFO", logger="flwr"):
        run_all_rounds(FedAU(resume_from=tmp_path), make_protocol_grid("standard"), rounds=2)
    assert "Rounds 1 to 2 are in the records" in caplog.text
    assert "[ROUND" not in caplog.text
    assert "Final results:" in caplog.text
