"""Define the protocol between a strategy and its nodes: the messages and the timeouts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from logging import INFO, WARNING
from typing import Any, ClassVar

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy.strategy_utils import (
    aggregate_metricrecords,
    validate_message_reply_consistency,
)

from ..errors import ParameterError, to_one_line
from ..records.client_names import NO_NAMES, ClientNames
from ..rng import make_generator
from ..rules.composition import RuleSet
from ..rules.decisions import RoundReport
from ..rules.metrics import SUMMED_METRICS
from ..rules.parameters import (
    EVALUATED_CLIENTS,
    FAIRNESS_METRIC,
    FRACTION,
    NON_NEGATIVE_INT,
    POSITIVE,
    POSITIVE_INT,
    OneOf,
)
from ..rules.participation.known_rates import find_rejection_reason
from ..rules.robustness import Robustness
from ..rules.rule import check_parameters, parameter
from ..rules.staleness import LateUpdates, check_late_rules
from ..rules.types import Population
from ..sanitize import abbreviate
from ..server.privacy import GaussianMechanism
from ..server.quorum import Quorum
from ..server.scratch import get_memory_limit
from ..server.virtual_clock import Clock
from .codec import (
    ACCURACY_KEY,
    ARRAYRECORD_KEY,
    CONFIGRECORD_KEY,
    LOSS_KEYS,
    WEIGHTED_BY_KEY,
    EvaluateRequest,
    EvaluateResult,
    NamedArrays,
    ProtocolMismatchError,
    TrainRequest,
    TrainResult,
    decode_evaluate_reply,
    decode_standard_evaluate_reply,
    decode_standard_train_reply,
    decode_train_reply,
    encode_evaluate_request,
    encode_standard_request,
    encode_train_request,
    find_standard_loss_key,
    has_protocol_version,
    select_records,
)
from .nodes import (
    SET_FEDQUORUM,
    SET_STANDARD,
    ClientsByKey,
    NodeIdRegistry,
    NodeKeyRegistry,
    NodeRegistry,
)
from .secure.settings import MaskSummary, SecureAggregation
from .validation import Limits, compute_max_reply_bytes
from .waiting_grid import is_http_grid, is_in_memory_grid, unwrap_grid

WALL_CLOCK_TIMEOUT = 3600.0  # seconds, if ``round_timeout`` counts simulated seconds


@dataclass(frozen=True)
class NativeProtocol:
    """Communicate with nodes that follow this project's protocol.

    Parameters
    ----------
    round_timeout : float
        Seconds to wait for replies to messages that the strategy sends itself (the first
        objective). ``Strategy.start`` and the run loop use the same value for the rounds.
    startup_timeout : float
        Seconds to wait for the clients to connect before round 1.
    startup_clients : int, optional
        Number of clients that must be connected before round 1 starts; by default all. A client
        that connects later takes part from then on.
    partial_aggregation : bool
        Whether a node of several clients may return the weighted sum of their updates instead
        of all models, in rounds whose weights are known before training. The global model has the
        same bits either way.
    requires_sums : bool
        Whether every node must return the weighted sum, even of one client: the server then refuses
        the model of a single client. A sum takes 16 bytes a number, a model in float32 4. With
        differential privacy the nodes clip before they add, and the server cannot clip again.
    fixed_bins : bool
        Whether the bins of the sum are fixed before training (``fedquorum.server.fixed_bins``), so
        that they tell nothing of single updates. The last bits of the model depend on it.
    secure_aggregation : SecureAggregation, optional
        Let every node mask its sum: the server then learns the sum over all nodes, and no other.
        Implies ``requires_sums`` and ``fixed_bins``. Of each client the server learns whether it
        took part, and its amount of data where the weights need it.
    evaluated_clients : {"all", "priority"}
        The clients whose test splits are evaluated. With ``priority``, a non-priority client
        reports nothing about itself unless it trains.
    evaluated_training : bool
        Whether all evaluated clients also evaluate their training splits for the records. Otherwise
        only the priority clients do, for the objective.
    evaluate_every : int
        Evaluate the test splits every ``evaluate_every`` rounds, and after the last.
    evaluate_every_seconds : float, optional
        Evaluate them also after each round in which the virtual clock passes another multiple of
        these seconds.
    last_round : int, optional
    simulated_seconds : float, optional
        The run ends after the first round at whose end the virtual clock has reached these seconds,
        if that is before ``last_round``.
    metric : str
        The metric that clients report beside loss and accuracy, one of
        ``fedquorum.rules.metrics.METRICS``.
    robustness : Robustness
        Bounds on the influence of one client; by default only validation limits it.
    privacy : GaussianMechanism, optional
        The mechanism that makes the models differentially private; by default there is none.
    clients_by_key : mapping of str to frozenset of int, optional
        The clients of each node's public key, by the key's fingerprint. By default the server
        trusts each node about the clients that it hosts. See ``NodeRegistry``.
    client_names : ClientNames
        The clients' names, for messages; by default nodes may report them.
    quorum : Quorum
        The number of replies that closes a round; by default all.
    virtual_clock : bool
        Whether clients report simulated response times (``ResponseTimeMod``). The quorum and
        ``round_timeout`` then count these simulated seconds, but the server still waits for all
        replies. Evaluations take no simulated time.
    reply_memory : int, optional
        Bytes of replies to keep in memory if the weights of a round need all replies at once; the
        rest goes to files. By default half of the machine's memory.
    late_updates : LateUpdates, optional
        How updates count that arrive after their round; by default they are discarded. With a
        virtual clock, a client trains in the round in which its update arrives. By the real clock
        it trains at once; its message lives ``round_timeout``, and evaluations ask only clients
        whose nodes do not train, except for the last one, which waits for all.

    Raises
    ------
    ParameterError
        For a value outside its range.
    """

    round_timeout: float = parameter(3600.0, POSITIVE)
    startup_timeout: float = parameter(300.0, POSITIVE)
    startup_clients: int | None = parameter(None, POSITIVE_INT)
    evaluated_clients: str = parameter("all", EVALUATED_CLIENTS)
    evaluated_training: bool = False
    partial_aggregation: bool = True
    requires_sums: bool = False
    fixed_bins: bool = False
    secure_aggregation: SecureAggregation | None = None
    evaluate_every: int = parameter(1, POSITIVE_INT)
    evaluate_every_seconds: float | None = parameter(None, POSITIVE)
    last_round: int | None = parameter(None, POSITIVE_INT)
    simulated_seconds: float | None = parameter(None, POSITIVE)
    metric: str = parameter("accuracy", FAIRNESS_METRIC)
    robustness: Robustness = field(default_factory=Robustness)
    privacy: GaussianMechanism | None = None
    clients_by_key: ClientsByKey | None = None
    client_names: ClientNames = NO_NAMES
    quorum: Quorum = field(default_factory=Quorum)
    virtual_clock: bool = False
    reply_memory: int | None = parameter(None, NON_NEGATIVE_INT)
    late_updates: LateUpdates | None = None

    def __post_init__(self) -> None:
        check_parameters(self)
        self._check_late_updates()
        self._check_sums()
        for name in ("evaluate_every_seconds", "simulated_seconds"):
            if not self.virtual_clock and (given := getattr(self, name)) is not None:
                raise ParameterError(name, "None without a virtual clock", given)
        if self.privacy is not None and (self.is_dynamic or not self.is_native):
            raise ParameterError(
                "privacy",
                f"None with {type(self).__name__}",
                self.privacy,
                "how much one client counts must be known before the run",
            )

    def _check_late_updates(self) -> None:
        """Refuse late updates where nothing can count them."""
        if self.late_updates is None:
            return
        if self.privacy is not None:
            raise ParameterError(
                "late_replies",
                "discard in a private run",
                "count",
                "updates are clipped by the norm of the round in which they are asked for",
            )
        if self.quorum.counts == "priority":
            raise ParameterError(
                "quorum_clients",
                "asked with late_replies=count",
                "priority",
                "a quorum of late updates counts replies of any client",
            )

    def _check_sums(self) -> None:
        """Refuse settings with which the server needs more than the sum of the updates."""
        if not self.has_fixed_bins and not self.needs_sums:
            return
        robustness, privacy = self.robustness, self.privacy
        problems = {
            "response times": self.virtual_clock
            and "simulated time decides after training which updates count",
            "late_replies=count": self.late_updates is not None
            and "staleness decides after training how much an update counts",
            "max_weight": robustness.max_weight is not None
            and "a bound on a weight changes it after training",
        }
        if self.needs_sums:
            problems |= {
                type(self).__name__: not self.is_native
                and "a ClientApp written for Flower's own strategies sends its model",
                "partial_aggregation=False": not self.partial_aggregation
                and "nodes then send the model of each client",
                f"metric={self.metric}": self.secure_aggregation is not None
                and self.metric not in SUMMED_METRICS
                and "the server would learn for which clients it is not defined; use one of "
                f"{', '.join(SUMMED_METRICS)}",
                "clip_norm": robustness.clip_norm is not None
                and "the server cannot clip an update that it does not see",
                "privacy without clients_clip": privacy is not None
                and not privacy.clients_clip
                and "the server cannot clip an update that it does not see",
            }
        for setting, reason in problems.items():
            if reason:
                raise self._build_sum_error(f" with {setting}", reason)

    def _build_sum_error(self, setting: str, reason: str) -> ParameterError:
        """Return the error about the parameter that needs sums."""
        if (given := self.secure_aggregation) is not None:
            return ParameterError("secure_aggregation", f"None{setting}", given, reason)
        name = "requires_sums" if self.requires_sums else "fixed_bins"
        return ParameterError(name, f"False{setting}", got=True, reason=reason)

    @cached_property
    def needs_sums(self) -> bool:
        """Whether every node must return the weighted sum of its clients' updates."""
        return self.requires_sums or self.secure_aggregation is not None

    @cached_property
    def has_fixed_bins(self) -> bool:
        """Whether the bins of the sum are fixed before training."""
        return self.fixed_bins or self.secure_aggregation is not None

    # ``StandardProtocol`` overrides the rest, for ClientApps written for Flower's strategies.

    is_native: ClassVar[bool] = True

    def check_rules(self, rules: RuleSet) -> None:
        """Raise ParameterError for rules that such clients cannot serve."""
        if self.privacy is not None and rules.dp_unsupported_reason:
            raise ParameterError("privacy", "None", self.privacy, rules.dp_unsupported_reason)
        if self.late_updates is not None:
            check_late_rules(rules, self.late_updates)
        if (self.needs_sums or self.has_fixed_bins) and rules.sum_unsupported_reason:
            raise self._build_sum_error("", rules.sum_unsupported_reason)

    def summarize_masks(
        self, rules: RuleSet, population: Population, num_nodes: int
    ) -> MaskSummary | None:
        """Return what a run shows of the masks of its rounds; None without masks.

        Parameters
        ----------
        rules : RuleSet
        population : Population
        num_nodes : int
            The nodes that host its clients.

        Raises
        ------
        ParameterError
            If some clients never train, no threshold fits the number of nodes, or the quorum may
            leave fewer.
        """
        if self.secure_aggregation is None:
            return None
        if population.held_out:
            reason = "the mean over the others would be a second sum"
            raise self._build_sum_error(" with clients that never train", reason)
        num_priority, num_asked = rules.selection.sampling.count_sampled(population)
        share = self.quorum.compute_share(range(num_asked), range(num_priority))
        try:
            return self.secure_aggregation.summarize(min(num_nodes, num_asked), share)
        except ParameterError as error:
            if error.parameter != "quorum":
                raise
            raise self._build_quorum_error(error, num_priority, num_asked) from None

    def _build_quorum_error(
        self, error: ParameterError, num_priority: int, num_asked: int
    ) -> ParameterError:
        """Return the error about a quorum's share with what was given instead of the share."""
        if self.quorum.counts == "priority":
            allowed = "asked" + error.allowed[error.allowed.index(" with masks") :]
            reason = f"the {num_priority} priority clients of {num_asked} clients would be enough"
            return ParameterError("quorum_clients", allowed, "priority", reason)
        size = self.quorum.size
        given = int(size) if size is not None and size >= 1 else size  # not 3.0
        return ParameterError("quorum", error.allowed, given, error.reason)

    def build_node_registry(self, population: Population, rules: RuleSet) -> NodeRegistry:
        """Return the registry that finds out which node hosts which client."""
        return NodeRegistry(
            population.hosted_clients,
            self.clients_by_key,
            held_out=population.held_out,
            names=self.client_names,
        )

    def wait_for_clients(
        self, registry: NodeRegistry, grid: Grid, *, first: bool, evaluating: bool = False
    ) -> None:
        """Note which clients are connected; before the first round, wait for them."""
        if first:
            registry.wait(grid, self.startup_timeout, self.startup_clients)
            return
        for problem in registry.refresh(grid):
            log(WARNING, "A node cannot take part: %s", problem)

    def check_client_ids(self, grid: Grid, population: Population, registry: NodeRegistry) -> None:
        """Refuse a grid that cannot identify the node of each client."""

    def can_identify_clients(self, grid: Grid) -> bool:
        """Say whether a later run on such a grid finds the node of each client again."""
        return True

    @cached_property
    def closes_early(self) -> bool:
        """Whether a quorum may end a wait before all nodes have replied."""
        return not (self.quorum.waits_for_all or self.virtual_clock)

    @cached_property
    def reply_memory_limit(self) -> int:
        """Bytes of replies that may stay in memory; read once, because files say it."""
        return get_memory_limit(self.reply_memory)

    @cached_property
    def counts_by_real_clock(self) -> bool:
        """Whether late updates count, and the real clock says when they arrive."""
        return self.late_updates is not None and not self.virtual_clock

    @property
    def reply_timeout(self) -> float:
        """Seconds to wait for replies, by the wall clock."""
        return WALL_CLOCK_TIMEOUT if self.virtual_clock else self.round_timeout

    @cached_property
    def needs_full_replies(self) -> bool:
        """Whether the metrics of training need whole replies."""
        return False

    @cached_property
    def is_dynamic(self) -> bool:
        """Whether the population consists of the connected clients."""
        return False

    def get_available_clients(self, registry: NodeRegistry) -> frozenset[int] | None:
        """Return the clients to sample from; None for all, connected or not."""
        return None

    def build_train_content(self, arrays: ArrayRecord, request: TrainRequest) -> RecordDict:
        """Return the content of a train message."""
        return encode_train_request(arrays, request)

    def build_evaluate_content(self, arrays: ArrayRecord, request: EvaluateRequest) -> RecordDict:
        """Return the content of an evaluate message."""
        return encode_evaluate_request(arrays, request)

    def is_test_round(self, server_round: int, before: Clock, after: Clock) -> bool:
        """Say whether the test splits are evaluated after a round, between two virtual times."""
        seconds = self.evaluate_every_seconds
        return (
            server_round % self.evaluate_every == 0
            or (
                seconds is not None
                and before.count_intervals(seconds) < after.count_intervals(seconds)
            )
            or server_round == self.last_round
            or self.is_time_up(after)
        )

    def is_time_up(self, clock: Clock) -> bool:
        """Say whether the run ends at this time, whatever the number of rounds."""
        return self.simulated_seconds is not None and clock.has_reached(self.simulated_seconds)

    def select_test_clients(
        self, population: Population, registry: NodeRegistry, server_round: int
    ) -> tuple[int, ...]:
        """Return the clients whose test splits are evaluated after a round that evaluates."""
        clients = self.select_evaluated_clients(population)
        return tuple(sorted((*clients, *population.held_out))) if population.held_out else clients

    def select_evaluated_clients(self, population: Population) -> tuple[int, ...]:
        """Return the clients that train and whose test splits are evaluated."""
        evaluates_all = self.evaluated_clients == "all"
        return population.clients if evaluates_all else population.priority_clients

    def select_objective_clients(
        self, population: Population, test_clients: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the clients that also evaluate their training splits."""
        return population.priority_clients

    def build_limits(self, rules: RuleSet) -> Limits:
        """Return the allowed ranges of the numbers in a train reply."""
        has_masks = self.secure_aggregation is not None
        return Limits(
            needs_loss=rules.needs_losses,
            hides_numbers=has_masks,
            needs_examples=not has_masks or rules.weighting.traits.weights_by_data,
        )

    def get_max_reply_bytes(self, num_clients: int, model: NamedArrays | None) -> int:
        """Return the largest size in bytes of a reply for ``num_clients``, with models if given."""
        return compute_max_reply_bytes(num_clients, model)

    def read_train_reply(self, content: RecordDict, limits: Limits) -> list[TrainResult]:
        """Return the results in a reply to a train message."""
        return decode_train_reply(content)

    def read_evaluate_reply(self, content: RecordDict) -> list[EvaluateResult]:
        """Return the results in a reply to an evaluate message."""
        return decode_evaluate_reply(content)

    def aggregate_train_metrics(
        self, report: RoundReport, contents: Sequence[RecordDict]
    ) -> MetricRecord | None:
        """Return the metrics of a round's training, over the usable replies."""
        return None if report.is_empty else MetricRecord({"admitted": report.num_admitted})

    def aggregate_evaluate_metrics(self, contents: Sequence[RecordDict]) -> MetricRecord | None:
        """Return the metrics of an evaluation beside the objective."""
        return None

    def find_loss_key(self, content: RecordDict) -> str | None:
        """Return the key of the loss in a reply, None if the protocol has only one."""
        return None

    @cached_property
    def loss_keys(self) -> tuple[str, ...]:
        """The possible keys of the loss in a reply; empty if the protocol has only one."""
        return ()

    @property
    def other_protocol_hint(self) -> str:
        """The form of replies in the other protocol, and the setting that reads them."""
        return ""

    def get_hint(self, reason: str) -> str:
        """Return which setting to change if no reply has the expected form."""
        return ""

    @property
    def untrained_hint(self) -> str:
        """What to change if no client has trained yet."""
        return ""

    def log_summary(self) -> None:
        """Log the settings of the communication that differ from the defaults."""


@dataclass(frozen=True, kw_only=True)
class DynamicProtocol(NativeProtocol):
    """Communicate in this project's protocol with the clients of all connected nodes.

    A node reports the clients that it hosts. Each of them counts as a node does in Flower's own
    strategies.

    Parameters
    ----------
    fraction_evaluate : float (default: 1.0)
        Fraction of the clients that evaluate after a round, in [0, 1]; 0 for none. The sample
        depends only on the round.
    min_evaluate_nodes : int (default: 2)
        Smallest number of clients that evaluate; all if fewer are connected.
    min_available_nodes : int, optional
        Number of clients that must be connected before a round starts; the strategy waits without
        limit. By default the strategy waits for all clients of the population, for
        ``startup_timeout``.
    max_client_id : int, optional
        Largest id of a client that joins; by default there is no limit.
    round_timeout, startup_timeout, startup_clients, robustness, evaluated_clients, clients_by_key,
    quorum
        As in ``NativeProtocol``.

    Raises
    ------
    ParameterError
        For a value outside its range.
    """

    fraction_evaluate: float = parameter(1.0, FRACTION)
    min_evaluate_nodes: int = parameter(2, NON_NEGATIVE_INT)
    min_available_nodes: int | None = parameter(None, NON_NEGATIVE_INT)
    max_client_id: int | None = parameter(None, NON_NEGATIVE_INT)

    @cached_property
    def is_dynamic(self) -> bool:
        """Whether the population consists of the connected clients."""
        return self.min_available_nodes is not None

    def build_node_registry(self, population: Population, rules: RuleSet) -> NodeRegistry:
        """Return the registry of nodes that report the clients that they host."""
        return NodeRegistry(
            None if self.is_dynamic else population.hosted_clients,
            self.clients_by_key,
            required=population.required or (),
            startup_timeout=self.startup_timeout,
            get_refusal=self.build_join_check(rules),
        )

    def build_join_check(self, rules: RuleSet) -> Callable[[int], str]:
        """Return a function that gives the reason why a client cannot join; empty if it can."""

        def get_refusal(client: int) -> str:
            if self.max_client_id is not None and client > self.max_client_id:
                return f"client ids are at most {self.max_client_id}, the largest in records"
            return find_rejection_reason(rules.weighting, client)

        return get_refusal

    def wait_for_clients(
        self, registry: NodeRegistry, grid: Grid, *, first: bool, evaluating: bool = False
    ) -> None:
        """Note which nodes are connected, and wait for the required number of clients."""
        at_least = self.min_available_nodes
        if at_least is None:
            super().wait_for_clients(registry, grid, first=first)
            return
        if evaluating:
            at_least = max(at_least, self.min_evaluate_nodes)
        if first or not evaluating or self.fraction_evaluate > 0:
            registry.wait_for_nodes(grid, at_least, first=first)

    def get_available_clients(self, registry: NodeRegistry) -> frozenset[int] | None:
        """Return the connected clients, from which a round samples.

        The result is None if the rules need a fixed population: a round then also selects
        disconnected clients, which count as selected without a reply.
        """
        return registry.connected_clients if registry.is_open else None

    def select_test_clients(
        self, population: Population, registry: NodeRegistry, server_round: int
    ) -> tuple[int, ...]:
        """Return the sample of clients that evaluate, which depends only on the round."""
        clients = self.select_evaluated_clients(population)  # a drop-in strategy holds out none
        if self.is_dynamic:
            clients = tuple(k for k in clients if k in registry.connected_clients)
        if self.fraction_evaluate == 1.0:
            return tuple(sorted(clients))
        # The product is one of floats, as in Flower's strategies.
        size = max(int(self.fraction_evaluate * len(clients)), self.min_evaluate_nodes)
        size = min(size, len(clients)) if self.fraction_evaluate > 0 else 0
        sampled = make_generator(0, "evaluation", server_round).permutation(len(clients))[:size]
        return tuple(sorted(clients[i] for i in sampled.tolist()))

    def select_objective_clients(
        self, population: Population, test_clients: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the tested priority clients, which also evaluate their training splits."""
        return tuple(k for k in test_clients if k in population.priority)

    def read_train_reply(self, content: RecordDict, limits: Limits) -> list[TrainResult]:
        """Return the results in a reply to a train message."""
        _check_native_reply(content)
        return super().read_train_reply(content, limits)

    def read_evaluate_reply(self, content: RecordDict) -> list[EvaluateResult]:
        """Return the results in a reply to an evaluate message."""
        _check_native_reply(content)
        return super().read_evaluate_reply(content)

    @property
    def other_protocol_hint(self) -> str:
        """The form of replies in the other protocol, and the setting that reads them."""
        return f"Flower's standard form. {SET_STANDARD}"


def _check_native_reply(content: RecordDict) -> None:
    if not has_protocol_version(content):
        raise ProtocolMismatchError(
            "its reply is in Flower's standard form, and not in FedQuorum's protocol"
        )


CLIENT_IDS = OneOf(("node-order", "query", "key"))
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
    client_ids : {"node-order", "query", "key"}, optional
        By default ``key`` with ``clients_by_key`` and otherwise ``node-order``. A deployment with
        priority clients refuses ``node-order`` as the default, and takes it if it is given. With
        ``key``, a node is the client that ``clients_by_key`` has for its public key. With
        ``node-order``, the nodes that are connected when round 1 begins become clients 0, 1,
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
        As in ``NativeProtocol``. Each key has one client, if no query asks the nodes.

    Raises
    ------
    ParameterError
        If a value is outside its range. A strategy's constructor raises it for rules that such
        clients cannot serve: ``priority_samples``.
    """

    is_native: ClassVar[bool] = False

    client_ids: str | None = parameter(None, CLIENT_IDS)
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
        has_keys = self.clients_by_key is not None
        if has_keys and self.client_ids == "node-order":
            raise ParameterError("client_ids", "key or query with clients_by_key", self.client_ids)
        if self.client_ids_from == "key" and not self.clients_by_key:
            raise ParameterError(
                "clients_by_key",
                'the client of each public key, such as {"SHA256:...": frozenset({0})}',
                self.clients_by_key,
            )
        several = [key for key, clients in (self.clients_by_key or {}).items() if len(clients) != 1]
        if several and self.client_ids_from == "key":
            raise ParameterError(
                "clients_by_key",
                'one client for each key, or client_ids="query"',
                several[0],
                "a ClientApp written for Flower's own strategies is one client",
            )

    @property
    def client_ids_from(self) -> str:
        """The rule that assigns client ids to nodes, given or by default."""
        by_default = "node-order" if self.clients_by_key is None else "key"
        return self.client_ids or by_default

    def check_rules(self, rules: RuleSet) -> None:
        """Refuse rules that need D_k or losses before the round."""
        super().check_rules(rules)
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

    def build_node_registry(self, population: Population, rules: RuleSet) -> NodeRegistry:
        """Return the registry of nodes that are one client each."""
        expected = None if self.is_dynamic else population.clients
        facts: dict[str, Any] = {
            "required": population.required or (),
            "startup_timeout": self.startup_timeout,
            "get_refusal": self.build_join_check(rules),
        }
        if self.client_ids_from == "query":
            return NodeRegistry(expected, self.clients_by_key, standard=True, **facts)
        if self.client_ids_from == "key":
            return NodeKeyRegistry(expected, self.clients_by_key, **facts)
        return NodeIdRegistry(expected, **facts)

    def can_identify_clients(self, grid: Grid) -> bool:
        """Say whether a later run on such a grid finds the node of each client again."""
        return self.client_ids_from != "node-order" or not is_in_memory_grid(unwrap_grid(grid))

    def wait_for_clients(
        self, registry: NodeRegistry, grid: Grid, *, first: bool, evaluating: bool = False
    ) -> None:
        """Wait as usual, but not for priority clients that nobody has named."""
        if first and self.is_dynamic and registry.required and self._orders_devices_unasked(grid):
            registry.wait_for_nodes(grid, self.min_available_nodes or 0, first=False)
            raise self._build_unnamed_error(registry)
        super().wait_for_clients(registry, grid, first=first, evaluating=evaluating)

    def _orders_devices_unasked(self, grid: Grid) -> bool:
        """Say whether the devices of a deployment have their client ids by default."""
        by_default = self.client_ids is None and self.client_ids_from == "node-order"
        return by_default and is_http_grid(unwrap_grid(grid))

    def _build_unnamed_error(self, registry: NodeRegistry) -> ParameterError:
        return ParameterError(
            "client_ids",
            "given in a deployment with priority clients, unless the nodes run FedQuorum's "
            'ClientApp (protocol="fedquorum"): clients_by_key={"KEY": 0} names a node '
            'by its public key, client_ids="query" asks each node (docs/drop-in.md, '
            "'Who is client 0'), or client_ids=\"node-order\" takes this order: "
            f"{registry.list_hosts()}",
            self.client_ids,
        )

    def check_client_ids(self, grid: Grid, population: Population, registry: NodeRegistry) -> None:
        """Refuse priority clients that nobody has named.

        In a simulation, node ids are drawn at random. In a deployment they last, but only a user
        who has seen which node is which client can mean one of them by its number.
        """
        # An explicit list means certain devices, though others join only later.
        has_priority = population.required is not None or bool(population.non_priority_clients)
        if has_priority and self._orders_devices_unasked(grid):
            raise self._build_unnamed_error(registry)
        if not self.can_identify_clients(grid) and population.non_priority_clients:
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
        keys = (self.arrayrecord_key, self.configrecord_key)
        return encode_standard_request(model, request.server_round, *keys)

    def build_evaluate_content(self, arrays: ArrayRecord, request: EvaluateRequest) -> RecordDict:
        """Return the message of FedAvg."""
        keys = (self.arrayrecord_key, self.configrecord_key)
        return encode_standard_request(arrays, request.server_round, *keys)

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

    @cached_property
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

    @cached_property
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
        log(INFO, "\t├──> Client ids: %s", self.client_ids_from)


@dataclass(frozen=True, kw_only=True)
class MaskedProtocol(StandardProtocol):
    """Let ClientApps written for Flower's own strategies mask their updates.

    Every node is one client, as in ``StandardProtocol``. The messages are this project's: on the
    node, ``SecureSumMod`` and ``StandardAppMod`` stand between them and the app. Names of records
    and metrics are parameters of ``StandardAppMod``, as the server sees none of the app's replies.

    Parameters
    ----------
    secure_aggregation : SecureAggregation
    client_ids, clients_by_key, max_reply_bytes, fraction_evaluate, min_evaluate_nodes,
    min_available_nodes, startup_timeout, quorum
        As in ``StandardProtocol``.

    Raises
    ------
    ParameterError
        If a value is outside its range, or a parameter has a meaning on the nodes only.
    """

    is_native: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = {item.name: item.default for item in fields(self)}
        for name in _READ_ON_NODES:
            if (given := getattr(self, name)) != defaults[name]:
                reason = f"its node reads the metrics: StandardAppMod({name}={given!r})"
                raise ParameterError(
                    name, f"{defaults[name]}, its default, with secure_aggregation", given, reason
                )
        for name in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
            if (given := getattr(self, name)) is not None:
                reason = "the server sees the metrics of no single client"
                raise ParameterError(name, "None with secure_aggregation", given, reason)
        if 0.0 < self.fraction_evaluate < 1.0:
            reason = "sums over other clients in each round tell of those that only one has"
            given = self.fraction_evaluate
            raise ParameterError(
                "fraction_evaluate", "0 or 1 with secure_aggregation", given, reason
            )

    build_train_content = NativeProtocol.build_train_content
    build_evaluate_content = NativeProtocol.build_evaluate_content
    read_train_reply = NativeProtocol.read_train_reply
    read_evaluate_reply = NativeProtocol.read_evaluate_reply
    aggregate_train_metrics = NativeProtocol.aggregate_train_metrics
    aggregate_evaluate_metrics = NativeProtocol.aggregate_evaluate_metrics
    find_loss_key = NativeProtocol.find_loss_key
    get_hint = NativeProtocol.get_hint

    def build_limits(self, rules: RuleSet) -> Limits:
        """Return the allowed ranges of the numbers in a train reply."""
        return replace(NativeProtocol.build_limits(self, rules), any_weight=True)

    @cached_property
    def loss_keys(self) -> tuple[str, ...]:
        """No key of a loss: the server reads none."""
        return ()

    @property
    def untrained_hint(self) -> str:
        """Which mods the ClientApp may lack."""
        return (
            ". A ClientApp that is not FedQuorum's needs two mods, in this order: "
            "ClientApp(mods=[SecureSumMod(), StandardAppMod()]), from fedquorum.flower.mods"
        )

    def log_summary(self) -> None:
        """Log the assumed shares, and how nodes become clients."""
        masks, settings = self.secure_aggregation, (self.fraction_evaluate, self.min_evaluate_nodes)
        assert masks is not None
        log(INFO, "\t├──> Evaluation: fraction (%.2f) | minimum nodes (%d)", *settings)
        log(INFO, "\t├──> Masks: colluding (%.2f) | dropping (%s)", masks.colluding, masks.dropping)
        log(INFO, "\t├──> Client ids: %s", self.client_ids_from)


_READ_ON_NODES = (
    *("weighted_by_key", "loss_key", "accuracy_key", "arrayrecord_key", "configrecord_key"),
)
"""The parameters of ``StandardProtocol`` that are parameters of ``StandardAppMod`` with masks."""


Form = tuple[tuple[str, str, int | None], ...]
"""The form of a reply's metrics: each record and key, and the length of a list."""


def _describe_form(form: Form, common: Form) -> str:
    """Return what one form has more, less and of another length than the common one."""
    lengths, expected = ({(name, key): n for name, key, n in one} for one in (form, common))
    differences = {
        "more": [key for key in lengths if key not in expected],
        "missing": [key for key in expected if key not in lengths],
        "of another length": [k for k, n in lengths.items() if k in expected and n != expected[k]],
    }
    texts = (
        f"{abbreviate(name for _, name in keys)} {text}"
        for text, keys in differences.items()
        if keys
    )
    return "; ".join(texts)


def _select_common_form(contents: Sequence[RecordDict]) -> list[RecordDict]:
    """Return the replies whose metrics have the form of the majority; all without a majority.

    Flower's strategies end the run if one client's metrics differ from the others'.
    """
    forms: list[Form] = [
        tuple(
            (name, key, len(value) if isinstance(value, list) else None)
            for name, record in sorted(select_records(content, MetricRecord).items())
            for key, value in sorted(record.items())
        )
        for content in contents
    ]
    ((common_form, count),) = Counter(forms).most_common(1)
    if 2 * count <= len(forms):
        return list(contents)
    if count < len(forms):
        other = next(form for form in forms if form != common_form)
        log(
            WARNING,
            "The metrics of %d of %d clients have another form and are left out: %s",
            *(len(forms) - count, len(forms)),
            _describe_form(other, common_form),
        )
    return [content for content, form in zip(contents, forms, strict=True) if form == common_form]
