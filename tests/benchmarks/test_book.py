"""The experiment book: written from data, and measured, in small, by the code that measures it."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from fedquorum.errors import FedQuorumError

import benchmarks.book.__main__ as book
from benchmarks.book import render
from benchmarks.book.__main__ import main
from benchmarks.book.aaggff import build_aaggff_tables
from benchmarks.book.chapters import CHAPTERS, Chapter, DirectChapter, SweepChapter
from benchmarks.book.job_queue import (
    ChapterJob,
    get_log_path,
    get_seed,
    list_jobs,
    list_pending_jobs,
    read_chapter_runs,
    run_queue,
)
from benchmarks.book.render import format_book
from benchmarks.book.results import (
    ChapterResult,
    ResultTable,
    SeedStatistic,
    collapse_ranges,
    read_chapter_result,
    summarize_differences,
    summarize_seeds,
    write_chapter_result,
)
from benchmarks.book.runs_log import LoggedRun
from benchmarks.book.summarize import (
    PICTURE_SEEDS,
    draw_chapter_picture,
    select_picture_jobs,
    summarize_runs,
)
from tests.cases import sample_cases

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOT_HERE = {
    *("fedalign/emnist", "fedalign/emnist_fedprox", "fedalign/emnist_partial"),
    *("fedau/cifar100", "fedau/svhn", "fedau/cinic10", "fedawe/svhn", "fedawe/cinic10"),
    *("aaggff/celeba", "aaggff/reddit", "aaggff/isic", "aaggff/speech"),
}
WITHOUT_A_CHAPTER = {
    *("empirical/fmnist", "fedgp/fmnist", "maxfl/fmnist", "power_of_choice/fmnist"),
    "fedalign/synth_other",  # its chapter has it in other words
}
BY_NAME = {chapter.name: chapter for chapter in CHAPTERS}
SMALL = ChapterResult(
    "2026-01-02",
    "abc1234",
    "seed 1",
    "2 rounds",
    100.0,
    "",
    {"one": ResultTable(("method", "x"), (("a", SeedStatistic(1.5, 0.25, 2, 3)), ("b", None)))},
)


def small_docs(folder: Path) -> Path:
    """Return a copy of what the book is written from."""
    for name in ("book", "results", "images"):
        shutil.copytree(DOCS / name, folder / name)
    return folder


def test_the_book_is_what_its_data_says() -> None:
    """docs/results.md is written from docs/book and docs/results, not by hand."""
    assert (DOCS / "results.md").read_text() == format_book(DOCS, quick=False)


def test_the_baseline_quotes_the_book() -> None:
    """The rows of Fashion-MNIST in the baseline's README are the chapter's, method by method."""
    readme = (ROOT / "examples" / "baseline" / "fedau" / "README.md").read_text()
    table = read_chapter_result(DOCS / "results" / "fedau-fmnist.json").tables["test"]
    names = {
        "FedAU, K = ∞": "fedau, K = inf",
        "FedAU, K = 50": "fedau, K = 50",
        "Average participating": "average_participating",
        "Average all": "average_all",
        "Known statistics": "known_statistics",
    }
    quoted = [row for row in readme.splitlines() if "±" in row]
    assert len(quoted) == len(names)
    for row, (quoting, name) in zip(quoted, names.items(), strict=True):
        assert row.replace(quoting, name) in table.to_markdown().splitlines(), quoting


def test_every_preset_on_data_that_is_here_has_a_chapter() -> None:
    """All but those whose data must be fetched, and new ones, which are named here."""
    conf = ROOT / "conf" / "experiment"
    presets = {str(p.relative_to(conf).with_suffix("")) for p in conf.glob("*/*.yaml")}
    run = {
        preset
        for chapter in CHAPTERS
        if isinstance(chapter, SweepChapter)
        for words in chapter.sweeps
        for preset in words[0].removeprefix("experiment=").split(",")
    }
    assert run == presets - NOT_HERE - WITHOUT_A_CHAPTER
    assert presets >= NOT_HERE | WITHOUT_A_CHAPTER


def test_every_chapter_has_its_text_and_no_other_is_there() -> None:
    """A text or data file without a chapter would never be read."""
    texts = {path.stem for path in (DOCS / "book").glob("*.md")}
    assert texts == {"introduction", "claims", *BY_NAME}
    assert {path.stem for path in (DOCS / "results").glob("*.json")} <= set(BY_NAME)


@pytest.mark.parametrize("path", sorted((DOCS / "results").glob("*.json")), ids=lambda p: p.stem)
def test_the_data_is_kept_as_it_is_written(path: Path, tmp_path: Path) -> None:
    """Every row has a cell a heading; read and written again, a file is the same."""
    found = read_chapter_result(path)
    assert found.tables
    assert all(
        len(row) == len(table.headings) for table in found.tables.values() for row in table.rows
    )
    write_chapter_result(found, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()


def test_numbers_are_printed_with_spread_and_count() -> None:
    """Mean ± sd over seeds; of differences, in how many seeds they are above 0."""
    nan = float("nan")
    assert summarize_seeds([nan]) is None
    assert summarize_seeds([3.0]) == SeedStatistic(3.0)
    assert summarize_seeds([1.0, 3.0, nan]) == SeedStatistic(2.0, 1.41421)
    gaps = summarize_differences([-1.0, 0.0, 4.0, nan])
    assert gaps == SeedStatistic(1.0, 2.64575, 1, 3)
    assert gaps.format(1) == "1.0 ± 2.6 (1/3)"
    lines = SMALL.tables["one"].to_markdown().splitlines()
    assert lines[2:] == ["| a | 1.50 ± 0.25 (2/3) |", "| b | - |"]


def test_a_result_states_its_provenance() -> None:
    """Day, commit, seeds, rounds and the time it took, if known."""
    told = "*Measured on 2026-01-02 with abc1234; seed 1; 2 rounds"
    assert SMALL.describe_origin() == f"{told}; 100 s of computing.*"
    assert replace(SMALL, seconds=6000.0).describe_origin() == f"{told}; 100 min of computing.*"
    assert replace(SMALL, seconds=None, note="Old.").describe_origin() == f"{told}. Old.*"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("seed 1", "seed 1"),
        ("seeds 1, 2, 3", "seeds 1, 2, 3"),
        ("seeds 1, 2, 3, 4", "seeds 1 to 4"),
        ("seeds 9, 10, 11, 12, 13", "seeds 9 to 13"),
        ("seeds 1, 2, 3, 5", "seeds 1, 2, 3, 5"),
    ],
)
def test_many_seeds_are_printed_as_a_range(text: str, short: str) -> None:
    """Only where none is missing between them."""
    assert collapse_ranges(text, ", ", "{} to {}".format) == short


def test_a_conclusion_from_older_numbers_says_so(tmp_path: Path) -> None:
    """A text names the numbers that it was written for; with others a line warns."""
    docs = small_docs(tmp_path)
    path = docs / "results" / "aaggff-berka.json"
    old = read_chapter_result(path)
    warning = f"*What follows was written for the numbers of {old.date}, {old.commit}.*"
    assert warning not in format_book(docs, quick=False)
    write_chapter_result(replace(old, commit="abc1234"), path)
    assert format_book(docs, quick=False).count(warning) == 1


def test_a_chapter_without_data_says_so(tmp_path: Path) -> None:
    """A chapter without data has its commands, and no tables and no conclusions."""
    docs = small_docs(tmp_path)
    (docs / "results" / "aaggff-berka.json").unlink()
    chapter = BY_NAME["aaggff-berka"]
    (part,) = (
        part for part in format_book(docs, quick=False).split("\n## ") if chapter.title in part
    )
    assert "fedquorum -m experiment=aaggff/berka" in part
    assert part.rstrip().endswith("*Not measured yet.*")
    assert "not reproduced" not in part


def test_published_numbers_stand_beside_the_measured_ones() -> None:
    """Of the methods measured, the paper's; a stand-in names the data of the paper."""
    berka = BY_NAME["aaggff-berka"]
    assert isinstance(berka, SweepChapter)
    assert berka.published is not None
    measured = {"fairness": ResultTable(("method",), (("fedavg",), ("mifa",)))}
    assert berka.published(measured)["published"].rows == (
        ("fedavg", *map(SeedStatistic, (80.09, 48.06, 99.03, 10.87))),
    )
    book = (DOCS / "results.md").read_text()
    means = " | ".join(f"{name}, weighted by test rows" for name in ("average", "worst 10 %"))
    assert f"| published on CelebA, % | {means} | best 10 %, weighted by test rows | Gini |" in book


