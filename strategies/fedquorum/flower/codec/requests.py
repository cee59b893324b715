"""Encode and decode requests: a message for a node, with one task for each of its clients."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from ...errors import ProtocolError
from ...rules.types import KnownWeights, Objective, RoundPlan
from ...sanitize import abbreviate
from ...server.exact_sum import ExponentBins, SumBins, compute_bin_width
from ...server.fixed_bins import FixedBins
from ..secure.messages import VectorRequest
from .arrays import NamedArrays, decode_arrays, select_records, view_arrays
from .keys import (
    ARRAYS,
    ASKS_ONLY,
    BY_DATA,
    CLIENT_ID,
    CLIPPING_NORM,
    CONFIG,
    CRITERION,
    EPSILON,
    EXPONENTS,
    FINETUNE_EPOCHS,
    GLOBAL_ACCURACY,
    GLOBAL_LOSS,
    MASK_STATE,
    MEASURES_LOSS,
    NUM_TERMS,
    OF_EVALUATION,
    PRIORITY,
    PROPORTION,
    PROTOCOL_KEY,
    REQUEST_KEYS,
    SECURE_SUM_STEPS,
    SERVER_ROUND,
    START_INDEX,
    START_MODEL,
    START_ROUND,
    SUM_BINS,
    TEST_SPLIT,
    TRAIN_SPLIT,
)
from .secure import encode_summed_fields, encode_vector_request
from .version import PROTOCOL_VERSION, check_request

MISSING_OBJECTIVE = Objective(math.nan, math.nan)
"""The objective if a request has none."""

TaskT = TypeVar("TaskT", "TrainTask", "EvaluateTask")


@dataclass(frozen=True)
class NodeStartModels:
    """The distinct start models of a node's clients, and the index of each client's model."""

    models: tuple[ArrayRecord, ...]
    indices: tuple[int, ...]


@dataclass(frozen=True)
class TrainRequest:
    """A node's train request for one round; ``plan.clients`` are the clients selected at this node.

    ``num_terms`` is the number of clients selected in the round, on all nodes. ``clipping_norm`` is
    set if clients clip their updates. ``start_models`` is set if clients start from past models
    instead of the one broadcast. ``start_rounds`` is set if the clients were asked before: each
    trains as in that round. ``requires_sum`` demands the weighted sum even of one client, and
    ``fixed_bins`` has the bins of the sum if they are fixed before training. ``masking`` has the
    shares for this node if it masks its sum.
    """

    server_round: int
    plan: RoundPlan
    priority: tuple[bool, ...]
    objective: Objective
    known_weights: KnownWeights | None = None
    num_terms: int = 1
    clipping_norm: float | None = None
    start_models: NodeStartModels | None = None
    start_rounds: tuple[int, ...] | None = None
    requires_sum: bool = False
    fixed_bins: FixedBins | None = None
    masking: VectorRequest | None = None


@dataclass(frozen=True)
class EvaluateRequest:
    """A node's evaluate request; ``train`` and ``test`` have an entry for each client.

    With ``finetune_epochs`` each client first trains the model for that many epochs. ``masking``
    has the shares for this node if it masks its sum, over ``num_terms`` clients on all nodes,
    ``summed_fields`` the numbers in that sum, and ``by_data`` whether the clients' data weight it.
    """

    server_round: int
    clients: tuple[int, ...]
    train: tuple[bool, ...]
    test: tuple[bool, ...]
    finetune_epochs: int = 0
    masking: VectorRequest | None = None
    num_terms: int = 1
    summed_fields: frozenset[str] = frozenset()
    by_data: bool = False


@dataclass(frozen=True)
class TrainTask:
    """One client's task in one round of training.

    Parameters
    ----------
    client : int
    server_round : int
        The round as which the client trains, from 1: that in which it was asked.
    priority : bool
        Whether the client has priority; the gate applies to the others.
    objective : Objective
        F(w_t) and its accuracy, as broadcast.
    epsilon : float, optional
        The gate's eps_t; None without a gate.
    criterion : {"loss", "accuracy"}
        The quantity that the gate compares.
    requests_loss : bool
        Whether the client reports loss and accuracy of the model that it receives.
    known_weight : float, optional
        The client's proportion in a_k, if the node may sum the updates; otherwise None.
    by_data : bool
        Whether a_k is the proportion times the client's number of examples.
    num_terms : int
        Number of updates in the round's sum, on all nodes, which determines the sum's grid.
    clipping_norm : float, optional
        The norm to which the client clips its update; None if it does not clip.
    start_index : int
        Index of the request's model from which the client starts, see ``decode_start_models``.
    """

    client: int
    server_round: int
    priority: bool = True
    objective: Objective = MISSING_OBJECTIVE
    epsilon: float | None = None
    criterion: str = "loss"
    requests_loss: bool = True
    known_weight: float | None = None
    by_data: bool = False
    num_terms: int = 1
    clipping_norm: float | None = None
    start_index: int = 0

    @property
    def has_gate(self) -> bool:
        """Whether the round has a gate."""
        return self.epsilon is not None

    @property
    def needs_evaluation(self) -> bool:
        """Whether the client evaluates the model that it receives, for its report or the gate."""
        return self.has_gate or self.requests_loss

    @property
    def can_be_summed(self) -> bool:
        """Whether the node may add the client's update to a sum."""
        return self.known_weight is not None

    def compute_numerator(self, num_examples: float) -> float:
        """Return a_k, the factor of the client's update in its node's sum."""
        of_client = {} if self.known_weight is None else {self.client: self.known_weight}
        return KnownWeights(of_client, self.by_data).compute_numerator(self.client, num_examples)


