"""The strategies in somebody else's app, whose clients reply as to Flower's own strategies."""

import inspect
import logging
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from server_app.in_process import InProcessGrid
from strategies import (
    AFL,
    MIFA,
    TERM,
    AAggFFD,
    AAggFFS,
    Communication,
    ComposedStrategy,
    FedALIGN,
    FedAU,
    FedAvg,
    FedAvgAll,
    FedAvgParticipating,
    FedMGDAPlus,
    FedVarp,
    KnownStatistics,
    LocalOnly,
    PlainApp,
    Population,
    PropFair,
    QFedAvg,
)
from strategies.codec import decode_arrays, encode_arrays
from strategies.directory import ClientsMissingError
from strategies.parameters import ParameterError

K = 4
ALL = Population.of(K)
MODEL = {"w": np.array([1.0, -2.0, 0.5], dtype=np.float32)}
GUIDE = (Path(__file__).parents[2] / "docs" / "drop-in.md").read_text()
BASE = {item.name for item in fields(Communication)}
LOSSES = (1.0, 1.1, 1.3, 5.0)

Make = Callable[[PlainApp], ComposedStrategy[Any]]
# Which of them need the loss that the clients report.
NEEDS_NO_LOSS: dict[str, Make] = {
    "FedALIGN": lambda app: FedALIGN(
        Population.of(K, [0, 1]), num_rounds=3, warmup_rounds=0, epsilon=0.3, communication=app
    ),
    "FedAvg": lambda app: FedAvg(ALL, communication=app),
    "FedAvg, priority only": lambda app: FedAvg(
        Population.of(K, [0, 1]), priority_only=True, communication=app
    ),
    "FedAU": lambda app: FedAU(ALL, communication=app),
    "FedAvgParticipating": lambda app: FedAvgParticipating(ALL, communication=app),
    "FedAvgAll": lambda app: FedAvgAll(ALL, communication=app),
    "KnownStatistics": lambda app: KnownStatistics(
        ALL, probabilities=dict.fromkeys(range(K), 0.5), communication=app
    ),
    "FedVarp": lambda app: FedVarp(ALL, communication=app),
    "MIFA": lambda app: MIFA(ALL, communication=app),
}
NEEDS_LOSS: dict[str, Make] = {
    "AAggFFS": lambda app: AAggFFS(ALL, communication=app),
    "AAggFFD": lambda app: AAggFFD(ALL, communication=app),
    "QFedAvg": lambda app: QFedAvg(ALL, communication=app),
    "TERM": lambda app: TERM(ALL, communication=app),
    "PropFair": lambda app: PropFair(ALL, bound=8.0, communication=app),
    "AFL": lambda app: AFL(ALL, communication=app),
    "FedMGDAPlus": lambda app: FedMGDAPlus(ALL, communication=app),
}
EVERY = {**NEEDS_NO_LOSS, **NEEDS_LOSS}


def plain_app(
    metrics: Callable[[int], dict[str, Any]] | None = None,
    *,
    records: tuple[str, str] = ("arrays", "metrics"),
    sent: tuple[str, str] = ("arrays", "config"),
    seen: list[ConfigRecord] | None = None,
    by: Callable[[int], float] = lambda client: client + 1.0,
) -> ClientApp:
    """Return a ClientApp as in Flower's quickstart; a client is its partition-id."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        arrays = message.content[sent[0]]
        config = message.content[sent[1]]
        assert isinstance(arrays, ArrayRecord)
        assert isinstance(config, ConfigRecord)
        assert len(message.content) == 2
        if seen is not None:
            seen.append(ConfigRecord(dict(config)))
        moved = {
            name: (array + np.float32(by(client))).astype(array.dtype)
            for name, array in decode_arrays(arrays).items()
        }
        default: dict[str, Any] = {"num-examples": 10, "loss": LOSSES[client % K]}
        own = metrics(client) if metrics else default
        content = RecordDict({records[0]: encode_arrays(moved), records[1]: MetricRecord(own)})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        config = message.content[sent[1]]
        assert isinstance(config, ConfigRecord)
        if seen is not None:
            seen.append(ConfigRecord(dict(config)))
        own: dict[str, Any] = {
            "num-examples": 5 * (client + 1),
            "eval_loss": LOSSES[client % K],
            "eval_acc": 0.5,
        }
        return Message(RecordDict({records[1]: MetricRecord(own)}), reply_to=message)

    return app


def grid_of(app: ClientApp, nodes: int = K) -> InProcessGrid:
    return InProcessGrid(app, {}, nodes)


def number(record: MetricRecord, key: str) -> float:
    value = record[key]
    assert not isinstance(value, list)
    return float(value)


def play(strategy: ComposedStrategy[Any], grid: InProcessGrid) -> np.ndarray[Any, Any] | None:
    """Play round 1 and return the model's only array."""
    messages = strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid)
    arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
    return None if arrays is None else decode_arrays(arrays)["w"]


