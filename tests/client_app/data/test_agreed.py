"""Scales of targets and inputs that all clients share."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import SettingsError

from client_app.data import load_data
from client_app.data.base import FederatedData, select_split
from client_app.data.scaling import AgreedScales
from client_app.losses import SquaredError, build_task
from conf.compose import compose_settings
from conf.schema.checks import check_settings
from conf.schema.data import CsvSettings, NpzSettings

SITES = ("a", "b", "c")
RNG = np.random.default_rng(0)
AGE = RNG.normal(60, 15, 60).round(1)
PRICE = (150000 + 3000 * AGE + RNG.normal(0, 2000, 60)).round()


def save(folder: Path, target: Any = PRICE, **columns: Any) -> Path:
    """Write a table of three sites, with the columns age and y unless others are given."""
    cells = {"site": np.repeat(SITES, 20), "age": AGE, **columns, "y": target}
    rows = zip(*cells.values(), strict=True)
    lines = [",".join(cells), *(",".join(map(str, row)) for row in rows)]
    path = folder / "table.csv"
    path.write_text("\n".join(lines).replace("nan", ""))
    return path


def load(path: Path, seed: int = 1, **settings: Any) -> FederatedData:
    given: dict[str, Any] = {"client_column": "site", "target": "y", "regression": True}
    return load_data(CsvSettings(path=str(path), **(given | settings)), seed)


def get_targets(data: FederatedData) -> tuple[np.ndarray, np.ndarray]:
    """Return the training targets, and those of the test splits, of all clients."""
    pairs = [data.get_targets(k) for k in range(data.num_clients)]
    return tuple(np.concatenate(one) for one in zip(*pairs, strict=True))  # type: ignore[return-value]


def test_targets_have_mean_0_and_deviation_1(tmp_path: Path) -> None:
    """The statistics are of the training rows of all clients, and of no test row."""
    data = load(save(tmp_path))
    train, test = get_targets(data)
    assert train.dtype == np.float32
    np.testing.assert_allclose([train.mean(), train.std()], [0, 1], atol=1e-6)
    scale = data.scales.target
    assert scale is not None
    restored = np.concatenate([train, test]).astype(np.float64) * scale.deviation + scale.mean
    np.testing.assert_allclose(np.sort(restored), np.sort(PRICE), rtol=1e-6)
    assert abs(test.mean()) > 1e-3


def test_the_mean_is_subtracted_before_float32(tmp_path: Path) -> None:
    """Seconds since 1970 that differ by seconds stay apart."""
    seconds = 1_700_000_000 + np.arange(60)
    train, test = get_targets(load(save(tmp_path, seconds)))
    assert len(np.unique(np.concatenate([train, test]))) == 60


def test_a_constant_target_is_0(tmp_path: Path) -> None:
    """Its deviation is 1."""
    data = load(save(tmp_path, np.full(60, 0.1)))
    assert data.scales.to_dict()["target"] == {"mean": 0.1, "deviation": 1.0}
    assert not np.concatenate(get_targets(data)).any()


@pytest.mark.parametrize("pooled", [True, False])
def test_arrays_are_scaled_too(tmp_path: Path, pooled: bool) -> None:
    """Of ``data=npz``, with a test set or without; the test set has the same scale."""
    arrays: dict[str, Any] = {"x_train": AGE[:, None], "y_train": PRICE}
    if not pooled:
        arrays |= {"x_test": AGE[:9, None], "y_test": PRICE[:9]}
    np.savez(tmp_path / "data.npz", **arrays)
    settings = NpzSettings(
        path=str(tmp_path / "data.npz"), regression=True, partition="iid", num_clients=3
    )
    data = load_data(settings, 1)
    train, _ = get_targets(data)
    np.testing.assert_allclose([train.mean(), train.std()], [0, 1], atol=1e-6)
    if not pooled:
        scale = data.scales.to_dict()["target"]
        expected = np.sort((PRICE[:9] - scale["mean"]) / scale["deviation"])
        np.testing.assert_allclose(np.sort(get_targets(data)[1]), expected, rtol=1e-5)


def test_held_out_clients_do_not_count(tmp_path: Path) -> None:
    """A client that never trains is new to the run, and so are its numbers."""
    far = np.where(np.arange(60) < 20, 1e9, PRICE)
    scales = [
        load(save(tmp_path, far), seed, holdout_client_fraction=0.34).scales for seed in range(1, 9)
    ]
    means = [one.to_dict()["target"]["mean"] for one in scales]
    assert min(means) < 1e6  # without the first client
    assert max(means) > 1e8  # with it


def test_a_scale_of_the_settings_replaces_the_statistics(tmp_path: Path) -> None:
    """It may come from published numbers, and makes targets with privacy possible."""
    data = load(save(tmp_path), target_scale=[400000, 150000])
    assert data.scales.to_dict()["target"] == {"mean": 400000, "deviation": 150000}
    expected = (PRICE - 400000) / 150000
    np.testing.assert_allclose(np.sort(np.concatenate(get_targets(data))), np.sort(expected), 1e-5)


def test_metrics_know_the_deviation(tmp_path: Path) -> None:
    """Metrics have the unit of the target; the loss has that of the scaled one."""
    path = save(tmp_path)
    overrides = f"data=csv data.path={path} data.client_column=site data.target=y"
    settings = compose_settings("custom", f"{overrides} data.regression=true").settings
    data = load_data(settings.data, settings.seed)
    task = build_task(settings, data)
    assert isinstance(task, SquaredError)
    assert task.deviation == data.scales.to_dict()["target"]["deviation"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "data.regression=true privacy=dp_fixed_server",
            "data.target_scale must be [mean, deviation] with privacy=dp_fixed_server",
        ),
        ("data.scaling=agreed privacy=dp_fixed_server", "data.scaling must be client with privacy"),
        (
            "data.target_scale=[1,2]",
            "data.target_scale must be null where data.regression is false",
        ),
        ("data.regression=true data.target_scale=[1,0]", "got [1.0, 0.0]"),
        ("data.regression=true data.target_scale=[1]", "got [1.0]"),
    ],
)
def test_settings_that_do_not_fit(words: str, message: str) -> None:
    """One line names the setting."""
    overrides = f"data=csv data.path=x.csv data.client_column=site data.target=y {words}"
    with pytest.raises(SettingsError) as caught:
        check_settings(compose_settings("custom", overrides).settings)
    assert message in str(caught.value)


def test_privacy_with_a_known_scale() -> None:
    """Published numbers cost no privacy."""
    overrides = (
        "data=csv data.path=x.csv data.client_column=site data.target=y strategy=average_all"
    )
    more = "data.regression=true data.target_scale=[1,2] privacy=dp_fixed_server"
    check_settings(compose_settings("custom", f"{overrides} {more}").settings)


def test_inputs_with_agreed_scales(tmp_path: Path) -> None:
    """All clients share mean and deviation; a missing number is the agreed mean."""
    dose = RNG.normal(5, 1, 60).round(2)
    dose[[3, 30]] = np.nan
    data = load(
        save(tmp_path, dose=dose, empty=["nan"] * 60),
        scaling="agreed",
        columns={"numbers": ["age", "dose"]},
    )
    assert data.scales.names == ("age", "dose")
    numbers = data.scales.numbers
    assert numbers is not None
    splits = [data.get_client(k) for k in range(3)]
    train = np.concatenate([one.x_train for one in splits])
    np.testing.assert_allclose(train[:, 0].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(train[:, 0].std(), 1, atol=1e-6)
    every = np.concatenate([train, *(one.x_test for one in splits)])
    expected = np.where(np.isnan(dose), numbers.mean[1], dose)
    restored = every[:, 1] * numbers.deviation[1] + numbers.mean[1]
    np.testing.assert_allclose(np.sort(restored), np.sort(expected), rtol=1e-6)
    own = load(save(tmp_path, dose=dose), columns={"numbers": ["age", "dose"]})
    means = [select_split(own.get_client(k), "train")[0][:, 0].mean() for k in range(3)]
    np.testing.assert_allclose(means, 0, atol=1e-6)


def test_other_units_at_a_site_are_a_doubt(tmp_path: Path) -> None:
    """Grams among kilograms, and prices in thousands, are named with the site and its mean."""
    weight = RNG.normal(70, 12, 60)
    weight[20:40] *= 1000
    price = PRICE.copy()
    price[40:] /= 1000
    path = save(tmp_path, price, weight=weight.round(1))
    target, number = load(path, scaling="agreed").summary.warnings
    assert "the mean of the target is far from the others' (31" in target
    assert " at c (3" in target
    assert "the mean of weight is far from the others' (6" in number
    assert " at b (7" in number
    similar = save(tmp_path, weight=RNG.normal(70, 12, 60))
    assert load(similar, seed=2, scaling="agreed").summary.warnings == ()


def test_scales_survive_json(tmp_path: Path) -> None:
    """The manifest keeps every bit, and a column without numbers."""
    sparse = ["nan"] * 60
    columns = {"numbers": ["age", "sparse"]}
    scales = load(save(tmp_path, sparse=sparse), scaling="agreed", columns=columns).scales
    given = scales.to_dict()
    assert given["numbers"]["sparse"] == {"mean": None, "deviation": None}
    assert AgreedScales.from_dict(given).to_dict() == given
    assert AgreedScales.from_dict(AgreedScales().to_dict()).to_dict() == AgreedScales().to_dict()
    for wrong in ({}, {"target": {"mean": 1.0}, "numbers": None}, {"target": 3, "numbers": None}):
        with pytest.raises(ValueError, match="scales"):
            AgreedScales.from_dict(wrong)
    with pytest.raises(ValueError, match="above 0"):
        AgreedScales.from_dict({"target": {"mean": 1.0, "deviation": 0.0}, "numbers": None})
