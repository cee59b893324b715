"""Compare with the installed Flower's ``FedAvg``: the same rounds on the same nodes.

``run_with_both`` runs a function with each. If the two differ on purpose, the test says so.
"""

import itertools
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
from fedquorum import FedAU, FedAvg, FedAvgAll
from fedquorum.flower.codec import NamedArrays, decode_arrays, encode_arrays
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result, Strategy
from hypothesis import given
from hypothesis import strategies as st

from tests.builders_flower import (
    MODEL,
    ScriptedGrid,
    make_grid,
    make_standard_app,
    make_standard_reply,
)

K = 4
FRACTIONS = (0.01, 0.1, 0.29, 1 / 3, 0.5, 0.7, 0.99, 1.0)
Made = Callable[..., Strategy]
Answering = Callable[[int, Message], Message]
PlayedT = TypeVar("PlayedT")
CONFIG: dict[str, Any] = {"lr": 0.1, "name": "é", "on": True, "key": b"\x00", "sizes": [1, 2]}


def run_with_both(play: Callable[[Made], PlayedT]) -> tuple[PlayedT, PlayedT]:
    """Return the results with FedQuorum's FedAvg and with Flower's."""
    return play(FedAvg), play(FlowerFedAvg)


def of_model(arrays: ArrayRecord | None) -> dict[str, Any] | None:
    """Return a comparable model: its arrays in their order, as lists of numbers."""
    if arrays is None:
        return None
    return {name: pytest.approx(a.numpy().tolist(), rel=1e-6) for name, a in arrays.items()}


def numbers(arrays: ArrayRecord | None) -> dict[str, Any] | None:
    return None if arrays is None else {name: a.numpy().tolist() for name, a in arrays.items()}


def of_metrics(metrics: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if metrics is None else {key: pytest.approx(v) for key, v in metrics.items()}


# --- numbers of nodes -----------------------------------------------------------------------


def get_selected_nodes(strategy: Strategy, nodes: int, kind: str) -> list[int]:
    """Return the nodes that get the messages of a round."""
    grid = make_grid(ClientApp(), nodes)
    strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid)
    configure = getattr(strategy, f"configure_{kind}")
    messages = configure(1, encode_arrays(MODEL), ConfigRecord(), grid)
    return [message.metadata.dst_node_id for message in messages]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_as_many_nodes_are_selected_as_by_fedavg(kind: str, fraction: float) -> None:
    """Both select as many of 2 to 30 nodes, with minima of 0 to 5, each node at most once."""
    for nodes in (*range(2, 12), 30):
        for minimum in range(min(nodes, 5) + 1):
            options: dict[str, Any] = {f"fraction_{kind}": fraction, f"min_{kind}_nodes": minimum}
            ours, flowers = (
                get_selected_nodes(m(**options), nodes, kind) for m in (FedAvg, FlowerFedAvg)
            )
            assert len(ours) == len(flowers) == len(set(ours))
            assert set(ours) <= set(range(1, nodes + 1))


