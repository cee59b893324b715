"""Builders of the Flower side's tests: strategies, ClientApps, grids, messages and replies.

The model of most tests is ``MODEL``, one array of three numbers: its first number shows a step.
"""

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import fedquorum
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fedquorum import ComposedStrategy, Population, Robustness
from fedquorum.flower.codec import (
    EvaluateResult,
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    add_response_times,
    decode_arrays,
    decode_evaluate_request,
    decode_selected_clients,
    decode_start_models,
    decode_train_request,
    encode_arrays,
    encode_evaluate_reply,
    encode_hosted_clients,
    encode_train_reply,
    is_inquiry,
)
from fedquorum.flower.nodes import compute_fingerprint
from fedquorum.flower.protocol import NativeProtocol
from fedquorum.flower.strategies import DropInStrategy
from fedquorum.registry import build_rules
from fedquorum.rules.decisions import RoundReport
from fedquorum.rules.rule import RunContext
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)
from flwr.superlink.grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from numpy.typing import NDArray

from client_app.node.node import compute_hosted_clients
from server_app.engines.in_process import InProcessGrid

MODEL: NamedArrays = {"w": np.array([1.0, -2.0, 0.5], dtype=np.float32)}
LOSSES = (1.0, 1.1, 1.3, 5.0)
"""What the clients of ``make_standard_app`` report, by partition, over and over."""

Script = Callable[[int, TrainTask, NamedArrays], TrainResult]
Change = Callable[[list[Message]], Iterable[Message]]
Nodes = Collection[int] | Mapping[int, Collection[int]]
"""Some nodes in every round, or by round."""


# --- strategies ----------------------------------------------------------------------------


def build_named_strategy(
    name: str,
    population: Population | int,
    *,
    communication: NativeProtocol | None = None,
    num_rounds: int = 10,
    seed: int = 0,
    rates: Mapping[int, float] | None = None,
    optimizer: str = "sgd",
    **options: Any,
) -> ComposedStrategy:
    """Return a named strategy of a population, or of this many clients, all with priority."""
    if isinstance(population, int):
        population = Population.from_size(population)
    facts = RunContext(num_rounds, seed, rates, population.clients, priority=population.priority)
    rules = build_rules({"name": name, **options}, {"name": optimizer}, facts)
    return ComposedStrategy(rules, population=population, communication=communication)


def build_fedalign(num_clients: int, priority: Collection[int], **options: Any) -> ComposedStrategy:
    """Return FedALIGN of 10 rounds without a warm-up."""
    population = Population.from_size(num_clients, priority)
    return build_named_strategy("fedalign", population, **{"warmup_fraction": 0.0, **options})


def build_clipping_protocol(clip_norm: float) -> NativeProtocol:
    """Return the project's protocol with bounded updates."""
    return NativeProtocol(robustness=Robustness(clip_norm=clip_norm))


RATES = dict.fromkeys(range(4), 0.5)
GATE: dict[str, Any] = {"priority": [0, 1], "num_rounds": 3}
DROP_INS: dict[str, Callable[..., DropInStrategy]] = {
    name: getattr(fedquorum, name)
    for name in fedquorum.__all__
    if inspect.isclass(getattr(fedquorum, name))
    and issubclass(getattr(fedquorum, name), DropInStrategy)
}
NEEDED: Mapping[str, dict[str, Any]] = {
    "FedALIGN": GATE,
    "FedGP": {"priority": [0, 1]},
    "KnownStatistics": {"probabilities": RATES},
    "MaxFL": {"requirement": 1.0},
}


def drop_in(name: str, **options: Any) -> DropInStrategy:
    """Return a strategy with only its required keywords."""
    return DROP_INS[name](**{**NEEDED.get(name, {}), **options})


