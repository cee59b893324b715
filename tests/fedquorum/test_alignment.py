"""Class alignment: cosines of the last layer's rows with the sum of the others."""

import math

import numpy as np
import pytest
from fedquorum.alignment import class_alignment, last_layer, smoothed_alignment

RNG = np.random.default_rng(8)
MODEL = {
    "body.weight": RNG.normal(size=(5, 4)),
    "head.weight": RNG.normal(size=(3, 5)),
    "head.bias": RNG.normal(size=3),
    "count": np.array([[7]]),
}
WEIGHT = np.array([0.5, 0.0, 0.2, 0.3])
DELTAS = [{name: RNG.normal(size=array.shape) for name, array in MODEL.items()} for _ in WEIGHT]
CLIENTS = [{name: MODEL[name] + delta[name] for name in MODEL} for delta in DELTAS]


def row(client: int, c: int) -> list[float]:
    """Return row c of a client's update of the last layer, its bias at the end."""
    return [*DELTAS[client]["head.weight"][c].tolist(), float(DELTAS[client]["head.bias"][c])]


def cosine(client: int, c: int, among: list[int]) -> float:
    """Return the cosine of a row and of the weighted sum of some clients' rows, in plain Python."""
    rows = [[WEIGHT[j] * x for x in row(j, c)] for j in among]
    total = [math.fsum(column) for column in zip(*rows, strict=True)]
    mine = row(client, c)
    inner = math.fsum(x * y for x, y in zip(mine, total, strict=True))
    return inner / (math.hypot(*mine) * math.hypot(*total))


def test_the_last_layer_is_the_last_matrix_and_its_bias() -> None:
    """Counters are no layer; a bias of another size is none of it."""
    assert last_layer(MODEL) == ("head.weight", "head.bias")
    assert last_layer({**MODEL, "head.bias": np.zeros(4)}) == ("head.weight",)
    assert last_layer({"w": np.zeros(3)}) == ()
    assert class_alignment({"w": np.zeros(3)}, [{"w": np.ones(3)}], np.ones(1)) is None


def test_a_cosine_of_every_client_and_class_with_the_others() -> None:
    """As recomputed from the rows; where c_k = 0 the sum of all clients gives the same."""
    found = class_alignment(MODEL, CLIENTS, WEIGHT)
    assert found is not None
    assert found.shape == (4, 3)
    for k in range(4):
        for c in range(3):
            others = [j for j in range(4) if j != k]
            assert found[k, c] == pytest.approx(cosine(k, c, others), rel=1e-9)
            with_itself = cosine(k, c, [0, 1, 2, 3])
            assert (found[k, c] == pytest.approx(with_itself, rel=1e-9)) == (WEIGHT[k] == 0)


def test_a_row_that_is_zero_has_no_cosine() -> None:
    """Neither a client's that did not move on a class, nor one without any others."""
    still = {**CLIENTS[0], "head.weight": MODEL["head.weight"], "head.bias": MODEL["head.bias"]}
    found = class_alignment(MODEL, [still, *CLIENTS[1:]], WEIGHT)
    assert found is not None
    assert np.isnan(found[0]).all()
    assert not np.isnan(found[1:]).any()
    alone = class_alignment(MODEL, CLIENTS[:1], WEIGHT[:1])
    assert alone is not None
    assert np.isnan(alone).all()


def test_the_mean_is_smoothed_over_the_rounds_that_have_one() -> None:
    """gamma <- 0.9 gamma + 0.1 mean, from the first mean on; classes without a cosine are none."""
    rounds = [None, [0.2, None, 0.4], [None, None], [-0.5, -0.5, math.nan]]
    assert math.isnan(smoothed_alignment(rounds[:1]))
    assert smoothed_alignment(rounds[:3]) == pytest.approx(0.3)
    assert smoothed_alignment(rounds) == pytest.approx(0.9 * 0.3 - 0.1 * 0.5)
