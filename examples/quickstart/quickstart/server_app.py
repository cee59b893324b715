"""The ServerApp: one line is not Flower's quickstart's."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from quickstart.task import Net
from strategies import FedALIGN, PlainApp, Population

# The ClientApp is written for Flower's own strategies, and calls its loss so.
PLAIN = PlainApp(loss_key="train_loss")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    num_rounds = context.run_config["num-server-rounds"]
    arrays = ArrayRecord(Net().state_dict())

    strategy = FedALIGN(Population.of(4, [0, 1]), num_rounds=num_rounds, communication=PLAIN)

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=num_rounds,
    )
    print("Mean accuracy at the end:", result.evaluate_metrics_clientapp[num_rounds]["eval_acc"])
