"""Test how the parts of a run are build from its settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy, Population, Robustness
from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.registry import ALL_WEIGHTINGS, NAMED_STRATEGIES, build_rules
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection import Sampling
from fedquorum.rules.weighting import TERMWeighting

from conf import SettingsError
from conf.compose import compose_overrides
from server_app.runs.build import build_strategy
from tests.builders import NEEDED_WORDS
from tests.builders_runs import make_client_overrides, run_here

HERE = "tests.server_app.runs.test_build"
NUMBER = 3


def build_number() -> int:
    """Return a number, which is not a weighting rule."""
    return NUMBER


def build(*overrides: str, clients: int = 4, rates: list[float] | None = None) -> ComposedStrategy:
    """Build the strategy of these overrides for a number of clients."""
    composed = compose_overrides(overrides)
    known_rates = None if rates is None else ParticipationRates(np.array(rates))
    return build_strategy(composed, Population.from_size(clients), known_rates)


def build_custom_rules(path: str, args: str = "{}") -> RuleSet:
    """Build the rules of a custom weighting, with half of the clients sampled."""
    rule = ("strategy=custom", f"strategy.path={path}", f"strategy.args={args}")
    return build(*rule, "strategy.fraction=0.5", "strategy.server_lr=0.25", "seed=9").rules


@pytest.mark.parametrize("strategy", ["fedvarp", "mifa"])
def test_a_memory_folder_that_cannot_be_written_is_refused(tmp_path: Path, strategy: str) -> None:
    """The error names the setting and the folder, and comes before the run's folder is created."""
    (tmp_path / "file").write_text("")
    overrides = (f"strategy={strategy}", f"strategy.memory_dir={tmp_path}/file/memory")
    with pytest.raises(SettingsError, match=r"strategy\.memory_dir must be a folder .* got .*file"):
        run_here(tmp_path / "run", *overrides)
    assert not (tmp_path / "run").exists()


