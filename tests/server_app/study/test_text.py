"""Tests of a study's sentences: one for each verdict, and numbers in display units."""

from dataclasses import replace

import pytest

from server_app.study.paired_statistics import decide_best_method
from server_app.study.result import RivalComparison
from server_app.study.text import (
    MINUS,
    Unit,
    describe_score_clients,
    format_duration,
    format_method_name,
    format_verdict,
    join_words,
    to_possessive,
)
from tests.builders_study import (
    BASE,
    DIVIDED_ANEW,
    SAME_TEST_ROWS,
    add_to_baseline,
    make_study_answer,
)
from tests.snapshot import Snapshot, join_sections

LOWER = {"fedavg": BASE, "fedau": [score - 0.02 for score in BASE]}
VERDICTS = {
    "a winner, and indistinguishable methods": make_study_answer(
        {"fedavg": BASE, "fedalign": add_to_baseline(2.0, 3.0, 1.8, 2.2, 2.4)},
        metric_key="test.priority.accuracy",
        not_distinguished=("mifa", "average_participating"),
    ),
    "a winner where lower is better": make_study_answer(LOWER, metric="loss"),
    "a winner by a metric without a unit": make_study_answer(LOWER, metric="rmse"),
    "a winner on new rows": make_study_answer(
        {"fedavg": BASE, "fedau": add_to_baseline(5, 5.1, 5, 4.9, 5)}, draws=DIVIDED_ANEW
    ),
    "a winner on the same test rows": make_study_answer(
        {"fedavg": BASE, "fedau": add_to_baseline(5, 5.1, 5, 4.9, 5)}, draws=SAME_TEST_ROWS
    ),
    "a winner on new rows, tested on the same ones": make_study_answer(
        {"fedavg": BASE, "fedau": add_to_baseline(5, 5.1, 5, 4.9, 5)},
        draws=SAME_TEST_ROWS,
        row_weights=100,
    ),
    "no usable model": make_study_answer(
        {"fedavg": BASE, "fedau": add_to_baseline(5, 5.1, 5, 4.9, 5)},
        guessing=add_to_baseline(5, 5, 5, 5, 5),
    ),
    "no difference": make_study_answer(
        {"fedavg": BASE, "mifa": add_to_baseline(0.1, 0, 0.1, -0.1, 0)}
    ),
    "methods that are only worse": make_study_answer(
        {"fedavg": BASE, "mifa": add_to_baseline(-3, -3.2, -3.1, -3, -2.9)}
    ),
    "undecided, and what would decide": make_study_answer(
        {"fedavg": BASE, "mifa": add_to_baseline(1, 2, -1, 1.5, 1)}, to_decide=3300.0
    ),
    "undecided, and no method is ahead": make_study_answer(
        {"fedavg": BASE, "mifa": add_to_baseline(-1, 2, -1, -1.5, -1)}
    ),
    "undecided because of a method behind the first": make_study_answer(
        {"fedavg": BASE, "term": BASE, "qfedavg": add_to_baseline(-4, 3, -3, 2, -4)}
    ),
    "undecided for ever": make_study_answer(
        {"fedavg": BASE, "mifa": add_to_baseline(2, 0, 2, 0, 2)}, draws=DIVIDED_ANEW
    ),
    "too few seeds": make_study_answer({"fedavg": BASE[:3], "mifa": BASE[:3]}, to_decide=9000.0),
    "one seed": make_study_answer({"fedavg": BASE[:1], "mifa": BASE[:1]}),
    "one method": make_study_answer({"fedavg": BASE}),
}


def test_every_verdict(snapshot: Snapshot) -> None:
    """Each says for whom, what to do, for which rows, and how sure that is."""
    verdicts = {name: format_verdict(result) for name, result in VERDICTS.items()}
    snapshot("study/verdicts.txt", join_sections(verdicts))


