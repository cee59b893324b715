"""Count the failures in the records of a run."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc

from ..errors import RunError
from ..rules.decisions import ClientDecision
from ..rules.failures import FailureCounts
from .reader import read_dataset
from .round_record import RoundRecord

_COLUMNS = ("round", "client", "priority", "status", "reason", "num_examples", "data_weight")


def count_failures(directory: Path, rounds: Sequence[RoundRecord]) -> FailureCounts:
    """Return the failures of these rounds, whose clients' rows are in the run's records.

    A damaged table has none, since a resumed run leaves it as it is and continues.
    """
    counts = FailureCounts()
    failed = _read_failed(directory) if any(r.failed + r.rejected for r in rounds) else {}
    for record in rounds:
        decisions = failed.get(record.round, ())
        counts.add_round(decisions, trained=record.trained, refused=record.refused)
    return counts


def _read_failed(directory: Path) -> dict[int, list[ClientDecision]]:
    """Return the recorded decisions about clients that failed or were rejected, by round."""
    try:
        table = read_dataset(directory / "clients", _COLUMNS)
    except RunError:
        return {}
    rows = table.filter(pc.field("status").isin(["failed", "rejected"])).to_pylist()
    by_round: dict[int, list[ClientDecision]] = {}
    for row in rows:
        amount = row["data_weight"] if row["num_examples"] is None else row["num_examples"]
        decision = ClientDecision(
            row["client"], row["priority"], row["status"], row["reason"], num_examples=amount
        )
        by_round.setdefault(row["round"], []).append(decision)
    return by_round
