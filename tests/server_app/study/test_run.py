"""Tests of studies from the command line to ``study.json``, with few clients and rounds."""

import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
from fedquorum.errors import RunError, SettingsError
from numpy.typing import NDArray

from conf.compose import parse_override
from server_app.api.run import run_from_python
from server_app.cli.study import main, start_study
from server_app.study.candidates import (
    build_comparison,
    choose_metric,
    collect_common_overrides,
)
from server_app.study.settings import StudySettings
from server_app.sweeps.jobs import read_complete_rounds
from server_app.sweeps.runner import JobRunner

if TYPE_CHECKING:
    from client_app.data import FederatedData

SMALL = (
    "data=synth",
    "data.num_clients=6",
    "data.num_priority=3",
    "data.samples_per_client=60",
    "rounds=2",
    "client.local_epochs=1",
)
STUDY = ("goal=priority", "methods=[fedavg_priority]", "trials=3")
BUDGET = "budget=23runs"


def read_result(folder: Path) -> dict[str, Any]:
    """Read ``study.json``."""
    result: dict[str, Any] = json.loads((folder / "study.json").read_text())
    return result


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished study of two methods, with a budget of 23 runs."""
    folder = tmp_path_factory.mktemp("study") / "here"
    return start_study((*SMALL, *STUDY, BUDGET, f"output={folder}"))


@pytest.mark.slow
def test_the_result(finished_study: Path) -> None:
    """It has the methods and the score of the verdict, and consistent numbers."""
    result = read_result(finished_study)
    assert result["verdict"] in {"fedavg", "fedavg_priority", "no difference", "undecided"}
    assert (result["baseline"], result["best"]) == ("fedavg", "fedavg_priority")
    assert result["methods"] == ["fedavg", "fedavg_priority"]
    assert result["metric_key"] == "test.priority.accuracy"
    baseline, other = result["results"]
    assert [len(one["runs"]) for one in result["results"]] == [result["seeds"]] * 2
    pairs = zip(other["runs"], baseline["runs"], strict=True)
    gaps = [one["score"] - base["score"] for one, base in pairs]
    assert result["difference"] == pytest.approx(sum(gaps) / len(gaps))
    low, high = result["interval"]
    assert low <= result["difference"] <= high


@pytest.mark.slow
def test_tuning_and_comparison_have_separate_seeds(finished_study: Path) -> None:
    """Trials use seed 1, finalists also seed 2, and pairs the same further seeds."""
    result = read_result(finished_study)
    assert result["tuning_seeds"] == [1, 2]
    seeds = [[run["seed"] for run in one["runs"]] for one in result["results"]]
    assert seeds == [list(range(3, 3 + result["seeds"]))] * 2
    assert result["seeds"] >= 5
    trials = [one["trials"] for one in result["results"]]
    assert len({len(of_method) for of_method in trials}) == 1
    assert len(trials[0]) > 1
    assert all(of_method[0]["words"] == [] for of_method in trials)
    assert any(trial["again"] is not None for trial in trials[0])


@pytest.mark.slow
def test_the_budget_is_kept(finished_study: Path) -> None:
    """At most 23 runs of 2 rounds are spent, and no other pair of runs would fit."""
    spent = sum(
        len(read_complete_rounds(path.parent)) for path in finished_study.glob("*/rounds.jsonl")
    )
    assert read_result(finished_study)["spent"]["spent"] == spent
    assert 23 * 2 - 2 * 2 < spent <= 23 * 2


@pytest.mark.slow
def test_the_baseline_with_another_start(finished_study: Path) -> None:
    """It has the data of the first seed, and says how many clients are worse off by chance."""
    baseline = read_result(finished_study)["results"][0]
    first = baseline["runs"][0]
    [restarted] = (
        path.parent
        for path in finished_study.glob("*/config.yaml")
        if f"\n  seed: {first['seed']}\n" in path.read_text()
    )
    one, other = (
        {row["client"]: row for row in pq.read_table(folder / "evaluations").to_pylist()[-6:]}
        for folder in (restarted, finished_study / first["folder"])
    )
    assert [row["test_num_examples"] for row in one.values()] == [
        row["test_num_examples"] for row in other.values()
    ]
    gains = [one[k]["test_accuracy"] - other[k]["test_accuracy"] for k in range(6)]
    assert any(gains)
    assert baseline["worse_off"] == sum(gain < -0.01 for gain in gains) / 6
    assert baseline["better_off"] == sum(gain > 0.01 for gain in gains) / 6
    assert (
        "In the row of FedAvg: itself with another start"
        in (finished_study / "study.html").read_text()
    )


@pytest.mark.slow
def test_a_command_repeats_a_number(finished_study: Path, tmp_path: Path) -> None:
    """The printed command of a run reproduces its bits elsewhere."""
    run = read_result(finished_study)["results"][1]["runs"][0]
    program, *words = shlex.split(run["command"])
    assert program == "fedquorum"
    again = run_from_python(words, {}, output=tmp_path / "again", verbose=False)
    last = read_complete_rounds(again)[-1]
    assert last["test"]["priority"]["accuracy"] == run["score"]
    model = Path("model.safetensors")
    assert (again / model).read_bytes() == (finished_study / run["folder"] / model).read_bytes()


@pytest.mark.slow
def test_a_finished_study_runs_nothing_again(finished_study: Path) -> None:
    """The result follows from the records."""
    before = read_result(finished_study)
    folders = sorted(finished_study.iterdir())
    start_study((*SMALL, *STUDY, BUDGET, f"output={finished_study}"))
    assert (read_result(finished_study), sorted(finished_study.iterdir())) == (before, folders)


@pytest.mark.slow
def test_fewer_seeds_than_were_seen_are_refused(finished_study: Path, tmp_path: Path) -> None:
    """To choose the seeds after a look would choose the verdict."""
    folder = Path(shutil.copytree(finished_study, tmp_path / "seen"))
    progress = json.loads((folder / "progress.json").read_text())
    (look,) = progress["looks"]
    assert look["seeds"] == read_result(folder)["seeds"]
    progress["looks"] = [{"seeds": 9, "planned": 9}]
    (folder / "progress.json").write_text(json.dumps(progress))
    with pytest.raises(SettingsError, match=r"seeds must be at least 9, .* got 8"):
        start_study((*SMALL, *STUDY, BUDGET, "seeds=8", f"output={folder}"))


@pytest.mark.slow
def test_another_study_is_refused_in_its_folder(finished_study: Path) -> None:
    """The text names only the difference; a finished tuning cannot change."""
    for word, message in (
        ("metric_key=priority.worst10", r"output must be a new folder .* metric_key is .*worst10"),
        ("rounds=3", "where settings have rounds=2 and do not have rounds=3$"),
        ("client.lr=0.2", "where settings do not have client.lr=0.2$"),
        ("personal=false", "where personal is true and not false$"),
        ("trials=2", "trials must stay at 3 after the tuning of a study, got 2"),
    ):
        by_key = {w.partition("=")[0]: w for w in (*SMALL, *STUDY, BUDGET, word)}
        with pytest.raises((RunError, SettingsError), match=message):
            start_study((*by_key.values(), f"output={finished_study}"))


@pytest.mark.slow
def test_the_order_of_settings_does_not_identify_a_study(finished_study: Path) -> None:
    """The same settings in another order resume the study."""
    folders = sorted(finished_study.iterdir())
    before = read_result(finished_study)["comparisons"]
    start_study((f"output={finished_study}", BUDGET, *reversed(STUDY), *reversed(SMALL)))
    assert (read_result(finished_study)["comparisons"], sorted(finished_study.iterdir())) == (
        before,
        folders,
    )


@pytest.mark.slow
def test_a_study_resumes_where_it_stopped(finished_study: Path, tmp_path: Path) -> None:
    """Missing last runs run again, with the same result."""
    incomplete = tmp_path / "study"
    shutil.copytree(finished_study, incomplete)
    (incomplete / "study.json").unlink()
    numbers = sorted(int(path.parent.name) for path in incomplete.glob("*/manifest.json"))
    for number in numbers[-2:]:
        shutil.rmtree(incomplete / str(number))
    start_study((*SMALL, *STUDY, BUDGET, f"output={incomplete}"))
    first, second = (read_result(folder)["results"] for folder in (incomplete, finished_study))
    for one, other in zip(first, second, strict=True):
        assert one["tuned"] == other["tuned"]
        assert [run["score"] for run in one["runs"]] == [run["score"] for run in other["runs"]]


@pytest.mark.slow
def test_a_study_continues_with_more_budget(finished_study: Path, tmp_path: Path) -> None:
    """The tuning does not change, and further seeds follow."""
    further = tmp_path / "study"
    shutil.copytree(finished_study, further)
    start_study((*SMALL, *STUDY, "budget=25runs", f"output={further}"))
    before, after = read_result(finished_study), read_result(further)
    assert after["seeds"] == before["seeds"] + 1
    assert [one["tuned"] for one in after["results"]] == [one["tuned"] for one in before["results"]]


@pytest.fixture
def first_job_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt every study when its first jobs start."""

    def run(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobRunner, "run", run)


