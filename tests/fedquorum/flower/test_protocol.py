"""The strategies in other apps, whose clients reply as to Flower's own strategies."""

import logging
import math
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy, FedAU, NativeProtocol, Population, StandardProtocol
from fedquorum.audit.check import audit_run
from fedquorum.errors import ClientsMissingError, ParameterError
from fedquorum.flower.codec import LOSS_KEYS, decode_arrays, encode_arrays
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from server_app.engines.in_process import InProcessGrid
from tests.builders_flower import (
    LOSSES,
    MODEL,
    ScriptedGrid,
    build_fedalign,
    build_named_strategy,
    make_grid,
    make_standard_app,
    train_round,
)

K = 4
GUIDE = (Path(__file__).parents[3] / "docs" / "drop-in.md").read_text()
BASE = {item.name for item in fields(NativeProtocol)}
CLASSES = {
    "aaggff_s": "AAggFFS",
    "aaggff_d": "AAggFFD",
    "qfedavg": "QFedAvg",
    "term": "TERM",
    "propfair": "PropFair",
    "afl": "AFL",
    "fedmgda": "FedMGDAPlus",
    "maxfl": "MaxFL",
}
"""The strategies that need the loss that the clients report, and their classes."""

NEEDS_LOSS = tuple(CLASSES)
NEEDS_NO_LOSS = (
    "fedalign",
    "fedavg",
    "fedavg_priority",
    "fedau",
    "average_participating",
    "average_all",
    "known_statistics",
    "fedvarp",
    "mifa",
    "fedgp",
)
EVERY = (*NEEDS_NO_LOSS, *NEEDS_LOSS)


def build_standard_strategy(name: str, **options: Any) -> ComposedStrategy:
    """Return a named strategy of four standard clients; in some, two have priority."""
    keywords: dict[str, Any] = {}
    if name == "fedalign":
        keywords = {"num_rounds": 3, "warmup_rounds": 0, "epsilon": 0.3}
    if name == "propfair":
        keywords = {"bound": 8.0}
    if name == "maxfl":
        keywords = {"requirement": 1.0}
    priority = {0, 1} if name in ("fedalign", "fedavg_priority", "fedgp") else None
    return build_named_strategy(
        name,
        Population.from_size(K, priority),
        communication=StandardProtocol(**options),
        rates=dict.fromkeys(range(K), 0.5),
        **keywords,
    )


def read_number(record: MetricRecord, key: str) -> float:
    value = record[key]
    assert not isinstance(value, list)
    return float(value)


def play(strategy: ComposedStrategy, grid: InProcessGrid) -> np.ndarray[Any, Any] | None:
    """Run round 1 and return the model's only array."""
    arrays = train_round(strategy, grid)
    return None if arrays is None else decode_arrays(arrays)["w"]


@pytest.mark.parametrize("name", EVERY)
def test_every_strategy_starts_with_plain_clients(name: str) -> None:
    """Flower's ``start`` runs three rounds, with models and Flower's mean metrics."""
    seen: list[int] = []

    def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(server_round)
        return MetricRecord({"w": float(decode_arrays(arrays)["w"][0])})

    result = build_standard_strategy(name).start(
        make_grid(make_standard_app(), K), encode_arrays(MODEL), num_rounds=3, evaluate_fn=central
    )
    assert seen == [0, 1, 2, 3]
    moved = [read_number(result.evaluate_metrics_serverapp[t], "w") for t in range(4)]
    assert moved[0] == 1.0
    assert moved == sorted(set(moved))  # all updates go up
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    # sum_k n_k m_k / sum_k n_k with n = 5, 10, 15, 20
    expected = float(np.dot([1, 2, 3, 4], LOSSES) / 10)
    assert result.evaluate_metrics_clientapp[3]["eval_loss"] == pytest.approx(expected)


