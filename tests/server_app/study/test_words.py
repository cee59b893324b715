"""What a study says: one sentence for each verdict, and numbers in people's units."""

from dataclasses import replace

import pytest

from server_app.study.words import (
    MINUS,
    Unit,
    duration,
    listed,
    possessive_of,
    title,
    verdict_sentence,
    whose,
)
from tests.builders_study import BASE, answer, better


def test_a_winner_with_those_that_cannot_be_told_apart() -> None:
    """Whom it is best for, by how much, how sure, and who may be as good."""
    scores = {"fedavg": BASE, "fedalign": better(2.0, 3.0, 1.8, 2.2, 2.4)}
    said = answer(
        scores, score="test.priority.accuracy", not_told_apart=("mifa", "average_participating")
    )
    assert verdict_sentence(said) == (
        "FedALIGN is best for the priority clients: its accuracy is 2.3 points above FedAvg's "
        "(95 % interval 1.7 to 2.9, ahead in 5 of 5 seeds). MIFA and average participating cannot "
        "be told apart from it."
    )


def test_the_verdict_is_told_although_another_has_the_larger_mean() -> None:
    """One seed makes a large difference that nobody knows."""
    scores = {
        "fedavg": BASE,
        "fedau": better(1, 1.1, 1, 0.9, 1),
        "known_statistics": better(15, 0, 0, 0, 0),
    }
    assert verdict_sentence(answer(scores)).startswith("FedAU is best for all clients: ")


def test_a_sentence_begins_with_a_capital() -> None:
    """Although the method's name has none."""
    scores = {"fedavg": BASE, "known_statistics": better(2.0, 3.0, 1.8, 2.2, 2.4)}
    assert verdict_sentence(answer(scores)).startswith("Known statistics is best")


def test_lower_may_be_better() -> None:
    """Then the best is below, in the metric's unit; RMSE has none."""
    losses = [score - 0.02 for score in BASE]
    lower = answer({"fedavg": BASE, "fedau": losses}, metric="loss")
    assert "its loss is 0.020 nats below FedAvg's" in verdict_sentence(lower)
    lower = answer({"fedavg": BASE, "fedau": losses}, metric="rmse")
    assert "its RMSE is 0.020 below FedAvg's" in verdict_sentence(lower)


def test_no_difference() -> None:
    """The margin is said, one point as one."""
    said = verdict_sentence(answer({"fedavg": BASE, "mifa": better(0.1, 0, 0.1, -0.1, 0)}))
    assert said == (
        "No method differs from FedAvg by more than 1 point of accuracy for all clients "
        "(95 % intervals, 5 seeds)."
    )


def test_undecided_says_what_would_decide() -> None:
    """Seeds and budget in all, beside those that there were."""
    scores = {"fedavg": BASE, "mifa": better(1, 2, -1, 1.5, 1)}
    said = verdict_sentence(answer(scores, to_decide=3300.0))
    assert said == (
        "Undecided for all clients: MIFA's accuracy is 0.9 points above FedAvg's, but this may be "
        f"chance (95 % interval {MINUS}0.5 to 2.3, ahead in 4 of 5 seeds). About 9 seeds "
        "instead of 5 would decide it, a budget of about 55 minutes instead of 20 minutes."
    )


def test_undecided_where_none_is_ahead_or_no_budget_would_decide() -> None:
    """The nearest one is named all the same."""
    behind = {"fedavg": BASE, "mifa": better(-1, 2, -1, -1.5, -1)}
    said = verdict_sentence(answer(behind))
    assert "no method comes out ahead of FedAvg, and MIFA's accuracy is 0.5 points below" in said
    same = answer({"fedavg": BASE, "mifa": better(2, 0, 2, 0, 2)})
    assert same.decision is not None
    never = replace(same, decision=replace(same.decision, seeds_to_decide=None))
    assert verdict_sentence(never).endswith("no number of seeds would decide it.")