def test_a_table_of_aaggff_says_which_form_a_row_is() -> None:
    """Forms, optimizers and samples tell rows apart; only runs of like settings are compared."""
    words = (
        ("strategy=aaggff_s",),
        ("strategy=aaggff_s", "strategy.variant=authors_code"),
        ("strategy=qfedavg",),
        ("strategy=qfedavg", "strategy.lipschitz=10"),
        ("strategy=fedavg", "server_optimizer=adam"),
        ("strategy=aaggff_s", "server_optimizer=adam"),
        ("strategy=fedavg", "client.proximal_mu=0.001"),
        ("strategy=fedavg", "strategy.fraction=0.0927"),
    )
    runs = [
        LoggedRun(
            ("experiment=aaggff/heart", *told, "seed=1"),
            *(told[0].removeprefix("strategy="), 1, 2, "", "", 1.0, {}),
            {"average": 0.5, "average_by_rows": 0.25, "regret": 0.1, "regret_bound_proven": 0.0},
        )
        for told in words
    ]
    tables = build_aaggff_tables(runs)
    assert {row[0] for row in tables["fairness"].rows} == {
        *("aaggff_s", "aaggff_s, authors' code", "aaggff_s, FedAdam", "fedavg, FedAdam"),
        *("qfedavg, mixing form", "qfedavg, authors' form with h"),
        *("fedavg, FedProx", "fedavg, 9.3% in a round"),
    }
    assert {row[0] for row in tables["differences"].rows} == {
        "aaggff_s - qfedavg, mixing form",
        "aaggff_s - qfedavg, authors' form with h",
        "aaggff_s, authors' code - qfedavg, mixing form",
        "aaggff_s, authors' code - qfedavg, authors' form with h",
        "aaggff_s, FedAdam - fedavg, FedAdam",
    }
    assert {row[-1] for row in tables["regret"].rows} == {"not proven here"}
    (cells,) = (row for row in tables["fairness"].rows if row[0] == "aaggff_s")
    assert cells[2:4] == (SeedStatistic(50.0), SeedStatistic(25.0))


