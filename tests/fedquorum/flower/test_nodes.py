"""The registry of nodes: claims, keys, late and broken nodes."""

import re
import time

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fedquorum.errors import ClientsMissingError
from fedquorum.flower.codec import (
    PROTOCOL_VERSION,
    add_client_names,
    add_scale,
    encode_hosted_clients,
)
from fedquorum.flower.nodes import (
    MAX_JOINING_CLIENTS,
    MAX_REFUSALS_SHOWN,
    MAX_REFUSALS_STORED,
    NOT_CONNECTED,
    NodeKeyRegistry,
    NodeRegistry,
    compute_pem_fingerprint,
    read_fingerprint,
)
from fedquorum.records.client_names import ClientNames
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tests.builders_flower import KeyedGrid, make_deployment_grid, make_grid


def test_clients_whose_nodes_never_connected_are_unregistered() -> None:
    """Every expected client is either registered or unregistered."""
    registry = NodeRegistry((0, 1, 2, 3))
    assert (registry.registered.tolist(), registry.unregistered) == ([], (0, 1, 2, 3))
    assert registry.refresh(KeyedGrid([[3, 0]])) == []
    assert (registry.registered.tolist(), registry.unregistered) == ([0, 3], (1, 2))


@pytest.mark.parametrize("standard", [False, True])
def test_a_node_of_another_version_cannot_take_part(standard: bool) -> None:
    """The error says which side to update; a ClientApp written for Flower has no version."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        content = RecordDict({"metrics": MetricRecord({"client-id": [0]})})
        return Message(content, reply_to=message)

    registry, nodes = NodeRegistry([0], standard=standard), make_grid(app, 1)
    if standard:
        registry.wait(nodes, 1)
        assert registry.registered.tolist() == [0]
        return
    problem = f"this node speaks 1, the server {PROTOCOL_VERSION}: update fedquorum on the node"
    with pytest.raises(ClientsMissingError, match=f"^a node cannot take part: {problem}$"):
        registry.wait(nodes, 1)


def test_nodes_are_trusted_without_keys() -> None:
    """A node that claims a client hosts it."""
    nodes, registry = KeyedGrid([[0, 2], [1]]), NodeRegistry([0, 1, 2])
    registry.wait(nodes, 1)
    assert registry.group_by_node([0, 1, 2]) == {1: (0, 2), 2: (1,)}
    assert registry.registered.tolist() == [0, 1, 2]


def test_a_node_cannot_bring_any_number_of_clients() -> None:
    """If any client may join, one node brings a bounded number; other nodes' clients stay."""
    nodes, registry = KeyedGrid([[0], [*range(MAX_JOINING_CLIENTS + 1)]]), NodeRegistry(None)
    (problem,) = registry.refresh(nodes)
    assert problem == "node 2 claims 100001 clients, at most 100000 may join"
    assert registry.registered.tolist() == [0]


def test_refusals_are_stored_up_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    """A node that claims ever new clients fills neither the memory nor the log."""
    registry = NodeRegistry([0])
    for number in range(30):
        claimed = range(1000 * number + 1, 1000 * number + 1000)
        registry._query_after.clear()
        registry.nodes = frozenset()
        registry.refresh(KeyedGrid([[*claimed]]))
    assert len(registry._refusals) == MAX_REFUSALS_STORED
    assert len(caplog.records) <= 30 * (MAX_REFUSALS_SHOWN + 1)


def test_a_second_claim_is_refused_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """Two nodes claim client 0: the first hosts it, and the second claim is logged and refused."""
    nodes, registry = KeyedGrid([[0], [0, 1]]), NodeRegistry([0, 1])
    registry.wait(nodes, 1)
    assert registry.group_by_node([0, 1]) == {1: (0,), 2: (1,)}
    assert "node 2 claims client 0, which node 1 has: refused" in caplog.text


def test_a_second_claim_counts_once_the_first_node_left() -> None:
    """Without keys, a device that returns as another node hosts its client again."""
    nodes, registry = KeyedGrid([[0], [0]]), NodeRegistry([0])
    registry.wait(nodes, 1)
    nodes.away = {1}
    registry.refresh(nodes)
    assert registry.find_node(0) == 2
    nodes.away = {1, 2}
    registry.refresh(nodes)
    assert registry.find_node(0) is None


