"""Who hosts whom: claims, keys, late and broken nodes."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from server_app.in_process import InProcessGrid
from strategies.codec import encode_hosted_clients
from strategies.directory import (
    ClientDirectory,
    ClientsMissingError,
    fingerprint,
    fingerprint_of_pem,
)


class Nodes(InProcessGrid):
    """Nodes 1, 2, .. with a key each, which claim the clients given to them."""

    def __init__(self, claims: Sequence[Sequence[int]]) -> None:
        self.claims = dict(enumerate(claims, 1))
        self.queries: list[int] = []
        self.gone: set[int] = set()
        self.mute: set[int] = set()
        self.keys = {node: ec.generate_private_key(ec.SECP384R1()) for node in self.claims}
        app = ClientApp()

        @app.query()
        def query(message: Message, context: Context) -> Message:
            self.queries.append(context.node_id)
            return Message(encode_hosted_clients(self.claims[context.node_id]), reply_to=message)

        super().__init__(app, {}, len(claims))

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in super().get_node_ids() if node not in self.gone]

    def get_nodes(self) -> Iterable[NodeInfo]:
        form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return [
            NodeInfo(node_id=node, public_key=self.keys[node].public_key().public_bytes(*form))
            for node in self.get_node_ids()
        ]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        heard = [k for k in message_ids if self._answers[k].metadata.src_node_id not in self.mute]
        return super().pull_messages(heard)

    def fingerprint(self, node: int) -> str:
        return fingerprint(self.keys[node].public_key())


def keys_of(nodes: Nodes, clients: Mapping[int, set[int]]) -> dict[str, frozenset[int]]:
    return {nodes.fingerprint(node): frozenset(own) for node, own in clients.items()}


def test_clients_whose_nodes_never_came_are_unknown() -> None:
    """Known and unknown are all that are expected, each in one of the two."""
    directory = ClientDirectory((0, 1, 2, 3))
    assert (directory.known, directory.unknown) == ((), (0, 1, 2, 3))
    assert directory.refresh(Nodes([[3, 0]])) == []
    assert (directory.known, directory.unknown) == ((0, 3), (1, 2))


def test_nodes_are_believed_without_keys() -> None:
    """Whoever claims a client has it."""
    nodes, directory = Nodes([[0, 2], [1]]), ClientDirectory([0, 1, 2])
    directory.wait(nodes, 1)
    assert directory.by_node([0, 1, 2]) == {1: (0, 2), 2: (1,)}
    assert directory.known == (0, 1, 2)


def test_a_second_claim_is_refused_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """Two nodes claim client 0: the first has it, the other is named, and not believed."""
    nodes, directory = Nodes([[0], [0, 1]]), ClientDirectory([0, 1])
    directory.wait(nodes, 1)
    assert directory.by_node([0, 1]) == {1: (0,), 2: (1,)}
    assert "node 2 claims client 0, which node 1 has: refused" in caplog.text


def test_a_second_claim_counts_once_the_first_node_left() -> None:
    """Without keys, a device that comes back as another node takes its place again."""
    nodes, directory = Nodes([[0], [0]]), ClientDirectory([0])
    directory.wait(nodes, 1)
    nodes.gone = {1}
    directory.refresh(nodes)
    assert directory.node_of(0) == 2
    nodes.gone = {1, 2}
    directory.refresh(nodes)
    assert directory.node_of(0) is None


def test_a_node_that_was_away_may_host_another_client(caplog: pytest.LogCaptureFixture) -> None:
    """It has its client until it says otherwise; then whoever else claims that one gets it."""
    nodes, directory = Nodes([[0], [1], [0]]), ClientDirectory([0, 1, 2])
    directory.refresh(nodes)
    nodes.gone = {1}
    directory.refresh(nodes)
    nodes.gone = {1, 3}
    directory.refresh(nodes)
    assert directory.by_node([0, 1, 2]) == {2: (1,)}
    nodes.gone, nodes.claims[3], nodes.mute = {1}, [2], {3}
    directory.refresh(nodes)
    assert directory.by_node([0, 1, 2]) == {2: (1,), 3: (0,)}
    nodes.mute = set()
    directory.refresh(nodes)
    assert directory.by_node([0, 1, 2]) == {2: (1,), 3: (2,)}
    nodes.gone = set()
    directory.refresh(nodes)
    assert directory.by_node([0, 1, 2]) == {1: (0,), 2: (1,), 3: (2,)}
    assert nodes.queries == [1, 2, 3, 3, 1]
    assert caplog.text.count("node 3 claims client 0, which node 1 has: refused") == 1


def test_a_refused_node_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Started again with the client of its key, it takes part, though it was never seen leaving."""
    monkeypatch.setattr("strategies.directory.RETRY_SECONDS", 0.0)
    nodes = Nodes([[1], [1]])
    directory = ClientDirectory([0, 1], keys_of(nodes, {1: {1}, 2: {0}}))
    for _ in range(3):
        directory.refresh(nodes)
    assert directory.by_node([0, 1]) == {1: (1,)}
    assert nodes.queries == [1, 2, 2, 2]
    assert caplog.text.count("claims client 1, which is another key's: refused") == 1
    nodes.claims[2] = [0]
    directory.wait(nodes, 1)
    assert directory.by_node([0, 1]) == {1: (1,), 2: (0,)}
    directory.refresh(nodes)
    assert nodes.queries == [1, 2, 2, 2, 2]