def count_replies(replies: list[RecordDict], key: str) -> MetricRecord:
    """Aggregate metrics with a custom function."""
    return MetricRecord({"replies": len(replies), key: 1})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"arrayrecord_key": "weights", "configrecord_key": "settings"},
        {"train_metrics_aggr_fn": count_replies, "evaluate_metrics_aggr_fn": count_replies},
        {"weighted_by_key": "n", "fraction_evaluate": 0.0},
    ],
    ids=lambda options: "-".join(options) or "defaults",
)
def test_fedavg_is_flowers(options: dict[str, Any]) -> None:
    """Messages, model and metrics of ``start`` equal those of Flower's FedAvg in every round."""
    key = options.get("weighted_by_key", "num-examples")
    sent = (options.get("arrayrecord_key", "arrays"), options.get("configrecord_key", "config"))
    results, seen, evaluated = [], [], []
    for strategy in (
        build_standard_strategy("fedavg", **options),
        FlowerFedAvg(**options),
    ):
        configs: list[ConfigRecord] = []
        models: list[float] = []

        def central(
            server_round: int, arrays: ArrayRecord, models: list[float] = models
        ) -> MetricRecord:
            models.append(float(decode_arrays(arrays)["w"][0]))
            return MetricRecord({"round": server_round})

        app = make_standard_app(
            lambda k: {key: 3 * k + 1, "loss": LOSSES[k]}, sent=sent, seen=configs
        )
        results.append(
            strategy.start(
                make_grid(app, K),
                encode_arrays(MODEL),
                num_rounds=3,
                train_config=ConfigRecord({"lr": 0.1}),
                evaluate_config=ConfigRecord({"batch": 7}),
                evaluate_fn=central,
            )
        )
        seen.append(sorted(sorted(dict(config).items()) for config in configs))
        evaluated.append(models)
    ours, flowers = results
    assert seen[0] == seen[1]
    assert evaluated[0] == pytest.approx(evaluated[1])
    np.testing.assert_allclose(
        decode_arrays(ours.arrays)["w"], decode_arrays(flowers.arrays)["w"], rtol=1e-6
    )
    for one, other in (
        (ours.train_metrics_clientapp, flowers.train_metrics_clientapp),
        (ours.evaluate_metrics_clientapp, flowers.evaluate_metrics_clientapp),
        (ours.evaluate_metrics_serverapp, flowers.evaluate_metrics_serverapp),
    ):
        assert one.keys() == other.keys()
        for t, record in one.items():
            assert dict(record) == pytest.approx(dict(other[t]))


def test_the_server_alone_gates_clients_that_cannot_decide() -> None:
    """F is the priority clients' mean of this round; |F_k - F| <= eps, on both sides."""
    losses = (1.0, 1.2, 1.3, 5.0, 0.2, math.nan)

    def metrics(client: int) -> dict[str, Any]:
        loss = losses[client]
        return {"num-examples": 10} | ({} if math.isnan(loss) else {"loss": loss})

    strategy = build_fedalign(6, [0, 1], epsilon=0.3, communication=StandardProtocol())
    play(strategy, make_grid(make_standard_app(metrics), 6))
    report = strategy.step_result.report
    assert report.objective.loss == pytest.approx(1.1)
    assert [d.weight for d in report.decisions] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0, 0])
    assert [d.reason for d in report.decisions[3:]] == [
        "loss 5 > global 1.1 + epsilon 0.3",
        "loss 0.2 < global 1.1 - epsilon 0.3",
        "it reported no loss",
    ]


def test_the_gate_by_accuracy() -> None:
    """With ``criterion="accuracy"`` the strategy reads the app's own key."""
    strategy = build_fedalign(
        3,
        [0],
        criterion="accuracy",
        epsilon=0.1,
        communication=StandardProtocol(accuracy_key="acc"),
    )
    accuracy = (0.5, 0.55, 0.3)
    app = make_standard_app(lambda k: {"num-examples": 10, "acc": accuracy[k]})
    play(strategy, make_grid(app, 3))
    assert [d.weight for d in strategy.step_result.report.decisions] == pytest.approx([0.5, 0.5, 0])


def test_without_any_loss_fedalign_is_fedavg_on_the_priority_clients() -> None:
    """The gate stays closed if no client reports a loss."""
    app = make_standard_app(lambda k: {"num-examples": 10 * (k + 1)})
    strategy = build_standard_strategy("fedalign")
    play(strategy, make_grid(app, K))
    assert [d.weight for d in strategy.step_result.report.decisions] == pytest.approx(
        [1 / 3, 2 / 3, 0, 0]
    )


