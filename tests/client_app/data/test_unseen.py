"""Which clients never train."""

import pytest
from fedquorum.errors import SettingsError
from fedquorum.rng import make_generator

from client_app.data.held_out import select_held_out_clients
from conf.schema.data import DataSettings


def select_held_out(
    fraction: float, *, priority: object = "all", seed: int = 1, **given: object
) -> set[int]:
    settings = DataSettings("x", priority=priority, holdout_client_fraction=fraction, **given)  # type: ignore[arg-type]
    has_priority = range(20) if priority == "all" else (0, 1, 2)
    return {*select_held_out_clients(settings, 20, has_priority, seed)}


def test_a_fraction_of_all_clients_never_trains() -> None:
    """The clients are ascending, and depend on the seed by a separate stream."""
    assert select_held_out(0.0) == set()
    assert [len(select_held_out(fraction)) for fraction in (0.05, 0.25, 0.95)] == [1, 5, 19]
    assert select_held_out(0.5) == select_held_out(0.5) != select_held_out(0.5, seed=2)
    # 0.575 of 100 is 57.5, and 57.49999999999999 in binary.
    settings = DataSettings("x", priority="all", holdout_client_fraction=0.575)
    assert len(select_held_out_clients(settings, 100, range(100), 1)) == 58
    assert select_held_out(0.25) == {*make_generator(1, "unseen").permutation(20)[:5].tolist()}


def test_priority_clients_always_train() -> None:
    """Priority clients are never held out, unless all clients have priority."""
    for seed in range(20):
        assert not {0, 1, 2} & select_held_out(0.5, priority=[0, 1, 2], seed=seed)
    assert select_held_out(0.85, priority=[0, 1, 2]) == {*range(3, 20)}
    with pytest.raises(SettingsError, match="of 1 to 0 of the 20 clients, none of which has prior"):
        select_held_out(0.25, priority_weights=dict.fromkeys(range(20), 0.5))


@pytest.mark.parametrize(
    ("fraction", "priority", "message"),
    [
        (0.01, "all", r"a share of 1 to 19 .*one left to train, got 0\.01 \(0 clients\)"),
        (0.99, "all", r"a share of 1 to 19 of the 20 clients.*\(20 clients\)"),
        (0.9, [0, 1, 2], r"a share of 1 to 17 .*has priority, got 0\.9 \(18 clients\)"),
    ],
)
def test_a_fraction_that_leaves_no_client_is_refused(
    fraction: float, priority: object, message: str
) -> None:
    """A fraction that leaves no client is refused in one line with the allowed range."""
    with pytest.raises(SettingsError, match=message):
        select_held_out(fraction, priority=priority)
