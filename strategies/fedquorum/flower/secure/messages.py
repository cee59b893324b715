"""The messages of the four exchanges of a secure sum."""

from collections.abc import Mapping
from dataclasses import dataclass

from .keys import Vector


@dataclass(frozen=True)
class NodeKeys:
    """What a node sends in the first exchange.

    Parameters
    ----------
    mask_key, share_key : bytes
        Public keys: for the masks that it has in common with others, and for encrypted shares.
    own_hash : bytes
        SHA-256 of the secret of its own mask.
    """

    mask_key: bytes
    share_key: bytes
    own_hash: bytes


@dataclass(frozen=True)
class ShareRequest:
    """What the server sends a node in the second exchange.

    Parameters
    ----------
    keys : mapping of int to NodeKeys
        The keys of the node's neighbors.
    threshold : int
        The number of shares that restore a secret.
    """

    keys: Mapping[int, NodeKeys]
    threshold: int


@dataclass(frozen=True)
class NodeShares:
    """The shares of a node's two secrets, one of each for every holder.

    Parameters
    ----------
    sealed : mapping of int to bytes
        Both shares for each neighbor, encrypted.
    mask_hashes, own_hashes : mapping of int to bytes
        SHA-256 of each holder's share of the secret of its mask key, and of its own mask; the node
        itself is a holder.
    """

    sealed: Mapping[int, bytes]
    mask_hashes: Mapping[int, bytes]
    own_hashes: Mapping[int, bytes]


@dataclass(frozen=True)
class VectorRequest:
    """What the server sends a node in the third exchange, beside the model.

    Parameters
    ----------
    sealed : mapping of int to bytes
        The shares for this node, by the neighbor that sent them. The node masks with exactly these
        neighbors.
    mask_hashes, own_hashes : mapping of int to bytes
        The hashes of these shares that each neighbor sent the server.
    """

    sealed: Mapping[int, bytes]
    mask_hashes: Mapping[int, bytes]
    own_hashes: Mapping[int, bytes]


@dataclass(frozen=True)
class MaskedVector:
    """What a node sends in the third exchange: its vector and its masks, modulo 2^64."""

    values: Vector


@dataclass(frozen=True)
class UnmaskRequest:
    """What the server sends a node in the fourth exchange.

    Parameters
    ----------
    survivors : tuple of int
        The node's neighbors that sent a vector.
    lost : tuple of int
        Its neighbors that masked for it and sent none.
    """

    survivors: tuple[int, ...]
    lost: tuple[int, ...]


@dataclass(frozen=True)
class UnmaskShares:
    """What a node sends in the fourth exchange.

    Parameters
    ----------
    own : mapping of int to bytes
        Its shares of the own masks of survivors, itself among them.
    masks : mapping of int to bytes
        Its shares of the mask keys of lost nodes.
    """

    own: Mapping[int, bytes]
    masks: Mapping[int, bytes]
