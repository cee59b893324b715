"""Studies from the command line to ``study.json``, on a few clients and rounds."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from fedquorum.errors import RunError, SettingsError

from conf.compose import parse_override
from server_app.api.run import run_from_python
from server_app.study.candidates import build_comparison, collect_common_overrides
from server_app.study.command_line import main, start_study
from server_app.study.settings import StudySettings
from server_app.sweep_jobs import read_complete_rounds
from server_app.sweep_runner import JobRunner

SMALL = (
    "data=synth",
    "data.num_clients=6",
    "data.num_priority=3",
    "data.samples_per_client=60",
    "rounds=2",
    "client.local_epochs=1",
)
ASKED = ("goal=priority", "methods=[fedavg_priority]", "trials=3")
BUDGET = "budget=22runs"


def answer_in(folder: Path) -> dict[str, Any]:
    """Return what ``study.json`` says."""
    answer: dict[str, Any] = json.loads((folder / "study.json").read_text())
    return answer


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished study of two methods, with a budget of 22 runs."""
    folder = tmp_path_factory.mktemp("study") / "here"
    return start_study((*SMALL, *ASKED, BUDGET, f"output={folder}"))


def test_the_answer(finished_study: Path) -> None:
    """It has what the verdict is about, and numbers that follow from each other."""
    answer = answer_in(finished_study)
    assert answer["verdict"] in {"fedavg", "fedavg_priority", "no difference", "undecided"}
    assert (answer["baseline"], answer["best"]) == ("fedavg", "fedavg_priority")
    assert answer["methods"] == ["fedavg", "fedavg_priority"]
    assert answer["metric_key"] == "test.priority.accuracy"
    plain, other = answer["results"]
    assert [len(one["runs"]) for one in answer["results"]] == [answer["seeds"]] * 2
    pairs = zip(other["runs"], plain["runs"], strict=True)
    gaps = [one["score"] - base["score"] for one, base in pairs]
    assert answer["difference"] == pytest.approx(sum(gaps) / len(gaps))
    low, high = answer["interval"]
    assert low <= answer["difference"] <= high


def test_tuning_and_comparison_have_separate_seeds(finished_study: Path) -> None:
    """Trials are of seed 1, finalists of seed 2 too, and pairs of the same further seeds."""
    answer = answer_in(finished_study)
    assert answer["tuning_seeds"] == [1, 2]
    seeds = [[run["seed"] for run in one["runs"]] for one in answer["results"]]
    assert seeds == [list(range(3, 3 + answer["seeds"]))] * 2
    assert answer["seeds"] >= 5
    trials = [one["trials"] for one in answer["results"]]
    assert len({len(of_method) for of_method in trials}) == 1
    assert len(trials[0]) > 1
    assert all(of_method[0]["words"] == [] for of_method in trials)
    assert any(trial["again"] is not None for trial in trials[0])


def test_the_budget_is_kept(finished_study: Path) -> None:
    """No more than 22 runs of 2 rounds are spent, and no pair of runs would fit any more."""
    spent = sum(
        len(read_complete_rounds(path.parent)) for path in finished_study.glob("*/rounds.jsonl")
    )
    assert answer_in(finished_study)["spent"]["spent"] == spent
    assert 22 * 2 - 2 * 2 < spent <= 22 * 2


def test_a_command_repeats_a_number(finished_study: Path, tmp_path: Path) -> None:
    """What the answer prints for a run has the same bits elsewhere."""
    run = answer_in(finished_study)["results"][1]["runs"][0]
    program, *words = shlex.split(run["command"])
    assert program == "fedquorum"
    again = run_from_python(words, {}, output=tmp_path / "again", verbose=False)
    last = read_complete_rounds(again)[-1]
    assert last["test"]["priority"]["accuracy"] == run["score"]
    model = Path("model.safetensors")
    assert (again / model).read_bytes() == (finished_study / run["folder"] / model).read_bytes()


def test_called_again_it_runs_nothing_and_says_the_same(finished_study: Path) -> None:
    """What there is follows from the records."""
    before = answer_in(finished_study)
    folders = sorted(finished_study.iterdir())
    start_study((*SMALL, *ASKED, BUDGET, f"output={finished_study}"))
    assert (answer_in(finished_study), sorted(finished_study.iterdir())) == (before, folders)


def test_another_study_is_refused_in_its_folder(finished_study: Path) -> None:
    """With what differs, and nothing else; tuning that is over is not changed."""
    for word, message in (
        ("metric_key=priority.worst10", r"output must be a new folder .* metric_key is .*worst10"),
        ("rounds=3", "where settings have rounds=2 and do not have rounds=3$"),
        ("client.lr=0.2", "where settings do not have client.lr=0.2$"),
        ("trials=2", "trials must stay at 3 once the tuning of a study is over, got 2"),
    ):
        given = {w.partition("=")[0]: w for w in (*SMALL, *ASKED, BUDGET, word)}
        with pytest.raises((RunError, SettingsError), match=message):
            start_study((*given.values(), f"output={finished_study}"))


def test_the_order_of_words_makes_no_other_study(finished_study: Path) -> None:
    """Who types the command again may begin with another word."""
    folders = sorted(finished_study.iterdir())
    before = answer_in(finished_study)["comparisons"]
    start_study((f"output={finished_study}", BUDGET, *reversed(ASKED), *reversed(SMALL)))
    assert (answer_in(finished_study)["comparisons"], sorted(finished_study.iterdir())) == (
        before,
        folders,
    )