def test_undecided_by_another_than_the_one_in_front() -> None:
    """What is the same in all seeds is no chance; what keeps the verdict open is named."""
    scores = {"fedavg": BASE, "term": BASE, "qfedavg": better(-4, 3, -3, 2, -4)}
    said = verdict_sentence(answer(scores))
    assert said.startswith(
        "Undecided for all clients: no method comes out ahead of FedAvg, and TERM's accuracy "
        "differs from FedAvg's by 0.0 points (95 % interval 0.0 to 0.0, ahead in 0 of 5 seeds), "
        "but q-FedAvg may be up to "
    )
    assert f" points better (95 % interval {MINUS}" in said


def test_methods_that_are_only_worse() -> None:
    """No more seeds are asked for: nothing can turn out better."""
    said = verdict_sentence(answer({"fedavg": BASE, "mifa": better(-3, -3.2, -3.1, -3, -2.9)}))
    assert said.startswith("Nothing beats FedAvg: for all clients, no method is better by more")
    assert said.endswith("and MIFA may be worse by more than that.")


def test_too_few_seeds_or_methods() -> None:
    """Nothing is claimed."""
    few = answer({"fedavg": BASE[:3], "mifa": BASE[:3]}, to_decide=9000.0)
    assert verdict_sentence(few) == (
        "Undecided: the budget was enough for 3 seeds of every method, and a verdict needs 5. A "
        "budget of about 2.5 hours instead of 20 minutes is enough for that."
    )
    one = answer({"fedavg": BASE[:1], "mifa": BASE[:1]})
    assert "enough for 1 seed of every method, and a verdict needs 5." in verdict_sentence(one)
    alone = answer({"fedavg": BASE})
    assert "no method is left to compare with FedAvg" in verdict_sentence(alone)


@pytest.mark.parametrize(
    ("score", "words"),
    [
        ("test.all.accuracy", "all clients"),
        ("test.unseen.accuracy", "unseen clients"),
        ("test.all.worst10", "the worst 10 % of all clients"),
        ("test.non_priority.worst", "the worst of the clients without priority"),
    ],
)
def test_whose_score_it_is(score: str, words: str) -> None:
    """The score's key in words."""
    assert whose(answer({"fedavg": BASE}, score=score)) == words


def test_as_many_digits_as_the_margin_needs() -> None:
    """A margin of 1 point is told with one decimal, a hundredth of a nat with three."""
    assert Unit.of("accuracy", 0.01).number(0.12345) == "12.3"
    assert Unit.of("accuracy", 0.002).number(0.12345) == "12.35"
    assert Unit.of("loss", 0.01).number(0.12345) == "0.123"
    assert Unit.of("rmse", 250.0).number(12345.6) == "12346"
    assert Unit.of("accuracy", 0.0).number(0.12345) == "12.35"


def test_signs() -> None:
    """A real minus; no sign of what is 0 when it is written; "-" for what is not defined."""
    unit = Unit.of("accuracy", 0.01)
    assert unit.number(-0.0123) == f"{MINUS}1.2"
    assert unit.interval(0.0123, -0.0001, signed=True) == "+1.2 to 0.0"
    assert unit.number(float("nan")) == "-"


def test_whose() -> None:
    """A name in the plural has no second s."""
    assert possessive_of("FedAvg") == "FedAvg's"
    assert possessive_of("FedAvg on priority clients") == "FedAvg on priority clients'"


def test_amounts() -> None:
    """Of a budget, with its unit."""
    told = [duration("seconds", s) for s in (45.0, 135.0, 300.0, 1500.0, 9000.0)]
    assert told == ["45 seconds", "2.2 minutes", "5 minutes", "25 minutes", "2.5 hours"]
    assert duration("rounds", 1200.0) == "1,200 rounds"


def test_lists() -> None:
    """As people say them."""
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]


def test_names_for_people() -> None:
    """Published names, keys in words, and others as they are, on one line."""
    titles = [title(name) for name in ("fedalign", "fedavg", "average_all", "mine_2", "a\nb")]
    assert titles == ["FedALIGN", "FedAvg", "average all", "mine_2", "a b"]
