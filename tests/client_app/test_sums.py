"""Nodes of one client and of many return weighted sums, and the model has the same bits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum.flower.codec import (
    count_bytes,
    encode_arrays,
)
from fedquorum.rules.robustness import Robustness
from fedquorum.server.fixed_bins import OUTSIDE_PAIR_REASON
from flwr.app import ConfigRecord, MessageType

from tests.client_app.sum_runs import FIXED_NORM, NUM_CLIENTS, PRIVACY, RULES, Run

pytestmark = pytest.mark.usefixtures("no_node_from_before")


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("fixed_bins", [False, True])
def test_a_sum_of_one_client_has_the_same_bits(name: str, fixed_bins: bool) -> None:
    """With one node, two and one for each client; with all models, and as nodes send by default."""
    whole = Run(1, name, fixed_bins=fixed_bins, partial_aggregation=False)
    assert whole.count_of_sums == 0
    for nodes, default_sums in ((1, 2), (2, 4), (NUM_CLIENTS, 0)):
        default = Run(nodes, name, fixed_bins=fixed_bins)
        required = Run(nodes, name, fixed_bins=fixed_bins, requires_sums=True)
        assert default.bits == required.bits == whole.bits
        assert (default.count_of_sums, required.count_of_sums) == (default_sums, 2 * nodes)
        last = [run.strategy.step_result.report for run in (whole, default, required)]
        assert last[0] == last[1] == last[2]


@pytest.mark.parametrize("kind", PRIVACY)
@pytest.mark.parametrize("fixed_bins", [False, True])
def test_clipped_updates_in_a_sum_have_the_same_bits(kind: str, fixed_bins: bool) -> None:
    """The node clips as the client and the server would; so does the next norm not change."""
    overrides = f"strategy=average_all privacy={kind}"
    options: dict[str, Any] = {"privacy": PRIVACY[kind], "fixed_bins": fixed_bins}
    # A bound above all weights makes the server store all models until the round closes.
    stored = Robustness(max_weight=1e9)
    right = Run(2, "fedau", overrides, **options)
    assert right.count_of_sums == 0
    norms = set()
    for nodes in (1, 2, NUM_CLIENTS):
        runs = [
            Run(nodes, "fedau", overrides, **options),
            Run(nodes, "fedau", overrides, requires_sums=True, **options),
        ]
        if not fixed_bins:
            runs.append(Run(nodes, "fedau", overrides, privacy=PRIVACY[kind], robustness=stored))
        assert runs[1].count_of_sums == 2 * nodes
        for run in runs:
            assert run.bits == right.bits
            assert {d.status for d in run.strategy.step_result.report.decisions} == {"trained"}
            norms.add(float(run.strategy.get_state()["clipping"]))
    assert len(norms) == 1
    assert (norms == {0.05}) == (kind == "dp_fixed_client")
    assert not np.array_equal(right.model["linear.bias"], np.zeros(10))
    assert Run(2, "fedau", rounds=2).bits != right.bits  # the norm is short enough to clip


def test_an_ordinary_node_of_one_client_sends_its_model() -> None:
    """A required sum takes four times the bytes of the model, so nobody else sends it."""
    plain, required = Run(NUM_CLIENTS, rounds=1), Run(NUM_CLIENTS, rounds=1, requires_sums=True)
    size = sum(array.nbytes for array in plain.model.values())
    for run, factor in ((plain, 1), (required, 4)):
        for reply in run.replies:
            assert factor * size <= count_bytes(reply.content) < factor * size + 1000


def test_fixed_bins_change_the_last_bits_only() -> None:
    """In round 1 they are the widest, later they follow from the last sum."""
    dynamic, fixed = Run(2), Run(2, fixed_bins=True)
    for name, array in dynamic.model.items():
        np.testing.assert_allclose(fixed.model[name], array, rtol=1e-6, atol=1e-9)
    sizes = fixed.strategy.get_state()["sizes"]
    assert "sizes" not in dynamic.strategy.get_state()
    assert sizes.shape == (2,)
    assert (sizes > 0).all()


def test_the_bins_are_resumed_from_the_state() -> None:
    """A restored strategy sends the same bins, and its round has the same bits."""
    run, other = Run(2, fixed_bins=True), Run(2, fixed_bins=True, rounds=0)
    other.strategy.restore(run.strategy.get_state(), run.model)
    other.model = dict(run.model)
    run.play(3)
    other.play(3)
    assert run.bits == other.bits
    np.testing.assert_array_equal(
        run.strategy.get_state()["sizes"], other.strategy.get_state()["sizes"]
    )


@pytest.mark.parametrize("requires_sums", [False, True])
def test_a_client_beyond_the_bins_is_left_out(requires_sums: bool) -> None:
    """On its node or by the server, with the same reason; the next bins are the widest.

    The rest of the round counts, and the client counts again in the next round.
    """
    run = Run(2, "average_all", rounds=1, fixed_bins=True, requires_sums=requires_sums)
    sizes = {"linear.weight": 1e-9, "linear.bias": 1e-30}
    run.strategy._state = replace(run.strategy._state, update_sizes=sizes)
    before = run.bits
    run.play(2)
    report = run.strategy.step_result.report
    assert {(d.status, d.reason) for d in report.decisions} == {("rejected", OUTSIDE_PAIR_REASON)}
    assert run.bits == before
    assert "sizes" not in run.strategy.get_state()
    run.play(3)
    assert {d.status for d in run.strategy.step_result.report.decisions} == {"trained"}
    assert (run.strategy.get_state()["sizes"] > 0).all()


def test_in_a_private_round_the_bins_follow_from_the_norm_alone() -> None:
    """The sum before its noise is not public."""
    run = Run(
        NUM_CLIENTS,
        "average_all",
        "strategy=average_all privacy=dp_fixed_client",
        privacy=FIXED_NORM,
        fixed_bins=True,
        requires_sums=True,
    )
    assert "sizes" not in run.strategy.get_state()
    messages = run.strategy.configure_train(3, encode_arrays(run.model), ConfigRecord(), run.grid)
    for message in messages:
        assert message.metadata.message_type == MessageType.TRAIN
        record = message.content["weighted-sum-bins"]
        # 2 x 0.05 <= 2^-3, and five clients leave 51 bits for a part: 2^(50 - 53) = 2^-3.
        assert dict(record) == {"exponents": [-53, -53]}
