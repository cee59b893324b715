"""Strategies and settings as people read them."""

import pytest

from server_app.names import format_setting, format_value, get_setting_name, method_title


def test_a_strategy_has_its_papers_name() -> None:
    """A rule of someone's own, or a composition, is called as it was named."""
    assert [method_title(name) for name in ("fedalign", "aaggff_s", "composed")] == [
        "FedALIGN",
        "AAggFF-S",
        "composed",
    ]


def test_a_settings_name() -> None:
    """Its last part, unless that would not say what it is."""
    assert get_setting_name("client.lr") == "client rate"
    assert get_setting_name("data.num_clients") == "clients"
    assert get_setting_name("data.min_samples") == "min samples"


def test_an_option_is_called_as_its_group() -> None:
    """Its key ends in "name", which says nothing."""
    assert get_setting_name("availability.name") == "availability"
    assert get_setting_name("server_optimizer.name") == "server optimizer"


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("client.lr=0.051234", "client rate 0.0512"),
        ("strategy.cutoff=inf", "K inf"),
        ("rounds=100000", "rounds 100000"),
        ("availability.name=markov", "Markov"),
        ("server_optimizer.name=adam", "server optimizer adam"),
        ("privacy.name=dp_fixed_server", "privacy dp fixed server"),
        ("strategy.selection=everyone", "everyone"),
        ("strategy.epsilon_schedule=constant", "constant epsilon"),
        ("+strategy.epsilon_schedule=linear", "epsilon falls linearly"),
        ("strategy.epsilon_schedule=step", "epsilon falls to 0 at half"),
        ("model.name=small_cnn", "model small cnn"),
    ],
)
def test_a_setting_in_words(word: str, words: str) -> None:
    """What depends on another setting reads that, too."""
    assert format_setting(word, {"strategy.epsilon_step_fraction": 0.5}) == words


def test_a_step_at_an_undefined_round() -> None:
    """Without the other setting nothing is said of it."""
    assert format_setting("strategy.epsilon_schedule=step") == "epsilon falls to 0"


def test_a_step_at_another_round() -> None:
    """In percent of the rounds."""
    settings = {"strategy.epsilon_step_fraction": 0.3}
    words = format_setting("strategy.epsilon_schedule=step", settings)
    assert words == "epsilon falls to 0 after 30 %"


def test_a_value_alone() -> None:
    """As it stands on the axis of its setting."""
    assert format_value("availability.name", "bernoulli") == "Bernoulli"
    assert format_value("strategy.epsilon", "0.25") == "0.25"
    assert format_value("data.drop_columns", "a_b") == "a_b"