def test_a_client_of_no_run_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A claim to a client that the server does not expect gives nothing."""
    nodes, directory = Nodes([[0, 7]]), ClientDirectory([0])
    directory.wait(nodes, 1)
    assert directory.by_node([0, 7]) == {1: (0,)}
    assert "node 1 claims client 7, which is none of this run's: refused" in caplog.text


def test_with_keys_the_claim_to_another_ones_client_is_refused() -> None:
    """Node 2 may be client 1 only: it does not get client 0, and the error has node and key."""
    nodes = Nodes([[1], [0]])
    directory = ClientDirectory([0, 1], keys_of(nodes, {1: {1}, 2: {1}}))
    refused = re.escape(
        f"node 2 with key {nodes.fingerprint(2)} claims client 0, which is another key's: refused"
    )
    with pytest.raises(ClientsMissingError, match=f"missing clients: 0.*{refused}"):
        directory.wait(nodes, 0.3)
    assert directory.by_node([0, 1]) == {1: (1,)}


def test_with_keys_the_first_claim_does_not_win() -> None:
    """An impostor that is there first does not keep the rightful node out."""
    nodes = Nodes([[0], [0]])
    directory = ClientDirectory([0, 1], keys_of(nodes, {1: {1}, 2: {0}}))
    directory.wait(nodes, 1, at_least=1)
    assert directory.by_node([0]) == {2: (0,)}


def test_nodes_with_other_keys_are_asked_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A node whose key is of no client gets no message, and is named once."""
    nodes = Nodes([[0], [0]])
    directory = ClientDirectory([0], keys_of(nodes, {2: {0}}))
    directory.wait(nodes, 1)
    directory.refresh(nodes)
    assert nodes.queries == [2]
    assert directory.node_of(0) == 2
    named = f"node 1 with key {nodes.fingerprint(1)} is of no client in engine.nodes"
    assert caplog.text.count(named) == 1


def test_nodes_without_keys_are_not_let_in_where_keys_count() -> None:
    """A simulation's nodes have no keys: the error says so."""

    class Simulated(Nodes):
        def get_nodes(self) -> Iterable[NodeInfo]:
            return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    nodes = Simulated([[0]])
    directory = ClientDirectory([0], keys_of(nodes, {1: {0}}))
    with pytest.raises(
        ClientsMissingError, match=r"engine\.nodes must be null where nodes have no keys"
    ):
        directory.wait(nodes, 0.3)


def test_a_node_that_never_answers_costs_a_round_nothing() -> None:
    """Its answer is heard whenever it comes; until then nobody waits for it."""
    nodes, directory = Nodes([[0], [1]]), ClientDirectory([0, 1])
    nodes.mute = {2}
    started = time.monotonic()
    assert directory.refresh(nodes) == []
    assert time.monotonic() - started < 60
    assert directory.by_node([0, 1]) == {1: (0,)}
    assert directory.refresh(nodes) == []
    assert nodes.queries == [1, 2]
    nodes.mute = set()
    directory.refresh(nodes)
    assert directory.by_node([0, 1]) == {1: (0,), 2: (1,)}


def test_the_start_waits_for_answers_no_longer_than_its_timeout() -> None:
    """With enough clients there, a node that does not answer delays the start, and is left out."""
    nodes, directory = Nodes([[0], [1]]), ClientDirectory([0, 1])
    nodes.mute = {2}
    directory.wait(nodes, 0.3, at_least=1)
    assert directory.known == (0,)


def test_a_broken_node_does_not_stop_a_start_without_it() -> None:
    """Where not all clients must be there, a node that cannot take part is left out."""

    class Broken(Nodes):
        def _answer(self, message: Message) -> Message:
            if message.metadata.dst_node_id == 2:
                return Message(RecordDict(), reply_to=message)
            return super()._answer(message)

    nodes, directory = Broken([[0], [1]]), ClientDirectory([0, 1])
    directory.wait(nodes, 1, at_least=1)
    assert directory.known == (0,)
    with pytest.raises(ClientsMissingError, match="a node cannot take part: a reply needs"):
        ClientDirectory([0, 1]).wait(nodes, 1)


def test_a_key_of_another_kind_has_no_fingerprint_here() -> None:
    """Flower lets in keys of elliptic curves; of another one the kind is named."""
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(TypeError, match=r"a node has a key of .*Ed25519PublicKey"):
        fingerprint_of_pem(pem)
