"""Tests of the comparison with an earlier commit: it finds changed bits and follows renamings."""

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
    COMMAND,
    DROP_IN,
    HERE,
    Case,
    CaseComparison,
    ComparedCheckout,
    NameTable,
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
NO_NAMES = NameTable()


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
    """Rewrite the table of clients."""
    [path] = (folder / "clients").iterdir()
    pq.write_table(edit(pq.read_table(path)), path)


def find_differences(
    tmp_path: Path, change: Callable[[Path], object], now: NameTable = NO_NAMES
) -> list[str]:
    """Return the differences between a run and its changed copy."""
    before = make_run(tmp_path / "before")
    changed = Path(shutil.copytree(before, tmp_path / "now"))
    change(changed)
    facts = read_facts(before, NO_NAMES), read_facts(changed, now)
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


def test_a_copy_has_no_differences(tmp_path: Path) -> None:
    assert find_differences(tmp_path, lambda run: (run / "manifest.json").touch()) == []


@pytest.mark.parametrize(
    ("change", "expected"),
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
def test_a_change_is_found(tmp_path: Path, change: Callable[[Path], None], expected: str) -> None:
    """A difference has the column, its first location, both values and the number of others."""
    assert find_differences(tmp_path, change) == [expected]


def test_a_changed_bit_of_a_model_is_found(tmp_path: Path) -> None:
    [found] = find_differences(tmp_path, change_model)
    assert found.startswith("model.safetensors:w: 'float32 (2,) sha256 ")


def test_a_missing_column_is_found(tmp_path: Path) -> None:
    """The type and all values differ, also null values."""
    assert find_differences(tmp_path, drop_column) == [
        "clients.weight (type): 'double' before, absent now",
        "clients.weight (round 1, client 0): 0.5 before, absent now, and 3 more",
    ]


def test_a_missing_row_is_found(tmp_path: Path) -> None:
    found = find_differences(tmp_path, drop_row)
    assert found[-1] == "clients.weight (round 2, client 1): 0.75 before, absent now"
    assert len(found) == 4


def test_excluded_columns_may_differ(tmp_path: Path) -> None:
    """A pattern excludes a column, or a field and everything below it."""
    left_out = {"clients.weight": "removed", "rounds.t*": "also removed"}

    def change(run: Path) -> None:
        drop_column(run)
        change_zero(run)

    assert find_differences(tmp_path, change, NameTable({"left_out": left_out})) == []


@pytest.mark.parametrize(("regret", "count"), [(0.125 * (1 + 1e-10), 0), (0.125 * (1 + 1e-8), 1)])
def test_a_tolerance_has_a_limit(tmp_path: Path, regret: float, count: int) -> None:
    tolerated = {"manifest.summary.mixing.regret": {"relative": 1e-9, "why": "a solver"}}

    def change(run: Path) -> None:
        path = run / "manifest.json"
        path.write_text(path.read_text().replace("0.125", repr(regret)))

    found = find_differences(tmp_path, change, NameTable({"tolerated": tolerated}))
    assert len(found) == count


def test_renamings_are_followed(tmp_path: Path) -> None:
    """With the table, renamed files, columns, groups of fields and texts are equal."""
    names = NameTable(
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

    assert find_differences(tmp_path / "followed", change, names) == []
    assert find_differences(tmp_path / "not", change) != []


def test_arguments_of_a_case_are_translated() -> None:
    """The table renames settings by their longest prefix, options, commands and classes."""
    names = NameTable(
        {
            "settings": {"client": "local", "client.lr": "rate"},
            "options": {"strategy=afl": "agnostic", "drop_in=AFL": "Agnostic"},
            "commands": {"fedquorum-study": "fedquorum study"},
        }
    )
    given = ("client.lr=1", "client.mu=2", "strategy=afl", "strategy=term")
    renamed = ["rate=1", "local.mu=2", "strategy=agnostic", "strategy=term"]
    assert names.translate_case(Case("a", given)) == renamed
    assert names.translate_case(Case("b", ("AFL",), DROP_IN)) == ["Agnostic"]
    command = Case("c", ("fedquorum-study", "seeds=5"), COMMAND)
    assert names.translate_case(command) == ["fedquorum", "study", "seeds=5"]
    assert names.restore_option("strategy", "agnostic") == "afl"


def make_sides(tmp_path: Path, names: NameTable = NO_NAMES) -> list[ComparedCheckout]:
    return [ComparedCheckout(HERE, names, tmp_path / name) for name in ("before", "now")]


def test_a_failed_side_differs(tmp_path: Path) -> None:
    """The only difference is how the sides ended."""
    sides = make_sides(tmp_path)
    for side, error in zip(sides, (None, "E: no"), strict=True):
        make_run(side.get_output(CASE))
        side.get_output(CASE).with_name(ENDING).write_text(json.dumps({"error": error}))
    [found] = compare_case(CASE, sides, NO_NAMES).differences
    assert str(found) == "ending: completed before, failed: E: no now"


def test_a_case_without_records_differs(tmp_path: Path) -> None:
    sides = make_sides(tmp_path)
    for side in sides:
        side.get_output(CASE).mkdir(parents=True)
        side.get_output(CASE).with_name(ENDING).write_text('{"error": null}')
    assert not compare_case(CASE, sides, NO_NAMES).both_ran


def test_the_exit_status_reports_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An excepted case may differ without failing the command."""
    before = make_run(tmp_path / "run")
    facts = read_facts(before, NO_NAMES)
    differences = compare_facts(facts, {**facts, next(iter(facts)): 1}, NO_NAMES)
    names = NameTable({"excepted": {"one": "round 1 counts"}})
    assert print_comparisons([CaseComparison(CASE, [], 7)], NO_NAMES) == 0
    assert print_comparisons([CaseComparison(CASE, differences, 7)], NO_NAMES) == 1
    assert print_comparisons([CaseComparison(CASE, differences, 7)], names) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "same     one: 7 values"
    assert lines[2] == "differs  one: 7 values"
    assert lines[5:] == ["excepted one: round 1 counts", "1 excepted"]


def test_every_name_has_a_case(tmp_path: Path) -> None:
    """A name that only the earlier commit has also gets a case; the names of cases are unique."""
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


def test_the_committed_table_is_valid() -> None:
    """Every excluded column and tolerance has a reason."""
    names = NameTable.read(HERE)
    assert all(names.get_section("left_out").values())
    assert all(found["why"] for found in names.get_section("tolerated").values())
    assert names.paths == [".", "strategies"]


@pytest.mark.slow
def test_this_tree_equals_itself(tmp_path: Path) -> None:
    """Both sides run; an impossible case fails without stopping the others."""
    small = ("data=synth", "data.num_clients=4", "data.num_priority=2", "client.local_epochs=1")
    cases = [
        Case("no such strategy", ("strategy=none_such",)),
        Case("a run", (*small, "rounds=2")),
        Case("drop-in", ("FedAU",), DROP_IN),
    ]
    names = NameTable.read(HERE)
    failed, *ran = run_cases(cases, make_sides(tmp_path, names), 2, names)
    assert "strategy" in failed.differences[0].before
    assert not failed.both_ran
    for found in ran:
        assert found.differences == []
        assert found.values > 100
