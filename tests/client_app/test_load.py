"""From settings to data, kept between calls."""

import dataclasses

import numpy as np
import pytest

from client_app.data import load_data
from client_app.data.synth import Synth
from conf.schema import DataSettings, SynthSettings

SETTINGS = SynthSettings(num_clients=3, num_priority=2, sizes="equal", samples_per_client=10)


def test_same_settings_share_the_data() -> None:
    """Equal settings, though another object, get the data that is there."""
    assert load_data(SETTINGS, 1) is load_data(dataclasses.replace(SETTINGS), 1)


@pytest.mark.parametrize(
    "change",
    [
        {"samples_per_client": 20},
        {"num_clients": 4},
        {"noise": "flip"},
        {"priority": [2, 1]},
        {"alpha": 0.0},
    ],
    ids=str,
)
def test_other_settings_get_other_data(change: dict[str, object]) -> None:
    """A change of any setting gives a data set made with it."""
    before = load_data(SETTINGS, 1)
    settings = dataclasses.replace(SETTINGS, **change)  # type: ignore[arg-type]
    after = load_data(settings, 1)
    assert after is not before
    assert isinstance(after, Synth)
    assert after._settings == settings


def test_another_seed_gets_other_data() -> None:
    """The seed is part of what is asked for."""
    first, second = load_data(SETTINGS, 1), load_data(SETTINGS, 2)
    assert first is not second
    assert not np.array_equal(first.client(0).x_train, second.client(0).x_train)


def test_only_the_last_data_is_kept() -> None:
    """Data asked for before the last is made again, and is the same."""
    before = load_data(SETTINGS, 1)
    load_data(SETTINGS, 2)
    again = load_data(SETTINGS, 1)
    assert again is not before
    np.testing.assert_array_equal(again.client(2).x_train, before.client(2).x_train)


def test_unknown_settings_are_refused() -> None:
    """Settings of no known data set raise and name their type."""
    with pytest.raises(TypeError, match="no data set for DataSettings"):
        load_data(DataSettings(name="x"), 1)
