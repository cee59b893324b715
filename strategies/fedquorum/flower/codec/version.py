"""Check the protocol's number, which every message of the protocol carries."""

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from ...errors import ProtocolError
from .keys import CLIENT_ID, CONFIG, METRICS, PROTOCOL_KEY, STATUS
from .kinds import select_records

PROTOCOL_VERSION = 4
"""The protocol's number. Messages of version 1 carry none."""

NATIVE_KEYS = (CLIENT_ID, STATUS)  # Flower's own strategies and their ClientApps name neither


def has_protocol_version(content: RecordDict) -> bool:
    """Say whether a message carries the protocol's number; Flower's standard ones do not."""
    configs, metrics = select_records(content, ConfigRecord), select_records(content, MetricRecord)
    return any(
        PROTOCOL_KEY in records[name]
        for name, records in ((CONFIG, configs), (METRICS, metrics))
        if name in records
    )


def read_protocol_version(record: Mapping[str, Any]) -> int | None:
    """Return the number in a request's config or a reply's metrics, None in Flower's standard.

    Raises
    ------
    ProtocolError
        If the number is not a whole number.
    """
    number = record.get(PROTOCOL_KEY)
    if number is None:
        return 1 if any(key in record for key in NATIVE_KEYS) else None
    if not isinstance(number, int):
        raise ProtocolError(f"'{PROTOCOL_KEY}' must be a whole number, got {number!r}")
    return number


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
