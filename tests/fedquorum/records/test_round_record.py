"""Tests of the record of one round."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum.metrics.calibration import UNITS, encode_bins
from fedquorum.records.round_record import (
    UNSEEN_GROUP,
    RoundRecord,
    compute_weight_error,
    summarize_evaluations,
)
from fedquorum.rules.decisions import ClientEvaluation
from fedquorum.rules.types import ReplacementSample, RoundPlan

from tests.fedquorum.records.made import EVALUATIONS, NAN, make_round_record, report


def test_decision_losses_are_summed_over_the_rounds() -> None:
    """The sum starts with the first decision and stays if a round has none."""
    records: list[RoundRecord] = []
    for number, loss in enumerate((None, -0.5, None, -0.25), start=1):
        decided = replace(report(number), decision_loss=loss)
        records.append(make_round_record(decided, records[-1] if records else None))
    assert [record.decision_loss for record in records] == [None, -0.5, None, -0.25]
    assert [record.decision_loss_sum for record in records] == [None, -0.5, -0.5, -0.75]


def test_sampled_data_and_unregistered_clients_are_recorded() -> None:
    """Both are inputs of decisions that no row of a client shows."""
    round_report = report(1)
    sample = ReplacementSample({0: 2}, 150.0)
    record = make_round_record(
        replace(
            round_report,
            plan=replace(round_report.plan, replacement_sample=sample),
            unregistered=(2,),
        )
    )
    assert (record.priority_data, record.unregistered) == (150.0, (2,))


def test_missing_test_metrics_are_null() -> None:
    """Without test metrics there is no summary; without non-priority clients there is no "all"."""
    untested = [ClientEvaluation(0, 1.0, 10, 1.0, 0.5, NAN, NAN, NAN)]
    assert make_round_record(report(1), None, untested).test is None
    test = make_round_record(report(1), None, EVALUATIONS[:1], all_evaluated=False).test
    assert test is not None
    assert test["all"] is None
    assert test["priority"] is not None


def test_the_dispersion_is_of_the_configured_metric() -> None:
    """Clients with undefined AUROC are left out and counted; for losses, high is worse."""
    evaluations = [
        ClientEvaluation(k, 1.0, examples, 1.0, 0.5, 4, loss, 0.5, auroc)
        for k, (examples, loss, auroc) in enumerate(
            [(10, 1.0, 0.75), (30, 3.0, NAN), (30, 2.0, 0.25)]
        )
    ]

    def summarize_all(metric: str) -> dict[str, float]:
        record = make_round_record(report(1), None, evaluations, metric=metric)
        assert record.test is not None
        return dict(record.test["all"] or {})

    by_auroc, by_loss = summarize_all("auroc"), summarize_all("loss")
    assert by_auroc["auroc"] == pytest.approx((10 * 0.75 + 30 * 0.25) / 40)
    assert (by_auroc["left_out"], by_auroc["average"]) == (1, 0.5)
    assert (by_auroc["worst"], by_auroc["best"]) == (0.25, 0.75)
    assert (by_loss["left_out"], by_loss["worst"], by_loss["best"]) == (0, 3.0, 1.0)
    assert by_loss["loss"] == by_auroc["loss"] == pytest.approx(160 / 70)
    assert "auroc" not in by_loss


def test_average_precision_is_beside_auroc() -> None:
    """Its mean is weighted by training data, over the clients that have it."""
    evaluations = [
        ClientEvaluation(
            k, 1.0, rows, 1.0, 0.5, 4, 0.5, 0.5, 0.75, test_average_precision=precision
        )
        for k, (rows, precision) in enumerate([(10, 0.5), (30, 0.1), (99, NAN)])
    ]
    groups = summarize_evaluations(evaluations, "auroc", all_evaluated=True)
    assert groups is not None
    assert (groups["all"] or {})["average_precision"] == pytest.approx(0.2)
    plain = summarize_evaluations(evaluations[2:], "auroc", all_evaluated=True)
    assert plain is not None
    assert "average_precision" not in (plain["all"] or {})


def test_the_calibration_error_is_over_all_predictions_of_a_group() -> None:
    """Clients count by their predictions, not by their training data; others have none."""

    def make_client(k: int, confidence: list[int], **fields: Any) -> ClientEvaluation:
        units, clients = np.array(confidence), np.zeros(len(confidence), dtype=np.int64)
        (bins,) = encode_bins(clients, units, np.ones_like(units), 1)
        return ClientEvaluation(
            k, 1.0, 10**k, 1.0, 0.5, 4, 0.5, 0.5, test_calibration=bins, **fields
        )

    evaluations = [
        make_client(0, [UNITS, UNITS, UNITS]),
        make_client(1, [UNITS // 2]),
        ClientEvaluation(2, 1.0, 99, 1.0, 0.5, 4, 0.5, 0.5),
        make_client(3, [UNITS // 4], held_out=True),
    ]
    for order in (evaluations, evaluations[::-1]):
        groups = summarize_evaluations(order, "accuracy", all_evaluated=True)
        assert groups is not None
        assert (groups["all"] or {})["ece"] == 0.5 / 4
        assert (groups[UNSEEN_GROUP] or {})["ece"] == 0.75
    plain = summarize_evaluations(evaluations[2:3], "accuracy", all_evaluated=True)
    assert plain is not None
    assert "ece" not in (plain["all"] or {})


def test_held_out_clients_are_a_separate_group() -> None:
    """They count in no other group, not even in all; without them, the group is missing."""
    trained = [
        ClientEvaluation(k, priority, 10, 1.0, 0.5, 4, loss, 0.5)
        for k, (priority, loss) in enumerate([(1.0, 1.0), (0.0, 3.0)])
    ]
    held_out = ClientEvaluation(2, 0.0, 30, 1.0, 0.5, 4, 8.0, 0.25, held_out=True)
    without = summarize_evaluations(trained, "accuracy", all_evaluated=True)
    found = summarize_evaluations([*trained, held_out], "accuracy", all_evaluated=True)
    assert without is not None
    assert found is not None
    assert {group: found[group] for group in without} == without
    assert found.keys() - without.keys() == {UNSEEN_GROUP}
    held_out_summary = found[UNSEEN_GROUP]
    assert held_out_summary is not None
    assert (held_out_summary["loss"], held_out_summary["accuracy"]) == (8.0, 0.25)


def test_the_weight_error_is_over_all_registered_clients() -> None:
    """Sampled or not, but without ineligible clients; it is 0 if each omega is right."""
    full, rates = replace(report(1), omega={0: 3.0, 1: 2.0, 2: 4.0}), np.array([0.5, 0.25, 0.25])
    sampled = replace(full, plan=RoundPlan((0,)), decisions=full.decisions[:1])
    for round_report in (full, sampled):
        error = (0.5**2 + 0.5**2 + 0.0) / 3
        assert compute_weight_error(round_report, rates) == pytest.approx(error, rel=1e-12)
    left_out = replace(sampled, plan=RoundPlan((0,), eligible=frozenset({0, 2})))
    assert compute_weight_error(left_out, rates) == pytest.approx(0.5**2 / 2, rel=1e-12)
    assert compute_weight_error(left_out, np.array([1 / 3, NAN, 0.25])) == pytest.approx(
        0.0, abs=1e-12
    )
    assert compute_weight_error(full, np.array([0.5, NAN, 0.25])) is None
    assert (
        compute_weight_error(full, None)
        is compute_weight_error(replace(full, omega={}), rates)
        is None
    )
