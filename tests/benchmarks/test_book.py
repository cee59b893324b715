"""Tests of the experiment book: its texts, its logged runs, and the small quick book."""

import json
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import pytest
from fedquorum.errors import FedQuorumError

import benchmarks.book.__main__ as book
from benchmarks.book import job_queue, render
from benchmarks.book.__main__ import main
from benchmarks.book.aaggff import build_aaggff_tables
from benchmarks.book.chapters import (
    CHAPTERS,
    MORE_LOOKS,
    Chapter,
    DirectChapter,
    SweepChapter,
)
from benchmarks.book.claims_data import CLAIMS
from benchmarks.book.job_queue import (
    ChapterJob,
    find_complete_look,
    get_log_path,
    get_seed,
    list_jobs,
    list_pending_jobs,
    read_chapter_runs,
    run_queue,
)
from benchmarks.book.next_looks import find_next_look
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
from benchmarks.book.runs_log import LoggedRun, read_run_log
from benchmarks.book.summarize import (
    PICTURE_SEEDS,
    draw_chapter_picture,
    select_picture_jobs,
    summarize_runs,
)
from tests.cases import sample_cases

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WITHOUT_DATA = {
    *("fedalign/emnist", "fedalign/emnist_fedprox", "fedalign/emnist_partial"),
    *("fedau/cifar100", "fedau/svhn", "fedau/cinic10", "fedawe/svhn", "fedawe/cinic10"),
    *("aaggff/celeba", "aaggff/reddit", "aaggff/isic", "aaggff/speech"),
}
WITHOUT_CHAPTER = {
    *("empirical/fmnist", "fedgp/fmnist", "maxfl/fmnist", "power_of_choice/fmnist"),
    "fedalign/synth_other",  # its chapter runs it with other overrides
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


def copy_docs(folder: Path) -> Path:
    """Copy the sources of the book."""
    for name in ("book", "results", "images"):
        shutil.copytree(DOCS / name, folder / name)
    return folder


def test_book_is_up_to_date() -> None:
    """The committed docs/results.md equals the book written from docs/book and docs/results."""
    assert (DOCS / "results.md").read_text() == format_book(DOCS, quick=False)


def test_baseline_readme_quotes_the_book() -> None:
    """The Fashion-MNIST rows of the baseline's README equal those of the chapter."""
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
    for row, (label, name) in zip(quoted, names.items(), strict=True):
        assert row.replace(label, name) in table.to_markdown().splitlines(), label


def test_every_preset_with_local_data_has_a_chapter() -> None:
    """The exceptions are presets whose data must be downloaded, and those named here."""
    conf = ROOT / "conf" / "experiment"
    presets = {str(p.relative_to(conf).with_suffix("")) for p in conf.glob("*/*.yaml")}
    run = {
        preset
        for chapter in CHAPTERS
        if isinstance(chapter, SweepChapter)
        for overrides in chapter.sweeps
        for preset in overrides[0].removeprefix("experiment=").split(",")
    }
    assert run == presets - WITHOUT_DATA - WITHOUT_CHAPTER
    assert presets >= WITHOUT_DATA | WITHOUT_CHAPTER


def test_texts_match_chapters() -> None:
    """Every chapter has a text, and every text and result has a chapter."""
    texts = {path.stem for path in (DOCS / "book").glob("*.md")}
    assert texts == {"introduction", "practice", "claims", "undecided", *BY_NAME}
    assert {path.stem for path in (DOCS / "results").glob("*.json")} <= set(BY_NAME)


@pytest.mark.parametrize("name", BY_NAME)
def test_conclusions_name_the_day_of_their_numbers(name: str) -> None:
    """Without it nobody could tell that the numbers have changed since."""
    text = (DOCS / "book" / f"{name}.md").read_text()
    _, date, _, after = render.TABLES_COMMENT.split(text, maxsplit=1)
    assert date or not after.strip()


@pytest.mark.parametrize("path", sorted((DOCS / "results").glob("*.json")), ids=lambda p: p.stem)
def test_result_files_survive_a_round_trip(path: Path, tmp_path: Path) -> None:
    """Every row has one cell for each heading; reading and writing leaves the file unchanged."""
    result = read_chapter_result(path)
    assert result.tables
    assert all(
        len(row) == len(table.headings) for table in result.tables.values() for row in table.rows
    )
    write_chapter_result(result, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()


def test_statistics_have_spread_and_count() -> None:
    """A statistic is mean ± sd over seeds; a difference adds the number of seeds above 0."""
    nan = float("nan")
    assert summarize_seeds([nan]) is None
    assert summarize_seeds([3.0]) == SeedStatistic(3.0)
    assert summarize_seeds([1.0, 3.0, nan]) == SeedStatistic(2.0, 1.41421)
    gaps = summarize_differences([-1.0, 0.0, 4.0, nan])
    assert gaps == SeedStatistic(1.0, 2.64575, 1, 3)
    assert gaps.format(1) == "1.0 ± 2.6 (1/3)"
    lines = SMALL.tables["one"].to_markdown().splitlines()
    assert lines[2:] == ["| a | 1.50 ± 0.25 (2/3) |", "| b | - |"]


def test_a_result_describes_its_origin() -> None:
    """The origin has day, commit, seeds, rounds and, if known, the computing time."""
    origin = "*Measured on 2026-01-02 with abc1234; seed 1; 2 rounds"
    assert SMALL.describe_origin() == f"{origin}; 100 s of computing.*"
    assert replace(SMALL, seconds=6000.0).describe_origin() == f"{origin}; 100 min of computing.*"
    assert replace(SMALL, seconds=None, note="Old.").describe_origin() == f"{origin}. Old.*"


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
def test_consecutive_seeds_become_a_range(text: str, short: str) -> None:
    """Lists with a gap or fewer than four seeds stay unchanged."""
    assert collapse_ranges(text, ", ", "{} to {}".format) == short


def test_a_text_for_older_numbers_has_a_warning(tmp_path: Path) -> None:
    """A text names the day and commit of its numbers; a line warns if the result has others."""
    docs = copy_docs(tmp_path)
    path = docs / "results" / "aaggff-berka.json"
    old = read_chapter_result(path)
    warning = f"*What follows was written for the numbers of {old.date}, {old.commit}.*"
    assert warning not in format_book(docs, quick=False)
    write_chapter_result(replace(old, commit="abc1234"), path)
    assert format_book(docs, quick=False).count(warning) == 1


def test_a_chapter_without_a_result_is_marked(tmp_path: Path) -> None:
    """It has its commands, but neither tables nor conclusions."""
    docs = copy_docs(tmp_path)
    (docs / "results" / "aaggff-heart.json").unlink()
    chapter = BY_NAME["aaggff-heart"]
    (part,) = (
        part for part in format_book(docs, quick=False).split("\n## ") if chapter.title in part
    )
    assert "fedquorum -m experiment=aaggff/heart" in part
    assert part.rstrip().endswith("*Not measured yet.*")
    assert "**undecided**" not in part


def test_published_numbers_follow_the_measured_methods() -> None:
    """The table has the paper's numbers of measured methods; a stand-in names the paper's data."""
    berka = BY_NAME["aaggff-berka"]
    assert isinstance(berka, SweepChapter)
    assert berka.published is not None
    tables = {"fairness": ResultTable(("method",), (("fedavg",), ("mifa",)))}
    assert berka.published(tables)["published"].rows == (
        ("fedavg", *map(SeedStatistic, (80.09, 48.06, 99.03, 10.87))),
    )
    book = (DOCS / "results.md").read_text()
    means = " | ".join(f"{name}, weighted by test rows" for name in ("average", "worst 10 %"))
    assert f"| published on CelebA, % | {means} | best 10 %, weighted by test rows | Gini |" in book


def test_aaggff_rows_name_their_variant() -> None:
    """Variant, optimizer and fraction distinguish rows; differences need equal settings."""
    variants = (
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
            ("experiment=aaggff/heart", *variant, "seed=1"),
            *(variant[0].removeprefix("strategy="), 1, 2, "", "", 1.0, {}),
            {"average": 0.5, "average_by_rows": 0.25, "regret": 0.1, "regret_bound_proven": 0.0},
        )
        for variant in variants
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


def test_an_unknown_chapter_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists the valid names."""
    with pytest.raises(SystemExit) as end:
        main(["--run", "fedalign-nothing"])
    assert end.value.code == 2
    assert "fedalign-synth" in capsys.readouterr().err


def test_a_direct_chapter_measures_its_table() -> None:
    """The table of decisions has a row for each rule."""
    decisions = BY_NAME["decisions"]
    assert isinstance(decisions, DirectChapter)
    (table,) = decisions.make_quick().measure().values()
    assert {row[0] for row in table.rows} == {"AAggFF-S", "FedMGDA+"}
    assert all(
        isinstance(cell, SeedStatistic) and cell.mean >= 0 for r in table.rows for cell in r[3:]
    )


def test_a_chapter_lists_its_runs_by_seed() -> None:
    """Every combination of its sweeps occurs once; the first seed of all methods comes first."""
    chapter = BY_NAME["fedalign-eps_decay"]
    assert isinstance(chapter, SweepChapter)
    jobs = [job.overrides for job in list_jobs(chapter)]
    assert len(set(jobs)) == len(jobs) == 5 * 5 + 3 * 5
    seeds = [item for overrides in jobs for item in overrides if item.startswith("seed=")]
    assert seeds == [f"seed={seed}" for seed in range(1, 6) for _ in range(8)]
    assert "strategy.epsilon_schedule=cosine" in jobs[2]


@pytest.mark.slow
def test_logged_runs_are_not_repeated(tmp_path: Path) -> None:
    """A stopped queue resumes, also in another folder; the log is enough to build the tables."""
    chapter = BY_NAME["fedalign-synth"].make_quick()
    assert isinstance(chapter, SweepChapter)
    first, *others = list_pending_jobs([chapter], tmp_path)
    assert run_queue([first, *others], tmp_path, tmp_path / "runs", deadline=0.0) == 3
    assert read_chapter_runs(chapter, tmp_path) == ()
    assert run_queue([first], tmp_path, tmp_path / "runs") == 0
    assert list_pending_jobs([chapter], tmp_path) == tuple(others)
    assert find_complete_look(chapter, tmp_path) is None
    assert run_queue(others, tmp_path, tmp_path / "elsewhere") == 0
    assert list_pending_jobs([chapter], tmp_path) == ()
    runs = read_chapter_runs(chapter, tmp_path)
    assert {run.words for run in runs} == {job.overrides for job in list_jobs(chapter)}
    assert {run.versions["packages"]["torch"] for run in runs} == {version("torch")}
    result = summarize_runs(chapter, runs)
    assert [row[0] for row in result.tables["accuracy"].rows] == [
        f"synth_{noise}, fedalign" for noise in ("high", "low", "medium")
    ]
    assert result.note == ""
    assert draw_chapter_picture(chapter, tmp_path / "runs") is None
    manifests = [json.loads(path.read_text()) for path in tmp_path.rglob("manifest.json")]
    assert {m["commit"][:7] for m in manifests} == {result.commit[:7]}
    assert result.date in {m["started"][:10] for m in manifests}


def test_a_failed_run_is_not_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue raises the error of the run."""
    chapter = BY_NAME["fedalign-synth"].make_quick()
    assert isinstance(chapter, SweepChapter)
    good = list_jobs(chapter)[0]
    bad = ChapterJob(good.chapter, (*good.overrides, "client.lr=0"), good.numbers)
    # Threads instead of processes, which would import everything again; the test above has those.
    monkeypatch.setattr(job_queue, "ProcessPoolExecutor", lambda n, _: ThreadPoolExecutor(n))
    with pytest.raises(FedQuorumError, match=r"client\.lr must be"):
        run_queue([bad, good], tmp_path, tmp_path / "folder")
    assert not get_log_path(chapter.name, tmp_path).exists()


@pytest.mark.parametrize("path", sorted((DOCS / "results" / "runs").glob("*.ndjson")), ids=str)
def test_results_follow_from_the_logged_runs(path: Path) -> None:
    """The result of a chapter is that of its last look whose runs are all logged.

    Every line of the log belongs to a declared run.
    """
    chapter = BY_NAME[path.stem]
    assert isinstance(chapter, SweepChapter)
    assert path == get_log_path(chapter.name, DOCS / "results")
    logged = read_run_log(path)
    most_seeds = max(chapter.looks[-1], len({run.seed for run in logged}))
    declared = {job.overrides for job in list_jobs(chapter.with_seeds(most_seeds))}
    assert {run.words for run in logged} <= declared
    assert len({run.words for run in logged}) == len(logged)
    look = find_complete_look(chapter, DOCS / "results")
    result = DOCS / "results" / f"{path.stem}.json"
    assert result.exists() == (look is not None)
    if look is not None:
        runs = read_chapter_runs(look, DOCS / "results")
        assert read_chapter_result(result) == summarize_runs(look, runs)


@pytest.fixture
def small_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of documents of a copy of the book, which the command line writes."""
    monkeypatch.setattr(book, "ROOT", tmp_path)
    monkeypatch.setattr(book, "write_claim_charts", lambda *_: None)
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    return copy_docs(tmp_path / "docs")


def keep_first_seeds(name: str, results: Path) -> None:
    """Forget the runs of all seeds beyond the first look of a chapter."""
    chapter = BY_NAME[name]
    assert isinstance(chapter, SweepChapter)
    log = get_log_path(chapter.name, results)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(one for one in lines if json.loads(one)["seed"] <= chapter.looks[0]))
    runs = read_chapter_runs(chapter, results)
    write_chapter_result(summarize_runs(chapter, runs), results / f"{chapter.name}.json")


def test_the_first_result_waits_for_all_runs(small_book: Path) -> None:
    """A chapter without a result gets none from a queue that stops before its last run."""
    path = small_book / "results" / "answers-priority.json"
    measured = read_chapter_result(path)
    path.unlink()
    log = get_log_path("answers-priority", small_book / "results")
    lines = log.read_text()
    for logged, result in ((lines[lines.index("\n") + 1 :], None), (lines, measured)):
        log.write_text(logged)
        assert main(["--run", "answers-priority", "--minutes", "0"]) == 0
        assert (read_chapter_result(path) if path.exists() else None) == result


def add_seeds(name: str, results: Path, num_seeds: int) -> list[str]:
    """Log the runs of a chapter that are missing for ``num_seeds``; return their lines.

    The numbers of seed n are those of seed 1.
    """
    chapter = BY_NAME[name]
    assert isinstance(chapter, SweepChapter)
    pending = {job.overrides for job in list_pending_jobs([chapter.with_seeds(num_seeds)], results)}
    log = get_log_path(name, results)
    first = [run for run in read_run_log(log) if run.seed == 1]
    with log.open("a") as file:
        for seed in range(2, num_seeds + 1):
            for run in first:
                words = tuple(f"seed={seed}" if w == "seed=1" else w for w in run.words)
                if words in pending:
                    file.write(json.dumps(asdict(replace(run, words=words, seed=seed))) + "\n")
    assert not list_pending_jobs([chapter.with_seeds(num_seeds)], results)
    return log.read_text().splitlines(keepends=True)


def test_a_result_has_the_seeds_of_the_last_complete_look(small_book: Path) -> None:
    """Runs of a look that is not complete, or between two looks, change no number."""
    name, results = "fedalign-one_client", small_book / "results"
    keep_first_seeds(name, results)
    lines = add_seeds(name, results, 10)
    counts = []
    for count in (len(lines) - 1, len(lines)):
        get_log_path(name, results).write_text("".join(lines[:count]))
        assert main(["--run", name, "--minutes", "0"]) == 0
        counts.append(read_chapter_result(results / f"{name}.json").num_seeds)
    assert counts == [5, 10]
    text = (small_book / "results.md").read_text()
    assert "'seed=range(1,11)' strategy=fedavg_priority,fedavg" in text
    add_seeds(name, results, 12)
    assert main(["--run", name, "--minutes", "0"]) == 0
    assert read_chapter_result(results / f"{name}.json").num_seeds == 10


def test_planned_looks_are_of_chapters_with_claims() -> None:
    """A name that is no chapter's, or fewer seeds than there are, would change nothing."""
    claimed = {claim.chapter for claim in CLAIMS}
    for name, more in MORE_LOOKS.items():
        chapter = BY_NAME[name]
        assert isinstance(chapter, SweepChapter)
        assert name in claimed
        assert chapter.looks[1:] == more
        assert [*chapter.looks] == sorted({*chapter.looks})


def test_undecided_chapters_get_the_seeds_of_their_next_look(small_book: Path) -> None:
    """A decided chapter gets none, unless seeds are asked for, also beyond the plan."""
    results = small_book / "results"
    chapter = BY_NAME["fedalign-one_client"]
    assert isinstance(chapter, SweepChapter)
    assert chapter.looks == (5, 10, 20)
    keep_first_seeds(chapter.name, results)
    look = find_next_look(chapter, results, is_undecided=True)
    assert look is not None
    assert {get_seed(job.overrides) for job in look.jobs} == {6, 7, 8, 9, 10}
    assert look.seconds == pytest.approx(25 * mean_seconds(chapter, results))
    assert find_next_look(chapter, results, is_undecided=False) is None
    assert find_next_look(chapter, results, is_undecided=False, min_seeds=9) is None
    beyond = find_next_look(chapter, results, is_undecided=False, min_seeds=10)
    assert beyond is not None
    assert beyond.jobs == look.jobs
    add_seeds(chapter.name, results, 20)
    assert find_next_look(chapter, results, is_undecided=True) is None
    beyond = find_next_look(chapter, results, is_undecided=True, min_seeds=21)
    assert beyond is not None
    assert {get_seed(job.overrides) for job in beyond.jobs} == {21}
    add_seeds(chapter.name, results, 21)
    done = find_complete_look(chapter, results)
    assert done is not None
    assert done.num_seeds == 21


def mean_seconds(chapter: SweepChapter, results: Path) -> float:
    """Return the mean time of a chapter's logged runs."""
    return statistics.mean(run.seconds for run in read_chapter_runs(chapter, results))


def test_the_cheapest_decision_comes_first(
    small_book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The queue continues until every chapter is decided or has all its seeds."""
    names = ["fedalign-fmnist_fedprox", "fedalign-one_client"]
    for name in names:
        keep_first_seeds(name, small_book / "results")

    def pretend(jobs: Sequence[ChapterJob], results: Path, *_: object, **__: object) -> int:
        add_seeds(jobs[0].chapter, results, max(get_seed(job.overrides) for job in jobs))
        return 0

    monkeypatch.setattr(book, "run_queue", pretend)
    assert main(["--run", *names]) == 0
    looks = [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert looks == [
        "fedalign-one_client: 25 runs until 10 seeds",
        "fedalign-fmnist_fedprox: 20 runs until 10 seeds",
        "fedalign-one_client: 50 runs until 20 seeds",
        "fedalign-fmnist_fedprox: 40 runs until 20 seeds",
    ]
    assert main(["--run", *names]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.slow
def test_a_picture_makes_only_missing_runs(
    small_book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture has the same few seeds of every method; completed runs are not repeated."""
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
    assert (small_book / "images" / f"{chapter.name}.png").read_bytes() == b"drawn"


def add_picture_chapter(chapters: Sequence[Chapter]) -> tuple[Chapter, ...]:
    """Add the chapter whose picture the test checks, in the book's order."""
    return tuple(c for c in CHAPTERS if c in chapters or c.name == "fedalign-fmnist")


@pytest.mark.slow
def test_the_quick_book(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick book measures its chapters, with all tables, and leaves docs/results.md alone.

    The suite measures some chapters, ``--long`` all of them.
    """
    chapters = add_picture_chapter(sample_cases(CHAPTERS, 1))
    for module in (book, render):
        monkeypatch.setattr(module, "CHAPTERS", chapters)
    monkeypatch.setenv("FEDQUORUM_DATA", str(real_data))
    before = (DOCS / "results.md").read_text()
    assert main(["--quick", "--folder", str(tmp_path)]) == 0
    text = (tmp_path / "docs" / "results.md").read_text()
    assert re.findall("^## (.*)$", text, re.MULTILINE) == [chapter.title for chapter in chapters]
    assert "Not measured yet" not in text
    assert "reproduced" not in text
    for chapter in chapters:
        result = read_chapter_result(tmp_path / "docs" / "results" / f"{chapter.name}.json")
        main_table = next(iter(result.tables.values()))
        assert any(isinstance(cell, SeedStatistic) for row in main_table.rows for cell in row)
    assert (tmp_path / "docs" / "images" / "fedalign-fmnist.png").stat().st_size > 10_000
    assert (DOCS / "results.md").read_text() == before
