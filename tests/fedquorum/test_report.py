"""What the strategy remembers of evaluations."""

import math

from fedquorum.report import ClientEvaluation, told_after
from fedquorum.types import Told


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
    told = told_after(Told(), MEASURED, everyone=False)
    assert dict(told.examples) == {0: 10.0, 4: 50.0}
    assert dict(told.measured) == {0: 2.0}


def test_where_losses_say_who_is_asked_all_that_train_are_heard() -> None:
    """Candidates have no priority, where others have; who never trains is no candidate."""
    told = told_after(Told(), MEASURED, everyone=True)
    assert dict(told.examples) == {0: 10.0, 2: 30.0, 4: 50.0}
    assert dict(told.measured) == {0: 2.0, 2: 3.0}
