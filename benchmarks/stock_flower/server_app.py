"""Flower's own FedAvg; after every round the time is noted."""

import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from model import make

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    times = Path(str(config["times"]))

    def note(_round: int, _arrays: ArrayRecord) -> MetricRecord:
        with times.open("a") as file:
            print(time.time(), file=file)
        return MetricRecord()

    nodes = len(list(grid.get_node_ids()))
    strategy = FedAvg(
        fraction_train=int(config["clients-per-round"]) / max(nodes, 1), fraction_evaluate=0.0
    )
    arrays = ArrayRecord(make(str(config["model"])).state_dict())
    strategy.start(grid, arrays, num_rounds=int(config["rounds"]), evaluate_fn=note)
