"""From settings to the parts of a run."""

from pathlib import Path
from typing import Any

import pytest

from conf import SettingsError
from conf.compose import compose_words
from server_app.build import build_strategy
from server_app.job import run_in_process
from strategies import ComposedStrategy, Population, Robustness
from strategies.parameters import ParameterError
from strategies.weighting import TERM

HERE = "tests.server_app.test_build"
NUMBER = 3


def no_rule() -> int:
    """Make something that is no weighting rule."""
    return NUMBER


class Picky:
    """A rule that checks its parameter."""

    def __init__(self, power: float) -> None:
        if power < 0:
            raise ParameterError(f"power must be a number >= 0, got {power}")


def own_rule(path: str, args: str = "{}") -> ComposedStrategy[Any]:
    rule = ("strategy=own", f"strategy.path={path}", f"strategy.args={args}")
    other = ("strategy.fraction=0.5", "strategy.server_lr=0.25", "seed=9")
    return build_strategy(compose_words((*rule, *other)).settings, Population.of(4), None)


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


def test_a_rule_of_ones_own_is_built_by_its_path() -> None:
    """With its arguments, and what all strategies have that sample clients."""
    strategy = own_rule("strategies.weighting.TERM", "{tilt: 2.0}")
    assert strategy.weighting == TERM(2.0)
    assert "Sampling(fraction=0.5, priority_draws=None, seed=9)" in repr(strategy.selection)
    assert "0.25" in repr(strategy.server_optimizer)


@pytest.mark.parametrize(
    ("path", "args", "message"),
    [
        ("no.such.Rule", "{}", r"strategy\.path must be .*, got 'no\.such\.Rule': No module named"),
        (f"{HERE}.NUMBER", "{}", r"strategy\.path must be .*NUMBER', which is int"),
        (f"{HERE}.no_rule", "{}", r"strategies.weighting.Weighting.*no_rule', which makes int"),
        (f"{HERE}.Picky", "{}", r"strategy\.args must be arguments of .*Picky, got {}: .*missing"),
        (
            f"{HERE}.Picky",
            "{power: -1}",
            r"strategy\.args must .*power must be a number >= 0, got -1",
        ),
    ],
)
def test_what_is_no_rule(path: str, args: str, message: str) -> None:
    """One line that names the setting, what is wanted there and what was given."""
    with pytest.raises(SettingsError, match=message) as caught:
        own_rule(path, args)
    assert "\n" not in str(caught.value)
