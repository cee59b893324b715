"""Response times that follow from the settings and from the clients' data."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fedquorum.client.latency import LognormalLatency
from fedquorum.errors import SettingsError

from client_app.data import load_data
from client_app.simulation.response_times import build_latency_model, find_main_class
from conf.compose import compose_overrides
from tests.builders_runs import make_client_overrides, read_rows, run_here

OVERRIDES = (*make_client_overrides(8, 8), "response_time=lognormal")
FACTORS = [1.0, 2.0, 4.0, 8.0, 16.0, 1.0, 1.0, 1.0, 1.0, 0.5]


def make_data(*labels: list[int], target: str = "class") -> Any:
    """Return data of three classes, with these labels for each client."""
    return SimpleNamespace(
        num_clients=len(labels),
        num_classes=3,
        target=target,
        get_labels=lambda client: np.array(labels[client], dtype=np.int64),
    )


def test_the_main_class_is_the_smallest_of_the_most_frequent() -> None:
    """A client without rows counts as one of class 0."""
    data = make_data([2, 1, 2], [2, 1, 0, 1, 2], [0], [])
    assert [find_main_class(data, client) for client in range(4)] == [2, 1, 0, 0]


def test_factors_scale_the_times_of_a_class() -> None:
    """All rounds of a client have its factor, and so have rounds that are played ahead."""
    settings = compose_overrides((*OVERRIDES, "response_time.by_class=[1,2,10]")).settings
    data = make_data([1, 1, 0], [2], [0])
    times = build_latency_model(settings.response_time, data)
    assert times is not None
    assert times.is_stationary
    base = LognormalLatency()
    for client, factor in enumerate((2.0, 10.0, 1.0)):
        for t in (1, 2):
            assert times.get_seconds(5, client, t) == factor * base.get_seconds(5, client, t)
    clients = np.array([1, 2])
    drawn = times.make_sampler(5, clients)(np.random.default_rng(1))
    expected = base.make_sampler(5, clients)(np.random.default_rng(1)) * [10.0, 1.0]
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("target", ["number", "sequence"])
def test_factors_need_classes(target: str) -> None:
    """Numbers to predict and texts to continue have none."""
    settings = compose_overrides((*OVERRIDES, "response_time.by_class=[1,2,10]")).settings
    with pytest.raises(SettingsError, match=r"^response_time\.by_class must be null for data with"):
        build_latency_model(settings.response_time, make_data([0], target=target))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["response_time.by_class=[1,2]"], "response_time.by_class must have one factor for each"),
        (["response_time.by_class=2"], "response_time.by_class must be a list of at least one val"),
        (["response_time.by_class=[1,0]"], "response_time.by_class must be a list of at least one"),
    ],
)
def test_wrong_factors_are_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    """One line names the setting; with an availability trace, too."""
    trace = tmp_path / "trace.csv"
    trace.write_text("round,client,available\n1,0,1\n")
    extra = ("availability=trace", f"availability.path={trace}")
    with pytest.raises(SettingsError) as error:
        run_here(tmp_path / "run", *OVERRIDES, *extra, "rounds=1", *overrides)
    assert str(error.value).startswith(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_slow_clients_hold_other_classes(tmp_path: Path) -> None:
    """Without other spread, a client's time is the median times its factor, on any nodes."""
    overrides = (
        *OVERRIDES,
        f"response_time.by_class={FACTORS}".replace(" ", ""),
        "response_time.between=0",
        "response_time.within=0",
        "strategy=fedau",
        "rounds=2",
    )
    settings = compose_overrides(overrides).settings
    data = load_data(settings.data, settings.seed)
    main = [find_main_class(data, client) for client in range(8)]
    assert len({FACTORS[c] for c in main}) > 1
    rows = read_rows(run_here(tmp_path / "1", *overrides))
    assert len(rows) == 16
    assert [row["reply_seconds"] for row in rows] == [
        10.0 * FACTORS[main[cast("int", row["client"])]] for row in rows
    ]
    assert read_rows(run_here(tmp_path / "3", *overrides, "engine.num_supernodes=3")) == rows
