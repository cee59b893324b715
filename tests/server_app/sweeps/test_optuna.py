"""Test tuning with the real Optuna, over jobs that call a function of the test."""

import json
from pathlib import Path
from typing import Any

import pytest
from fedquorum.errors import SettingsError
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from conf.compose import compose_overrides
from server_app.runs.job import SweepUnfinished
from server_app.sweeps.optuna import Tuning, tune
from tests.server_app.conftest import ScriptedLauncher, write_run

pytestmark = pytest.mark.slow  # each composes the settings of several jobs

OVERRIDES = ("rounds=2", "strategy=choice(fedavg)", "client.lr=tag(log,interval(0.01,1))")


def make_validation_summary(value: float) -> dict[str, Any]:
    """Return validation metrics that all have this value."""
    return {"validation": {"all": dict.fromkeys(("accuracy", "loss", "worst10", "gini"), value)}}


def write_parabola_run(directory: Path, overrides: tuple[str, ...]) -> None:
    """Write a run with the global loss (lr - 0.3)^2, evaluated before its last round."""
    write_run(directory, overrides)
    lr = compose_overrides(overrides).settings.client.lr
    lines: list[dict[str, Any]] = [
        {"round": 1, "global_loss": (lr - 0.3) ** 2, "test": None} | make_validation_summary(lr),
        {"round": 2, "global_loss": None, "test": None, "validation": None},
    ]
    text = "".join(json.dumps({**line, "admitted": 1, "selected": 1}) + "\n" for line in lines)
    (directory / "rounds.jsonl").write_text(text)


def run(
    config: DictConfig,
    launcher: ScriptedLauncher,
    *overrides: str,
    objective: str | None = None,
    direction: str | None = None,
    trials: int = 6,
) -> dict[str, Any]:
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    tune(config, launcher, parsed, Tuning(trials, objective, direction, seed=1))
    result: dict[str, Any] = json.loads((Path(config.hydra.sweep.dir) / "tuning.json").read_text())
    return result


