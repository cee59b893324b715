"""How a strategy talks to the nodes: its timeouts, and what is in its messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from strategies.codec import (
    ClientReply,
    EvaluateRequest,
    TrainRequest,
    decode_replies,
    encode_evaluate_request,
    encode_train_request,
)
from strategies.directory import ClientDirectory, ClientsOfKeys
from strategies.parameters import COUNT, POSITIVE, OneOf
from strategies.report import ClientDecision
from strategies.robustness import Robustness
from strategies.selection import Selection
from strategies.types import Population

EVALUATED_CLIENTS = OneOf(("all", "priority"))


@dataclass(frozen=True)
class Communication:
    """How a strategy talks to the nodes.

    Parameters
    ----------
    round_timeout : float
        Seconds to wait for replies to messages that the strategy sends itself (the first
        measurement). ``Strategy.start`` and the run loop use the same value for the rounds.
    startup_timeout : float
        Seconds to wait until the clients are there, before round 1.
    startup_clients : int, optional
        How many of the clients must be there for round 1 to begin, by default all. Who comes
        later takes part from then on.
    partial_aggregation : bool
        Whether a node of several clients may return the weighted sum of their updates instead
        of all models, in rounds whose weights are known before training.
    evaluated_clients : {"all", "priority"}
        Whose test part is measured. With ``priority`` a non-priority client reports nothing
        about itself except when it joins.
    robustness : Robustness
        Bounds on what one client can do; by default none beyond what validation refuses.
    clients_of_keys : mapping of str to frozenset of int, optional
        The clients of every node's public key, by its fingerprint; by default nodes are believed
        which clients they host. See ``ClientDirectory``.
    """

    round_timeout: float = 3600.0
    startup_timeout: float = 300.0
    startup_clients: int | None = None
    evaluated_clients: str = "all"
    partial_aggregation: bool = True
    robustness: Robustness = field(default_factory=Robustness)
    clients_of_keys: ClientsOfKeys | None = None

    def __post_init__(self) -> None:
        POSITIVE.check("round_timeout", self.round_timeout)
        POSITIVE.check("startup_timeout", self.startup_timeout)
        if self.startup_clients is not None:
            COUNT.check("startup_clients", self.startup_clients)
        EVALUATED_CLIENTS.check("evaluated_clients", self.evaluated_clients)

    # What ``PlainApp`` does otherwise, for ClientApps that do not know this project's protocol.

    follows_protocol: ClassVar[bool] = True

    def check_selection(self, selection: Selection, population: Population) -> None:
        """Raise ParameterError for a selection that such clients cannot serve."""

    def directory(self, population: Population) -> ClientDirectory:
        """Return what finds out which node hosts which client."""
        return ClientDirectory(population.clients, self.clients_of_keys)

    def train_content(self, arrays: ArrayRecord, request: TrainRequest) -> RecordDict:
        """Return the content of a train message."""
        return encode_train_request(arrays, request)

    def evaluate_content(self, arrays: ArrayRecord, request: EvaluateRequest) -> RecordDict:
        """Return the content of an evaluate message."""
        return encode_evaluate_request(arrays, request)

    def evaluated(self, population: Population, server_round: int) -> tuple[int, ...]:
        """Return whose test part is measured."""
        everyone = self.evaluated_clients == "all"
        return population.clients if everyone else population.priority_clients

    def read(self, content: RecordDict, *, trained: bool) -> list[ClientReply]:
        """Return the parts of a reply, to a train message or to an evaluate message."""
        return decode_replies(content)

    def train_metrics(self, replies: list[RecordDict]) -> MetricRecord | None:
        """Return what the replies that could be used say together, beside the rules."""

    def evaluate_metrics(self, replies: list[RecordDict]) -> MetricRecord | None:
        """Return what the evaluations say together, beside the objective."""

    def tell(self, decisions: Sequence[ClientDecision]) -> None:
        """Log what became of a round where no records are kept of it."""

    def summary(self) -> None:
        """Log what is special about the communication."""
