"""Compare each client's update of the last layer with the other clients' updates, by class.

Shapes: n updates, L classes, d inputs of the last layer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .types import FloatArray

MATRIX = 2
SMOOTHING = 0.9
"""mu of the authors' code."""


def last_layer(model: Mapping[str, NDArray[np.generic]]) -> tuple[str, ...]:
    """Return the names of the last floating matrix and of its bias, if they exist.

    The bias has the matrix's name with ``bias`` instead of ``weight``, and a number for each row.
    """
    matrices = [
        name
        for name, array in model.items()
        if array.ndim == MATRIX and np.issubdtype(array.dtype, np.floating)
    ]
    if not matrices:
        return ()
    weight = matrices[-1]
    bias = f"{weight.removesuffix('weight')}bias"
    shape = (len(model[weight]),)
    return (weight, bias) if bias in model and model[bias].shape == shape else (weight,)


def class_alignment(
    model: Mapping[str, NDArray[np.generic]],
    client_models: Sequence[Mapping[str, NDArray[np.generic]]],
    weight: FloatArray,
) -> FloatArray | None:
    """Return Gamma_kc = cos(row c of Delta_k, row c of sum_{j != k} c_j Delta_j), shape (n, L).

    A row is a row of the last layer's matrix with its bias. The cosine is NaN if one of the two
    rows is zero; the result is None for a model without a matrix. The cosine is not a Shapley
    value, because it considers only one coalition: all other clients. A class without samples at a
    client may have a negative cosine.

    Parameters
    ----------
    model : mapping
        x_t.
    client_models : sequence of mapping
        x_k of the n clients.
    weight : FloatArray
        c_k, shape (n,).

    References
    ----------
    Tastan et al., "Redefining Contributions: Shapley-Driven Federated Learning", IJCAI 2024, as
    the authors' code has it. There the sum includes client k, which favours k if few clients take
    part; for c_k = 0 both are the same.
    """
    names = last_layer(model)
    if not names or not client_models:
        return None
    rows = np.array([_rows(model, client_model, names) for client_model in client_models])
    weighted = weight[:, None, None] * rows  # (n, L, d + 1)
    others = weighted.sum(axis=0) - weighted
    inner = (rows * others).sum(axis=2)
    lengths = np.linalg.norm(rows, axis=2) * np.linalg.norm(others, axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine: FloatArray = np.where(lengths > 0, inner / lengths, math.nan)
    return np.clip(cosine, -1.0, 1.0)


def _rows(
    model: Mapping[str, NDArray[np.generic]],
    client_model: Mapping[str, NDArray[np.generic]],
    names: tuple[str, ...],
) -> FloatArray:
    """Return the update of the last layer, one row for each class, shape (L, d + 1)."""
    parts = [
        np.subtract(client_model[name], model[name], dtype=np.float64).reshape(len(model[name]), -1)
        for name in names
    ]
    return np.concatenate(parts, axis=1)


def smoothed_alignment(rounds: Iterable[Sequence[float | None] | None]) -> float:
    """Return gamma_k: the moving average over rounds of the mean of Gamma_kc over classes.

    gamma <- mu gamma + (1 - mu) mean_c Gamma_kc with mu = 0.9, starting from the first mean. A
    round without a mean does not change gamma, which is NaN before the first mean.
    """
    gamma = math.nan
    for values in rounds:
        known = [value for value in values or () if value is not None and not math.isnan(value)]
        if known:
            mean = math.fsum(known) / len(known)
            old = mean if math.isnan(gamma) else gamma
            gamma = SMOOTHING * old + (1 - SMOOTHING) * mean
    return gamma
