"""Late updates count on five real nodes: one slow, one killed, and one cut off while they train."""

import json
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fedquorum.audit.check import audit_run

from tests.builders_runs import read_rows
from tests.integration.conftest import wait_for
from tests.integration.deployed import Cable, Deployment, is_reason_of_lost_node, start_deployment

NODE = Path(__file__).parent / "quick_supernode.py"
NAMES = tuple(f"node-{client}" for client in range(5))
GUARD = 240.0  # seconds
LIFE = 90  # seconds, of a message
RESTART = 5.0  # seconds between two tries of a node that is refused
WORDS = (
    *("data=synth", "data.num_clients=5", "data.num_priority=5", "data.sizes=equal"),
    *("client.local_epochs=1", "strategy=fedau", "rounds=5000", "evaluation.every=10"),
    *("engine.late_replies=count", "engine.quorum=2", f"engine.round_timeout={LIFE}"),
    *("engine.startup_clients=5", "engine.checkpoint_every=10"),
)
SLOW, KILLED, CUT = range(3)


class Nodes:
    """Five nodes; training of the first three lasts as long as a test holds it."""

    def __init__(self, made: Deployment, cable: Cable) -> None:
        self.made, self.cable = made, cable
        self.holds = {client: made.folder / f"hold-{client}" for client in (SLOW, KILLED, CUT)}
        self.started = dict.fromkeys(range(len(NAMES)), 0.0)
        for path in self.holds.values():
            path.touch()

    def start(self, client: int) -> None:
        self.started[client] = time.monotonic()
        self.made.start_script(
            NAMES[client],
            NODE,
            f"client-id={client}",
            *("--isolation", "process"),
            port=self.cable.port if client == CUT else None,
            HOLD=self.holds.get(client, ""),
            LOOP_SECONDS=8,  # rounds while the test waits for Flower only take processors
        )

    def trains(self, client: int, group: str) -> bool:
        """Say whether a node has received the message of a round."""
        log = self.made.log(NAMES[client])
        return log.exists() and f"training: {group}\n" in log.read_text(errors="replace")

    def was_asked_again(self) -> bool:
        """Say whether the killed node trains again; start it as long as it is refused.

        Flower refuses a key as long as it takes the node for connected.
        """
        has_ended = self.made.processes[NAMES[KILLED]].poll() is not None
        if has_ended and time.monotonic() - self.started[KILLED] > RESTART:
            self.start(KILLED)
        log = self.made.log(NAMES[KILLED]).read_text(errors="replace")
        return log.count("training: train ") > 1


def read_lines(run: Path) -> list[dict[str, Any]]:
    """Return the rounds that are over."""
    path = run / "rounds.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def has_arrived(run: Path, client: int) -> bool:
    """Say whether the update counts that a client was asked for in round 1."""
    return any(
        (reply["round"], reply["client"]) == (1, client)
        for line in read_lines(run)
        for reply in line["late_replies"]
    )


@pytest.mark.slow
@pytest.mark.flower
def test_late_updates_count_on_real_nodes(tmp_path: Path) -> None:
    """The slow and the cut off client count, each with its staleness; the killed one has failed."""
    with start_deployment(tmp_path) as made, Cable(made.port) as cable:
        nodes, run = Nodes(made, cable), tmp_path / "run"
        made.register_clients(NAMES)
        for client in range(len(NAMES)):
            nodes.start(client)
        words = f"{' '.join(WORDS)} engine.node_keys={made.nodes}"
        submission = json.loads(made.run("run", words, "--format", "json").stdout)
        assert submission["success"]
        for client in nodes.holds:
            wait_for(f"{client} trains", partial(nodes.trains, client, "train 1"), GUARD)
        made.send_signal(NAMES[KILLED], signal.SIGKILL)
        cable.cut()
        nodes.holds[KILLED].unlink()
        nodes.holds[CUT].unlink()  # its training ends, and its reply finds no network
        wait_for("two rounds close", lambda: len(read_lines(run)) >= 2, GUARD)
        nodes.holds[SLOW].unlink()
        wait_for("the slow one counts", lambda: has_arrived(run, SLOW), GUARD)
        assert not has_arrived(run, CUT)
        cable.mend()
        wait_for("the one cut off counts", lambda: has_arrived(run, CUT), GUARD)
        wait_for("the killed one trains again", nodes.was_asked_again, GUARD)
        last = len(read_lines(run))
        wait_for("its update counts", lambda: len(read_lines(run)) >= last + 4, GUARD)
        stopped = made.run_flwr("stop", str(submission["run-id"]), "deployment")
        assert stopped.status == 0, stopped.stdout + stopped.stderr
        manifest = run / "manifest.json"
        wait_for("the end", lambda: '"running"' not in manifest.read_text(), GUARD)
    rows = read_rows(run)
    first = {row["client"]: row for row in rows if row["start_round"] == 1 != row["round"]}
    for client in (SLOW, CUT):
        row = first[client]
        assert row["status"] == "trained"
        assert row["staleness"] == row["round"] - 1 >= 2
        assert row["discount"] == (1.0 + row["staleness"]) ** -0.5
        assert row["weight"] > 0
    lost = first[KILLED]
    assert lost["status"] == "failed"
    assert is_reason_of_lost_node(lost["reason"])
    asked = [r for r in rows if r["client"] == KILLED and (r["start_round"] or 0) > lost["round"]]
    assert "trained" in {row["status"] for row in asked}
    counted = [(r["client"], r["start_round"]) for r in rows if r["status"] == "trained"]
    assert len(counted) == len({*counted})
    assert not audit_run(run).mismatches
    # Whoever trains is not evaluated, and the records never call the others all.
    tested = [line["test"] for line in read_lines(run) if line["test"]]
    assert all((test["all"] is None) == ("free" in test) for test in tested)
