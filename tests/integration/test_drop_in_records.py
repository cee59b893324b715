"""Another project's app whose server is killed: the library resumes, audits and draws the run.

The processes have the library alone on their path: no module of the app can be imported.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from fedquorum.audit.cli import format_summary_line

from tests.integration.conftest import ROOT

ABSENT = ("server_app", "client_app", "conf", "torch", "hydra", "omegaconf", "tensorboard")
FOREIGN = """
import os
import signal
import sys
from pathlib import Path

for name in {absent!r}:
    sys.modules[name] = None
sys.path[:0] = [{here!r}, {library!r}]

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedquorum import FedAU
from fedquorum.audit.cli import main as audit
from fedquorum.records import runner
from fedquorum.report.cli import main as report
from grid import InProcessGrid

runner.MIN_SECONDS_BETWEEN, runner.MAX_TIME_FRACTION = 0.0, 1e9  # one after every round
KILLED_IN = int(sys.argv[1])
app = ClientApp()
trained = []

@app.train()
def train(message, context):
    server_round = message.content["config"]["server-round"]
    trained.append(server_round)
    if trained.count(KILLED_IN) == 2:  # in the midst of a round
        os.kill(os.getpid(), signal.SIGKILL)
    arrays = message.content["arrays"]
    rng = np.random.default_rng([server_round, context.node_id])
    moved = {{name: Array(array.numpy() + rng.normal(size=50)) for name, array in arrays.items()}}
    metrics = MetricRecord({{"num-examples": 10 + context.node_id, "loss": float(rng.random())}})
    content = RecordDict({{"arrays": ArrayRecord(moved), "metrics": metrics}})
    return Message(content, reply_to=message)

@app.evaluate()
def evaluate(message, context):
    return Message(RecordDict({{"metrics": MetricRecord({{"num-examples": 1}})}}), reply_to=message)

def run(**where):
    strategy = FedAU(cutoff=3, fraction_train=0.6, **where)
    arrays = ArrayRecord({{"w": Array(np.zeros(50))}})
    strategy.start(InProcessGrid(app, {{}}, 5), arrays, num_rounds=9)

if KILLED_IN:
    run(records="killed")
run(resume_from="killed")
run(records="whole")
sys.exit(audit(["."]) or report(["killed", "whole", "--output", "drawn"]))
"""


def test_a_killed_server_resumes_and_is_drawn_in_a_separate_app(tmp_path: Path) -> None:
    """The model and the audit trail have the bits of a run that nobody killed."""
    library = str(ROOT / "strategies")
    program = FOREIGN.format(absent=ABSENT, here=str(tmp_path), library=library)
    (tmp_path / "foreign.py").write_text(program)
    shutil.copy(ROOT / "server_app" / "engines" / "in_process.py", tmp_path / "grid.py")

    def foreign(killed_in: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "foreign.py", str(killed_in)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": "", "FLWR_TELEMETRY_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )

    assert foreign(6).returncode == -signal.SIGKILL
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert json.loads((killed / "manifest.json").read_text())["status"] == "running"
    done = foreign(0)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("9 of 9 rounds") == done.stdout.count(format_summary_line(0)) == 2
    drawn = tmp_path / "drawn"
    assert "FedAU" in (drawn / "report.html").read_text()
    assert {"report.html", "tables.md", "table.csv"} <= {path.name for path in drawn.iterdir()}
    assert list(drawn.glob("figures/*.png"))
    (resumed,) = json.loads((killed / "manifest.json").read_text())["resumed"]
    assert 0 < resumed["round"] < 6
    names = ("model.safetensors", "population.parquet")
    assert all((killed / n).read_bytes() == (whole / n).read_bytes() for n in names)
    rounds = [
        [
            {**json.loads(line), "duration_seconds": 0}
            for line in (run / "rounds.jsonl").read_text().splitlines()
        ]
        for run in (killed, whole)
    ]
    assert rounds[0] == rounds[1]
