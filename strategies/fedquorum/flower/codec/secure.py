"""Encode and decode the messages of a secure sum, and what a node keeps between them.

Every decoder is strict: a record with a field that is missing, of another type or length, or with a
node twice is refused, and the error names the field.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from ...errors import ProtocolError
from ...rules.decisions import SUMMED_FIELDS
from ..secure.keys import HASH_BYTES, KEY_BYTES, NONCE_BYTES, SECRET_BYTES, RoundId
from ..secure.messages import (
    MaskedVector,
    NodeKeys,
    NodeShares,
    ShareRequest,
    UnmaskRequest,
    UnmaskShares,
    VectorRequest,
)
from ..secure.node import NodeState
from .arrays import encode_arrays, select_records, view_arrays
from .keys import (
    EVALUATE_METRICS,
    HOLDER,
    LOST_NODE,
    LOST_SHARES,
    MASK_HASHES,
    MASK_KEY,
    MASK_KEYS,
    MASK_SHARES,
    MASK_STATE,
    MASKED_SUM,
    MASKING_NODE,
    NAMES,
    OWN_HASH,
    OWN_HASHES,
    OWN_SHARES,
    ROUND,
    RUN,
    SEALED_SHARES,
    SECRETS,
    SECURE_SUM_STEPS,
    SHARE_KEY,
    SUMMED_NUMBERS,
    SURVIVOR,
    THRESHOLD,
    UNMASK,
    VALUES,
)

SEALED_BYTES = NONCE_BYTES + 2 * SECRET_BYTES + 16
"""A nonce, two shares and a tag."""

MAX_NODE_ID = 2**64 - 1
Records = dict[str, ArrayRecord | ConfigRecord]
"""What to add to a message."""


def find_step(content: RecordDict) -> str | None:
    """Return the name of the record that makes a train message part of a secure sum, or None.

    Raises
    ------
    ProtocolError
        If there are several.
    """
    steps = [name for name in SECURE_SUM_STEPS if name in content]
    if len(steps) > 1:
        raise ProtocolError(f"a message has '{steps[0]}' or '{steps[1]}', not both")
    return steps[0] if steps else None


# --- 1. keys -----------------------------------------------------------------------------------


def encode_keys_request() -> Records:
    """Return what makes an inquiry ask for keys."""
    return {MASK_KEYS: ConfigRecord()}


def encode_keys(keys: NodeKeys) -> Records:
    """Return a node's public keys."""
    record: dict[str, Any] = {
        MASK_KEY: keys.mask_key,
        SHARE_KEY: keys.share_key,
        OWN_HASH: keys.own_hash,
    }
    return {MASK_KEYS: ConfigRecord(record)}


def decode_keys(content: RecordDict) -> NodeKeys:
    """Return the public keys in a node's reply."""
    fields = _Fields(content, MASK_KEYS, (MASK_KEY, SHARE_KEY, OWN_HASH))
    return NodeKeys(
        fields.read_bytes(MASK_KEY, KEY_BYTES),
        fields.read_bytes(SHARE_KEY, KEY_BYTES),
        fields.read_bytes(OWN_HASH, HASH_BYTES),
    )


# --- 2. shares ---------------------------------------------------------------------------------


def encode_share_request(request: ShareRequest) -> Records:
    """Return the keys of a node's neighbors."""
    record: dict[str, Any] = {THRESHOLD: request.threshold, **_list_keys(request.keys)}
    return {MASK_SHARES: ConfigRecord(record)}


def _list_keys(keys: Mapping[int, NodeKeys]) -> dict[str, Any]:
    return {
        MASKING_NODE: [*keys],
        MASK_KEY: [one.mask_key for one in keys.values()],
        SHARE_KEY: [one.share_key for one in keys.values()],
        OWN_HASH: [one.own_hash for one in keys.values()],
    }


_KEY_LISTS = (MASKING_NODE, MASK_KEY, SHARE_KEY, OWN_HASH)


def decode_share_request(content: RecordDict) -> ShareRequest:
    """Return the keys of a node's neighbors, and the threshold."""
    fields = _Fields(content, MASK_SHARES, (THRESHOLD, *_KEY_LISTS))
    return ShareRequest(_read_keys(fields), fields.read_int(THRESHOLD))


def _read_keys(fields: "_Fields") -> dict[int, NodeKeys]:
    lists = [
        fields.read_by_node(MASKING_NODE, key, size)
        for key, size in ((MASK_KEY, KEY_BYTES), (SHARE_KEY, KEY_BYTES), (OWN_HASH, HASH_BYTES))
    ]
    return {node: NodeKeys(*(found[node] for found in lists)) for node in lists[0]}


def encode_shares(shares: NodeShares) -> Records:
    """Return a node's encrypted shares, and the hashes of all its shares."""
    record: dict[str, Any] = {
        MASKING_NODE: [*shares.sealed],
        SEALED_SHARES: [*shares.sealed.values()],
        HOLDER: [*shares.mask_hashes],
        MASK_HASHES: [*shares.mask_hashes.values()],
        OWN_HASHES: [shares.own_hashes[node] for node in shares.mask_hashes],
    }
    return {MASK_SHARES: ConfigRecord(record)}


