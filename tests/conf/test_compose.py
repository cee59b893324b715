"""Composing settings: every preset works, every mistake is one line."""

import math
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from conf import SettingsError, compose_settings
from conf.compose import (
    GROUPS,
    PARTS,
    ComposedConfig,
    _composed_configs,
    complete_overrides,
    compose_job,
    compose_overrides,
    options,
    settings_from_yaml,
    split_overrides,
)


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_composes(experiment: str) -> None:
    """Each preset is complete, with the strategy of its family."""
    composed = compose_settings(experiment)
    assert composed.experiment == experiment
    family = experiment.partition("/")[0].replace("custom", "fedalign")
    family = family.replace("power_of_choice", "composed")
    assert composed.settings.strategy.name.startswith(family)


# One of each family: the first has a value that every strategy must know.
@pytest.mark.parametrize("experiment", ["fedalign/fmnist_partial", "fedau/fmnist", "aaggff/heart"])
@pytest.mark.parametrize("strategy", options("strategy"))
def test_every_strategy_composes_with_any_experiment(experiment: str, strategy: str) -> None:
    """A preset's values for one strategy do not prevent comparing another."""
    overrides = f"strategy={strategy}"
    overrides += " strategy.path=package.Rule" if strategy == "custom" else ""
    if strategy == "aaggff_s" and experiment == "fedalign/fmnist_partial":
        with pytest.raises(SettingsError, match=r"^strategy\.fraction must be 1 for AAggFF-S"):
            compose_settings(experiment, overrides)
        overrides += " strategy.fraction=1"
    assert compose_settings(experiment, overrides).settings.strategy.name == strategy


def test_the_default_experiment() -> None:
    """It is FedALIGN on SYNTH(1,1), low additive noise, 20 clients, 10 with priority."""
    settings = compose_settings().settings
    assert settings.strategy.name == "fedalign"
    assert asdict(settings.strategy)["epsilon"] == 0.2
    data = settings.data
    assert (data.name, data.num_clients, data.num_priority) == ("synth", 20, 10)
    assert (settings.seed, settings.rounds) == (1, 200)


@pytest.mark.parametrize(
    ("overrides", "experiment"),
    [
        ("", "fedalign/synth_low"),
        ("rounds=3 strategy=fedavg", "fedalign/synth_low"),
        ("data=synth", "fedalign/synth_low"),
        ("data.noise=flip", "fedalign/synth_low"),
        ("data=csv data.path=x data.target=y", "custom"),
        ("rounds=3 data=npz data.path=x", "custom"),
        ("data=hf data.path=x", "custom"),
        ("data=fmnist", "custom"),
        ("data=fmnist experiment=fedau/fmnist", "fedau/fmnist"),
        ("experiment=fedalign/cifar10 data=npz data.path=x", "fedalign/cifar10"),
    ],
)
def test_other_data_has_no_preset(overrides: str, experiment: str) -> None:
    """SYNTH's preset is for SYNTH: batches of 10 and a warm-up suit no other data by chance."""
    composed = compose_settings(overrides=overrides)
    assert composed.experiment == experiment
    assert composed.settings == compose_settings(experiment, overrides).settings
    for item in ("experiment=fedalign/synth_low", "experiment=custom"):
        assert item not in composed.overrides
    with compose_job(tuple(overrides.split())) as config:
        assert config.hydra.runtime.choices.experiment == experiment


def test_an_experiment_is_chosen_among_other_settings() -> None:
    """Argparse refuses settings before and after flags."""
    arguments = ("-m", "data=csv", "seed=1,2", "--cfg", "job")
    assert complete_overrides(arguments) == (
        "-m",
        "experiment=custom",
        "data=csv",
        "seed=1,2",
        "--cfg",
        "job",
    )