@pytest.mark.slow
@given(nodes=st.integers(2, 60), fraction=st.floats(0, 1, exclude_min=True))
def test_fractions_are_cut_in_the_same_arithmetic(nodes: int, fraction: float) -> None:
    """0.29 of 100 nodes are 28 nodes in both, by float arithmetic."""
    ours, flowers = run_with_both(
        lambda made: get_selected_nodes(made(fraction_evaluate=fraction), nodes, "evaluate")
    )
    assert len(ours) == len(flowers)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    "options",
    [{"min_available_nodes": 4}, {"min_train_nodes": 4, "min_evaluate_nodes": 4}],
    ids=str,
)
def test_both_wait_for_as_many(
    kind: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look finds one more node: both strategies wait until there are four."""
    monkeypatch.setattr("fedquorum.flower.nodes.POLL_SECONDS", 0.001)
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", lambda seconds: None)

    def count_looks(made: Made) -> int:
        grid = ScriptedGrid(ClientApp(), {}, 5, arriving=True)
        configure = getattr(made(**options), f"configure_{kind}")
        list(configure(1, encode_arrays(MODEL), ConfigRecord(), grid))
        return grid.looks

    ours, flowers = run_with_both(count_looks)
    assert ours >= 4
    assert flowers >= 4


def test_settings_are_read_when_the_strategy_is_made() -> None:
    """Unlike Flower's strategies, ours ignore attributes that are assigned later."""

    def later(made: Made) -> int:
        strategy: Any = made()
        strategy.fraction_train = 0.5
        return len(get_selected_nodes(strategy, K, "train"))

    assert run_with_both(later) == (K, K // 2)


# --- messages -------------------------------------------------------------------------------


def list_sent(strategy: Strategy, kind: str, config: ConfigRecord) -> list[Message]:
    grid = make_grid(ClientApp(), K)
    strategy.configure_train(3, encode_arrays(MODEL), ConfigRecord(), grid)
    messages = getattr(strategy, f"configure_{kind}")(3, encode_arrays(MODEL), config, grid)
    return sorted(messages, key=lambda message: message.metadata.dst_node_id)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("config", [{}, CONFIG], ids=["empty", "full"])
@pytest.mark.parametrize("keys", [{}, {"arrayrecord_key": "a", "configrecord_key": "c"}], ids=str)
def test_the_messages_are_the_same(kind: str, config: dict[str, Any], keys: dict[str, str]) -> None:
    """Messages have the same type, node, lifetime, records, values and types."""
    ours, flowers = run_with_both(
        lambda made: list_sent(made(**keys), kind, ConfigRecord(dict(config)))
    )
    assert len(ours) == len(flowers) == K
    for message, other in zip(ours, flowers, strict=True):
        assert message.metadata.message_type == other.metadata.message_type
        assert message.metadata.dst_node_id == other.metadata.dst_node_id
        assert message.metadata.ttl == pytest.approx(other.metadata.ttl)
        assert list(message.content.items()) == list(other.content.items())
        sent = dict(message.content[keys.get("configrecord_key", "config")])
        assert sent == {**config, "server-round": 3}


@pytest.mark.parametrize("options", [{}, {"fraction_train": 0.0}, {"fraction_evaluate": 0.0}])
def test_the_exchanges_are_the_same(options: dict[str, float]) -> None:
    """Each round has two exchanges with the given timeout, even without messages."""

    def exchanges(made: Made) -> list[tuple[float | None, list[str]]]:
        grid = ScriptedGrid(make_standard_app(), {}, K)
        made(**options).start(grid, encode_arrays(MODEL), num_rounds=2, timeout=12.5)
        return grid.exchanges

    ours, flowers = run_with_both(exchanges)
    assert ours == flowers
    assert [timeout for timeout, _ in ours] == [12.5] * 4


# --- the aggregation functions --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("failing", [(), (2,)], ids=["all", "one fails"])
def test_the_aggregation_functions_get_the_same_calls(kind: str, failing: tuple[int, ...]) -> None:
    """Both are called once a round with the good replies and ``weighted_by_key``, by position."""

    def make_reply(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        if client in failing:
            raise ValueError(client)
        return make_standard_reply(message, dict(MODEL), {"n": client + 1, "a": 1.5 * client})

    def calls(made: Made) -> list[list[RecordDict]]:
        app, seen_replies = ClientApp(), []
        app.train()(make_reply)
        app.evaluate()(make_reply)

        def together(*given: Any) -> MetricRecord:
            replies, key = given
            assert (type(replies), key) == (list, "n")
            seen_replies.append(sorted(replies, key=lambda reply: reply["metrics"]["n"]))
            return MetricRecord({"count": len(replies)})

        options: dict[str, Any] = {f"{kind}_metrics_aggr_fn": together, "weighted_by_key": "n"}
        result = made(**options).start(make_grid(app, K), encode_arrays(MODEL), num_rounds=2)
        of_kind = getattr(result, f"{kind}_metrics_clientapp")
        assert [m["count"] for m in of_kind.values()] == [K - len(failing)] * 2
        return seen_replies

    ours, flowers = run_with_both(calls)
    assert ours == flowers
    assert [len(call) for call in ours] == [K - len(failing)] * 2


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_aggregation_function_that_raises_ends_both_runs(kind: str) -> None:
    """Both runs end with the function's error."""

    def broken(replies: list[RecordDict], key: str) -> MetricRecord:
        raise LookupError(key)

    for made in (FedAvg, FlowerFedAvg):
        options: dict[str, Any] = {f"{kind}_metrics_aggr_fn": broken}
        with pytest.raises(LookupError, match="num-examples"):
            made(**options).start(
                make_grid(make_standard_app(), K), encode_arrays(MODEL), num_rounds=1
            )


# --- the Result -----------------------------------------------------------------------------


def central(seen: list[Any]) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """Return an ``evaluate_fn`` that notes its arguments and returns None for round 1."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        seen.append((server_round, numbers(arrays)))
        return None if server_round == 1 else MetricRecord({"round": server_round})

    return evaluate


def compare(ours: Result, flowers: Result) -> None:
    assert type(ours) is type(flowers) is Result
    # Where Flower's has no model, ours has the initial one.
    assert numbers(ours.arrays) == of_model(flowers.arrays or encode_arrays(MODEL))
    for kind in (
        "train_metrics_clientapp",
        "evaluate_metrics_clientapp",
        "evaluate_metrics_serverapp",
    ):
        one, other = (getattr(result, kind) for result in (ours, flowers))
        assert {t: dict(m) for t, m in one.items()} == {t: of_metrics(m) for t, m in other.items()}


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("starts", [1, 2])
def test_the_result_is_the_same(rounds: int, starts: int) -> None:
    """All seven arguments work by position, and a second start begins again."""

    def results(made: Made) -> tuple[list[Result], list[Any]]:
        strategy, seen = made(), list[Any]()
        app = make_standard_app(lambda k: {"num-examples": 3 * k + 1, "loss": 0.5 * k})
        given = (rounds, 60.0, ConfigRecord({"lr": 0.1}), ConfigRecord(), central(seen))
        found = [
            strategy.start(make_grid(app, K), encode_arrays(MODEL), *given) for _ in range(starts)
        ]
        return found, seen

    (ours, seen), (flowers, flower_seen) = run_with_both(results)
    for pair in zip(ours, flowers, strict=True):
        compare(*pair)
    assert len(ours[-1].arrays) == len(MODEL)
    assert len(flowers[-1].arrays) == (rounds > 0)
    assert [t for t, _ in seen] == [t for t, _ in flower_seen] == [*range(rounds + 1)] * starts
    for (_, model), (_, other) in zip(seen, flower_seen, strict=True):
        assert model["w"] == pytest.approx(other["w"])


def test_the_result_without_any_good_reply_is_the_same() -> None:
    """It has no metrics, and ours the initial model; ``evaluate_fn`` always gets the latter."""

    def results(made: Made) -> tuple[Result, list[Any]]:
        seen: list[Any] = []
        result = made().start(
            make_grid(ClientApp(), K), encode_arrays(MODEL), num_rounds=2, evaluate_fn=central(seen)
        )
        return result, seen

    (ours, seen), (flowers, flower_seen) = run_with_both(results)
    compare(ours, flowers)
    assert decode_arrays(ours.arrays)["w"].tolist() == MODEL["w"].tolist()
    assert (len(flowers.arrays), len(seen)) == (0, 3)
    assert seen == flower_seen


def test_arrays_of_every_kind_are_averaged() -> None:
    """Flower converts integers and booleans to float64; here they keep their types."""
    model: NamedArrays = {
        "double": np.ones(2),
        "half": np.ones((1, 3), np.float16),
        "count": np.array(4, np.int64),
        "bytes": np.arange(3, dtype=np.uint8),
        "mask": np.array([True, False]),
        "none": np.zeros((0, 2), np.float32),
    }

    def make_reply(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        arrays = decode_arrays(message.content["arrays"])  # type: ignore[arg-type]
        grown = {
            name: array if name in {"bytes", "mask"} else np.asarray(array + client, array.dtype)
            for name, array in arrays.items()
        }
        return make_standard_reply(message, grown, {"num-examples": 1})

    app = ClientApp()
    app.train()(make_reply)
    results = run_with_both(
        lambda made: made(fraction_evaluate=0.0).start(
            make_grid(app, 3), encode_arrays(model), num_rounds=2
        )
    )
    ours, flowers = (decode_arrays(result.arrays) for result in results)
    assert list(ours) == list(flowers) == list(model)
    for name, array in ours.items():
        assert array == pytest.approx(flowers[name], rel=2e-3)  # Flower adds up in float16
        assert (array.dtype, array.shape) == (model[name].dtype, model[name].shape)


# --- failed, missing and unfit replies ------------------------------------------------------


def good(client: int, message: Message, **more: float) -> Message:
    arrays = {"w": MODEL["w"] + np.float32(client)}
    metrics = {"num-examples": client + 1, "loss": 0.5 * client, **more}
    return make_standard_reply(message, arrays, metrics)


def aggregate_round(
    made: Made, reply_functions: Mapping[int, Answering], kind: str
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Return the result of one round with these replies; other clients do not reply."""
    strategy = made()
    messages = list_sent(strategy, kind, ConfigRecord())
    replies = [reply_functions[k](k, m) for k, m in enumerate(messages) if k in reply_functions]
    if kind == "train":
        return strategy.aggregate_train(3, replies)
    return None, strategy.aggregate_evaluate(3, replies)


def error(client: int, message: Message) -> Message:
    return Message(Error(7, "boom"), reply_to=message)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("fates", [*itertools.product((good, error, None), repeat=3)])
def test_errors_and_missing_replies_have_the_same_effect(
    kind: str, fates: tuple[Answering | None, ...]
) -> None:
    """Any of four nodes reply, fail or stay silent, with the same model and metrics."""
    replies = {k: fate for k, fate in enumerate(fates) if fate is not None}
    (arrays, metrics), (model, means) = run_with_both(
        lambda made: aggregate_round(made, replies, kind)
    )
    assert numbers(arrays) == of_model(model)
    assert (None if metrics is None else dict(metrics)) == of_metrics(means)


def with_records(content: dict[str, Any]) -> Answering:
    return lambda client, message: Message(RecordDict(content), reply_to=message)


ARRAYS, METRICS = encode_arrays(MODEL), MetricRecord({"num-examples": 1, "loss": 1.0})
UNFIT: dict[str, tuple[Answering, bool]] = {
    "empty": (with_records({}), True),
    "no arrays": (with_records({"metrics": METRICS}), True),
    "no metrics": (with_records({"arrays": ARRAYS}), True),
    "two ArrayRecords": (with_records({"a": ARRAYS, "b": ARRAYS, "metrics": METRICS}), True),
    "two MetricRecords": (with_records({"arrays": ARRAYS, "a": METRICS, "b": METRICS}), True),
    "no weight": (
        with_records({"arrays": ARRAYS, "metrics": MetricRecord({"loss": 1.0})}),
        True,
    ),
    "a list as weight": (
        with_records(
            {"arrays": ARRAYS, "metrics": MetricRecord({"num-examples": [1], "loss": 1.0})}
        ),
        True,
    ),
    "other arrays": (
        with_records({"arrays": encode_arrays({"v": MODEL["w"]}), "metrics": METRICS}),
        True,
    ),
    "another shape": (
        with_records({"arrays": encode_arrays({"w": MODEL["w"][:2]}), "metrics": METRICS}),
        True,
    ),
    "NaN in the model": (
        with_records({"arrays": encode_arrays({"w": MODEL["w"] * np.nan}), "metrics": METRICS}),
        False,
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("reply", UNFIT)
def test_an_unfit_reply_is_left_out_where_flowers_run_ends(reply: str) -> None:
    """Unlike in Flower, the round is FedAvg's of the good replies only.

    Flower raises, or its model becomes NaN.
    """
    unfit, raises = UNFIT[reply]
    honest = dict.fromkeys(range(3), good)
    arrays, metrics = aggregate_round(FedAvg, {**honest, 3: unfit}, "train")
    model, means = aggregate_round(FlowerFedAvg, honest, "train")
    assert numbers(arrays) == of_model(model)
    assert dict(metrics or {}) == of_metrics(means)
    if raises:
        with pytest.raises((InconsistentMessageReplies, ValueError)):
            aggregate_round(FlowerFedAvg, {**honest, 3: unfit}, "train")
    else:
        spoilt, _ = aggregate_round(FlowerFedAvg, {**honest, 3: unfit}, "train")
        assert spoilt is not None
        assert math.isnan(spoilt["w"].numpy()[0])


def test_metrics_of_another_form_lose_only_their_mean() -> None:
    """Unlike in Flower, where the run ends, the update counts."""
    replies: dict[int, Answering] = {**dict.fromkeys(range(3), good), 3: partial(good, more=1.0)}
    arrays, metrics = aggregate_round(FedAvg, replies, "train")
    model, _ = aggregate_round(FlowerFedAvg, dict.fromkeys(range(4), good), "train")
    _, means = aggregate_round(FlowerFedAvg, dict.fromkeys(range(3), good), "train")
    assert numbers(arrays) == of_model(model)
    assert dict(metrics or {}) == of_metrics(means)
    with pytest.raises(InconsistentMessageReplies):
        aggregate_round(FlowerFedAvg, replies, "train")


@pytest.mark.slow
@given(
    weights=st.lists(st.floats(1e-6, 1e6) | st.integers(1, 10**6), min_size=1, max_size=K),
    steps=st.lists(st.floats(-1e3, 1e3, width=32), min_size=K, max_size=K),
)
def test_the_model_is_fedavgs_whatever_the_weights(
    weights: list[float], steps: list[float]
) -> None:
    """The model is FedAvg's for any clients that reply, with any positive weights."""

    def make_reply(client: int, message: Message) -> Message:
        arrays = {"w": MODEL["w"] + np.float32(steps[client])}
        return make_standard_reply(message, arrays, {"num-examples": weights[client]})

    replies = dict.fromkeys(range(len(weights)), make_reply)
    (arrays, _), (model, _) = run_with_both(lambda made: aggregate_round(made, replies, "train"))
    assert arrays is not None
    assert model is not None
    assert arrays["w"].numpy() == pytest.approx(model["w"].numpy(), rel=1e-5, abs=1e-4)


# --- documented differences of other rules --------------------------------------------------


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("made", [FedAU, FedAvgAll])
def test_a_client_that_is_not_selected_counts_as_absent(made: Made, fraction: float) -> None:
    """With equal clients, round 1 moves by ``fraction_train`` of FedAvg's step."""
    app = make_standard_app(lambda k: {"num-examples": 5}, by=lambda k: 2.0)
    options: dict[str, Any] = {"fraction_train": fraction, "min_train_nodes": 1}
    steps = [
        kind(**options).start(make_grid(app, K), encode_arrays(MODEL), num_rounds=1).arrays
        for kind in (made, FlowerFedAvg)
    ]
    ours, flowers = (decode_arrays(arrays)["w"] - MODEL["w"] for arrays in steps)
    assert ours == pytest.approx(fraction * flowers)


def test_after_many_rounds_fedaus_step_is_fedavgs_in_the_mean() -> None:
    """Estimated rates correct sampling: 100 rounds of a half move about as far as Flower's."""
    app = make_standard_app(lambda k: {"num-examples": 5}, by=lambda k: 1.0)
    strategy = FedAU(fraction_train=0.5, fraction_evaluate=0.0)
    result = strategy.start(make_grid(app, 8), encode_arrays(MODEL), num_rounds=100)
    step = decode_arrays(result.arrays)["w"] - MODEL["w"]
    assert step == pytest.approx(100, rel=0.1)


# --- the summary ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fraction_train": 0.0, "fraction_evaluate": 0.0},
        {"min_train_nodes": 3, "min_available_nodes": 9, "arrayrecord_key": "a"},
    ],
    ids=str,
)
def test_the_summary_has_every_line_of_fedavgs(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines are in its order, for any settings."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")

    def lines(made: Made) -> list[str]:
        strategy = made(**options)
        caplog.clear()
        strategy.summary()
        return [record.getMessage().strip("\t│├└─> ") for record in caplog.records]

    ours, flowers = run_with_both(lines)
    places = [ours.index(line) for line in flowers]
    assert places == sorted(places)


def test_types_of_messages_are_flowers() -> None:
    """No other messages are sent: no query, neither before round 1 nor later."""
    grid = ScriptedGrid(make_standard_app(), {}, K)
    FedAvg().start(grid, encode_arrays(MODEL), num_rounds=2)
    kinds = {kind for _, types in grid.exchanges for kind in types}
    assert kinds == {"train", "evaluate"}
