"""The ServerApp: one line is not Flower's quickstart's."""

from fedquorum import FedAU
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    num_rounds = context.run_config["num-server-rounds"]
    arrays = ArrayRecord(Net().state_dict())

    strategy = FedAU()

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=num_rounds,
    )
    print("Mean accuracy at the end:", result.evaluate_metrics_clientapp[num_rounds]["eval_acc"])