def test_replacements_add_up() -> None:
    """Each warning about a table prints one to type; of the same value, the last holds."""
    words = "data=csv data.path=x data.target=y data.client_column=c"
    given = "'data.replace={y: {YES: yes, n: 1}}' data.replace=[[c,a,b],[y,n,0]] seed=1"
    composed = compose_settings("", f"{words} {given}")
    merged = [["y", "YES", "yes"], ["y", "n", 0], ["c", "a", "b"]]
    assert getattr(composed.settings.data, "replace") == merged  # noqa: B009 - of one option
    with pytest.raises(SettingsError, match=r"data\.replace must be a mapping such as"):
        compose_settings("", f"{words} data.replace=3 data.replace=4")


def test_presets_have_the_papers_values() -> None:
    """Epsilon is 0.2, 0.2 and 0.4 for the noise levels; Fashion-MNIST has 0.2, then 0."""
    epsilons = {}
    for level in ("low", "medium", "high"):
        strategy = compose_settings(f"fedalign/synth_{level}").settings.strategy
        epsilons[level] = asdict(strategy)["epsilon"]
    assert epsilons == {"low": 0.2, "medium": 0.2, "high": 0.4}
    fmnist = compose_settings("fedalign/fmnist").settings
    gate = asdict(fmnist.strategy)
    assert (gate["criterion"], gate["epsilon_schedule"]) == ("accuracy", "step")
    assert (fmnist.data.num_clients, fmnist.data.num_priority) == (60, 2)
    assert (fmnist.client.lr, fmnist.client.local_epochs) == (0.1, 5)


@pytest.mark.slow
def test_synth_other_has_the_settings_of_its_chapter() -> None:
    """The preset names the settings that the chapter of the book evaluates."""
    for strategy in ("fedalign", "fedavg_priority", "fedavg"):
        preset = compose_settings("fedalign/synth_other", f"strategy={strategy}")
        overrides = f"strategy={strategy} data.alpha=0.5 data.beta=0.5"
        assert preset.settings == compose_settings("fedalign/synth_low", overrides).settings


def test_overrides_win_over_the_preset() -> None:
    """The command line has precedence."""
    strategy = compose_settings("fedalign/synth_high", "strategy.epsilon=inf").settings.strategy
    assert math.isinf(asdict(strategy)["epsilon"])
    assert compose_settings("", "strategy=fedavg").settings.strategy.name == "fedavg"


def test_the_run_config_composes_to_the_same_settings() -> None:
    """A client composes the run config of a job."""
    first = compose_settings("fedalign/synth_high", "seed=7 'data.priority=[0, 3, 5]'")
    _composed_configs.clear()  # as on another machine
    again = compose_settings(**first.run_config)
    assert again.settings == first.settings
    assert again.experiment == first.experiment


def test_config_yaml_is_complete_and_plain(tmp_path: Path) -> None:
    """The resolved settings are plain YAML, readable without this project."""
    text = compose_settings("", "strategy.epsilon=inf").to_yaml()
    loaded = yaml.safe_load(text)
    assert loaded["strategy"]["epsilon"] == math.inf
    assert loaded["data"]["num_clients"] == 20
    assert "hydra" not in loaded


@pytest.mark.parametrize("experiment", options("experiment"))
def test_settings_are_restored_from_the_records(experiment: str) -> None:
    """Recorded settings do not depend on later changes of a preset."""
    composed = compose_settings(experiment, "seed=7 strategy.server_lr=0.5")
    assert settings_from_yaml(composed.to_yaml()) == composed.settings


@pytest.mark.parametrize(
    "overrides",
    [
        "tracker=mlflow tracker.uri=http://localhost:5000",
        "tracker=wandb tracker.mode=online",
        "strategy=fedau strategy.cutoff=5 data.priority=all privacy=dp_fixed_server",
        "strategy=composed strategy/weighting=aaggff_d strategy.weighting.c2=0.5",
        "strategy=composed strategy/participation=fedau strategy.participation.cutoff=9",
        "server_optimizer=yogi server_optimizer.tau=0.1",
    ],
)
def test_options_of_every_group_are_restored(overrides: str) -> None:
    """Settings of a single option are restored as that option's."""
    composed = compose_settings("", overrides)
    assert settings_from_yaml(composed.to_yaml()) == composed.settings


