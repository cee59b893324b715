"""Define the Flower ClientApp, which answers each message for the node's clients.

With M nodes, node j hosts the clients k with k mod M = j (Flower's ``partition-id`` and
``num-partitions``); a device hosts one, named by ``client-id`` in its node config.
"""

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from logging import ERROR, WARNING
from typing import Any, TypeVar

import numpy as np
import torch
from fedquorum.client.availability import AvailabilityMod, NodeAvailability
from fedquorum.flower.codec import (
    CLIENT_ID,
    AnswerT,
    EvaluateAnswer,
    EvaluateTask,
    NamedArrays,
    Status,
    TrainAnswer,
    TrainTask,
    check_query,
    decode_arrays,
    decode_evaluate_request,
    decode_start_models,
    decode_train_request,
    encode_arrays,
    encode_evaluate_reply,
    encode_hosted_clients,
    encode_train_reply,
)
from fedquorum.flower.response_times import NodeResponseTimes, ResponseTimeMod
from fedquorum.intake import abbreviated
from fedquorum.summation import Bins
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from client_app.alone import NO_STARTS, Result, Use
from client_app.arrays import Arrays
from client_app.client import FederatedClient
from client_app.data.base import Part
from client_app.failures import is_deployed, reason_of
from client_app.node import VALIDATED_PARTS, Node
from client_app.policy import PolicyMod
from client_app.privacy import ClippingMod
from client_app.update_sum import UpdateSum
from conf import Settings, compose
from conf.schema.privacy import PrivacySettings

# What is imported stays. To look through PyTorch for garbage, again and again, would take longer
# than everything else that the process of a message does.
gc.freeze()

TaskT = TypeVar("TaskT", TrainTask, EvaluateTask)

if "flwr.simulation.app" in sys.modules:
    # Flower's simulation loads the ClientApp before it joins a Ray cluster. While Ray waits for
    # one that is gone, for minutes, nobody in this process can say anything.
    from client_app.ray_address import check_environment

    check_environment()


