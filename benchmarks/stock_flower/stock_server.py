"""Run Flower's FedAvg, and write the time after every round."""

import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from stock_model import make_stock_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    config = context.run_config
    times = Path(str(config["times"]))

    def write_time(_round: int, _arrays: ArrayRecord) -> MetricRecord:
        with times.open("a") as file:
            print(time.time(), file=file)
        return MetricRecord()

    strategy = FedAvg(
        fraction_train=int(config["clients-per-round"]) / int(config["clients"]),
        fraction_evaluate=0.0,
        min_available_nodes=int(config["clients"]),
    )
    arrays = ArrayRecord(make_stock_model(str(config["model"])).state_dict())
    rounds = int(config["rounds"])
    result = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=write_time)
    if len(result.train_metrics_clientapp) < rounds:
        raise RuntimeError("clients failed")