@dataclass(frozen=True)
class EvaluateTask:
    """One client's task in an evaluation.

    Parameters
    ----------
    client : int
    server_round : int
        The round, 0 before the first.
    train, test : bool
        Whether the client evaluates its training split, and its test split.
    finetune_epochs : int
        Number of epochs for which the client trains the model on its own rows before it evaluates
        it; the trained model is then discarded.
    """

    client: int
    server_round: int = 0
    train: bool = True
    test: bool = True
    finetune_epochs: int = 0


# --- the server's side ---------------------------------------------------------------------


def encode_query() -> RecordDict:
    """Return the content of a query for the clients that a node hosts."""
    return RecordDict({CONFIG: ConfigRecord({PROTOCOL_KEY: PROTOCOL_VERSION})})


def encode_train_request(arrays: ArrayRecord, request: TrainRequest) -> RecordDict:
    """Return the content of a train message."""
    plan, clients = request.plan, request.plan.clients
    config: dict[str, Any] = {
        PROTOCOL_KEY: PROTOCOL_VERSION,
        SERVER_ROUND: request.server_round,
        CLIENT_ID: list(clients),
        PRIORITY: list(request.priority),
        GLOBAL_LOSS: float(request.objective.loss),
        GLOBAL_ACCURACY: float(request.objective.accuracy),
    }
    if plan.epsilon is not None:
        config |= {EPSILON: float(plan.epsilon), CRITERION: plan.criterion}
    if not plan.requests_loss:
        config[MEASURES_LOSS] = False
    records: dict[str, Any] = {}
    if request.known_weights is not None and (len(clients) > 1 or request.requires_sum):
        config[PROPORTION] = [request.known_weights.compute_numerator(k) for k in clients]
        config[BY_DATA] = request.known_weights.by_data
        config[NUM_TERMS] = request.num_terms
        if request.fixed_bins is not None:
            exponents = list(request.fixed_bins.exponents.values())
            records[SUM_BINS] = ConfigRecord({EXPONENTS: exponents})
    if request.masking is not None:
        records |= encode_vector_request(request.masking)
    if request.clipping_norm is not None:
        config[CLIPPING_NORM] = float(request.clipping_norm)
    if request.start_rounds is not None:
        config[START_ROUND] = list(request.start_rounds)
    models = (arrays,) if request.start_models is None else request.start_models.models
    if request.start_models is None or len(models) == 1:
        return RecordDict({ARRAYS: models[0], CONFIG: ConfigRecord(config), **records})
    # Without the usual record, an older node refuses instead of training from the wrong model.
    config[START_INDEX] = list(request.start_models.indices)
    starts = {START_MODEL.format(i): model for i, model in enumerate(models)}
    return RecordDict({**starts, CONFIG: ConfigRecord(config)})


def encode_inquiry(
    server_round: int,
    clients: Sequence[int],
    *,
    asked_before: bool = False,
    of_evaluation: bool = False,
) -> RecordDict:
    """Return the content of a train message that asks clients only whether they take part.

    It has no model: a client trains when it is asked again, as in this round. Its reply has the
    status of each client, and its response time. With ``asked_before`` the clients have said that
    they take part, and the message has another purpose; with ``of_evaluation`` it is about the
    evaluation of the round's model, for which nobody trains.
    """
    config: dict[str, Any] = {
        PROTOCOL_KEY: PROTOCOL_VERSION,
        SERVER_ROUND: server_round,
        CLIENT_ID: list(clients),
        ASKS_ONLY: True,
    }
    if asked_before:
        config[START_ROUND] = [server_round] * len(clients)
    if of_evaluation:
        config[OF_EVALUATION] = True
    return RecordDict({CONFIG: ConfigRecord(config)})


