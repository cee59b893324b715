"""The sums of an evaluation: a number of fewer than three nodes is in none."""

import numpy as np
import pytest
from fedquorum.flower.codec import EvaluateResult, Status
from fedquorum.flower.evaluation_sums import (
    decode_evaluations,
    encode_evaluations,
    find_fields,
    find_rare_fields,
    select_fields,
)
from fedquorum.rules.decisions import SUMMED_FIELDS

NODES = 8


def evaluate(node: int, *, has_test: bool, num_examples: float | None = None) -> EvaluateResult:
    """Return the result of a node's one client."""
    data = 50.0 + node if num_examples is None else num_examples
    test = 0.73 if has_test else np.nan
    return EvaluateResult(
        node, Status.DONE, num_examples=data, loss=1 + node / 10, accuracy=0.5, test_loss=test
    )


@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize("count", range(5))
def test_a_rare_number_is_not_in_the_sum(count: int, by_data: bool) -> None:
    """The other numbers keep their bits, and are the means that numpy computes."""
    results = [evaluate(k, has_test=k < count) for k in range(NODES)]
    vectors = [encode_evaluations([one], NODES, by_data=by_data) for one in results]
    fields = [find_fields(vector) for vector in vectors]
    basic = {"loss", "accuracy"}
    assert fields == [
        frozenset(basic | {"test_loss"} if k < count else basic) for k in range(NODES)
    ]
    rare = find_rare_fields(fields)
    assert rare == (("test_loss",) if count in {1, 2} else ())
    asked = [name for name in SUMMED_FIELDS if name not in rare]
    total = np.array([select_fields(one, asked) for one in vectors]).sum(axis=0, dtype=np.uint64)
    whole = np.sum(vectors, axis=0, dtype=np.uint64)
    for name, found, expected in zip(
        SUMMED_FIELDS, total.reshape(3, -1).T, whole.reshape(3, -1).T, strict=True
    ):
        np.testing.assert_array_equal(found, 0 * expected if name in rare else expected)
    sums = decode_evaluations(np.asarray(total), NODES, "accuracy", by_data=by_data)
    assert sums.by_data == by_data
    weights = 50.0 + np.arange(NODES) if by_data else np.ones(NODES)
    assert sums.means["loss"] == pytest.approx(
        np.average([one.loss for one in results], weights=weights), abs=1e-6
    )
    assert sums.counts["test_loss"] == (count if count >= 3 else 0)
    assert np.isnan(sums.means["test_loss"]) == (count < 3)


def test_weights_of_one_tell_no_number_of_rows() -> None:
    """The vector of a client is the same whatever its amount of data; another weight is refused."""
    vectors = [
        encode_evaluations([evaluate(1, has_test=True, num_examples=rows)], NODES, by_data=False)
        for rows in (10.0, 99.0)
    ]
    assert vectors[0].tobytes() == vectors[1].tobytes()
    forged = encode_evaluations([evaluate(1, has_test=True)], NODES, by_data=True)
    with pytest.raises(ArithmeticError, match=r"loss of 1 clients cannot be 1\.1"):
        decode_evaluations(forged, 1, "accuracy", by_data=False)


def test_a_number_without_weight_hides_none_of_the_others() -> None:
    """A client without training data adds nothing but 1 to the count."""
    vectors = [
        encode_evaluations([evaluate(k, has_test=True, num_examples=k // 2)], NODES, by_data=True)
        for k in range(4)
    ]
    fields = [find_fields(vector) for vector in vectors]
    assert fields[0] == fields[1] == frozenset()
    assert find_rare_fields(fields) == ("loss", "accuracy", "test_loss")
