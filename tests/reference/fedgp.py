"""FedGP's step from the updates themselves, by Definition 4.3 of Jiang, Zhang and Koyejo 2024.

Shares no code with ``fedquorum``, and uses no inner-product matrix: it projects every source
separately, in plain Python.
"""

import math

Vector = list[float]


def dot(a: Vector, b: Vector) -> float:
    """Return <a, b>."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def scale(a: Vector, factor: float) -> Vector:
    """Return ``factor`` a."""
    return [factor * x for x in a]


def sum_vectors(vectors: list[Vector], size: int) -> Vector:
    """Return the sum of vectors of this size."""
    return [math.fsum(v[i] for v in vectors) for i in range(size)]


def compute_target(updates: list[Vector], data: list[float]) -> Vector:
    """Return g_T, the mean of the priority clients' updates by data."""
    fractions = [d / math.fsum(data) for d in data]
    return sum_vectors(
        [scale(u, s) for u, s in zip(updates, fractions, strict=True)], len(updates[0])
    )


def project_onto(onto: Vector, vector: Vector) -> Vector:
    """Return the projection of ``onto`` on the half-line along ``vector``, 0 if it is opposite."""
    length = dot(vector, vector)
    if length == 0.0:
        return [0.0] * len(vector)
    return scale(vector, max(dot(onto, vector), 0.0) / length)


def step(g_target: Vector, sources: list[Vector], beta: float) -> Vector:
    """Return (1 / N_s) sum_i [(1 - beta) g_T + beta projection of g_T on g_i]."""
    if not sources:
        return g_target
    terms = []
    for source in sources:
        projected = project_onto(g_target, source)
        terms.append([(1 - beta) * t + beta * h for t, h in zip(g_target, projected, strict=True)])
    return scale(sum_vectors(terms, len(g_target)), 1 / len(sources))