def encode_evaluate_request(arrays: ArrayRecord, request: EvaluateRequest) -> RecordDict:
    """Return the content of an evaluate message."""
    config: dict[str, Any] = {
        PROTOCOL_KEY: PROTOCOL_VERSION,
        SERVER_ROUND: request.server_round,
        CLIENT_ID: list(request.clients),
        TRAIN_SPLIT: list(request.train),
        TEST_SPLIT: list(request.test),
    }
    if request.finetune_epochs:
        config[FINETUNE_EPOCHS] = request.finetune_epochs
    records: dict[str, Any] = {}
    if request.masking is not None:
        config[NUM_TERMS] = request.num_terms
        config[BY_DATA] = request.by_data
        records |= encode_vector_request(request.masking)
        records |= encode_summed_fields(request.summed_fields)
    return RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(config), **records})


def add_user_config(content: RecordDict, user_config: Mapping[str, Any]) -> None:
    """Add a user's config to a request.

    A user cannot set the keys of this project's protocol. In Flower's standard protocol only the
    round is reserved.
    """
    configs = select_records(content, ConfigRecord)
    config = configs[CONFIG] if CONFIG in configs else next(iter(configs.values()))
    ours = REQUEST_KEYS if PROTOCOL_KEY in config else {SERVER_ROUND}
    for key, value in user_config.items():
        if key not in ours:
            config[key] = value


def view_user_config(content: RecordDict) -> dict[str, Any]:
    """Return what a user added to the config of a request in this project's protocol."""
    return {key: value for key, value in _get_config(content).items() if key not in REQUEST_KEYS}


# --- the node's side -----------------------------------------------------------------------


def check_query(content: RecordDict) -> None:
    """Raise ProtocolError if the query comes from a server with another protocol."""
    check_request(select_records(content, ConfigRecord).get(CONFIG, {}))


def is_inquiry(content: RecordDict) -> bool:
    """Say whether a train message only asks who takes part, see ``encode_inquiry``."""
    return bool(_get_config(content).get(ASKS_ONLY, False))


def is_of_evaluation(content: RecordDict) -> bool:
    """Say whether an exchange without a model is about an evaluation, see ``encode_inquiry``."""
    return bool(_get_config(content).get(OF_EVALUATION, False))


def find_num_terms(content: RecordDict) -> int:
    """Return the number of clients in the sum that a request asks for."""
    num_terms = _get_config(content).get(NUM_TERMS, 1)
    return num_terms if isinstance(num_terms, int) else 1


def find_round(content: RecordDict) -> int:
    """Return the round of a train request; 0 if it has none, as another app's may."""
    server_round = _get_config(content).get(SERVER_ROUND)
    return server_round if isinstance(server_round, int) else 0


def find_weighs_by_data(content: RecordDict) -> bool:
    """Say whether a train request multiplies a client's update by its amount of data."""
    return bool(_get_config(content).get(BY_DATA, False))


def has_clipping_norm(content: RecordDict) -> bool:
    """Say whether a train request lets clients clip their updates."""
    return CLIPPING_NORM in _get_config(content)


def view_model(content: RecordDict) -> NamedArrays:
    """Return the model of a train request as views; its only one, if clients start from it.

    Raises
    ------
    ProtocolError
        If the request has none.
    """
    arrays = select_records(content, ArrayRecord).get(ARRAYS)
    if arrays is None:
        raise ProtocolError(f"a request needs the record '{ARRAYS}'")
    return view_arrays(arrays)


def decode_listed_clients(content: RecordDict) -> tuple[int, tuple[int, ...]]:
    """Return the round of a train request and the clients that it lists, hosted here or not.

    Raises
    ------
    ProtocolError
        If the server uses another protocol, there is no round, or no list of clients.
    """
    listed = _get_config(content).get(CLIENT_ID)
    if not isinstance(listed, list) or not all(isinstance(k, int) for k in listed):
        raise ProtocolError(f"'{CLIENT_ID}' must be a list of whole numbers")
    return decode_selected_clients(content, listed)