@pytest.mark.parametrize("name", NEEDS_LOSS)
def test_an_update_without_the_loss_that_is_needed(name: str) -> None:
    """Rules that mix by losses reject the update, and use the others."""
    app = make_standard_app(
        lambda k: {"num-examples": 10} | ({} if k == 2 else {"loss": LOSSES[k]})
    )
    strategy = build_standard_strategy(name)
    assert play(strategy, make_grid(app, K)) is not None
    decision = strategy.step_result.report.decisions[2]
    assert decision.status == "rejected"
    assert decision.reason == (
        "'loss' or 'train_loss' or 'train-loss' is missing in the metrics; found 'num-examples'"
    )


@pytest.mark.parametrize("name", NEEDS_NO_LOSS)
def test_a_loss_that_is_not_needed(name: str) -> None:
    """Other rules need no loss."""
    strategy = build_standard_strategy(name)
    assert (
        play(strategy, make_grid(make_standard_app(lambda k: {"num-examples": 10}), K)) is not None
    )


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"loss": 1.0}, "'num-examples' is missing in the metrics; found 'loss'"),
        ({"num-examples": -1, "loss": 1.0}, "the amount of data is -1, not a finite number >= 0"),
        ({"num-examples": math.nan, "loss": 1.0}, "the amount of data is nan, not a finite"),
        ({"num-examples": [1, 2], "loss": 1.0}, "'num-examples' must be a single number"),
        ({"num-examples": 10, "loss": [1.0]}, "'loss' must be a single number, got a list"),
        ({"num-examples": 10, "loss": math.nan}, "loss is nan"),
        ({"num-examples": 10, "loss": -1.0}, "loss is -1.0"),
    ],
)
def test_unusable_metrics_reject_the_update(metrics: dict[str, Any], reason: str) -> None:
    """The client is rejected with a reason; Flower would end the run."""
    app = make_standard_app(lambda k: metrics if k == 1 else {"num-examples": 10, "loss": 1.0})
    strategy = build_standard_strategy("aaggff_d")
    assert play(strategy, make_grid(app, K)) is not None
    statuses = [d.status for d in strategy.step_result.report.decisions]
    assert statuses == ["trained", "rejected", "trained", "trained"]
    assert str(strategy.step_result.report.decisions[1].reason).startswith(reason)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ({"m": MetricRecord({"num-examples": 1}), "n": MetricRecord({})}, "one MetricRecord"),
        (
            {
                "m": MetricRecord({"num-examples": 1}),
                "a": encode_arrays(MODEL),
                "b": encode_arrays(MODEL),
            },
            "one ArrayRecord",
        ),
        ({"m": MetricRecord({"num-examples": 1})}, "no arrays in the reply"),
    ],
)
def test_unusable_records_reject_the_update(records: dict[str, Any], reason: str) -> None:
    """As in Flower, a reply has one MetricRecord and one ArrayRecord."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict(dict(records)), reply_to=message)

    strategy = build_named_strategy("fedau", 1, communication=StandardProtocol())
    assert play(strategy, make_grid(app, 1)) is None
    assert reason in str(strategy.step_result.report.decisions[0].reason)


def test_all_keys_can_be_the_apps_own() -> None:
    """Messages use the given names, replies any names; weights and losses use the given keys."""
    seen: list[ConfigRecord] = []
    app = make_standard_app(
        lambda k: {"n": k + 1, "train_loss": LOSSES[k], "history": [1.0, 2.0]},
        records=("model", "numbers"),
        sent=("weights", "settings"),
        seen=seen,
    )
    received_keys: list[str] = []

    def aggregate(replies: list[RecordDict], key: str) -> MetricRecord:
        received_keys.append(key)
        return MetricRecord({"replies": len(replies)})

    strategy = build_fedalign(
        K,
        [0, 1],
        epsilon=0.4,
        communication=StandardProtocol(
            weighted_by_key="n",
            loss_key="train_loss",
            arrayrecord_key="weights",
            configrecord_key="settings",
            fraction_evaluate=0.0,
            train_metrics_aggr_fn=aggregate,
        ),
    )
    config = ConfigRecord({"lr": 0.1})
    result = strategy.start(
        make_grid(app, K), encode_arrays(MODEL), num_rounds=2, train_config=config
    )
    assert [dict(c) for c in seen] == [
        {"server-round": t, "lr": 0.1} for t in (1, 2) for _ in "1234"
    ]
    assert dict(config) == {"lr": 0.1}  # the caller's config stays unchanged
    assert received_keys == ["n", "n"]
    assert dict(result.train_metrics_clientapp[2]) == {"replies": 4}
    assert result.evaluate_metrics_clientapp == {}
    weights = [d.weight for d in strategy.step_result.report.decisions]
    assert weights == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0])


def test_evaluation_by_a_fraction_of_the_clients_and_a_custom_function() -> None:
    """Half of four clients evaluate with the config, and the function gets their replies."""
    seen: list[ConfigRecord] = []
    num_replies: list[int] = []

    def aggregate(replies: list[RecordDict], key: str) -> MetricRecord:
        num_replies.append(len(replies))
        losses = [read_number(reply.metric_records["metrics"], "eval_loss") for reply in replies]
        return MetricRecord({"best": max(losses)})

    strategy = build_standard_strategy(
        "fedau", fraction_evaluate=0.5, evaluate_metrics_aggr_fn=aggregate
    )
    result = strategy.start(
        make_grid(make_standard_app(seen=seen), K),
        encode_arrays(MODEL),
        num_rounds=20,
        evaluate_config=ConfigRecord({"batch": 7}),
    )
    assert num_replies == [2] * 20
    asked = [dict(config) for config in seen if "batch" in config]
    assert asked == [{"server-round": t, "batch": 7} for t in range(1, 21) for _ in "12"]
    best = {read_number(result.evaluate_metrics_clientapp[t], "best") for t in range(1, 21)}
    assert len(best) > 1  # not always the same two


def test_inconsistent_metrics_do_not_affect_the_model(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the mean of the metrics is left out; Flower's strategies would end the run."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    app = make_standard_app(lambda k: {"num-examples": 10, "loss": 1.0, f"other-{k}": 1.0})
    result = build_standard_strategy("fedau").start(
        make_grid(app, K), encode_arrays(MODEL), num_rounds=1
    )
    assert result.train_metrics_clientapp == {}
    assert decode_arrays(result.arrays)["w"][0] == pytest.approx(3.5)
    assert "The metrics are not aggregated" in caplog.text


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"other": 1.0}, "other more"),
        ({"loss": [1.0, 2.0]}, "loss of another length"),
        ({"loss": []}, "loss of another length"),
    ],
)
def test_one_clients_metrics_of_another_form_are_left_out(
    other: dict[str, Any],
    named: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean is that of the other clients' metrics."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    app = make_standard_app(
        lambda k: {"num-examples": 10, "loss": float(k), **(other if k == 0 else {})}
    )
    result = build_standard_strategy("fedau").start(
        make_grid(app, K), encode_arrays(MODEL), num_rounds=1
    )
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 2.0}  # of 1, 2 and 3
    text = f"The metrics of 1 of 4 clients have another form and are left out: {named}\n"
    assert text in caplog.text


@pytest.mark.parametrize("name", ["fedau", "fedalign"])
def test_flowers_privacy_wraps_the_strategies(name: str) -> None:
    """Updates of length 1.7 and more are clipped to 0.01 before any rule sees them."""
    private = DifferentialPrivacyServerSideFixedClipping(
        build_standard_strategy(name),
        noise_multiplier=1e-9,
        clipping_norm=0.01,
        num_sampled_clients=K,
    )
    result = private.start(make_grid(make_standard_app(), K), encode_arrays(MODEL), num_rounds=1)
    step = decode_arrays(result.arrays)["w"] - MODEL["w"]
    assert np.linalg.norm(step) == pytest.approx(0.01, rel=1e-3)


def test_the_code_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code blocks of docs/drop-in.md run as they stand."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    line, late, masked, mods, keyed, query, recorded, resumed, _mod, wrapper, protocol = blocks
    app = make_standard_app(lambda k: {"num-examples": 10, "train_loss": 1.0})
    exec(  # noqa: S102 - our own guide
        query, {**{m.__name__: m for m in (Message, Context, MetricRecord, RecordDict)}, "app": app}
    )
    asked: list[str] = []
    grid = make_grid(app, K)
    for code in (line, line.replace("FedAU()", 'FedAU(client_ids="query")'), wrapper):
        names: dict[str, Any] = {"grid": grid, "arrays": encode_arrays(MODEL)}
        exec(code, names)  # noqa: S102 - our own guide
        if code == wrapper:
            assert sorted(names["result"].train_metrics_clientapp) == [1, 2, 3]
            continue
        asked.append(str(names["strategy"].communication.client_ids_from))
        assert sorted(names["result"].train_metrics_clientapp) == [1, 2, 3]
    assert asked == ["node-order", "query"]
    exec(late, names)  # noqa: S102 - our own guide
    assert names["strategy"].communication.late_updates is not None
    exec(masked, names)  # noqa: S102 - our own guide
    assert names["strategy"].communication.secure_aggregation is not None
    exec(mods, names | {"ClientApp": ClientApp})  # noqa: S102 - our own guide
    exec(keyed, names)  # noqa: S102 - our own guide
    assert names["strategy"].communication.client_ids_from == "key"
    exec(protocol, names)  # noqa: S102 - our own guide
    assert names["strategy"].communication.is_native
    monkeypatch.chdir(tmp_path)
    for code, rounds in ((recorded, 3), (resumed, 4)):
        names = {"grid": grid, "arrays": encode_arrays(MODEL), "FedAU": FedAU}
        exec(code.replace("num_rounds=100", f"num_rounds={rounds}"), names)  # noqa: S102
    assert sorted(names["result"].train_metrics_clientapp) == [4]
    assert audit_run(tmp_path / "runs" / "first").mismatches == ()


def test_the_guide_names_every_key_and_the_strategies_that_need_a_loss() -> None:
    """Its tables have the protocol's defaults and the strategies' needs."""
    for item in fields(StandardProtocol):
        assert f"`{item.name}" in GUIDE or item.name in BASE, item.name
    for key in ("weighted_by_key", "accuracy_key"):
        default = getattr(StandardProtocol(), key)
        assert f'| `{key}="{default}"` |' in GUIDE
    assert f"`loss_key`, by default the first of `{'`, `'.join(LOSS_KEYS)}`" in GUIDE
    (row,) = re.findall(r"^\| (.*) \| yes \|", GUIDE, re.MULTILINE)
    assert row.replace("`", "").split(", ") == list(CLASSES.values())


def test_an_empty_round_keeps_the_metrics() -> None:
    """No client is admitted and the model stays, but the clients' metrics are reported."""
    strategy = build_fedalign(K, [0], epsilon=0.3, communication=StandardProtocol())
    app = make_standard_app(lambda k: {"loss": 1.0, "num-examples": 0 if k == 0 else 10})
    result = strategy.start(make_grid(app, K), encode_arrays(MODEL), num_rounds=1)
    assert strategy.step_result.report.is_empty
    assert decode_arrays(result.arrays)["w"].tolist() == MODEL["w"].tolist()
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(1.0)