def test_a_node_that_was_away_may_host_another_client(caplog: pytest.LogCaptureFixture) -> None:
    """It keeps its client until it reports another; then another node that claims it gets it."""
    nodes, registry = KeyedGrid([[0], [1], [0]]), NodeRegistry([0, 1, 2])
    registry.refresh(nodes)
    nodes.away = {1}
    registry.refresh(nodes)
    nodes.away = {1, 3}
    registry.refresh(nodes)
    assert registry.group_by_node([0, 1, 2]) == {2: (1,)}
    nodes.away, nodes.claims[3], nodes.mute = {1}, [2], {3}
    registry.refresh(nodes)
    assert registry.group_by_node([0, 1, 2]) == {2: (1,), 3: (0,)}
    nodes.mute = set()
    registry.refresh(nodes)
    assert registry.group_by_node([0, 1, 2]) == {2: (1,), 3: (2,)}
    nodes.away = set()
    registry.refresh(nodes)
    assert registry.group_by_node([0, 1, 2]) == {1: (0,), 2: (1,), 3: (2,)}
    assert nodes.queries == [1, 2, 3, 3, 1]
    assert caplog.text.count("node 3 claims client 0, which node 1 has: refused") == 1


def test_a_rejected_node_is_queried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Restarted with the client of its key, it takes part, even if it never seemed disconnected."""
    monkeypatch.setattr("fedquorum.flower.nodes.QUERY_RETRY_SECONDS", 0.0)
    nodes = KeyedGrid([[1], [1]])
    registry = NodeRegistry([0, 1], nodes.group_by_key({1: {1}, 2: {0}}))
    for _ in range(3):
        registry.refresh(nodes)
    assert registry.group_by_node([0, 1]) == {1: (1,)}
    assert nodes.queries == [1, 2, 2, 2]
    assert caplog.text.count("claims client 1, which is another key's: refused") == 1
    nodes.claims[2] = [0]
    registry.wait(nodes, 1)
    assert registry.group_by_node([0, 1]) == {1: (1,), 2: (0,)}
    registry.refresh(nodes)
    assert nodes.queries == [1, 2, 2, 2, 2]


def test_a_client_of_no_run_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A claim to a client that the server does not expect has no effect."""
    nodes, registry = KeyedGrid([[0, 7]]), NodeRegistry([0])
    registry.wait(nodes, 1)
    assert registry.group_by_node([0, 7]) == {1: (0,)}
    assert "node 1 claims client 7, which is none of this run's: refused" in caplog.text


def test_with_keys_the_claim_to_another_ones_client_is_refused() -> None:
    """Node 2 may only host client 1, not client 0; the error has node and key."""
    nodes = KeyedGrid([[1], [0]])
    registry = NodeRegistry([0, 1], nodes.group_by_key({1: {1}, 2: {1}}))
    refused = re.escape(
        f"node 2 with key {nodes.get_fingerprint(2)} claims client 0, "
        "which is another key's: refused"
    )
    with pytest.raises(ClientsMissingError, match=f"missing clients: 0.*{refused}"):
        registry.wait(nodes, 0.3)
    assert registry.group_by_node([0, 1]) == {1: (1,)}


def test_with_keys_the_first_claim_does_not_win() -> None:
    """An impostor that connects first does not keep the rightful node out."""
    nodes = KeyedGrid([[0], [0]])
    registry = NodeRegistry([0, 1], nodes.group_by_key({1: {1}, 2: {0}}))
    registry.wait(nodes, 1, at_least=1)
    assert registry.group_by_node([0]) == {2: (0,)}


def test_nodes_with_other_keys_get_no_message(caplog: pytest.LogCaptureFixture) -> None:
    """A node whose key has no client gets no message, and is logged once."""
    nodes = KeyedGrid([[0], [0]])
    registry = NodeRegistry([0], nodes.group_by_key({2: {0}}))
    registry.wait(nodes, 1)
    registry.refresh(nodes)
    assert nodes.queries == [2]
    assert registry.find_node(0) == 2
    named = (
        f"node 1 with key {nodes.get_fingerprint(1)} is of no client of this run: it is not asked"
    )
    assert caplog.text.count(named) == 1


def test_nodes_without_keys_are_refused_if_keys_count() -> None:
    """The error says that a simulation's nodes have no keys."""
    nodes = KeyedGrid([[0]])
    nodes.keyed = False
    registry = NodeRegistry([0], nodes.group_by_key({1: {0}}))
    with pytest.raises(
        ClientsMissingError, match="identified by their nodes' public keys, but nodes have no keys"
    ):
        registry.wait(nodes, 0.3)


def test_a_node_that_never_answers_costs_a_round_nothing() -> None:
    """Its reply counts whenever it arrives; until then no round waits for it."""
    nodes, registry = KeyedGrid([[0], [1]]), NodeRegistry([0, 1])
    nodes.mute = {2}
    started = time.monotonic()
    assert registry.refresh(nodes) == []
    assert time.monotonic() - started < 60
    assert registry.group_by_node([0, 1]) == {1: (0,)}
    assert registry.refresh(nodes) == []
    assert nodes.queries == [1, 2]
    nodes.mute = set()
    registry.refresh(nodes)
    assert registry.group_by_node([0, 1]) == {1: (0,), 2: (1,)}


