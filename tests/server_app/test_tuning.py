"""Tuning with the real Optuna, over jobs that do what the test says."""

import json
from pathlib import Path
from typing import Any

import pytest
from fedquorum.errors import SettingsError
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from conf.compose import compose_overrides
from server_app.job import SweepUnfinished
from server_app.tuning import Tuning, tune
from tests.server_app.conftest import ScriptedLauncher, write_run

pytestmark = pytest.mark.slow  # each composes the settings of several jobs

WORDS = ("rounds=2", "strategy=choice(fedavg)", "client.lr=tag(log,interval(0.01,1))")


def make_validation_summary(value: float) -> dict[str, Any]:
    """Return the summary of validation parts, with a few numbers that are this one."""
    return {"validation": {"all": dict.fromkeys(("accuracy", "loss", "worst10", "gini"), value)}}


def leave_parabola(directory: Path, words: tuple[str, ...]) -> None:
    """Leave a run whose global loss is (lr - 0.3)^2, measured before its last round."""
    write_run(directory, words)
    lr = compose_overrides(words).settings.client.lr
    lines: list[dict[str, Any]] = [
        {"round": 1, "global_loss": (lr - 0.3) ** 2, "test": None} | make_validation_summary(lr),
        {"round": 2, "global_loss": None, "test": None, "validation": None},
    ]
    text = "".join(json.dumps({**line, "admitted": 1, "selected": 1}) + "\n" for line in lines)
    (directory / "rounds.jsonl").write_text(text)


def run(
    config: DictConfig,
    launcher: ScriptedLauncher,
    *words: str,
    objective: str | None = None,
    direction: str | None = None,
    trials: int = 6,
) -> dict[str, Any]:
    overrides = OverridesParser.create().parse_overrides(list(words))
    tune(config, launcher, overrides, Tuning(trials, objective, direction, seed=1))
    result: dict[str, Any] = json.loads((Path(config.hydra.sweep.dir) / "tuning.json").read_text())
    return result


def test_the_best_of_all_trials(
    sweep_config: DictConfig, launcher: ScriptedLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    """engine.jobs trials at a time; the values are the last measured; the best is named."""
    launcher.do = leave_parabola
    result = run(sweep_config, launcher, *WORDS)
    assert launcher.launched == [[0, 1], [2, 3], [4, 5]]
    values = [row["value"] for row in result["jobs"]]
    rates = [float(row["settings"][-1].removeprefix("client.lr=")) for row in result["jobs"]]
    assert values == pytest.approx([(rate - 0.3) ** 2 for rate in rates])
    assert all(0.01 <= rate <= 1.0 for rate in rates)
    assert result["best"] == values.index(min(values))
    assert f"best of 6 jobs: job {result['best']} (client.lr=" in capsys.readouterr().out


def test_an_interrupted_tuning_resumes(
    sweep_config: DictConfig, launcher: ScriptedLauncher, tmp_path: Path
) -> None:
    """The same command asks for the same values and finds them run; the end is the same."""
    launcher.do = leave_parabola
    expected = run(sweep_config, launcher, *WORDS)

    def interrupt_third(directory: Path, words: tuple[str, ...]) -> None:
        if directory.name == "3":
            raise KeyboardInterrupt
        leave_parabola(directory, words)

    sweep_config.hydra.sweep.dir = str(tmp_path / "again")
    again = ScriptedLauncher(tmp_path / "again", interrupt_third)
    with pytest.raises(SweepUnfinished) as end:
        run(sweep_config, again, *WORDS)
    assert end.value.code == 130
    again.do = leave_parabola
    assert run(sweep_config, again, *WORDS) == expected
    assert again.launched == [[0, 1], [2, 3], [3], [4, 5]]


def test_whole_numbers_and_choices(sweep_config: DictConfig, launcher: ScriptedLauncher) -> None:
    """An interval of whole numbers gives such, several values are chosen among, and maximized."""
    launcher.do = leave_parabola
    words = ("client.batch_size=int(interval(4,16))", "strategy=fedavg,fedalign", *WORDS[2:])
    best = run(sweep_config, launcher, *words, "data.validation_fraction=0.2")
    assert (best["objective"], best["direction"]) == ("validation.all.accuracy", "maximize")
    chosen = [dict(word.split("=") for word in row["settings"]) for row in best["jobs"]]
    assert all(4 <= int(one["client.batch_size"]) <= 16 for one in chosen)
    assert {one["strategy"] for one in chosen} <= {"fedavg", "fedalign"}
    rates = [float(one["client.lr"]) for one in chosen]
    assert best["best"] == rates.index(max(rates))


def test_a_failed_job_is_a_failed_trial(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """It has no value, the others go on, and the exit status tells."""

    def do(directory: Path, words: tuple[str, ...]) -> None:
        if directory.name == "0":
            (directory / "error.txt").write_text("no\n")
        else:
            leave_parabola(directory, words)

    launcher.do = do
    with pytest.raises(SweepUnfinished) as end:
        run(sweep_config, launcher, *WORDS, trials=3)
    assert end.value.code == 1
    result = json.loads((Path(sweep_config.hydra.sweep.dir) / "tuning.json").read_text())
    assert [row["value"] is None for row in result["jobs"]] == [True, False, False]
    assert result["best"] in {1, 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("seed=1",), "hydra/sweeper=optuna must have something to choose"),
        (
            ("client.lr=tag(log,interval(0,1))",),
            "client.lr must be an interval or values for Optuna, got",
        ),
    ],
)
def test_what_cannot_be_tuned(
    sweep_config: DictConfig, launcher: ScriptedLauncher, words: tuple[str, ...], message: str
) -> None:
    """Fixed values only, or a logarithm of 0, are one line before any job."""
    with pytest.raises(SettingsError, match=message):
        run(sweep_config, launcher, *words)
    assert launcher.launched == []