def has_masks(content: RecordDict, state: RecordDict) -> bool:
    """Say whether a train message is part of a secure sum, or its node had a part in one."""
    return MASK_STATE in state or any(step in content for step in SECURE_SUM_STEPS)


def was_asked_before(content: RecordDict) -> bool:
    """Say whether the clients of a train message have said already that they take part."""
    return START_ROUND in _get_config(content)


def _get_config(content: RecordDict) -> Mapping[str, Any]:
    return select_records(content, ConfigRecord).get(CONFIG, {})


def decode_train_request(
    content: RecordDict, hosted: Sequence[int]
) -> tuple[NamedArrays, tuple[TrainTask, ...]]:
    """Return the model and the task of each selected client.

    If clients start from several models, the model is the first one, see ``decode_start_models``. A
    request without clients, as from Flower's own strategies, selects all clients of the node.

    Raises
    ------
    ProtocolError
        If the server uses another protocol, records are missing, there is no round, lists
        disagree, or a client is not ``hosted`` here.
    """
    return _decode_request(content, hosted, build_train_task)


def decode_start_models(content: RecordDict, tasks: Sequence[TrainTask]) -> dict[int, NamedArrays]:
    """Return the models of the clients that do not start from the first model, by client id.

    Raises
    ------
    ProtocolError
        If a client's model is missing, or the request also wants such clients' sum.
    """
    arrays = select_records(content, ArrayRecord)
    others = [task for task in tasks if task.start_index != 0]
    if any(task.can_be_summed for task in others):
        raise ProtocolError(f"with '{START_INDEX}' no updates are summed")
    names = {task.start_index: START_MODEL.format(task.start_index) for task in others}
    for name in names.values():
        if name not in arrays:
            raise ProtocolError(f"the record '{name}' is missing, which '{START_INDEX}' refers to")
    models = {index: decode_arrays(arrays[name]) for index, name in names.items()}
    return {task.client: models[task.start_index] for task in others}


def decode_sum_bins(content: RecordDict, model: Collection[str]) -> SumBins:
    """Return the bins of the sum of a model's arrays that a train message asks for.

    Raises
    ------
    ProtocolError
        If fixed bins do not fit the model's arrays.
    """
    num_terms = int(_get_config(content).get(NUM_TERMS, 1))
    record = select_records(content, ConfigRecord).get(SUM_BINS)
    if record is None:
        return ExponentBins.for_num_terms(num_terms)
    sent: Any = record.get(EXPONENTS)
    exponents = [one for one in sent if isinstance(one, int)] if isinstance(sent, list) else []
    if len(exponents) != len(model) or len(sent) != len(model):
        raise ProtocolError(
            f"'{SUM_BINS}' must have a whole number for each of the model's {len(model)} arrays"
        )
    bins = FixedBins(compute_bin_width(num_terms), dict(zip(model, exponents, strict=True)))
    if not bins.is_valid:
        raise ProtocolError(f"'{SUM_BINS}' has a number that is no exponent of float64")
    return bins


def decode_evaluate_request(
    content: RecordDict, hosted: Sequence[int]
) -> tuple[NamedArrays, tuple[EvaluateTask, ...]]:
    """Return the model and the evaluation task of each selected client.

    As in ``decode_train_request``, but a request of Flower's own strategies needs no round.
    """
    return _decode_request(content, hosted, build_evaluate_task)


def build_train_task(config: Mapping[str, Any], client: int) -> TrainTask:
    """Return a client's task from a config with one value for each key.

    Raises
    ------
    ProtocolError
        If there is no round.
    """
    return TrainTask(
        client=client,
        server_round=_read_round(config, START_ROUND if START_ROUND in config else SERVER_ROUND),
        priority=bool(config.get(PRIORITY, True)),
        objective=Objective(
            config.get(GLOBAL_LOSS, math.nan), config.get(GLOBAL_ACCURACY, math.nan)
        ),
        epsilon=config.get(EPSILON),
        criterion=config.get(CRITERION, "loss"),
        requests_loss=bool(config.get(MEASURES_LOSS, True)),
        known_weight=config.get(PROPORTION),
        by_data=bool(config.get(BY_DATA, False)),
        num_terms=int(config.get(NUM_TERMS, 1)),
        clipping_norm=config.get(CLIPPING_NORM),
        start_index=int(config.get(START_INDEX, 0)),
    )