def decode_shares(content: RecordDict) -> NodeShares:
    """Return the encrypted shares in a node's reply."""
    keys = (MASKING_NODE, SEALED_SHARES, HOLDER, MASK_HASHES, OWN_HASHES)
    fields = _Fields(content, MASK_SHARES, keys)
    return NodeShares(
        fields.read_by_node(MASKING_NODE, SEALED_SHARES, SEALED_BYTES),
        fields.read_by_node(HOLDER, MASK_HASHES, HASH_BYTES),
        fields.read_by_node(HOLDER, OWN_HASHES, HASH_BYTES),
    )


# --- 3. vectors --------------------------------------------------------------------------------


def encode_vector_request(request: VectorRequest) -> Records:
    """Return the shares for a node, which a train request has beside the model."""
    nodes = [*request.sealed]
    record: dict[str, Any] = {
        MASKING_NODE: nodes,
        SEALED_SHARES: [*request.sealed.values()],
        MASK_HASHES: [request.mask_hashes[node] for node in nodes],
        OWN_HASHES: [request.own_hashes[node] for node in nodes],
    }
    return {MASKED_SUM: ConfigRecord(record)}


def decode_vector_request(content: RecordDict) -> VectorRequest:
    """Return the shares for a node."""
    fields = _Fields(content, MASKED_SUM, (MASKING_NODE, SEALED_SHARES, MASK_HASHES, OWN_HASHES))
    return VectorRequest(
        fields.read_by_node(MASKING_NODE, SEALED_SHARES, SEALED_BYTES),
        fields.read_by_node(MASKING_NODE, MASK_HASHES, HASH_BYTES),
        fields.read_by_node(MASKING_NODE, OWN_HASHES, HASH_BYTES),
    )


def encode_masked_vector(vector: MaskedVector) -> Records:
    """Return a node's masked vector."""
    return {MASKED_SUM: encode_arrays({VALUES: vector.values})}


def decode_masked_vector(content: RecordDict) -> MaskedVector | None:
    """Return the masked vector in a train reply as a view, None if the reply has none."""
    if MASKED_SUM not in content:
        return None
    record = select_records(content, ArrayRecord).get(MASKED_SUM)
    arrays = {} if record is None else view_arrays(record)
    values = arrays.get(VALUES)
    if values is None or len(arrays) > 1 or values.dtype != np.uint64 or values.ndim != 1:
        raise ProtocolError(f"'{MASKED_SUM}' must have one array '{VALUES}', of uint64 in one row")
    return MaskedVector(values)


# --- the numbers of an evaluation ----------------------------------------------------------------


def encode_summed_fields(fields: Collection[str]) -> Records:
    """Return the names of some of ``SUMMED_FIELDS``, which say nothing of their values."""
    names = [EVALUATE_METRICS[name] for name in SUMMED_FIELDS if name in fields]
    return {SUMMED_NUMBERS: ConfigRecord({NAMES: names})}


def find_earlier_fields(state: RecordDict) -> frozenset[str] | None:
    """Return the fields that a node's state has from its last evaluation; None without any."""
    return decode_summed_fields(state) if SUMMED_NUMBERS in state else None


def decode_summed_fields(content: RecordDict) -> frozenset[str]:
    """Return the fields that a message of an evaluation names."""
    names = _Fields(content, SUMMED_NUMBERS, (NAMES,)).read_names(NAMES, _SUMMED_KEYS)
    return frozenset(name for name in SUMMED_FIELDS if EVALUATE_METRICS[name] in names)


_SUMMED_KEYS = tuple(EVALUATE_METRICS[name] for name in SUMMED_FIELDS)


# --- 4. unmask ---------------------------------------------------------------------------------


def encode_unmask_request(request: UnmaskRequest) -> Records:
    """Return which of a node's neighbors sent a vector, and which did not."""
    record: dict[str, Any] = {SURVIVOR: [*request.survivors], LOST_NODE: [*request.lost]}
    return {UNMASK: ConfigRecord(record)}


def decode_unmask_request(content: RecordDict) -> UnmaskRequest:
    """Return which of a node's neighbors sent a vector, and which did not."""
    fields = _Fields(content, UNMASK, (SURVIVOR, LOST_NODE))
    return UnmaskRequest(tuple(fields.read_nodes(SURVIVOR)), tuple(fields.read_nodes(LOST_NODE)))


def encode_unmask_shares(shares: UnmaskShares) -> Records:
    """Return the shares that a node reveals."""
    record: dict[str, Any] = {
        SURVIVOR: [*shares.own],
        OWN_SHARES: [*shares.own.values()],
        LOST_NODE: [*shares.masks],
        LOST_SHARES: [*shares.masks.values()],
    }
    return {UNMASK: ConfigRecord(record)}