WRAPPERS: dict[str, Callable[..., Any]] = {
    "fixed server": DifferentialPrivacyServerSideFixedClipping,
    "fixed client": DifferentialPrivacyClientSideFixedClipping,
    "adaptive server": DifferentialPrivacyServerSideAdaptiveClipping,
    "adaptive client": DifferentialPrivacyClientSideAdaptiveClipping,
}


def wrap_strategy(
    kind: str, strategy: Strategy, *, norm: float = 0.01, noise: float = 1e-9
) -> Strategy:
    """Return one of Flower's four wrappers for 4 clients, by default with hardly any noise."""
    options: dict[str, Any] = {"noise_multiplier": noise, "num_sampled_clients": 4}
    if kind.startswith("adaptive"):
        options |= {"initial_clipping_norm": norm, "clipped_count_stddev": noise}
    else:
        options |= {"clipping_norm": norm}
    private: Strategy = WRAPPERS[kind](strategy, **options)
    return private


# --- results and replies -------------------------------------------------------------------


def make_train_result(
    client: int, by: float, *, examples: float = 10, loss: float = 1.0
) -> TrainResult:
    """Return the result of a client that trained and added ``by`` to every weight of MODEL."""
    arrays: NamedArrays = {"w": (MODEL["w"] + np.float32(by)).astype(np.float32)}
    return TrainResult(
        client, Status.DONE, num_examples=examples, loss=loss, accuracy=0.5, arrays=arrays
    )


def request_of(reply: Message, *, group: str | None = None) -> Message:
    """Return the message to which a node replied, maybe with another group."""
    sent = reply.metadata
    group = sent.group_id if group is None else group
    return Message(RecordDict(), sent.src_node_id, sent.message_type, group_id=group)


def make_standard_reply(
    message: Message,
    arrays: Mapping[str, NDArray[Any]] | None,
    metrics: Mapping[str, Any],
    *,
    records: tuple[str, str] = ("arrays", "metrics"),
) -> Message:
    """Return a reply in Flower's standard form."""
    content = RecordDict({records[1]: MetricRecord(dict(metrics))})
    if arrays is not None:
        content[records[0]] = encode_arrays(arrays)
    return Message(content, reply_to=message)


# --- ClientApps ----------------------------------------------------------------------------


