"""One round in numbers."""

from dataclasses import replace

import numpy as np
import pytest
from fedquorum.decisions import ClientEvaluation
from fedquorum.records.round_record import (
    UNSEEN_GROUP,
    RoundRecord,
    compute_weight_error,
    summarize_evaluations,
)
from fedquorum.types import ReplacementSample, RoundPlan

from tests.fedquorum.records.made import EVALUATIONS, NAN, make_round_record, report


def test_decision_losses_are_summed_over_the_rounds() -> None:
    """The sum starts with the first decision and stays where a round decides nothing."""
    records: list[RoundRecord] = []
    for number, loss in enumerate((None, -0.5, None, -0.25), start=1):
        decided = replace(report(number), decision_loss=loss)
        records.append(make_round_record(decided, records[-1] if records else None))
    assert [record.decision_loss for record in records] == [None, -0.5, None, -0.25]
    assert [record.decision_loss_sum for record in records] == [None, -0.5, -0.5, -0.75]


def test_what_draws_counted_in_and_who_was_never_there_is_on_record() -> None:
    """Both are inputs of decisions that no row of a client tells."""
    plain = report(1)
    draws = ReplacementSample({0: 2}, 150.0)
    record = make_round_record(
        replace(plain, plan=replace(plain.plan, replacement_sample=draws), unregistered=(2,))
    )
    assert (record.priority_data, record.unregistered) == (150.0, (2,))


def test_tests_that_were_not_measured_are_null() -> None:
    """Without test metrics there is no summary; without non-priority ones there is no "all"."""
    untested = [ClientEvaluation(0, 1.0, 10, 1.0, 0.5, NAN, NAN, NAN)]
    assert make_round_record(report(1), None, untested).test is None
    test = make_round_record(report(1), None, EVALUATIONS[:1], all_evaluated=False).test
    assert test is not None
    assert test["all"] is None
    assert test["priority"] is not None


def test_the_spread_is_of_the_metric_that_is_configured() -> None:
    """AUROC leaves out and counts the clients where it is not defined; of losses high is bad."""
    evaluations = [
        ClientEvaluation(k, 1.0, examples, 1.0, 0.5, 4, loss, 0.5, auroc)
        for k, (examples, loss, auroc) in enumerate(
            [(10, 1.0, 0.75), (30, 3.0, NAN), (30, 2.0, 0.25)]
        )
    ]

    def summary(metric: str) -> dict[str, float]:
        made = make_round_record(report(1), None, evaluations, metric=metric)
        assert made.test is not None
        return dict(made.test["all"] or {})

    by_auroc, by_loss = summary("auroc"), summary("loss")
    assert by_auroc["auroc"] == pytest.approx((10 * 0.75 + 30 * 0.25) / 40)
    assert (by_auroc["left_out"], by_auroc["average"]) == (1, 0.5)
    assert (by_auroc["worst"], by_auroc["best"]) == (0.25, 0.75)
    assert (by_loss["left_out"], by_loss["worst"], by_loss["best"]) == (0, 3.0, 1.0)
    assert by_loss["loss"] == by_auroc["loss"] == pytest.approx(160 / 70)
    assert "auroc" not in by_loss


def test_clients_that_never_train_are_a_separate_group() -> None:
    """They count in no other, also not among all; without any there is no such group."""
    known = [
        ClientEvaluation(k, priority, 10, 1.0, 0.5, 4, loss, 0.5)
        for k, (priority, loss) in enumerate([(1.0, 1.0), (0.0, 3.0)])
    ]
    unseen = ClientEvaluation(2, 0.0, 30, 1.0, 0.5, 4, 8.0, 0.25, held_out=True)
    without = summarize_evaluations(known, "accuracy", all_evaluated=True)
    found = summarize_evaluations([*known, unseen], "accuracy", all_evaluated=True)
    assert without is not None
    assert found is not None
    assert {group: found[group] for group in without} == without
    assert found.keys() - without.keys() == {UNSEEN_GROUP}
    of_unseen = found[UNSEEN_GROUP]
    assert of_unseen is not None
    assert (of_unseen["loss"], of_unseen["accuracy"]) == (8.0, 0.25)


def test_the_weight_error_is_over_all_registered_clients() -> None:
    """Asked or not, but for those that the round left out; 0 where each omega is right."""
    made, rates = replace(report(1), omega={0: 3.0, 1: 2.0, 2: 4.0}), np.array([0.5, 0.25, 0.25])
    asked = replace(made, plan=RoundPlan((0,)), decisions=made.decisions[:1])
    for one in (made, asked):
        error = (0.5**2 + 0.5**2 + 0.0) / 3
        assert compute_weight_error(one, rates) == pytest.approx(error, rel=1e-12)
    left_out = replace(asked, plan=RoundPlan((0,), eligible=frozenset({0, 2})))
    assert compute_weight_error(left_out, rates) == pytest.approx(0.5**2 / 2, rel=1e-12)
    assert compute_weight_error(left_out, np.array([1 / 3, NAN, 0.25])) == pytest.approx(
        0.0, abs=1e-12
    )
    assert compute_weight_error(made, np.array([0.5, NAN, 0.25])) is None
    assert (
        compute_weight_error(made, None)
        is compute_weight_error(replace(made, omega={}), rates)
        is None
    )