def decode_unmask_shares(content: RecordDict) -> UnmaskShares:
    """Return the shares that a node reveals."""
    fields = _Fields(content, UNMASK, (SURVIVOR, OWN_SHARES, LOST_NODE, LOST_SHARES))
    return UnmaskShares(
        fields.read_by_node(SURVIVOR, OWN_SHARES, SECRET_BYTES),
        fields.read_by_node(LOST_NODE, LOST_SHARES, SECRET_BYTES),
    )


# --- the node's state ----------------------------------------------------------------------------


def encode_state(state: NodeState) -> Records:
    """Return a node's secrets, which stay on the node."""
    record: dict[str, Any] = {
        **_list_round(state.round_id),
        SECRETS: [state.mask_secret, state.own_secret, state.share_secret],
        THRESHOLD: state.threshold,
        **_list_keys(state.keys),
        HOLDER: [*state.held_masks],
        LOST_SHARES: [*state.held_masks.values()],
        OWN_SHARES: [state.held_own[node] for node in state.held_masks],
    }
    return {MASK_STATE: ConfigRecord(record)}


def encode_used_state(round_id: RoundId) -> Records:
    """Return what is left of a node's state without its secrets: that the round has masks."""
    return {MASK_STATE: ConfigRecord(_list_round(round_id))}


def _list_round(round_id: RoundId) -> dict[str, Any]:
    return {RUN: round_id.run, ROUND: round_id.server_round}


def decode_state(content: RecordDict, node: int, round_id: RoundId) -> NodeState | None:
    """Return a node's state of a round, None if it has no secrets of this round."""
    record = select_records(content, ConfigRecord).get(MASK_STATE, ConfigRecord())
    if SECRETS not in record or not is_masked_round(content, round_id):
        return None
    fields = _Fields(content, MASK_STATE, tuple(record))
    mask_secret, own_secret, share_secret = fields.read_list(SECRETS, SECRET_BYTES, count=3)
    return NodeState(
        node,
        round_id,
        mask_secret,
        own_secret,
        share_secret,
        threshold=fields.read_int(THRESHOLD),
        keys=_read_keys(fields),
        held_masks=fields.read_by_node(HOLDER, LOST_SHARES, SECRET_BYTES),
        held_own=fields.read_by_node(HOLDER, OWN_SHARES, SECRET_BYTES),
    )


def is_masked_round(content: RecordDict, round_id: RoundId) -> bool:
    """Say whether a node's state is of this round, with its secrets or without."""
    record = select_records(content, ConfigRecord).get(MASK_STATE, ConfigRecord())
    return {RUN: record.get(RUN), ROUND: record.get(ROUND)} == _list_round(round_id)


def drop_mask_state(content: RecordDict) -> RecordDict:
    """Return a node's state without its secrets, as a checkpoint may have it."""
    return RecordDict({name: record for name, record in content.items() if name != MASK_STATE})


# --- fields --------------------------------------------------------------------------------------


class _Fields:
    """The fields of one record, each read with its type and length.

    Raises
    ------
    ProtocolError
        If the record is missing, or has other fields.
    """

    def __init__(self, content: RecordDict, name: str, keys: Sequence[str]) -> None:
        record = select_records(content, ConfigRecord).get(name)
        if record is None:
            raise ProtocolError(f"the record '{name}' is missing")
        self._name = name
        self._values: dict[str, Any] = dict(record)
        for key in keys:
            if key not in self._values:
                raise ProtocolError(f"'{key}' is missing in '{name}'")
        if len(self._values) > len(keys):
            raise ProtocolError(f"'{name}' has fields that nobody reads")

    def read_int(self, key: str) -> int:
        value = self._values[key]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._build_error(key, "a whole number")
        return value

    def read_bytes(self, key: str, size: int) -> bytes:
        value = self._values[key]
        if not isinstance(value, bytes) or len(value) != size:
            raise self._build_error(key, f"{size} bytes")
        return value

    def read_list(self, key: str, size: int, *, count: int) -> list[bytes]:
        values = self._values[key]
        right = isinstance(values, list) and len(values) == count
        if not right or not all(isinstance(v, bytes) and len(v) == size for v in values):
            raise self._build_error(key, f"a list of {count} times {size} bytes")
        return list(values)

    def read_nodes(self, key: str) -> list[int]:
        values = self._values[key]
        if not isinstance(values, list) or not all(map(_is_node_id, values)):
            raise self._build_error(key, "a list of node ids")
        if len({*values}) < len(values):
            raise self._build_error(key, "a list with each node once")
        return values

    def read_names(self, key: str, allowed: Collection[str]) -> list[str]:
        values = self._values[key]
        right = isinstance(values, list) and all(value in allowed for value in values)
        if not right or len({*values}) < len(values):
            raise self._build_error(key, f"a list of {', '.join(allowed)}, each once")
        return list(values)

    def read_by_node(self, nodes_key: str, key: str, size: int) -> dict[int, bytes]:
        nodes = self.read_nodes(nodes_key)
        return dict(zip(nodes, self.read_list(key, size, count=len(nodes)), strict=True))

    def _build_error(self, key: str, allowed: str) -> ProtocolError:
        return ProtocolError(f"'{key}' in '{self._name}' must be {allowed}")


def _is_node_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NODE_ID
