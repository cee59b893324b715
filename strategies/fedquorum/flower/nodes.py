"""Find out which node hosts which client: Flower draws node ids at random."""

import base64
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from logging import INFO, WARNING

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    SSHPublicKeyTypes,
    load_pem_public_key,
    load_ssh_public_key,
    ssh_key_fingerprint,
)
from flwr.app import ConfigRecord, Message, MessageType
from flwr.common.logger import log
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from ..errors import ClientsMissingError, ProtocolError, RunError
from ..records.client_names import NO_NAMES, ClientNames, clean_name
from ..records.hosts import Host
from ..rules.types import IntArray
from ..sanitize import MAX_REASON_LENGTH, abbreviate, sanitize
from .codec import (
    decode_client_names,
    decode_hosted_clients,
    encode_query,
    encode_standard_query,
    find_scale,
    has_protocol_version,
)
from .waiting_grid import is_http_grid, is_in_memory_grid, unwrap_grid

POLL_SECONDS = 0.2
REMIND_SECONDS = 10.0
QUERY_RETRY_SECONDS = 10.0
QUERY_SECONDS = 10.0
MAX_REFUSALS_SHOWN = 10  # of one reply
MAX_REFUSALS_STORED = 100
NO_QUERY_FUNCTION = "No query function registered"  # Flower's message
NEEDS_QUERY = (
    "client_ids=query asks every node for its client id, and {} answers: each needs a function "
    "under @app.query() that replies with MetricRecord({{'client-id': ...}}), four lines in "
    "docs/drop-in.md, 'Who is client 0'"
)
SET_STANDARD = 'For ClientApps written for Flower\'s own strategies set protocol="standard"'
SET_FEDQUORUM = 'set protocol="fedquorum" (not inside one of Flower\'s wrappers)'
NEEDS_PROTOCOL = (
    'protocol="fedquorum" asks every node which clients it hosts, and {} answers in that protocol. '
    + SET_STANDARD
)
MAX_JOINING_CLIENTS = 100_000  # clients of one node, if any client may join

MAX_HOSTS_LOGGED = 20  # beside those of priority clients
NOT_CONNECTED = "its node is not connected"

ClientsByKey = Mapping[str, frozenset[int]]