@pytest.mark.parametrize(
    ("named", "row_weights", "scope"),
    [(("fine-tuned",), 0, ""), (("fine-tuned",), 100, ", on these test rows"), ((), 100, "")],
)
def test_models_of_the_clients_own_that_beat_every_method(
    named: tuple[str, ...], row_weights: int, scope: str
) -> None:
    """They follow the verdict on the methods, with their own difference and interval."""
    result = replace(VERDICTS["no difference"], row_weights=row_weights)
    scores = {"fedavg": BASE, "alone": BASE, "fine-tuned": add_to_baseline(6, 7, 5, 6, 6)}
    decision = decide_best_method(scores, "fedavg", result.min_effect)
    found = format_verdict(replace(result, rivals=RivalComparison((), decision, named)))
    first = format_verdict(result)
    assert found.startswith(first)
    assert found.removeprefix(first) == (
        f" But personal models beat every method here{scope}: the last model trained "
        "further "
        "on the client's own rows, its accuracy is 6.0 points above FedAvg's (95 % interval 4.9 to "
        "7.1, ahead in 5 of 5 seeds)."
        if named
        else ""
    )


def test_the_verdict_is_stated_although_another_has_the_larger_mean() -> None:
    """One seed causes a large mean that is not significant."""
    scores = {
        "fedavg": BASE,
        "fedau": add_to_baseline(1, 1.1, 1, 0.9, 1),
        "known_statistics": add_to_baseline(15, 0, 0, 0, 0),
    }
    assert format_verdict(make_study_answer(scores)).startswith("For all clients, use FedAU: ")


def test_a_sentence_begins_with_a_capital() -> None:
    """Also if its clients' name starts with a small letter."""
    result = make_study_answer({"fedavg": BASE, "mifa": add_to_baseline(2, 3, 1.8, 2.2, 2.4)})
    assert format_verdict(replace(result, goal="priority")).startswith("For all clients, use MIFA")


@pytest.mark.parametrize(
    ("score", "words"),
    [
        ("test.all.accuracy", "all clients"),
        ("test.held_out.accuracy", "held-out clients"),
        ("test.all.worst10", "the worst 10 % of all clients"),
        ("test.non_priority.worst", "the worst of the clients without priority"),
    ],
)
def test_the_score_names_its_clients(score: str, words: str) -> None:
    """By the group and the statistic in the score's key."""
    assert describe_score_clients(make_study_answer({"fedavg": BASE}, metric_key=score)) == words


def test_as_many_digits_as_the_margin_needs() -> None:
    """A margin of 1 point needs one decimal, a hundredth of a nat three."""
    assert Unit.for_metric("accuracy", 0.01).format_number(0.12345) == "12.3"
    assert Unit.for_metric("accuracy", 0.002).format_number(0.12345) == "12.35"
    assert Unit.for_metric("loss", 0.01).format_number(0.12345) == "0.123"
    assert Unit.for_metric("rmse", 250.0).format_number(12345.6) == "12346"
    assert Unit.for_metric("accuracy", 0.0).format_number(0.12345) == "12.35"


def test_signs() -> None:
    """A real minus sign; no sign of a rounded 0; "-" for NaN."""
    unit = Unit.for_metric("accuracy", 0.01)
    assert unit.format_number(-0.0123) == f"{MINUS}1.2"
    assert unit.format_interval(0.0123, -0.0001, signed=True) == "+1.2 to 0.0"
    assert unit.format_number(float("nan")) == "-"


def test_possessives() -> None:
    """A name in the plural has no second s."""
    assert to_possessive("FedAvg") == "FedAvg's"
    assert to_possessive("FedAvg on priority clients") == "FedAvg on priority clients'"


def test_amounts() -> None:
    """Amounts of a budget have their unit."""
    texts = [format_duration("seconds", s) for s in (45.0, 135.0, 300.0, 1500.0, 9000.0)]
    assert texts == ["45 seconds", "2.2 minutes", "5 minutes", "25 minutes", "2.5 hours"]
    assert format_duration("rounds", 1200.0) == "1,200 rounds"


def test_lists() -> None:
    """Names are joined by commas and "and"."""
    assert [join_words(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]


def test_display_names() -> None:
    """Published names, readable keys, and other names unchanged on one line."""
    titles = [
        format_method_name(name) for name in ("fedalign", "fedavg", "average_all", "mine_2", "a\nb")
    ]
    assert titles == ["FedALIGN", "FedAvg", "average all", "mine_2", "a b"]
