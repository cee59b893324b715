"""Masks on real nodes: stored messages hide every update, and killed nodes cost little."""

import json
import os
import signal
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.flower.codec import decode_partial_sum, decode_sum_bins
from fedquorum.rules.round import NOT_UNMASKED
from fedquorum.server.fixed_bins import FixedBins
from flwr.app import Message

from server_app.engines.in_process import InProcessGrid
from tests.builders_runs import (
    MASKED_STRATEGIES,
    MASKS,
    read_rows,
    run_here,
    sum_as_with_masks,
)
from tests.cases import is_long
from tests.integration.conftest import wait_for
from tests.integration.deployed import Deployment, find_descendants, start_deployment

pytestmark = [pytest.mark.slow, pytest.mark.flower]

NODE = Path(__file__).parent / "quick_supernode.py"
CLIENTS = range(7)
NAMES = tuple(f"node-{client}" for client in CLIENTS)
GUARD = 180.0  # seconds
NUM_NUMBERS = 610  # of the model
WORDS = (
    *(word for word in MASKS if "num_clients" not in word),
    *("data.priority=[0]", "evaluation.every=null", "evaluation.clients=priority"),
)
SEVEN = (*WORDS, f"data.num_clients={len(CLIENTS)}", "strategy=fedau", "rounds=3")
QUORUM = ("engine.quorum=4", "engine.grace_seconds=15", "engine.round_timeout=200")
DEATHS = {3: "keys 2", 4: "shares 2", 5: "train 2", 6: "unmask 2"}
"""The exchange after which a node is killed."""
LOST = (3, 4)
"""The clients whose updates of round 2 never leave their nodes."""
NUM_SURVIVORS = min(DEATHS)
"""The nodes of later runs on the same deployment: the first ones."""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Return seven nodes; those in ``DEATHS`` are killed in round 2 of a run that asks them."""
    with start_deployment(tmp_path_factory.mktemp("masks")) as made:
        made.register_clients(NAMES)
        for client, name in enumerate(NAMES):
            made.start_script(
                name,
                NODE,
                f"client-id={client}",
                *("--isolation", "process"),
                HOLD=made.folder / "hold",
                DIE=DEATHS.get(client, ""),
            )
        yield made


def read_blobs(database: Path) -> list[bytes]:
    """Return the contents of all messages that a SuperLink stores."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as link:
        tables = [
            name for (name,) in link.execute("select name from sqlite_master where type='table'")
        ]
        rows = [row for table in tables for row in link.execute(f'select * from "{table}"')]  # noqa: S608
    return [cell for row in rows for cell in row if isinstance(cell, bytes)]


def find_vectors(blobs: Iterable[bytes]) -> list[bytes]:
    """Return the masked vectors among these blobs, without their heads."""
    size = 8 * 2 * NUM_NUMBERS
    return [blob[-size:] for blob in blobs if blob.startswith(b"ArrayChunk") and len(blob) > size]


def find_server_app(made: Deployment) -> int:
    """Return the process of the ServerApp."""
    for pid in find_descendants(made.processes["superlink"].pid):
        if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no ServerApp runs")


def compute_p_value(data: bytes) -> float:
    """Return the p-value of the bytes under a uniform distribution."""
    from scipy.stats import chisquare

    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    return float(chisquare(counts).pvalue)


def play_without_masks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, list[tuple[Message, Message]]]:
    """Play two rounds in process, without the replies of the lost clients to the second.

    Returns
    -------
    The run's folder, and the messages of round 1 with their replies.
    """
    sent: list[tuple[Message, Message]] = []
    push = InProcessGrid.push_messages

    def push_messages(grid: InProcessGrid, messages: Iterable[Message]) -> list[str]:
        given = [*messages]
        ids = [*push(grid, given)]
        for key, message in zip(ids, given, strict=True):
            group, client = message.metadata.group_id, message.metadata.dst_node_id - 1
            if group == "train 1":
                sent.append((message, grid._replies[key]))
            if group == "train 2" and client in LOST:
                del grid._replies[key]
        return ids

    monkeypatch.setattr(InProcessGrid, "push_messages", push_messages)
    sum_as_with_masks(monkeypatch)
    nodes = f"engine.num_supernodes={len(CLIENTS)}"
    words = ("experiment=custom", *SEVEN[1:], nodes, "engine.stop_after_round=2")
    return run_here(folder, *words), sent