def _without_quotes(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer for a deployed node that raises: Flower would send the text, which may quote data.

    The first mod is a function of the app: Ray's workers unpickle it before all else, and the app
    has to be imported before its library, as it says where that one is.
    """
    try:
        return call_next(message, context)
    except Exception as error:
        if not is_deployed(context.node_config):
            raise
        log(ERROR, "The message cannot be answered", exc_info=error)
        reply = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason_of(error, deployed=True))
        return Message(reply, reply_to=message)


def _availability(context: Context) -> NodeAvailability | None:
    node, hosted = _node(context)
    return node.availability(hosted)


def _response_times(context: Context) -> NodeResponseTimes | None:
    node, hosted = _node(context)
    return node.response_times(hosted)


def _privacy(context: Context) -> tuple[PrivacySettings, Sequence[int]]:
    node, hosted = _node(context)
    return node.privacy, hosted


def _settings(context: Context) -> Settings:
    return _composed(*_words(context.run_config))


app = ClientApp(
    mods=[
        _without_quotes,
        PolicyMod(_settings),
        AvailabilityMod(_availability),
        ResponseTimeMod(_response_times),
        ClippingMod(_privacy),
    ]
)


@dataclass(frozen=True)
class KeptModel:
    """The model that a client keeps between rounds, in its node's Flower context."""

    context: Context
    client: int

    @property
    def _key(self) -> str:
        # With the run's id: Flower shares a context between the runs of a series. Checkpoints
        # have this name in them, of versions before too.
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
    check_query(message.content)
    node, hosted = _node(context)
    try:
        node.host(hosted)
    except Exception as error:
        log(ERROR, "The data of clients %s cannot be used", abbreviated(hosted), exc_info=error)
        reply = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, node.reason(error))
        return Message(reply, reply_to=message)
    ids = [node.client(k).get_properties({})[CLIENT_ID] for k in hosted]
    return Message(encode_hosted_clients(ids), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Let every client asked decide and train."""
    node, hosted = _hosting(context)
    arrays, tasks = decode_train_request(message.content, hosted)
    if any(task.keeps_model for task in tasks):
        return _train_keeping(message, context, node, arrays, tasks)
    others = decode_start_models(message.content, tasks)
    starts = {client: list(model.values()) for client, model in others.items()}
    received = list(arrays.values())
    measuring = [task.client for task in tasks if task.measures_loss and task.client not in starts]
    _prepare(node, received, "train", measuring)

    def join(client: FederatedClient, task: TrainTask) -> TrainAnswer:
        return client.join(starts.get(task.client, received), task)

    answers = list(_each(node, tasks, join, TrainAnswer))
    joined = [i for i, answer in enumerate(answers) if answer.status is Status.DONE]
    if joined and tasks[joined[0]].in_sum:
        return _train_into_sum(message, node, arrays, tasks, answers, joined=joined)
    return _train_to_models(message, node, arrays, tasks, answers, joined=joined, starts=starts)


def _train_keeping(
    message: Message,
    context: Context,
    node: Node,
    arrays: NamedArrays,
    tasks: Sequence[TrainTask],
) -> Message:
    """Return the reply of clients whose models stay with them."""

    def join_and_train(client: FederatedClient, task: TrainTask) -> TrainAnswer:
        kept = KeptModel(context, client.client_id)
        start = list(kept.load(arrays).values())
        answer = client.join(start, task)
        if answer.status is Status.DONE:
            kept.save(dict(zip(arrays, client.train(start, task), strict=True)))
        return answer

    answers = list(_each(node, tasks, join_and_train, TrainAnswer))
    return Message(encode_train_reply(answers), reply_to=message)


def _train_to_models(
    message: Message,
    node: Node,
    arrays: NamedArrays,
    tasks: Sequence[TrainTask],
    answers: list[TrainAnswer],
    *,
    joined: Sequence[int],
    starts: Mapping[int, Arrays],
) -> Message:
    """Return the reply with the model of each client that joined.

    ``starts`` are the models of the clients that start from another than ``arrays``.
    """
    stacked = [np.empty((len(joined), *array.shape), array.dtype) for array in arrays.values()]

    def keep(places: list[int], models: list[torch.Tensor]) -> None:
        for whole, trained in zip(stacked, models, strict=True):
            whole[places] = trained.cpu().numpy()

    failed = set()
    for places, result in _trained(node, arrays, tasks, joined, keep, starts=starts):
        if isinstance(result, Exception):
            failed.update(places)
            answers[joined[places[0]]] = _failed(node, tasks[joined[places[0]]].client, result)
    left = [place for place in range(len(joined)) if place not in failed]
    if not left:
        return Message(encode_train_reply(answers), reply_to=message)
    whole = stacked if not failed else [array[left] for array in stacked]
    models = dict(zip(arrays, whole, strict=True))
    return Message(encode_train_reply(answers, models), reply_to=message)


def _train_into_sum(
    message: Message,
    node: Node,
    arrays: NamedArrays,
    tasks: Sequence[TrainTask],
    answers: list[TrainAnswer],
    *,
    joined: Sequence[int],
) -> Message:
    """Return the reply with the weighted sum of the updates of the clients that joined."""
    bins = Bins.of(tasks[0].terms)
    sums: dict[int, UpdateSum] = {}  # of each thread its own: any grouping has the same bits
    factors = [tasks[i].factor(answers[i].num_examples or 0.0) for i in joined]

    def add(places: list[int], models: list[torch.Tensor]) -> list[str | None]:
        thread = threading.get_ident()
        if thread not in sums:
            sums[thread] = UpdateSum(arrays, models[0].device, bins)
        return sums[thread].add(models, [factors[place] for place in places])

    for places, result in _trained(node, arrays, tasks, joined, add):
        if isinstance(result, Exception):
            answers[joined[places[0]]] = _failed(node, tasks[joined[places[0]]].client, result)
            continue
        for place, problem in zip(places, result, strict=True):
            if problem is not None:
                client = tasks[joined[place]].client
                answers[joined[place]] = TrainAnswer(client, Status.REJECTED, reason=problem)
    if not any(answer.status is Status.DONE for answer in answers):
        return Message(encode_train_reply(answers), reply_to=message)
    first, *others = sums.values()
    for other in others:
        first.merge(other)
    reply = encode_train_reply(answers, weighted_sum=first.sums())
    return Message(reply, reply_to=message)


def _trained(
    node: Node,
    arrays: NamedArrays,
    tasks: Sequence[TrainTask],
    joined: Sequence[int],
    use: Use[Result],
    *,
    starts: Mapping[int, Arrays] = NO_STARTS,
) -> Iterator[tuple[list[int], Result | Exception]]:
    """Train the clients that joined, whose places in ``joined`` come with what ``use`` returns."""
    if not joined:
        return
    clients = [tasks[i].client for i in joined]
    t = tasks[joined[0]].server_round - 1
    yield from node.trainer.each(list(arrays.values()), clients, t, use, starts=starts)


def _failed(node: Node, client: int, error: Exception) -> TrainAnswer:
    log(ERROR, "Client %d failed", client, exc_info=error)
    return TrainAnswer(client, Status.FAILED, reason=node.reason(error))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Let every client asked measure the model."""
    node, hosted = _hosting(context)
    arrays, tasks = decode_evaluate_request(message.content, hosted)
    received = list(arrays.values())
    for part in VALIDATED_PARTS:
        asked = [task for task in tasks if (task.train if part == "train" else task.test)]
        if not any(task.keeps_model for task in asked):
            _prepare(node, received, part, [task.client for task in asked])

    def measure(client: FederatedClient, task: EvaluateTask) -> EvaluateAnswer:
        if task.keeps_model:
            kept = KeptModel(context, client.client_id).load(arrays)
            return client.measure(list(kept.values()), task)
        return client.measure(received, task)

    answers = list(_each(node, tasks, measure, EvaluateAnswer))
    return Message(encode_evaluate_reply(answers), reply_to=message)


def _hosting(context: Context) -> tuple[Node, Sequence[int]]:
    """Return the node with its clients loaded, and which of them this context is of."""
    node, hosted = _node(context)
    try:
        node.host(hosted)
    except Exception as error:  # whose fault it is shows when each is loaded alone
        log(WARNING, "Clients load one after the other after a failure", exc_info=error)
    return node, hosted


def _prepare(node: Node, received: Arrays, part: Part, clients: list[int]) -> None:
    """Measure for all of these clients in one pass, if they have such a part."""
    try:
        if part in node.measurements.parts:
            node.measurements.prepare(received, part, clients)
    except Exception as error:  # whose fault it is shows when each measures alone
        log(WARNING, "Clients measure one after the other after a failure", exc_info=error)


def _each(
    node: Node,
    tasks: Sequence[TaskT],
    work: Callable[[FederatedClient, TaskT], AnswerT],
    kind: type[AnswerT],
) -> Iterator[AnswerT]:
    """Yield each client's answer; a client that raises has failed."""
    for task in tasks:
        try:
            answer = work(node.client(task.client), task)
        except Exception as error:  # one client's failure must not take the others with it
            log(ERROR, "Client %d failed", task.client, exc_info=error)
            answer = kind(task.client, Status.FAILED, reason=node.reason(error))
        yield answer


def _node(context: Context) -> tuple[Node, Sequence[int]]:
    """Return the node of this process, and which of its clients this context is of."""
    config = context.node_config
    path, deployed = str(config.get("data-path", "")), is_deployed(config)
    node = node_of(context.run_config, path, deployed=deployed)
    return node, node.hosted(dict(config))


def node_of(run_config: Mapping[str, Any], data_path: str = "", *, deployed: bool = False) -> Node:
    """Return the node of this process for a run, made once; see ``Node``."""
    return _cached_node(*_words(run_config), data_path, deployed=deployed)


def _words(run_config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the experiment and the overrides of a run."""
    return str(run_config["experiment"]), str(run_config["overrides"])


@lru_cache(maxsize=1)
def _cached_node(experiment: str, overrides: str, data_path: str, *, deployed: bool) -> Node:
    return Node(_composed(experiment, overrides), data_path, deployed=deployed)


@lru_cache(maxsize=1)
def _composed(experiment: str, overrides: str) -> Settings:
    return compose(experiment, overrides).settings