def test_the_best_of_all_trials_is_printed(
    sweep_config: DictConfig, launcher: ScriptedLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    """engine.jobs trials run at a time, and each value is the last one evaluated."""
    launcher.run_job = write_parabola_run
    result = run(sweep_config, launcher, *OVERRIDES)
    assert launcher.launched == [[0, 1], [2, 3], [4, 5]]
    values = [row["value"] for row in result["jobs"]]
    rates = [float(row["settings"][-1].removeprefix("client.lr=")) for row in result["jobs"]]
    assert values == pytest.approx([(rate - 0.3) ** 2 for rate in rates])
    assert all(0.01 <= rate <= 1.0 for rate in rates)
    assert result["best"] == values.index(min(values))
    assert f"best of 6 jobs: job {result['best']} (client.lr=" in capsys.readouterr().out


def test_jobs_with_the_best_value_tie(
    sweep_config: DictConfig, launcher: ScriptedLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one is not better than the others."""

    def write_same_run(directory: Path, _: tuple[str, ...]) -> None:
        write_parabola_run(directory, ("client.lr=0.3",))

    launcher.run_job = write_same_run
    run(sweep_config, launcher, *OVERRIDES, trials=3)
    assert "global_loss 0 (a tie of jobs 0, 1, 2)" in capsys.readouterr().out


def test_an_interrupted_tuning_resumes(
    sweep_config: DictConfig, launcher: ScriptedLauncher, tmp_path: Path
) -> None:
    """The same command suggests the same values, finds their jobs, and has the same result."""
    launcher.run_job = write_parabola_run
    expected = run(sweep_config, launcher, *OVERRIDES)

    def interrupt_third(directory: Path, overrides: tuple[str, ...]) -> None:
        if directory.name == "3":
            raise KeyboardInterrupt
        write_parabola_run(directory, overrides)

    sweep_config.hydra.sweep.dir = str(tmp_path / "again")
    again = ScriptedLauncher(tmp_path / "again", interrupt_third)
    with pytest.raises(SweepUnfinished) as end:
        run(sweep_config, again, *OVERRIDES)
    assert end.value.code == 130
    again.run_job = write_parabola_run
    assert run(sweep_config, again, *OVERRIDES) == expected
    assert again.launched == [[0, 1], [2, 3], [3], [4, 5]]


def test_integers_and_choices_are_tuned(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """An interval of integers gives integers, and accuracy is maximized."""
    launcher.run_job = write_parabola_run
    overrides = (
        "client.batch_size=int(interval(4,16))",
        "strategy=fedavg,fedalign",
        *OVERRIDES[2:],
    )
    best = run(sweep_config, launcher, *overrides, "data.validation_fraction=0.2")
    assert (best["objective"], best["direction"]) == ("validation.all.accuracy", "maximize")
    chosen = [dict(item.split("=") for item in row["settings"]) for row in best["jobs"]]
    assert all(4 <= int(one["client.batch_size"]) <= 16 for one in chosen)
    assert {one["strategy"] for one in chosen} <= {"fedavg", "fedalign"}
    rates = [float(one["client.lr"]) for one in chosen]
    assert best["best"] == rates.index(max(rates))


def test_a_failed_job_is_a_failed_trial(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """It has no value, the other trials run, and the exit status is 1."""

    def run_job(directory: Path, overrides: tuple[str, ...]) -> None:
        if directory.name == "0":
            (directory / "error.txt").write_text("no\n")
        else:
            write_parabola_run(directory, overrides)

    launcher.run_job = run_job
    with pytest.raises(SweepUnfinished) as end:
        run(sweep_config, launcher, *OVERRIDES, trials=3)
    assert end.value.code == 1
    result = json.loads((Path(sweep_config.hydra.sweep.dir) / "tuning.json").read_text())
    assert [row["value"] is None for row in result["jobs"]] == [True, False, False]
    assert result["best"] in {1, 2}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("seed=1",), "hydra/sweeper=optuna must have something to choose"),
        (
            ("client.lr=tag(log,interval(0,1))",),
            "client.lr must be an interval or values for Optuna, got",
        ),
    ],
)
def test_invalid_search_spaces_are_refused(
    sweep_config: DictConfig, launcher: ScriptedLauncher, overrides: tuple[str, ...], message: str
) -> None:
    """Fixed values only, or a logarithm of 0, are one-line errors before any job."""
    with pytest.raises(SettingsError, match=message):
        run(sweep_config, launcher, *overrides)
    assert launcher.launched == []


@pytest.mark.parametrize("last", [None, "inf"])
def test_a_diverged_job_is_a_failed_trial(
    sweep_config: DictConfig, launcher: ScriptedLauncher, last: str | None
) -> None:
    """The objective of the last model is not finite, and an earlier model does not count."""

    def run_job(directory: Path, overrides: tuple[str, ...]) -> None:
        write_parabola_run(directory, overrides)
        if directory.name == "0":
            path = directory / "rounds.jsonl"
            first, second = map(json.loads, path.read_text().splitlines())
            first["validation"] = {"all": {"gini": -1.0}}
            second["validation"] = {"all": {"gini": last}}
            path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")

    launcher.run_job = run_job
    overrides = (*OVERRIDES, "data.validation_fraction=0.2")
    result = run(sweep_config, launcher, *overrides, objective="validation.all.gini", trials=3)
    assert [row["value"] is None for row in result["jobs"]] == [True, False, False]
    assert result["best"] in {1, 2}


def test_an_objective_missing_in_the_records_is_refused(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """A typo is reported after the first jobs, not after the last."""
    launcher.run_job = write_parabola_run
    with pytest.raises(SettingsError, match=r"or validation\.all\.accuracy, got 'loss'"):
        run(sweep_config, launcher, *OVERRIDES, objective="loss")
    assert launcher.launched == [[0, 1]]


@pytest.mark.parametrize(
    ("objective", "direction"),
    [
        ("validation.all.accuracy", "maximize"),
        ("validation.all.loss", "minimize"),
        ("validation.all.worst10", "maximize"),
        ("validation.all.gini", "minimize"),
    ],
)
def test_the_direction_follows_from_the_objective(objective: str, direction: str) -> None:
    """A statistic over clients has the metric's direction; inequality is minimized."""
    settings = compose_overrides(("experiment=custom", "data.validation_fraction=0.2")).settings
    assert Tuning(1, objective, None, 1).resolve(settings).direction == direction
    assert Tuning(1, objective, "minimize", 1).resolve(settings).direction == "minimize"


def test_tuning_never_uses_the_test_split(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """It is refused with the setting to use, and so is a missing validation split."""
    message = (
        r"must not be of test parts.*data\.validation_fraction=0\.2 and take validation\.all\.f1$"
    )
    with pytest.raises(SettingsError, match=message):
        Tuning(1, "test.all.f1", None, 1)
    message = r"data\.validation_fraction must be above 0 where .* validation\.all\.loss, got 0\.0"
    with pytest.raises(SettingsError, match=message):
        run(sweep_config, launcher, *OVERRIDES, objective="validation.all.loss")
    assert launcher.launched == []


def test_the_settings_of_a_tuning_are_checked() -> None:
    """Each setting has a range of allowed values."""
    with pytest.raises(SettingsError, match=r"hydra\.sweeper\.trials must be a whole number >= 1"):
        Tuning(0, "global_loss", "minimize", 1)
    with pytest.raises(SettingsError, match="must be one of minimize, maximize, got 'up'"):
        Tuning(1, "global_loss", "up", 1)


@pytest.mark.parametrize("name", ["worst10", "gini", "average"])
def test_masks_hide_objectives_over_single_clients(name: str) -> None:
    """They are refused before the first job; means over all clients are not."""
    words = ("data=synth", "strategy=fedau", "secure_aggregation=masks")
    settings = compose_overrides((*words, "data.validation_fraction=0.2")).settings
    with pytest.raises(SettingsError, match=r"must be one of validation\.all\.loss, .*, got valid"):
        Tuning(1, f"validation.all.{name}", None, 1).resolve(settings)
    for allowed in (None, "validation.all.loss"):
        assert Tuning(1, allowed, None, 1).resolve(settings).objective


def test_masks_hide_the_loss_of_the_priority_clients() -> None:
    """It would be null in every round; without a validation split it is the default."""
    words = ("data=synth", "strategy=fedau", "secure_aggregation=masks")
    settings = compose_overrides(words).settings
    for objective in (None, "global_loss"):
        with pytest.raises(SettingsError, match=r"type data\.validation_fraction=0\.2 hydra\.sw"):
            Tuning(1, objective, None, 1).resolve(settings)
