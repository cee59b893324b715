"""Count who trained, who failed, and why."""

import pytest
from fedquorum.rules.decisions import ClientDecision
from fedquorum.rules.failures import FailureCounts, is_failure, normalize_reason
from fedquorum.rules.round import NO_PRIORITY_UPDATE, NOT_FINITE, NOT_SOLVED


def make_failed(client: int, reason: str | None, *, priority: bool = True) -> ClientDecision:
    return ClientDecision(client, priority, "failed", reason)


def make_defect(client: int, reason: str) -> ClientDecision:
    return ClientDecision(client, True, "rejected", reason)


def make_gated(client: int, reason: str) -> ClientDecision:
    return ClientDecision(client, False, "rejected", reason, num_examples=5, loss=1.0)


def count(
    *decisions: ClientDecision, trained: int = 0, refused: str | None = None
) -> FailureCounts:
    counts = FailureCounts()
    counts.add_round(decisions, trained=trained, refused=refused)
    return counts


@pytest.mark.parametrize(
    ("decision", "refused", "expected"),
    [
        (make_failed(0, "no data"), None, True),
        (make_defect(0, "array 'w' holds NaN or Inf"), None, True),
        (make_gated(0, "its loss is too high"), None, False),
        (make_gated(0, f"{NOT_SOLVED}: no optimum"), NOT_SOLVED, True),
        (make_gated(0, "its loss is too high"), NOT_SOLVED, False),
        *(
            (ClientDecision(0, True, status), None, False)
            for status in ("trained", "declined", "unavailable", "busy", "late")
        ),
    ],
)
def test_what_is_a_failure(
    decision: ClientDecision, refused: str | None, *, expected: bool
) -> None:
    """A rule that refuses an update does not make its client fail."""
    assert is_failure(decision, refused) is expected


def test_a_distinct_failure_counts_once_regardless_of_its_numbers() -> None:
    """Its text is that of the first client, and the clients are counted."""
    counts = FailureCounts()
    for loss in ("nan", "1e+16"):
        decisions = [make_defect(k, f"loss is {loss}, not in [0, 1e+15]") for k in (3, 5)]
        counts.add_round(decisions, trained=0)
    assert (counts.times, counts.clients) == (4, {3, 5})
    reason = "loss is nan, not in [0, 1e+15]"
    assert counts.format("N{}".format) == f"{reason} (2 clients, such as N3, 4 times)"
    assert count(make_failed(1, None)).format() == "it gave no reason (client 1)"


def test_arrays_and_keys_do_not_make_another_failure() -> None:
    """Clients diverge in different layers, and their replies have different keys."""
    assert normalize_reason("array 'a.0' holds NaN") == normalize_reason("array 'b' holds NaN")
    assert normalize_reason("loss is missing; found 'x'") == "loss is missing"
    assert normalize_reason(None) == ""


def test_many_failures_are_the_most_frequent_and_a_number() -> None:
    """A line has five at most."""
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    decisions = [make_failed(k, word) for k, word in enumerate(words)]
    text = count(*decisions, make_failed(9, "seven"), make_failed(9, "seven")).format()
    assert text.split("; ") == [
        "seven (2 clients, such as 6, 3 times)",
        *(f"{word} (client {k})" for k, word in enumerate(words[:4])),
        "and 2 more (2 times)",
    ]


def test_who_trained_with_success() -> None:
    """Clients that a rule refuses did, but nobody in a round that the server refuses."""
    assert count(make_gated(1, "too high"), make_failed(0, "x"), trained=2).trained == 3
    assert count(make_gated(1, NOT_FINITE), trained=2, refused=NOT_FINITE).trained == 0
    assert count(ClientDecision(0, True, "declined")).trained == 0


def test_an_update_that_waits_for_a_failed_priority_client_is_no_success() -> None:
    """It never counts; without a failure the priority clients were only absent."""
    waiting = make_gated(4, NO_PRIORITY_UPDATE)
    assert count(make_failed(0, "x"), waiting).trained == 0
    assert count(make_failed(2, "x", priority=False), waiting).trained == 1
    assert count(ClientDecision(0, True, "unavailable"), waiting).trained == 1


@pytest.mark.parametrize(
    ("decisions", "refused", "expected"),
    [
        ([], None, False),
        ([make_failed(0, "RuntimeError: 1"), make_failed(1, "RuntimeError: 2")], None, True),
        ([make_failed(0, "RuntimeError"), make_failed(1, "KeyError")], None, False),
        (
            [
                make_defect(0, "array 'w' holds NaN or Inf"),
                make_defect(1, "loss is inf, not in [0"),
            ],
            None,
            True,
        ),
        ([make_gated(0, NOT_FINITE)], NOT_FINITE, True),
        ([make_gated(0, NOT_SOLVED)], NOT_SOLVED, False),
    ],
)
def test_failures_are_alike_if_they_have_one_cause(
    decisions: list[ClientDecision], refused: str | None, *, expected: bool
) -> None:
    """A diverging model shows in arrays and losses; a solver may succeed in the next round."""
    assert count(*decisions, refused=refused).are_alike() is expected
