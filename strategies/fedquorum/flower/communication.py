"""Define the protocol of a strategy with the nodes: its messages and its timeouts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import ClassVar

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from ..composition import Rules
from ..errors import ParameterError
from ..parameters import (
    COUNT,
    EVALUATED_CLIENTS,
    FAIRNESS_METRIC,
    NON_NEGATIVE_COUNT,
    POSITIVE,
)
from ..privacy import GaussianMechanism
from ..quorum import Quorum
from ..report import TrainReport
from ..robustness import Robustness
from ..rule import check_parameters, parameter
from ..types import Population
from .codec import (
    EvaluateAnswer,
    EvaluateRequest,
    NamedArrays,
    TrainAnswer,
    TrainRequest,
    decode_evaluate_reply,
    decode_train_reply,
    encode_evaluate_request,
    encode_train_request,
)
from .directory import ClientDirectory, ClientsOfKeys
from .validation import Limits, largest_reply

REAL_TIMEOUT = 3600.0  # seconds, where ``round_timeout`` is in simulated ones


@dataclass(frozen=True)
class Communication:
    """Communicate with nodes that follow this project's protocol.

    Parameters
    ----------
    round_timeout : float
        Seconds to wait for replies to messages that the strategy sends itself (the first
        objective). ``Strategy.start`` and the run loop use the same value for the rounds.
    startup_timeout : float
        Seconds to wait for the clients to connect before round 1.
    startup_clients : int, optional
        Number of clients that must be connected before round 1 begins; by default all. A client
        that connects later takes part from then on.
    partial_aggregation : bool
        Whether a node of several clients may return the weighted sum of their updates instead
        of all models, in rounds whose weights are known before training. The global model has the
        same bits either way.
    evaluated_clients : {"all", "priority"}
        The clients whose test parts are evaluated. With ``priority``, a non-priority client
        reports nothing about itself unless it trains.
    evaluated_training : bool
        Whether all evaluated clients also measure their training parts for the records. Otherwise
        only the priority clients do, whose losses are the objective.
    evaluate_every : int
        Evaluate the test parts every ``evaluate_every`` rounds, and after ``last_round``.
    last_round : int, optional
        The last round of the run.
    metric : str
        The metric that clients measure beside loss and accuracy, one of
        ``fedquorum.metrics.METRICS``.
    robustness : Robustness
        Bounds on the influence of one client; by default only validation limits it.
    privacy : GaussianMechanism, optional
        The mechanism that makes the models differentially private; by default there is none.
    clients_of_keys : mapping of str to frozenset of int, optional
        The clients of each node's public key, by the key's fingerprint. By default the server
        believes each node about the clients that it hosts. See ``ClientDirectory``.
    quorum : Quorum
        The number of replies that closes a round; by default all.
    virtual_clock : bool
        Whether clients report simulated response times (``ResponseTimeMod``). The quorum and
        ``round_timeout`` then count these simulated seconds, but the server still waits for all
        replies. Evaluations take no simulated time.
    reply_memory : int, optional
        Bytes of replies to keep in memory if the weights of a round need all replies at once; the
        rest goes to files. By default half of the machine's memory.

    Raises
    ------
    ParameterError
        For a value outside its range.
    """

    round_timeout: float = parameter(3600.0, POSITIVE)
    startup_timeout: float = parameter(300.0, POSITIVE)
    startup_clients: int | None = parameter(None, COUNT)
    evaluated_clients: str = parameter("all", EVALUATED_CLIENTS)
    evaluated_training: bool = False
    partial_aggregation: bool = True
    evaluate_every: int = parameter(1, COUNT)
    last_round: int | None = parameter(None, COUNT)
    metric: str = parameter("accuracy", FAIRNESS_METRIC)
    robustness: Robustness = field(default_factory=Robustness)
    privacy: GaussianMechanism | None = None
    clients_of_keys: ClientsOfKeys | None = None
    quorum: Quorum = field(default_factory=Quorum)
    virtual_clock: bool = False
    reply_memory: int | None = parameter(None, NON_NEGATIVE_COUNT)

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.privacy is not None and (self.grows or not self.follows_protocol):
            raise ParameterError(
                "privacy",
                f"None with {type(self).__name__}",
                self.privacy,
                "how much one client counts must be known before the run",
            )

    # What ``StandardProtocol`` does otherwise, for ClientApps written for Flower's strategies.

    follows_protocol: ClassVar[bool] = True

    def check_rules(self, rules: Rules) -> None:
        """Raise ParameterError for rules that such clients cannot serve."""
        if self.privacy is not None and rules.unbounded:
            raise ParameterError("privacy", "None", self.privacy, rules.unbounded)

    def directory(self, population: Population, rules: Rules) -> ClientDirectory:
        """Return the directory that finds out which node hosts which client."""
        return ClientDirectory(population.hosted, self.clients_of_keys, unseen=population.unseen)

    def meet(
        self, directory: ClientDirectory, grid: Grid, *, first: bool, evaluating: bool = False
    ) -> None:
        """Note which clients are connected; before the first round, wait for them."""
        if first:
            directory.wait(grid, self.startup_timeout, self.startup_clients)
            return
        for problem in directory.refresh(grid):
            log(WARNING, "A node cannot take part: %s", problem)

    def check_ids(self, grid: Grid, population: Population) -> None:
        """Refuse a grid that cannot tell which node is which client."""

    @property
    def closes_early(self) -> bool:
        """Whether a quorum may end a wait before all nodes have replied."""
        return not (self.quorum.waits_for_all or self.virtual_clock)

    @property
    def reply_timeout(self) -> float:
        """Seconds to wait for replies, by the wall clock."""
        return REAL_TIMEOUT if self.virtual_clock else self.round_timeout

    @property
    def reads_replies(self) -> bool:
        """Whether the metrics of training need whole replies."""
        return False

    @property
    def grows(self) -> bool:
        """Whether the population consists of the connected clients."""
        return False

    def present(self, directory: ClientDirectory) -> frozenset[int] | None:
        """Return the clients to sample from; None for all, connected or not."""
        return None

    def train_content(self, arrays: ArrayRecord, request: TrainRequest) -> RecordDict:
        """Return the content of a train message."""
        return encode_train_request(arrays, request)

    def evaluate_content(self, arrays: ArrayRecord, request: EvaluateRequest) -> RecordDict:
        """Return the content of an evaluate message."""
        return encode_evaluate_request(arrays, request)

    def tests_after(self, server_round: int) -> bool:
        """Say whether the test parts are evaluated after a round."""
        return server_round % self.evaluate_every == 0 or server_round == self.last_round

    def tested(
        self, population: Population, directory: ClientDirectory, server_round: int
    ) -> tuple[int, ...]:
        """Return the clients whose test parts are evaluated after a round."""
        if not self.tests_after(server_round):
            return ()
        everyone = self.evaluated_clients == "all"
        chosen = population.clients if everyone else population.priority_clients
        return tuple(sorted((*chosen, *population.unseen))) if population.unseen else chosen

    def measured(self, population: Population, tested: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tested clients whose training parts are measured as well."""
        return population.priority_clients

    def limits(self, rules: Rules) -> Limits:
        """Return the allowed ranges of the numbers in a train reply."""
        return Limits(needs_loss=rules.needs_losses)

    def largest_reply(self, num_clients: int, model: NamedArrays | None) -> int:
        """Return the largest size in bytes of a reply for ``num_clients``, with models if given."""
        return largest_reply(num_clients, model)

    def read_train(self, content: RecordDict, limits: Limits) -> list[TrainAnswer]:
        """Return the answers in a reply to a train message."""
        return decode_train_reply(content)

    def read_evaluate(self, content: RecordDict) -> list[EvaluateAnswer]:
        """Return the answers in a reply to an evaluate message."""
        return decode_evaluate_reply(content)

    def train_metrics(
        self, report: TrainReport, contents: Sequence[RecordDict]
    ) -> MetricRecord | None:
        """Return the metrics of a round's training, over the usable replies."""
        return None if report.empty else MetricRecord({"admitted": report.admitted})

    def evaluate_metrics(self, contents: Sequence[RecordDict]) -> MetricRecord | None:
        """Return the metrics of an evaluation beside the objective."""
        return None

    def loss_key_of(self, content: RecordDict) -> str | None:
        """Return the key of the loss in a reply, None if the protocol has only one."""
        return None

    @property
    def loss_keys(self) -> tuple[str, ...]:
        """The possible keys of the loss in a reply; empty if the protocol has only one."""
        return ()

    @property
    def other_form(self) -> str:
        """What the replies are in that this protocol cannot read, and what to set then."""
        return ""

    def hint(self, reason: str) -> str:
        """Return which setting to change if no reply has the expected form."""
        return ""

    def summary(self) -> None:
        """Log the settings of the communication that differ from the defaults."""