class NodeRegistry:
    """Query each connected node for the expected clients that it hosts.

    Without ``clients_by_key`` the registry trusts the nodes: the first node that claims a client
    hosts it while it is connected, and a second claim is refused. With ``clients_by_key`` the
    public key counts by which a node authenticates to the SuperLink. The registry does not query
    nodes with other keys, and refuses a claim to a client of another key. It logs each refusal with
    the node and its key.

    A node keeps its id over a restart, but may then host another client. If a node reconnects, the
    registry queries it again, and meanwhile assumes the same clients. If the registry refused a
    claim, it repeats the query from time to time.

    During the run the registry never waits for a query, so that a node without a reply delays no
    round.

    Parameters
    ----------
    clients : sequence of int or None
        The expected client ids, from the server's configuration; None accepts all that connect.
    clients_by_key : mapping of str to frozenset of int, optional
        The clients of every public key, by its fingerprint (``compute_fingerprint``) or by the
        name with which the SuperLink's operator registered the node.
    standard : bool
        Whether the nodes' ClientApp does not use this project's protocol. Otherwise a node with
        another version of the protocol cannot take part.
    required : iterable of int
        Clients for which ``wait_for_nodes`` waits before the run starts.
    startup_timeout : float
        Seconds for which it waits for them.
    get_refusal : callable
        Returns the reason why a client that joins cannot take part; empty if it can.
    held_out : iterable of int
        The clients that never train. The registry waits for them and they can be evaluated, but
        they are neither ``registered`` nor ``unregistered``.
    names : ClientNames
        The clients' names, if the server knows them.

    Attributes
    ----------
    names : ClientNames
        The clients' names; nodes may report further ones.
    scales : dict of int to ConfigRecord
        What nodes of one client report as its scale, unchecked.
    required : frozenset of int
        See above.
    nodes : frozenset of int
        The connected nodes.
    is_open : bool
        Whether further clients may join.
    """

    def __init__(
        self,
        clients: Sequence[int] | None,
        clients_by_key: ClientsByKey | None = None,
        *,
        standard: bool = False,
        required: Iterable[int] = (),
        startup_timeout: float = math.inf,
        get_refusal: Callable[[int], str] | None = None,
        held_out: Iterable[int] = (),
        names: ClientNames = NO_NAMES,
    ) -> None:
        self.names = names
        self.scales: dict[int, ConfigRecord] = {}
        self._standard = standard
        # The reason why a node that does not answer the query cannot take part.
        self._query_hint = NEEDS_QUERY if standard else NEEDS_PROTOCOL if clients is None else ""
        self._held_out = frozenset(held_out)
        self.required = frozenset(required)
        self._startup_timeout = startup_timeout
        self._get_refusal = get_refusal or _accept_any_client
        self._closing_reason = ""
        self._expected = set(clients or ())
        self.is_open = clients is None
        self._clients_by_key = clients_by_key
        self._key_of: dict[int, str] = {}
        self._node_names: dict[int, str] = {}
        self._problems: dict[int, str] = {}
        self._is_deployed: bool | None = None  # until the first list of nodes
        self._refused_nodes: set[int] = set()
        self._refusals = deque[str](maxlen=MAX_REFUSALS_STORED)
        self._queries: dict[str, int] = {}
        self._without_query: set[int] = set()
        self._query_after: dict[int, float] = {}
        self._claims: dict[int, tuple[int, ...]] = {}
        self._node_of: dict[int, int] = {}
        self.nodes: frozenset[int] = frozenset()
        self._registered_set: set[int] = set()
        self._registered = np.zeros(0, dtype=np.int64)

    def find_node(self, client: int) -> int | None:
        """Return the connected node that hosts ``client``, or None."""
        node = self._node_of.get(client)
        return node if node in self.nodes else None

    @property
    def hosts(self) -> Mapping[int, Host]:
        """The last node of every client in a deployment; empty in a simulation.

        A node that cannot take part is that of the clients of its key.
        """
        if not self._is_deployed:
            return {}
        nodes = dict(self._node_of)
        for node in sorted(self.nodes):
            for client in self._find_listed_clients(node):
                nodes.setdefault(client, node)
        return {
            client: Host(node, self._key_of.get(node), self._node_names.get(node, ""))
            for client, node in sorted(nodes.items())
        }

    def describe_node_of(self, client: int) -> str:
        """Describe the node of a client in a deployment; empty in a simulation."""
        node = self._node_of.get(client)
        return "" if node is None or not self._is_deployed else self._describe_node(node)

    def explain_absence(self, client: int) -> str:
        """Return why no connected node hosts a client."""
        possible = [node for node in sorted(self.nodes) if self._may_host(node, client)]
        for node in possible:
            if node in self._problems:
                reason = f"{self._describe_node(node)} cannot take part: {self._problems[node]}"
                return sanitize(reason, MAX_REASON_LENGTH)
        asked = set(self._queries.values())
        for node in possible:
            if node in asked:
                return f"{self._describe_node(node)} has not said yet which clients it hosts"
            if self._clients_by_key is not None:
                return f"{self._describe_node(node)} is connected, but does not host it"
        return NOT_CONNECTED

    def _may_host(self, node: int, client: int) -> bool:
        """Say whether a client may be on a node, as far as the node's key or claims tell."""
        if self._clients_by_key is not None:
            return client in self._find_listed_clients(node)
        claims = self._claims.get(node)
        return claims is None or client in claims

    def list_hosts(self) -> str:
        """List the node of each client, on one line."""
        listed = [f"client {k} is {host}" for k, host in self.hosts.items()]
        more = len(listed) - MAX_HOSTS_LOGGED
        further = [f"and {more} further clients"] if more > 0 else []
        return ", ".join([*listed[:MAX_HOSTS_LOGGED], *further])

    def log_hosts(self, priority: Collection[int]) -> None:
        """Log which node each client is; ``priority`` has the clients that are always listed."""
        others = 0
        for client, host in self.hosts.items():
            others += client not in priority
            if client in priority or others <= MAX_HOSTS_LOGGED:
                label = " (priority)" if client in priority else ""
                log(INFO, "Client %s%s is %s", self.names.format(client), label, host)
        if others > MAX_HOSTS_LOGGED:
            log(INFO, "... and %d further clients", others - MAX_HOSTS_LOGGED)

    @property
    def registered(self) -> IntArray:
        """The clients whose nodes were ever connected, ascending, without those held out."""
        # A registered client stays registered, so that equal sizes mean equal sets.
        if len(self._registered) != len(self._registered_set):
            self._registered = np.sort(
                np.fromiter(self._registered_set, dtype=np.int64, count=len(self._registered_set))
            )
        return self._registered

    def mark_registered(self, clients: Iterable[int]) -> None:
        """Treat ``clients`` as registered, whether or not their nodes are connected."""
        if self.is_open:
            self._expected.update(clients)
        self._registered_set |= self._expected.intersection(clients)

    @property
    def assignments(self) -> Mapping[int, int]:
        """The node of every client, if nodes have no other identity; otherwise empty."""
        return {}

    def restore_assignments(self, nodes: Mapping[int, int]) -> None:
        """Restore the node of every client from ``assignments``."""

    @property
    def unregistered(self) -> tuple[int, ...]:
        """The expected clients whose nodes were never connected, ascending."""
        if len(self._registered_set) + len(self._held_out) == len(self._expected):
            return ()
        return tuple(sorted(self._expected - self._registered_set - self._held_out))

    @property
    def connected_clients(self) -> frozenset[int]:
        """The clients on connected nodes."""
        return frozenset(k for k in self._registered_set if self._node_of.get(k) in self.nodes)

    def close(self, reason: str) -> None:
        """Accept no further clients, and refuse a node that joins with a new one."""
        self.is_open = False
        self._closing_reason = f": {reason}"

    def wait_for_nodes(self, grid: Grid, at_least: int, *, first: bool) -> None:
        """Wait, without limit, until the clients of this many nodes are connected.

        The first call also waits for the required clients, at most ``startup_timeout`` seconds once
        the others are there, and for a short time for connected nodes that have not replied to the
        query.

        Raises
        ------
        ClientsMissingError
            In the first call, if no connected node's ClientApp answers the query, or a required
            client does not connect.
        RunError
            In the first call of a resumed run, if none of its earlier nodes is connected.
        """
        required = self.required if first else frozenset()
        query_deadline = time.monotonic() + (QUERY_SECONDS if first else 0.0)
        reminded, complete_at = -math.inf, math.inf
        while True:
            for problem in self.refresh(grid):
                log(WARNING, "A node cannot take part: %s", problem)
            if first and len(self.nodes) >= max(1, at_least):
                self._check_queries()
            missing = sorted(required - self._registered_set)
            now = time.monotonic()
            enough = len(self.connected_clients) >= max(1, at_least)
            settled = not self._queries or now >= query_deadline
            if enough and not missing and settled:
                if first:
                    self._check_nodes()
                return
            if enough and missing:
                # A simulation has all its nodes from the start; to a deployment they come.
                complete_at = min(complete_at, now)
                never = settled and is_in_memory_grid(unwrap_grid(grid))
                if never or now - complete_at > self._startup_timeout:
                    raise self._build_missing_error(missing)
            if now - reminded > REMIND_SECONDS:
                reminded = now
                log(
                    INFO,
                    "Waiting for nodes to connect: %d connected (minimum required: %d)%s%s",
                    len(self.connected_clients),
                    max(1, at_least),
                    f"; missing priority clients: {self._list_names(missing)}, connected ones: "
                    f"{self._list_connected()}"
                    if missing
                    else "",
                    "" if enough else self._describe_way_on(at_least),
                )
            time.sleep(POLL_SECONDS)

    def _describe_way_on(self, at_least: int) -> str:
        """Return what to do where a node has left for good; empty if too few were ever there."""
        if len(self._registered_set) < at_least:
            return ""
        return (
            "; where a node has left for good, end the run and go on with resume_from and a lower "
            "min_available_nodes"
        )

    def _build_missing_error(self, missing: Sequence[int]) -> ClientsMissingError:
        return ClientsMissingError(
            f"priority must be among the clients {self._list_connected()}, which are connected, "
            f"got {self._list_names(missing)} too: start the nodes of these clients (the run waits "
            "startup_timeout for them), or leave them out of priority"
        )

    def _list_connected(self) -> str:
        return self._list_names(sorted(self.connected_clients)) or "none"

    def group_by_node(self, clients: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return the nodes that host ``clients``, each with its clients, all ascending."""
        groups: dict[int, list[int]] = {}
        for client in sorted(clients):
            node = self._node_of.get(client)
            if node in self.nodes:
                groups.setdefault(node, []).append(client)
        return {node: tuple(group) for node, group in groups.items()}

    def wait(self, grid: Grid, timeout: float, at_least: int | None = None) -> None:
        """Wait until ``at_least`` of the expected clients, by default all, are connected.

        With ``at_least``, the method also waits for the replies of the connected nodes, and leaves
        out a node that cannot take part.

        Raises
        ------
        ClientsMissingError
            After ``timeout`` seconds, with the missing clients and the refused claims. Without
            ``at_least``, also as soon as a node replies that it cannot take part.
        """
        enough = len(self._expected) if at_least is None else min(at_least, len(self._expected))
        started = reminded = time.monotonic()
        announced = False
        while True:
            problems = self.refresh(grid)
            if problems and at_least is None:
                raise ClientsMissingError(f"a node cannot take part: {problems[0]}")
            for problem in problems:
                log(WARNING, "A node cannot take part: %s", problem)
            missing = sorted(k for k in self._expected if self.find_node(k) is None)
            found = len(self._expected) - len(missing)
            now = time.monotonic()
            late = now - started > timeout
            if not missing or (found >= enough and (late or not self._queries)):
                break
            state = (
                f"{found} of {len(self._expected)} clients found on "
                f"{len(self.nodes)} nodes; missing clients: {self._list_names(missing)}"
            )
            if late:
                refusals = "".join(f" {refusal}." for refusal in self._refusals)
                raise ClientsMissingError(
                    f"after {timeout:g} s (startup_timeout), {state}. Start the nodes that "
                    f"host them, or lower startup_clients.{refusals}"
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
            len(self.nodes),
        )

    def refresh(self, grid: Grid) -> list[str]:
        """Note the connected nodes, query those that are new or back, and read replies.

        The next call reads replies that arrive later. Returns the problems of nodes that cannot
        take part; later calls query them again.
        """
        before, self.nodes = self.nodes, frozenset(self._find_admitted_nodes(grid))
        now = time.monotonic()
        for node in self.nodes - before:
            self._query_after.setdefault(node, now)
        waiting = set(self._queries.values())
        queried = [
            node
            for node, after in sorted(self._query_after.items())
            if node in self.nodes and node not in waiting and after <= now
        ]
        if queried:
            query = encode_standard_query if self._standard else encode_query
            messages = [Message(query(), node, MessageType.QUERY) for node in queried]
            sent = zip(grid.push_messages(messages), queried, strict=False)
            self._queries.update({query: node for query, node in sent if query})
        if self.nodes != before:
            self._reassign_clients()
        return self._read_query_replies(grid) if self._queries else []

    def _find_admitted_nodes(self, grid: Grid) -> set[int]:
        """Return the connected nodes whose keys have clients; all nodes if keys do not count."""
        if self._clients_by_key is None:
            return set(self._list_nodes(grid))
        self._is_deployed = True
        admitted = set()
        for node in grid.get_nodes():
            if not node.public_key:
                raise ClientsMissingError(
                    "clients are identified by their nodes' public keys, but nodes have no "
                    f"keys, as in a simulation: node {node.node_id} has none"
                )
            self._note_node(node)
            if self._find_listed_clients(node.node_id):
                admitted.add(node.node_id)
            elif node.node_id not in self._refused_nodes:
                self._refused_nodes.add(node.node_id)
                self._log_refusal(node.node_id, "is of no client of this run: it is not asked")
        return admitted

    def _list_nodes(self, grid: Grid) -> list[int]:
        """Return the connected nodes, and note the key and the name of each in a deployment."""
        if self._is_deployed is None:
            self._is_deployed = is_http_grid(unwrap_grid(grid))
        if not self._is_deployed:
            return [*grid.get_node_ids()]
        nodes = [*grid.get_nodes()]
        for node in nodes:
            with suppress(TypeError, ValueError):  # a key of another kind, which nothing reads
                self._note_node(node)
        return [node.node_id for node in nodes]

    def _note_node(self, node: NodeInfo) -> None:
        if node.node_id in self._key_of:
            return
        if node.name:
            self._node_names[node.node_id] = clean_name(node.name)
        if node.public_key:
            self._key_of[node.node_id] = compute_pem_fingerprint(node.public_key)

    def _find_listed_clients(self, node: int) -> frozenset[int]:
        """Return the clients that are listed for a node's key, or for its name."""
        listed = self._clients_by_key or {}
        by_key = listed.get(self._key_of.get(node, ""), frozenset())
        return by_key | listed.get(self._node_names.get(node, ""), frozenset())

    def _read_query_replies(self, grid: Grid) -> list[str]:
        problems = []
        for reply in grid.pull_messages(list(self._queries)):
            node = self._queries.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue  # not a reply to one of our queries
            del self._query_after[node]
            problem = (
                self._describe_query_error(node, reply.error.reason or "")
                if reply.has_error()
                else self._register(node, reply)
            )
            self._problems.pop(node, None)
            if problem is not None:
                self._problems[node] = problem
                self._retry_query(node)
                is_device = node in self._key_of or self._is_deployed
                problems.append(
                    f"{problem} ({self._describe_host(node)})" if is_device else problem
                )
        # A node that left may have taken the query with it.
        self._queries = {k: n for k, n in self._queries.items() if n in self.nodes}
        return problems

    def _check_nodes(self) -> None:
        """Check the nodes with which a run starts."""

    def _check_queries(self) -> None:
        if self._query_hint and self.nodes <= self._without_query and not self._claims:
            raise ClientsMissingError(self._query_hint.format("no ClientApp here"))

    def _describe_query_error(self, node: int, reason: str) -> str:
        """Return why a node did not answer the query; note a ClientApp that cannot answer it."""
        if not (self._query_hint and NO_QUERY_FUNCTION in reason):
            return sanitize(reason, MAX_REASON_LENGTH)
        return self._mark_without_query(node)

    def _mark_without_query(self, node: int) -> str:
        self._without_query.add(node)
        return self._query_hint.format("the ClientApp of " + self._describe_node(node) + " never")

    def _register(self, node: int, reply: Message) -> str | None:
        """Note the clients that a node claims; return the problem of its reply, if any."""
        if self._query_hint == NEEDS_PROTOCOL and not has_protocol_version(reply.content):
            return self._mark_without_query(node)
        try:
            clients = decode_hosted_clients(reply.content, standard=self._standard)
        except ProtocolError as error:
            return sanitize(error, MAX_REASON_LENGTH)
        if self.is_open and len(clients) > MAX_JOINING_CLIENTS:
            return (
                f"{self._describe_node(node)} claims {len(clients)} clients, at most "
                f"{MAX_JOINING_CLIENTS} may join"
            )
        listed = set(clients)
        dropped = [
            client
            for client in self._claims.get(node, ())
            if client not in listed and self._node_of.get(client) == node
        ]
        for client in dropped:
            del self._node_of[client]
        claimed, refused = self._check_claims(node, clients)
        for reason in refused[:MAX_REFUSALS_SHOWN]:
            self._log_refusal(node, reason)
        if len(refused) > MAX_REFUSALS_SHOWN:
            more = len(refused) - MAX_REFUSALS_SHOWN
            self._log_refusal(node, f"claims {more} further clients that it cannot have: refused")
        self._claims[node] = tuple(claimed)
        self._note_names(node, reply)
        self._note_scale(node, reply)
        if len(claimed) < len(clients):
            self._retry_query(node)
        if dropped:
            self._reassign_clients()
        return None

    def _check_claims(self, node: int, clients: Iterable[int]) -> tuple[list[int], list[str]]:
        """Return the clients that a node may claim, and the reasons for refusing the others."""
        claimed, refused = [], []
        for client in clients:
            problem = self._find_claim_problem(node, client)
            if problem:
                refused.append(f"claims client {self.names.format(client)}{problem}")
                continue
            claimed.append(client)
            if self.find_node(client) is None:
                self._node_of[client] = node
                if client not in self._held_out:
                    self._registered_set.add(client)
            elif self._node_of[client] != node:
                first = self._describe_node(self._node_of[client])
                name = self.names.format(client)
                refused.append(f"claims client {name}, which {first} has: refused")
        return claimed, refused

    def _find_claim_problem(self, node: int, client: int) -> str:
        """Return why a node cannot host a client, apart from other claims; empty if it can."""
        reason = self._get_refusal(client)
        if reason:
            return f": refused, {reason}"
        if not self._is_expected(client):
            return f", which is none of this run's: refused{self._closing_reason}"
        if self._clients_by_key and client not in self._find_listed_clients(node):
            return ", which is another key's: refused"
        return ""

    def _is_expected(self, client: int) -> bool:
        """Say whether a client may take part; while clients may join, any id may."""
        if self.is_open and client >= 0:
            self._expected.add(client)
        return client in self._expected

    def _retry_query(self, node: int) -> None:
        self._query_after[node] = time.monotonic() + QUERY_RETRY_SECONDS

    def _reassign_clients(self) -> None:
        """Reassign clients whose node has left to the first other node that claims them."""
        for node, clients in self._claims.items():
            if node in self.nodes:
                for client in clients:
                    if self.find_node(client) is None:
                        self._node_of[client] = node

    def _log_refusal(self, node: int, reason: str) -> None:
        refusal = f"{self._describe_node(node)} {reason}"
        if refusal not in self._refusals:
            self._refusals.append(refusal)
            log(WARNING, refusal)

    def _note_names(self, node: int, reply: Message) -> None:
        """Note the names that a node reports for the clients that it hosts."""
        reported = {
            client: name
            for client, name in decode_client_names(reply.content).items()
            if self._node_of.get(client) == node
        }
        if reported:
            self.names = ClientNames.clean({**self.names.names, **reported})

    def _note_scale(self, node: int, reply: Message) -> None:
        """Note the scale that a node reports for its client, if it hosts one."""
        scale = find_scale(reply.content)
        hosted = [client for client in self._claims[node] if self._node_of.get(client) == node]
        if scale is not None and len(hosted) == 1:
            self.scales[hosted[0]] = scale

    def _list_names(self, clients: Sequence[int]) -> str:
        return abbreviate([self.names.format(client) for client in clients])

    def _describe_host(self, node: int) -> str:
        """Describe a node with its key, and with the clients of its key or its earlier claims."""
        clients = sorted(self._find_listed_clients(node) or self._claims.get(node, ()))
        listed = f", client{'' if len(clients) == 1 else 's'} {self._list_names(clients)}"
        return self._describe_node(node) + (listed if clients else "")

    def _describe_node(self, node: int) -> str:
        return str(Host(node, self._key_of.get(node), self._node_names.get(node, "")))


class NodeIdRegistry(NodeRegistry):
    """Treat every node as one client, without a query.

    Before round 1 the connected nodes become clients by ascending node id. A node that joins later
    becomes the lowest client without a node so far. A node that comes back keeps its client.

    Parameters
    ----------
    clients : sequence of int or None
        The client ids, from the server's configuration; None accepts all that connect.
    required, startup_timeout, get_refusal
        As in ``NodeRegistry``.
    """

    def __init__(
        self,
        clients: Sequence[int] | None,
        *,
        required: Iterable[int] = (),
        startup_timeout: float = math.inf,
        get_refusal: Callable[[int], str] | None = None,
    ) -> None:
        super().__init__(
            clients, required=required, startup_timeout=startup_timeout, get_refusal=get_refusal
        )
        self._num_required = len(self._expected)
        self._assigned_nodes: frozenset[int] = frozenset()

    @property
    def assignments(self) -> Mapping[int, int]:
        """The node of every client so far."""
        return dict(self._node_of)

    def restore_assignments(self, nodes: Mapping[int, int]) -> None:
        """Restore the node of every client."""
        self._node_of.update(nodes)
        self._assigned_nodes = frozenset(nodes.values())

    def _check_nodes(self) -> None:
        """Raise RunError if a resumed run has none of its earlier nodes."""
        if self._assigned_nodes and not self._assigned_nodes & self.nodes:
            raise RunError(
                f"resume_from needs nodes that the run had before, got {len(self.nodes)} "
                "others: with client_ids=node-order a node is known by its id, which a simulation "
                "draws anew for every run. Set client_ids=query in a run from its start"
            )

    def wait(self, grid: Grid, timeout: float, at_least: int | None = None) -> None:
        """Wait for ``at_least`` nodes, by default one for each expected client."""
        if at_least is not None:
            self._num_required = min(at_least, self._num_required)
        super().wait(grid, timeout, at_least)

    def refresh(self, grid: Grid) -> list[str]:
        """Note the connected nodes, and assign the remaining clients to the new ones."""
        self.nodes = frozenset(self._list_nodes(grid))
        if not self._node_of and len(self.nodes) < self._num_required:
            return []
        new = sorted(self.nodes - set(self._node_of.values()))
        if new and self.is_open:
            self._expect_joiners(len(new))
        unassigned = sorted(self._expected - self._node_of.keys())
        self._node_of.update(zip(unassigned, new, strict=False))
        self._registered_set.update(self._node_of)
        for node in new[len(unassigned) :]:
            if node not in self._refused_nodes:
                why = self._closing_reason or f"is one more than the {len(self._expected)} clients"
                self._log_refusal(
                    node, f"is refused{why}" if self._closing_reason else f"{why}: not asked"
                )
        self._refused_nodes.update(new[len(unassigned) :])
        return []

    def _expect_joiners(self, count: int) -> None:
        """Expect this many more clients, with the lowest unused ids that may take part."""
        for client in range(len(self._expected), len(self._expected) + count):
            problem = self._get_refusal(client)
            if problem:
                self._closing_reason = f": as client {client} it cannot take part, {problem}"
                return
            self._expected.add(client)


class NodeKeyRegistry(NodeRegistry):
    """Treat every node as the client that is listed for its public key, without a query.

    Parameters
    ----------
    clients, clients_by_key, required, startup_timeout, get_refusal
        As in ``NodeRegistry``; each key has one client.
    """

    def refresh(self, grid: Grid) -> list[str]:
        """Note the connected nodes, and their clients."""
        before, self.nodes = self.nodes, frozenset(self._find_admitted_nodes(grid))
        for node in sorted(self.nodes):
            if self._claims.get(node):
                continue
            claimed, refused = self._check_claims(node, sorted(self._find_listed_clients(node)))
            for reason in refused:
                self._log_refusal(node, reason)
            self._claims[node] = tuple(claimed)
        if self.nodes != before:
            self._reassign_clients()
        return []


def read_fingerprint(key: str) -> str:
    """Return the fingerprint of a public key in OpenSSH's form; any other text unchanged."""
    try:
        return compute_fingerprint(load_ssh_public_key(key.strip().encode()))
    except (ValueError, UnsupportedAlgorithm):
        return key


def compute_fingerprint(key: SSHPublicKeyTypes) -> str:
    """Return a public key's SHA-256 fingerprint, as ``ssh-keygen -l`` prints it."""
    digest = base64.b64encode(ssh_key_fingerprint(key, SHA256())).decode("ascii")
    return "SHA256:" + digest.rstrip("=")


def compute_pem_fingerprint(public_key: bytes) -> str:
    """Return the fingerprint of an elliptic-curve key in Flower's PEM form."""
    key = load_pem_public_key(public_key)
    if not isinstance(key, EllipticCurvePublicKey):
        raise TypeError(f"a node has a key of {type(key).__name__}")
    return compute_fingerprint(key)


def _accept_any_client(_client: int) -> str:
    """Return an empty reason: any client may join."""
    return ""
