"""Define the ClientApp, which has the base model and receives the adapter."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from adapter.lora import get_adapter, load_adapter
from adapter.task import build_model, load_data
from adapter.task import test as test_fn
from adapter.task import train as train_fn

app = ClientApp()


def load_model(msg: Message, context: Context) -> nn.Module:
    """Return the base model with the adapter of a message."""
    model = build_model(context.run_config["rank"])
    load_adapter(model, msg.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the adapter on local data, and return it."""
    model = load_model(msg, context)
    trainloader, _ = load_data(context.node_config["partition-id"])
    torch.manual_seed(msg.content["config"]["server-round"])
    config = context.run_config
    train_loss = train_fn(model, trainloader, config["local-epochs"], config["lr"])
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(trainloader.dataset)})
    trained = ArrayRecord(get_adapter(model))
    return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate base model and adapter on local data."""
    model = load_model(msg, context)
    _, valloader = load_data(context.node_config["partition-id"])
    loss, accuracy = test_fn(model, valloader)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(valloader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
