"""ClientApps written for Flower's own strategies: what they are sent, and how they are read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import ClassVar

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy.strategy_utils import (
    aggregate_metricrecords,
    validate_message_reply_consistency,
)

from strategies.codec import (
    ClientReply,
    EvaluateRequest,
    ProtocolError,
    TrainRequest,
    decode_plain_reply,
    encode_plain_request,
)
from strategies.communication import Communication
from strategies.directory import ClientDirectory, NodeOrder
from strategies.parameters import FRACTION, OneOf, ParameterError
from strategies.report import ClientDecision
from strategies.selection import Selection
from strategies.streams import stream
from strategies.types import Population

CLIENT_IDS = OneOf(("node-order", "query"))

MetricsAggregation = Callable[[list[RecordDict], str], MetricRecord]


@dataclass(frozen=True, kw_only=True)
class PlainApp(Communication):
    """Communication with a ClientApp that knows nothing of this project.

    Every node is one client. It is sent what Flower's ``FedAvg`` sends (the model, the config given
    to ``start`` and ``server-round``) and answers with one ArrayRecord and one MetricRecord of any
    name. Of the metrics of training three are read::

        weighted_by_key   D_k, a whole number >= 1. Without it an update is rejected.
        loss_key          F_k >= 0 of the model received. AAggFF, q-FedAvg, TERM, PropFair, AFL and
                          FedMGDA+ reject an update without it; FedALIGN's gate does not open.
        accuracy_key      In [0, 1]. For FedALIGN with ``criterion="accuracy"`` only.

    An app that reports its mean loss while it trains, as Flower's quickstart does, is read as if
    that were the loss of the model received: it is lower, the more the longer a client trains.

    FedALIGN asks nobody before a round, as nobody could answer: F(w_t) is the mean of the priority
    clients' losses, by data, that came with this round's updates. No client decides; all train,
    and the server alone decides |F_k - F| <= epsilon.

    Parameters
    ----------
    client_ids : {"node-order", "query"} (default: "node-order")
        With ``node-order`` clients 0, 1, ... are the nodes by ascending node id, of those that are
        there when round 1 begins, and then whoever comes. Flower draws the node ids of a
        simulation anew in every run: which data client 0 has is then chance. With ``query`` a node
        says which client it is: it answers a query with a MetricRecord ``metrics`` that has
        ``client-id``, such as its ``partition-id``.
    weighted_by_key : str (default: "num-examples")
        See above; metrics are averaged by it too.
    loss_key : str (default: "loss")
        See above.
    accuracy_key : str (default: "accuracy")
        See above.
    arrayrecord_key : str (default: "arrays")
        The ArrayRecord's name in what is sent.
    configrecord_key : str (default: "config")
        The ConfigRecord's name in what is sent.
    fraction_evaluate : float (default: 1.0)
        Share of the clients that evaluate after a round, in [0, 1], rounded to a number of
        clients; 0 for none. Drawn from the round alone.
    train_metrics_aggr_fn : callable, optional
        ``(list[RecordDict], str) -> MetricRecord``, of the replies that could be used and
        ``weighted_by_key``; by default Flower's mean, weighted by that key.
    evaluate_metrics_aggr_fn : callable, optional
        The same of the evaluations.
    round_timeout, startup_timeout, startup_clients, robustness, evaluated_clients, clients_of_keys
        As in ``Communication``; the last needs ``query``.

    Raises
    ------
    ParameterError
        For a value outside its range, and from a strategy's constructor for a strategy that such
        clients cannot serve: ``LocalOnly``, and ``priority_draws``.
    """

    follows_protocol: ClassVar[bool] = False

    client_ids: str = "node-order"
    weighted_by_key: str = "num-examples"
    loss_key: str = "loss"
    accuracy_key: str = "accuracy"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    fraction_evaluate: float = 1.0
    train_metrics_aggr_fn: MetricsAggregation | None = None
    evaluate_metrics_aggr_fn: MetricsAggregation | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        CLIENT_IDS.check("client_ids", self.client_ids)
        FRACTION.check("fraction_evaluate", self.fraction_evaluate)
        if self.clients_of_keys is not None and self.client_ids != "query":
            raise ParameterError(
                "client_ids must be query with clients_of_keys (a key's clients are checked "
                f"against what its node says), got {self.client_ids!r}"
            )

    def check_selection(self, selection: Selection, population: Population) -> None:
        """Raise ParameterError where clients are to keep models, or F_k and D_k to be known."""
        try:
            call = selection.call(0, population, {})
        except ValueError as error:
            raise ParameterError(
                f"priority_draws must be None with PlainApp ({error}, before round 1)"
            ) from None
        if call.own_model:
            raise ParameterError(
                "communication must not be a PlainApp with LocalOnly: each client keeps a model of "
                "its own there, which only clients of this project's protocol can"
            )

    def directory(self, population: Population) -> ClientDirectory:
        """Return the directory of nodes that are a client each."""
        if self.client_ids == "query":
            return super().directory(population)
        return NodeOrder(population.clients)

    def train_content(self, arrays: ArrayRecord, request: TrainRequest) -> RecordDict:
        """Return what FedAvg would send; the priority and the gate's terms stay here."""
        return self._content(arrays, request.server_round)

    def evaluate_content(self, arrays: ArrayRecord, request: EvaluateRequest) -> RecordDict:
        """Return what FedAvg would send."""
        return self._content(arrays, request.server_round)

    def _content(self, arrays: ArrayRecord, server_round: int) -> RecordDict:
        return encode_plain_request(
            arrays, server_round, self.arrayrecord_key, self.configrecord_key
        )

    def evaluated(self, population: Population, server_round: int) -> tuple[int, ...]:
        """Return the share of the clients that evaluates, from the round alone."""
        clients = super().evaluated(population, server_round)
        size = round(self.fraction_evaluate * len(clients))
        drawn = stream(0, "evaluation", server_round).permutation(len(clients))[:size]
        return tuple(sorted(clients[i] for i in drawn.tolist()))

    def read(self, content: RecordDict, *, trained: bool) -> list[ClientReply]:
        """Return the one part of a reply."""
        keys = {self.weighted_by_key: "num-examples"}
        if trained:
            keys |= {self.loss_key: "loss", self.accuracy_key: "accuracy"}
        part = decode_plain_reply(content, keys)
        if "num-examples" not in part.metrics:
            raise ProtocolError(f"'{self.weighted_by_key}' is missing in the metrics")
        return [part]

    def train_metrics(self, replies: list[RecordDict]) -> MetricRecord | None:
        """Return what ``train_metrics_aggr_fn`` makes of the replies, None without any."""
        return self._together(replies, self.train_metrics_aggr_fn)

    def evaluate_metrics(self, replies: list[RecordDict]) -> MetricRecord | None:
        """Return what ``evaluate_metrics_aggr_fn`` makes of the replies, None without any."""
        return self._together(replies, self.evaluate_metrics_aggr_fn)

    def _together(
        self, replies: list[RecordDict], aggregate: MetricsAggregation | None
    ) -> MetricRecord | None:
        if not replies:
            return None
        try:
            validate_message_reply_consistency(
                replies, self.weighted_by_key, check_arrayrecord=False
            )
        except InconsistentMessageReplies as error:
            # Flower's strategies end the run here; the model is sound, only the mean is not.
            log(WARNING, "The metrics are not aggregated: %s", error)
            return None
        return (aggregate or aggregate_metricrecords)(replies, self.weighted_by_key)

    def tell(self, decisions: Sequence[ClientDecision]) -> None:
        """Log how many answered, as Flower does, and why an update does not count."""
        trained = sum(decision.status == "trained" for decision in decisions)
        log(INFO, "aggregate_train: %d of %d updates count", trained, len(decisions))
        for decision in decisions:
            if decision.status != "trained":
                what = (decision.client, decision.status, decision.reason)
                log(INFO, "\t> Client %d %s: %s", *what)

    def summary(self) -> None:
        """Log the keys, as Flower does."""
        log(INFO, "\t├──> Client ids: %s", self.client_ids)
        log(INFO, "\t├──> Keys in records:")
        log(INFO, "\t│\t├── Weighted by: '%s'", self.weighted_by_key)
        log(INFO, "\t│\t├── Loss: '%s', accuracy: '%s'", self.loss_key, self.accuracy_key)
        log(INFO, "\t│\t├── ArrayRecord key: '%s'", self.arrayrecord_key)
        log(INFO, "\t│\t└── ConfigRecord key: '%s'", self.configrecord_key)
