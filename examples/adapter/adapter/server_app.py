"""Define the ServerApp, whose rounds train the adapter."""

from fedquorum import FedAU
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from adapter.lora import get_adapter
from adapter.task import build_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and print the size of a message."""
    num_rounds = context.run_config["num-server-rounds"]
    model = build_model(context.run_config["rank"])
    arrays = ArrayRecord(get_adapter(model))

    strategy = FedAU()

    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=num_rounds)
    message_bytes, total = arrays.count_bytes(), sum(p.nbytes for p in model.parameters())
    print(f"A message: {message_bytes} bytes; with the whole model: {total}")
    print("Mean accuracy at the end:", result.evaluate_metrics_clientapp[num_rounds]["eval_acc"])
