"""Communicate with the connected nodes, for which Flower's own strategies wait."""

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

    @property
    def is_dynamic(self) -> bool:
        """Whether the population consists of the connected clients."""
        return self.min_available_nodes is not None

    def build_node_registry(self, population: Population, rules: RuleSet) -> NodeRegistry:
        """Return the registry of nodes that report the clients that they host."""
        return NodeRegistry(
            None if self.is_dynamic else population.hosted_clients,
            self.clients_by_key,
            required=population.required or (),
            get_refusal=self.build_join_check(rules),
        )

    def build_join_check(self, rules: RuleSet) -> Callable[[int], str]:
        """Return a function that gives the reason why a client cannot join; empty if it can."""

        def get_refusal(client: int) -> str:
            if self.max_client_id is not None and client > self.max_client_id:
                return f"client ids are at most {self.max_client_id}, the largest in records"
            return rules.weighting.find_rejection_reason(client)

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
        clients = super().select_test_clients(population, registry, server_round)
        if self.is_dynamic:
            clients = tuple(k for k in clients if k in registry.connected_clients)
        size = round_down_in_binary(self.fraction_evaluate, len(clients))
        size = max(size, self.min_evaluate_nodes)
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
