"""From settings to the parts of a run."""

from pathlib import Path

import pytest

from conf import SettingsError
from conf.compose import compose_words
from server_app.build import build_strategy
from server_app.command_line import run_in_process
from strategies import Population, Robustness


@pytest.mark.parametrize("strategy", ["fedvarp", "mifa"])
def test_a_memory_that_cannot_be_written(tmp_path: Path, strategy: str) -> None:
    """It is told before anything is made, with the setting and the folder."""
    (tmp_path / "file").write_text("")
    words = (f"strategy={strategy}", f"strategy.memory_dir={tmp_path}/file/memory")
    with pytest.raises(SettingsError, match=r"strategy\.memory_dir must be a folder .* got .*file"):
        run_in_process(compose_words(words), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_bounds_reach_the_strategy() -> None:
    """What the settings bound is what the strategy bounds."""
    words = ("robustness.clip_norm=2.5", "robustness.max_weight=0.25", "strategy=fedau")
    strategy = build_strategy(
        compose_words(words).settings, Population((0, 1), frozenset({0})), None
    )
    assert strategy.communication.robustness == Robustness(2.5, 0.25)
    with pytest.raises(SettingsError, match=r"robustness\.max_weight must be a number > 0, got 0"):
        compose_words(("robustness.max_weight=0",))
