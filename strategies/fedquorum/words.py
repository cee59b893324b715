"""Numbers and formulas in words, for explanations."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .report import Decided
from .types import FloatArray


def digits(value: Any) -> str:
    """Return a number to six digits, "null" for None."""
    return "null" if value is None else f"{float(value):.6g}"


def place_in(clients: Any, decided: Decided, place: int) -> int:
    """Return where the client at ``place`` of the n is among all K, which ascend."""
    return int(np.searchsorted(clients, int(decided.responses.client[place])))


def explain_response(cdf: str, c1: float, c2: float, decided: Decided, place: int) -> Iterator[str]:
    """Yield r_k = C1 + (C2 - C1) CDF(F_k / mean F) with its numbers."""
    weights = decided.weights
    if weights is None or weights.response is None:
        return
    losses = decided.responses.loss[decided.share > 0]
    mean = float(losses[np.isfinite(losses)].mean())
    yield (
        f"r_k = C1 + (C2 - C1) {cdf}(F_k / mean F) = {digits(c1)} + {digits(c2 - c1)} x "
        f"{cdf}({digits(decided.responses.loss[place])} / {digits(mean)}) = "
        f"{digits(weights.response[place])}"
    )


def explain_restricted(
    clients: Any, mixing: FloatArray, decided: Decided, place: int
) -> Iterator[str]:
    """Yield c_k = p_k over the sum of p over the clients heard, with its numbers."""
    if decided.weights is None:
        return
    responses = decided.responses
    p = mixing[np.searchsorted(clients, responses.client)]
    total = float(np.where(np.isfinite(responses.loss), decided.share * p, 0.0).sum())
    yield (
        f"c_k = p_k / sum of p over the clients heard = {digits(p[place])} / {digits(total)} = "
        f"{digits(decided.weights.weight[place])}"
    )
