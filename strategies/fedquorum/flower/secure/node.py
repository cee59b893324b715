"""The node's side of a secure sum: what it knows, and how it answers each message of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .errors import ProtocolViolationError
from .keys import (
    PAIR_MASK,
    SECRET_BYTES,
    SHARES,
    RoundId,
    Vector,
    add_mask,
    agree_on_key,
    create_secret,
    decrypt_shares,
    derive_own_mask_key,
    derive_private_key,
    encrypt_shares,
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
from .plan import MIN_NODES
from .shares import split_secret


@dataclass(frozen=True)
class NodeState:
    """The secrets of a node in one round.

    They must not outlive the round: never write them into a checkpoint, and delete them with the
    answer to ``unmask`` or when the keys of another round are asked for.

    Parameters
    ----------
    node : int
    round_id : RoundId
    mask_secret, own_secret, share_secret : bytes
        Of the key for common masks, of the own mask, and of the key for encrypted shares.
    threshold : int
        0 before the second exchange.
    keys : mapping of int to NodeKeys
        Of the neighbors; empty before the second exchange.
    held_masks, held_own : mapping of int to bytes
        The shares of others' secrets that this node holds, and of its own.
    """

    node: int
    round_id: RoundId
    mask_secret: bytes = field(repr=False)
    own_secret: bytes = field(repr=False)
    share_secret: bytes = field(repr=False)
    threshold: int = 0
    keys: Mapping[int, NodeKeys] = field(default_factory=dict)
    held_masks: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    held_own: Mapping[int, bytes] = field(default_factory=dict, repr=False)


def make_keys(node: int, round_id: RoundId) -> tuple[NodeState, NodeKeys]:
    """Answer the first message of a round with fresh public keys."""
    state = NodeState(node, round_id, create_secret(), create_secret(), create_secret())
    mask_key, share_key = (
        get_public_bytes(derive_private_key(secret, round_id, purpose))
        for secret, purpose in ((state.mask_secret, PAIR_MASK), (state.share_secret, SHARES))
    )
    return state, NodeKeys(mask_key, share_key, hash_secret(state.own_secret))


def make_shares(state: NodeState, request: ShareRequest) -> tuple[NodeState, NodeShares]:
    """Answer the second message with shares of both secrets for each neighbor.

    Raises
    ------
    ProtocolViolationError
        If the server asks a second time, for fewer than ``MIN_NODES`` nodes, or for a threshold of
        half of them or fewer; the sender is None. If a neighbor's key cannot be used; it is the
        sender then.
    """
    node, neighbors = state.node, sorted(request.keys)
    holders = [*neighbors, node]
    if state.keys:
        raise ProtocolViolationError(None, "shares were asked for twice in a round")
    if node in request.keys:
        raise ProtocolViolationError(None, "a node is no neighbor of itself")
    _check_count(len(holders))
    low = len(holders) // 2 + 1
    if not low <= request.threshold <= len(holders):
        text = f"the threshold must be from {low} to {len(holders)}, got {request.threshold}"
        raise ProtocolViolationError(None, text)
    masks, own = (
        dict(zip(holders, split_secret(secret, request.threshold, len(holders)), strict=True))
        for secret in (state.mask_secret, state.own_secret)
    )
    private = derive_private_key(state.share_secret, state.round_id, SHARES)
    sealed = {}
    for k in neighbors:
        key = agree_on_key(private, request.keys[k].share_key, state.round_id, SHARES, (node, k))
        sealed[k] = encrypt_shares(key, masks[k] + own[k], state.round_id, node, k)
    answer = NodeShares(
        sealed,
        {k: hash_secret(share) for k, share in masks.items()},
        {k: hash_secret(share) for k, share in own.items()},
    )
    state = replace(
        state,
        threshold=request.threshold,
        keys=dict(request.keys),
        held_masks={node: masks[node]},
        held_own={node: own[node]},
    )
    return state, answer


def mask_vector(
    state: NodeState, request: VectorRequest, vector: Vector
) -> tuple[NodeState, MaskedVector]:
    """Answer the third message: add to a vector, in place, the masks of this node.

    Raises
    ------
    ProtocolViolationError
        If shares are unreadable, not those of the hashes, or of no neighbor, or if the server asks
        a second time: a node never masks two vectors in the same way.
    """
    node, round_id = state.node, state.round_id
    if not state.keys or len(state.held_own) > 1:
        raise ProtocolViolationError(None, "a vector may be asked for once, after the shares")
    if not request.sealed.keys() <= state.keys.keys():
        raise ProtocolViolationError(None, "shares of nodes that are no neighbors")
    _check_count(len(request.sealed) + 1)
    if len(request.sealed) + 1 < state.threshold:
        text = f"{len(request.sealed) + 1} holders of shares are too few for {state.threshold}"
        raise ProtocolViolationError(None, text)
    opener = derive_private_key(state.share_secret, round_id, SHARES)
    private = derive_private_key(state.mask_secret, round_id, PAIR_MASK)
    masks, own = dict(state.held_masks), dict(state.held_own)
    keys = {}
    for k, sealed in sorted(request.sealed.items()):
        theirs = state.keys[k]
        key = agree_on_key(opener, theirs.share_key, round_id, SHARES, (node, k))
        plain = decrypt_shares(key, sealed, round_id, k, node)
        if len(plain) != 2 * SECRET_BYTES:
            raise ProtocolViolationError(k, "its shares have another length")
        masks[k], own[k] = plain[:SECRET_BYTES], plain[SECRET_BYTES:]
        # Otherwise the server would find the wrong share later, and blame this node for it.
        for share, hashes in ((masks[k], request.mask_hashes), (own[k], request.own_hashes)):
            if hash_secret(share) != hashes.get(k):
                raise ProtocolViolationError(k, "its shares are not those whose hashes it sent")
        keys[k] = agree_on_key(private, theirs.mask_key, round_id, PAIR_MASK, (node, k))
    for k, key in keys.items():
        add_mask(vector, key, negative=node > k)
    add_mask(vector, derive_own_mask_key(state.own_secret, round_id, node))
    return replace(state, held_masks=masks, held_own=own), MaskedVector(vector)


def unmask(state: NodeState, request: UnmaskRequest) -> UnmaskShares:
    """Answer the fourth message; delete the state then.

    Raises
    ------
    ProtocolViolationError
        If the server asks for both shares of a node, for those of a stranger, or in a round with
        too few survivors.
    """
    survivors, lost = {*request.survivors}, {*request.lost}
    known = state.held_own.keys() - {state.node}
    if not known:
        raise ProtocolViolationError(None, "masks may be asked for after the vectors only")
    if survivors & lost or survivors | lost != known:
        text = "each neighbor with a mask must be a survivor or lost, and no other node"
        raise ProtocolViolationError(None, text)
    _check_count(len(survivors) + 1)
    if len(survivors) + 1 < state.threshold:
        text = f"{len(survivors) + 1} holders of shares are left, too few for {state.threshold}"
        raise ProtocolViolationError(None, text)
    return UnmaskShares(
        {k: state.held_own[k] for k in sorted((*survivors, state.node))},
        {k: state.held_masks[k] for k in sorted(lost)},
    )


def _check_count(num_nodes: int) -> None:
    """Refuse a sum of so few nodes: the server may lose others on purpose, down to the threshold.

    A node knows of itself and its neighbors only.
    """
    if num_nodes < MIN_NODES:
        text = f"at least {MIN_NODES} nodes must take part, got {num_nodes}"
        raise ProtocolViolationError(None, text)