def test_a_wrong_name_is_reported_with_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """The names that there are stand in the message."""
    with pytest.raises(SystemExit) as end:
        main(["--run", "fedalign-nothing"])
    assert end.value.code == 2
    assert "fedalign-synth" in capsys.readouterr().err


def test_what_is_measured_without_runs() -> None:
    """The cutoff's table has a row a K and the bias term; that of decisions a row a rule."""
    decisions = BY_NAME["decisions"]
    assert isinstance(decisions, DirectChapter)
    (table,) = decisions.make_quick().measure().values()
    assert {row[0] for row in table.rows} == {"AAggFF-S", "FedMGDA+"}
    assert all(
        isinstance(cell, SeedStatistic) and cell.mean >= 0 for r in table.rows for cell in r[3:]
    )


def test_a_chapter_is_a_queue_of_runs() -> None:
    """Every combination of its sweeps, the first seed of all methods first, each once."""
    chapter = BY_NAME["fedalign-eps_decay"]
    assert isinstance(chapter, SweepChapter)
    words = [job.overrides for job in list_jobs(chapter)]
    assert len(set(words)) == len(words) == 5 * 5 + 3 * 5
    seeds = [word for one in words for word in one if word.startswith("seed=")]
    assert seeds == [f"seed={seed}" for seed in range(1, 6) for _ in range(8)]
    assert "strategy.epsilon_schedule=cosine" in words[2]


@pytest.mark.slow
def test_nothing_is_measured_twice(tmp_path: Path) -> None:
    """A queue that is stopped goes on, elsewhere too: what is kept suffices for the tables."""
    chapter = BY_NAME["fedalign-synth"].make_quick()
    assert isinstance(chapter, SweepChapter)
    first, *others = list_pending_jobs([chapter], tmp_path)
    assert run_queue([first, *others], tmp_path, tmp_path / "runs", minutes=0) == 3
    assert read_chapter_runs(chapter, tmp_path) == ()
    assert run_queue([first], tmp_path, tmp_path / "runs") == 0
    assert list_pending_jobs([chapter], tmp_path) == tuple(others)
    assert (
        summarize_runs(chapter, read_chapter_runs(chapter, tmp_path)).note
        == "1 of its 3 runs so far."
    )
    assert run_queue(others, tmp_path, tmp_path / "elsewhere") == 0
    assert list_pending_jobs([chapter], tmp_path) == ()
    runs = read_chapter_runs(chapter, tmp_path)
    assert {run.words for run in runs} == {job.overrides for job in list_jobs(chapter)}
    assert {run.versions["packages"]["torch"] for run in runs} == {version("torch")}
    measured = summarize_runs(chapter, runs)
    assert [row[0] for row in measured.tables["accuracy"].rows] == [
        f"synth_{noise}, fedalign" for noise in ("high", "low", "medium")
    ]
    assert measured.note == ""
    assert draw_chapter_picture(chapter, tmp_path / "runs") is None
    manifests = [json.loads(path.read_text()) for path in tmp_path.rglob("manifest.json")]
    assert {m["commit"][:7] for m in manifests} == {measured.commit[:7]}
    assert measured.date in {m["started"][:10] for m in manifests}


def test_a_run_that_fails_is_not_kept(tmp_path: Path) -> None:
    """The others are, and the error is the run's."""
    chapter = BY_NAME["fedalign-synth"].make_quick()
    assert isinstance(chapter, SweepChapter)
    good = list_jobs(chapter)[0]
    bad = ChapterJob(good.chapter, (*good.overrides, "client.lr=0"), good.numbers)
    with pytest.raises(FedQuorumError, match=r"client\.lr must be"):
        run_queue([bad, good], tmp_path, tmp_path / "folder")
    assert not get_log_path(chapter.name, tmp_path).exists()