@pytest.mark.slow
@pytest.mark.usefixtures("first_job_interrupt")
def test_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that resumes the study is printed, with its folder."""
    words = [*SMALL, *STUDY, BUDGET]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 130
    again = shlex.split(capsys.readouterr().err.split("to continue: ")[1])
    assert again[:-1] == ["fedquorum", "study", *words]
    assert (Path(again[-1].removeprefix("output=")) / "progress.json").exists()


LATE = ("response_time=lognormal", "engine.quorum=2")


@pytest.mark.usefixtures("first_job_interrupt")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("goal=fairness", "strategy.fraction=0.5"), "aaggff_s (strategy.fraction must be 1"),
        (
            ("goal=participation", *LATE, "engine.late_replies=count"),
            "fedawe (engine.late_replies must be discard with fedawe",
        ),
    ],
)
def test_methods_that_do_not_fit_are_named_at_once(
    words: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are reported before any run starts."""
    with pytest.raises(SystemExit):
        start_study((*SMALL, *words, "budget=200runs", f"output={tmp_path}"))
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert reason.partition(" ")[0] not in first
    assert second.startswith(f"Left out: {reason}")


@pytest.mark.slow
def test_a_study_compares_counted_with_discarded_updates(tmp_path: Path) -> None:
    """The runs of one method have late updates, those of the other have none."""
    methods = "methods=[fedau,'fedau engine.late_replies=count']"
    words = ("goal=participation", "availability=always", *LATE, methods, "budget=16runs")
    folder = start_study(
        (*SMALL, *words, "trials=0", "personal=false", "rounds=3", f"output={tmp_path / 'study'}")
    )
    have_late = {
        one["name"]: [has_late_updates(folder / run["folder"]) for run in one["runs"]]
        for one in read_result(folder)["results"]
    }
    counting = "fedau engine.late_replies=count"
    assert have_late == {
        name: [name == counting] * 5 for name in ("average_participating", "fedau", counting)
    }