def test_summary_and_log_say_what_matters(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``start`` logs keys and rules; a round logs the number of updates and reasons."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    app = make_standard_app(lambda k: {"num-examples": 10} | ({} if k == 3 else {"loss": 1.0}))
    build_standard_strategy("aaggff_d").start(make_grid(app, K), encode_arrays(MODEL), num_rounds=1)
    for line in (
        "Weighted by: 'num-examples'",
        "Loss: 'loss' or 'train_loss' or 'train-loss'",
        "Accuracy: 'accuracy'",
        "ArrayRecord key: 'arrays'",
        "Weighting: AAggFFDWeighting(",
        "aggregate_train: 3 of 4 updates count",
        "1 updates rejected: 'loss' or 'train_loss' or 'train-loss' is missing in the metrics",
        "The clients' loss is taken from 'loss'",
    ):
        assert line in caplog.text


# --- client ids ----------------------------------------------------------------------------


def test_nodes_are_clients_by_ascending_id_then_in_the_order_of_joining() -> None:
    """A late node is the next client; one that leaves is unavailable and keeps its id."""
    loss = {1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}  # by node; partition = node - 1
    app = make_standard_app(lambda partition: {"num-examples": 10, "loss": loss[partition + 1]})
    grid = ScriptedGrid(app, {}, 4, there={2, 4})
    communication = StandardProtocol(startup_clients=2, startup_timeout=5.0)
    strategy = build_named_strategy("aaggff_d", 3, communication=communication)
    losses = []
    for there in ({2, 4}, {2, 4, 1}, {4, 1}, {2, 4, 1, 3}):
        grid.there = there
        play(strategy, grid)
        losses.append([d.loss for d in strategy.step_result.report.decisions])
    assert losses == [
        [20.0, 40.0, None],
        [20.0, 40.0, 10.0],
        [None, 40.0, 10.0],
        [20.0, 40.0, 10.0],
    ]


def test_too_few_nodes_are_named() -> None:
    """For ten clients on two nodes, the error has both numbers."""
    strategy = build_named_strategy(
        "fedau", 10, communication=StandardProtocol(startup_timeout=0.1)
    )
    with pytest.raises(ClientsMissingError, match="0 of 10 clients found on 2 nodes"):
        play(strategy, make_grid(make_standard_app(), 2))


def test_one_node_too_many_is_not_selected(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log names it once."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    seen: list[ConfigRecord] = []
    build_named_strategy("fedau", 3, communication=StandardProtocol(fraction_evaluate=0.0)).start(
        make_grid(make_standard_app(seen=seen), 4), encode_arrays(MODEL), num_rounds=2
    )
    assert len(seen) == 6
    assert caplog.text.count("node 4 is one more than the 3 clients: not asked") == 1


def test_a_node_may_report_its_partition_id() -> None:
    """With ``client_ids="query"`` priority follows the data, for any node ids."""
    app = make_standard_app(lambda k: {"num-examples": 10, "loss": LOSSES[k]})

    @app.query()
    def query(message: Message, context: Context) -> Message:
        client = 3 - int(context.node_config["partition-id"])
        return Message(
            RecordDict({"metrics": MetricRecord({"client-id": client})}), reply_to=message
        )

    strategy = build_named_strategy(
        "fedavg_priority",
        Population.from_size(K, [3]),
        communication=StandardProtocol(client_ids="query"),
    )
    play(strategy, make_grid(app, K))
    assert [(d.client, d.loss) for d in strategy.step_result.report.decisions] == [(3, LOSSES[0])]


def test_an_app_without_a_query_function_ends_the_run() -> None:
    """The error names the missing function instead of Flower's message."""
    strategy = build_named_strategy(
        "fedavg_priority",
        Population.from_size(K, [3]),
        communication=StandardProtocol(client_ids="query"),
    )
    with pytest.raises(ClientsMissingError, match=r"node \d+ never answers: .*@app\.query\(\)"):
        play(strategy, make_grid(make_standard_app(), K))


# --- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: StandardProtocol(client_ids="guess"),
            "client_ids must be one of node-order, query, key, got",
        ),
        (
            lambda: StandardProtocol(fraction_evaluate=2.0),
            "fraction_evaluate must be a number >= 0 and <=",
        ),
        (
            lambda: StandardProtocol(max_reply_bytes=0),
            "max_reply_bytes must be a whole number >= 1",
        ),
        (
            lambda: StandardProtocol(
                client_ids="node-order", clients_by_key={"SHA256:a": frozenset({0})}
            ),
            "client_ids must be key or query with clients_by_key, got 'node-order'",
        ),
        (
            lambda: StandardProtocol(clients_by_key={}),
            "clients_by_key must be the client of each public key, such as",
        ),
        (
            lambda: StandardProtocol(client_ids="key"),
            "clients_by_key must be the client of each public key, such as",
        ),
        (
            lambda: StandardProtocol(clients_by_key={"SHA256:a": frozenset({0, 1})}),
            "clients_by_key must be one client for each key, or client_ids=.query.",
        ),
        (
            lambda: build_named_strategy(
                "fedavg", K, priority_samples=2, communication=StandardProtocol()
            ),
            "priority_samples must be None with a ClientApp written for Flower's own strategies",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    """The error has the reason and comes before any message."""
    with pytest.raises(ParameterError, match=message):
        make()
