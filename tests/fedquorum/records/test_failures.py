"""Count the failures of recorded rounds."""

from pathlib import Path
from typing import Any

from fedquorum.records.failures import count_failures
from fedquorum.records.reader import load_run
from fedquorum.rules.round import NOT_FINITE

from tests.fedquorum.records.made import make_round_line, make_run, write_part


def test_the_failures_of_recorded_rounds(tmp_path: Path) -> None:
    """A row with an amount of data is of a client that trained, unless its round was refused."""
    lines = [
        make_round_line(1, trained=1, failed=1, rejected=1),
        make_round_line(2, trained=0, rejected=1, refused=NOT_FINITE),
    ]
    run = make_run(tmp_path / "run", lines)
    rows: list[dict[str, Any]] = [
        {"round": 1, "client": 0, "num_examples": 5},
        {"round": 1, "client": 1, "status": "failed", "reason": "no data"},
        {"round": 1, "client": 2, "status": "rejected", "reason": "too high", "num_examples": 5},
        {"round": 2, "client": 2, "status": "rejected", "reason": NOT_FINITE, "num_examples": 5},
    ]
    write_part(run, 0, rows)
    loaded = load_run(run)
    counts = count_failures(run, loaded.rounds)
    assert counts.trained == 2
    assert counts.format() == f"no data (client 1); {NOT_FINITE} (client 2)"


def test_a_damaged_table_has_no_failures(tmp_path: Path) -> None:
    """A resumed run continues without them."""
    run = make_run(tmp_path / "run", [make_round_line(1, trained=1, failed=1)])
    write_part(run, 0, [{"round": 1, "client": 0, "status": "failed", "reason": "x"}])
    (path,) = (run / "clients").iterdir()
    path.write_bytes(b"no table")
    loaded = load_run(run)
    counts = count_failures(run, loaded.rounds)
    assert (counts.trained, counts.times) == (1, 0)
