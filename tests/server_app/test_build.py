"""From settings to the parts of a run."""

from pathlib import Path

import numpy as np
import pytest
from fedquorum import ComposedStrategy, Population, Robustness
from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.composition import RuleSet
from fedquorum.named import ALL_WEIGHTINGS, NAMED_STRATEGIES, build_rules
from fedquorum.rule import RunContext
from fedquorum.selection import Sampling
from fedquorum.weighting import TERMWeighting

from conf import SettingsError
from conf.compose import compose_overrides
from server_app.build import build_strategy
from tests.builders import NEEDED_WORDS
from tests.builders_runs import run_here

HERE = "tests.server_app.test_build"
NUMBER = 3


def no_rule() -> int:
    """Make something that is no weighting rule."""
    return NUMBER


def built(*words: str, clients: int = 4, rates: list[float] | None = None) -> ComposedStrategy:
    """Return the strategy of these words, for so many clients."""
    known = None if rates is None else ParticipationRates(np.array(rates))
    return build_strategy(compose_overrides(words).settings, Population.from_size(clients), known)


def custom_rules(path: str, args: str = "{}") -> RuleSet:
    """Return the rules of a custom weighting, on half of the clients."""
    rule = ("strategy=custom", f"strategy.path={path}", f"strategy.args={args}")
    return built(*rule, "strategy.fraction=0.5", "strategy.server_lr=0.25", "seed=9").rules


@pytest.mark.parametrize("strategy", ["fedvarp", "mifa"])
def test_a_memory_that_cannot_be_written(tmp_path: Path, strategy: str) -> None:
    """It is told before anything is made, with the setting and the folder."""
    (tmp_path / "file").write_text("")
    words = (f"strategy={strategy}", f"strategy.memory_dir={tmp_path}/file/memory")
    with pytest.raises(SettingsError, match=r"strategy\.memory_dir must be a folder .* got .*file"):
        run_here(tmp_path / "run", *words)
    assert not (tmp_path / "run").exists()


def test_a_memory_is_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative one is below the working directory, and is made."""
    monkeypatch.chdir(tmp_path)
    memory = built("strategy=mifa", "strategy.memory_dir=kept").rules.memory
    assert memory is not None
    assert memory.memory_dir == str(tmp_path / "kept")
    assert (tmp_path / "kept").is_dir()


def test_bounds_reach_the_strategy() -> None:
    """What the settings bound is what the strategy bounds."""
    bounds = ("robustness.clip_norm=2.5", "robustness.max_weight=0.25")
    strategy = built(*bounds, "strategy=fedau", clients=2)
    assert strategy.communication.robustness == Robustness(2.5, 0.25)
    with pytest.raises(SettingsError, match=r"robustness\.max_weight must be a number > 0, got 0"):
        compose_overrides(("robustness.max_weight=0",))


@pytest.mark.parametrize("name", NAMED_STRATEGIES)
def test_a_strategy_is_what_the_library_makes_of_its_settings(name: str) -> None:
    """The settings, the run's rounds and seed, the clients and their rates, and nothing else."""
    rates = [0.5, 0.25, 1.0, 0.125]
    facts = RunContext(7, 9, dict(enumerate(rates)), (0, 1, 2, 3))
    options = (
        {"requirement": 1}
        if "requirement" in NAMED_STRATEGIES[name].weighting.required_options
        else {}
    )
    expected = build_rules({"name": name, **options}, {"name": "sgd"}, facts)
    needed = NEEDED_WORDS.get(name, ())
    words = ("experiment=custom", f"strategy={name}", "rounds=7", "seed=9", *needed)
    assert built(*words, rates=rates).rules == expected


@pytest.mark.parametrize("path", ["fedquorum.weighting.TiltedLoss", "{folder}/rules.py:Tilted"])
def test_a_custom_rule_is_built_by_its_path(tmp_path: Path, path: str) -> None:
    """With its arguments, and what all strategies have that sample clients."""
    (tmp_path / "rules.py").write_text("from fedquorum.weighting import TERMWeighting as Tilted\n")
    rules = custom_rules(path.format(folder=tmp_path), "{tilt: 2.0}")
    assert rules.weighting == TERMWeighting(2.0)
    assert rules.selection.sampling == Sampling(0.5, None, 9)
    assert rules.server_optimizer.learning_rate == 0.25


def test_custom_parts_are_built_by_their_paths() -> None:
    """A selection gets the sampling, a server optimizer the learning rate."""
    rules = built(
        "strategy=composed",
        "strategy/selection=custom",
        "strategy.selection.path=fedquorum.selection.Everyone",
        "strategy/weighting=custom",
        "strategy.weighting.path=fedquorum.weighting.TiltedLoss",
        "server_optimizer=custom",
        "server_optimizer.path=fedquorum.server_optimizer.Momentum",
        "server_optimizer.args={momentum: 0.5}",
        "strategy.server_lr=0.125",
        "strategy.fraction=0.75",
        "seed=2",
    ).rules
    whole = built(
        "strategy=composed",
        "strategy/selection=everyone",
        "strategy/weighting=term",
        "server_optimizer=momentum",
        "server_optimizer.momentum=0.5",
        "strategy.server_lr=0.125",
        "strategy.fraction=0.75",
        "seed=2",
    ).rules
    assert rules == whole