def test_a_setting_newer_than_a_record_has_its_default() -> None:
    """A setting that the record lacks counts as not set."""
    written = yaml.safe_load(compose_settings("aaggff/berka").to_yaml())
    del written["evaluation"]["metric"], written["availability"], written["client"]["proximal_mu"]
    settings = settings_from_yaml(yaml.safe_dump(written))
    assert (settings.evaluation.metric, settings.availability.name) == ("accuracy", "always")
    assert settings.client.proximal_mu == 0.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "expected settings as YAML, "),
        ("strategy: {name: nope}", r"strategy must be one of .* \(\d+ in all\), got 'nope'"),
        ("strategy: {name: [1]}", r"strategy\.name must be one of aaggff_d, .*, got \[1\]"),
        ("nothing: 1", "nothing is not a setting; "),
        ("rounds: many", "rounds must be a whole number, got 'many'"),
        ("rounds: 0", "rounds must be a whole number >= 1, got 0"),
    ],
)
def test_invalid_recorded_settings_are_one_line(text: str, problem: str) -> None:
    """The line has the setting, the allowed values and the recorded value."""
    with pytest.raises(SettingsError, match=f"^{problem}") as caught:
        settings_from_yaml(text)
    assert "\n" not in str(caught.value)


def test_data_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """FEDQUORUM_DATA is the data folder; a setting has precedence."""
    monkeypatch.setenv("FEDQUORUM_DATA", "/somewhere")
    root = yaml.safe_load(compose_settings("fedalign/fmnist", "seed=101").to_yaml())["data"]["root"]
    assert root == "/somewhere"
    text = compose_settings("fedalign/fmnist", "seed=101 data.root=/mine").to_yaml()
    assert yaml.safe_load(text)["data"]["root"] == "/mine"


