"""Drop-in strategies with masks, and ClientApps written for Flower's own strategies."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import (
    FedAU,
    FedAvg,
    FedAvgAll,
    KnownStatistics,
    Robustness,
    SecureAggregation,
)
from fedquorum.audit.check import audit_run
from fedquorum.errors import ParameterError
from fedquorum.flower.codec import NamedArrays, decode_arrays, encode_arrays
from fedquorum.flower.mods import SecureSumMod, StandardAppMod
from fedquorum.flower.strategies import DropInStrategy
from fedquorum.records.reader import load_run, read_dataset
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Result

from client_app import app as client_app
from server_app.engines.in_process import InProcessGrid
from tests.builders_flower import DROP_INS, LOSSES, drop_in, make_grid, make_standard_app
from tests.client_app.sum_runs import NUM_CLIENTS, OVERRIDES

NODES = 4
MODEL = {"w": np.linspace(-1, 1, 7, dtype=np.float32), "b": np.zeros((2, 3), np.float32)}
START = encode_arrays(MODEL)
MODS = (SecureSumMod(), StandardAppMod())
STRATEGIES: Mapping[type[DropInStrategy], dict[str, Any]] = {
    FedAU: {"cutoff": 5},
    FedAvgAll: {},
    KnownStatistics: {"probabilities": dict.fromkeys(range(NODES), 0.7)},
    FedAvg: {},
}


def add(client: int) -> float:
    """Return a number whose products are not exact in float32."""
    return 0.1 * (client + 1) ** 3


def report(client: int) -> dict[str, Any]:
    """Return metrics of training, with another weight for each client."""
    return {"num-examples": 10 * (client + 1) + 0.5, "loss": 1.0}


def run(app: ClientApp, strategy: DropInStrategy, rounds: int = 3) -> Result:
    """Run a strategy on nodes of this process."""
    return strategy.start(make_grid(app, NODES), START, rounds)


def get_model(result: Result) -> NamedArrays:
    """Return the model after a run."""
    assert result.arrays is not None
    return decode_arrays(result.arrays)


def fix_bins(strategy: DropInStrategy) -> DropInStrategy:
    """Let a strategy without masks fix the bins of its sums, as one with masks does."""
    strategy.communication = replace(strategy.communication, fixed_bins=True)
    strategy._reset_state(strategy.population)
    return strategy


@pytest.mark.parametrize("kind", STRATEGIES)
def test_an_app_of_flower_gives_the_same_bits(kind: type[DropInStrategy]) -> None:
    """As without masks; the app sees the messages of FedAvg, with the user's config."""
    seen: list[ConfigRecord] = []
    plain = run(make_standard_app(report, by=add), fix_bins(kind(**STRATEGIES[kind])))
    masked = kind(**STRATEGIES[kind], secure_aggregation="masks")
    app = make_standard_app(report, by=add, mods=MODS, seen=seen)
    result = masked.start(make_grid(app, NODES), START, 3, train_config=ConfigRecord({"lr": 0.1}))
    found, expected = map(get_model, (result, plain))
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes()
        assert (found[name] != MODEL[name]).all()
    trained = [dict(config) for config in seen if "lr" in config]
    assert trained[:NODES] == [{"lr": 0.1, "server-round": 1}] * NODES
    assert len(seen) == 2 * 3 * NODES
    weights = np.arange(1, NODES + 1) if kind is FedAvg else np.ones(NODES)
    losses = [LOSSES[client % len(LOSSES)] for client in range(NODES)]
    metrics = dict(result.evaluate_metrics_clientapp[1])
    assert metrics == pytest.approx(
        {"test-loss": weights @ losses / weights.sum(), "test-accuracy": 0.5}, abs=1e-6
    )


def test_all_exchanges_of_a_round_share_the_users_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Flower's loop has it for its own exchange alone."""
    seen: list[float | None] = []
    send = InProcessGrid.send_and_receive

    def note(self: InProcessGrid, messages: Any, *, timeout: float | None = None) -> Any:
        seen.append(timeout)
        return send(self, messages, timeout=timeout)

    monkeypatch.setattr(InProcessGrid, "send_and_receive", note)
    app = make_standard_app(report, by=add, mods=MODS)
    FedAU(secure_aggregation="masks").start(make_grid(app, NODES), START, 1, timeout=20)
    assert len(seen) == 8
    assert all(timeout is not None and timeout <= 20 for timeout in seen)


