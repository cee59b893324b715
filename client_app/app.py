"""The Flower ClientApp: one message in, what the node's clients do, one reply out.

With M nodes, node j hosts the clients k with k mod M = j (Flower's ``partition-id`` and
``num-partitions``); a device hosts one, named by ``client-id`` in its node config.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from logging import ERROR, WARNING
from typing import Any

import torch
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from client_app.availability import AvailabilityMod, NodeAvailability
from client_app.client import FederatedClient, measures
from client_app.data.base import Part
from client_app.measurements import Arrays
from client_app.node import PARTS, Node
from client_app.privacy import ClippingMod
from client_app.update_sum import UpdateSum
from conf import compose
from conf.schema.privacy import PrivacySettings
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


def _availability(context: Context) -> NodeAvailability | None:
    node, hosted = _node(context)
    return node.availability(hosted)


def _privacy(context: Context) -> tuple[PrivacySettings, tuple[int, ...]]:
    node, hosted = _node(context)
    return node.privacy, hosted


app = ClientApp(mods=[AvailabilityMod(_availability), ClippingMod(_privacy)])


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
    try:
        node.host(hosted)
    except Exception as error:
        log(ERROR, "The data of clients %s cannot be used", list(hosted), exc_info=error)
        reply = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, node.reason(error))
        return Message(reply, reply_to=message)
    ids = [node.client(k).get_properties({})["client-id"] for k in hosted]
    return Message(encode_hosted_clients(ids), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Let every client asked decide and train: together where that is faster."""
    node, arrays, configs = _request(message, context)
    received = list(arrays.values())
    own_models = any(config.get("own-model", False) for config in configs.values())
    if not own_models:
        _prepare(node, received, "train", [k for k, own in configs.items() if measures(own)])
        t = next(iter(configs.values()))["server-round"] - 1 if configs else 0
        try:
            if node.trainer.trains_together(received, list(configs), t):
                return _train_together(message, node, arrays, configs, t)
        except Exception as error:  # whose fault it is shows when each trains alone
            log(WARNING, "Clients train each alone after a failure", exc_info=error)

    def fit(client: FederatedClient, config: dict[str, Any]) -> ClientReply:
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

    replies = _each(node, configs, fit)
    if not any("proportion" in config for config in configs.values()):
        return Message(encode_replies(list(replies)), reply_to=message)
    total = UpdateSum(received, torch.device("cpu"))
    parts = [
        _added(total, reply, config)
        for reply, config in zip(replies, configs.values(), strict=True)
    ]
    return _sum_reply(message, parts, list(arrays), total.arrays)


def _added(total: UpdateSum, reply: ClientReply, config: dict[str, Any]) -> ClientReply:
    """Add a client's update to the sum, and return its reply without the update."""
    if reply.arrays is None:
        return reply
    models = [torch.from_numpy(array)[None] for array in reply.arrays.values()]
    [finite] = total.add(models, [_factor(reply, config)])
    return replace(reply, arrays=None) if finite else _not_finite(reply)


def _factor(reply: ClientReply, config: dict[str, Any]) -> float:
    """Return by what a client's update is multiplied in its node's sum."""
    by_data = reply.metrics["num-examples"] if config["by-data"] else 1.0
    return float(config["proportion"] * by_data)


def _not_finite(reply: ClientReply) -> ClientReply:
    return ClientReply(reply.client, Status.REJECTED, reason="its update holds NaN or Inf")


def _sum_reply(
    message: Message, replies: list[ClientReply], names: list[str], total: Arrays
) -> Message:
    trained = any(reply.status is Status.DONE for reply in replies)
    whole = dict(zip(names, total, strict=True)) if trained else None
    return Message(encode_replies(replies, weighted_sum=whole), reply_to=message)


def _train_together(
    message: Message, node: Node, arrays: NamedArrays, configs: dict[int, dict[str, Any]], t: int
) -> Message:
    """Return the reply of clients that are trained in one pass in round ``t`` (from 0)."""
    received = list(arrays.values())

    def join(client: FederatedClient, config: dict[str, Any]) -> ClientReply:
        metrics = client.join(received, config)
        status = Status(metrics.pop("status", Status.DONE))
        return ClientReply(client.client_id, status, metrics)

    replies = dict(zip(configs, _each(node, configs, join), strict=True))
    joined = [k for k, reply in replies.items() if reply.status is Status.DONE]
    if not joined:
        return Message(encode_replies(list(replies.values())), reply_to=message)
    if "proportion" not in configs[joined[0]]:
        models = node.trainer.together(received, joined, t)
        stacked = dict(zip(arrays, models, strict=True))
        return Message(encode_replies(list(replies.values()), stacked), reply_to=message)
    factors = [_factor(replies[k], configs[k]) for k in joined]
    total, summed = node.trainer.summed(received, joined, t, factors)
    replies |= {k: _not_finite(replies[k]) for k in joined if k not in summed}
    return _sum_reply(message, list(replies.values()), list(arrays), total)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Let every client asked measure the model."""
    node, arrays, configs = _request(message, context)
    received = list(arrays.values())
    for part in PARTS:
        asked = [k for k, own in configs.items() if own.get(f"measure-{part}", True)]
        if not any(configs[k].get("own-model", False) for k in asked):
            _prepare(node, received, part, asked)

    def measure(client: FederatedClient, config: dict[str, Any]) -> ClientReply:
        model = received
        if config.pop("own-model", False):
            model = list(OwnModel(context, client.client_id).load(arrays).values())
        _, _, metrics = client.evaluate(model, config)
        return ClientReply(client.client_id, Status.DONE, metrics)

    return Message(encode_replies(list(_each(node, configs, measure))), reply_to=message)


def _request(
    message: Message, context: Context
) -> tuple[Node, NamedArrays, dict[int, dict[str, Any]]]:
    """Return the node, the model received, and what each client asked is told."""
    node, hosted = _node(context)
    try:
        node.host(hosted)
    except Exception as error:  # whose fault it is shows when each is loaded alone
        log(WARNING, "Clients are loaded one after the other after a failure", exc_info=error)
    return node, *decode_request(message.content, hosted)


def _prepare(node: Node, received: Arrays, part: Part, clients: list[int]) -> None:
    """Measure for all of these clients in one pass."""
    try:
        node.measurements.prepare(received, part, clients)
    except Exception as error:  # whose fault it is shows when each measures alone
        log(WARNING, "Clients measure one after the other after a failure", exc_info=error)


def _each(
    node: Node,
    configs: dict[int, dict[str, Any]],
    work: Callable[[FederatedClient, dict[str, Any]], ClientReply],
) -> Iterator[ClientReply]:
    """Yield each client's part of the reply; one that raises has failed."""
    for client_id, config in configs.items():
        try:
            reply = work(node.client(client_id), config)
        except Exception as error:  # one client's failure must not take the others with it
            log(ERROR, "Client %d failed", client_id, exc_info=error)
            reply = ClientReply(client_id, Status.FAILED, reason=node.reason(error))
        yield reply


def _node(context: Context) -> tuple[Node, tuple[int, ...]]:
    """Return the node of this process, and which of its clients this context is of."""
    run_config = context.run_config
    node = _cached_node(
        str(run_config["experiment"]),
        str(run_config["overrides"]),
        str(context.node_config.get("data-path", "")),
    )
    return node, node.hosted(dict(context.node_config))


@lru_cache(maxsize=1)
def _cached_node(experiment: str, overrides: str, data_path: str) -> Node:
    return Node(compose(experiment, overrides).settings, data_path)