PATH = "strategy.path must be the import path of a fedquorum Weighting, such as package.module."


@pytest.mark.parametrize(
    ("path", "args", "begin", "end"),
    [
        ("no.such.Rule", "{}", f"{PATH}Class or ", "(No module named 'no'), got 'no.such.Rule'"),
        (f"{HERE}.NUMBER", "{}", PATH, f"(it is a int), got '{HERE}.NUMBER'"),
        (f"{HERE}.no_rule", "{}", PATH, f"(it makes int), got '{HERE}.no_rule'"),
        (f"{HERE}.no_rul", "{}", PATH, f"did you mean no_rule?), got '{HERE}.no_rul'"),
        ("./nowhere.py:Rule", "{}", PATH, "nowhere.py), got './nowhere.py:Rule'"),
        (
            "fedquorum.weighting.TiltedLoss",
            "{tilt: fast}",
            "strategy.args must be arguments of fedquorum.weighting.TiltedLoss (tilt must be ",
            "got {'tilt': 'fast'}",
        ),
        (
            "fedquorum.weighting.TiltedLoss",
            "{tlit: 1}",
            "strategy.args must be arguments of fedquorum.weighting.TiltedLoss (",
            "got {'tlit': 1}",
        ),
    ],
)
def test_what_is_no_rule(path: str, args: str, begin: str, end: str) -> None:
    """One line that names the setting, what is wanted there and what was given."""
    with pytest.raises(SettingsError) as caught:
        custom_rules(path, args)
    assert str(caught.value).startswith(begin)
    assert str(caught.value).endswith(end)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_a_part_names_the_part() -> None:
    """Of two custom parts the one that has the value, and a part by its group."""
    words = (
        "strategy=composed",
        "strategy/selection=custom",
        "strategy.selection.path=fedquorum.selection.Everyone",
        "strategy/weighting=custom",
        "strategy.weighting.path=fedquorum.weighting.Nothing",
    )
    with pytest.raises(SettingsError, match=r"^strategy\.weighting\.path must be .*Nothing'$"):
        built(*words)
    parts = ("strategy=composed", "strategy/selection=alone", "strategy/weighting=term")
    with pytest.raises(SettingsError, match=r"^strategy/selection must be alone where the weight"):
        compose_overrides(parts)


def test_a_custom_rule_is_imported_before_any_data(tmp_path: Path) -> None:
    """So its mistake is told first, where the data is missing too."""
    words = ("strategy=custom", "strategy.path=no.such.Rule", "data=npz", "data.path=nowhere.npz")
    with pytest.raises(SettingsError, match=r"^strategy\.path must be "):
        run_here(tmp_path / "run", *words)


def test_a_custom_rule_without_a_bound_is_not_private() -> None:
    """Its own word is taken for it, once it is imported."""
    words = ("privacy=dp_fixed_server", "strategy=custom")
    with pytest.raises(SettingsError, match=r"none with strategy=custom \(losses decide"):
        built(*words, "strategy.path=fedquorum.weighting.TiltedLoss")
    rules = built(*words, "strategy.path=fedquorum.weighting.AverageAll").rules
    assert rules.compute_max_share(4) == 0.25


@pytest.mark.parametrize("given", ["null", "[0.5, 0.5]", "[0.5, 2.0, 0.5, 0.5]", "{0: 0.5}"])
def test_rates_that_are_not_given_are_refused(given: str) -> None:
    """One line with the setting, of the strategy and of a part."""
    for place, words in (
        ("strategy", ("strategy=known_statistics",)),
        (
            "strategy.participation",
            (
                "strategy=composed",
                "strategy/selection=everyone",
                "strategy/weighting=average_all",
                "strategy/participation=known_statistics",
            ),
        ),
    ):
        with pytest.raises(SettingsError) as caught:
            built(*words, f"{place}.probabilities={given}")
        assert str(caught.value).startswith(f"{place}.probabilities")
        assert "None" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_every_weighting_is_a_part() -> None:
    """By its key, with its own defaults."""
    for key, rule in ALL_WEIGHTINGS.items():
        selection = "everyone" if rule.aggregates else "alone"
        parts = [f"strategy/selection={selection}", f"strategy/weighting={key}"]
        requires = "requirement" in rule.required_options
        parts += ["strategy.weighting.requirement=1"] if requires else []
        expected = rule.from_options({"requirement": 1} if requires else {}, RunContext())
        assert built("strategy=composed", *parts).rules.weighting == expected
