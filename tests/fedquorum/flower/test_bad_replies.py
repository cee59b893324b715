"""Generated bad replies to every strategy, thousands with ``--long``: none has any effect.

Two copies of a strategy run the same rounds. In one, some clients send broken replies; in the
other, the same clients fail. Models and states must agree to the last bit.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import (
    MIFA,
    AAggFFD,
    ComposedStrategy,
    FedALIGN,
    FedAU,
    NativeProtocol,
    Population,
    Robustness,
)
from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.errors import ProtocolError
from fedquorum.flower.codec import (
    PROTOCOL_VERSION,
    EvaluateResult,
    NamedArrays,
    Status,
    TrainResult,
    decode_arrays,
    decode_train_reply,
    encode_arrays,
    encode_evaluate_reply,
    encode_train_reply,
)
from fedquorum.registry import NAMED_STRATEGIES
from fedquorum.rules.types import AggregationWeights, ClientUpdates, FloatArray, RoundPlan
from fedquorum.rules.weighting import Weighting
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from conf.compose import compose_overrides
from server_app.engines.in_process import InProcessGrid
from server_app.runs.build import build_strategy
from tests.builders import NEEDED_WORDS
from tests.builders_flower import (
    ScriptedGrid,
    build_clipping_protocol,
    build_named_strategy,
    get_state_bytes,
)

NUM_CLIENTS = 60
MANY, SOME = 2000, 300
"""How many bad replies each strategy gets with ``--long``, and otherwise."""
PRIORITY = frozenset(range(0, NUM_CLIENTS, 3))
PAIRS = 5  # the last nodes host two clients each
MODEL: NamedArrays = {
    "w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3),
    "b": np.zeros(3, dtype=np.float32),
    "n": np.array(3, dtype=np.int64),
}


def list_hosted_clients() -> dict[int, tuple[int, ...]]:
    """Return each node's clients: one per node, two on the last nodes."""
    alone = NUM_CLIENTS - 2 * PAIRS
    nodes = {1 + client: (client,) for client in range(alone)}
    return nodes | {1 + alone + i: (alone + 2 * i, alone + 2 * i + 1) for i in range(PAIRS)}


def get_client_ids(message: Message) -> list[int]:
    clients = message.content.config_records["config"]["client-id"]
    assert isinstance(clients, list)
    return [int(k) for k in clients]


def make_nodes(hosted: Mapping[int, Sequence[int]] | None = None) -> ScriptedGrid:
    """Return nodes that host clients, by default those of ``hosts``, and evaluate the model."""
    hosted = hosted or list_hosted_clients()

    def reply(message: Message) -> Message | None:
        query = message.metadata.message_type == MessageType.QUERY
        return None if query else Message(make_evaluate_content(message), reply_to=message)

    return ScriptedGrid(ClientApp(), {}, len(hosted), hosted=hosted, reply=reply)


def make_evaluate_content(message: Message) -> RecordDict:
    return encode_evaluate_reply(
        [
            EvaluateResult(
                k,
                Status.DONE,
                num_examples=10.0 + k,
                loss=1.0 + k / 100,
                accuracy=0.5,
                test_num_examples=5.0,
                test_loss=1.0,
                test_accuracy=0.5,
            )
            for k in get_client_ids(message)
        ]
    )


def draw_train_result(client: int, rng: np.random.Generator) -> TrainResult:
    arrays: NamedArrays = {
        "w": MODEL["w"] + rng.normal(0, 0.1, (5, 3)).astype(np.float32),
        "b": rng.normal(0, 0.1, 3).astype(np.float32),
        "n": np.array(rng.integers(100)),
    }
    loss, accuracy = rng.uniform(0.9, 1.6), rng.uniform()
    return TrainResult(
        client,
        Status.DONE,
        num_examples=float(rng.integers(1, 99)),
        loss=loss,
        accuracy=accuracy,
        arrays=arrays,
    )


# --- defects of a reply ----------------------------------------------------------------------

Spoil = Callable[[Message, TrainResult, np.random.Generator], list[Message]]
BAD: dict[str, Spoil] = {}