@pytest.mark.parametrize("name", EVERY)
def test_every_strategy_starts_with_plain_clients(name: str) -> None:
    """Three rounds by Flower's own ``start``: models, and metrics as Flower averages them."""
    seen: list[int] = []

    def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(server_round)
        return MetricRecord({"w": float(decode_arrays(arrays)["w"][0])})

    result = EVERY[name](PlainApp()).start(
        grid_of(plain_app()), encode_arrays(MODEL), num_rounds=3, evaluate_fn=central
    )
    assert seen == [0, 1, 2, 3]
    moved = [number(result.evaluate_metrics_serverapp[t], "w") for t in range(4)]
    assert moved[0] == 1.0
    assert moved == sorted(set(moved))  # all updates go up
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    # sum_k n_k m_k / sum_k n_k with n = 5, 10, 15, 20
    expected = float(np.dot([1, 2, 3, 4], LOSSES) / 10)
    assert result.evaluate_metrics_clientapp[3]["eval_loss"] == pytest.approx(expected)


def test_the_options_are_flowers() -> None:
    """What FedAvg takes, PlainApp takes by the same name and default, or the guide tells."""
    elsewhere = {"fraction_train", "min_train_nodes", "min_evaluate_nodes", "min_available_nodes"}
    for name, parameter in inspect.signature(FlowerFedAvg).parameters.items():
        assert f"`{name}`" in GUIDE
        if name not in elsewhere:
            assert getattr(PlainApp(), name) == parameter.default


def how_many(replies: list[RecordDict], key: str) -> MetricRecord:
    """Aggregate metrics in a way of one's own."""
    return MetricRecord({"replies": len(replies), key: 1})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"arrayrecord_key": "weights", "configrecord_key": "settings"},
        {"train_metrics_aggr_fn": how_many, "evaluate_metrics_aggr_fn": how_many},
        {"weighted_by_key": "n", "fraction_evaluate": 0.0},
    ],
    ids=lambda options: "-".join(options) or "defaults",
)
def test_fedavg_is_flowers(options: dict[str, Any]) -> None:
    """Side by side: the messages sent, the model, and all metrics of ``start``, round by round."""
    key = options.get("weighted_by_key", "num-examples")
    sent = (options.get("arrayrecord_key", "arrays"), options.get("configrecord_key", "config"))
    results, seen, evaluated = [], [], []
    for strategy in (
        FedAvg(ALL, communication=PlainApp(**options)),
        FlowerFedAvg(min_evaluate_nodes=0, **options),
    ):
        configs: list[ConfigRecord] = []
        models: list[float] = []

        def central(
            server_round: int, arrays: ArrayRecord, models: list[float] = models
        ) -> MetricRecord:
            models.append(float(decode_arrays(arrays)["w"][0]))
            return MetricRecord({"round": server_round})

        app = plain_app(lambda k: {key: 3 * k + 1, "loss": LOSSES[k]}, sent=sent, seen=configs)
        results.append(
            strategy.start(
                grid_of(app),
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

    strategy = FedALIGN(
        Population.of(6, [0, 1]),
        num_rounds=1,
        warmup_rounds=0,
        epsilon=0.3,
        communication=PlainApp(),
    )
    play(strategy, grid_of(plain_app(metrics), 6))
    report = strategy.train_report
    assert report.measure.loss == pytest.approx(1.1)
    assert [d.weight for d in report.decisions] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0, 0])
    assert [d.reason for d in report.decisions[3:]] == [
        "loss 5 > global 1.1 + epsilon 0.3",
        "loss 0.2 < global 1.1 - epsilon 0.3",
        "it reported no loss",
    ]


def test_the_gate_by_accuracy() -> None:
    """With ``criterion="accuracy"`` the app's own name of it is read."""
    strategy = FedALIGN(
        Population.of(3, [0]),
        num_rounds=1,
        warmup_rounds=0,
        criterion="accuracy",
        epsilon=0.1,
        communication=PlainApp(accuracy_key="acc"),
    )
    accuracy = (0.5, 0.55, 0.3)
    app = plain_app(lambda k: {"num-examples": 10, "loss": 1.0, "acc": accuracy[k]})
    play(strategy, grid_of(app, 3))
    assert [d.weight for d in strategy.train_report.decisions] == pytest.approx([0.5, 0.5, 0])


