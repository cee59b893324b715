"""fedau: A Flower Baseline."""

import torch
from fedquorum.flower.mods import AvailabilityMod, NodeAvailability
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedau.dataset import iterate_batches, load_data, load_labels
from fedau.model import Net
from fedau.model import train as train_fn
from fedau.utils import SOURCES, availability_of


def get_availability(context: Context) -> NodeAvailability:
    """Return the availability of the node's client, which the server never learns."""
    config = context.run_config
    client = int(context.node_config["partition-id"])
    seed, mean = int(config["seed"]), float(config["mean-availability"])

    def build_process(_: int):
        kind, labels = str(config["availability"]), load_labels(config, client)
        return availability_of(kind, labels, mean, seed)

    return NodeAvailability(seed=seed, hosted=(client,), process=build_process)


# Flower ClientApp
app = ClientApp(mods=[AvailabilityMod(get_availability)])


@app.query()
def handle_query(msg: Message, context: Context):
    """Reply with the id of the node's client."""
    metrics = MetricRecord({"client-id": int(context.node_config["partition-id"])})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    config = context.run_config
    dataset, client = str(config["dataset"]), int(context.node_config["partition-id"])
    model = Net(dataset)
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    images, labels = load_data(config, client)
    server_round = int(msg.content.config_records["config"]["server-round"])
    stream = (int(config["seed"]) * 1_000_003 + server_round) * 1_000_003 + client
    train_loss = train_fn(
        model,
        iterate_batches(
            images,
            labels,
            size=int(config["batch-size"]),
            steps=int(config["local-steps"]),
            generator=torch.Generator().manual_seed(stream % 2**63),
            augmented=SOURCES[dataset].augmented,
        ),
        float(config["lr"]),
        torch.device("cuda:0" if torch.cuda.is_available() else "cpu"),
    )
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(labels)})
    arrays = ArrayRecord(model.cpu().state_dict())
    return Message(
        RecordDict({"arrays": arrays, "metrics": metrics}),
        reply_to=msg,
    )