MISTAKES = {
    "foo=1": r"foo is not a setting; there are .*strategy, .* \(16 in all\), got 'foo'",
    "strategy.foo=1": "strategy.foo is not a setting; strategy has .*epsilon, .*got .foo.",
    "strategy=fedau strategy.cutof=3": "cutof is not a setting; strategy has .*cutoff.* got",
    "'strategy={cutof: 3}'": "strategy.cutof is not a setting; strategy has criterion, .* got",
    "+strategy.foo=1": "strategy.foo is not a setting; strategy has .*epsilon",
    "nogroup/x=3": "nogroup/x is not a setting",
    "strategy.epsilon=-1": r"strategy.epsilon must be a number >= 0 \(inf allowed\), got -1",
    "strategy.epsilon=abc": "strategy.epsilon must be a number, got 'abc'",
    "strategy.epsilon=nan": "strategy.epsilon must be a number >= 0",
    "strategy.warmup_fraction=1.5": "strategy.warmup_fraction must be a number >= 0 and <= 1",
    "strategy.criterion=f1": "strategy.criterion must be one of loss, accuracy, got 'f1'",
    "experiment=fedalign/synth_high data=fmnist": (
        "data.noise is set by the experiment, but data=fmnist has no such setting"
    ),
    "strategy=nope": r"strategy must be one of .* \(\d+ in all\), got 'nope'",
    "experiment=nope": r"experiment must be one of .*custom, .*\(\d+ in all\), got 'nope'",
    "experiment=fedalign/nope": "experiment must be one of .*got 'fedalign/nope'",
    "client.batch_size=0": "client.batch_size must be a whole number >= 1, got 0",
    "client.lr=0": "client.lr must be a number > 0, got 0",
    "client.batch_size=10,20": (
        r"client.batch_size must be one value, got 10,20 \(type 'client.batch_size=\[10,20\]' for "
        r"a list, or fedquorum -m client.batch_size=10,20 for a sweep\)"
    ),
    "strategy=fedalign,fedau": (
        r"strategy must be one option, got fedalign,fedau \(type fedquorum -m strategy="
    ),
    "'strategy=[fedalign, fedau]'": (
        r"strategy must be one option, got fedalign,fedau \(type fedquorum -m strategy="
    ),
    "strategy=5": r"strategy must be one of .* \(\d+ in all\), got '5'",
    "~strategy": "strategy must be one of aaggff_d, .*, got ~strategy$",
    "~strategy.epsilon": (
        r"strategy.epsilon must have a value, got ~strategy.epsilon \(type strategy.epsilon=VALUE\)"
    ),
    "=5": "a setting must be NAME=VALUE, such as strategy.epsilon=0.1, got '=5'",
    "++foo=1": r"foo is not a setting; there are .*strategy, .* \(16 in all\), got 'foo'",
    "rounds=1.5": "rounds must be a whole number, got '1.5'",
    "rounds=0": "rounds must be a whole number >= 1, got 0",
    "seed=null": "seed must have a value, got null",
    "seed=-1": "seed must be a whole number >= 0, got -1",
    "data.num_priority=21": r"data.num_priority must be at most data.num_clients \(20\), got 21",
    "data.num_priority=0": "data.num_priority must be a whole number >= 1, got 0",
    "data.priority=[]": r"data.priority must be a list of at least one client, .*got \[\]",
    "data.priority=[1,99]": r"data.priority must be .* from 0 to 19 .*, got \[1, 99\]",
    "data.priority=xx": "data.priority must be one of heterogeneous, random, all, or a list",
    "'data.priority_weights={3: 0}'": r"data.priority_weights\[3\] must be a number > 0 and <= 1",
    "'data.priority_weights={30: 0.5}'": r"data.priority_weights \(its clients\) must be .* to 19",
    "data.priority_weights=[0.5]": "data.priority_weights must be a mapping such as {3: 0.5, Nor",
    "strategy.priority_samples=2 'data.priority_weights={3: 0.5}'": (
        "strategy.priority_samples must be"
    ),
    "strategy.fraction=2": "strategy.fraction must be a number >= 0 and <= 1, got 2",
    "client.lr_schedule=cosine": "client.lr_schedule must be one of constant, step, exponential",
    "client.proximal_mu=-1": "client.proximal_mu must be a number >= 0, got -1",
    "data.noise=loud": "data.noise must be one of additive, flip, got 'loud'",
    "evaluation.clients=none": "evaluation.clients must be one of all, priority, got 'none'",
    "engine.num_supernodes=0": "engine.num_supernodes must be a whole number >= 1, got 0",
    "engine.jobs=0": "engine.jobs must be a whole number >= 1, got 0",
    "engine=flower engine.jobs=2": "engine.jobs must be 1 with engine=flower, which runs one job",
    "engine=ray engine.jobs=2": "engine.jobs must be 1 with engine=ray, which runs one job after",
    "engine=ray engine.workers=0": "engine.workers must be a whole number >= 1, got 0",
    "engine=ray engine.address=here": (
        "engine.address must be the HOST:PORT of a Ray cluster, or local, got 'here'"
    ),
    "engine=ray experiment=custom data=npz data.path=a.npz data.partition=device data.priority=all "
    "data.num_clients=2 data.input_shape=[8] data.num_classes=3 engine.share_data=true": (
        "engine.share_data must be false where each device has only its own client's data, got"
    ),
    "tracker=clearml": "tracker must be one of mlflow, tensorboard, wandb, got 'clearml'",
    "tracker=wandb tracker.mode=disabled": "tracker.mode must be one of offline, online, got",
    "tracker=mlflow 'tracker.uri= '": "tracker.uri must be the path of an SQLite file, or a tracki",
    "tracker.uri=runs.db": "tracker.uri is not a setting; tracker has name, got 'uri'",
    "strategy.epsilon": "strategy.epsilon",
    "server_optimizer=lion": "server_optimizer must be one of adagrad, adam, custom, momentum, sgd",
    "server_optimizer=adam server_optimizer.beta2=1": (
        "server_optimizer.beta2 must be a number >= 0 and < 1, got 1.0"
    ),
    "strategy=composed strategy/selection=some": (
        "strategy/selection must be one of after_warmup, custom, epsilon_gate, everyone, "
        "power_of_choice, "
        "priority_only"
    ),
    "strategy=composed strategy.selection.epsilon=-1": (
        r"strategy.selection.epsilon must be a number >= 0 \(inf allowed\), got -1"
    ),
    "strategy=composed strategy.weighting.q=2": "strategy.weighting.q is not a setting; strategy.w",
    "strategy/selection=everyone": (
        r"strategy/selection needs strategy=composed, got another strategy \(type "
        r"strategy=composed strategy/selection=NAME\)"
    ),
    "strategy.selection=everyone": (
        r"strategy.selection is not a setting; .* \(type strategy=composed "
        r"strategy/selection=NAME\)"
    ),
    "'hydra.sweeper={trial: 3}'": "hydra.sweeper.trial is not a setting; hydra.sweeper has",
    "strategy=composed strategy/weighting=aaggff_s": (
        "strategy/selection must be everyone with the weighting aaggff_s .*, got 'epsilon_gate'"
    ),
    "strategy=composed strategy/selection=everyone strategy/weighting=aaggff_s "
    "availability=markov": (
        "availability must be always with strategy/weighting=aaggff_s .*, got markov"
    ),
    "strategy=composed privacy=dp_fixed_server": "privacy must be none with strategy=composed",
    "strategy=fedau privacy=dp_fixed_server": (
        "privacy must be none with strategy=fedau .*; give it a number.*, got dp_fixed_server"
    ),
    "strategy=fedavg privacy=dp_fixed_server": (
        "privacy must be none with strategy=fedavg .an update counts by its client's data"
    ),
    "strategy=aaggff_d strategy.c1=3 strategy.c2=1": "strategy.c2 must be a number > 3, got 1.0",
    "strategy=composed strategy/weighting=afl strategy.priority_samples=3": (
        "strategy.priority_samples must be null with a weighting that is not by data .*, got 3"
    ),
    "strategy=custom": "strategy.path must be an import path such as package.module.Class or ",
    "strategy=custom strategy.path=rule.txt:Rule": "strategy.path must be an import path",
    "server_optimizer=custom server_optimizer.path=a.b server_optimizer.args=3": (
        "server_optimizer.args must be null, or a mapping such as {hidden: 200}, got 3"
    ),
    "strategy=fedau strategy.cutoff=5 server_optimizer=adam privacy=dp_fixed_server": (
        "privacy must be none with strategy=fedau .the influence of one update is bounded only for "
        "server_optimizer=sgd"
    ),
    "data.name=Genève": (
        "data.name must be a value in Hydra's grammar, got 'data.name=Genève': a value with other "
        r"characters .* needs its own quotes; type \"data.name='Genève'\"$"
    ),
    "'data.drop_columns=[age (years), Größe]'": (
        r"; type \"data.drop_columns=\['age \(years\)','Größe'\]\"$"
    ),
    "'data.columns={numbers: [Größe]}'": "; put each text in it in quotes$",
    "größe=1": "a setting must be NAME=VALUE, such as strategy.epsilon=0.1, got 'größe=1'",
    "'seed=1": "overrides must be Hydra overrides separated by spaces",
}