@pytest.mark.parametrize("path", sorted((DOCS / "results" / "runs").glob("*.ndjson")), ids=str)
def test_what_is_kept_of_runs_is_what_the_book_says(path: Path) -> None:
    """The numbers of a chapter follow from its lines; a line that no chapter has would be lost.

    Until all runs are kept an earlier measurement stands if it has more seeds.
    """
    chapter = BY_NAME[path.stem]
    assert isinstance(chapter, SweepChapter)
    runs = read_chapter_runs(chapter, DOCS / "results")
    assert len(runs) == len(path.read_text().splitlines())
    assert path == get_log_path(chapter.name, DOCS / "results")
    found = summarize_runs(chapter, runs)
    told = read_chapter_result(DOCS / "results" / f"{path.stem}.json")
    unfinished = len(runs) < len(list_jobs(chapter))
    assert found == told or (unfinished and found.num_seeds < told.num_seeds)


@pytest.mark.parametrize(
    ("more", "lacking", "stands"), [("", 1, False), (", 6", 1, True), (", 6", 0, False)]
)
def test_an_earlier_measurement_stands_while_it_has_more_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, lacking: int, *, stands: bool
) -> None:
    """A queue that was stopped early takes no seeds away from the book; one at its end may."""
    docs = small_docs(tmp_path / "docs")
    monkeypatch.setattr(book, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    chapter = BY_NAME["answers-priority"]
    assert isinstance(chapter, SweepChapter)
    lines = get_log_path(chapter.name, docs / "results")
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[lacking:]))
    path = docs / "results" / "answers-priority.json"
    earlier = read_chapter_result(path)
    earlier = replace(earlier, seeds=f"{earlier.seeds}{more}", note="earlier")
    write_chapter_result(earlier, path)
    assert main(["--run", "answers-priority", "--minutes", "0"]) == 0
    kept = summarize_runs(chapter, read_chapter_runs(chapter, docs / "results"))
    assert read_chapter_result(path) == (earlier if stands else kept)


def test_a_figure_is_drawn_from_separate_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every method with the same few seeds; a run that is there is not run again."""
    docs = small_docs(tmp_path / "docs")
    monkeypatch.setattr(book, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    chapter = BY_NAME["fedalign-fmnist"]
    assert isinstance(chapter, SweepChapter)
    jobs = select_picture_jobs(chapter)
    methods = Counter(tuple(w for w in job.overrides if not w.startswith("seed=")) for job in jobs)
    assert set(methods.values()) == {len(PICTURE_SEEDS)}
    assert {get_seed(job.overrides) for job in jobs} == set(PICTURE_SEEDS)
    done, *others = jobs
    done.get_folder(tmp_path).mkdir(parents=True)
    (done.get_folder(tmp_path) / "manifest.json").write_text('{"status": "completed"}')
    ran: list[ChapterJob] = []
    monkeypatch.setattr(book, "run_chapter_job", lambda job, _: ran.append(job))
    monkeypatch.setattr(book, "draw_chapter_picture", lambda *_: b"drawn")
    assert main(["--picture", chapter.name, "--folder", str(tmp_path)]) == 0
    assert ran == others
    assert (docs / "images" / f"{chapter.name}.png").read_bytes() == b"drawn"


def with_picture(chapters: Sequence[Chapter]) -> tuple[Chapter, ...]:
    """Return these chapters and the one whose picture the test looks at, in the book's order."""
    return tuple(c for c in CHAPTERS if c in chapters or c.name == "fedalign-fmnist")


@pytest.mark.slow
def test_the_quick_book(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every preset that runs on the data here, measured in small, with all tables.

    The suite measures some chapters, ``--long`` all of them.
    """
    chapters = with_picture(sample_cases(CHAPTERS, 1))
    for part in (book, render):
        monkeypatch.setattr(part, "CHAPTERS", chapters)
    monkeypatch.setenv("FEDQUORUM_DATA", str(real_data))
    before = (DOCS / "results.md").read_text()
    assert main(["--quick", "--folder", str(tmp_path)]) == 0
    text = (tmp_path / "docs" / "results.md").read_text()
    assert re.findall("^## (.*)$", text, re.MULTILINE) == [chapter.title for chapter in chapters]
    assert "Not measured yet" not in text
    assert "reproduced" not in text
    for chapter in chapters:
        found = read_chapter_result(tmp_path / "docs" / "results" / f"{chapter.name}.json")
        main_table = next(iter(found.tables.values()))
        assert any(isinstance(cell, SeedStatistic) for row in main_table.rows for cell in row)
    assert (tmp_path / "docs" / "images" / "fedalign-fmnist.png").stat().st_size > 10_000
    assert (DOCS / "results.md").read_text() == before
