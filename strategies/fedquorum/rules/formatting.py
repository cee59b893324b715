"""Format numbers and formulas for explanations."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .decisions import DecisionTrace
from .types import FloatArray


def format_number(value: Any) -> str:
    """Return a number to six digits, "null" for None."""
    return "null" if value is None else f"{float(value):.6g}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 node" and "2 nodes"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def find_population_index(clients: Any, trace: DecisionTrace, index: int) -> int:
    """Return the index among all K clients, ascending, of the client at ``index`` of the n."""
    return int(np.searchsorted(clients, int(trace.updates.client[index])))


def explain_response(
    cdf: str, c1: float, c2: float, trace: DecisionTrace, index: int
) -> Iterator[str]:
    """Yield r_k = C1 + (C2 - C1) CDF(F_k / mean F) with its numbers."""
    weights = trace.weights
    if weights is None or weights.response is None:
        return
    losses = trace.updates.loss[trace.admitted_fraction > 0]
    mean = float(losses[np.isfinite(losses)].mean())
    yield (
        f"r_k = C1 + (C2 - C1) {cdf}(F_k / mean F) = "
        f"{format_number(c1)} + {format_number(c2 - c1)} x "
        f"{cdf}({format_number(trace.updates.loss[index])} / {format_number(mean)}) = "
        f"{format_number(weights.response[index])}"
    )


def explain_normalization(
    clients: Any, mixing: FloatArray, trace: DecisionTrace, index: int
) -> Iterator[str]:
    """Yield c_k = p_k / (sum of p over the reporting clients) with its numbers."""
    if trace.weights is None:
        return
    updates = trace.updates
    p = mixing[np.searchsorted(clients, updates.client)]
    total = float(np.where(np.isfinite(updates.loss), trace.admitted_fraction * p, 0.0).sum())
    yield (
        "c_k = p_k / sum of p over the reporting clients = "
        f"{format_number(p[index])} / {format_number(total)} = "
        f"{format_number(trace.weights.weight[index])}"
    )
