"""Who hosts whom: claims, keys, late and broken nodes."""

import re
import time

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fedquorum.errors import ClientsMissingError
from fedquorum.flower.codec import PROTOCOL_VERSION
from fedquorum.flower.nodes import (
    MAX_JOINING_CLIENTS,
    MAX_REFUSALS_SHOWN,
    MAX_REFUSALS_STORED,
    NodeRegistry,
    compute_pem_fingerprint,
)
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tests.builders_flower import KeyedGrid, make_grid


def test_clients_whose_nodes_never_connected_are_unregistered() -> None:
    """Known and unknown are all that are expected, each in one of the two."""
    directory = NodeRegistry((0, 1, 2, 3))
    assert (directory.registered.tolist(), directory.unregistered) == ([], (0, 1, 2, 3))
    assert directory.refresh(KeyedGrid([[3, 0]])) == []
    assert (directory.registered.tolist(), directory.unregistered) == ([0, 3], (1, 2))


@pytest.mark.parametrize("standard", [False, True])
def test_a_node_of_another_version_cannot_take_part(standard: bool) -> None:
    """It is told which side to update; a ClientApp written for Flower has no version."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        content = RecordDict({"metrics": MetricRecord({"client-id": [0]})})
        return Message(content, reply_to=message)

    directory, nodes = NodeRegistry([0], standard=standard), make_grid(app, 1)
    if standard:
        directory.wait(nodes, 1)
        assert directory.registered.tolist() == [0]
        return
    problem = f"this node speaks 1, the server {PROTOCOL_VERSION}: update fedquorum on the node"
    with pytest.raises(ClientsMissingError, match=f"^a node cannot take part: {problem}$"):
        directory.wait(nodes, 1)


def test_nodes_are_believed_without_keys() -> None:
    """Whoever claims a client has it."""
    nodes, directory = KeyedGrid([[0, 2], [1]]), NodeRegistry([0, 1, 2])
    directory.wait(nodes, 1)
    assert directory.group_by_node([0, 1, 2]) == {1: (0, 2), 2: (1,)}
    assert directory.registered.tolist() == [0, 1, 2]


def test_a_node_cannot_bring_any_number_of_clients() -> None:
    """Where any client may join, one node brings a bounded number; another node's clients stay."""
    nodes, directory = KeyedGrid([[0], [*range(MAX_JOINING_CLIENTS + 1)]]), NodeRegistry(None)
    (problem,) = directory.refresh(nodes)
    assert problem == "node 2 claims 100001 clients, at most 100000 may join"
    assert directory.registered.tolist() == [0]


def test_what_is_refused_is_kept_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """A node that claims ever other clients fills neither the memory nor, at once, the log."""
    directory = NodeRegistry([0])
    for number in range(30):
        claimed = range(1000 * number + 1, 1000 * number + 1000)
        directory._query_after.clear()
        directory._connected.clear()
        directory.refresh(KeyedGrid([[*claimed]]))
    assert len(directory._refusals) == MAX_REFUSALS_STORED
    assert len(caplog.records) <= 30 * (MAX_REFUSALS_SHOWN + 1)


def test_a_second_claim_is_refused_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """Two nodes claim client 0: the first has it, the other is named, and not believed."""
    nodes, directory = KeyedGrid([[0], [0, 1]]), NodeRegistry([0, 1])
    directory.wait(nodes, 1)
    assert directory.group_by_node([0, 1]) == {1: (0,), 2: (1,)}
    assert "node 2 claims client 0, which node 1 has: refused" in caplog.text


def test_a_second_claim_counts_once_the_first_node_left() -> None:
    """Without keys, a device that comes back as another node takes its place again."""
    nodes, directory = KeyedGrid([[0], [0]]), NodeRegistry([0])
    directory.wait(nodes, 1)
    nodes.away = {1}
    directory.refresh(nodes)
    assert directory.find_node(0) == 2
    nodes.away = {1, 2}
    directory.refresh(nodes)
    assert directory.find_node(0) is None


def test_a_node_that_was_away_may_host_another_client(caplog: pytest.LogCaptureFixture) -> None:
    """It has its client until it says otherwise; then whoever else claims that one gets it."""
    nodes, directory = KeyedGrid([[0], [1], [0]]), NodeRegistry([0, 1, 2])
    directory.refresh(nodes)
    nodes.away = {1}
    directory.refresh(nodes)
    nodes.away = {1, 3}
    directory.refresh(nodes)
    assert directory.group_by_node([0, 1, 2]) == {2: (1,)}
    nodes.away, nodes.claims[3], nodes.mute = {1}, [2], {3}
    directory.refresh(nodes)
    assert directory.group_by_node([0, 1, 2]) == {2: (1,), 3: (0,)}
    nodes.mute = set()
    directory.refresh(nodes)
    assert directory.group_by_node([0, 1, 2]) == {2: (1,), 3: (2,)}
    nodes.away = set()
    directory.refresh(nodes)
    assert directory.group_by_node([0, 1, 2]) == {1: (0,), 2: (1,), 3: (2,)}
    assert nodes.queries == [1, 2, 3, 3, 1]
    assert caplog.text.count("node 3 claims client 0, which node 1 has: refused") == 1