def test_a_relative_memory_folder_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is created in the working directory, and the strategy gets its absolute path."""
    monkeypatch.chdir(tmp_path)
    memory = build("strategy=mifa", "strategy.memory_dir=memory").rules.memory
    assert memory is not None
    assert memory.memory_dir == str(tmp_path / "memory")
    assert (tmp_path / "memory").is_dir()


def test_robustness_settings_reach_the_strategy() -> None:
    """The strategy has both bounds of the settings, and a bound of 0 is refused."""
    bounds = ("robustness.clip_norm=2.5", "robustness.max_weight=0.25")
    strategy = build(*bounds, "strategy=fedau", clients=2)
    assert strategy.communication.robustness == Robustness(2.5, 0.25)
    with pytest.raises(SettingsError, match=r"robustness\.max_weight must be a number > 0, got 0"):
        compose_overrides(("robustness.max_weight=0",))


@pytest.mark.parametrize("name", NAMED_STRATEGIES)
def test_a_strategy_equals_the_librarys_with_the_same_settings(name: str) -> None:
    """Its rules depend on nothing but settings, rounds, seed, clients and their rates."""
    rates = [0.5, 0.25, 1.0, 0.125]
    facts = RunContext(7, 9, dict(enumerate(rates)), (0, 1, 2, 3))
    options = (
        {"requirement": 1}
        if "requirement" in NAMED_STRATEGIES[name].weighting.description.required_options
        else {}
    )
    expected = build_rules({"name": name, **options}, {"name": "sgd"}, facts)
    needed = NEEDED_WORDS.get(name, ())
    overrides = ("experiment=custom", f"strategy={name}", "rounds=7", "seed=9", *needed)
    assert build(*overrides, rates=rates).rules == expected


@pytest.mark.parametrize(
    "path", ["fedquorum.rules.weighting.TERMWeighting", "{folder}/rules.py:Tilted"]
)
def test_a_custom_rule_is_built_by_its_path(tmp_path: Path, path: str) -> None:
    """The rule gets its arguments, and the strategy the settings of all that sample clients."""
    (tmp_path / "rules.py").write_text(
        "from fedquorum.rules.weighting import TERMWeighting as Tilted\n"
    )
    rules = build_custom_rules(path.format(folder=tmp_path), "{tilt: 2.0}")
    assert rules.weighting == TERMWeighting(2.0)
    assert rules.selection.sampling == Sampling(0.5, None, 9)
    assert rules.server_optimizer.learning_rate == 0.25


def test_custom_parts_are_built_by_their_paths() -> None:
    """A selection gets the sampling, and a server optimizer gets the learning rate."""
    rules = build(
        "strategy=composed",
        "strategy/selection=custom",
        "strategy.selection.path=fedquorum.rules.selection.AllClients",
        "strategy/weighting=custom",
        "strategy.weighting.path=fedquorum.rules.weighting.TERMWeighting",
        "server_optimizer=custom",
        "server_optimizer.path=fedquorum.rules.server_optimizer.Momentum",
        "server_optimizer.args={momentum: 0.5}",
        "strategy.server_lr=0.125",
        "strategy.fraction=0.75",
        "seed=2",
    ).rules
    expected = build(
        "strategy=composed",
        "strategy/selection=everyone",
        "strategy/weighting=term",
        "server_optimizer=momentum",
        "server_optimizer.momentum=0.5",
        "strategy.server_lr=0.125",
        "strategy.fraction=0.75",
        "seed=2",
    ).rules
    assert rules == expected


@pytest.mark.parametrize(
    ("overrides", "builds"),
    [
        (("strategy=fedalign",), 1),
        (("strategy=fedvarp", "strategy.memory_dir=memory"), 1),
        (("strategy=fedawe", "strategy.memory_dir=memory"), 1),
        # These take values from the clients, after whose rates a check without them came.
        (("strategy=known_statistics",), 2),
        (("strategy=custom", "strategy.path=fedquorum.rules.weighting.TERMWeighting"), 2),
    ],
)
def test_rules_are_built_once_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], builds: int
) -> None:
    """The check of the settings builds the rules, and the run uses them."""
    built: list[RuleSet] = []

    def build_and_note(*arguments: Any) -> RuleSet:
        built.append(build_rules(*arguments))
        return built[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("conf.schema.rules.build_rules", build_and_note)
    monkeypatch.setattr("conf.compose._composed_configs", {})
    run_here(tmp_path / "run", "rounds=2", *make_client_overrides(4, 2), *overrides)
    assert len(built) == builds


PATH = "strategy.path must be the import path of a fedquorum Weighting, such as package.module."


@pytest.mark.parametrize(
    ("path", "args", "begin", "end"),
    [
        ("no.such.Rule", "{}", f"{PATH}Class or ", "(No module named 'no'), got 'no.such.Rule'"),
        (f"{HERE}.NUMBER", "{}", PATH, f"(it is a int), got '{HERE}.NUMBER'"),
        (f"{HERE}.build_number", "{}", PATH, f"(it makes int), got '{HERE}.build_number'"),
        (f"{HERE}.build_numbr", "{}", PATH, f"build_number?), got '{HERE}.build_numbr'"),
        ("./nowhere.py:Rule", "{}", PATH, "nowhere.py), got './nowhere.py:Rule'"),
        (
            "fedquorum.rules.weighting.TERMWeighting",
            "{tilt: fast}",
            "strategy.args must be arguments of fedquorum.rules.weighting.TERMWeighting (tilt",
            "got {'tilt': 'fast'}",
        ),
        (
            "fedquorum.rules.weighting.TERMWeighting",
            "{tlit: 1}",
            "strategy.args must be arguments of fedquorum.rules.weighting.TERMWeighting (",
            "got {'tlit': 1}",
        ),
    ],
)
def test_an_invalid_custom_rule_is_refused(path: str, args: str, begin: str, end: str) -> None:
    """The error is one line with the setting, the allowed value and the given one."""
    with pytest.raises(SettingsError) as caught:
        build_custom_rules(path, args)
    assert str(caught.value).startswith(begin)
    assert str(caught.value).endswith(end)
    assert "\n" not in str(caught.value)


def test_an_error_in_a_part_names_the_part() -> None:
    """With two custom parts, the error names the one with the wrong value."""
    overrides = (
        "strategy=composed",
        "strategy/selection=custom",
        "strategy.selection.path=fedquorum.rules.selection.AllClients",
        "strategy/weighting=custom",
        "strategy.weighting.path=fedquorum.rules.weighting.Nothing",
    )
    with pytest.raises(SettingsError, match=r"^strategy\.weighting\.path must be .*Nothing'$"):
        build(*overrides)
    parts = ("strategy=composed", "strategy/selection=epsilon_gate", "strategy/weighting=aaggff_s")
    with pytest.raises(
        SettingsError, match=r"^strategy/selection must be everyone with the weight"
    ):
        compose_overrides(parts)


def test_a_custom_rule_is_imported_before_any_data(tmp_path: Path) -> None:
    """If its path is wrong and the data is missing too, the error is about the path."""
    overrides = (
        "strategy=custom",
        "strategy.path=no.such.Rule",
        "data=npz",
        "data.path=no.npz",
    )
    with pytest.raises(SettingsError, match=r"^strategy\.path must be "):
        run_here(tmp_path / "run", *overrides)


def test_a_custom_rule_without_a_bound_is_not_private() -> None:
    """A custom rule declares its bound itself, which is known once it is imported."""
    overrides = ("privacy=dp_fixed_server", "strategy=custom")
    with pytest.raises(SettingsError, match=r"none with strategy=custom \(losses decide"):
        build(*overrides, "strategy.path=fedquorum.rules.weighting.TERMWeighting")
    rules = build(*overrides, "strategy.path=fedquorum.rules.weighting.AverageAll").rules
    assert rules.compute_max_share(4) == 0.25


@pytest.mark.parametrize("given", ["null", "[0.5, 0.5]", "[0.5, 2.0, 0.5, 0.5]", "{0: 0.5}"])
def test_missing_or_wrong_rates_are_refused(given: str) -> None:
    """The error is one line with the setting, both for a strategy and for a part."""
    for prefix, overrides in (
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
            build(*overrides, f"{prefix}.probabilities={given}")
        assert str(caught.value).startswith(f"{prefix}.probabilities")
        assert "None" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_every_weighting_can_be_a_part() -> None:
    """A part is chosen by its key, and has the defaults of the weighting."""
    for key, rule in ALL_WEIGHTINGS.items():
        parts = ["strategy/selection=everyone", f"strategy/weighting={key}"]
        requires = "requirement" in rule.description.required_options
        parts += ["strategy.weighting.requirement=1"] if requires else []
        expected = rule.from_options({"requirement": 1} if requires else {}, RunContext())
        assert build("strategy=composed", *parts).rules.weighting == expected


PRIORITY = ("engine.quorum_clients=priority", "strategy.warmup_fraction=0")
OF_CLIENTS, OF_ROUND = "the number of clients,", "the number of clients that a round asks,"
OF_PRIORITY = "the number of priority clients that a round asks,"


@pytest.mark.parametrize(
    ("overrides", "quorum", "limit", "what"),
    [
        (("strategy=fedavg",), 11, 10, OF_CLIENTS),
        (("strategy=fedalign",), 99, 10, OF_CLIENTS),
        (("strategy=fedavg", "strategy.fraction=0.5"), 6, 5, OF_ROUND),
        (("strategy=fedalign", "strategy.fraction=0.5"), 6, 5, OF_ROUND),
        (("strategy=fedalign", *PRIORITY), 5, 4, OF_PRIORITY),
        (("strategy=fedalign", "strategy.fraction=0.5", *PRIORITY), 3, 2, OF_PRIORITY),
    ],
)
def test_a_quorum_that_no_round_can_have_is_refused(
    overrides: tuple[str, ...], quorum: int, limit: int, what: str
) -> None:
    """It would silently mean all replies; the largest one that a round can have is allowed."""
    population = Population(tuple(range(10)), frozenset(range(4)))

    def build_with(size: float) -> ComposedStrategy:
        composed = compose_overrides((*overrides, f"engine.quorum={size}"))
        return build_strategy(composed, population, None)

    with pytest.raises(SettingsError) as caught:
        build_with(quorum)
    assert str(caught.value) == (
        f"engine.quorum must be at most {limit}, {what} got {quorum} (null waits for all replies, "
        "0.8 for 80 % of them)"
    )
    build_with(limit)
    build_with(0.99)


def test_a_quorum_that_some_round_can_have_is_allowed() -> None:
    """A round without an available priority client counts all others."""
    population = Population(tuple(range(10)), frozenset({0}))
    words = ("strategy=fedalign", *PRIORITY, "engine.quorum=3")
    with pytest.raises(SettingsError, match=r"engine\.quorum must be at most 1, the"):
        build_strategy(compose_overrides(words), population, None)
    known = ("availability=bernoulli", "availability.p=0.5")
    build_strategy(compose_overrides((*words, *known)), population, None)
