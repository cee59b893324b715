"""Encode and decode requests: a message for a node, with one task for each of its clients."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from ...errors import ProtocolError
from ...intake import abbreviated
from ...types import Call, Objective, Proportions
from .arrays import NamedArrays, decode_arrays
from .keys import (
    ARRAYS,
    BY_DATA,
    CLIENT_ID,
    CLIPPING_NORM,
    CONFIG,
    CRITERION,
    EPSILON,
    GLOBAL_ACCURACY,
    GLOBAL_LOSS,
    KEEPS_MODEL,
    MEASURES_LOSS,
    OF_A_REQUEST,
    PRIORITY,
    PROPORTION,
    PROTOCOL_NUMBER,
    SERVER_ROUND,
    START,
    START_MODEL,
    TERMS,
    TEST_PART,
    TRAIN_PART,
)
from .kinds import records_of
from .number import PROTOCOL, check_request

UNKNOWN = Objective(math.nan, math.nan)
"""The objective if a request has none."""

TaskT = TypeVar("TaskT", "TrainTask", "EvaluateTask")


@dataclass(frozen=True)
class ToldStarts:
    """The distinct start models of a node's clients, and the index of each client's model."""

    models: tuple[ArrayRecord, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class TrainRequest:
    """A node's train request for one round; ``call.clients`` are the clients asked at this node.

    ``terms`` is the number of clients asked in the round, on all nodes. ``clipping_norm`` is set if
    clients clip their updates. ``starts`` is set if clients start from past models instead of the
    one broadcast.
    """

    server_round: int
    call: Call
    priority: tuple[bool, ...]
    objective: Objective
    proportions: Proportions | None = None
    terms: int = 1
    clipping_norm: float | None = None
    starts: ToldStarts | None = None


@dataclass(frozen=True)
class EvaluateRequest:
    """A node's evaluate request; ``train`` and ``test`` have an entry for each client."""

    server_round: int
    clients: tuple[int, ...]
    train: tuple[bool, ...]
    test: tuple[bool, ...]
    keeps_model: bool = False


@dataclass(frozen=True)
class TrainTask:
    """One client's task in one round of training.

    Parameters
    ----------
    client : int
        The client's id.
    server_round : int
        The round, from 1.
    priority : bool
        Whether the client has priority; the gate applies to the others.
    objective : Objective
        F(w_t) and its accuracy, as broadcast.
    epsilon : float, optional
        The gate's eps_t; None without a gate.
    criterion : {"loss", "accuracy"}
        The quantity that the gate compares.
    keeps_model : bool
        Whether the client trains a local model.
    measures : bool
        Whether the client reports loss and accuracy of the model that it receives.
    proportion : float, optional
        The client's proportion in a_k, if the node may sum the updates; otherwise None.
    by_data : bool
        Whether a_k is the proportion times the client's number of examples.
    terms : int
        Number of updates in the round's sum, on all nodes, which determines the sum's grid.
    clipping_norm : float, optional
        The norm to which the client clips its update; None if it does not clip.
    start : int
        Index of the request's model from which the client starts, see ``decode_start_models``.
    """

    client: int
    server_round: int
    priority: bool = True
    objective: Objective = UNKNOWN
    epsilon: float | None = None
    criterion: str = "loss"
    keeps_model: bool = False
    measures: bool = True
    proportion: float | None = None
    by_data: bool = False
    terms: int = 1
    clipping_norm: float | None = None
    start: int = 0

    @property
    def gated(self) -> bool:
        """Whether the round has a gate."""
        return self.epsilon is not None

    @property
    def measures_loss(self) -> bool:
        """Whether the client measures the model that it receives, for its report or the gate."""
        return self.gated or self.measures

    @property
    def in_sum(self) -> bool:
        """Whether the node may add the client's update to a sum."""
        return self.proportion is not None

    def factor(self, num_examples: float) -> float:
        """Return a_k, the factor of the client's update in its node's sum."""
        of_client = {} if self.proportion is None else {self.client: self.proportion}
        return Proportions(of_client, self.by_data).factor(self.client, num_examples)


@dataclass(frozen=True)
class EvaluateTask:
    """One client's task in an evaluation.

    Parameters
    ----------
    client : int
        The client's id.
    server_round : int
        The round, 0 before the first.
    train, test : bool
        Whether the client measures its training part, and its test part.
    keeps_model : bool
        Whether the client measures its local model.
    """

    client: int
    server_round: int = 0
    train: bool = True
    test: bool = True
    keeps_model: bool = False


# --- the server's side ---------------------------------------------------------------------


def encode_query() -> RecordDict:
    """Return the content of a query for the clients that a node hosts."""
    return RecordDict({CONFIG: ConfigRecord({PROTOCOL_NUMBER: PROTOCOL})})


