"""The strategy stores the evaluations that its rules use."""

import math

from fedquorum.rules.decisions import ClientEvaluation, update_reports
from fedquorum.rules.types import ClientReports


def make_evaluation(
    client: int, priority_weight: float, loss: float, *, held_out: bool = False
) -> ClientEvaluation:
    """Return the evaluation of client k, with 10 (k + 1) rows, on its training split."""
    nan = math.nan
    examples = 10.0 * (client + 1)
    return ClientEvaluation(
        client, priority_weight, examples, loss, 0.5, nan, nan, nan, held_out=held_out
    )


EVALUATIONS = (
    make_evaluation(0, 1.0, 2.0),
    make_evaluation(1, 1.0, math.nan),
    make_evaluation(2, 0.0, 3.0),
    make_evaluation(3, 0.0, 4.0, held_out=True),
    make_evaluation(4, 1.0, math.inf),
)


def test_evaluations_for_the_records_alone_are_not_stored() -> None:
    """Only the objective's clients report, however many evaluated their training split."""
    reports = update_reports(ClientReports(), EVALUATIONS, all_clients=False)
    assert dict(reports.num_examples) == {0: 10.0, 4: 50.0}
    assert dict(reports.evaluated_losses) == {0: 2.0}


def test_all_trained_clients_report_where_losses_drive_selection() -> None:
    """Candidates need no priority; a held-out client is no candidate."""
    reports = update_reports(ClientReports(), EVALUATIONS, all_clients=True)
    assert dict(reports.num_examples) == {0: 10.0, 2: 30.0, 4: 50.0}
    assert dict(reports.evaluated_losses) == {0: 2.0, 2: 3.0}
