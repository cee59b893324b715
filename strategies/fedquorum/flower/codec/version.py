"""Check the protocol version, which every message of the protocol carries."""

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from ...errors import ProtocolError
from .arrays import select_records
from .keys import CLIENT_ID, CONFIG, METRICS, PROTOCOL_KEY, STATUS

PROTOCOL_VERSION = 4
"""The protocol's version. Messages of version 1 carry none."""

NATIVE_KEYS = (CLIENT_ID, STATUS)  # absent from Flower's standard messages


def has_protocol_version(content: RecordDict) -> bool:
    """Say whether a message carries a protocol version; Flower's standard messages do not."""
    configs, metrics = select_records(content, ConfigRecord), select_records(content, MetricRecord)
    return any(
        PROTOCOL_KEY in records[name]
        for name, records in ((CONFIG, configs), (METRICS, metrics))
        if name in records
    )


def read_protocol_version(record: Mapping[str, Any]) -> int | None:
    """Return the version in a request's config or a reply's metrics; None in the standard form.

    Raises
    ------
    ProtocolError
        If the version is not a whole number.
    """
    version = record.get(PROTOCOL_KEY)
    if version is None:
        return 1 if any(key in record for key in NATIVE_KEYS) else None
    if not isinstance(version, int):
        raise ProtocolError(f"'{PROTOCOL_KEY}' must be a whole number, got {version!r}")
    return version


def check_request(config: Mapping[str, Any]) -> None:
    """Raise ProtocolError at a node if the server uses another protocol."""
    server = read_protocol_version(config)
    if server not in (None, PROTOCOL_VERSION):
        raise ProtocolError(_describe_mismatch(PROTOCOL_VERSION, server))


def check_reply(metrics: Mapping[str, Any]) -> None:
    """Raise ProtocolError at the server if a node uses another protocol."""
    node = read_protocol_version(metrics)
    if node not in (None, PROTOCOL_VERSION):
        raise ProtocolError(_describe_mismatch(node, PROTOCOL_VERSION))


def _describe_mismatch(node: int, server: int) -> str:
    older = "the node" if node < server else "the server"
    return f"this node speaks {node}, the server {server}: update fedquorum on {older}"
