"""Test the displayed names of strategies and settings."""

import pytest
from fedquorum.report.names import (
    choose_digits,
    format_setting,
    format_value,
    get_setting_name,
    method_title,
)


def test_a_strategy_has_its_papers_name() -> None:
    """A composition has the name of its setting."""
    assert [method_title(name) for name in ("fedalign", "aaggff_s", "composed")] == [
        "FedALIGN",
        "AAggFF-S",
        "composed",
    ]


def test_a_setting_is_named_by_the_last_part_of_its_key() -> None:
    """Settings whose key is not clear have another name."""
    assert get_setting_name("client.lr") == "client rate"
    assert get_setting_name("data.num_clients") == "clients"
    assert get_setting_name("data.min_samples") == "min samples"


def test_an_option_has_the_name_of_its_group() -> None:
    """Its key ends in "name", which is left out."""
    assert get_setting_name("availability.name") == "availability"
    assert get_setting_name("server_optimizer.name") == "server optimizer"


@pytest.mark.parametrize(
    ("override", "text"),
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
def test_a_setting_is_formatted_with_its_value(override: str, text: str) -> None:
    """The text of an epsilon schedule also depends on its step fraction."""
    assert format_setting(override, {"strategy.epsilon_step_fraction": 0.5}) == text


def test_an_unknown_step_fraction_is_left_out() -> None:
    """The text does not say when epsilon falls."""
    assert format_setting("strategy.epsilon_schedule=step") == "epsilon falls to 0"


def test_a_step_fraction_is_a_percentage() -> None:
    """Only a step at half of the rounds has another text."""
    settings = {"strategy.epsilon_step_fraction": 0.3}
    text = format_setting("strategy.epsilon_schedule=step", settings)
    assert text == "epsilon falls to 0 after 30 %"


def test_a_value_is_formatted_without_its_name() -> None:
    """An axis label shows only the value."""
    assert format_value("availability.name", "bernoulli") == "Bernoulli"
    assert format_value("strategy.epsilon", "0.25") == "0.25"
    assert format_value("data.drop_columns", "a_b") == "a_b"


@pytest.mark.parametrize(
    ("values", "digits"),
    [
        ([], 3),
        (["0.1", "0.2", "word"], 3),
        (["0.05001", "0.05002"], 4),
        (["0.1", repr(0.1 + 2**-55)], 17),
        (["0.1", "0.10"], 3),
    ],
)
def test_values_get_the_digits_that_distinguish_them(values: list[str], digits: int) -> None:
    """Equal numbers cannot differ, and words do not count."""
    assert choose_digits(values) == digits
    numbers = {float(value) for value in values if value != "word"}
    texts = {format_value("client.lr", repr(number), None, digits) for number in numbers}
    assert len(texts) == len(numbers)
