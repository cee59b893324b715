"""Tests that the suite composes settings as Hydra itself does."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from omegaconf import OmegaConf

from conf.compose import _compose_config
from conf.options import options
from tests import faster_hydra
from tests.cases import sample_cases


@contextmanager
def hydra_alone() -> Iterator[None]:
    """Use Hydra's own functions for a while."""
    faster_hydra.uninstall()
    try:
        yield
    finally:
        faster_hydra.install()


@pytest.mark.slow
@pytest.mark.parametrize("experiment", sample_cases(options("experiment"), 12, seed=1))
def test_settings_are_hydras(experiment: str) -> None:
    """Each experiment, with a composed strategy beside its own."""
    for overrides in ((), ("strategy=composed", "strategy/weighting=qfedavg")):
        words = (f"experiment={experiment}", *overrides)
        ours = OmegaConf.to_yaml(_compose_config(words))
        with hydra_alone():
            assert OmegaConf.to_yaml(_compose_config(words)) == ours
