"""Which node hosts which client: Flower's node ids are random, client ids are not."""

import time
from collections.abc import Iterable, Sequence
from logging import INFO, WARNING

from flwr.app import Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from strategies.codec import ProtocolError, decode_hosted_clients

POLL_SECONDS = 0.2
REMIND_SECONDS = 10.0


class ClientsMissingError(RuntimeError):
    """Not all expected clients were there in time, or a node that came cannot take part."""


class ClientDirectory:
    """Finds out by query which of the expected clients each connected node hosts.

    Parameters
    ----------
    clients : sequence of int
        The client ids expected, from the server's configuration.
    """

    def __init__(self, clients: Sequence[int]) -> None:
        self._expected = frozenset(clients)
        self._queried: set[int] = set()
        self._node_of: dict[int, int] = {}
        self._connected: set[int] = set()
        self._met: set[int] = set()

    def node_of(self, client: int) -> int | None:
        """Return the connected node that hosts ``client``, or None."""
        node = self._node_of.get(client)
        return node if node in self._connected else None

    @property
    def known(self) -> tuple[int, ...]:
        """The clients whose nodes were ever there, ascending."""
        return tuple(sorted(self._met))

    def remember(self, clients: Iterable[int]) -> None:
        """Know ``clients`` from before, whether or not their nodes are there now."""
        self._met |= self._expected.intersection(clients)

    @property
    def unknown(self) -> tuple[int, ...]:
        """The expected clients whose nodes were never there, ascending."""
        if len(self._node_of) == len(self._expected):
            return ()
        return tuple(sorted(self._expected.difference(self._node_of)))

    def by_node(self, clients: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return the nodes that host ``clients``, each with its share, all ascending."""
        shares: dict[int, list[int]] = {}
        for client in sorted(clients):
            node = self.node_of(client)
            if node is not None:
                shares.setdefault(node, []).append(client)
        return {node: tuple(share) for node, share in shares.items()}

    def wait(self, grid: Grid, timeout: float, at_least: int | None = None) -> None:
        """Wait until so many of the expected clients, by default all, are on connected nodes.

        Raises
        ------
        ClientsMissingError
            After ``timeout`` seconds, naming the clients that are missing, or as soon as a
            node answers that it cannot take part.
        """
        enough = len(self._expected) if at_least is None else min(at_least, len(self._expected))
        started = reminded = time.monotonic()
        announced = False
        while True:
            problems = self.refresh(grid, timeout)
            if problems:
                raise ClientsMissingError(f"a node cannot take part: {problems[0]}")
            missing = sorted(k for k in self._expected if self.node_of(k) is None)
            found = len(self._expected) - len(missing)
            if found >= enough:
                break
            now = time.monotonic()
            state = (
                f"{found} of {len(self._expected)} clients found on "
                f"{len(self._connected)} nodes; missing clients: {_abbreviate(missing)}"
            )
            if now - started > timeout:
                raise ClientsMissingError(
                    f"engine.startup_timeout: after {timeout:g} s, {state}. Start the nodes that "
                    "host them, or lower engine.startup_clients."
                )
            if not announced or now - reminded > REMIND_SECONDS:
                announced, reminded = True, now
                log(INFO, "Waiting for %d clients before round 1: %s", enough, state)
            time.sleep(POLL_SECONDS)
        log(
            INFO,
            "%d of %d clients found on %d nodes",
            found,
            len(self._expected),
            len(self._connected),
        )

    def refresh(self, grid: Grid, timeout: float) -> list[str]:
        """Note which nodes are connected and ask the new ones which clients they host.

        Returns what is wrong with nodes that cannot take part; they are asked again next time.
        """
        self._connected = set(grid.get_node_ids())
        new = sorted(self._connected - self._queried)
        problems: list[str] = []
        if not new:
            return problems
        replies = grid.send_and_receive(
            [Message(RecordDict(), node, MessageType.QUERY) for node in new], timeout=timeout
        )
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                problems.append(str(reply.error.reason))
                continue
            try:
                self._register(node, decode_hosted_clients(reply.content))
            except ProtocolError as error:
                problems.append(str(error))
        return problems

    def _register(self, node: int, clients: Sequence[int]) -> None:
        self._queried.add(node)
        for client in clients:
            if client not in self._expected:
                log(WARNING, "Client %d is not one of the expected clients: ignored", client)
            elif self.node_of(client) not in (None, node):
                log(WARNING, "Client %d is on another node already: claim refused", client)
            else:
                self._node_of[client] = node
                self._met.add(client)


def _abbreviate(clients: Sequence[int], limit: int = 10) -> str:
    shown = ", ".join(str(k) for k in clients[:limit])
    return shown if len(clients) <= limit else f"{shown}, ... ({len(clients)} in all)"
