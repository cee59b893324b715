"""fedau: A Flower Baseline."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedau.dataset import load_data, load_labels
from fedau.model import Net
from fedau.model import test as test_fn
from fedau.strategy import make_strategy
from fedau.utils import availability_of

# Create ServerApp
app = ServerApp()


def compute_probabilities(config) -> list[float]:
    """Return each client's probability of being available.

    Only a simulation knows it, from the labels of all clients.
    """
    if config["strategy"] != "known_statistics":
        return []
    return [
        availability_of(
            str(config["availability"]),
            load_labels(config, client),
            float(config["mean-availability"]),
            int(config["seed"]),
        ).rate
        for client in range(int(config["num-clients"]))
    ]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run entry point for the ServerApp."""
    config = context.run_config
    num_rounds, every = int(config["num-server-rounds"]), int(config["evaluate-every"])
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(int(config["seed"]))
    model = Net(str(config["dataset"]))
    images, labels = load_data(config, None)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round % every and server_round != num_rounds:
            return None
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test_fn(model, images, labels, device)
        return MetricRecord({"test_loss": loss, "test_acc": accuracy})

    strategy = make_strategy(
        str(config["strategy"]),
        int(config["num-clients"]),
        float(config["server-lr"]),
        int(config["cutoff"]),
        compute_probabilities(config),
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=num_rounds,
        evaluate_fn=evaluate,
    )

    name = f"{config['dataset']}-{config['availability']}-{config['strategy']}"
    path = Path("results") / f"{name}-seed{config['seed']}.json"
    path.parent.mkdir(exist_ok=True)
    metrics = {k: dict(v) for k, v in result.evaluate_metrics_serverapp.items()}
    path.write_text(json.dumps(metrics, indent=1), encoding="utf-8")
    last = metrics[num_rounds]
    print(f"\nTest accuracy after {num_rounds} rounds: {last['test_acc']:.4f} ({path})")
