"""A client like that of Flower's quickstart: a DataLoader, an optimizer, one client a message."""

from functools import cache, lru_cache
from itertools import islice

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from stock_model import make_stock_model
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()
DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@lru_cache(maxsize=1)
def _load_arrays(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


@cache
def _load_data(path: str, client: int) -> TensorDataset:
    arrays = _load_arrays(path)
    rows = arrays["client_train"] == client
    x = torch.from_numpy(arrays["x_train"][rows]).float()
    if arrays["x_train"].dtype == np.uint8:
        x = x / 255
        x = x.unsqueeze(1) if x.ndim == 3 else x.movedim(-1, 1)  # noqa: PLR2004
    return TensorDataset(x, torch.from_numpy(arrays["y_train"][rows]))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the client's data."""
    config = context.run_config
    model = make_stock_model(str(config["model"])).to(DEVICE)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = _load_data(str(config["data"]), int(context.node_config["partition-id"]))
    loader = DataLoader(data, batch_size=int(config["batch-size"]), shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(config["lr"]))
    epochs, steps = int(config["local-epochs"]), int(config["local-steps"]) or None
    batches = (batch for _ in range(epochs if steps is None else steps) for batch in loader)
    model.train()
    total = 0.0
    for x, y in islice(batches, steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        loss.backward()
        optimizer.step()
        total += loss.item()
    metrics = MetricRecord({"num-examples": len(data), "train_loss": total})
    arrays = ArrayRecord({name: tensor.cpu() for name, tensor in model.state_dict().items()})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
