"""Bounds on the influence of one client."""

import numpy as np
import pytest
from fedquorum.flower.codec import NamedArrays
from fedquorum.rules.robustness import Robustness, clip_update


def test_the_norm_is_over_all_floating_arrays() -> None:
    """An update with norms 3 and 4 has the norm 5; a counter does not count, and stays."""
    model: NamedArrays = {"w": np.ones(2), "b": np.zeros(1, np.float32), "n": np.array(7)}
    other: NamedArrays = {
        "w": np.array([4.0, 1.0]),
        "b": np.full(1, -4.0, np.float32),
        "n": np.array(90),
    }
    whole, norm = clip_update(model, other, 5.0)
    assert (whole, norm) == (other, 5.0)
    clipped, norm = clip_update(model, other, 4.0)
    assert norm == 5.0
    np.testing.assert_allclose(clipped["w"], [1 + 2.4, 1.0])
    np.testing.assert_allclose(clipped["b"], [-3.2])
    assert clipped["n"] == 90


def test_a_clipped_update_has_a_note() -> None:
    model, other = {"w": np.zeros(1)}, {"w": np.array([2.0])}
    arrays, note = Robustness(clip_norm=0.5).clip(model, other)
    assert arrays["w"].tolist() == [0.5]
    assert note == "update of norm 2 clipped to 0.5"
    assert Robustness(clip_norm=2.0).clip(model, other) == (other, None)


@pytest.mark.parametrize("name", ["clip_norm", "max_weight"])
def test_bounds_are_above_0(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a number > 0, got 0"):
        Robustness(**{name: 0.0})