def encode_train_request(arrays: ArrayRecord, request: TrainRequest) -> RecordDict:
    """Return the content of a train message."""
    call, clients = request.call, request.call.clients
    config: dict[str, Any] = {
        PROTOCOL_NUMBER: PROTOCOL,
        SERVER_ROUND: request.server_round,
        CLIENT_ID: list(clients),
        PRIORITY: list(request.priority),
        GLOBAL_LOSS: float(request.objective.loss),
        GLOBAL_ACCURACY: float(request.objective.accuracy),
    }
    if call.epsilon is not None:
        config |= {EPSILON: float(call.epsilon), CRITERION: call.criterion}
    if call.keeps_model:
        config[KEEPS_MODEL] = True
    if not call.measures_loss:
        config[MEASURES_LOSS] = False
    if request.proportions is not None and len(clients) > 1:
        config[PROPORTION] = [request.proportions.of(k) for k in clients]
        config[BY_DATA] = request.proportions.by_data
        config[TERMS] = request.terms
    if request.clipping_norm is not None:
        config[CLIPPING_NORM] = float(request.clipping_norm)
    models = (arrays,) if request.starts is None else request.starts.models
    if request.starts is None or len(models) == 1:
        return RecordDict({ARRAYS: models[0], CONFIG: ConfigRecord(config)})
    # Without the record of all other requests: an older node refuses, and does not train from it.
    config[START] = list(request.starts.places)
    starts = {START_MODEL.format(i): model for i, model in enumerate(models)}
    return RecordDict({**starts, CONFIG: ConfigRecord(config)})


def encode_evaluate_request(arrays: ArrayRecord, request: EvaluateRequest) -> RecordDict:
    """Return the content of an evaluate message."""
    config: dict[str, Any] = {
        PROTOCOL_NUMBER: PROTOCOL,
        SERVER_ROUND: request.server_round,
        CLIENT_ID: list(request.clients),
        TRAIN_PART: list(request.train),
        TEST_PART: list(request.test),
    }
    if request.keeps_model:
        config[KEEPS_MODEL] = True
    return RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(config)})


def add_user_config(content: RecordDict, extra: Mapping[str, Any]) -> None:
    """Add a user's config to a request.

    A user cannot set the keys of this project's protocol. In Flower's standard protocol only the
    round is reserved.
    """
    (config,) = records_of(content, ConfigRecord).values()
    ours = OF_A_REQUEST if PROTOCOL_NUMBER in config else {SERVER_ROUND}
    for key, value in extra.items():
        if key not in ours:
            config[key] = value


# --- the node's side -----------------------------------------------------------------------


def check_query(content: RecordDict) -> None:
    """Raise ProtocolError if the query comes from a server with another protocol."""
    check_request(records_of(content, ConfigRecord).get(CONFIG, {}))


def decode_train_request(
    content: RecordDict, hosted: Sequence[int]
) -> tuple[NamedArrays, tuple[TrainTask, ...]]:
    """Return the model, and the task of each client asked.

    If clients start from several models, the model is the first one, see ``decode_start_models``. A
    request without clients, as from Flower's own strategies, asks all clients of the node.

    Raises
    ------
    ProtocolError
        If the server uses another protocol, records are missing, there is no round, lists
        disagree, or a client is not ``hosted`` here.
    """
    return _decode_request(content, hosted, train_task_of)


def decode_start_models(content: RecordDict, tasks: Sequence[TrainTask]) -> dict[int, NamedArrays]:
    """Return the models of the clients that do not start from the first model, by client id.

    Raises
    ------
    ProtocolError
        If a client's model is missing, or the request also wants such clients' sum or local models.
    """
    arrays = records_of(content, ArrayRecord)
    others = [task for task in tasks if task.start != 0]
    if any(task.in_sum or task.keeps_model for task in others):
        raise ProtocolError(f"with '{START}' clients neither keep their models nor are summed")
    names = {task.start: START_MODEL.format(task.start) for task in others}
    for name in names.values():
        if name not in arrays:
            raise ProtocolError(f"the record '{name}' is missing, which '{START}' refers to")
    models = {place: decode_arrays(arrays[name]) for place, name in names.items()}
    return {task.client: models[task.start] for task in others}


def decode_evaluate_request(
    content: RecordDict, hosted: Sequence[int]
) -> tuple[NamedArrays, tuple[EvaluateTask, ...]]:
    """Return the model, and the evaluation task of each client asked.

    As in ``decode_train_request``, but a request of Flower's own strategies needs no round.
    """
    return _decode_request(content, hosted, evaluate_task_of)


