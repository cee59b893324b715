"""How a strategy talks to the nodes: its timeouts, and what is in its messages."""

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
        Seconds to wait for the clients to connect, before round 1.
    startup_clients : int, optional
        How many of the clients must be connected for round 1 to begin, by default all. A client
        that connects later takes part from then on.
    partial_aggregation : bool
        Whether a node of several clients may return the weighted sum of their updates instead
        of all models, in rounds whose weights are known before training. The global model has the
        same bits either way.
    evaluated_clients : {"all", "priority"}
        Whose test part is evaluated. With ``priority`` a non-priority client reports nothing
        about itself except when it joins.
    evaluated_training : bool
        Whether the clients that are evaluated also measure their training part, all of them, for
        the records. Otherwise only the priority clients do, whose losses are the objective.
    evaluate_every : int
        Test parts are evaluated every so many rounds, and after ``last_round``.
    last_round : int, optional
        The last round of the run.
    metric : str
        What clients measure beside loss and accuracy, one of ``fedquorum.metrics.METRICS``.
    robustness : Robustness
        Bounds on what one client can do; by default none beyond what validation refuses.
    privacy : GaussianMechanism, optional
        How the models are made differentially private; by default they are not.
    clients_of_keys : mapping of str to frozenset of int, optional
        The clients of every node's public key, by its fingerprint; by default nodes are believed
        which clients they host. See ``ClientDirectory``.
    quorum : Quorum
        How many replies are enough to close a round; by default all.
    virtual_clock : bool
        Whether clients say how many simulated seconds they take (``ResponseTimeMod``), by which
        the quorum and ``round_timeout`` then tell who is in time; replies are waited for all the
        same. Evaluations take no simulated time.
    reply_memory : int, optional
        How many bytes of the replies of a round are in memory, where its weights need all of them
        at once; the others are in files. By default half of the machine's memory.
    class_alignment : bool
        Whether every round tells on which class each update points the way of the others, see
        ``fedquorum.alignment``. It needs all updates at once; the model has the same bits.

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
    class_alignment: bool = False

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
        """Return what finds out which node hosts which client."""
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
        """Refuse a grid on which it cannot be told which node is which client."""

    @property
    def closes_early(self) -> bool:
        """Whether a quorum may end a wait before everybody has replied."""
        return not (self.quorum.waits_for_all or self.virtual_clock)

    @property
    def reply_timeout(self) -> float:
        """How many seconds to wait for replies, by the wall clock."""
        return REAL_TIMEOUT if self.virtual_clock else self.round_timeout

    @property
    def reads_replies(self) -> bool:
        """Whether the metrics of training need whole replies."""
        return False

    @property
    def grows(self) -> bool:
        """Whether the population is whoever is connected."""
        return False

    def present(self, directory: ClientDirectory) -> frozenset[int] | None:
        """Return the clients among whom a round is sampled; None for all, connected or not."""
        return None

    def train_content(self, arrays: ArrayRecord, request: TrainRequest) -> RecordDict:
        """Return the content of a train message."""
        return encode_train_request(arrays, request)

    def evaluate_content(self, arrays: ArrayRecord, request: EvaluateRequest) -> RecordDict:
        """Return the content of an evaluate message."""
        return encode_evaluate_request(arrays, request)

    def tests_after(self, server_round: int) -> bool:
        """Return whether test parts are evaluated after a round."""
        return server_round % self.evaluate_every == 0 or server_round == self.last_round

    def tested(
        self, population: Population, directory: ClientDirectory, server_round: int
    ) -> tuple[int, ...]:
        """Return whose test part is evaluated after a round."""
        if not self.tests_after(server_round):
            return ()
        everyone = self.evaluated_clients == "all"
        chosen = population.clients if everyone else population.priority_clients
        return tuple(sorted((*chosen, *population.unseen))) if population.unseen else chosen

    def measured(self, population: Population, tested: tuple[int, ...]) -> tuple[int, ...]:
        """Return whose training part is measured too, where clients are tested after a round."""
        return population.priority_clients

    def limits(self, rules: Rules) -> Limits:
        """Return what the numbers in a train reply may be."""
        return Limits(needs_loss=rules.needs_losses)

    def largest_reply(self, num_clients: int, model: NamedArrays | None) -> int:
        """Return how many bytes a reply for so many clients can have, with models where given."""
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
        """Return the metrics of a round's training, of the replies that could be used."""
        return None if report.empty else MetricRecord({"admitted": report.admitted})

    def evaluate_metrics(self, contents: Sequence[RecordDict]) -> MetricRecord | None:
        """Return the metrics of an evaluation beside the objective."""
        return None

    def loss_key_of(self, content: RecordDict) -> str | None:
        """Return the key under which a reply has its loss, None where it can have only one."""
        return None

    def hint(self, reason: str) -> str:
        """Return what to set where no reply has the form that it must have."""
        return ""

    def summary(self) -> None:
        """Log what is special about the communication."""