def test_the_start_waits_for_query_replies_only_until_its_timeout() -> None:
    """With enough clients, a node that does not reply delays the start and is left out."""
    nodes, registry = KeyedGrid([[0], [1]]), NodeRegistry([0, 1])
    nodes.mute = {2}
    registry.wait(nodes, 0.3, at_least=1)
    assert registry.registered.tolist() == [0]


def test_nodes_name_their_clients() -> None:
    """A node names only clients that it hosts; names of another form count as none."""
    nodes, registry = KeyedGrid([[0, 1], [2], [3]]), NodeRegistry([0, 1, 2, 3])
    names = {1: {0: "North\x1b", 1: "South", 3: "mine"}, 2: {2: "North"}, 3: {}}

    def reply(message: Message) -> Message:
        node = message.metadata.dst_node_id
        content = add_client_names(encode_hosted_clients(nodes.claims[node]), names[node])
        if node == 3:
            content["names"] = ConfigRecord({"client-id": [3, 4], "name": ["x"]})
        return Message(content, reply_to=message)

    nodes.reply = reply
    registry.wait(nodes, 1)
    assert registry.names.names == {0: "North", 1: "South", 2: "North"}


def test_a_node_reports_the_scale_of_its_client() -> None:
    """Only the one client that it hosts, unchecked; later queries replace it."""
    nodes, registry = KeyedGrid([[0, 1], [2], [2], [7]]), NodeRegistry([0, 1, 2])

    def reply(message: Message) -> Message:
        node = message.metadata.dst_node_id
        content = encode_hosted_clients(nodes.claims[node])
        return Message(add_scale(content, ConfigRecord({"node": node})), reply_to=message)

    nodes.reply = reply
    registry.wait(nodes, 1)
    assert {client: scale["node"] for client, scale in registry.scales.items()} == {2: 2}


def test_the_error_names_the_node_its_key_and_its_clients() -> None:
    """The clients are those of the key in the server's file."""
    nodes = KeyedGrid([[0], [1]])
    nodes.reply = lambda message: (
        Message(RecordDict(), reply_to=message) if message.metadata.dst_node_id == 2 else None
    )
    keys, names = nodes.group_by_key({1: {0}, 2: {1}}), ClientNames({1: "North"})
    registry = NodeRegistry([0, 1], keys, names=names)
    with pytest.raises(ClientsMissingError) as caught:
        registry.wait(nodes, 1)
    node = f"(node 2 with key {nodes.get_fingerprint(2)}, client North)"
    assert str(caught.value).endswith(node)


def test_a_broken_node_does_not_stop_a_start_without_it() -> None:
    """If not all clients are required, a node that cannot take part is left out."""
    nodes, registry = KeyedGrid([[0], [1]]), NodeRegistry([0, 1])
    nodes.reply = lambda message: (
        Message(RecordDict(), reply_to=message) if message.metadata.dst_node_id == 2 else None
    )
    registry.wait(nodes, 1, at_least=1)
    assert registry.registered.tolist() == [0]
    with pytest.raises(ClientsMissingError, match="a node cannot take part: a reply needs"):
        NodeRegistry([0, 1]).wait(nodes, 1)


def test_a_key_of_another_kind_is_refused() -> None:
    """Flower accepts keys of elliptic curves; the error names another kind."""
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(TypeError, match=r"a node has a key of .*Ed25519PublicKey"):
        compute_pem_fingerprint(pem)


class Counting(NodeRegistry):
    """Counts its lookups of a client's node."""

    looked = 0

    def find_node(self, client: int) -> int | None:
        """Return the connected node that hosts a client, or None."""
        self.looked += 1
        return super().find_node(client)


def test_many_nodes_of_one_client_register_in_time_for_their_number() -> None:
    """A new node does not make the registry look at all earlier ones."""
    registry = Counting(range(300))
    assert registry.refresh(KeyedGrid([[client] for client in range(300)])) == []
    assert len(registry.connected_clients) == 300
    assert registry.looked <= 5 * 300


# --- which node is which client ----------------------------------------------------------------


def test_a_key_or_a_name_is_a_client_without_a_query(caplog: pytest.LogCaptureFixture) -> None:
    """The first node with a name has its client; nodes of no client get no message."""
    nodes = KeyedGrid([[], [], [], []])
    nodes.labels = {2: "North", 4: "North"}
    clients = {**nodes.group_by_key({1: {3}}), "North": frozenset({0})}
    registry = NodeKeyRegistry(None, clients)
    assert registry.refresh(nodes) == []
    assert (registry.find_node(3), registry.find_node(0)) == (1, 2)
    assert registry.connected_clients == {0, 3}
    north = f"node 2 (North) with key {nodes.get_fingerprint(2)}"
    assert f"claims client 0, which {north} has: refused" in caplog.text
    assert f"node 3 with key {nodes.get_fingerprint(3)} is of no client of this run" in caplog.text
    assert nodes.messages == []
    nodes.away = {2}
    registry.refresh(nodes)
    assert registry.find_node(0) == 4
    assert {client: host.node for client, host in registry.hosts.items()} == {0: 4, 3: 1}