def build_evaluate_task(config: Mapping[str, Any], client: int) -> EvaluateTask:
    """Return a client's evaluation task from a config with one value for each key.

    Raises
    ------
    ProtocolError
        If the number of epochs is not a whole number >= 0.
    """
    epochs = config.get(FINETUNE_EPOCHS, 0)
    if not isinstance(epochs, int) or epochs < 0:
        raise ProtocolError(f"'{FINETUNE_EPOCHS}' must be a whole number >= 0, got {epochs!r}")
    return EvaluateTask(
        client=client,
        server_round=config.get(SERVER_ROUND, 0),
        train=bool(config.get(TRAIN_SPLIT, True)),
        test=bool(config.get(TEST_SPLIT, True)),
        finetune_epochs=epochs,
    )


def requests_training(content: RecordDict) -> bool:
    """Say whether an evaluate request lets its clients train before they evaluate."""
    config: Mapping[str, Any] = select_records(content, ConfigRecord).get(CONFIG, {})
    return bool(config.get(FINETUNE_EPOCHS))


def decode_selected_clients(
    content: RecordDict, hosted: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    """Return the round of a train request, and the ``hosted`` clients that it selects.

    Raises
    ------
    ProtocolError
        If the server uses another protocol, there is no round, or a client is not ``hosted`` here.
    """
    config: Mapping[str, Any] = select_records(content, ConfigRecord).get(CONFIG, {})
    if config.get(PROTOCOL_KEY) != PROTOCOL_VERSION:
        check_request(config)
    return _read_round(config), _read_selected_clients(config, hosted)


def filter_clients(
    content: RecordDict, selected: Sequence[int], chosen: Sequence[int]
) -> RecordDict:
    """Return a request reduced to the ``chosen`` clients, out of those ``selected`` in its order.

    The protocol's lists keep the values of the chosen clients; everything else stays the same.
    """
    index_of = {k: i for i, k in enumerate(selected)}
    indices = [index_of[k] for k in chosen]
    config: dict[str, Any] = {
        key: [value[i] for i in indices]
        if key in REQUEST_KEYS and isinstance(value, list)
        else value
        for key, value in select_records(content, ConfigRecord)[CONFIG].items()
    }
    config |= {PROTOCOL_KEY: PROTOCOL_VERSION, CLIENT_ID: list(chosen)}
    return RecordDict({**content, CONFIG: ConfigRecord(config)})


def _decode_request(
    content: RecordDict,
    hosted: Sequence[int],
    build_task: Callable[[Mapping[str, Any], int], TaskT],
) -> tuple[NamedArrays, tuple[TaskT, ...]]:
    arrays, configs = select_records(content, ArrayRecord), select_records(content, ConfigRecord)
    model = arrays.get(ARRAYS, arrays.get(START_MODEL.format(0)))
    if model is None or CONFIG not in configs:
        raise ProtocolError(f"a request needs the records '{ARRAYS}' and '{CONFIG}'")
    config: Mapping[str, Any] = configs[CONFIG]
    if config.get(PROTOCOL_KEY) != PROTOCOL_VERSION:
        check_request(config)
    clients = _read_selected_clients(config, hosted)
    ours = {key: value for key, value in config.items() if key in REQUEST_KEYS}
    for key, value in ours.items():
        if isinstance(value, list) and len(value) != len(clients):
            raise ProtocolError(f"'{key}' must have one value for each of [{abbreviate(clients)}]")
    tasks = tuple(
        build_task({k: v[i] if isinstance(v, list) else v for k, v in ours.items()}, client)
        for i, client in enumerate(clients)
    )
    return decode_arrays(model), tasks


def _read_round(config: Mapping[str, Any], key: str = SERVER_ROUND) -> int:
    server_round = config.get(key)
    if not isinstance(server_round, int) or server_round < 1:
        raise ProtocolError(
            f"'{key}' must be a whole number >= 1 in '{CONFIG}', got {server_round!r}"
        )
    return server_round


def _read_selected_clients(config: Mapping[str, Any], hosted: Sequence[int]) -> tuple[int, ...]:
    listed = config.get(CLIENT_ID)
    clients = tuple(hosted) if listed is None else tuple(int(k) for k in listed)
    # A range, as of a node with many clients, tests membership by arithmetic.
    members = hosted if isinstance(hosted, range) else frozenset(hosted)
    if foreign := sorted({k for k in clients if k not in members}):
        raise ProtocolError(
            f"clients [{abbreviate(foreign)}] are not on this node, which hosts "
            f"[{abbreviate(hosted)}]"
        )
    return clients
