"""The server's side of a secure sum: collect the messages of a round, and remove the masks."""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType

import numpy as np

from ...rules.formatting import count
from .errors import ProtocolViolationError, SecureSumError
from .keys import (
    HASH_BYTES,
    PAIR_MASK,
    RoundId,
    Vector,
    add_mask,
    agree_on_key,
    check_public_key,
    derive_own_mask_key,
    derive_private_key,
    get_public_bytes,
    hash_secret,
)
from .messages import (
    MaskedVector,
    NodeKeys,
    NodeShares,
    ShareRequest,
    UnmaskRequest,
    UnmaskShares,
    VectorRequest,
)
from .plan import MIN_NODES, GraphSize, MaskPlan
from .shares import restore_secret

NO_SHARES: Mapping[int, bytes] = MappingProxyType({})


class Exchange(IntEnum):
    """What the server waits for."""

    KEYS = 1
    SHARES = 2
    VECTORS = 3
    UNMASK = 4
    NOTHING = 5  # the sum is known


class SecureSum:
    """One round's sum of vectors modulo 2^64.

    Each of the four exchanges has a method that receives a node's message, and one that ends it and
    returns the next requests. A node whose message is missing or refused when an exchange ends has
    no further part in the round. A message that breaks the protocol, or comes when its exchange is
    over, raises ``ProtocolViolationError`` and changes nothing.

    Nobody can check what a node puts into its vector, nor whether its public mask key belongs to
    the masks in it. If it does not, masks stay in the sum, whose numbers then have any size: check
    that they are not larger than those of a sum can be.

    Parameters
    ----------
    round_id : RoundId
    nodes : collection of int
        The nodes that are asked for keys.
    seed : int
        The run's seed, from which the graph follows.
    length : int
        d, the length of the vectors.
    """

    def __init__(self, round_id: RoundId, nodes: Collection[int], seed: int, length: int) -> None:
        self._round_id, self._nodes, self._seed = round_id, {*nodes}, seed
        self._exchange = Exchange.KEYS
        self._keys: dict[int, NodeKeys] = {}
        self._plan = MaskPlan({}, 0)
        self._shares: dict[int, NodeShares] = {}
        self._masking: dict[int, tuple[int, ...]] = {}
        self._sum: Vector = np.zeros(length, np.uint64)
        self._senders: set[int] = set()
        self._lost: tuple[int, ...] = ()
        self._own: dict[int, dict[int, bytes]] = {}
        self._masks: dict[int, dict[int, bytes]] = {}
        self._unmasking: set[int] = set()

    # --- 1. keys -----------------------------------------------------------------------------

    def receive_keys(self, node: int, keys: NodeKeys) -> None:
        """Store a node's public keys.

        A key that nobody can use is refused here: later it would stop all of the node's neighbors.
        """
        self._check_exchange(node, Exchange.KEYS, "keys")
        if node not in self._nodes:
            raise ProtocolViolationError(node, "keys of a node that was not asked for them")
        _refuse_second(node, self._keys, "keys")
        lengths = {len(keys.mask_key), len(keys.share_key), len(keys.own_hash)}
        if lengths != {HASH_BYTES}:
            raise ProtocolViolationError(node, f"keys and hashes must have {HASH_BYTES} bytes")
        check_public_key(keys.mask_key, node)
        check_public_key(keys.share_key, node)
        self._keys[node] = keys

    def close_keys(self, choose_size: Callable[[int], GraphSize]) -> dict[int, ShareRequest]:
        """Choose the neighbors of all nodes with keys, and return the second message to each.

        Parameters
        ----------
        choose_size : callable
            Takes the number of these nodes, and returns the number of neighbors and the threshold.

        Raises
        ------
        SecureSumError
            If there are fewer than ``MIN_NODES``, or fewer than the threshold.
        """
        num_nodes = len(self._keys)
        size = choose_size(num_nodes) if num_nodes >= MIN_NODES else None
        if size is None or num_nodes < size.threshold:
            low = MIN_NODES if size is None else size.threshold
            raise SecureSumError(
                f"{num_nodes} of {count(len(self._nodes), 'node')} sent keys, and a sum needs {low}"
            )
        self._plan = MaskPlan.for_nodes([*self._keys], size, self._seed, self._round_number)
        self._exchange = Exchange.SHARES
        return {
            node: ShareRequest({k: self._keys[k] for k in neighbors}, self._plan.threshold)
            for node, neighbors in self._plan.neighbors.items()
        }

    @property
    def _round_number(self) -> int:
        return self._round_id.server_round

    @property
    def min_holders(self) -> int:
        """The smallest number of nodes of which a sum is known."""
        return max(MIN_NODES, self._plan.threshold)

    # --- 2. shares ---------------------------------------------------------------------------

    def receive_shares(self, node: int, shares: NodeShares) -> None:
        """Store the encrypted shares of a node."""
        self._check_exchange(node, Exchange.SHARES, "shares")
        _refuse_second(node, self._shares, "shares")
        neighbors = {*self._get_neighbors(node)}
        holders = {*neighbors, node}
        if shares.sealed.keys() != neighbors:
            raise ProtocolViolationError(node, "a share for each neighbor, and none else, is due")
        for hashes in (shares.mask_hashes, shares.own_hashes):
            if hashes.keys() != holders or {len(h) for h in hashes.values()} != {HASH_BYTES}:
                raise ProtocolViolationError(node, "a hash of each holder's share is due")
        self._shares[node] = shares

    def close_shares(self) -> dict[int, VectorRequest]:
        """Return the third message to each node that masks.

        A node with too few neighbors that sent shares is left out, because its masks could not be
        removed; so are, in turn, nodes that have too few without it.

        Raises
        ------
        SecureSumError
            If too few nodes are left.
        """
        left = {*self._shares}
        while bare := {k for k in left if not self._has_enough(k, left)}:
            left -= bare
        if len(left) < MIN_NODES:
            raise SecureSumError(
                f"{len(left)} of {len(self._keys)} nodes can mask with enough others"
            )
        self._masking = {
            node: tuple(k for k in self._plan.neighbors[node] if k in left) for node in sorted(left)
        }
        if not self._are_connected(left):
            raise SecureSumError("the nodes that have shares fall into parts that mask apart")
        self._exchange = Exchange.VECTORS
        return {
            node: VectorRequest(
                {k: self._shares[k].sealed[node] for k in neighbors},
                {k: self._shares[k].mask_hashes[node] for k in neighbors},
                {k: self._shares[k].own_hashes[node] for k in neighbors},
            )
            for node, neighbors in self._masking.items()
        }

    def _has_enough(self, node: int, others: Collection[int]) -> bool:
        """Say whether enough holders of a node's shares, itself one of them, are in ``others``."""
        held = sum(k in others for k in (*self._plan.neighbors[node], node))
        return held >= self._plan.threshold

    def can_unmask(self, nodes: Collection[int]) -> bool:
        """Say whether these nodes hold enough shares of every secret.

        If they are all that send a vector, the sum is not lost; nor if they are all that reveal
        shares.
        """
        holders = {*nodes}
        return all(self._has_enough(node, holders) for node in self._masking)

    def can_sum(self, nodes: Collection[int]) -> bool:
        """Say whether the sum of these nodes is not lost, if they are all that send a vector."""
        return self.can_unmask(nodes) and self._are_connected(nodes)

    def _are_connected(self, nodes: Collection[int]) -> bool:
        """Say whether every two of these nodes are connected by pairs of them that share masks.

        Otherwise the masks of each part vanish in its own sum, which then is known (Bell et al.
        2020, section 3.3).
        """
        left = {*nodes}
        reached = {*list(left)[:1]}
        edge = [*reached]
        while edge:
            found = left.intersection(self._masking[edge.pop()]) - reached
            reached |= found
            edge += found
        return reached == left

    # --- 3. vectors --------------------------------------------------------------------------

    def receive_vector(self, node: int, vector: MaskedVector) -> None:
        """Add a node's masked vector to the sum."""
        self._check_exchange(node, Exchange.VECTORS, "a vector")
        if node not in self._masking:
            raise ProtocolViolationError(node, "a vector of a node that was not asked for one")
        _refuse_second(node, self._senders, "a vector")
        values = vector.values
        if values.dtype != np.uint64 or values.shape != self._sum.shape:
            found = f"{values.dtype} of shape {values.shape}"
            expected = f"uint64 of shape {self._sum.shape}"
            raise ProtocolViolationError(node, f"its vector is {found}, not {expected}")
        self._sum += values
        self._senders.add(node)

    def close_vectors(self) -> dict[int, UnmaskRequest]:
        """Return the fourth message to each node that sent a vector.

        Raises
        ------
        SecureSumError
            If the masks of a node cannot be removed, because too few holders of its shares are
            left, or if the sums of parts of the nodes would be known. The sum is lost then; nothing
            was learned.
        """
        if len(self._senders) < MIN_NODES:
            raise SecureSumError(
                f"{len(self._senders)} of {count(len(self._masking), 'node')} sent a vector; in a "
                f"sum of fewer than {MIN_NODES} each could tell the other's"
            )
        for node in self._masking:
            if not self._has_enough(node, self._senders):
                raise self._build_loss_error(node)
        if not self._are_connected(self._senders):
            raise SecureSumError(
                f"the {len(self._senders)} nodes that sent a vector fall into parts that masked "
                "apart"
            )
        self._lost = tuple(k for k in self._masking if k not in self._senders)
        self._exchange = Exchange.UNMASK
        return {
            node: UnmaskRequest(
                tuple(k for k in self._masking[node] if k in self._senders),
                tuple(k for k in self._masking[node] if k not in self._senders),
            )
            for node in sorted(self._senders)
        }

    def _build_loss_error(self, node: int) -> SecureSumError:
        return SecureSumError(
            f"the sum of {len(self._senders)} of {len(self._masking)} nodes cannot be unmasked: "
            f"fewer than {self._plan.threshold} holders of the shares of node {node} are left"
        )

    # --- 4. unmask ---------------------------------------------------------------------------

    def receive_unmask(self, node: int, shares: UnmaskShares) -> None:
        """Store the shares that a node reveals, after a comparison with their hashes."""
        self._check_exchange(node, Exchange.UNMASK, "shares to unmask")
        if node not in self._senders:
            raise ProtocolViolationError(node, "shares of a node that sent no vector")
        _refuse_second(node, self._unmasking, "shares to unmask")
        neighbors = self._masking[node]
        survivors = {node, *(k for k in neighbors if k in self._senders)}
        lost = {k for k in neighbors if k not in self._senders}
        if shares.own.keys() != survivors or shares.masks.keys() != lost:
            raise ProtocolViolationError(node, "one share of each neighbor, the due one, is due")
        for dealer, share in shares.own.items():
            self._check_share(node, dealer, share, self._shares[dealer].own_hashes)
        for dealer, share in shares.masks.items():
            self._check_share(node, dealer, share, self._shares[dealer].mask_hashes)
        self._unmasking.add(node)
        for found, revealed in ((self._own, shares.own), (self._masks, shares.masks)):
            for dealer, share in revealed.items():
                found.setdefault(dealer, {})[self._get_share_index(dealer, node)] = share

    def _check_share(
        self, node: int, dealer: int, share: bytes, hashes: Mapping[int, bytes]
    ) -> None:
        if hash_secret(share) != hashes[node]:
            text = f"its share of node {dealer} is not the one that this node was sent"
            raise ProtocolViolationError(node, text)

    def finish(self) -> tuple[Vector, tuple[int, ...]]:
        """Return the sum of the vectors modulo 2^64, and the nodes that sent them, ascending.

        All secrets are compared with what their nodes committed themselves to before any mask is
        removed. After an error more shares may arrive, and the sum be asked for again.

        Raises
        ------
        SecureSumError
            If too few shares of a secret are there.
        ProtocolViolationError
            If a node's shares restore another secret than the one that it committed itself to.
        """
        assert self._exchange is Exchange.UNMASK
        masks: list[tuple[bytes, bool]] = []  # each with whether it is to be subtracted
        for node in sorted(self._senders):
            secret = self._restore(self._own, node)
            if hash_secret(secret) != self._keys[node].own_hash:
                raise ProtocolViolationError(node, "its shares restore another own mask")
            masks.append((derive_own_mask_key(secret, self._round_id, node), True))
        for node in self._lost:
            secret = self._restore(self._masks, node)
            private = derive_private_key(secret, self._round_id, PAIR_MASK)
            if get_public_bytes(private) != self._keys[node].mask_key:
                raise ProtocolViolationError(node, "its shares restore another mask key")
            for k in self._masking[node]:
                if k not in self._senders:
                    continue
                pair, public = (node, k), self._keys[k].mask_key
                key = agree_on_key(private, public, self._round_id, PAIR_MASK, pair)
                # What k added or subtracted for the lost node is taken back.
                masks.append((key, k < node))
        for key, negative in masks:
            add_mask(self._sum, key, negative=negative)
        self._exchange = Exchange.NOTHING
        return self._sum, tuple(sorted(self._senders))

    def _restore(self, found: Mapping[int, Mapping[int, bytes]], dealer: int) -> bytes:
        shares, needed = found.get(dealer, NO_SHARES), self._plan.threshold
        if len(shares) < needed:
            raise SecureSumError(
                f"{len(shares)} of {needed} needed shares of node {dealer} were revealed"
            )
        return restore_secret(dict(sorted(shares.items())[:needed]))

    def _check_exchange(self, node: int, exchange: Exchange, kind: str) -> None:
        """Refuse a message that is late or early: who has which part in the round is decided."""
        if self._exchange is not exchange:
            when = "after" if self._exchange > exchange else "before"
            raise ProtocolViolationError(node, f"it sent {kind} {when} their exchange")

    def _get_neighbors(self, node: int) -> Sequence[int]:
        if node not in self._plan.neighbors:
            raise ProtocolViolationError(node, "shares of a node that sent no keys")
        return self._plan.neighbors[node]

    def _get_share_index(self, dealer: int, holder: int) -> int:
        """Return the index of a holder's share: neighbors ascending, then the dealer itself."""
        neighbors = self._plan.neighbors[dealer]
        return len(neighbors) + 1 if holder == dealer else neighbors.index(holder) + 1


def _refuse_second(node: int, earlier: Mapping[int, object] | set[int], kind: str) -> None:
    if node in earlier:
        raise ProtocolViolationError(node, f"it sent {kind} twice in a round")
