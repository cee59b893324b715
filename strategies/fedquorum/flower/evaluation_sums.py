"""Encode clients' evaluations as integers that can be masked and added, and decode their sum.

Each of ``SUMMED_FIELDS`` is weighted by the client's training data if the weights of the updates
are; see ``fedquorum.server.number_sum``. Otherwise each client counts once: two sums of weights by
data, of which one lacks a client, would tell that client's number of rows.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from ..rules.decisions import SUMMED_FIELDS, EvaluationSums
from ..rules.metrics import METRICS
from ..server.number_sum import decode_numbers, encode_numbers
from .codec import EvaluateResult
from .secure.keys import Vector
from .secure.plan import MIN_NODES

NUM_INTEGERS = 3 * len(SUMMED_FIELDS)
"""The length of the masked vector: w x, w and 1 for each metric."""


def encode_evaluations(
    results: Sequence[EvaluateResult], num_terms: int, *, by_data: bool
) -> Vector:
    """Return the sum of clients' metrics as integers modulo 2^64, shape (3 m,).

    Parameters
    ----------
    results : sequence of EvaluateResult
        The results of a node's clients.
    num_terms : int
        n, the number of clients in the sum, on all nodes.
    by_data : bool
        Whether w is the client's number of examples; 1 otherwise.
    """
    total = np.zeros((3, len(SUMMED_FIELDS)), np.uint64)
    for result in results:
        values = np.array([getattr(result, name) for name in SUMMED_FIELDS], dtype=np.float64)
        data = np.nan if result.num_examples is None else float(result.num_examples)
        weight = data if by_data else 1.0
        total += encode_numbers(values, np.full(len(values), weight), num_terms)
    return total.reshape(-1)


def find_fields(vector: Vector) -> frozenset[str]:
    """Return the fields to whose sum a node's vector adds anything but to the count."""
    weighted, weight, _ = vector.reshape(3, -1)
    has_sum = ((weighted != 0) | (weight != 0)).tolist()
    return frozenset(name for name, has in zip(SUMMED_FIELDS, has_sum, strict=True) if has)


def select_fields(vector: Vector, fields: Collection[str]) -> Vector:
    """Return a node's vector with zeros for all other fields."""
    is_asked = np.array([name in fields for name in SUMMED_FIELDS])
    return (vector.reshape(3, -1) * is_asked.astype(np.uint64)).reshape(-1)


def find_rare_fields(fields: Iterable[Collection[str]]) -> tuple[str, ...]:
    """Return the fields of fewer than ``MIN_NODES`` nodes, but of one at least.

    A sum over one node is that node's number, and of two each could tell the other's.

    Parameters
    ----------
    fields : iterable of collection of str
        The fields of each node.
    """
    counts = Counter(name for one in fields for name in one)
    return tuple(name for name in SUMMED_FIELDS if 0 < counts[name] < MIN_NODES)


def decode_evaluations(
    total: Vector, num_clients: int, metric: str, *, by_data: bool
) -> EvaluationSums:
    """Return the means over the clients in a sum.

    ``metric`` is the clients' metric beside loss and accuracy; ``by_data`` as in the encoding.

    Raises
    ------
    ArithmeticError
        If the numbers are none that these clients can have: masks are left in the sum, or a node
        added others.
    """
    sums = decode_numbers(total.reshape(3, -1))
    means, counts = sums.mean.tolist(), sums.count.tolist()
    for name, mean, weight, count in zip(
        SUMMED_FIELDS, means, sums.weight.tolist(), counts, strict=True
    ):
        kind = name.rpartition("_")[2]
        is_mean = METRICS[metric if kind == "metric" else kind].contains(mean) and weight > 0
        is_empty = count == 0 and weight == 0
        is_weight = weight >= 0 if by_data else weight == count
        if not (0 <= count <= num_clients and is_weight and (is_mean or is_empty)):
            raise ArithmeticError(f"{name} of {count} clients cannot be {mean:g}")
    return EvaluationSums(
        num_clients,
        dict(zip(SUMMED_FIELDS, means, strict=True)),
        dict(zip(SUMMED_FIELDS, counts, strict=True)),
        by_data,
    )
