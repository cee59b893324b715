"""Settings that need more than the sum of the updates are refused with masks, with the reason."""

import re

import pytest
from fedquorum.errors import SettingsError
from fedquorum.flower.secure.settings import SecureAggregation
from fedquorum.rules.metrics import METRICS

from conf.compose import compose_overrides
from conf.options import options
from conf.schema.secure_sums import build_secure_aggregation, choose_num_nodes
from conf.schema.settings import Settings
from tests.builders import NEEDED_WORDS

MASKS = "secure_aggregation=masks"
SUPPORTED = {
    "average_all",
    "average_participating",
    "empirical",
    "fedau",
    "fedavg",
    "known_statistics",
}


def compose(*overrides: str) -> Settings:
    """Return the settings of FedAU on generated data, with these overrides."""
    return compose_overrides(("data=synth", "strategy=fedau", *overrides)).settings


def test_the_settings_of_masks() -> None:
    """By default there are none; the assumed shares have the defaults of the library."""
    assert build_secure_aggregation(compose()) is None
    assert build_secure_aggregation(compose(MASKS)) == SecureAggregation()
    shares = ("secure_aggregation.colluding=0.2", "secure_aggregation.dropping=0.05")
    assert build_secure_aggregation(compose(MASKS, *shares)) == SecureAggregation(0.2, 0.05)


@pytest.mark.parametrize(
    ("overrides", "clients", "nodes"),
    [
        ((), 40, None),
        ((MASKS,), 40, 10),
        ((MASKS,), 7, 7),
        ((MASKS, "engine.num_supernodes=25"), 40, 25),
        (("engine.num_supernodes=25",), 40, 25),
    ],
)
def test_the_number_of_simulated_nodes(
    overrides: tuple[str, ...], clients: int, nodes: int | None
) -> None:
    """One node alone cannot mask, and more than ten cost time."""
    assert choose_num_nodes(compose(*overrides), clients) == nodes


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("secure_aggregation=mask", "secure_aggregation must be one of masks, none"),
        (f"{MASKS} secure_aggregation.colluding=1", "secure_aggregation.colluding must be a"),
        ("secure_aggregation.dropping=0.2", "dropping is not a setting; .* =masks has it"),
        ("engine.num_supernodes=2", "engine.num_supernodes must be at least 3"),
        ("data.num_clients=2 data.num_priority=1", "data.num_clients must be at least 3"),
        ("response_time=lognormal", "response_time must be none"),
        ("engine.late_replies=count", "engine.late_replies must be discard"),
        ("engine.partial_aggregation=false", "engine.partial_aggregation must be true"),
        ("robustness.clip_norm=1", "robustness.clip_norm must be null"),
        ("robustness.max_weight=1", "robustness.max_weight must be null"),
        (
            "strategy=average_all privacy=dp_fixed_server",
            "privacy must be one of none, dp_fixed_client, .* cannot clip an update",
        ),
        ("data.holdout_client_fraction=0.2", "data.holdout_client_fraction must be 0"),
        (
            "data=csv data.path=a.csv data.target=y data.client_column=c data.scaling=agreed",
            "data.scaling must be",
        ),
        (
            "data=npz data.path=a.npz data.regression=true data.num_clients=5",
            "data.target_scale must be",
        ),
        ("evaluation.metric=auroc", "evaluation.metric must be one of accuracy, "),
        ("evaluation.requirement=0.5", "evaluation.requirement must be null"),
        ("evaluation.alone_epochs=2", "evaluation.alone_epochs must be 0"),
        (
            "evaluation.finetune_epochs=[1,2] data.validation_fraction=0.2",
            "evaluation.finetune_epochs must be 0",
        ),
    ],
)
def test_what_needs_more_than_a_sum_is_refused(override: str, message: str) -> None:
    """The line names the setting as one types it, what is allowed, why, and what was given."""
    with pytest.raises(SettingsError, match=message.replace(" =", ".*=")) as refused:
        compose(*([] if override.startswith("secure") else [MASKS]), *override.split())
    assert re.search(r", got \S|\(did you mean masks\?\)", str(refused.value))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "override", ["privacy=dp_fixed_client", "privacy=dp_adaptive_client", "engine.quorum=0.8"]
)
def test_what_a_sum_is_enough_for_is_allowed(override: str) -> None:
    """Clipping on the node, and a round that closes early."""
    compose(MASKS, "strategy=average_all", override)


@pytest.mark.parametrize("metric", METRICS)
def test_every_client_has_a_metric(metric: str) -> None:
    """Others would tell whose test rows are of one class."""
    overrides = (MASKS, f"evaluation.metric={metric}")
    if metric not in ("auroc", "average_precision", "r2"):
        assert compose(*overrides).evaluation.metric == metric
        return
    with pytest.raises(SettingsError, match=r"evaluation.metric .* would learn which\), got '"):
        compose(*overrides)


@pytest.mark.parametrize("strategy", sorted({*options("strategy")} - {"custom"}))
def test_rules_that_need_more_than_a_sum_are_refused(strategy: str) -> None:
    """With the reason that the rule declares."""
    words = (f"strategy={strategy}", *NEEDED_WORDS.get(strategy, ()), MASKS)
    if strategy in SUPPORTED:
        assert compose(*words).secure_aggregation.name == "masks"
        return
    start = f"secure_aggregation must be none with strategy={strategy} ("
    with pytest.raises(SettingsError, match=re.escape(start)) as refused:
        compose(*words)
    assert str(refused.value).endswith("), got masks")
