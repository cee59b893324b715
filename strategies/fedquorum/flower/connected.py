"""Communication with the nodes that are connected, which Flower's own strategies wait for."""

from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import RecordDict
from flwr.serverapp import Grid

from ..composition import RuleSet
from ..parameters import FRACTION, NON_NEGATIVE_INT
from ..rng import make_generator
from ..rounding import round_down_in_binary
from ..rule import parameter
from ..types import Population
from .codec import EvaluateResult, ProtocolMismatchError, TrainResult, has_protocol_version
from .communication import NativeProtocol
from .nodes import SET_STANDARD, NodeRegistry
from .validation import Limits


@dataclass(frozen=True, kw_only=True)
class DynamicProtocol(NativeProtocol):
    """Communicate in this project's protocol with the clients of all connected nodes.

    A node says which clients it hosts, and each of them counts as a node does in Flower's own
    strategies.

    Parameters
    ----------
    fraction_evaluate : float (default: 1.0)
        Share of the clients that evaluate after a round, in [0, 1]; 0 for none. Which ones
        follows from the round alone.
    min_evaluate_nodes : int (default: 2)
        The fewest clients that evaluate, as far as there are so many.
    min_available_nodes : int, optional
        How many clients must be connected for a round to begin; the strategy waits without limit.
        By default every client of the population must be there, for ``startup_timeout``.
    max_client_id : int, optional
        The largest id of a client that joins; by default it may be any number.
    round_timeout, startup_timeout, startup_clients, robustness, evaluated_clients, clients_of_keys
        As in ``Communication``; so is ``quorum``.

    Raises
    ------
    ParameterError
        For a value outside its range.
    """

    fraction_evaluate: float = parameter(1.0, FRACTION)
    min_evaluate_nodes: int = parameter(2, NON_NEGATIVE_INT)
    min_available_nodes: int | None = parameter(None, NON_NEGATIVE_INT)
    max_client_id: int | None = parameter(None, NON_NEGATIVE_INT)

    @property
    def is_dynamic(self) -> bool:
        """Whether the population consists of the connected clients."""
        return self.min_available_nodes is not None

    def build_node_registry(self, population: Population, rules: RuleSet) -> NodeRegistry:
        """Return the directory of nodes that say which clients they host."""
        return NodeRegistry(
            None if self.is_dynamic else population.hosted_clients,
            self.clients_by_key,
            required=population.required or (),
            get_refusal=self.build_join_check(rules),
        )

    def build_join_check(self, rules: RuleSet) -> Callable[[int], str]:
        """Return a function that gives the reason why a client cannot join; empty if it can."""

        def refuses(client: int) -> str:
            if self.max_client_id is not None and client > self.max_client_id:
                return f"client ids are at most {self.max_client_id}, for which records have room"
            return rules.weighting.find_rejection_reason(client)

        return refuses

    def wait_for_clients(
        self, registry: NodeRegistry, grid: Grid, *, first: bool, evaluating: bool = False
    ) -> None:
        """Note which nodes are connected, and wait for as many clients as there must be."""
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

        None, all of them, where the rules keep the clients that they began with: one that is away
        then counts as one that was asked and did not answer.
        """
        return registry.connected_clients if registry.is_open else None

    def select_test_clients(
        self, population: Population, registry: NodeRegistry, server_round: int
    ) -> tuple[int, ...]:
        """Return the share of the clients that evaluates, from the round alone."""
        clients = super().select_test_clients(population, registry, server_round)
        if self.is_dynamic:
            clients = tuple(k for k in clients if k in registry.connected_clients)
        size = round_down_in_binary(self.fraction_evaluate, len(clients))
        size = max(size, self.min_evaluate_nodes)
        size = min(size, len(clients)) if self.fraction_evaluate > 0 else 0
        drawn = make_generator(0, "evaluation", server_round).permutation(len(clients))[:size]
        return tuple(sorted(clients[i] for i in drawn.tolist()))

    def select_objective_clients(
        self, population: Population, test_clients: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the tested priority clients, whose training parts are measured as well."""
        return tuple(k for k in test_clients if k in population.priority)

    def read_train_reply(self, content: RecordDict, limits: Limits) -> list[TrainResult]:
        """Return the answers in a reply to a train message."""
        _check_native_reply(content)
        return super().read_train_reply(content, limits)

    def read_evaluate_reply(self, content: RecordDict) -> list[EvaluateResult]:
        """Return the answers in a reply to an evaluate message."""
        _check_native_reply(content)
        return super().read_evaluate_reply(content)

    @property
    def other_protocol_hint(self) -> str:
        """What the replies are in that this protocol cannot read, and what to set then."""
        return f"Flower's standard form. {SET_STANDARD}"


def _check_native_reply(content: RecordDict) -> None:
    if not has_protocol_version(content):
        raise ProtocolMismatchError(
            "its reply is in Flower's standard form, and not in FedQuorum's protocol"
        )
