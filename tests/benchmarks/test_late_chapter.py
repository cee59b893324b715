"""Tests of the chapter about slow clients."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from fedquorum.records.reader import Run, load_run
from matplotlib.figure import Figure

from benchmarks.book import late_picture
from benchmarks.book.chapters import CHAPTERS, SweepChapter
from benchmarks.book.late import (
    CONDITIONS,
    NUM_AVERAGED,
    REFERENCE,
    WORLDS,
    build_late_tables,
    find_overrides,
    find_stable_time,
)
from benchmarks.book.results import SeedStatistic, read_chapter_result
from benchmarks.book.runs_log import LoggedRun
from tests.fedquorum.records.made import make_round_line
from tests.fedquorum.records.made import make_run as make_run_folder

DOCS = Path(__file__).resolve().parents[2] / "docs"
INDEPENDENT, CORRELATED = WORLDS


def make_run(
    condition: str, world: str, seed: int, test: float, reached: float | None = 100.0
) -> LoggedRun:
    """Make a logged run with an accuracy at the end, and the seconds to 75 % and 80 %."""
    numbers = {
        "test": test,
        "worst10": test / 2,
        "reached": {"75": reached, "80": None},
        "weights": [1.5, 1.2, 1.0, 0.8, 0.5],
    }
    overrides = (*WORLDS[world], *CONDITIONS[condition], f"seed={seed}")
    return LoggedRun(overrides, "any", seed, 5, "2026-01-02T00:00", "abc1234", 1.0, {}, numbers)


def test_the_time_is_that_after_which_the_mean_stays_above() -> None:
    """A crossing from which a run falls back does not count, and one value alone neither."""
    seconds = [20.0 * i for i in range(1, 41)]
    assert find_stable_time(seconds, [0.8] * 40, 0.75) == seconds[NUM_AVERAGED - 1]
    steps = [0.6] * 10 + [0.9] * 30
    # With five values of 0.9 among nine the mean is 0.77.
    assert find_stable_time(seconds, steps, 0.75) == seconds[14]
    fallen = [0.9] * 15 + [0.6] * 10 + [0.9] * 15
    assert find_stable_time(seconds, fallen, 0.75) == seconds[29]
    assert find_stable_time(seconds, [0.9] * 39 + [0.0], 0.75) is not None
    assert find_stable_time(seconds, [0.9] * 20 + [0.6] * 20, 0.75) is None
    assert find_stable_time(seconds[:8], [0.9] * 8, 0.75) is None


def test_every_run_of_the_chapter_has_one_condition_and_world() -> None:
    """A condition whose overrides are some of another's is not taken for it."""
    (chapter,) = [chapter for chapter in CHAPTERS if chapter.name == "answers-late"]
    assert isinstance(chapter, SweepChapter)
    assert [find_overrides(sweep) for sweep in chapter.sweeps] == [
        (world, name) for world in WORLDS for name in CONDITIONS
    ]


def test_rows_are_conditions_and_columns_worlds() -> None:
    """Differences are paired with FedBuff, with an interval of Student's t."""
    name = "25 replies, FedAU, a = 0.5"
    runs = [
        make_run(name, CORRELATED, 1, 0.83),
        make_run(name, CORRELATED, 2, 0.84, None),
        make_run(REFERENCE, CORRELATED, 1, 0.81),
        make_run(REFERENCE, CORRELATED, 2, 0.81),
        make_run(REFERENCE, INDEPENDENT, 1, 0.84),
    ]
    tables = build_late_tables(runs)
    assert tables["test"].headings[1:] == (INDEPENDENT, CORRELATED)
    assert [row[0] for row in tables["test"].rows] == [REFERENCE, name]
    _, missing, other = tables["test"].rows[1]
    assert missing is None
    assert isinstance(other, SeedStatistic)
    assert other.mean == pytest.approx(83.5)
    # The quantile of one degree of freedom is tan(0.475 pi).
    half = math.tan(0.475 * math.pi) * 0.5
    assert tables["differences"].rows == (
        (name, None, f"2.50 [{2.5 - half:.2f}, {2.5 + half:.2f}]"),
    )
    assert tables["seconds"].rows[1][2] == "in 1 of 2 seeds"
    assert tables["seconds"].rows[1][4] == "never"
    slowest = tables["slowest"].rows[0][2]
    assert isinstance(slowest, SeedStatistic)
    assert slowest.mean == 0.5


QUOTED = {
    "all 250 reply": "all",
    "a fifth, the rest discarded": "0.2 of all, discarded",
    "25 replies of any age, FedBuff": REFERENCE,
    "the same, FedAU, a = 0.5": "25 replies, FedAU, a = 0.5",
    "the same, FedAU, a = 0, `server_lr` 0.3": "25 replies, FedAU, a = 0, server_lr 0.3",
}


def test_the_page_about_slow_clients_quotes_the_book() -> None:
    """Each row of its table has the chapter's numbers, rounded."""
    tables = read_chapter_result(DOCS / "results" / "answers-late.json").tables
    cells = {name: {row[0]: row[1:] for row in table.rows} for name, table in tables.items()}
    lines = (DOCS / "quorum.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| how a round closes"))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[start + 2 : start + 2 + len(QUOTED)]
    ]
    assert [row[0] for row in rows] == [*QUOTED]
    for row in rows:
        way = QUOTED[row[0]]
        quoted = {"test": (row[1], row[2]), "worst10": (None, row[4])}
        for name, (independent, correlated) in quoted.items():
            for text, cell in zip((independent, correlated), cells[name][way], strict=True):
                assert isinstance(cell, SeedStatistic)
                assert text in (None, f"{cell.mean:.1f}")
        if way != REFERENCE:
            assert row[3] == cells["differences"][way][1]
        for text, name in zip(row[5:], ("slowest", "fastest"), strict=True):
            cell = cells[name][way][1]
            assert isinstance(cell, SeedStatistic)
            assert text == f"{cell.mean:.2f}"


def test_the_picture_has_a_panel_for_each_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line is the mean over seeds, of means over the last evaluations."""
    drawn: list[Figure] = []
    monkeypatch.setattr(late_picture, "to_png", lambda figure, _: drawn.append(figure))
    runs: dict[tuple[str, ...], Run] = {}
    for world, seed, accuracy in ((CORRELATED, 1, 0.7), (CORRELATED, 2, 0.8), (INDEPENDENT, 1, 0)):
        lines = [
            make_round_line(
                number,
                simulated_seconds=20.0 * number,
                test={"all": {"accuracy": accuracy + 0.01 * number}},
            )
            for number in range(1, 12)
        ]
        words = (*WORLDS[world], *CONDITIONS[REFERENCE], f"seed={seed}")
        runs[words] = load_run(make_run_folder(tmp_path / f"{len(runs)}", lines))
    late_picture.draw_late_picture(runs)
    panels = {ax.get_title(loc="left"): ax for ax in drawn[0].axes}
    assert [*panels] == [*WORLDS]
    (line,) = panels[CORRELATED].lines
    assert line.get_label() == REFERENCE
    # The first nine evaluations end at 180 s, with a mean of 5 steps above the start.
    assert line.get_xdata() == pytest.approx([180, 200, 220])
    assert line.get_ydata() == pytest.approx([80, 81, 82])


def test_weights_say_nothing_of_a_memory() -> None:
    """Stored updates of slow clients count in every round."""
    run = make_run("25 replies, MIFA, server_lr 0.1", CORRELATED, 1, 0.8)
    (row,) = build_late_tables([replace(run, strategy="mifa")])["slowest"].rows
    assert row[1:] == (None, None)
