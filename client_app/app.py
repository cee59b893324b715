"""The Flower ClientApp: one message in, the node's clients one after the other, one reply out.

With M nodes, node j hosts the clients k with k mod M = j (Flower's ``partition-id`` and
``num-partitions``); a device hosts one, named by ``client-id`` in its node config.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from logging import ERROR
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from client_app.availability import AvailabilityMod, NodeAvailability, client_processes
from client_app.client import FederatedClient
from client_app.data import load_data
from client_app.models import build_model
from client_app.training import LocalTraining
from conf import Settings, SettingsError, compose
from strategies.codec import (
    ClientReply,
    NamedArrays,
    Status,
    decode_arrays,
    decode_request,
    encode_arrays,
    encode_hosted_clients,
    encode_replies,
)
from strategies.parameters import Number


def _availability(context: Context) -> NodeAvailability | None:
    node, hosted = _node(context)
    return node.availability(hosted)


app = ClientApp(mods=[AvailabilityMod(_availability)])


class Node:
    """The clients of one process, made when first needed and kept, with one model to work in."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._data = load_data(settings.data, settings.seed)
        self._device = _device(settings.client.device)
        self._model = build_model(
            settings.model, self._data.input_shape, self._data.num_classes, settings.seed
        ).to(self._device)
        self._clients: dict[int, FederatedClient] = {}
        self._process = client_processes(settings, self._data)

    def client(self, client_id: int) -> FederatedClient:
        """Return a client, with its data loaded."""
        if client_id not in self._clients:
            own = self._settings.client
            how = {item.name: getattr(own, item.name) for item in fields(LocalTraining)}
            self._clients[client_id] = FederatedClient(
                client_id,
                self._data.client(client_id),
                self._model,
                LocalTraining(**how),
                seed=self._settings.seed,
                device=self._device,
                metric=self._settings.evaluation.metric,
            )
        return self._clients[client_id]

    def availability(self, hosted: tuple[int, ...]) -> NodeAvailability | None:
        """Return when these clients are available, None if always."""
        if self._process is None:
            return None
        return NodeAvailability(self._settings.seed, hosted, self._process)

    def hosted(self, node_config: dict[str, Any]) -> tuple[int, ...]:
        """Return the ids of the clients that a node with this config hosts."""
        return hosted_clients(node_config, self._data.num_clients)


def hosted_clients(node_config: dict[str, Any], num_clients: int) -> tuple[int, ...]:
    """Return the ids of the clients on a node: ``client-id``, or k with k mod M = j.

    Raises
    ------
    SettingsError
        If the node config names neither, or a client that does not exist.
    """
    if "client-id" in node_config:
        client = node_config["client-id"]
        if not Number(low=0, high=num_clients - 1, integer=True).contains(client):
            raise SettingsError(
                f"client-id must be a whole number from 0 to {num_clients - 1}, got {client!r}"
            )
        return (int(client),)
    if "partition-id" not in node_config or "num-partitions" not in node_config:
        raise SettingsError(
            "the node config must hold client-id, or partition-id and num-partitions, got "
            f"{dict(node_config)}"
        )
    return tuple(
        range(int(node_config["partition-id"]), num_clients, int(node_config["num-partitions"]))
    )


@dataclass(frozen=True)
class OwnModel:
    """The model that a client keeps between rounds, in its node's Flower context."""

    context: Context
    client: int

    @property
    def _key(self) -> str:
        # With the run's id: Flower shares a context between the runs of a series.
        return f"own-model-{self.context.run_id}-{self.client}"

    def load(self, start: NamedArrays) -> NamedArrays:
        """Return the model, ``start`` before the first round."""
        kept = self.context.state.array_records.get(self._key)
        return start if kept is None else decode_arrays(kept)

    def save(self, arrays: NamedArrays) -> None:
        """Keep the model for the next round."""
        self.context.state[self._key] = encode_arrays(arrays)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node hosts."""
    node, hosted = _node(context)
    ids = [node.client(k).get_properties({})["client-id"] for k in hosted]
    return Message(encode_hosted_clients(ids), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Let every client asked decide and train."""

    def fit(client: FederatedClient, arrays: NamedArrays, config: dict[str, Any]) -> ClientReply:
        own = OwnModel(context, client.client_id) if config.pop("own-model", False) else None
        start = own.load(arrays) if own else arrays
        new, num_examples, metrics = client.fit(list(start.values()), config)
        status = Status(metrics.pop("status", Status.DONE))
        if status is not Status.DONE:
            return ClientReply(client.client_id, status)
        reply = ClientReply(client.client_id, status, {"num-examples": num_examples, **metrics})
        trained = dict(zip(arrays, new, strict=True))
        if own:
            own.save(trained)
            return reply
        return replace(reply, arrays=trained)

    return _for_each_client(message, context, fit)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Let every client asked measure the model."""

    def measure(
        client: FederatedClient, arrays: NamedArrays, config: dict[str, Any]
    ) -> ClientReply:
        if config.pop("own-model", False):
            arrays = OwnModel(context, client.client_id).load(arrays)
        _, _, metrics = client.evaluate(list(arrays.values()), config)
        return ClientReply(client.client_id, Status.DONE, metrics)

    return _for_each_client(message, context, measure)


def _for_each_client(
    message: Message,
    context: Context,
    work: Callable[[FederatedClient, NamedArrays, dict[str, Any]], ClientReply],
) -> Message:
    node, hosted = _node(context)
    arrays, configs = decode_request(message.content, hosted)
    replies = []
    for client_id, config in configs.items():
        try:
            replies.append(work(node.client(client_id), arrays, config))
        except Exception as error:  # one client's failure must not take the others with it
            log(ERROR, "Client %d failed", client_id, exc_info=error)
            reason = f"{type(error).__name__}: {error}"
            replies.append(ClientReply(client_id, Status.FAILED, reason=reason))
    return Message(encode_replies(replies), reply_to=message)


def _node(context: Context) -> tuple[Node, tuple[int, ...]]:
    run_config = context.run_config
    node = _cached_node(str(run_config["experiment"]), str(run_config["overrides"]))
    return node, node.hosted(dict(context.node_config))


@lru_cache(maxsize=1)
def _cached_node(experiment: str, overrides: str) -> Node:
    return Node(compose(experiment, overrides).settings)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError("client.device must be auto or cpu where there is no GPU, got cuda")
    return torch.device(name)
