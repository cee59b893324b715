"""Collect the scales that devices share with the model card."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import WARNING
from pathlib import Path

from fedquorum.errors import ProtocolError, RunError
from fedquorum.records.client_names import ClientNames
from fedquorum.records.safe_files import SafeRunDir
from fedquorum.records.writer import MODEL_CARD
from flwr.app import ConfigRecord
from flwr.common.logger import log

from client_app.data.coding.table import ClientScale, TableScaling
from client_app.node.shared_scale import decode_scale


def decode_scales(
    reported: Mapping[int, ConfigRecord], num_columns: int, names: ClientNames
) -> tuple[ClientScale, ...]:
    """Return the scales that devices reported, with the clients' names; a bad one is left out.

    Parameters
    ----------
    reported : mapping of int to ConfigRecord
        By client id.
    num_columns : int
        The number of columns of numbers.
    names : ClientNames
        Those that the records keep.
    """
    found = []
    for client, record in reported.items():
        try:
            scale = decode_scale(record, client, num_columns)
        except ProtocolError as error:
            log(WARNING, "Without the scale of client %s: %s", names.format(client), error)
            continue
        found.append(replace(scale, name=names.names.get(client)))
    return tuple(found)


def read_earlier_scales(directory: Path, num_columns: int) -> tuple[ClientScale, ...]:
    """Return the scales in the model card of a run that is resumed; none without a card."""
    try:
        content = SafeRunDir(directory).read(MODEL_CARD)
        scaling = json.loads(content or b"")["inputs"]["scaling"]
        return TableScaling.from_json(scaling, num_columns).clients
    except (ArithmeticError, LookupError, RunError, TypeError, ValueError):
        return ()


def merge_scales(
    earlier: Sequence[ClientScale], now: Sequence[ClientScale]
) -> tuple[ClientScale, ...]:
    """Return the scales of both, ascending by client; those of ``now`` replace earlier ones.

    A name that several devices gave is left out: it could be another's.
    """
    scales = {known.client: known for known in (*earlier, *now)}
    counts = Counter(known.name for known in scales.values())
    return tuple(
        known if counts[known.name] == 1 else replace(known, name=None)
        for _, known in sorted(scales.items())
    )