def test_a_study_resumes_where_it_stopped(finished_study: Path, tmp_path: Path) -> None:
    """Without the last runs it runs them again, to the same answer."""
    left = tmp_path / "study"
    shutil.copytree(finished_study, left)
    (left / "study.json").unlink()
    numbers = sorted(int(path.parent.name) for path in left.glob("*/manifest.json"))
    for number in numbers[-2:]:
        shutil.rmtree(left / str(number))
    start_study((*SMALL, *ASKED, BUDGET, f"output={left}"))
    first, second = (answer_in(folder)["results"] for folder in (left, finished_study))
    for one, other in zip(first, second, strict=True):
        assert one["tuned"] == other["tuned"]
        assert [run["score"] for run in one["runs"]] == [run["score"] for run in other["runs"]]


def test_a_study_continues_with_more_budget(finished_study: Path, tmp_path: Path) -> None:
    """The tuning stays as it is, and further seeds come."""
    further = tmp_path / "study"
    shutil.copytree(finished_study, further)
    start_study((*SMALL, *ASKED, "budget=24runs", f"output={further}"))
    before, after = answer_in(finished_study), answer_in(further)
    assert after["seeds"] == before["seeds"] + 1
    assert [one["tuned"] for one in after["results"]] == [one["tuned"] for one in before["results"]]


@pytest.fixture
def first_job_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break every study off when its first jobs begin."""

    def run(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobRunner, "run", run)


@pytest.mark.usefixtures("first_job_interrupt")
def test_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that goes on is printed, with the folder."""
    words = [*SMALL, *ASKED, BUDGET]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 130
    again = shlex.split(capsys.readouterr().err.split("to continue: ")[1])
    assert again[:-1] == ["fedquorum", "study", *words]
    assert (Path(again[-1].removeprefix("output=")) / "progress.json").exists()


@pytest.mark.usefixtures("first_job_interrupt")
def test_methods_that_do_not_fit_are_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of those that answer the question, before anything is run."""
    words = ("goal=fairness", "strategy.fraction=0.5", BUDGET.replace("22", "200"))
    with pytest.raises(SystemExit):
        start_study((*SMALL, *words, f"output={tmp_path}"))
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "aaggff_s" not in first
    assert second.startswith("Left out: aaggff_s (strategy.fraction must be 1")


def test_a_method_that_fails_is_left_out(tmp_path: Path) -> None:
    """The others are compared, and the answer says why."""
    words = (
        "goal=fairness",
        "methods=[term,'custom strategy.path=nowhere.Rule']",
        "trials=0",
        "seeds=5",
        "budget=20runs",
    )
    folder = start_study((*SMALL, *words, f"output={tmp_path / 'study'}"))
    answer = answer_in(folder)
    reasons = {one["name"]: one["left_out"] for one in answer["results"]}
    assert reasons["term"] == reasons["fedavg"] == ""
    assert "nowhere" in reasons["custom strategy.path=nowhere.Rule"]
    assert answer["seeds"] == 5
    assert all(one["trials"] == [] for one in answer["results"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("strategy=fedau",), r"strategy must be left to the study \(methods=\[\.\.\.\] says"),
        (("seed=1,2",), "seed must have one value in a study, got seed=1,2"),
        (("data.validation_fraction=0",), "data.validation_fraction must be above 0 in a study"),
        (("data.priority=all",), "data.priority must name the clients that goal=priority is"),
        (("evaluation.clients=priority",), "evaluation.clients must be all in a study"),
        (
            ("trials=0", "budget=9runs"),
            r"budget must be at least 10runs \(20rounds: 5 seeds of 2 methods\)",
        ),
        (
            ("trials=33", "budget=20runs"),
            r"budget must be at least 70runs \(140rounds: 5 seeds of 2 methods after 33 trials\)",
        ),
        (("metric_key=all.gini",), "metric_key must be GROUP.NAME with a group .* got all.gini"),
        (("client.lrr=1",), "client.lrr is not a setting"),
        (("strategy.selection=alone",), r"\(type strategy/selection=alone\)$"),
        (
            ("methods=['composed strategy.weighting=afl']",),
            r"methods must fit the settings.*\(type strategy/weighting=afl\)$",
        ),
        (("trails=3",), r"trails is neither a word of a study .*\(did you mean trials\?\)$"),
        (("roundz=3",), r"nor a setting of its runs .*\(did you mean rounds\?\)$"),
        (("-m",), "a study takes words KEY=VALUE and no flag but --help, got -m"),
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
    """One line, before anything is run."""
    given = {w.partition("=")[0]: w for w in (*SMALL, *ASKED, BUDGET, *words)}
    output = () if "output" in given else (f"output={tmp_path / 'study'}",)
    with pytest.raises((SettingsError, RunError), match=message):
        start_study((*given.values(), *output))


def test_participation_is_required_for_intermittent_clients() -> None:
    """Unless the user says that they are always there."""
    study = StudySettings("participation", "1h")

    def availability(*words: str) -> str:
        contest = build_comparison(
            collect_common_overrides(map(parse_override, (*SMALL, *words))), study
        )
        return contest.settings.availability.name

    assert availability() == "bernoulli"
    assert availability("availability=always") == "always"
    assert availability("availability=markov") == "markov"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """All words of a study are in it."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name}=" in text for name in StudySettings.__dataclass_fields__)


def test_a_mistake_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and exit status 1."""
    assert main(["goal=priority"]) == 1
    assert capsys.readouterr().err.startswith("fedquorum study: budget must be a number above 0")