def test_a_public_key_is_read_as_its_fingerprint() -> None:
    """A line of a .pub file, with or without a comment; a name stays."""
    nodes = KeyedGrid([[0]])
    public = nodes.keys[1].public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    for text in (public.decode(), f" {public.decode()} a comment\n"):
        assert read_fingerprint(text) == nodes.get_fingerprint(1)
    assert read_fingerprint("North") == "North"


def test_only_a_deployment_has_hosts(caplog: pytest.LogCaptureFixture) -> None:
    """There, the log has the node and the key of each client, priority marked."""
    caplog.set_level("INFO", logger="flwr")
    nodes = KeyedGrid([[0, 2], [1]])
    registry = NodeRegistry([0, 1, 2])
    registry.wait(nodes, 1)
    registry.log_hosts({1})
    assert (registry.hosts, registry.describe_node_of(1)) == ({}, "")
    registry = NodeRegistry([0, 1, 2])
    registry.wait(make_deployment_grid(nodes), 1)
    registry.log_hosts({1})
    keys = {node: nodes.get_fingerprint(node) for node in (1, 2)}
    assert f"Client 1 (priority) is node 2 with key {keys[2]}" in caplog.text
    assert f"Client 2 is node 1 with key {keys[1]}" in caplog.text
    assert registry.describe_node_of(1) == f"node 2 with key {keys[2]}"


def test_the_log_of_many_hosts_is_short(caplog: pytest.LogCaptureFixture) -> None:
    """Priority clients and twenty others are listed."""
    caplog.set_level("INFO", logger="flwr")
    registry = NodeRegistry(range(60))
    registry.wait(make_deployment_grid(KeyedGrid([[k] for k in range(60)])), 1)
    registry.log_hosts({0, 59})
    assert caplog.text.count(" is node ") == 22
    assert "... and 38 further clients" in caplog.text


# --- why a client has no node ------------------------------------------------------------------


def break_node(nodes: KeyedGrid, broken: int) -> None:
    """Let a node reply to the query with an error, as one whose data cannot be read."""

    def reply(message: Message) -> Message | None:
        if message.metadata.dst_node_id != broken:
            return None
        return Message(Error(1, "DataError: the log of the node has the text"), reply_to=message)

    nodes.reply = reply


@pytest.mark.parametrize("has_keys", [True, False])
def test_a_broken_node_has_a_name(has_keys: bool) -> None:
    """It is connected, so its client is not called disconnected; without keys it may be its."""
    nodes = KeyedGrid([[0], [1]])
    break_node(nodes, 2)
    registry = NodeRegistry([0, 1], nodes.group_by_key({1: {0}, 2: {1}}) if has_keys else None)
    (problem,) = registry.refresh(make_deployment_grid(nodes))
    name = f"node 2 with key {nodes.get_fingerprint(2)}"
    reason = "DataError: the log of the node has the text"
    assert problem == f"{reason} ({name}{', client 1' if has_keys else ''})"
    assert registry.explain_absence(1) == f"{name} cannot take part: {reason}"
    assert [*registry.hosts] == ([0, 1] if has_keys else [0])
    nodes.away = {2}
    registry.refresh(make_deployment_grid(nodes))
    assert registry.explain_absence(1) == NOT_CONNECTED


def test_a_node_that_claims_another_client_is_named() -> None:
    """As where CLIENT has a typo: its key's client is not disconnected."""
    nodes = KeyedGrid([[0], [0]])
    registry = NodeRegistry([0, 1], nodes.group_by_key({1: {0}, 2: {1}}))
    registry.refresh(nodes)
    name = f"node 2 with key {nodes.get_fingerprint(2)}"
    assert registry.explain_absence(1) == f"{name} is connected, but does not host it"


def test_a_node_that_has_not_replied_is_named() -> None:
    """As one that still loads its data."""
    nodes = KeyedGrid([[0], [1]])
    nodes.mute = {2}
    registry = NodeRegistry([0, 1])
    registry.refresh(nodes)
    assert registry.explain_absence(1) == "node 2 has not said yet which clients it hosts"


def test_a_client_of_no_node_is_not_connected() -> None:
    """Every connected node has said that it hosts others."""
    registry = NodeRegistry([0, 1, 2])
    registry.refresh(KeyedGrid([[0], [1]]))
    assert registry.explain_absence(2) == NOT_CONNECTED
