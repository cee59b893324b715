"""Communication with the nodes that are connected, which Flower's own strategies wait for."""

from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import RecordDict
from flwr.serverapp import Grid

from ..composition import Rules
from ..parameters import FRACTION, NON_NEGATIVE_COUNT
from ..rounding import round_down_in_binary
from ..rule import parameter
from ..streams import stream
from ..types import Population
from .codec import EvaluateAnswer, OtherFormError, TrainAnswer, names_protocol
from .communication import Communication
from .directory import SET_STANDARD, ClientDirectory
from .validation import Limits


@dataclass(frozen=True, kw_only=True)
class ConnectedNodes(Communication):
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
    largest_id : int, optional
        The largest id of a client that joins; by default it may be any number.
    round_timeout, startup_timeout, startup_clients, robustness, evaluated_clients, clients_of_keys
        As in ``Communication``; so is ``quorum``.

    Raises
    ------
    ParameterError
        For a value outside its range.
    """

    fraction_evaluate: float = parameter(1.0, FRACTION)
    min_evaluate_nodes: int = parameter(2, NON_NEGATIVE_COUNT)
    min_available_nodes: int | None = parameter(None, NON_NEGATIVE_COUNT)
    largest_id: int | None = parameter(None, NON_NEGATIVE_COUNT)

    @property
    def grows(self) -> bool:
        """Whether the population consists of the connected clients."""
        return self.min_available_nodes is not None

    def directory(self, population: Population, rules: Rules) -> ClientDirectory:
        """Return the directory of nodes that say which clients they host."""
        return ClientDirectory(
            None if self.grows else population.hosted,
            self.clients_of_keys,
            awaited=population.awaited or (),
            refuses=self.refusal(rules),
        )

    def refusal(self, rules: Rules) -> Callable[[int], str]:
        """Return a function that gives the reason why a client cannot join; empty if it can."""

        def refuses(client: int) -> str:
            if self.largest_id is not None and client > self.largest_id:
                return f"client ids are at most {self.largest_id}, for which records have room"
            return rules.weighting.refuses(client)

        return refuses

    def meet(
        self, directory: ClientDirectory, grid: Grid, *, first: bool, evaluating: bool = False
    ) -> None:
        """Note which nodes are connected, and wait for as many clients as there must be."""
        at_least = self.min_available_nodes
        if at_least is None:
            super().meet(directory, grid, first=first)
            return
        if evaluating:
            at_least = max(at_least, self.min_evaluate_nodes)
        if first or not evaluating or self.fraction_evaluate > 0:
            directory.wait_for_nodes(grid, at_least, first=first)

    def present(self, directory: ClientDirectory) -> frozenset[int] | None:
        """Return the connected clients, from which a round samples.

        None, all of them, where the rules keep the clients that they began with: one that is away
        then counts as one that was asked and did not answer.
        """
        return directory.connected if directory.joins else None

    def tested(
        self, population: Population, directory: ClientDirectory, server_round: int
    ) -> tuple[int, ...]:
        """Return the share of the clients that evaluates, from the round alone."""
        clients = super().tested(population, directory, server_round)
        if self.grows:
            clients = tuple(k for k in clients if k in directory.connected)
        size = round_down_in_binary(self.fraction_evaluate, len(clients))
        size = max(size, self.min_evaluate_nodes)
        size = min(size, len(clients)) if self.fraction_evaluate > 0 else 0
        drawn = stream(0, "evaluation", server_round).permutation(len(clients))[:size]
        return tuple(sorted(clients[i] for i in drawn.tolist()))

    def measured(self, population: Population, tested: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tested priority clients, whose training parts are measured as well."""
        return tuple(k for k in tested if k in population.priority)

    def read_train(self, content: RecordDict, limits: Limits) -> list[TrainAnswer]:
        """Return the answers in a reply to a train message."""
        _check_form(content)
        return super().read_train(content, limits)

    def read_evaluate(self, content: RecordDict) -> list[EvaluateAnswer]:
        """Return the answers in a reply to an evaluate message."""
        _check_form(content)
        return super().read_evaluate(content)

    @property
    def other_form(self) -> str:
        """What the replies are in that this protocol cannot read, and what to set then."""
        return f"Flower's standard form. {SET_STANDARD}"


def _check_form(content: RecordDict) -> None:
    if not names_protocol(content):
        raise OtherFormError(
            "its reply is in Flower's standard form, and not in FedQuorum's protocol"
        )