@pytest.mark.parametrize("overrides", MISTAKES)
def test_mistakes_are_one_line(overrides: str) -> None:
    """The line has the setting, the allowed values and the given value, before any work."""
    with pytest.raises(SettingsError, match=MISTAKES[overrides]) as caught:
        compose_settings("", overrides)
    assert "\n" not in str(caught.value)


NEARLY = {
    "strategy=fedua": ("strategy must be one of ", "'fedua' (did you mean fedau?)"),
    "experiment=fedau/cifar11": ("experiment must be one of ", "(did you mean fedau/cifar10?)"),
    "data=shakspeare": ("data must be one of ", "'shakspeare' (did you mean shakespeare?)"),
    "strategy=composed strategy/weighting=aaggf_d": (
        "strategy/weighting must be one of ",
        "'aaggf_d' (did you mean aaggff_d?)",
    ),
    "strategy=composed strategy/weighting=fedau": (
        "strategy/weighting must be one of ",
        "'fedau' (strategy/participation has it)",
    ),
    "server_optimizer=adm": ("server_optimizer must be one of ", "(did you mean adam?)"),
    "hydra/sweeper=optna": ("hydra/sweeper must be one of ", "(did you mean optuna?)"),
    "strategy.epsilom=1": ("strategy.epsilom is not a setting; ", "(did you mean epsilon?)"),
    "'strategy={epsilom: 1}'": ("strategy.epsilom is not a setting; ", "(did you mean epsilon?)"),
    "strategy=composed strategy.selection.epsilom=1": (
        "strategy.selection.epsilom is not a setting; ",
        "(did you mean epsilon?)",
    ),
    "stratgy=fedau": ("stratgy is not a setting; ", "'stratgy' (did you mean strategy?)"),
    "round=3": ("round is not a setting; ", "'round' (did you mean rounds?)"),
    "strategy=fedal": ("strategy must be one of ", "'fedal' (did you mean fedalign?)"),
    "experiment=svhn": (
        "experiment must be one of ",
        "'svhn' (did you mean fedau/svhn or fedawe/svhn?)",
    ),
    "availability.p=0.3": (
        "availability.p is not a setting; availability has name, got 'p' ",
        "(availability=bernoulli, cyclic, interleaved, markov, sine, staircase have it)",
    ),
    "strategy=fedau strategy.epsilon=1": (
        "strategy.epsilon is not a setting; ",
        "got 'epsilon' (strategy=fedalign, propfair have it)",
    ),
    "strategy=xyzzy": ("strategy must be one of ", "got 'xyzzy' (fedquorum --help lists all)"),
}