def test_seven_nodes_of_which_four_are_killed(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of the others is exact; with too few nodes a round is refused, and the run continues.

    The server is stopped when all masked vectors of round 1 are in the SuperLink's database. There
    is no update in it, and the bytes of the vectors are those of random numbers.
    """
    plain, sent = play_without_masks(tmp_path / "plain", monkeypatch)
    hold, database = deployment.folder / "hold", deployment.folder / "state" / "superlink.db"
    hold.touch()
    words = " ".join([*SEVEN, *QUORUM, f"engine.node_keys={deployment.nodes}"])
    assert json.loads(deployment.run("seven", words, "--format", "json").stdout)["success"]
    logs = [deployment.log(name) for name in NAMES]
    wait_for(
        "all train",
        lambda: all("training: train 1\n" in log.read_text(errors="replace") for log in logs),
        GUARD,
    )
    server_app = find_server_app(deployment)
    os.kill(server_app, signal.SIGSTOP)
    hold.unlink()
    try:
        wait_for(
            "all vectors are stored",
            lambda: len(find_vectors(read_blobs(database))) >= len(CLIENTS),
            GUARD,
        )
        blobs = read_blobs(database)
    finally:
        os.kill(server_app, signal.SIGCONT)
    run = deployment.folder / "seven"
    manifest = run / "manifest.json"
    wait_for("the end", lambda: '"running"' not in manifest.read_text(), GUARD)
    assert json.loads(manifest.read_text())["status"] == "completed"
    check_stored(blobs, sent)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [line["refused"] for line in lines] == [None, None, NOT_UNMASKED]
    assert (run / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    second = {row["client"]: row["status"] for row in read_rows(run) if row["round"] == 2}
    assert {client for client, status in second.items() if status != "trained"} == {*LOST}
    assert not audit_run(run).mismatches


@pytest.mark.skipif(not is_long(), reason="only with --long; the seven nodes have FedAU")
@pytest.mark.parametrize("strategy", MASKED_STRATEGIES[1:])
def test_three_nodes_give_the_bits_of_a_run_without_masks(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """On the nodes that no run kills; ``test_flower.py`` and ``test_ray.py`` have other engines."""
    words = (*WORDS, f"data.num_clients={NUM_SURVIVORS}", f"strategy={strategy}", "rounds=2")
    keys = deployment.folder / "three.txt"
    keys.write_text("\n".join(deployment.nodes.read_text().splitlines()[: 1 + NUM_SURVIVORS]))
    done = deployment.run(strategy, " ".join([*words, f"engine.node_keys={keys}"]), "--stream")
    assert done.status == 0, done.stdout + done.stderr
    sum_as_with_masks(monkeypatch)
    plain = run_here(tmp_path / "plain", "experiment=custom", *words[1:])
    run = deployment.folder / strategy
    assert (run / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [line["admitted"] for line in lines] == [NUM_SURVIVORS] * 2
    assert json.loads((run / "manifest.json").read_text())["masks"]["nodes"] == NUM_SURVIVORS
    assert not audit_run(run).mismatches


def check_stored(blobs: list[bytes], sent: list[tuple[Message, Message]]) -> None:
    """Find no update of the run without masks among the stored messages of the one with masks."""
    vectors = find_vectors(blobs)
    assert len(vectors) == len(sent) == len(CLIENTS)
    integers = []
    for message, reply in sent:
        sums = decode_partial_sum(reply.content)
        assert sums is not None
        bins = decode_sum_bins(message.content, sums)
        assert isinstance(bins, FixedBins)
        integers.append(bins.to_integers(sums))
        parts = [part for one in sums.values() for part in (one.high, one.low)]
        for part in (*parts, *integers[-1]):
            if part.any():
                assert not any(part.tobytes() in blob for blob in blobs)
    assert compute_p_value(b"".join(vectors)) > 1e-6
    assert compute_p_value(b"".join(one.tobytes() for one in integers)) < 1e-6