def train_task_of(config: Mapping[str, Any], client: int) -> TrainTask:
    """Return a client's task from a config with one value for each key.

    Raises
    ------
    ProtocolError
        If there is no round.
    """
    return TrainTask(
        client=client,
        server_round=_round_in(config),
        priority=bool(config.get(PRIORITY, True)),
        objective=Objective(
            config.get(GLOBAL_LOSS, math.nan), config.get(GLOBAL_ACCURACY, math.nan)
        ),
        epsilon=config.get(EPSILON),
        criterion=config.get(CRITERION, "loss"),
        keeps_model=bool(config.get(KEEPS_MODEL, False)),
        measures=bool(config.get(MEASURES_LOSS, True)),
        proportion=config.get(PROPORTION),
        by_data=bool(config.get(BY_DATA, False)),
        terms=int(config.get(TERMS, 1)),
        clipping_norm=config.get(CLIPPING_NORM),
        start=int(config.get(START, 0)),
    )


def evaluate_task_of(config: Mapping[str, Any], client: int) -> EvaluateTask:
    """Return a client's evaluation task from a config with one value for each key."""
    return EvaluateTask(
        client=client,
        server_round=config.get(SERVER_ROUND, 0),
        train=bool(config.get(TRAIN_PART, True)),
        test=bool(config.get(TEST_PART, True)),
        keeps_model=bool(config.get(KEEPS_MODEL, False)),
    )


def decode_asked(content: RecordDict, hosted: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return the round of a train request, and which of the ``hosted`` clients it asks.

    Raises
    ------
    ProtocolError
        If the server uses another protocol, there is no round, or a client is not ``hosted`` here.
    """
    config: Mapping[str, Any] = records_of(content, ConfigRecord).get(CONFIG, {})
    check_request(config)
    return _round_in(config), _asked(config, hosted)


def select_clients(content: RecordDict, asked: Sequence[int], chosen: Sequence[int]) -> RecordDict:
    """Return a request reduced to the ``chosen`` clients, out of those ``asked`` in its order.

    The protocol's lists keep the values of the chosen clients; everything else stays the same.
    """
    place_of = {k: i for i, k in enumerate(asked)}
    places = [place_of[k] for k in chosen]
    config: dict[str, Any] = {
        key: [value[i] for i in places]
        if key in OF_A_REQUEST and isinstance(value, list)
        else value
        for key, value in records_of(content, ConfigRecord)[CONFIG].items()
    }
    config |= {PROTOCOL_NUMBER: PROTOCOL, CLIENT_ID: list(chosen)}
    return RecordDict({**content, CONFIG: ConfigRecord(config)})


def _decode_request(
    content: RecordDict,
    hosted: Sequence[int],
    task_of: Callable[[Mapping[str, Any], int], TaskT],
) -> tuple[NamedArrays, tuple[TaskT, ...]]:
    arrays, configs = records_of(content, ArrayRecord), records_of(content, ConfigRecord)
    model = arrays.get(ARRAYS, arrays.get(START_MODEL.format(0)))
    if model is None or CONFIG not in configs:
        raise ProtocolError(f"a request needs the records '{ARRAYS}' and '{CONFIG}'")
    config: Mapping[str, Any] = configs[CONFIG]
    check_request(config)
    clients = _asked(config, hosted)
    ours = {key: value for key, value in config.items() if key in OF_A_REQUEST}
    for key, value in ours.items():
        if isinstance(value, list) and len(value) != len(clients):
            raise ProtocolError(f"'{key}' must have one value for each of [{abbreviated(clients)}]")
    tasks = tuple(
        task_of({k: v[i] if isinstance(v, list) else v for k, v in ours.items()}, client)
        for i, client in enumerate(clients)
    )
    return decode_arrays(model), tasks


def _round_in(config: Mapping[str, Any]) -> int:
    server_round = config.get(SERVER_ROUND)
    if not isinstance(server_round, int) or server_round < 1:
        raise ProtocolError(
            f"'{SERVER_ROUND}' must be a whole number >= 1 in '{CONFIG}', got {server_round!r}"
        )
    return server_round


def _asked(config: Mapping[str, Any], hosted: Sequence[int]) -> tuple[int, ...]:
    named = config.get(CLIENT_ID)
    clients = tuple(hosted) if named is None else tuple(int(k) for k in named)
    # A range, as of a node of many clients, tells by arithmetic what is in it.
    members = hosted if isinstance(hosted, range) else frozenset(hosted)
    if foreign := sorted({k for k in clients if k not in members}):
        raise ProtocolError(
            f"clients [{abbreviated(foreign)}] are not on this node, which hosts "
            f"[{abbreviated(hosted)}]"
        )
    return clients
