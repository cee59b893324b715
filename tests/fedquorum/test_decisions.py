"""What the strategy remembers of evaluations."""

import math

from fedquorum.decisions import ClientEvaluation, update_reports
from fedquorum.types import ClientReports


def evaluation(
    client: int, priority_weight: float, loss: float, *, unseen: bool = False
) -> ClientEvaluation:
    """Return what a client with 10 (k + 1) rows measured on its training part."""
    nan = math.nan
    examples = 10.0 * (client + 1)
    return ClientEvaluation(
        client, priority_weight, examples, loss, 0.5, nan, nan, nan, held_out=unseen
    )


MEASURED = (
    evaluation(0, 1.0, 2.0),
    evaluation(1, 1.0, math.nan),
    evaluation(2, 0.0, 3.0),
    evaluation(3, 0.0, 4.0, unseen=True),
    evaluation(4, 1.0, math.inf),
)


def test_what_is_measured_for_the_records_alone_is_not_remembered() -> None:
    """Only the clients of the objective are heard, however many measured their training part."""
    told = update_reports(ClientReports(), MEASURED, all_clients=False)
    assert dict(told.num_examples) == {0: 10.0, 4: 50.0}
    assert dict(told.evaluated_losses) == {0: 2.0}


def test_all_trained_clients_report_where_losses_drive_selection() -> None:
    """Candidates have no priority, where others have; who never trains is no candidate."""
    told = update_reports(ClientReports(), MEASURED, all_clients=True)
    assert dict(told.num_examples) == {0: 10.0, 2: 30.0, 4: 50.0}
    assert dict(told.evaluated_losses) == {0: 2.0, 2: 3.0}
