"""That a comparison with an earlier commit finds a changed bit, and follows what has a new name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.same_bits import (
    HERE,
    Case,
    CaseComparison,
    ComparedCheckout,
    WordTable,
    compare_case,
    compare_facts,
    make_cases,
    print_comparisons,
    read_facts,
    run_cases,
    select_cases,
    write_trace,
)
from benchmarks.same_bits_side import ENDING

CASE = Case("one", ("rounds=2",))
NOTHING = WordTable()


def make_run(folder: Path) -> Path:
    """Write the records of a run of 2 rounds and 2 clients."""
    folder.mkdir(parents=True)
    save_file({"w": np.array([0.0, 1.5], dtype=np.float32)}, folder / "model.safetensors")
    rounds = [
        {"round": t, "asked": 2, "global_loss": 1 / t, "seconds": 0.1, "test": {"all": {"loss": t}}}
        for t in (1, 2)
    ]
    write_rounds(folder, rounds)
    clients = pa.table(
        {
            "round": pa.array([1, 1, 2, 2], pa.int32()),
            "client": pa.array([0, 1, 0, 1], pa.int32()),
            "status": ["trained", "silent", "trained", "trained"],
            "weight": [0.5, None, 0.25, 0.75],
        }
    )
    (folder / "clients").mkdir()
    pq.write_table(clients, folder / "clients" / "00.parquet")
    summary = {"mixing": {"regret": 0.125}}
    manifest = {"status": "completed", "started": "2026-01-01", "summary": summary}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def write_rounds(folder: Path, rounds: list[dict[str, Any]]) -> None:
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rounds))


def edit_clients(folder: Path, edit: Callable[[pa.Table], pa.Table]) -> None:
    """Write the table of the clients anew."""
    [path] = (folder / "clients").iterdir()
    pq.write_table(edit(pq.read_table(path)), path)


def find_differences(
    tmp_path: Path, change: Callable[[Path], object], now: WordTable = NOTHING
) -> list[str]:
    """Return what differs between a run and its copy that was changed."""
    before = make_run(tmp_path / "before")
    changed = Path(shutil.copytree(before, tmp_path / "now"))
    change(changed)
    facts = read_facts(before, NOTHING), read_facts(changed, now)
    return [str(found) for found in compare_facts(*facts, now)]


def change_model(run: Path) -> None:
    model = load_file(run / "model.safetensors")
    model["w"].view(np.uint32)[1] ^= 1  # the last bit
    save_file(model, run / "model.safetensors")


def change_decision(run: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        weights = pa.array([0.5, None, 0.25, np.nextafter(0.75, 1)])
        return table.set_column(3, "weight", weights)

    edit_clients(run, edit)


def change_zero(run: Path) -> None:
    rounds = read_rounds(run)
    write_rounds(run, [{**row, "test": {"all": {"loss": float(row["round"])}}} for row in rounds])


def drop_column(run: Path) -> None:
    edit_clients(run, lambda table: table.drop_columns(["weight"]))


def drop_field(run: Path) -> None:
    write_rounds(run, [{k: v for k, v in row.items() if k != "asked"} for row in read_rounds(run)])


def drop_row(run: Path) -> None:
    edit_clients(run, lambda table: table.slice(0, 3))


def change_type(run: Path) -> None:
    edit_clients(run, lambda table: table.set_column(1, "client", table["client"].cast(pa.int64())))


def test_a_copy_is_the_same(tmp_path: Path) -> None:
    assert find_differences(tmp_path, lambda run: (run / "manifest.json").touch()) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            change_decision,
            "clients.weight (round 2, client 1): 0.75 before, 0.7500000000000001 now",
        ),
        (change_zero, "rounds.test.all.loss (round 1): 1 before, 1.0 now, and 1 more"),
        (drop_field, "rounds.asked (round 1): 2 before, absent now, and 1 more"),
        (change_type, "clients.client (type): 'int32' before, 'int64' now"),
    ],
)
def test_a_change_is_found(tmp_path: Path, change: Callable[[Path], None], found: str) -> None:
    """With its column, its first place, both values and how many more."""
    assert find_differences(tmp_path, change) == [found]


def test_a_changed_bit_of_a_model_is_found(tmp_path: Path) -> None:
    [found] = find_differences(tmp_path, change_model)
    assert found.startswith("model.safetensors:w: 'float32 (2,) sha256 ")


def test_a_missing_column_is_found(tmp_path: Path) -> None:
    """Its type and its values, null or not."""
    assert find_differences(tmp_path, drop_column) == [
        "clients.weight (type): 'double' before, absent now",
        "clients.weight (round 1, client 0): 0.5 before, absent now, and 3 more",
    ]


def test_a_missing_row_is_found(tmp_path: Path) -> None:
    found = find_differences(tmp_path, drop_row)
    assert found[-1] == "clients.weight (round 2, client 1): 0.75 before, absent now"
    assert len(found) == 4


def test_what_is_left_out_may_differ(tmp_path: Path) -> None:
    """A column that goes, and a field with all that is below it."""
    left_out = {"clients.weight": "it goes", "rounds.t*": "so do these"}

    def change(run: Path) -> None:
        drop_column(run)
        change_zero(run)

    assert find_differences(tmp_path, change, WordTable({"left_out": left_out})) == []


@pytest.mark.parametrize(("regret", "count"), [(0.125 * (1 + 1e-10), 0), (0.125 * (1 + 1e-8), 1)])
def test_a_tolerance_has_an_end(tmp_path: Path, regret: float, count: int) -> None:
    tolerated = {"manifest.summary.mixing.regret": {"relative": 1e-9, "why": "a solver"}}

    def change(run: Path) -> None:
        path = run / "manifest.json"
        path.write_text(path.read_text().replace("0.125", repr(regret)))

    found = find_differences(tmp_path, change, WordTable({"tolerated": tolerated}))
    assert len(found) == count


def test_renamings_are_followed(tmp_path: Path) -> None:
    """Of files, columns, groups of fields and texts; without them everything differs."""
    words = WordTable(
        {
            "files": {"rounds.jsonl": "steps.jsonl", "model.safetensors": "last.safetensors"},
            "columns": {"rounds.asked": "rounds.selected", "rounds.test": "rounds.tests"},
            "values": {"clients.status=silent": "declined"},
        }
    )

    def change(run: Path) -> None:
        rows = [
            {
                {"asked": "selected", "test": "tests"}.get(key, key): value
                for key, value in row.items()
            }
            for row in read_rounds(run)
        ]
        write_rounds(run, rows)
        (run / "rounds.jsonl").rename(run / "steps.jsonl")
        (run / "model.safetensors").rename(run / "last.safetensors")
        status = pa.array(["trained", "declined", "trained", "trained"])
        edit_clients(run, lambda table: table.set_column(2, "status", status))

    assert find_differences(tmp_path / "followed", change, words) == []
    assert find_differences(tmp_path / "not", change) != []


def test_words_of_a_case_are_renamed() -> None:
    """Settings by their longest beginning, options, commands and classes."""
    words = WordTable(
        {
            "settings": {"client": "local", "client.lr": "rate"},
            "options": {"strategy=afl": "agnostic", "drop_in=AFL": "Agnostic"},
            "commands": {"fedquorum-study": "fedquorum study"},
        }
    )
    given = ("client.lr=1", "client.mu=2", "strategy=afl", "strategy=term")
    renamed = ["rate=1", "local.mu=2", "strategy=agnostic", "strategy=term"]
    assert words.translate_case(Case("a", given)) == renamed
    assert words.translate_case(Case("b", ("AFL",), "drop_in")) == ["Agnostic"]
    command = Case("c", ("fedquorum-study", "seeds=5"), "command")
    assert words.translate_case(command) == ["fedquorum", "study", "seeds=5"]
    assert words.restore_option("strategy", "agnostic") == "afl"


def make_sides(tmp_path: Path, words: WordTable = NOTHING) -> list[ComparedCheckout]:
    return [ComparedCheckout(HERE, words, tmp_path / name) for name in ("before", "now")]


def test_a_side_that_fails_differs(tmp_path: Path) -> None:
    """Even if the other fails as well: nothing was compared."""
    sides = make_sides(tmp_path)
    for side, error in zip(sides, (None, "E: no"), strict=True):
        make_run(side.get_output(CASE))
        side.get_output(CASE).with_name(ENDING).write_text(json.dumps({"error": error}))
    [found] = compare_case(CASE, sides, NOTHING).differences
    assert str(found) == "ending: completed before, failed: E: no now"


def test_a_case_without_records_differs(tmp_path: Path) -> None:
    sides = make_sides(tmp_path)
    for side in sides:
        side.get_output(CASE).mkdir(parents=True)
        side.get_output(CASE).with_name(ENDING).write_text('{"error": null}')
    assert not compare_case(CASE, sides, NOTHING).both_ran


def test_the_exit_status_says_whether_anything_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A case that is excepted may differ, but not fail."""
    before = make_run(tmp_path / "run")
    facts = read_facts(before, NOTHING)
    differences = compare_facts(facts, {**facts, next(iter(facts)): 1}, NOTHING)
    words = WordTable({"excepted": {"one": "it counts round 1"}})
    assert print_comparisons([CaseComparison(CASE, [], 7)], NOTHING) == 0
    assert print_comparisons([CaseComparison(CASE, differences, 7)], NOTHING) == 1
    assert print_comparisons([CaseComparison(CASE, differences, 7)], words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "same     one: 7 values"
    assert lines[2] == "differs  one: 7 values"
    assert lines[5:] == ["excepted one: it counts round 1", "1 excepted"]


def test_every_name_has_a_case(tmp_path: Path) -> None:
    """Also one that only the earlier commit has, and each case has a name of its own."""
    names = {
        "strategy": ["fedalign", "fedau", "gone"],
        "availability": ["always", "trace"],
        "server_optimizer": ["adam"],
        "drop_in": ["FedAU"],
    }
    cases = make_cases(names, write_trace(tmp_path / "trace.csv"))
    found = [case.name for case in cases]
    assert {"in_process/gone", "ray/gone", "availability/trace", "drop-in/FedAU"} <= set(found)
    assert len(found) == len(set(found))
    assert [case.name for case in select_cases(cases, ["*/gone"])] == [
        "in_process/gone",
        "ray/gone",
    ]
    with pytest.raises(SystemExit, match="--only must name cases of --list, got nothing"):
        select_cases(cases, ["nothing"])


def test_the_table_of_today_is_read() -> None:
    """It says why each column, tolerance and case is excepted."""
    words = WordTable.read(HERE)
    assert all(words.get_section("left_out").values())
    assert all(found["why"] for found in words.get_section("tolerated").values())
    assert words.paths == [".", "strategies"]


@pytest.mark.slow
def test_this_tree_is_the_same_as_itself(tmp_path: Path) -> None:
    """Both sides run; a case that neither knows fails, and the others go on."""
    small = ("data=synth", "data.num_clients=4", "data.num_priority=2", "client.local_epochs=1")
    cases = [
        Case("no such strategy", ("strategy=none_such",)),
        Case("a run", (*small, "rounds=2")),
        Case("drop-in", ("FedAU",), "drop_in"),
    ]
    words = WordTable.read(HERE)
    failed, *ran = run_cases(cases, make_sides(tmp_path, words), 2, words)
    assert "strategy" in failed.differences[0].before
    assert not failed.both_ran
    for found in ran:
        assert found.differences == []
        assert found.values > 100