def test_without_any_loss_fedalign_is_fedavg_on_the_priority_clients() -> None:
    """The gate stays closed where nobody says a loss."""
    app = plain_app(lambda k: {"num-examples": 10 * (k + 1)})
    strategy = EVERY["FedALIGN"](PlainApp())
    play(strategy, grid_of(app))
    assert [d.weight for d in strategy.train_report.decisions] == pytest.approx(
        [1 / 3, 2 / 3, 0, 0]
    )


@pytest.mark.parametrize("name", NEEDS_LOSS)
def test_an_update_without_the_loss_that_is_needed(name: str) -> None:
    """Rules that mix by losses reject it, and go on with the others."""
    app = plain_app(lambda k: {"num-examples": 10} | ({} if k == 2 else {"loss": LOSSES[k]}))
    strategy = EVERY[name](PlainApp())
    assert play(strategy, grid_of(app)) is not None
    decision = strategy.train_report.decisions[2]
    assert (decision.status, decision.reason) == ("rejected", "loss is missing")


@pytest.mark.parametrize("name", NEEDS_NO_LOSS)
def test_a_loss_that_is_not_needed(name: str) -> None:
    """All others do without."""
    strategy = EVERY[name](PlainApp())
    assert play(strategy, grid_of(plain_app(lambda k: {"num-examples": 10}))) is not None


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"loss": 1.0}, "'num-examples' is missing in the metrics"),
        ({"num-examples": 0, "loss": 1.0}, "num-examples is 0, not a whole number"),
        ({"num-examples": [1, 2], "loss": 1.0}, "'num-examples' must be a single number"),
        ({"num-examples": 10, "loss": [1.0]}, "'loss' must be a single number, got a list"),
        ({"num-examples": 10, "loss": math.nan}, "loss is nan"),
    ],
)
def test_metrics_that_cannot_be_used(metrics: dict[str, Any], reason: str) -> None:
    """That client is rejected with the reason; Flower would end the run."""
    app = plain_app(lambda k: metrics if k == 1 else {"num-examples": 10, "loss": 1.0})
    strategy = FedAU(ALL, communication=PlainApp())
    assert play(strategy, grid_of(app)) is not None
    statuses = [d.status for d in strategy.train_report.decisions]
    assert statuses == ["trained", "rejected", "trained", "trained"]
    assert str(strategy.train_report.decisions[1].reason).startswith(reason)


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
def test_records_that_cannot_be_used(records: dict[str, Any], reason: str) -> None:
    """As in Flower a reply has one MetricRecord and one ArrayRecord."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict(dict(records)), reply_to=message)

    strategy = FedAU(Population.of(1), communication=PlainApp())
    assert play(strategy, grid_of(app, 1)) is None
    assert reason in str(strategy.train_report.decisions[0].reason)


def test_all_keys_can_be_the_apps_own() -> None:
    """Sent records by the names given, replies by any; weights and losses by the keys given."""
    seen: list[ConfigRecord] = []
    app = plain_app(
        lambda k: {"n": k + 1, "train_loss": LOSSES[k], "history": [1.0, 2.0]},
        records=("model", "numbers"),
        sent=("weights", "settings"),
        seen=seen,
    )
    told: list[str] = []

    def together(replies: list[RecordDict], key: str) -> MetricRecord:
        told.append(key)
        return MetricRecord({"replies": len(replies)})

    strategy = FedALIGN(
        Population.of(K, [0, 1]),
        num_rounds=2,
        warmup_rounds=0,
        epsilon=0.4,
        communication=PlainApp(
            weighted_by_key="n",
            loss_key="train_loss",
            arrayrecord_key="weights",
            configrecord_key="settings",
            fraction_evaluate=0.0,
            train_metrics_aggr_fn=together,
        ),
    )
    config = ConfigRecord({"lr": 0.1})
    result = strategy.start(grid_of(app), encode_arrays(MODEL), num_rounds=2, train_config=config)
    assert [dict(c) for c in seen] == [
        {"server-round": t, "lr": 0.1} for t in (1, 2) for _ in "1234"
    ]
    assert dict(config) == {"lr": 0.1}  # the caller's own stays as it was
    assert told == ["n", "n"]
    assert dict(result.train_metrics_clientapp[2]) == {"replies": 4}
    assert result.evaluate_metrics_clientapp == {}
    weights = [d.weight for d in strategy.train_report.decisions]
    assert weights == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0])


def test_evaluation_by_a_share_of_the_clients_and_a_function_of_ones_own() -> None:
    """Half of four are asked, with the evaluate config, and the function gets their replies."""
    seen: list[ConfigRecord] = []
    heard: list[int] = []

    def together(replies: list[RecordDict], key: str) -> MetricRecord:
        heard.append(len(replies))
        losses = [number(reply.metric_records["metrics"], "eval_loss") for reply in replies]
        return MetricRecord({"best": max(losses)})

    strategy = FedAU(
        ALL,
        communication=PlainApp(fraction_evaluate=0.5, evaluate_metrics_aggr_fn=together),
    )
    result = strategy.start(
        grid_of(plain_app(seen=seen)),
        encode_arrays(MODEL),
        num_rounds=20,
        evaluate_config=ConfigRecord({"batch": 7}),
    )
    assert heard == [2] * 20
    asked = [dict(config) for config in seen if "batch" in config]
    assert asked == [{"server-round": t, "batch": 7} for t in range(1, 21) for _ in "12"]
    best = {number(result.evaluate_metrics_clientapp[t], "best") for t in range(1, 21)}
    assert len(best) > 1  # not always the same two


def test_metrics_that_do_not_go_together_leave_the_model_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Flower's strategies end the run, only the mean of the metrics is left out."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    extra = {0: {"other": 1.0}}
    app = plain_app(lambda k: {"num-examples": 10, "loss": 1.0, **extra.get(k, {})})
    result = FedAU(ALL, communication=PlainApp()).start(
        grid_of(app), encode_arrays(MODEL), num_rounds=1
    )
    assert result.train_metrics_clientapp == {}
    assert decode_arrays(result.arrays)["w"][0] == pytest.approx(3.5)
    assert "The metrics are not aggregated" in caplog.text


@pytest.mark.parametrize("name", ["FedAU", "FedALIGN"])
def test_flowers_privacy_wraps_the_strategies(name: str) -> None:
    """Updates of length 1.7 and more are clipped to 0.01 before any rule sees them."""
    private = DifferentialPrivacyServerSideFixedClipping(
        EVERY[name](PlainApp()), noise_multiplier=1e-9, clipping_norm=0.01, num_sampled_clients=K
    )
    result = private.start(grid_of(plain_app()), encode_arrays(MODEL), num_rounds=1)
    step = decode_arrays(result.arrays)["w"] - MODEL["w"]
    assert np.linalg.norm(step) == pytest.approx(0.01, rel=1e-3)


def test_the_code_of_the_guide() -> None:
    """docs/drop-in.md: its one line, and the query by which a node says who it is."""
    line, query = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    app = plain_app(lambda k: {"num-examples": 10, "train_loss": 1.0})
    exec(  # noqa: S102 - our own guide
        query, {**{m.__name__: m for m in (Message, Context, MetricRecord, RecordDict)}, "app": app}
    )
    asked: list[str] = []
    grid = grid_of(app)
    for code in (line, line.replace("PlainApp(", 'PlainApp(client_ids="query", ')):
        names: dict[str, Any] = {"grid": grid, "arrays": encode_arrays(MODEL)}
        exec(code, names)  # noqa: S102 - our own guide
        asked.append(str(names["strategy"].communication.client_ids))
        assert sorted(names["result"].train_metrics_clientapp) == [1, 2, 3]
    assert asked == ["node-order", "query"]


def test_the_guide_names_every_key_and_who_needs_the_loss() -> None:
    """Its tables are the defaults of PlainApp and what the strategies do."""
    for item in fields(PlainApp):
        assert item.name in GUIDE or item.name in BASE, item.name
    for key in ("weighted_by_key", "loss_key", "accuracy_key"):
        default = getattr(PlainApp(), key)
        assert f'| `{key}="{default}"` |' in GUIDE
    (row,) = re.findall(r"^\| (.*) \| yes \|", GUIDE, re.MULTILINE)
    assert row.replace("`", "").split(", ") == list(NEEDS_LOSS)


def test_an_empty_round_keeps_the_metrics() -> None:
    """Nobody is admitted, the model stays, and what the clients measured is still told."""
    strategy = FedALIGN(
        Population.of(K, [0]), num_rounds=1, warmup_rounds=0, epsilon=0.3, communication=PlainApp()
    )
    app = plain_app(lambda k: {"loss": 1.0, "num-examples": 0 if k == 0 else 10})
    result = strategy.start(grid_of(app), encode_arrays(MODEL), num_rounds=1)
    assert strategy.train_report.empty
    assert len(result.arrays) == 0
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(1.0)


def test_summary_and_log_say_what_matters(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``start`` logs keys and rules; a round logs how many counted and why others did not."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    app = plain_app(lambda k: {"num-examples": 10} | ({} if k == 3 else {"loss": 1.0}))
    AAggFFD(ALL, communication=PlainApp()).start(grid_of(app), encode_arrays(MODEL), num_rounds=1)
    for line in (
        "Weighted by: 'num-examples'",
        "Loss: 'loss', accuracy: 'accuracy'",
        "ArrayRecord key: 'arrays'",
        "Weighting: AAggFFD(",
        "aggregate_train: 3 of 4 updates count",
        "Client 3 rejected: loss is missing",
    ):
        assert line in caplog.text


# --- who is who ----------------------------------------------------------------------------


class Nodes(InProcessGrid):
    """A grid whose nodes come and go."""

    def __init__(self, app: ClientApp, count: int, there: Iterable[int]) -> None:
        super().__init__(app, {}, count)
        self.there = set(there)

    def get_node_ids(self) -> list[int]:
        return sorted(self.there, reverse=True)


def test_nodes_are_clients_by_ascending_id_then_in_the_order_of_joining() -> None:
    """A late node is the next client, one that leaves is unavailable, and keeps its place."""
    loss = {1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}  # by node; partition = node - 1
    app = plain_app(lambda partition: {"num-examples": 10, "loss": loss[partition + 1]})
    grid = Nodes(app, 4, {2, 4})
    strategy = AAggFFD(
        Population.of(3), communication=PlainApp(startup_clients=2, startup_timeout=5.0)
    )
    told = []
    for there in ({2, 4}, {2, 4, 1}, {4, 1}, {2, 4, 1, 3}):
        grid.there = there
        play(strategy, grid)
        told.append([d.loss for d in strategy.train_report.decisions])
    assert told == [
        [20.0, 40.0, None],
        [20.0, 40.0, 10.0],
        [None, 40.0, 10.0],
        [20.0, 40.0, 10.0],
    ]


def test_too_few_nodes_are_named() -> None:
    """Ten clients on two nodes: the error says how many there are."""
    strategy = FedAU(Population.of(10), communication=PlainApp(startup_timeout=0.1))
    with pytest.raises(ClientsMissingError, match="0 of 10 clients found on 2 nodes"):
        play(strategy, grid_of(plain_app(), 2))


def test_one_node_too_many_is_not_asked(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told of once."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    seen: list[ConfigRecord] = []
    FedAU(Population.of(3), communication=PlainApp(fraction_evaluate=0)).start(
        grid_of(plain_app(seen=seen), 4), encode_arrays(MODEL), num_rounds=2
    )
    assert len(seen) == 6
    assert caplog.text.count("node 4 is one more than the 3 clients: not asked") == 1


def test_a_node_that_says_its_partition_id() -> None:
    """With ``client_ids="query"`` priority is tied to the data, whatever the nodes' ids."""
    app = plain_app(lambda k: {"num-examples": 10, "loss": LOSSES[k]})

    @app.query()
    def query(message: Message, context: Context) -> Message:
        client = 3 - int(context.node_config["partition-id"])
        return Message(
            RecordDict({"metrics": MetricRecord({"client-id": client})}), reply_to=message
        )

    strategy = FedAvg(
        Population.of(K, [3]), priority_only=True, communication=PlainApp(client_ids="query")
    )
    play(strategy, grid_of(app))
    assert [(d.client, d.loss) for d in strategy.train_report.decisions] == [(3, LOSSES[0])]


# --- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PlainApp(client_ids="guess"), "client_ids must be one of node-order, query, got"),
        (lambda: PlainApp(fraction_evaluate=2.0), "fraction_evaluate must be a number >= 0 and <="),
        (lambda: PlainApp(clients_of_keys={}), "client_ids must be query with clients_of_keys"),
        (lambda: LocalOnly(ALL, communication=PlainApp()), "must not be a PlainApp with LocalOnly"),
        (
            lambda: FedAvg(ALL, priority_draws=2, communication=PlainApp()),
            "priority_draws must be None with PlainApp",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    """With the reason, before anything is sent."""
    with pytest.raises(ParameterError, match=message):
        make()


def test_a_misspelt_option_is_refused() -> None:
    """An option that there is not is no silent default."""
    with pytest.raises(TypeError, match="FedAU has no parameters fracton"):
        FedAU(ALL, fracton=0.5)  # type: ignore[call-arg]
