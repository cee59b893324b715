"""Write and read the scale of a client's numbers that a device shares with the model card."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from fedquorum.errors import ProtocolError
from flwr.app import ConfigRecord

from client_app.data.coding.table import ClientScale
from client_app.data.moments import Numbers
from client_app.data.scaling import NumberScale

ROWS = "rows"
STATISTICS = ("fill", "mean", "deviation")

MAX_ROWS = 10**12
MAX_STATISTIC = 1e280
"""The largest number of a scale, so that no mean over clients, weighted by rows, is infinite."""


def encode_scale(known: ClientScale) -> ConfigRecord:
    """Return the record of a client's scale; every bit of it survives."""
    statistics = {name: getattr(known.scale, name).tolist() for name in STATISTICS}
    return ConfigRecord({ROWS: known.rows, **statistics})


def decode_scale(record: ConfigRecord, client: int, num_columns: int) -> ClientScale:
    """Return the scale in a device's record.

    Parameters
    ----------
    record : ConfigRecord
    client : int
        The client that the device hosts.
    num_columns : int
        The number of columns of numbers.

    Raises
    ------
    ProtocolError
        If the record has another form, or no numbers have such a scale.
    """
    rows = record.get(ROWS)
    if type(rows) is not int or not 1 <= rows <= MAX_ROWS:
        raise ProtocolError(f"'{ROWS}' must be a whole number from 1 to {MAX_ROWS}")
    fill, mean, deviation = (_read_statistic(record, name, num_columns) for name in STATISTICS)
    empty = np.isnan(mean)
    if (np.isnan(fill) != empty).any() or (np.isnan(deviation) != empty).any():
        raise ProtocolError("a column must have all of its statistics, or NaN for each")
    if not (deviation[~empty] > 0).all():
        raise ProtocolError("'deviation' must be above 0")
    return ClientScale(client, rows, NumberScale(fill, mean, deviation))


def _read_statistic(record: Mapping[str, Any], name: str, num_columns: int) -> Numbers:
    """Return a statistic of each column (p,); NaN for a column without a number."""
    given = record.get(name)
    if not isinstance(given, list) or len(given) != num_columns:
        raise ProtocolError(f"'{name}' must be a list of {num_columns} numbers")
    for value in given:
        # NaN, which a column without a number has, is not above any limit.
        if type(value) is not float or abs(value) > MAX_STATISTIC:
            raise ProtocolError(f"'{name}' must have finite numbers up to {MAX_STATISTIC:g}")
    return np.array(given, dtype=np.float64)