def test_an_app_without_the_mods_gets_no_model(caplog: pytest.LogCaptureFixture) -> None:
    """No update leaves a node, and the warning has the line to add."""
    seen: list[ConfigRecord] = []
    strategy = FedAU(secure_aggregation=SecureAggregation())
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        result = run(make_standard_app(seen=seen), strategy)
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert not seen
    assert get_model(result)["w"].tobytes() == MODEL["w"].tobytes()
    assert "ClientApp(mods=[SecureSumMod(), StandardAppMod()])" in caplog.text


@pytest.mark.parametrize("mods", [MODS[:1], MODS[1:], MODS[::-1]])
def test_mods_that_are_missing_or_in_another_order_are_named(mods: Sequence[Any]) -> None:
    """No update leaves a node, and the reason has the line to write."""
    app = ClientApp(mods=[*mods])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 10})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    strategy = FedAU(secure_aggregation="masks", fraction_evaluate=0)
    assert get_model(run(app, strategy, 1))["w"].tobytes() == MODEL["w"].tobytes()
    for decision in strategy.step_result.report.decisions:
        assert decision.reason is not None
        assert "must end with [SecureSumMod(), StandardAppMod()]" in decision.reason


@pytest.mark.parametrize("count", [1, 3])
def test_a_number_of_few_nodes_is_left_out_of_evaluations(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are evaluated in each round; only the first one asks all nodes twice."""
    asked: list[int] = []
    app = ClientApp(mods=[*MODS])
    plain = make_standard_app(report, by=add)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return plain(message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        asked.append(client)
        metrics: dict[str, Any] = {"num-examples": 5, "loss": client + 0.5}
        if client < count:
            metrics["accuracy"] = 0.25
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        result = run(app, FedAU(secure_aggregation="masks"))
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    expected = {"test-loss": 2.0} | ({"test-accuracy": 0.25} if count == 3 else {})
    for metrics in result.evaluate_metrics_clientapp.values():
        assert dict(metrics) == pytest.approx(expected, abs=1e-6)
    assert len(result.evaluate_metrics_clientapp) == 3
    assert len(asked) == NODES * (3 if count == 3 else 4)
    assert ("Not evaluated: test-accuracy. Only one" in caplog.text) == (count < 3)


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        (make_standard_app(names=["b"], mods=MODS), "arrays"),
        (make_standard_app(lambda client: {"loss": 1.0}, mods=MODS), "'num-examples' is missing"),
        (make_standard_app(lambda client: {"num-examples": -1}, mods=MODS), "amount of data is -1"),
        (make_standard_app(by=lambda client: np.inf, mods=MODS), "holds NaN or Inf"),
        (make_standard_app(by=lambda client: 1e16, mods=MODS), "holds values that are too la"),
    ],
)
def test_a_reply_that_cannot_be_used_stays_on_its_node(app: ClientApp, reason: str) -> None:
    """The server learns the reason."""
    strategy = FedAU(secure_aggregation="masks")
    result = run(app, strategy, 1)
    assert get_model(result)["w"].tobytes() == MODEL["w"].tobytes()
    reasons = {one.reason or "" for one in strategy.step_result.report.decisions}
    assert all(reason in one for one in reasons)


def test_other_names_are_parameters_of_the_mod() -> None:
    """Of records and of metrics."""
    mod = StandardAppMod("rows", "model", "settings", "cost", "share")
    seen: list[ConfigRecord] = []
    app = make_standard_app(
        lambda client: {"rows": 3},
        sent=("model", "settings"),
        records=("x", "y"),
        mods=[SecureSumMod(), mod],
        seen=seen,
    )
    result = run(app, FedAvgAll(secure_aggregation="masks", fraction_evaluate=0), 1)
    assert get_model(result)["w"] == pytest.approx(MODEL["w"] + 2.5)
    assert len(seen) == NODES


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"secure_aggregation": "mask"}, 'None, "masks" or a SecureAggregation'),
        ({"weighted_by_key": "rows"}, r"StandardAppMod\(weighted_by_key='rows'\)"),
        ({"loss_key": "cost"}, r"StandardAppMod\(loss_key='cost'\)"),
        ({"arrayrecord_key": "model"}, r"StandardAppMod\(arrayrecord_key='model'\)"),
        ({"train_metrics_aggr_fn": max}, "train_metrics_aggr_fn must be None"),
        ({"evaluate_metrics_aggr_fn": max}, "evaluate_metrics_aggr_fn must be None"),
        ({"fraction_evaluate": 0.5}, "fraction_evaluate must be 0 or 1"),
        ({"late_replies": "count", "quorum": 3}, "None with late_replies=count"),
        ({"robustness": Robustness(clip_norm=1.0)}, "None with clip_norm"),
        ({"quorum": 2}, "quorum must be"),
    ],
)
def test_keywords_that_need_single_updates_are_refused(
    keywords: dict[str, Any], message: str
) -> None:
    """Each with the reason."""
    with pytest.raises(ParameterError, match=message):
        run(make_standard_app(mods=MODS), FedAU(**{"secure_aggregation": "masks", **keywords}))


def test_two_nodes_are_too_few() -> None:
    """Known when they are connected."""
    strategy = FedAU(secure_aggregation="masks")
    with pytest.raises(ParameterError, match="none with fewer than 3 nodes, got 2"):
        strategy.start(make_grid(make_standard_app(mods=MODS), 2), START, 1)


def test_flowers_wrappers_are_refused() -> None:
    """They read the reply of each node."""
    inner = FedAU(secure_aggregation="masks")
    wrapped = DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, NODES)
    with pytest.raises(ParameterError, match="None inside one of Flower's wrappers"):
        wrapped.start(make_grid(make_standard_app(mods=MODS), NODES), START, 1)


@pytest.mark.parametrize("name", sorted(DROP_INS))
def test_every_strategy_takes_masks_or_says_why_not(name: str) -> None:
    """By the reason that its rules declare."""
    plain = drop_in(name)
    reason = plain.rules.sum_unsupported_reason
    if not reason:
        assert drop_in(name, secure_aggregation="masks").communication.needs_sums
        return
    message = rf"secure_aggregation must be None .*{re.escape(reason)}"
    with pytest.raises(ParameterError, match=message):
        drop_in(name, secure_aggregation="masks")


def test_this_projects_clientapp_needs_no_mod() -> None:
    """With protocol="fedquorum"; a node may host several clients."""
    config = {"experiment": "custom", "overrides": OVERRIDES}
    models = []
    for masks in ("masks", None):
        strategy = FedAU(
            protocol="fedquorum", min_available_nodes=NUM_CLIENTS, secure_aggregation=masks
        )
        if masks is None:
            fix_bins(strategy)
        grid = InProcessGrid(client_app.app, config, 3)
        start = {
            "linear.weight": np.zeros((10, 60), np.float32),
            "linear.bias": np.zeros(10, np.float32),
        }
        models.append(get_model(strategy.start(grid, encode_arrays(start), 2)))
    for name, array in models[0].items():
        assert array.tobytes() == models[1][name].tobytes()
        assert array.any()


def test_the_records_of_masks(tmp_path: Path) -> None:
    """They say the masks, replay, and have no number of a single client."""
    masks = SecureAggregation(colluding=0.2, dropping=0.05)
    strategy = FedAU(secure_aggregation=masks, records=tmp_path / "run")
    run(make_standard_app(report, by=add, mods=MODS), strategy)
    recorded = load_run(tmp_path / "run")
    assert recorded.settings["secure_aggregation.name"] == "masks"
    assert recorded.settings["secure_aggregation.colluding"] == 0.2
    rows: list[dict[str, Any]] = read_dataset(tmp_path / "run" / "clients").to_pylist()
    assert {row["status"] for row in rows} == {"trained"}
    assert {(row["loss"], row["num_examples"]) for row in rows} == {(None, None)}
    assert not audit_run(tmp_path / "run").mismatches
    resumed = FedAU(secure_aggregation=masks, resume_from=tmp_path / "run")
    run(make_standard_app(report, by=add, mods=MODS), resumed, rounds=3)
