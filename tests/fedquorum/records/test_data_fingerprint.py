"""Test the comparison of fingerprints, also of those that another machine wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
from fedquorum.records.checkpoint import CHECKPOINTS_DIR, Checkpoint, CheckpointStore
from fedquorum.records.client_names import NO_NAMES, ClientNames
from fedquorum.records.data_fingerprint import (
    describe_fingerprint,
    get_fingerprint,
    list_data_changes,
    read_checkpoint_fingerprint,
)

INPUTS = {"by": "content", "files": 1, "sha256": "ab" * 32, "times": None}


def make(*rows: int, **changes: Any) -> dict[str, Any]:
    """Return the fingerprint of clients with these numbers of rows."""
    clients = {str(k): {"rows": n, "classes": 2, "targets": f"{k}-{n}"} for k, n in enumerate(rows)}
    return {
        "inputs": INPUTS,
        "clients": len(rows),
        "rows": sum(rows),
        "targets": str(rows),
        "by_client": clients,
    } | changes


def test_clients_are_compared_by_name() -> None:
    """One more client shifts the ids, and only it is new."""
    before = ClientNames({0: "North", 1: "South"})
    now = ClientNames({0: "Centre", 1: "North", 2: "South"})
    shifted = make(5, 0, 0)
    shifted["by_client"] |= {"1": make(4, 6)["by_client"]["0"], "2": make(4, 6)["by_client"]["1"]}
    assert list_data_changes(make(4, 6), shifted, before, now) == ("client Centre new",)


def test_without_names_clients_are_compared_by_id() -> None:
    """Another number of clients says all, because ids may have shifted."""
    assert list_data_changes(make(4, 6), make(4, 6, 5)) == ("clients 2 -> 3",)
    assert list_data_changes(make(41, 6), make(40, 6)) == ("rows of client 0 41 -> 40",)


def test_names_on_one_side_are_not_compared() -> None:
    """An earlier leg without names says nothing about who is new."""
    names = ClientNames({0: "North", 1: "South"})
    assert list_data_changes(make(4, 6), make(4, 6), NO_NAMES, names) == ()


def test_many_changes_are_cut() -> None:
    """The line stays short for any number of clients."""
    (text,) = list_data_changes(make(*[4] * 500), make(*[5] * 500))
    assert len(text) < 200


def test_an_unknown_fingerprint_is_no_change() -> None:
    """Records of earlier versions have none."""
    assert list_data_changes({}, make(4)) == ()
    assert list_data_changes(make(4), {}) == ()


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"sha256": "cd" * 32}, "inputs (the file's content changed)"),
        ({"files": 2}, "files 1 -> 2"),
        ({"by": "listing"}, "inputs by content -> listing"),
    ],
    ids=["content", "files", "source"],
)
def test_other_inputs(inputs: dict[str, Any], expected: str) -> None:
    """Inputs are compared where no client's rows and targets differ."""
    assert list_data_changes(make(4), make(4, inputs=INPUTS | inputs)) == (expected,)


@pytest.mark.parametrize(
    "hostile",
    [
        {"inputs": 3},
        {"inputs": {"by": ["x"]}},
        {"by_client": {"x": 1, "0": 2}},
        {"by_client": [1]},
        {"by_client": {"9" * 5000: {"rows": 1}, "1": {"rows": "\x1b[2J" * 99, "targets": [1]}}},
        {"rows": {"a": 1}, "clients": None},
        {"inputs": {"by": "content", "files": "\x1b[2J" * 100, "sha256": 5}},
    ],
    ids=str,
)
def test_a_foreign_fingerprint_is_data(hostile: dict[str, Any]) -> None:
    """Nothing raises, and no control character reaches a terminal."""
    given = make(4, **hostile)
    texts = [*list_data_changes(given, make(5)), *list_data_changes(make(5), given)]
    texts.append(describe_fingerprint(given))
    assert all(text.isprintable() and len(text) < 3000 for text in texts)


def test_the_line_of_the_audit() -> None:
    """It has the hash of the inputs as sha256sum begins it; generated data has no line."""
    assert describe_fingerprint(make(4, 6)) == (
        "the content of 1 file (SHA-256 abababababab), 10 rows of 2 clients, targets (4, 6)"
    )
    assert describe_fingerprint({"inputs": {"by": "settings"}}) == ""
    assert describe_fingerprint({}) == ""


def test_a_checkpoint_holds_the_fingerprint(tmp_path: Path) -> None:
    """It is read from the header alone, and as a part of the checkpoint."""
    store = CheckpointStore(tmp_path)
    store.save(Checkpoint(3, {}, {}, {}, {}, {}, {}, make(4)))
    (name,) = store.list_files()
    assert read_checkpoint_fingerprint(tmp_path, CHECKPOINTS_DIR, name) == make(4)
    found = store.find_newest().checkpoint
    assert found is not None
    assert found.data == make(4)
    assert get_fingerprint(json.loads(json.dumps({"data": {"fingerprint": make(4)}}))) == make(4)
