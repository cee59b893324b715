"""Communicate with ClientApps that were written for Flower's own strategies."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import ClassVar

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy.strategy_utils import (
    aggregate_metricrecords,
    validate_message_reply_consistency,
)

from ..errors import ParameterError, to_one_line
from ..rules.composition import RuleSet
from ..rules.decisions import RoundReport
from ..rules.parameters import POSITIVE_INT, OneOf
from ..rules.rule import parameter
from ..rules.types import Population
from .codec import (
    ACCURACY_KEY,
    ARRAYRECORD_KEY,
    CONFIGRECORD_KEY,
    LOSS_KEYS,
    WEIGHTED_BY_KEY,
    EvaluateRequest,
    EvaluateResult,
    NamedArrays,
    TrainRequest,
    TrainResult,
    decode_standard_evaluate_reply,
    decode_standard_train_reply,
    encode_standard_request,
    find_standard_loss_key,
    select_records,
)
from .nodes import SET_FEDQUORUM, NodeIdRegistry, NodeRegistry
from .protocol import DynamicProtocol
from .validation import Limits
from .waiting_grid import is_in_memory_grid, unwrap_grid

CLIENT_IDS = OneOf(("node-order", "query"))
DEFAULT_MAX_REPLY_BYTES, DEFAULT_MAX_REPLY_MODELS = 2**26, 8

MetricsAggregation = Callable[[list[RecordDict], str], MetricRecord]


@dataclass(frozen=True, kw_only=True)
class StandardProtocol(DynamicProtocol):
    """Communicate with a ClientApp that was written for Flower's own strategies.

    Every node is one client. It receives what Flower's ``FedAvg`` sends (the model, the config
    given to ``start``, and ``server-round``) and replies with one ArrayRecord and one MetricRecord
    of any name. The strategy reads three of the training metrics::

        weighted_by_key   D_k, a finite number >= 0. Without it the server rejects the update.
        loss_key          F_k of the model received. AAggFF, q-FedAvg, TERM, PropFair, AFL and
                          FedMGDA+ need it, >= 0; without it FedALIGN's gate refuses the update.
        accuracy_key      For FedALIGN with ``criterion="accuracy"`` only.

    Some apps report the mean loss during training, as Flower's quickstart does. The strategy reads
    it as the loss of the model received, although it is lower: the longer a client trains, the
    lower it is.

    Such clients cannot measure a model before a round. FedALIGN therefore takes F(w_t) from the
    round's own updates: it is the mean of the priority clients' losses, weighted by data. All
    clients train, and the server alone decides |F_k - F| <= epsilon.

    Parameters
    ----------
    client_ids : {"node-order", "query"} (default: "node-order")
        With ``node-order``, the nodes that are connected when round 1 begins become clients 0, 1,
        ... by ascending node id. Nodes that join later follow in the order in which they join.
        Flower draws the node ids of a simulation anew in each run, so that client 0 has other
        data in each run. With ``query``, a node reports its client id: it replies to a query with
        a MetricRecord ``metrics`` that has ``client-id``, such as its ``partition-id``.
    weighted_by_key : str (default: "num-examples")
        See above. It also weights the averages of metrics.
    loss_key : str, optional
        See above; by default the first of ``loss``, ``train_loss`` and ``train-loss``.
    accuracy_key : str (default: "accuracy")
        See above.
    arrayrecord_key : str (default: "arrays")
        Name of the ArrayRecord in messages to the nodes.
    configrecord_key : str (default: "config")
        Name of the ConfigRecord in messages to the nodes.
    max_reply_bytes : int, optional
        Largest reply to read, in bytes; by default 64 MiB and 8 models.
    train_metrics_aggr_fn : callable, optional
        ``(list[RecordDict], str) -> MetricRecord``, called with the usable replies and
        ``weighted_by_key``; by default Flower's mean, weighted by that key.
    evaluate_metrics_aggr_fn : callable, optional
        The same for evaluations.
    fraction_evaluate, min_evaluate_nodes, min_available_nodes, max_client_id
        As in ``DynamicProtocol``.
    round_timeout, startup_timeout, startup_clients, robustness, evaluated_clients, quorum,
    reply_memory
        As in ``NativeProtocol``.
    clients_by_key : mapping of str to frozenset of int, optional
        As in ``NativeProtocol``; needs ``query``.

    Raises
    ------
    ParameterError
        If a value is outside its range. A strategy's constructor raises it for rules that such
        clients cannot serve: local models, and ``priority_samples``.
    """

    is_native: ClassVar[bool] = False

    client_ids: str = parameter("node-order", CLIENT_IDS)
    weighted_by_key: str = WEIGHTED_BY_KEY
    loss_key: str | None = None
    accuracy_key: str = ACCURACY_KEY
    arrayrecord_key: str = ARRAYRECORD_KEY
    configrecord_key: str = CONFIGRECORD_KEY
    max_reply_bytes: int | None = parameter(None, POSITIVE_INT)
    train_metrics_aggr_fn: MetricsAggregation | None = None
    evaluate_metrics_aggr_fn: MetricsAggregation | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients_by_key is not None and self.client_ids != "query":
            raise ParameterError(
                "client_ids",
                "query with clients_by_key",
                self.client_ids,
                "a key's clients are checked against its node's reply to the query",
            )

    def check_rules(self, rules: RuleSet) -> None:
        """Refuse rules that train local models, or that need D_k or losses before the round."""
        if rules.selection.sampling.priority_samples is not None:
            raise ParameterError(
                "priority_samples",
                "None with a ClientApp written for Flower's own strategies",
                rules.selection.sampling.priority_samples,
                "the clients' amounts of data are unknown before round 1",
            )
        before = rules.hooks.before_round
        if before is not None and not before.needs_reports:
            raise ParameterError(
                "loss_source",
                "reported with a ClientApp written for Flower's own strategies",
                "evaluated",
                "such a client does not evaluate a model before it trains",
            )
        if rules.trains_local_models:
            raise ParameterError(
                "communication",
                "this project's protocol with local_only",
                type(self).__name__,
                "each client keeps a local model, which only clients of that protocol can",
            )

    def build_node_registry(self, population: Population, rules: RuleSet) -> NodeRegistry:
        """Return the registry of nodes that are one client each."""
        expected = None if self.is_dynamic else population.clients
        required, get_refusal = population.required or (), self.build_join_check(rules)
        if self.client_ids == "query":
            return NodeRegistry(
                expected,
                self.clients_by_key,
                standard=True,
                required=required,
                get_refusal=get_refusal,
            )
        return NodeIdRegistry(expected, required=required, get_refusal=get_refusal)

    def check_client_ids(self, grid: Grid, population: Population) -> None:
        """Refuse priority clients in a simulation whose client ids are drawn at random."""
        has_random_ids = is_in_memory_grid(unwrap_grid(grid)) and self.client_ids == "node-order"
        if has_random_ids and population.non_priority_clients:
            raise ParameterError(
                "client_ids",
                "query in a simulation, where chance decides which node is client 0 (the ClientApp "
                "answers a query with its partition-id: docs/drop-in.md, 'Who is client 0'), or "
                "run a deployment, where node ids last",
                self.client_ids,
            )

    def build_train_content(self, arrays: ArrayRecord, request: TrainRequest) -> RecordDict:
        """Return the message of FedAvg, with the client's start model."""
        model = arrays if request.start_models is None else request.start_models.models[0]
        return self._encode_request(model, request.server_round)

    def build_evaluate_content(self, arrays: ArrayRecord, request: EvaluateRequest) -> RecordDict:
        """Return the message of FedAvg."""
        return self._encode_request(arrays, request.server_round)

    def _encode_request(self, arrays: ArrayRecord, server_round: int) -> RecordDict:
        return encode_standard_request(
            arrays, server_round, self.arrayrecord_key, self.configrecord_key
        )

    def build_limits(self, rules: RuleSet) -> Limits:
        """Return the allowed ranges of the numbers that the strategy reads in a train reply."""
        needs_loss = rules.needs_losses
        return Limits(
            needs_loss=needs_loss,
            any_loss=not needs_loss,
            any_accuracy=True,
            any_weight=True,
            any_float=True,
        )

    def get_max_reply_bytes(self, num_clients: int, model: NamedArrays | None) -> int:
        """Return ``max_reply_bytes``."""
        if self.max_reply_bytes is not None:
            return self.max_reply_bytes
        models = 0 if model is None else sum(array.nbytes for array in model.values())
        return DEFAULT_MAX_REPLY_BYTES + DEFAULT_MAX_REPLY_MODELS * models

    @property
    def loss_keys(self) -> tuple[str, ...]:
        """The possible keys of the loss, in the order of preference."""
        return LOSS_KEYS if self.loss_key is None else (self.loss_key,)

    def find_loss_key(self, content: RecordDict) -> str | None:
        """Return the key of the loss in a reply, None if the reply has no loss."""
        return find_standard_loss_key(content, self.loss_keys)

    def get_hint(self, reason: str) -> str:
        """Return which setting to change if no reply has the expected form."""
        if f"'{self.weighted_by_key}'" in reason:
            return (
                ". Set weighted_by_key to the metric that has a client's amount of data, or let "
                "the ClientApp report it"
            )
        if any(f"'{key}'" in reason for key in self.loss_keys):
            return (
                ". Set loss_key to the metric that has the loss of the model received, or let the "
                "ClientApp report it"
            )
        if "array" in reason:
            return ". Let the ClientApp reply the arrays that it is sent, initial_arrays at first"
        return ". Set max_reply_bytes" if "bytes" in reason else ""

    @property
    def other_protocol_hint(self) -> str:
        """The form of replies in the other protocol, and the setting that reads them."""
        set_this = (
            SET_FEDQUORUM if self.is_dynamic else "leave out communication=StandardProtocol()"
        )
        return f"FedQuorum's protocol, for several clients of a node: {set_this}"

    def read_train_reply(self, content: RecordDict, limits: Limits) -> list[TrainResult]:
        """Return the only result in a reply."""
        result = decode_standard_train_reply(
            content,
            weighted_by_key=self.weighted_by_key,
            loss_keys=self.loss_keys,
            accuracy_key=self.accuracy_key,
            needs_loss=limits.needs_loss,
        )
        return [result]

    def read_evaluate_reply(self, content: RecordDict) -> list[EvaluateResult]:
        """Return the only result in a reply."""
        return [decode_standard_evaluate_reply(content, weighted_by_key=self.weighted_by_key)]

    @property
    def needs_full_replies(self) -> bool:
        """Whether a ``train_metrics_aggr_fn`` was given, which may read whole replies."""
        return self.train_metrics_aggr_fn is not None

    def aggregate_train_metrics(
        self, report: RoundReport, contents: Sequence[RecordDict]
    ) -> MetricRecord | None:
        """Return the result of ``train_metrics_aggr_fn``, None without usable replies."""
        return self._aggregate_metrics(contents, self.train_metrics_aggr_fn)

    def aggregate_evaluate_metrics(self, contents: Sequence[RecordDict]) -> MetricRecord | None:
        """Return the result of ``evaluate_metrics_aggr_fn``, None without usable replies."""
        return self._aggregate_metrics(contents, self.evaluate_metrics_aggr_fn)

    def _aggregate_metrics(
        self, contents: Sequence[RecordDict], aggregate: MetricsAggregation | None
    ) -> MetricRecord | None:
        if not contents:
            return None
        replies = _select_common_form(contents)
        try:
            validate_message_reply_consistency(
                replies, self.weighted_by_key, check_arrayrecord=False
            )
        except InconsistentMessageReplies as error:
            # The model is valid; only the mean of the metrics is not.
            log(WARNING, "The metrics are not aggregated: %s", error)
            return None
        if aggregate is not None:
            return aggregate(replies, self.weighted_by_key)
        try:
            return aggregate_metricrecords(replies, self.weighted_by_key)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            # Numbers beside lists, lists of different lengths, or no data at all.
            log(WARNING, "The metrics are not aggregated: %s", to_one_line(error))
            return None

    def log_summary(self) -> None:
        """Log the keys, as Flower does, and the settings that differ from the defaults."""
        if not self.is_dynamic:
            settings = (self.fraction_evaluate, self.min_evaluate_nodes)
            log(INFO, "\t├──> Evaluation: fraction (%.2f) | minimum nodes (%d)", *settings)
        log(INFO, "\t├──> Keys in records:")
        log(INFO, "\t│\t├── Weighted by: '%s'", self.weighted_by_key)
        log(INFO, "\t│\t├── Loss: %s", " or ".join(f"'{key}'" for key in self.loss_keys))
        log(INFO, "\t│\t├── Accuracy: '%s'", self.accuracy_key)
        log(INFO, "\t│\t├── ArrayRecord key: '%s'", self.arrayrecord_key)
        log(INFO, "\t│\t└── ConfigRecord key: '%s'", self.configrecord_key)
        log(INFO, "\t├──> Client ids: %s", self.client_ids)


def _select_common_form(contents: Sequence[RecordDict]) -> list[RecordDict]:
    """Return the replies whose metrics have the form of the majority; all without a majority.

    Flower's strategies end the run if one client's metrics differ from the others'.
    """
    forms = [_describe_form(content) for content in contents]
    ((common_form, count),) = Counter(forms).most_common(1)
    if 2 * count <= len(forms):
        return list(contents)
    if count < len(forms):
        counts = (len(forms) - count, len(forms))
        log(WARNING, "The metrics of %d of %d clients have another form and are left out", *counts)
    return [content for content, form in zip(contents, forms, strict=True) if form == common_form]


def _describe_form(content: RecordDict) -> tuple[tuple[str, str, int | None], ...]:
    """Return the form of a reply's metrics: record, key, and the length of a list."""
    return tuple(
        (name, key, len(value) if isinstance(value, list) else None)
        for name, record in sorted(select_records(content, MetricRecord).items())
        for key, value in sorted(record.items())
    )
