"""The ServerApp: the model of the rounds is the adapter."""

from fedquorum import FedAU
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from adapter.lora import adapter_of
from adapter.task import model_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and say how large what was sent is."""
    num_rounds = context.run_config["num-server-rounds"]
    model = model_of(context.run_config["rank"])
    arrays = ArrayRecord(adapter_of(model))

    strategy = FedAU()

    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=num_rounds)
    sent, whole = arrays.count_bytes(), sum(p.nbytes for p in model.parameters())
    print(f"A message: {sent} bytes; with the whole model: {whole}")
    print("Mean accuracy at the end:", result.evaluate_metrics_clientapp[num_rounds]["eval_acc"])