def has_late_updates(run: Path) -> bool:
    """Return whether an update of an older model counted in a run."""
    table = pq.read_table(run / "clients")
    return any(row.get("staleness") and row["weight"] for row in table.to_pylist())


NOT_FINITE_RULE = """
import numpy as np
from fedquorum.rules.types import AggregationWeights
from fedquorum.rules.weighting import Weighting


class NotFinite(Weighting[None]):
    def init(self, population):
        return None

    def weigh(self, state, plan, updates, admitted_fraction):
        return None, AggregationWeights(np.full(len(updates.client), np.nan))
"""


@pytest.mark.slow
def test_a_method_that_fails_is_left_out(tmp_path: Path) -> None:
    """The others are compared, and the result has the reason; so if no client ever trains."""
    (tmp_path / "rule.py").write_text(NOT_FINITE_RULE)
    diverging = f"custom strategy.path={tmp_path / 'rule.py'}:NotFinite"
    words = (
        "goal=fairness",
        f"methods=[term,'custom strategy.path=nowhere.Rule','{diverging}']",
        "trials=0",
        "seeds=5",
        "budget=30runs",
    )
    folder = start_study((*SMALL, *words, f"output={tmp_path / 'study'}"))
    result = read_result(folder)
    reasons = {one["name"]: one["left_out"] for one in result["results"]}
    assert reasons["term"] == reasons["fedavg"] == ""
    assert "nowhere" in reasons["custom strategy.path=nowhere.Rule"]
    assert ": no client trained with success in round 1, " in reasons[diverging]
    assert result["seeds"] == 5
    assert all(one["trials"] == [] for one in result["results"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("strategy=fedau",), r"strategy must be left to the study \(methods=\[\.\.\.\] says"),
        (("seed=1,2",), "seed must have one value in a study, got seed=1,2"),
        (("data.validation_seed=4",), "data.validation_seed must be left to the study, got"),
        (("data.validation_fraction=0",), "data.validation_fraction must be above 0 in a study"),
        (("data.priority=all",), "data.priority must name the clients that goal=priority is"),
        (("evaluation.clients=priority",), "evaluation.clients must be all in a study"),
        (("secure_aggregation=masks",), "secure_aggregation must be none in a study"),
        (("evaluation.every=null",), "evaluation.every must be a number of rounds in a study"),
        (
            ("response_time=lognormal", "engine.simulated_seconds=9"),
            "engine.simulated_seconds must be null in a study",
        ),
        (
            ("trials=0", "budget=10runs"),
            r"budget must be at least 11runs \(22rounds: 5 seeds of 2 methods, and the baseline",
        ),
        (
            ("trials=33", "budget=20runs"),
            r"budget must be at least 71runs \(142rounds: 5 seeds of 2 methods after 33 trials",
        ),
        (("metric_key=all.gini",), "metric_key must be GROUP.NAME with a group .* got all.gini"),
        (("client.lrr=1",), "client.lrr is not a setting"),
        (("strategy.selection=everyone",), r"\(type strategy/selection=everyone\)$"),
        (
            ("methods=['composed strategy.weighting=afl']",),
            r"methods must fit the settings.*\(type strategy/weighting=afl\)$",
        ),
        (("trails=3",), r"trails is neither a setting of a study .*\(did you mean trials\?\)$"),
        (("roundz=3",), r"nor of its runs .*\(did you mean rounds\?\)$"),
        (("-m",), "a study takes settings KEY=VALUE and no flag but --help, got -m"),
        (
            ("methods=[fedavg_priority,'fedavg server_optimizer=adem']",),
            r"methods must fit the settings, got fedavg server_optimizer=adem: .*mean adam",
        ),
        (
            ("methods=[fedavg server_optimizer=adam]",),
            r"methods must be a value .*; type \"methods=\['fedavg server_optimizer=adam'\]\"$",
        ),
        (("methods=[fedavg]",), "methods must have one to compare with fedavg, got none"),
        (("output=/dev/null/x",), "output must be a folder to write to"),
    ],
)
def test_mistakes(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """One line is raised before any run starts."""
    by_key = {w.partition("=")[0]: w for w in (*SMALL, *STUDY, BUDGET, *words)}
    output = () if "output" in by_key else (f"output={tmp_path / 'study'}",)
    with pytest.raises((SettingsError, RunError), match=message):
        start_study((*by_key.values(), *output))


@pytest.mark.slow
def test_participation_is_required_for_intermittent_clients() -> None:
    """Unless the user sets them always available."""
    study = StudySettings("participation", "1h", ["fedau"])

    def resolve_availability(*overrides: str) -> str:
        comparison = build_comparison(
            collect_common_overrides(map(parse_override, (*SMALL, *overrides))), study
        )
        return comparison.settings.availability.name

    assert resolve_availability() == "bernoulli"
    assert resolve_availability("availability=always") == "always"
    assert resolve_availability("availability=markov") == "markov"


@dataclass
class TwoClients:
    """Labels of two clients, half of them for testing."""

    labels: list[int]
    target: str = "class"
    num_clients: int = 2

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len({*self.labels})

    def get_targets(self, client: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the training and test targets of a client."""
        labels = np.array(self.labels[client::2])
        return labels[::2], labels[1::2]


def choose_score(labels: list[int], *overrides: str, **options: Any) -> str:
    """Return the number by which a study of data with these labels compares."""
    study = StudySettings("average", "1h", ["term"], **options)
    common = collect_common_overrides(map(parse_override, (*SMALL, *overrides)))
    comparison = build_comparison(common, study)
    data = cast("FederatedData", TwoClients(labels))
    chosen = choose_metric(common, comparison, study, data)
    return build_comparison((*common, *chosen), study).score


@pytest.mark.parametrize(
    ("words", "trials", "expected"),
    [
        ((), None, 1),
        (("seed=7",), 3, 7),
        ((), 0, None),
    ],
)
def test_no_seed_tests_rows_by_which_the_tuning_chooses(
    words: tuple[str, ...], trials: int | None, expected: int | None
) -> None:
    """All runs validate the rows of the tuning's first seed, unless nothing is tuned."""
    study = StudySettings("average", "1h", ["term"], trials=trials)
    common = collect_common_overrides(map(parse_override, (*SMALL, *words)))
    comparison = build_comparison(common, study)
    found = {candidate.settings.data.validation_seed for candidate in comparison.candidates}
    assert found == {expected}


def test_auroc_decides_where_one_of_two_classes_has_most_rows() -> None:
    """Not if the user named a metric, nor for three classes, nor at 80 % exactly."""
    rare = [1] * 81 + [0] * 19
    assert choose_score(rare) == "all.auroc"
    assert choose_score([0] * 80 + [1] * 20) == "all.accuracy"
    assert choose_score([0] * 90 + [1] * 5 + [2] * 5) == "all.accuracy"
    assert choose_score(rare, "evaluation.metric=accuracy") == "all.accuracy"
    assert choose_score(rare, "evaluation.metric=f1") == "all.f1"
    assert choose_score(rare, metric_key="all.accuracy") == "all.accuracy"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help has all settings of a study."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name}=" in text for name in StudySettings.__dataclass_fields__)


def test_a_mistake_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints one line and exits with status 1."""
    assert main(["goal=priority"]) == 1
    assert capsys.readouterr().err.startswith("fedquorum study: budget must be a number above 0")
