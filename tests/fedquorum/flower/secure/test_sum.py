"""Whole rounds of secure sums: lost nodes, broken messages, and what the server sees."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from fedquorum.flower.secure.errors import ProtocolViolationError, SecureSumError
from fedquorum.flower.secure.keys import RoundId, hash_secret
from fedquorum.flower.secure.messages import (
    MaskedVector,
    NodeShares,
    ShareRequest,
    UnmaskRequest,
    VectorRequest,
)
from fedquorum.flower.secure.node import make_keys, make_shares, mask_vector, unmask
from fedquorum.flower.secure.plan import GraphSize, MaskPlan
from fedquorum.rng import make_generator

from tests.cases import is_long, sample_cases
from tests.fedquorum.flower.secure.play import LARGE, ROUND, STEPS, Play
from tests.reference import secure_sum as reference

FIVE, COMPLETE = range(10, 15), GraphSize(4, 3)


@pytest.mark.parametrize(("nodes", "size"), [(FIVE, COMPLETE), (range(40), GraphSize(10, 6))])
def test_masked_vectors_are_those_of_the_reference(nodes: range, size: GraphSize) -> None:
    """Number by number, with all secrets known; the sum is that of the vectors."""
    play = Play(nodes, size)
    total, senders = play.run(play.receive)
    assert senders == tuple(nodes)
    assert np.array_equal(total, play.add_up(nodes))
    expected = reference.mask_vectors(
        {k: vector.tolist() for k, vector in play.vectors.items()},
        {k: state.mask_secret for k, state in play.states.items()},
        {k: state.own_secret for k, state in play.states.items()},
        run=ROUND.run,
        server_round=ROUND.server_round,
        neighbors={k: sorted(state.keys) for k, state in play.states.items()},
    )
    assert {k: one.values.tolist() for k, one in play.sent["vector"].items()} == expected


@pytest.mark.parametrize("step", STEPS)
def test_a_node_lost_in_each_step(step: str) -> None:
    """After its vector has arrived, it counts: the others hold its shares."""
    play = Play(FIVE, COMPLETE)
    total, senders = play.run(play.lose({step: [12]}))
    assert senders == tuple(k for k in FIVE if k != 12 or step == "unmask")
    assert np.array_equal(total, play.add_up(senders))


def list_losses() -> list[int]:
    return list(range(1000))


@pytest.mark.parametrize("number", sample_cases(list_losses(), 40))
def test_random_losses_give_the_sum_of_the_others_or_a_refusal(number: int) -> None:
    """Never another sum."""
    chance = random.Random(number)
    n = chance.choice([3, 4, 5, 8, 12, 35])
    size = GraphSize.for_shares(n, 0.1, 0.1)
    play, rate = Play(range(n), size), chance.choice([0.02, 0.1, 0.3])
    lost = {step: [k for k in range(n) if chance.random() < rate] for step in STEPS}
    try:
        total, senders = play.run(play.lose(lost))
    except SecureSumError:
        assert any(lost.values())
        return
    early = {k for step in STEPS[:3] for k in lost[step]}
    assert {*senders} <= {*range(n)} - early
    assert np.array_equal(total, play.add_up(senders))


@pytest.mark.parametrize("step", STEPS)
def test_a_late_message_is_refused(step: str) -> None:
    """The round continues as if it had not come; a late vector has masks that nobody removes."""
    play, held, refused = Play(FIVE, COMPLETE), list[Any](), list[int | None]()

    def refuse_late() -> None:
        with pytest.raises(
            ProtocolViolationError, match=r"node 12: it sent .* after their"
        ) as info:
            play.receive(step, 12, held.pop())
        refused.append(info.value.sender)

    def deliver(at: str, node: int, message: Any) -> None:
        if held and at != step:
            refuse_late()
        if (at, node) == (step, 12):
            held.append(message)
        else:
            play.receive(at, node, message)

    total, senders = play.run(deliver)
    if held:
        refuse_late()
    assert refused == [12]
    assert senders == tuple(k for k in FIVE if k != 12 or step == "unmask")
    assert np.array_equal(total, play.add_up(senders))


@pytest.mark.parametrize("step", STEPS[1:])
def test_a_message_before_its_exchange_is_refused(step: str) -> None:
    """It changes nothing: its sender may send it again in time."""
    earlier, play = Play(FIVE, COMPLETE), Play(FIVE, COMPLETE)
    earlier.run(earlier.receive)
    message = earlier.sent[step][12]
    with pytest.raises(ProtocolViolationError, match=r"node 12: it sent .* before their exchange"):
        play.receive(step, 12, message)
    total, senders = play.run(play.receive)
    assert senders == tuple(FIVE)
    assert np.array_equal(total, play.add_up(FIVE))


def test_a_sum_is_asked_for_again_when_more_shares_are_there() -> None:
    """No mask is removed before all secrets are known, so that none is removed twice.

    Of the nodes before the one whose shares are missing all are there.
    """
    nodes, size = range(40), GraphSize(6, 4)
    late = MaskPlan.for_nodes(nodes, size, 1, ROUND.server_round).neighbors[39][-4:]
    play = Play(nodes, size)
    with pytest.raises(SecureSumError, match="3 of 4 needed shares of node 39 were revealed"):
        play.run(play.lose({"unmask": late}))
    for k in late:
        play.receive("unmask", k, play.sent["unmask"][k])
    total, senders = play.server.finish()
    assert senders == tuple(nodes)
    assert np.array_equal(total, play.add_up(nodes))


@pytest.mark.parametrize("step", STEPS[1:3])
def test_survivors_that_fall_into_parts_have_no_sum(step: str) -> None:
    """Two lost pairs of neighbors cut the circle into arcs, whose sums would both be known."""
    nodes, size = range(12), GraphSize(4, 3)
    circle = make_generator(1, "neighbors", ROUND.server_round).permutation(len(nodes)).tolist()
    cut = [circle[place] for place in (0, 1, 6, 7)]
    play = Play(nodes, size)
    with pytest.raises(SecureSumError, match="fall into parts"):
        play.run(play.lose({step: cut}))
    play = Play(nodes, size)
    total, senders = play.run(play.lose({step: cut[:2]}))
    assert np.array_equal(total, play.add_up(senders))
    assert play.server.can_sum(senders)
    assert not play.server.can_sum({*senders}.difference(cut))


def test_a_wrong_share_is_left_out_and_the_others_restore_the_secret() -> None:
    """Its sender is named; t of the other shares are enough."""
    play, names = Play(FIVE, COMPLETE), list[int | None]()

    def deliver(step: str, node: int, message: Any) -> None:
        if (step, node) in {("unmask", 10), ("unmask", 11)}:
            message = replace(message, own={**message.own, 13: bytes(16)})
        try:
            play.receive(step, node, message)
        except ProtocolViolationError as error:
            names.append(error.sender)

    total, senders = play.run(deliver)
    assert names == [10, 11]
    assert senders == tuple(FIVE)
    assert np.array_equal(total, play.add_up(FIVE))


@pytest.mark.parametrize("key", ["mask_key", "share_key"])
@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31)])
def test_a_key_that_agrees_on_zero_costs_only_its_node(key: str, public: bytes) -> None:
    """The server refuses it by name; later it would stop all neighbors."""
    play = Play(FIVE, COMPLETE)

    def deliver(step: str, node: int, message: Any) -> None:
        if (step, node) == ("keys", 12):
            broken = replace(message, **{key: public})
            with pytest.raises(ProtocolViolationError, match="node 12: its public key cannot be"):
                play.receive(step, node, broken)
        else:
            play.receive(step, node, message)

    total, senders = play.run(deliver)
    assert senders == (10, 11, 13, 14)
    assert np.array_equal(total, play.add_up(senders))


def test_below_the_threshold_the_round_is_refused() -> None:
    """In each step, with the numbers."""
    for step, text in (
        ("keys", "2 of . nodes sent keys, and a sum needs 3"),
        ("shares", "0 of 5 nodes can mask with enough others"),
        ("vector", "2 of 5 nodes sent a vector; in a sum of fewer than 3 each"),
        ("unmask", "2 of 3 needed shares of node 10 were revealed"),
    ):
        play = Play(FIVE, COMPLETE)
        with pytest.raises(SecureSumError, match=text):
            play.run(play.lose({step: [12, 13, 14]}))


def test_too_few_holders_of_shares_refuse_the_round() -> None:
    """Enough nodes sent a vector, but not enough hold shares of one another."""
    play = Play(range(10, 16), GraphSize(5, 4))
    with pytest.raises(SecureSumError, match="the sum of 3 of 6 nodes cannot be unmasked"):
        play.run(play.lose({"vector": [13, 14, 15]}))


# --- what the server sees -----------------------------------------------------------------------


def compute_chi_square(values: np.ndarray[Any, Any]) -> float:
    """Return the statistic of the bytes against equal frequencies, 255 degrees of freedom."""
    counts = np.bincount(values.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_masked_vector_looks_random() -> None:
    """Of a vector of small numbers, as updates are; the vector itself does not."""
    limit = 255 + 6 * math.sqrt(2 * 255)  # six standard deviations
    play = Play(FIVE, COMPLETE, length=20_000)
    play.vectors = {k: np.arange(20_000, dtype=np.uint64) for k in FIVE}
    play.run(play.receive)
    for k in FIVE:
        assert compute_chi_square(play.sent["vector"][k].values) < limit
        assert compute_chi_square(play.vectors[k]) > limit


def test_the_server_gets_one_of_both_secrets_of_a_node() -> None:
    """Never shares of both, and fewer shares than the threshold restore neither."""
    play = Play(FIVE, COMPLETE)
    play.run(play.lose({"vector": [12]}))
    for k in FIVE:
        own = [a.own[k] for a in play.sent["unmask"].values() if k in a.own]
        masks = [a.masks[k] for a in play.sent["unmask"].values() if k in a.masks]
        assert bool(own) != bool(masks)
    assert "secret" not in repr(play.states[10])


def test_two_rounds_have_no_mask_in_common() -> None:
    """The secrets are fresh, although the seed is the same."""
    first, second = Play(FIVE, COMPLETE), Play(FIVE, COMPLETE)
    first.run(first.receive)
    second.run(second.receive)
    for k in FIVE:
        a, b = (play.sent["vector"][k].values for play in (first, second))
        assert not np.any(a == b)


# --- messages that break the protocol -----------------------------------------------------------


def change_bytes(text: bytes, chance: random.Random) -> bytes:
    """Flip a bit, cut or lengthen."""
    kind = chance.randrange(3)
    if kind == 0:
        index = chance.randrange(len(text))
        return text[:index] + bytes([text[index] ^ 1 << chance.randrange(8)]) + text[index + 1 :]
    return text[:-1] if kind == 1 else text + b"\0"


def change_mapping(
    given: dict[int, bytes], chance: random.Random, change: Callable[..., bytes] = change_bytes
) -> dict[int, bytes]:
    """Change, drop, add or swap an entry."""
    given, kind = dict(given), chance.randrange(4)
    keys = sorted(given)
    if not keys or kind == 0:
        return {**given, 999: bytes(32)}
    key = chance.choice(keys)
    if kind == 1:
        del given[key]
    elif kind == 2 and len(keys) > 1:
        other = chance.choice([k for k in keys if k != key])
        given[key], given[other] = given[other], given[key]
    else:
        given[key] = change(given[key], chance)
    return given


def break_message(step: str, message: Any, chance: random.Random) -> Any:
    """Return the message with one thing wrong."""
    if step == "keys":
        name = chance.choice(["mask_key", "share_key", "own_hash"])
        return replace(message, **{name: change_bytes(getattr(message, name), chance)})
    if step == "vector":
        values = message.values
        wrong = [values[:-1], values.astype(np.float64), values.reshape(1, -1), values.view("i8")]
        return MaskedVector(chance.choice(wrong))
    names = ["sealed", "mask_hashes", "own_hashes"] if step == "shares" else ["own", "masks"]
    name = chance.choice(names)
    return replace(message, **{name: change_mapping(getattr(message, name), chance)})


@dataclass
class HostileNode:
    """Delivers all messages, those of one node in one step not as they are.

    Parameters
    ----------
    play : Play
    node : int
    step : str
    kind : str
        "break", "twice", "other" (it answers for another node as well) or "late".
    blamed : set
        The senders of all messages that the server refused.
    """

    play: Play
    node: int
    step: str
    kind: str
    chance: random.Random
    blamed: set[int | None] = field(default_factory=set)
    held: list[Any] = field(default_factory=list)

    def deliver(self, step: str, node: int, message: Any) -> None:
        """Give the server a message, or what the hostile node makes of it."""
        if self.held and step != self.step:
            self._give(self.step, self.node, self.held.pop())
        if (step, node) != (self.step, self.node):
            self._give(step, node, message)
        elif self.kind == "late":
            self.held.append(message)
        elif self.kind == "break":
            self._give(step, node, break_message(step, message, self.chance))
        else:
            self._give(step, node if self.kind == "twice" else 999, message)
            self._give(step, node, message)

    def _give(self, step: str, node: int, message: Any) -> None:
        try:
            self.play.receive(step, node, message)
        except ProtocolViolationError as error:
            self.blamed.add(error.sender)


@pytest.mark.parametrize("number", sample_cases(range(1000), 60))
def test_no_broken_message_changes_a_sum(number: int) -> None:
    """The sum is that of the nodes that it names, or the round is refused by a name.

    One node of six is hostile: it changes, repeats or swaps messages of one step, is late with one,
    or answers for another node. A public key that is not that of its masks leaves masks in the sum,
    which is then too large for one.
    """
    chance = random.Random(number)
    nodes, hostile = range(10, 16), chance.randrange(10, 16)
    step, kind = chance.choice(STEPS), chance.choice(["break", "twice", "other", "late"])
    play = Play(nodes, GraphSize(5, 4))
    node = HostileNode(play, hostile, step, kind, chance)
    blamed, total = node.blamed, None
    try:
        total, senders = play.run(node.deliver)
    except ProtocolViolationError as error:  # found when secrets are restored
        blamed.add(error.sender)
    except SecureSumError:
        assert play.complaints  # one hostile node of six stops no round unnamed
    assert blamed <= {hostile, 999}
    # Shares that cannot be decrypted have a wrong key on either side.
    assert all(hostile in pair for pair in play.complaints)
    if total is None:
        return
    if step == "keys" and kind == "break" and np.abs(total.view(np.int64)).max() > 6 * LARGE:
        return
    assert np.array_equal(total, play.add_up([k for k in senders if k in nodes]))
    assert 999 not in senders


def test_wrong_shares_of_a_dealer_are_found_when_secrets_are_restored() -> None:
    """Their hashes agree, as the dealer made them; the secret is not the committed one."""
    play = Play(FIVE, COMPLETE)

    def deliver(step: str, node: int, message: Any) -> None:
        if step == "keys" and node == 11:
            message = replace(message, own_hash=hash_secret(b"another"))
        play.receive(step, node, message)

    with pytest.raises(ProtocolViolationError, match="node 11: its shares restore another own"):
        play.run(deliver)


# --- what a node refuses of a server ------------------------------------------------------------


def build_request(shares: Mapping[int, NodeShares], node: int) -> VectorRequest:
    """Return the third message to a node, with the shares of all others."""
    others = {k: one for k, one in shares.items() if k != node}
    return VectorRequest(
        {k: one.sealed[node] for k, one in others.items()},
        {k: one.mask_hashes[node] for k, one in others.items()},
        {k: one.own_hashes[node] for k, one in others.items()},
    )


def test_a_node_answers_each_message_once() -> None:
    """A second request could ask for the other share, or for two vectors with one mask."""
    states, keys, nodes = {}, {}, (1, 2, 3, 4)
    for k in nodes:
        states[k], keys[k] = make_keys(k, ROUND)
    request = ShareRequest({k: keys[k] for k in (2, 3, 4)}, 3)
    vector = np.zeros(4, np.uint64)
    with pytest.raises(ProtocolViolationError, match="the server: a vector may be asked for once"):
        mask_vector(states[1], VectorRequest({}, {}, {}), vector)
    with pytest.raises(ProtocolViolationError, match="the server: masks may be asked for after"):
        unmask(states[1], UnmaskRequest((), ()))
    shares = {}
    for k in nodes:
        others = ShareRequest({i: keys[i] for i in nodes if i != k}, 3)
        states[k], shares[k] = make_shares(states[k], others)
    with pytest.raises(ProtocolViolationError, match="the server: shares were asked for twice"):
        make_shares(states[1], request)
    sealed = build_request(shares, 1)
    states[1], _ = mask_vector(states[1], sealed, vector)
    with pytest.raises(ProtocolViolationError, match="the server: a vector may be asked for once"):
        mask_vector(states[1], sealed, vector)
    for survivors, lost in [
        ((2, 3, 4), (4,)),
        ((2, 3), ()),
        ((2, 3, 4, 5), ()),
        ((), (2, 3, 4)),
    ]:
        with pytest.raises(ProtocolViolationError, match="the server"):
            unmask(states[1], UnmaskRequest(survivors, lost))
    assert unmask(states[1], UnmaskRequest((2, 3), (4,))).masks.keys() == {4}


@pytest.mark.parametrize(
    ("others", "threshold", "text"),
    [
        ((2, 3), 1, "the threshold must be from 2 to 3, got 1"),
        ((2, 3), 4, "the threshold must be from 2 to 3, got 4"),
        ((2,), 2, "at least 3 nodes must take part, got 2"),
        ((1, 2, 3), 2, "a node is no neighbor of itself"),
    ],
)
def test_a_node_has_limits_of_its_own(others: tuple[int, ...], threshold: int, text: str) -> None:
    """No server lowers them."""
    state, _ = make_keys(1, ROUND)
    keys = {k: make_keys(k, ROUND)[1] for k in others}
    with pytest.raises(ProtocolViolationError, match=f"the server: {text}"):
        make_shares(state, ShareRequest(keys, threshold))


def test_a_server_that_loses_nodes_on_purpose_gets_no_sum_of_two() -> None:
    """Neither before the vectors nor after them, though two of three can remove all masks."""
    states, keys, shares = {}, {}, {}
    for k in (1, 2, 3):
        states[k], keys[k] = make_keys(k, ROUND)
    for k in (1, 2, 3):
        others = ShareRequest({i: keys[i] for i in (1, 2, 3) if i != k}, 2)
        states[k], shares[k] = make_shares(states[k], others)
    few = "the server: at least 3 nodes must take part, got 2"
    vector = np.zeros(4, np.uint64)
    with pytest.raises(ProtocolViolationError, match=few):
        mask_vector(states[1], build_request({2: shares[2]}, 1), vector)
    assert not vector.any()
    state, _ = mask_vector(states[1], build_request(shares, 1), vector)
    with pytest.raises(ProtocolViolationError, match=few):
        unmask(state, UnmaskRequest((2,), (3,)))


def test_shares_of_another_round_are_refused() -> None:
    """A server that repeats what it has from an earlier round names the sender of the shares."""
    states, keys = {}, {}
    for k in (1, 2, 3):
        states[k], keys[k] = make_keys(k, ROUND)
    old, _ = make_keys(2, RoundId("run", 2))
    shares = {}
    for k in (2, 3):
        others = {i: keys[i] for i in (1, 2, 3) if i != k}
        _, shares[k] = make_shares(old if k == 2 else states[k], ShareRequest(others, 2))
    state, _ = make_shares(states[1], ShareRequest({2: keys[2], 3: keys[3]}, 2))
    with pytest.raises(ProtocolViolationError, match="node 2: its shares cannot be decrypted"):
        mask_vector(state, build_request(shares, 1), np.zeros(2, np.uint64))


def test_the_long_counts_are_those_that_are_promised() -> None:
    """A thousand of each kind with --long."""
    assert (len(sample_cases(list_losses(), 40)) == 1000) == is_long()