@pytest.mark.parametrize("overrides", NEARLY)
def test_a_mistyped_name_gets_a_suggestion(overrides: str) -> None:
    """The line ends with the most similar name, if any."""
    with pytest.raises(SettingsError) as caught:
        compose_settings("", overrides)
    begin, end = NEARLY[overrides]
    assert str(caught.value).startswith(begin)
    assert str(caught.value).endswith(end)
    assert "\n" not in str(caught.value)


COMPOSED = "strategy=composed "
CHOSEN = (
    *("fedalign", "sgd", "synth", "logistic_regression", "always", "none", "in-process"),
    "tensorboard",
)
"""The options without another word."""

MISPLACED = {
    **{
        f"{COMPOSED}{part.replace('/', '.')}={name}": f"(type {part}={name})"
        for part in PARTS
        for name in options(part)
    },
    **{
        f"{group}.name={name}": f"(type {group}={name})"
        for group in GROUPS
        for name in options(group)[:2]
        if name not in CHOSEN
    },
    f"{COMPOSED}strategy.selection=all": "; type strategy/selection=NAME",
    f"{COMPOSED}strategy.selection=everyon": (
        "; type strategy/selection=NAME (did you mean everyone?)"
    ),
    f"{COMPOSED}strategy.weighting=fedau": (
        "; type strategy/weighting=NAME (strategy/participation has it)"
    ),
    f"{COMPOSED}strategy.selection=rules.py:Mine": (
        "(type strategy/selection=custom strategy.selection.path=rules.py:Mine)"
    ),
    f"{COMPOSED}strategy.weighting=mine.Rule": (
        "(type strategy/weighting=custom strategy.weighting.path=mine.Rule)"
    ),
    f"{COMPOSED}'strategy={{selection: everyone}}'": "(type strategy/selection=everyone)",
    f"{COMPOSED}'strategy.selection={{name: everyone}}'": "(type strategy/selection=everyone)",
    f"{COMPOSED}strategy.selection.name=everyone": "(type strategy/selection=everyone)",
    f"{COMPOSED}'strategy.selection=[everyone]'": "; type strategy/selection=NAME",
    f"{COMPOSED}strategy.selection=null": "; type strategy/selection=NAME",
    f"{COMPOSED}+strategy.selection=everyone": "(type strategy/selection=NAME)",
    f"{COMPOSED}++strategy.selection=everyone": "(type strategy/selection=everyone)",
    f"{COMPOSED}~strategy.selection": "(type strategy/selection=NAME)",
    f"{COMPOSED}strategy.selection=priority_only,everyone": (
        "(type fedquorum -m strategy/selection=priority_only,everyone for a sweep)"
    ),
    "strategy.participation=fedau": "(type strategy=composed strategy/participation=NAME)",
    "strategy.weighting.path=a.py:B": "(type strategy=composed strategy/weighting=NAME)",
    "strategy.server_optimizer=sgd": "(type server_optimizer=NAME)",
    "strategy.fedau=true": "(type strategy=fedau)",
    "'strategy={name: fedau}'": "(type strategy=fedau)",
    "+data=mnist": "(type data=mnist)",
    "evaluation=all": "(type evaluation.NAME=VALUE)",
    "experiment.fedau=fmnist": "(type experiment=fedau/fmnist)",
    "experiment=fedau.fmnist": "(did you mean fedau/fmnist?)",
    "hydra.sweeper=optuna": "(type hydra/sweeper=optuna)",
    "hydra.launcher=ray": "(type hydra/launcher=ray)",
    "strategy/epsilon=0.1": "(type strategy.epsilon=VALUE)",
    f"{COMPOSED}strategy/selection/epsilon=0.1": "(type strategy.selection.epsilon=VALUE)",
}