def make_scripted_app(
    num_clients: int,
    fit: Script,
    losses: Mapping[int, float] | None = None,
    get_seconds: Callable[[int, int], float] | None = None,
    num_test_examples: float = math.nan,
) -> ClientApp:
    """Return an app of this project's protocol: clients train by ``fit`` and report ``losses``.

    ``get_seconds`` gives the response time of a client that is asked in a round, and
    ``num_test_examples`` the size of its test split.
    """
    app = ClientApp()

    def list_hosted(context: Context) -> Sequence[int]:
        return compute_hosted_clients(dict(context.node_config), num_clients)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(encode_hosted_clients(list_hosted(context)), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if get_seconds is not None and is_inquiry(message.content):
            number, asked = decode_selected_clients(message.content, list_hosted(context))
            reply = encode_train_reply([TrainResult(k, Status.DONE) for k in asked])
            times = {k: get_seconds(k, number) for k in asked}
            return Message(add_response_times(reply, times), reply_to=message)
        arrays, tasks = decode_train_request(message.content, list_hosted(context))
        starts = decode_start_models(message.content, tasks)
        answers = [fit(task.client, task, starts.get(task.client, arrays)) for task in tasks]
        return Message(encode_train_reply(answers), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        _, tasks = decode_evaluate_request(message.content, list_hosted(context))
        answers = []
        for task in tasks:
            numbers: dict[str, Any] = {"num_examples": 10.0, "test_loss": 1.0, "test_accuracy": 0.5}
            numbers["test_num_examples"] = num_test_examples
            if task.train:
                numbers |= {"loss": (losses or {}).get(task.client, 1.0), "accuracy": 0.5}
            answers.append(EvaluateResult(task.client, Status.DONE, **numbers))
        return Message(encode_evaluate_reply(answers), reply_to=message)

    return app


def make_standard_app(
    metrics: Callable[[int], dict[str, Any]] | None = None,
    *,
    records: tuple[str, str] = ("arrays", "metrics"),
    sent: tuple[str, str] = ("arrays", "config"),
    seen: list[ConfigRecord] | None = None,
    by: Callable[[int], float] = lambda client: client + 1.0,
    names: Collection[str] | None = None,
    dtype: str | None = None,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Return an app as in Flower's quickstart; a client is its partition-id.

    Parameters
    ----------
    metrics : callable, optional
        The metrics that a client reports after training.
    records : tuple of str
        The names of the reply's records.
    sent : tuple of str
        The names of the records that the app expects, and no others.
    seen : list, optional
        Gets a copy of every config.
    by : callable
        The number that a client adds to every number of the model.
    names : collection of str, optional
        The arrays in the reply, all by default.
    dtype : str, optional
        The dtype of the arrays in the reply, the model's by default.
    mods : sequence of Mod
    """
    app = ClientApp(mods=[*mods])

    def config_of(message: Message) -> None:
        config = message.content[sent[1]]
        assert isinstance(config, ConfigRecord)
        if seen is not None:
            seen.append(ConfigRecord(dict(config)))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        arrays = message.content[sent[0]]
        assert isinstance(arrays, ArrayRecord)
        assert len(message.content) == 2
        config_of(message)
        updated = {
            name: (array + np.float32(by(client))).astype(dtype or array.dtype)
            for name, array in decode_arrays(arrays).items()
            if names is None or name in names
        }
        default: dict[str, Any] = {"num-examples": 10, "loss": LOSSES[client % len(LOSSES)]}
        reported = metrics(client) if metrics else default
        return make_standard_reply(message, updated, reported, records=records)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        config_of(message)
        reported: dict[str, Any] = {
            "num-examples": 5 * (client + 1),
            "eval_loss": LOSSES[client % len(LOSSES)],
            "eval_acc": 0.5,
        }
        return Message(RecordDict({records[1]: MetricRecord(reported)}), reply_to=message)

    return app


# --- grids ---------------------------------------------------------------------------------


def make_grid(app: ClientApp, nodes: int) -> InProcessGrid:
    """Return ``nodes`` nodes that are always connected."""
    return InProcessGrid(app, {}, nodes)


def read_kind_and_round(message: Message) -> tuple[str, int]:
    """Return a message's type and round, as "train" and 3; round 0 if it has none."""
    kind, _, number = message.metadata.group_id.partition(" ")
    return kind, int(number or 0)


class ScriptedGrid(InProcessGrid):
    """Nodes 1 to ``count`` that follow a script, and store the messages that they receive.

    A test may change all parts of the script during a run. ``server_round`` is the round of the
    last train message, unless the test sets it; it selects the script's entries by round.

    Parameters
    ----------
    app, run_config, count
        As in ``InProcessGrid``.
    there : collection of int, optional
        The connected nodes, listed in descending order; all by default, ascending. They may
        include other nodes than the grid's.
    then : mapping
        The nodes that are connected once a message of a group, such as "train 3", was sent.
    arriving : bool
        Whether one more node connects at each look.
    away : collection of int, or by round
        Nodes that are not connected.
    mute : collection of int, or by round
        Nodes whose replies cannot be fetched while they are mute.
    failing : mapping
        By round, the nodes that fail to train, and their errors.
    hosted : mapping, optional
        The clients that each node claims; by default the app's reply.
    reply : callable, optional
        Makes the reply to a message; None leaves it to the script and the app.

    Attributes
    ----------
    looks : int
        Number of look-ups of the connected nodes.
    messages : list of Message
        All sent messages, in order.
    exchanges : list
        The timeout of every exchange, and the types of its messages.
    """

    def __init__(
        self,
        app: ClientApp,
        run_config: Mapping[str, Any],
        count: int,
        *,
        there: Iterable[int] | None = None,
        then: Mapping[str, Iterable[int]] | None = None,
        arriving: bool = False,
        away: Nodes = (),
        mute: Nodes = (),
        failing: Mapping[int, Mapping[int, str]] | None = None,
        hosted: Mapping[int, Sequence[int]] | None = None,
        reply: Callable[[Message], Message | None] = lambda message: None,
    ) -> None:
        super().__init__(app, run_config, count)
        self.there, self.then, self.arriving = there, then or {}, arriving
        self.away, self.mute, self.failing = away, mute, failing or {}
        self.hosted, self.reply = hosted, reply
        self.server_round = 1
        self.looks = 0
        self.messages: list[Message] = []
        self.exchanges: list[tuple[float | None, list[str]]] = []

    def _select_current(self, nodes: Nodes) -> Collection[int]:
        return nodes.get(self.server_round, ()) if isinstance(nodes, Mapping) else nodes

    def get_node_ids(self) -> Iterable[int]:
        self.looks += 1
        known = super().get_node_ids() if self.there is None else sorted(self.there, reverse=True)
        nodes = [node for node in known if node not in self._select_current(self.away)]
        return nodes[: self.looks] if self.arriving else nodes

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        given = list(messages)
        self.exchanges.append((timeout, [m.metadata.message_type for m in given]))
        return super().send_and_receive(given, timeout=timeout)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        mute = self._select_current(self.mute)
        made = {key: reply.metadata.src_node_id for key, reply in self._replies.items()}
        return super().pull_messages(key for key in message_ids if made.get(key) not in mute)

    def _handle(self, message: Message) -> Message:
        self.messages.append(message)
        (kind, server_round), node = read_kind_and_round(message), message.metadata.dst_node_id
        if kind == MessageType.TRAIN:
            self.server_round = server_round
        self.there = self.then.get(message.metadata.group_id, self.there)
        reply = self.reply(message)
        if reply is not None:
            return reply
        error = self.failing.get(server_round, {}).get(node)
        if kind == MessageType.TRAIN and error is not None:
            return Message(Error(1, error), reply_to=message)
        if self.hosted is not None and message.metadata.message_type == MessageType.QUERY:
            return Message(encode_hosted_clients(self.hosted[node]), reply_to=message)
        return super()._handle(message)

    @property
    def kinds(self) -> list[str]:
        """The type of every message, in its order."""
        return [message.metadata.message_type for message in self.messages]

    @property
    def sent(self) -> list[tuple[str, dict[str, Any]]]:
        """The type and the config of every message, in its order."""
        configs = [message.content.config_records.values() for message in self.messages]
        merged = [{k: v for config in of_one for k, v in config.items()} for of_one in configs]
        return list(zip(self.kinds, merged, strict=True))

    def get_round_configs(self, message_type: str, server_round: int) -> list[dict[str, Any]]:
        """Return the configs of a round's messages."""
        return [
            config
            for kind, config in self.sent
            if kind == message_type and config.get("server-round") == server_round
        ]


class KeyedGrid(ScriptedGrid):
    """Nodes 1, 2, ... with a key each, which claim the given clients.

    Without ``keyed`` they have no keys, as in a simulation. ``labels`` has the names of nodes.
    """

    def __init__(self, claims: Sequence[Sequence[int]], app: ClientApp | None = None) -> None:
        self.claims = dict(enumerate(claims, 1))
        super().__init__(app or ClientApp(), {}, len(claims), hosted=self.claims)
        self.labels: Mapping[int, str] = {}
        self.keyed = True
        self.keys = {node: ec.generate_private_key(ec.SECP384R1()) for node in self.claims}

    @property
    def queries(self) -> list[int]:
        """The nodes that were queried for their clients."""
        return [message.metadata.dst_node_id for message in self.messages]

    def get_nodes(self) -> Iterable[NodeInfo]:
        if not self.keyed:
            return [NodeInfo(node_id=node) for node in self.get_node_ids()]
        form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return [
            NodeInfo(
                node_id=node,
                public_key=self.keys[node].public_key().public_bytes(*form),
                name=self.labels.get(node, ""),
            )
            for node in self.get_node_ids()
        ]

    def get_fingerprint(self, node: int) -> str:
        """Return the fingerprint of a node's key."""
        return compute_fingerprint(self.keys[node].public_key())

    def group_by_key(self, clients: Mapping[int, set[int]]) -> dict[str, frozenset[int]]:
        """Return clients by their nodes' keys."""
        return {self.get_fingerprint(node): frozenset(of_node) for node, of_node in clients.items()}


def make_simulation_grid(app: ClientApp, nodes: int) -> InMemoryGrid:
    """Return nodes on a grid that poses as Flower's simulation grid."""

    class Simulated(InMemoryGrid):
        def __init__(self) -> None:
            self.inner = make_grid(app, nodes)

        def __getattribute__(self, name: str) -> Any:
            if name in ("inner", "__class__"):
                return object.__getattribute__(self, name)
            return getattr(self.inner, name)

    return Simulated()


def make_deployment_grid(inner: KeyedGrid) -> HttpGrid:
    """Return nodes on a grid that poses as Flower's connection to a SuperLink."""

    class Deployed(HttpGrid):
        def __init__(self) -> None:
            self.inner = inner

        def __getattribute__(self, name: str) -> Any:
            if name in ("inner", "__class__", "__del__"):
                return object.__getattribute__(self, name)
            return getattr(self.inner, name)

        def __del__(self) -> None:
            """Close nothing: there is no connection."""

    return Deployed()


# --- rounds --------------------------------------------------------------------------------


def train_round(
    strategy: Strategy,
    grid: Grid,
    server_round: int = 1,
    model: ArrayRecord | None = None,
    *,
    change: Change = lambda replies: replies,
) -> ArrayRecord | None:
    """Train once as Flower's loop does; ``change`` may tamper with the replies."""
    arrays = encode_arrays(MODEL) if model is None else model
    messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    combined, _ = strategy.aggregate_train(server_round, change(replies))
    return combined


def evaluate_round(
    strategy: Strategy, grid: InProcessGrid, server_round: int, model: ArrayRecord
) -> MetricRecord | None:
    """Evaluate once as Flower's loop does."""
    messages = strategy.configure_evaluate(server_round, model, ConfigRecord(), grid)
    return strategy.aggregate_evaluate(server_round, grid.send_and_receive(messages))


def run_first_round(
    strategy: ComposedStrategy,
    grid: InProcessGrid,
    *,
    change: Change = lambda replies: replies,
) -> tuple[NDArray[Any] | None, RoundReport]:
    """Run round 1 from MODEL, and F(w_0) before it if needed; return w and the report."""
    if strategy.needs_initial_evaluation:
        messages = strategy.configure_initial(encode_arrays(MODEL), grid)
        strategy.aggregate_initial(grid.send_and_receive(messages))
    arrays = train_round(strategy, grid, change=change)
    return None if arrays is None else decode_arrays(arrays)["w"], strategy.step_result.report


def collect_first_weights(
    strategy: ComposedStrategy, grid: InProcessGrid, rounds: int
) -> list[float]:
    """Train for some rounds; return the first number of the model after each."""
    arrays, path = encode_arrays(MODEL), []
    for server_round in range(1, rounds + 1):
        arrays = train_round(strategy, grid, server_round, arrays) or arrays
        path.append(float(decode_arrays(arrays)["w"][0]))
    return path


def get_state_bytes(strategy: ComposedStrategy) -> dict[str, bytes]:
    """Return the bytes of a strategy's state, to compare them to the last bit."""
    return {name: array.tobytes() for name, array in strategy.get_state().items()}
