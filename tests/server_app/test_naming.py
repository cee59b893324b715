"""Strategies and settings as people read them."""

import pytest

from server_app.naming import method_title, setting_name, setting_words


def test_a_strategy_has_its_papers_name() -> None:
    """A rule of someone's own, or a composition, is called as it was named."""
    assert [method_title(name) for name in ("fedalign", "aaggff_s", "composed")] == [
        "FedALIGN",
        "AAggFF-S",
        "composed",
    ]


def test_a_settings_name() -> None:
    """Its last part, unless that would not say what it is."""
    assert setting_name("client.lr") == "client rate"
    assert setting_name("data.num_clients") == "num clients"


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("client.lr=0.051234", "client rate 0.0512"),
        ("strategy.cutoff=inf", "K inf"),
        ("availability.name=markov", "markov"),
        ("+strategy.epsilon_schedule=linear", "epsilon falls linearly"),
        ("strategy.epsilon_schedule=step", "epsilon falls to 0 after 50 %"),
        ("model.name=small_cnn", "model small_cnn"),
    ],
)
def test_a_setting_in_words(word: str, words: str) -> None:
    """What depends on another setting reads that, too."""
    assert setting_words(word, {"strategy.epsilon_step_fraction": 0.5}) == words


def test_a_step_at_an_unknown_round() -> None:
    """Without the other setting nothing is said of it."""
    assert setting_words("strategy.epsilon_schedule=step") == "epsilon falls to 0"