@pytest.mark.parametrize("last", [None, "inf"])
def test_a_diverged_job_is_a_failed_trial(
    sweep_config: DictConfig, launcher: ScriptedLauncher, last: str | None
) -> None:
    """An earlier model does not stand for the last one, whose objective is not finite."""

    def do(directory: Path, words: tuple[str, ...]) -> None:
        leave_parabola(directory, words)
        if directory.name == "0":
            path = directory / "rounds.jsonl"
            first, second = map(json.loads, path.read_text().splitlines())
            first["validation"] = {"all": {"gini": -1.0}}
            second["validation"] = {"all": {"gini": last}}
            path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")

    launcher.do = do
    words = (*WORDS, "data.validation_fraction=0.2")
    result = run(sweep_config, launcher, *words, objective="validation.all.gini", trials=3)
    assert [row["value"] is None for row in result["jobs"]] == [True, False, False]
    assert result["best"] in {1, 2}


def test_an_objective_that_is_not_measured(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """A typo is told after the first jobs, not after the last."""
    launcher.do = leave_parabola
    with pytest.raises(SettingsError, match=r"or validation\.all\.accuracy, got 'loss'"):
        run(sweep_config, launcher, *WORDS, objective="loss")
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
def test_the_better_end_of_an_objective(objective: str, direction: str) -> None:
    """Of a statistic over clients it is that of the metric; of inequality it is down."""
    settings = compose_overrides(("experiment=custom", "data.validation_fraction=0.2")).settings
    assert Tuning(1, objective, None, 1).resolve(settings).direction == direction
    assert Tuning(1, objective, "minimize", 1).resolve(settings).direction == "minimize"


def test_tuning_never_looks_at_test_parts(
    sweep_config: DictConfig, launcher: ScriptedLauncher
) -> None:
    """It is refused with the setting that helps, and validation without a validation part too."""
    message = (
        r"must not be of test parts.*data\.validation_fraction=0\.2 and take validation\.all\.f1$"
    )
    with pytest.raises(SettingsError, match=message):
        Tuning(1, "test.all.f1", None, 1)
    message = r"data\.validation_fraction must be above 0 where .* validation\.all\.loss, got 0\.0"
    with pytest.raises(SettingsError, match=message):
        run(sweep_config, launcher, *WORDS, objective="validation.all.loss")
    assert launcher.launched == []


def test_settings_of_the_tuning() -> None:
    """Each has its range."""
    with pytest.raises(SettingsError, match=r"hydra\.sweeper\.trials must be a whole number >= 1"):
        Tuning(0, "global_loss", "minimize", 1)
    with pytest.raises(SettingsError, match="must be one of minimize, maximize, got 'up'"):
        Tuning(1, "global_loss", "up", 1)
