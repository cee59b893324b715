"""Tests that settings given in Python become the overrides that a user would type."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf import SettingsError
from conf.compose import compose_overrides, parse_override, quote
from conf.overrides import get_sweep_values, to_overrides

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.text(
    "ab01.,:=+-/\\'\"${}[]() \n\t", max_size=8
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | TEXTS
    | st.sampled_from(
        ["null", "TRUE", "inf", "-inf", "nan", "1", "1e3", "a b", "x,y", "interval(0,1)"]
    )
)
VALUES = SCALARS | st.lists(SCALARS | st.lists(SCALARS, max_size=2), max_size=3)


@given(VALUES)
def test_hydra_reads_back_the_given_value(value: Any) -> None:
    """Types, special characters and nested lists are retained."""
    (text,) = to_overrides({"data.path": value})
    override = parse_override(text)
    assert override.key_or_group == "data.path"
    assert not override.is_sweep_override()
    assert repr(override.value()) == repr(value)


@given(st.lists(SCALARS, min_size=2, max_size=4))
def test_an_axis_has_each_value(values: list[Any]) -> None:
    """A list is a sweep over its values, in order; null several times is one null."""
    (text,) = to_overrides({"data.path": values}, allow_sweeps=True)
    override = parse_override(text)
    assert override.is_sweep_override()
    key, _, _ = text.partition("=")
    texts = [f"{key}={value}" for value in get_sweep_values(override)]
    expected = [None] if set(map(repr, values)) == {"None"} else values
    assert [repr(parse_override(text).value()) for text in texts] == list(map(repr, expected))


@given(TEXTS)
def test_a_choice_of_one_keeps_its_quotes(text: str) -> None:
    """Each setting of a sweep or study is such a choice, which each job composes."""
    override = parse_override(f"data.path=choice({quote(text)})")
    (value,) = get_sweep_values(override)
    assert parse_override(f"data.path={value}").value() == text


@given(st.lists(SCALARS, max_size=3))
def test_a_tuple_is_one_value_of_a_sweep(values: list[Any]) -> None:
    """Use it for settings that are lists, such as ``model.hidden``."""
    (text,) = to_overrides({"model.hidden": tuple(values)}, allow_sweeps=True)
    assert repr(parse_override(text).value()) == repr(values)


@given(TEXTS)
def test_a_quoted_text_is_read_back(text: str) -> None:
    """It may contain backslashes and quotes, next to each other and at its end."""
    assert parse_override(f"data.path={quote(text)}").value() == text


@pytest.mark.parametrize(
    ("settings", "overrides"),
    [
        ({"rounds": 20, "strategy": "fedau"}, ["rounds=20", "strategy=fedau"]),
        ({"client": {"lr": 0.1, "batch_size": 8}}, ["client.lr=0.1", "client.batch_size=8"]),
        ({"strategy.cutoff": math.inf}, ["strategy.cutoff=inf"]),
        ({"strategy": {"name": "fedau", "cutoff": 5}}, ["strategy=fedau", "strategy.cutoff=5"]),
        ({"data.name": "fmnist"}, ["data=fmnist"]),
        ({"strategy.selection.name": "everyone"}, ["strategy/selection=everyone"]),
        ({"strategy": {"selection.name": "everyone"}}, ["strategy/selection=everyone"]),
        (
            {"strategy": {"selection": {"name": "epsilon_gate", "epsilon": 0.5}}},
            ["strategy/selection=epsilon_gate", "strategy.selection.epsilon=0.5"],
        ),
        ({"strategy/selection": "everyone"}, ["strategy/selection=everyone"]),
        ({"data": {"priority_weights": {3: 0.5}}}, ["data.priority_weights={3:0.5}"]),
        ({"model.args": {"width": [1, 2]}}, ["model.args={width:[1,2]}"]),
        ({"data": {"path": Path("a/b c.npz")}}, ["data.path='a/b c.npz'"]),
        (
            {"resume": None, "client.deterministic": True},
            ["resume=null", "client.deterministic=true"],
        ),
        ({"seed": np.int64(3)}, ["seed=3"]),
        ({"client.lr": np.float64(0.25)}, ["client.lr=0.25"]),
        ({"client.deterministic": np.bool_(False)}, ["client.deterministic=false"]),
        ({"availability.p": np.array([0.5, 1.0])}, ["availability.p=[0.5,1.0]"]),
    ],
)
def test_settings_are_the_overrides_one_would_type(
    settings: dict[str, Any], overrides: list[str]
) -> None:
    """A mapping or a dotted key goes below a group; ``name`` chooses the option."""
    assert list(to_overrides(settings)) == overrides


@pytest.mark.parametrize("values", [range(1, 4), np.arange(1, 4), [1, np.int64(2), 3]])
def test_axes_are_lists_ranges_and_arrays(values: Any) -> None:
    """An axis may be below a group, too."""
    assert to_overrides({"seed": values, "data": {"num_clients": values}}, allow_sweeps=True) == (
        "seed=1,2,3",
        "data.num_clients=1,2,3",
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client.lr": Decimal("0.1")}, "client.lr must be a number, a text, .*got Decimal "),
        ({"client": {"lr": {1, 2}}}, "client.lr must be a number, a text, .*got set "),
        ({"model.args": {"a:b": 1}}, "model.args must be a setting, .*got {'a:b': 1}"),
        ({"seed": []}, "seed must have at least one value in a sweep, got none"),
        ({"a b": 1}, "a b must be a setting"),
    ],
)
def test_an_invalid_setting_is_one_line(settings: dict[str, Any], message: str) -> None:
    """The line has the setting, the allowed values and the given value."""
    with pytest.raises(SettingsError, match=message) as error:
        to_overrides(settings, allow_sweeps=True)
    assert "\n" not in str(error.value)


def test_overrides_compose_to_the_given_values() -> None:
    """Hydra and the schemas restore them as settings of a run."""
    given_settings = {
        "strategy": {"name": "fedalign", "epsilon": math.inf},
        "data": {"num_clients": 4, "num_priority": 2, "priority_weights": {0: 1.0, 3: 0.5}},
        "tracker": {"name": "mlflow", "uri": "sqlite:///it's, {here}\\n.db"},
        "engine.round_timeout": 1e-5,
    }
    settings: Any = compose_overrides(to_overrides(given_settings)).settings
    assert settings.strategy.epsilon == math.inf
    assert settings.data.priority_weights == {0: 1.0, 3: 0.5}
    assert settings.tracker.uri == "sqlite:///it's, {here}\\n.db"
    assert settings.engine.round_timeout == 1e-5


def test_weights_of_names_are_a_list_where_no_mapping_can_have_them() -> None:
    """Hydra's grammar has no quotes around a key."""
    overrides = to_overrides({"data.priority_weights": {"Genève": 0.5, "3": 1.0}})
    assert overrides == ("data.priority_weights=[['Genève',0.5],['3',1.0]]",)
    (plain,) = to_overrides({"data.priority_weights": {"North": 0.5, 3: 1.0}})
    assert plain == "data.priority_weights={North:0.5,3:1.0}"
