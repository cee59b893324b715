"""The constants of the baselines in AAggFF's experiments, as their authors set them."""

import pytest

from conf.compose import compose_settings

PARAMETERS = {
    "afl": "step_size",
    "qfedavg": "q",
    "term": "tilt",
    "propfair": "bound",
    "fedmgda": "max_deviation",
}
CONSTANTS = {
    ("berka", "heart"): (0.01, 1.0, 0.1, 3.0, 1.0),
    ("mqp",): (0.01, 0.1, 0.1, 2.0, 0.1),
    ("isic",): (0.01, 0.1, 0.1, 3.0, 0.5),
    ("celeba", "mnist_writers"): (0.1, 0.1, 0.1, 2.0, 0.5),
    ("reddit", "shakespeare"): (0.01, 1.0, 1.0, 2.0, 0.5),
    ("speech", "spoken_digits"): (0.1, 0.1, 0.1, 3.0, 0.5),
}


@pytest.mark.parametrize(
    ("experiment", "strategy", "value"),
    [
        (experiment, strategy, value)
        for experiments, values in CONSTANTS.items()
        for experiment in experiments
        for strategy, value in zip(PARAMETERS, values, strict=True)
    ],
)
def test_presets_have_the_authors_constants(experiment: str, strategy: str, value: float) -> None:
    """Stand-ins have those of the original data, heart disease those of Berka."""
    composed = compose_settings(f"aaggff/{experiment}", f"strategy={strategy}")
    assert getattr(composed.settings.strategy, PARAMETERS[strategy]) == value


def test_the_users_value_overrides_the_constant() -> None:
    """It is given on the command line."""
    composed = compose_settings("aaggff/mqp", "strategy=term strategy.tilt=2")
    assert vars(composed.settings.strategy)["tilt"] == 2