def bad(spoil: Spoil) -> Spoil:
    BAD[spoil.__name__] = spoil
    return spoil


def one(message: Message, content: RecordDict) -> list[Message]:
    return [Message(content, reply_to=message)]


def with_array(message: Message, reply: TrainResult, name: str, array: Array) -> list[Message]:
    content = encode_train_reply([reply])
    record = content.array_records.get("arrays") or encode_arrays(MODEL)
    content["arrays"] = ArrayRecord({**record, name: array})
    return one(message, content)


def with_metrics(message: Message, reply: TrainResult, **changes: Any) -> list[Message]:
    content = encode_train_reply([reply])
    metrics: dict[str, Any] = dict(content.metric_records["metrics"])
    metrics |= {key.replace("_", "-"): value for key, value in changes.items()}
    kept = {key: value for key, value in metrics.items() if value is not None}
    content["metrics"] = MetricRecord(kept)
    return one(message, content)


@bad
def values(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    """Put a value that is not finite, or absurdly large, anywhere."""
    name = str(rng.choice(["w", "b"]))
    array = (reply.arrays or MODEL)[name].copy()
    wrong = [np.nan, np.inf, -np.inf, 3.4e38, -3e30, 1e16]
    array.reshape(-1)[rng.integers(array.size)] = rng.choice(wrong)
    return with_array(message, reply, name, Array(array))


@bad
def shapes(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    wrong: list[Any] = [(3, 5), (5,), (15,), (1, 5, 3), (0, 3), (), (5, 4), (500, 3)]
    shape = wrong[rng.integers(len(wrong))]
    return with_array(message, reply, "w", Array(np.ones(shape, dtype=np.float32)))


@bad
def dtypes(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    wrong = ["f8", "f2", ">f4", "i4", "u1", "?", "c8", "U3", "S3", "M8[s]", "V4", "i2,i2"]
    array = np.zeros((5, 3), dtype=wrong[rng.integers(len(wrong))])
    return with_array(message, reply, "w", Array(array))


@bad
def names(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    """Drop, add or misspell an array, or drop the record of arrays."""
    arrays = {**(reply.arrays or MODEL)}
    taken = arrays.pop(str(rng.choice(list(arrays))))
    kind = int(rng.integers(3))
    if kind == 1:
        arrays["W" * int(rng.integers(1, 9))] = taken
    elif kind == 2:
        arrays |= {**MODEL, "more": taken}
    content = encode_train_reply([replace(reply, arrays=arrays)])
    return one(message, content)


@bad
def corrupt_serialized_array(
    message: Message, reply: TrainResult, rng: np.random.Generator
) -> list[Message]:
    """Truncate an array's bytes, change their kind, or falsify their header."""
    good = Array((reply.arrays or MODEL)["w"])
    head, data = good.data[:128], good.data[128:]
    wrong = [
        b"",
        good.data[: int(rng.integers(1, len(good.data)))],
        rng.bytes(200),
        head.replace(b"NUMPY", b"PICKL") + data,
        head.replace(b"(5, 3)", b"(9, 9)") + data,
        head.replace(b"(5, 3)", b"(-1,3)") + data,
        head.replace(b"'<f4'", b"'|O' ") + data,
        head.replace(b"'<f4'", b"x()  ") + data,
        head.replace(b"{", b"(") + data,
        head[:6] + b"\x09\x09" + head[8:] + data,
        head[:8] + b"\xff\xff" + head[10:] + data,
    ]
    content = wrong[rng.integers(len(wrong))]
    stype = "numpy.ndarray" if rng.uniform() < 0.8 else "pickle"
    return with_array(message, reply, "w", Array("<f4", (5, 3), stype, content))


@bad
def num_examples(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    wrong: list[Any] = [0, -1, -(10**9), 10**13, 2**62, 0.5, 10.25, 1e300]
    wrong += [math.nan, math.inf, -math.inf, [5], [], None]
    return with_metrics(message, reply, num_examples=wrong[rng.integers(len(wrong))])


@bad
def losses(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    wrong: list[Any] = [math.nan, math.inf, -math.inf, -1.0, -1e-9, 1e300, 1e16, [1.0], [1.0, 2.0]]
    return with_metrics(message, reply, loss=wrong[rng.integers(len(wrong))])


@bad
def accuracies(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    wrong: list[Any] = [math.nan, math.inf, -0.5, 1.0001, 100.0, [0.5]]
    return with_metrics(message, reply, accuracy=wrong[rng.integers(len(wrong))])


@bad
def identities(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    """Use another client's id, an unknown id, no id, or the same id twice."""
    client = int(reply.client or 0)
    wrong: list[Any] = [(client + 1) % NUM_CLIENTS, -1, 2**40, float(client), math.nan, math.inf]
    wrong += [[], [client], [client, client]]
    return with_metrics(message, reply, client_id=wrong[rng.integers(len(wrong))])


@bad
def twice_in_one(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    return one(message, encode_train_reply([reply, reply]))


@bad
def statuses(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    wrong: list[Any] = [-1, 77, 0.5, math.nan, math.inf, 1e300, [0], []]
    return with_metrics(message, reply, status=wrong[rng.integers(len(wrong))])


@bad
def protocols(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    """Use another version, version 1, which has no number, or an invalid version."""
    wrong: list[Any] = [
        None,
        0,
        1,
        PROTOCOL_VERSION + 1,
        -1,
        2**40,
        0.5,
        math.nan,
        [PROTOCOL_VERSION],
        [],
    ]
    return with_metrics(message, reply, protocol=wrong[rng.integers(len(wrong))])


@bad
def records(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    """Send no records, no metrics, text instead of numbers, or records of the wrong kind."""
    content = encode_train_reply([reply])
    text = ConfigRecord({"num-examples": "ten", "loss": "low", "client-id": str(reply.client)})
    without = {name: record for name, record in content.items() if name != "metrics"}
    wrong = [
        RecordDict(),
        RecordDict(without),
        RecordDict({**without, "metrics": text}),
        RecordDict({**without, "metrics": encode_arrays(MODEL)}),
        RecordDict({"arrays": text, "metrics": MetricRecord({"loss": 1.0})}),
        RecordDict({**content, "metrics": MetricRecord()}),
    ]
    return one(message, wrong[rng.integers(len(wrong))])


@bad
def failures(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    """Report a failure with invalid reasons."""
    client = int(reply.client or 0)
    content = encode_train_reply([TrainResult(client, Status.FAILED, reason="x" * 10**4)])
    reasons: list[Any] = [3, "text", [1, 2], [b"\xff"], [], ["line\nline"]]
    ids: list[Any] = [client, [client], ["0"], [], [float(client), 1.5]]
    found = {"client-id": ids[rng.integers(len(ids))], "reason": reasons[rng.integers(6)]}
    content["failures"] = ConfigRecord(found)
    return one(message, content)


@bad
def envelopes(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    """Reply to another round, or to another message."""
    node, kind = message.metadata.dst_node_id, message.metadata.message_type
    groups = ["train 0", "train 9999", "evaluate 1", "", "train", "x" * 100]
    group = groups[rng.integers(len(groups))]
    other = Message(RecordDict(), node, kind, group_id=group)
    return [Message(encode_train_reply([reply]), reply_to=other)]


@bad
def add_oversized_record(
    message: Message, reply: TrainResult, rng: np.random.Generator
) -> list[Message]:
    content = encode_train_reply([reply])
    content["more"] = HEAVY
    return one(message, content)


@bad
def sums(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    """Send invalid sums: not finite, of other arrays, in no bin, or without a request."""
    update = {name: array.astype(np.float64) for name, array in MODEL.items()}
    low: NamedArrays = {name: np.zeros(array.shape) for name, array in MODEL.items()}
    wrong: list[NamedArrays] = [
        {**update, "w": np.full((5, 3), np.nan)},
        {**update, "w": np.full((5, 3), 1e200)},
        {**update, "w": np.zeros((3, 5))},
        {**update, "more": np.zeros(2)},
        {"w": update["w"]},
        MODEL,
        {},
    ]
    content = encode_train_reply([replace(reply, arrays=None)])
    content["weighted-sum"] = encode_arrays(wrong[rng.integers(len(wrong))])
    if rng.uniform() < 0.5:
        content["weighted-sum"] = encode_arrays(update)
        lows: list[NamedArrays] = [{}, {"w": low["w"]}, {**low, "w": np.full((5, 3), np.inf)}]
        bins: list[list[Any]] = [[], [0], [0.5] * len(low), [-(10**9)] * len(low), [2**62] * 2]
        if rng.uniform() < 0.5:
            content["weighted-sum-low"] = encode_arrays(lows[rng.integers(len(lows))])
            content["weighted-sum-bins"] = ConfigRecord({"bins": [0] * len(low)})
        else:
            content["weighted-sum-low"] = encode_arrays(low)
            content["weighted-sum-bins"] = ConfigRecord({"bins": bins[rng.integers(len(bins))]})
    if rng.uniform() < 0.3:
        content["arrays"] = encode_arrays(MODEL)
    return one(message, content)


@bad
def errors(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    return [Message(Error(int(rng.integers(100)), "y" * 2000), reply_to=message)]


@bad
def nothing(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    return []


HEAVY = ArrayRecord({"zeros": Array(np.zeros(300_000))})


# --- the strategies --------------------------------------------------------------------------


@dataclass(frozen=True)
class SquareRoots(Weighting[None]):
    """A user's rule that trusts its inputs: c_k follows from the roots of data and losses."""

    def init(self, population: Population) -> None:
        """Return an empty state."""

    def weigh(
        self, state: None, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[None, AggregationWeights]:
        """Return weights by the roots."""
        roots = admitted_fraction * np.sqrt(updates.num_examples * updates.loss)
        return None, AggregationWeights(roots / max(float(roots.sum()), 1e-300))


def build_strategy_by_name(name: str) -> ComposedStrategy:
    words = [f"strategy={name}", "rounds=50", "data.num_clients=60", "data.num_priority=20"]
    words += NEEDED_WORDS.get(name, ())
    if name == "composed":
        words += ["strategy/participation=fedau", "strategy.selection.epsilon=0.3"]
    if name == "fedalign":
        words += ["strategy.warmup_fraction=0.1", "strategy.epsilon=0.3"]
    if name == "custom":
        words.append(f"strategy.path={Path(__file__)}:SquareRoots")
    composed = compose_overrides(tuple(words))
    population = Population(tuple(range(NUM_CLIENTS)), PRIORITY)
    return build_strategy(composed, population, ParticipationRates(np.full(NUM_CLIENTS, 0.5)))


def make_replies(
    messages: Sequence[Message], server_round: int, *, spoilt: bool
) -> tuple[list[Message], dict[int, str]]:
    """Return the replies of a round, and the defect of each spoilt client.

    Good clients reply the same with ``spoilt`` and without; the others fail without it.
    """
    arriving: list[Message] = []
    broken: dict[int, str] = {}
    for message in messages:
        parts: list[TrainResult] = []
        for client in get_client_ids(message):
            rng = np.random.default_rng([server_round, client])
            reply = draw_train_result(client, rng)
            if rng.uniform() < 0.2 or (len(get_client_ids(message)) == 2 and client % 2):
                parts.append(reply)
                continue
            kind = str(rng.choice(sorted(BAD)))
            broken[client] = kind
            if not spoilt:
                parts.append(TrainResult(client, Status.FAILED, reason="fails"))
            elif len(get_client_ids(message)) == 2:
                parts.append(spoil_one_client(reply, rng))
            else:
                parts = []
                arriving.extend(BAD[kind](message, reply, rng))
        if parts:
            arriving.append(Message(encode_train_reply(parts), reply_to=message))
    return arriving, broken


def spoil_one_client(reply: TrainResult, rng: np.random.Generator) -> TrainResult:
    """Return a bad reply of a client whose node also has a good one."""
    if reply.arrays is None or rng.uniform() < 0.5:
        wrong: dict[str, Any] = {"num_examples": -1.0, "loss": math.nan, "accuracy": 2.0}
        field = str(rng.choice(sorted(wrong)))
        return replace(reply, **{field: wrong[field]})
    return replace(reply, arrays={**reply.arrays, "b": np.full(3, np.nan, dtype=np.float32)})


@pytest.fixture
def num_bad_replies(request: pytest.FixtureRequest) -> int:
    """Return the number of bad replies for a strategy."""
    return MANY if request.config.getoption("--long", default=False) else SOME


def assert_as_if_failed(
    spoilt: ComposedStrategy,
    reference: ComposedStrategy,
    models: Sequence[ArrayRecord],
    broken: Mapping[int, str],
) -> set[str]:
    """Assert that both rounds differ only in reasons; return the spoilt clients."""
    ours, theirs = (decode_arrays(model) for model in models)
    assert all(ours[key].tobytes() == theirs[key].tobytes() for key in MODEL)
    assert all(np.isfinite(array).all() for array in ours.values())
    assert get_state_bytes(spoilt) == get_state_bytes(reference)
    decisions = (strategy.step_result.report.decisions for strategy in (spoilt, reference))
    seen = set()
    for decision, other in zip(*decisions, strict=True):
        assert decision.weight == other.weight
        if decision.client in broken:
            seen.add(broken[decision.client])
            assert decision.status in ("rejected", "failed"), broken[decision.client]
            assert decision.reason
            assert len(decision.reason) < 1000
        else:
            assert decision == other
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*NAMED_STRATEGIES, "composed", "custom"}))
def test_bad_replies_have_no_effect(name: str, num_bad_replies: int) -> None:
    """Model, state and weights are as if the clients had failed; each has a reason."""
    grid = make_nodes()
    spoilt, reference = build_strategy_by_name(name), build_strategy_by_name(name)
    models = [encode_arrays(MODEL), encode_arrays(MODEL)]
    thrown = 0
    seen: set[str] = set()
    server_round = 0
    while thrown < num_bad_replies:
        server_round += 1
        for i, strategy in enumerate((spoilt, reference)):
            sent = list(strategy.configure_train(server_round, models[i], ConfigRecord(), grid))
            replies, broken = make_replies(sent, server_round, spoilt=strategy is spoilt)
            moved, _ = strategy.aggregate_train(server_round, replies)
            models[i] = moved or models[i]
            sent = list(strategy.configure_evaluate(server_round, models[i], ConfigRecord(), grid))
            strategy.aggregate_evaluate(server_round, grid.send_and_receive(sent))
        seen |= assert_as_if_failed(spoilt, reference, models, broken)
        thrown += len(broken)
    assert seen == set(BAD)
    print(f"\n{name}: {thrown} bad replies in {server_round} rounds")


# --- the same with standard apps ---------------------------------------------------------------

# Not a defect of a standard reply: numbers that no rule reads, and this project's records.
NOT_WRONG = {
    "accuracies",
    "identities",
    "protocols",
    "statuses",
    "failures",
    "sums",
    "twice_in_one",
    # Below: weights may be any finite number >= 0, and a reply may name no group.
    "num_examples",
    "envelopes",
}
STANDARD: dict[str, Spoil] = {k: spoil for k, spoil in BAD.items() if k not in NOT_WRONG}


def weights(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    wrong: list[Any] = [-1, -1e-9, math.nan, math.inf, -math.inf, [5], [], None]
    return with_metrics(message, reply, num_examples=wrong[rng.integers(len(wrong))])


def whole_numbers(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    """Change the kind of arrays; only floats of another precision are converted."""
    array = np.zeros((5, 3), dtype=str(rng.choice(["i4", "u1", "?", "c8", "U3", "V4"])))
    return with_array(message, reply, "w", Array(array))


def groups(message: Message, reply: TrainResult, rng: np.random.Generator) -> list[Message]:
    group = str(rng.choice(["train 0", "train 9999", "evaluate 1", "train"]))
    other = Message(RecordDict(), message.metadata.dst_node_id, MessageType.TRAIN, group_id=group)
    return [Message(encode_train_reply([reply]), reply_to=other)]


STANDARD |= {"weights": weights, "dtypes": whole_numbers, "groups": groups}


def to_standard_content(content: RecordDict) -> RecordDict:
    """Return a reply without the metrics that a standard ClientApp does not report."""
    records = dict(content)
    if isinstance(records.get("metrics"), MetricRecord):
        metrics: dict[str, Any] = dict(content.metric_records["metrics"])
        kept = {k: v for k, v in metrics.items() if k in ("num-examples", "loss", "accuracy")}
        records["metrics"] = MetricRecord(kept)
    return RecordDict(records)


def make_standard_replies(
    messages: Sequence[Message], server_round: int, kinds: Sequence[str], *, spoilt: bool
) -> tuple[list[Message], dict[int, str]]:
    """Return the replies of nodes with one client each, and the defect of each spoilt one."""
    arriving: list[Message] = []
    broken: dict[int, str] = {}
    for message in messages:
        client = message.metadata.dst_node_id - 1
        rng = np.random.default_rng([server_round, client])
        reply = replace(draw_train_result(client, rng), accuracy=rng.uniform(0, 100))
        if rng.uniform() < 0.2:
            sent = [Message(encode_train_reply([reply]), reply_to=message)]
        else:
            broken[client] = str(rng.choice(kinds))
            sent = [Message(Error(1, "fails"), reply_to=message)]
            if spoilt:
                sent = STANDARD[broken[client]](message, reply, rng)
        for arrived in sent:
            if arrived.has_content():
                arrived.content = to_standard_content(arrived.content)
        arriving.extend(sent)
    return arriving, broken


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        FedAU,
        MIFA,
        AAggFFD,
        partial(FedALIGN, priority=[0, 1, 2], num_rounds=50, warmup_rounds=0),
    ],
    ids=["FedAU", "MIFA", "AAggFFD", "FedALIGN"],
)
def test_bad_replies_of_standard_apps_have_no_effect(
    make: Callable[..., ComposedStrategy], num_bad_replies: int
) -> None:
    """Model and state of a drop-in strategy are as if the nodes had failed; each has a reason."""
    grid = InProcessGrid(ClientApp(), {}, NUM_CLIENTS)
    options = {"max_reply_bytes": 10**6}
    spoilt, reference = make(**options), make(**options)
    kinds = sorted(STANDARD.keys() - (set() if make is AAggFFD else {"losses"}))
    models = [encode_arrays(MODEL), encode_arrays(MODEL)]
    thrown, server_round = 0, 0
    seen: set[str] = set()
    while thrown < num_bad_replies:
        server_round += 1
        for i, strategy in enumerate((spoilt, reference)):
            sent = list(strategy.configure_train(server_round, models[i], ConfigRecord(), grid))
            replies, broken = make_standard_replies(
                sent, server_round, kinds, spoilt=strategy is spoilt
            )
            moved, _ = strategy.aggregate_train(server_round, replies)
            models[i] = moved or models[i]
        seen |= assert_as_if_failed(spoilt, reference, models, broken)
        thrown += len(broken)
    assert seen == set(kinds)


WRONG_MEASUREMENTS: list[dict[str, Any]] = [
    {"num-examples": 0},
    {"num-examples": math.nan},
    {"num-examples": 1e30},
    {"loss": -5.0},
    {"loss": -math.inf},
    {"accuracy": 7.0},
    {"test-accuracy": -1.0},
    {"test-loss": -0.1},
    {"test-num-examples": 1e300},
    {"test-num-examples": -4},
    {"test-metric": 1.5},
    {"client-id": -1},
    {"client-id": math.nan},
    {"status": 9},
    {"loss": [1.0, 2.0]},
]


@pytest.mark.parametrize("name", ["fedalign", "aaggff_s"])
@pytest.mark.slow
def test_bad_evaluations_have_no_effect(name: str) -> None:
    """A bad evaluation is left out of F(w) and of the records, as if it had not arrived."""
    grid = make_nodes()
    strategies = build_strategy_by_name(name), build_strategy_by_name(name)
    for server_round in range(1, 16):
        for strategy in strategies:
            model = encode_arrays(MODEL)
            sent = list(strategy.configure_train(server_round, model, ConfigRecord(), grid))
            replies, _ = make_replies(sent, server_round, spoilt=False)
            strategy.aggregate_train(server_round, replies)
            messages = strategy.configure_evaluate(server_round, model, ConfigRecord(), grid)
            arriving: list[Message] = []
            for message in messages:
                content = make_evaluate_content(message)
                if (
                    len(get_client_ids(message)) == 1
                    and (get_client_ids(message)[0] + server_round) % 2
                ):
                    if strategy is strategies[1]:
                        continue
                    wrong = WRONG_MEASUREMENTS[(get_client_ids(message)[0] + 7 * server_round) % 15]
                    metrics: dict[str, Any] = {**content.metric_records["metrics"], **wrong}
                    content["metrics"] = MetricRecord(metrics)
                arriving.append(Message(content, reply_to=message))
            strategy.aggregate_evaluate(server_round, arriving)
        assert get_state_bytes(strategies[0]) == get_state_bytes(strategies[1])
        assert strategies[0].step_result.evaluations == strategies[1].step_result.evaluations


@pytest.mark.slow
def test_a_corrupt_array_raises_only_protocol_errors() -> None:
    """An array with any flipped bits is either read or raises ProtocolError."""
    rng = np.random.default_rng(8)
    good = encode_train_reply([draw_train_result(0, rng)])
    unreadable = 0
    for _ in range(3000):
        array = good.array_records["arrays"]["w"]
        data = bytearray(array.data)
        for position in rng.integers(0, 128, size=rng.integers(1, 4)):
            data[position] = rng.integers(256)
        content = RecordDict({**good})
        spoilt = Array(array.dtype, array.shape, array.stype, bytes(data))
        content["arrays"] = ArrayRecord({**good.array_records["arrays"], "w": spoilt})
        try:
            decode_train_reply(content)
        except ProtocolError:
            unreadable += 1
    assert unreadable > 1000


@pytest.mark.parametrize("name", ["aaggff_s", "aaggff_d", "qfedavg", "term", "propfair", "afl"])
def test_a_missing_required_loss_rejects_the_reply(name: str) -> None:
    """A reply without a required loss is rejected, and the run continues even without another."""
    strategy = build_strategy_by_name(name)
    grid = make_nodes()
    sent = list(strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid))
    reply = draw_train_result(0, np.random.default_rng(1))
    content = encode_train_reply([replace(reply, loss=None)])
    moved, _ = strategy.aggregate_train(1, [Message(content, reply_to=sent[0])])
    assert moved is None
    assert strategy.step_result.report.decisions[0].reason == "loss is missing"


# --- duplicate replies, and bounds -------------------------------------------------------------


def play(
    strategy: ComposedStrategy, change: Callable[[list[Message]], list[Message]]
) -> NamedArrays:
    """Run one round of good replies; ``change`` may tamper with them."""
    grid = make_nodes()
    sent = list(strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid))
    replies = [
        Message(
            encode_train_reply(
                [draw_train_result(k, np.random.default_rng(k)) for k in get_client_ids(message)]
            ),
            reply_to=message,
        )
        for message in sent
    ]
    moved, _ = strategy.aggregate_train(1, change(replies))
    return decode_arrays(moved or encode_arrays(MODEL))


def make_population() -> Population:
    return Population(tuple(range(NUM_CLIENTS)), PRIORITY)


def make_second_reply(reply: Message, client: int, *, group: str | None = None) -> Message:
    """Return another reply of the same node, with a large update."""
    sent = reply.metadata
    request = Message(
        RecordDict(), sent.src_node_id, sent.message_type, group_id=group or sent.group_id
    )
    arrays = {**MODEL, "w": MODEL["w"] + np.float32(100)}
    far = TrainResult(client, Status.DONE, num_examples=50.0, loss=1.0, accuracy=0.5, arrays=arrays)
    return Message(encode_train_reply([far]), reply_to=request)


def test_a_second_reply_is_ignored_and_logged() -> None:
    """The first reply counts, whatever the second says; the audit trail notes it."""
    once, twice = (
        build_named_strategy("fedavg", make_population()),
        build_named_strategy("fedavg", make_population()),
    )
    expected = play(once, lambda replies: replies)
    got = play(twice, lambda replies: [*replies, make_second_reply(replies[4], 4)])
    assert all(got[name].tobytes() == expected[name].tobytes() for name in MODEL)
    assert twice.step_result.report.decisions[4].reason == "a second reply was ignored"
    assert (
        twice.step_result.report.decisions[4].weight == once.step_result.report.decisions[4].weight
    )


@pytest.mark.parametrize("late_first", [True, False])
def test_a_reply_for_another_round_does_not_block_the_right_one(*, late_first: bool) -> None:
    """A node that sends a late reply and then the right one counts with the right one."""

    def change(replies: list[Message]) -> list[Message]:
        late = make_second_reply(replies[4], 4, group="train 7")
        return [late, *replies] if late_first else [*replies, late]

    expected = play(build_named_strategy("fedavg", make_population()), lambda replies: replies)
    strategy = build_named_strategy("fedavg", make_population())
    got = play(strategy, change)
    assert all(got[name].tobytes() == expected[name].tobytes() for name in MODEL)
    assert strategy.step_result.report.decisions[4].status == "trained"


@pytest.mark.parametrize("name", ["fedavg", "fedvarp", "fedmgda"])
def test_clipped_updates(name: str) -> None:
    """No update is longer than ``clip_norm``; counters and shorter updates stay unchanged."""
    bound = 0.25
    strategy = build_named_strategy(name, 1, communication=build_clipping_protocol(bound))
    grid = make_nodes({1: (0,)})
    for reply, note in ((0.01, None), (1.0, "clipped to 0.25")):
        (message,) = strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid)
        arrays = {**MODEL, "w": MODEL["w"] + np.float32(reply), "n": np.array(9)}
        content = encode_train_reply(
            [TrainResult(0, Status.DONE, num_examples=1.0, loss=1.0, arrays=arrays)]
        )
        moved, _ = strategy.aggregate_train(1, [Message(content, reply_to=message)])
        assert moved is not None
        got = decode_arrays(moved)
        (decision,) = strategy.step_result.report.decisions
        assert note in (decision.reason, str(decision.reason)[-len(str(note)) :])
        if name != "fedmgda":  # which normalizes every update anyway
            length = float(np.linalg.norm(got["w"] - MODEL["w"]))
            assert length == pytest.approx(min(reply * math.sqrt(15), bound), rel=1e-4)
            assert got["n"] == 9


def test_capped_weights() -> None:
    """No weight exceeds ``max_weight``; other weights stay, and the audit trail has a note."""
    plain = build_named_strategy("fedavg", make_population())
    bounded = NativeProtocol(robustness=Robustness(max_weight=0.02))
    capped = build_named_strategy("fedavg", make_population(), communication=bounded)
    expected, got = (play(strategy, lambda replies: replies) for strategy in (plain, capped))
    weights = [[d.weight for d in s.step_result.report.decisions] for s in (plain, capped)]
    assert max(weights[0]) > 0.02
    assert weights[1] == [min(weight, 0.02) for weight in weights[0]]
    reasons = [d.reason for d in capped.step_result.report.decisions if d.reason is not None]
    assert len(reasons) == sum(weight > 0.02 for weight in weights[0])
    assert all(str(reason).endswith("capped at 0.02") for reason in reasons)
    assert not np.array_equal(expected["w"], got["w"])


def test_a_model_that_would_overflow_stays() -> None:
    """Finite updates whose sum overflows the model's dtype make an empty round with a reason."""
    model: NamedArrays = {"w": np.full(3, 6e4, dtype=np.float16)}
    strategy = build_named_strategy("fedavg", 1, server_lr=3.0)
    (message,) = strategy.configure_train(
        1, encode_arrays(model), ConfigRecord(), make_nodes({1: (0,)})
    )
    arrays: NamedArrays = {"w": np.full(3, 6.5e4, dtype=np.float16)}
    content = encode_train_reply(
        [TrainResult(0, Status.DONE, num_examples=1.0, loss=1.0, arrays=arrays)]
    )
    moved, _ = strategy.aggregate_train(1, [Message(content, reply_to=message)])
    assert moved is None
    (decision,) = strategy.step_result.report.decisions
    assert (decision.status, decision.weight) == ("rejected", 0.0)
    assert decision.reason == "the model would not be finite"