def test_a_rejected_node_is_queried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Started again with the client of its key, it takes part, though it was never seen leaving."""
    monkeypatch.setattr("fedquorum.flower.nodes.QUERY_RETRY_SECONDS", 0.0)
    nodes = KeyedGrid([[1], [1]])
    directory = NodeRegistry([0, 1], nodes.group_by_key({1: {1}, 2: {0}}))
    for _ in range(3):
        directory.refresh(nodes)
    assert directory.group_by_node([0, 1]) == {1: (1,)}
    assert nodes.queries == [1, 2, 2, 2]
    assert caplog.text.count("claims client 1, which is another key's: refused") == 1
    nodes.claims[2] = [0]
    directory.wait(nodes, 1)
    assert directory.group_by_node([0, 1]) == {1: (1,), 2: (0,)}
    directory.refresh(nodes)
    assert nodes.queries == [1, 2, 2, 2, 2]


def test_a_client_of_no_run_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A claim to a client that the server does not expect gives nothing."""
    nodes, directory = KeyedGrid([[0, 7]]), NodeRegistry([0])
    directory.wait(nodes, 1)
    assert directory.group_by_node([0, 7]) == {1: (0,)}
    assert "node 1 claims client 7, which is none of this run's: refused" in caplog.text


def test_with_keys_the_claim_to_another_ones_client_is_refused() -> None:
    """Node 2 may be client 1 only: it does not get client 0, and the error has node and key."""
    nodes = KeyedGrid([[1], [0]])
    directory = NodeRegistry([0, 1], nodes.group_by_key({1: {1}, 2: {1}}))
    refused = re.escape(
        f"node 2 with key {nodes.get_fingerprint(2)} claims client 0, "
        "which is another key's: refused"
    )
    with pytest.raises(ClientsMissingError, match=f"missing clients: 0.*{refused}"):
        directory.wait(nodes, 0.3)
    assert directory.group_by_node([0, 1]) == {1: (1,)}


def test_with_keys_the_first_claim_does_not_win() -> None:
    """An impostor that is there first does not keep the rightful node out."""
    nodes = KeyedGrid([[0], [0]])
    directory = NodeRegistry([0, 1], nodes.group_by_key({1: {1}, 2: {0}}))
    directory.wait(nodes, 1, at_least=1)
    assert directory.group_by_node([0]) == {2: (0,)}


def test_nodes_with_other_keys_get_no_message(caplog: pytest.LogCaptureFixture) -> None:
    """A node whose key is of no client gets no message, and is named once."""
    nodes = KeyedGrid([[0], [0]])
    directory = NodeRegistry([0], nodes.group_by_key({2: {0}}))
    directory.wait(nodes, 1)
    directory.refresh(nodes)
    assert nodes.queries == [2]
    assert directory.find_node(0) == 2
    named = (
        f"node 1 with key {nodes.get_fingerprint(1)} is of no client of this run: it is not asked"
    )
    assert caplog.text.count(named) == 1


def test_nodes_without_keys_are_not_let_in_where_keys_count() -> None:
    """A simulation's nodes have no keys: the error says so."""
    nodes = KeyedGrid([[0]])
    nodes.keyed = False
    directory = NodeRegistry([0], nodes.group_by_key({1: {0}}))
    with pytest.raises(
        ClientsMissingError, match="identified by their nodes' public keys, but nodes have no keys"
    ):
        directory.wait(nodes, 0.3)


def test_a_node_that_never_answers_costs_a_round_nothing() -> None:
    """Its answer is heard whenever it comes; until then nobody waits for it."""
    nodes, directory = KeyedGrid([[0], [1]]), NodeRegistry([0, 1])
    nodes.mute = {2}
    started = time.monotonic()
    assert directory.refresh(nodes) == []
    assert time.monotonic() - started < 60
    assert directory.group_by_node([0, 1]) == {1: (0,)}
    assert directory.refresh(nodes) == []
    assert nodes.queries == [1, 2]
    nodes.mute = set()
    directory.refresh(nodes)
    assert directory.group_by_node([0, 1]) == {1: (0,), 2: (1,)}


def test_the_start_waits_for_answers_no_longer_than_its_timeout() -> None:
    """With enough clients there, a node that does not answer delays the start, and is left out."""
    nodes, directory = KeyedGrid([[0], [1]]), NodeRegistry([0, 1])
    nodes.mute = {2}
    directory.wait(nodes, 0.3, at_least=1)
    assert directory.registered.tolist() == [0]


def test_a_broken_node_does_not_stop_a_start_without_it() -> None:
    """Where not all clients must be there, a node that cannot take part is left out."""
    nodes, directory = KeyedGrid([[0], [1]]), NodeRegistry([0, 1])
    nodes.reply = lambda message: (
        Message(RecordDict(), reply_to=message) if message.metadata.dst_node_id == 2 else None
    )
    directory.wait(nodes, 1, at_least=1)
    assert directory.registered.tolist() == [0]
    with pytest.raises(ClientsMissingError, match="a node cannot take part: a reply needs"):
        NodeRegistry([0, 1]).wait(nodes, 1)


def test_a_key_of_another_kind_has_no_fingerprint_here() -> None:
    """Flower lets in keys of elliptic curves; of another one the kind is named."""
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(TypeError, match=r"a node has a key of .*Ed25519PublicKey"):
        compute_pem_fingerprint(pem)


class Counting(NodeRegistry):
    """Counts how often it looks for a client's node."""

    looked = 0

    def find_node(self, client: int) -> int | None:
        """Return the connected node that hosts a client, or None."""
        self.looked += 1
        return super().find_node(client)


def test_many_nodes_of_one_client_register_in_time_for_their_number() -> None:
    """No node that comes makes the directory look at those that are there."""
    directory = Counting(range(300))
    assert directory.refresh(KeyedGrid([[client] for client in range(300)])) == []
    assert len(directory.connected_clients) == 300
    assert directory.looked <= 5 * 300