@pytest.mark.parametrize("overrides", MISPLACED)
def test_a_dot_for_a_slash_gets_a_suggestion(overrides: str) -> None:
    """The line ends with the override to type, for nested groups and names of options, too."""
    with pytest.raises(SettingsError) as caught:
        compose_settings("", overrides)
    message = str(caught.value)
    assert message.endswith(MISPLACED[overrides])
    assert "\n" not in message
    assert "full_key" not in message


def test_the_name_of_the_chosen_option_may_be_repeated() -> None:
    """The repetition changes nothing."""
    overrides = "strategy=composed strategy.selection.name=epsilon_gate data.name=synth"
    assert (
        compose_settings("", overrides).settings
        == compose_settings("", "strategy=composed").settings
    )


def test_overrides_are_split_as_in_a_shell() -> None:
    """Quotes keep spaces together, as on a command line."""
    assert split_overrides("a=1 'b=x y'") == ("a=1", "b=x y")


def test_a_composition_does_not_change_the_next_one() -> None:
    """All compositions of a process read the same options, so no value changes an option."""
    assert compose_settings("", "rounds=7 strategy.epsilon=3").settings.rounds == 7
    assert compose_settings("", "seed=5").settings.rounds != 7


@pytest.mark.parametrize(
    "overrides",
    [
        ("seed=3", "rounds=7"),
        ("strategy=fedau", "strategy.cutoff=inf", "client.lr=0.03"),
        ("strategy.epsilon=0.5", "strategy=fedavg", "strategy.fraction=0.5"),
        ("experiment=aaggff/berka", "strategy=term", "strategy.tilt=1e-3", "data.path=a b.csv"),
        ("data=csv", "data.path=x", "data.target=y", "data.columns={numbers:[a,b],classes:[c]}"),
        ("data=csv", "data.path='$x, {y}'", "data.target=null"),
        ("data.path=${oc.env:HOME}/x", "data=npz"),
        ("+strategy.epsilon=0.5", "++seed=4", "data.priority=[0,1]"),
        ("strategy=composed", "strategy/weighting=term", "strategy.weighting.tilt=-1"),
        ("server_optimizer=adam", "server_optimizer.lr_schedule=step", "~tracker"),
        ("client={lr: 0.5}", "client.local_epochs=2"),
        ("strategy.epsilno=1",),
        ("seed=one",),
        ("nothing=1", "seed=2"),
    ],
    ids=str,
)
def test_values_changed_in_a_copy_equal_those_of_hydra(overrides: tuple[str, ...]) -> None:
    """Runs of a study differ only in values, so Hydra does not compose them again."""
    results = []
    for compose, extra in ((compose_overrides, ()), (_compose_by_hydra, ("hydra.job.name=other",))):
        try:
            results.append(compose((*overrides, *extra)).to_yaml())
        except SettingsError as error:
            results.append(str(error))
    assert results[0] == results[1]


def _compose_by_hydra(overrides: tuple[str, ...]) -> ComposedConfig:
    with compose_job(overrides):
        return compose_overrides(overrides)
