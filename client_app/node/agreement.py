"""Exchange the statistics by which devices agree on scales, and the scales.

Before round 1 the server sends a query of the type ``QUERY_TYPE``, with the ``client-id``s that it
asks for. A node replies with the exact sums of these clients' training rows. Every later request
has the scales that follow from the sums of all clients, so a node that joins late has them too.

Both are JSON in a ``ConfigRecord``. Sums are fractions in text: they are exact, and Flower's
records have no whole numbers beyond 64 bits.
"""

import json
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from fedquorum.errors import ProtocolError
from fedquorum.flower.codec import CLIENT_ID, encode_query
from flwr.app import ConfigRecord, RecordDict

from client_app.data.agreed import ClientMoments
from client_app.data.moments import Moments
from client_app.data.scaling import AgreedScales

STATISTICS_ACTION = "statistics"
QUERY_TYPE = f"query.{STATISTICS_ACTION}"

CONFIG = "config"
STATISTICS = "statistics"
SCALES = "agreed-scales"

MAX_ROWS = 10**12
FRACTION = re.compile(r"-?\d{1,1300}(/\d{1,1300})?", re.ASCII)
"""The sum of any squares has fewer digits, and Python refuses to read numbers beyond 4300."""


def encode_statistics_query(clients: Sequence[int]) -> RecordDict:
    """Return the content of a query for the statistics of these clients of a node."""
    content = encode_query()
    content.config_records[CONFIG][CLIENT_ID] = list(clients)
    return content


def decode_statistics_query(content: RecordDict, hosted: Sequence[int]) -> tuple[int, ...]:
    """Return the clients whose statistics a server asks for.

    Raises
    ------
    ProtocolError
        If one of them is not ``hosted`` here.
    """
    given = content.config_records.get(CONFIG, ConfigRecord()).get(CLIENT_ID, [])
    clients = tuple(k for k in given if isinstance(k, int)) if isinstance(given, list) else ()
    if not clients or not {*clients} <= {*hosted}:
        raise ProtocolError(f"a query for statistics must name clients of this node, got {given!r}")
    return clients


def encode_statistics(moments: Mapping[int, ClientMoments]) -> RecordDict:
    """Return the reply to a query: the moments of each client."""
    clients = {
        str(client): {name: _to_json(one) for name, one in found.items()}
        for client, found in moments.items()
    }
    return RecordDict({STATISTICS: ConfigRecord({STATISTICS: json.dumps(clients)})})


def decode_statistics(
    content: RecordDict, clients: Sequence[int], sizes: Mapping[str, int]
) -> dict[int, ClientMoments]:
    """Return the moments of these clients in a node's reply.

    Parameters
    ----------
    content : RecordDict
    clients : sequence of int
        The clients that the node was asked for; it must reply for all of them.
    sizes : mapping of str to int
        The number of columns of each kind of moments.

    Raises
    ------
    ProtocolError
        If the reply has another form, or its sums belong to no numbers.
    """
    try:
        given = json.loads(str(content.config_records[STATISTICS][STATISTICS]))
        found: dict[int, ClientMoments] = {
            client: {name: _from_json(given[str(client)][name], p) for name, p in sizes.items()}
            for client in clients
        }
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ProtocolError(f"its statistics cannot be used: {error}") from None
    return found


def encode_scales(scales: AgreedScales) -> ConfigRecord:
    """Return what every request of a run has in its config."""
    return ConfigRecord({SCALES: json.dumps(scales.to_dict())})


def decode_scales(content: RecordDict) -> AgreedScales | None:
    """Return the scales in a request, or None if it has none.

    Raises
    ------
    ProtocolError
        If they have another form.
    """
    given = content.config_records.get(CONFIG, ConfigRecord()).get(SCALES)
    if given is None:
        return None
    try:
        return AgreedScales.from_dict(json.loads(str(given)))
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _to_json(moments: Moments) -> dict[str, Any]:
    return {
        "counts": list(moments.counts),
        "sums": [*map(str, moments.sums)],
        "squares": [*map(str, moments.squares)],
    }


def _from_json(given: Mapping[str, Any], size: int) -> Moments:
    counts = tuple(given["counts"])
    if any(type(n) is not int or not 0 <= n <= MAX_ROWS for n in counts):
        raise ValueError("a count is no number of rows")
    moments = Moments(counts, *(tuple(map(_read_fraction, given[k])) for k in ("sums", "squares")))
    if {len(moments.counts), len(moments.sums), len(moments.squares)} != {size}:
        raise ValueError("it has other columns")
    columns = zip(moments.counts, moments.sums, moments.squares, strict=True)
    # The variance n S2 - S1^2 of numbers is never negative, and 0 without numbers.
    if any(n * squares < total**2 or (n == 0 and squares) for n, total, squares in columns):
        raise ValueError("its sums belong to no numbers")
    if np.isinf([moments.compute_means(), moments.compute_deviations()]).any():
        raise ValueError("its sums are too large")
    return moments


def _read_fraction(text: Any) -> Fraction:
    if not isinstance(text, str) or not FRACTION.fullmatch(text):
        raise ValueError("a sum is no fraction")
    return Fraction(text)
