"""A hostile SuperNode among honest ones, over TLS: real processes, spoilt objects."""

import json
from pathlib import Path

import numpy as np
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.records.run_dir import read_manifest_or_empty
from safetensors.numpy import load_file

from tests.builders_runs import read_rows
from tests.cases import is_long
from tests.integration.conftest import wait_for
from tests.integration.deployed import start_deployment

HOSTILE = Path(__file__).with_name("hostile_supernode.py")
ROUNDS = 10
NAMES = ("node-0", "node-1", "node-2")
WORDS = (
    f"rounds={ROUNDS} evaluation.every={ROUNDS} data=synth data.num_clients=3 data.num_priority=1 "
    "data.sizes=equal strategy=fedau client.local_epochs=1 engine.round_timeout=60"
)


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.skipif(not is_long(), reason="only with --long")
def test_a_node_that_pushes_spoilt_objects(tmp_path: Path) -> None:
    """Its spoilt replies are rejected with a reason, its honest ones and those of others count."""
    with start_deployment(tmp_path) as made:
        made.register_clients(NAMES)
        for client, name in enumerate(NAMES[:2]):
            made.start_node(name, client)
        made.start_script("node-2", HOSTILE, "client-id=2")
        run = made.folder / "run"
        submitted = made.run("run", f"{WORDS} engine.node_keys={made.nodes}", "--format", "json")
        assert json.loads(submitted.stdout)["success"], submitted.stdout + submitted.stderr
        ended = ("completed", "failed", "interrupted")
        wait_for("the run ends", lambda: read_manifest_or_empty(run).get("status") in ended, 900)
        pushed = made.log("node-2").read_text(errors="replace").count(" spoilt")

    assert read_manifest_or_empty(run)["status"] == "completed"
    rows = read_rows(run)
    spoilt = [row for row in rows if row["client"] == 2 and row["status"] != "trained"]
    assert {row["status"] for row in rows if row["client"] != 2} == {"trained"}
    assert {row["status"] for row in spoilt} <= {"failed", "rejected"}
    assert all(row["reason"] and row["reason"].isprintable() for row in spoilt)
    assert ROUNDS // 3 <= len(spoilt) <= pushed
    assert not audit_run(run).mismatches
    model = load_file(run / "model.safetensors")
    assert all(np.isfinite(array).all() for array in model.values())
    print("\n", *(f"{row['round']}: {row['reason']}\n" for row in spoilt))
