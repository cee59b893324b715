"""The Flower ClientApp: one message in, what the node's clients do, one reply out.

With M nodes, node j hosts the clients k with k mod M = j (Flower's ``partition-id`` and
``num-partitions``); a device hosts one, named by ``client-id`` in its node config.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from logging import ERROR, WARNING
from typing import TypeVar

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
    decode_train_request,
    encode_arrays,
    encode_evaluate_reply,
    encode_hosted_clients,
    encode_train_reply,
)
from fedquorum.summation import NOT_SUMMED, Grid, UpdateSums
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from client_app.client import FederatedClient
from client_app.data.base import Part
from client_app.measurements import Arrays
from client_app.node import PARTS, Node
from client_app.privacy import ClippingMod
from client_app.update_sum import UpdateSum
from conf import compose
from conf.schema.privacy import PrivacySettings

TaskT = TypeVar("TaskT", TrainTask, EvaluateTask)


def _availability(context: Context) -> NodeAvailability | None:
    node, hosted = _node(context)
    return node.availability(hosted)


_AVAILABILITY = AvailabilityMod(_availability)


def _only_available(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer for the clients that are not available.

    The first mod is a function of the app: Ray's workers unpickle it before all else, and the app
    has to be imported before its library, as it says where that one is.
    """
    return _AVAILABILITY(message, context, call_next)


def _privacy(context: Context) -> tuple[PrivacySettings, tuple[int, ...]]:
    node, hosted = _node(context)
    return node.privacy, hosted


app = ClientApp(mods=[_only_available, ClippingMod(_privacy)])


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
        log(ERROR, "The data of clients %s cannot be used", list(hosted), exc_info=error)
        reply = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, node.reason(error))
        return Message(reply, reply_to=message)
    ids = [node.client(k).get_properties({})[CLIENT_ID] for k in hosted]
    return Message(encode_hosted_clients(ids), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Let every client asked decide and train: together where that is faster."""
    node, hosted = _hosting(context)
    arrays, tasks = decode_train_request(message.content, hosted)
    if any(task.keeps_model for task in tasks):
        return _train_alone(message, context, node, arrays, tasks)
    received = list(arrays.values())
    _prepare(node, received, "train", [task.client for task in tasks if task.measures_loss])
    try:
        clients = [task.client for task in tasks]
        if tasks and node.trainer.trains_together(received, clients, tasks[0].server_round - 1):
            return _train_together(message, node, arrays, tasks)
    except Exception as error:  # whose fault it is shows when each trains alone
        log(WARNING, "Clients train each alone after a failure", exc_info=error)
    return _train_alone(message, context, node, arrays, tasks)


def _train_alone(
    message: Message,
    context: Context,
    node: Node,
    arrays: NamedArrays,
    tasks: Sequence[TrainTask],
) -> Message:
    """Return the reply of clients that are trained one after the other."""

    def join_and_train(client: FederatedClient, task: TrainTask) -> TrainAnswer:
        kept = KeptModel(context, client.client_id) if task.keeps_model else None
        start = list((kept.load(arrays) if kept else arrays).values())
        answer = client.join(start, task)
        if answer.status is not Status.DONE:
            return answer
        trained = dict(zip(arrays, client.train(start, task), strict=True))
        if kept:
            kept.save(trained)
            return answer
        return replace(answer, arrays=trained)

    answers = _each(node, tasks, join_and_train, TrainAnswer)
    if not any(task.in_sum for task in tasks):
        return Message(encode_train_reply(list(answers)), reply_to=message)
    total = UpdateSum(list(arrays.values()), torch.device("cpu"), Grid.of(tasks[0].terms))
    added = [_added(total, answer, task) for answer, task in zip(answers, tasks, strict=True)]
    return _sum_reply(message, added, total.named(list(arrays)))


def _added(total: UpdateSum, answer: TrainAnswer, task: TrainTask) -> TrainAnswer:
    """Add a client's update to the sum, and return its answer without the update."""
    if answer.arrays is None:
        return answer
    models = [torch.from_numpy(array)[None] for array in answer.arrays.values()]
    [added] = total.add(models, [_factor(answer, task)])
    return replace(answer, arrays=None) if added else _not_summed(answer)


def _factor(answer: TrainAnswer, task: TrainTask) -> float:
    return task.factor(answer.num_examples or 0.0)


def _not_summed(answer: TrainAnswer) -> TrainAnswer:
    return TrainAnswer(answer.client, Status.REJECTED, reason=NOT_SUMMED)


def _sum_reply(message: Message, answers: Sequence[TrainAnswer], sums: UpdateSums) -> Message:
    trained = any(answer.status is Status.DONE for answer in answers)
    reply = encode_train_reply(answers, weighted_sum=sums if trained else None)
    return Message(reply, reply_to=message)


def _train_together(
    message: Message, node: Node, arrays: NamedArrays, tasks: Sequence[TrainTask]
) -> Message:
    """Return the reply of clients that are trained in one pass."""
    received, t = list(arrays.values()), tasks[0].server_round - 1
    answers = list(
        _each(node, tasks, lambda client, task: client.join(received, task), TrainAnswer)
    )
    joined = [i for i, answer in enumerate(answers) if answer.status is Status.DONE]
    clients = [tasks[i].client for i in joined]
    if not joined:
        return Message(encode_train_reply(answers), reply_to=message)
    if not tasks[joined[0]].in_sum:
        models = node.trainer.together(received, clients, t)
        stacked = dict(zip(arrays, models, strict=True))
        return Message(encode_train_reply(answers, stacked), reply_to=message)
    factors = [_factor(answers[i], tasks[i]) for i in joined]
    grid = Grid.of(tasks[0].terms)
    total, summed = node.trainer.summed(received, clients, t, factors, grid)
    for i in joined:
        if tasks[i].client not in summed:
            answers[i] = _not_summed(answers[i])
    return _sum_reply(message, answers, total.named(list(arrays)))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Let every client asked measure the model."""
    node, hosted = _hosting(context)
    arrays, tasks = decode_evaluate_request(message.content, hosted)
    received = list(arrays.values())
    for part in PARTS:
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


def _hosting(context: Context) -> tuple[Node, tuple[int, ...]]:
    """Return the node with its clients loaded, and which of them this context is of."""
    node, hosted = _node(context)
    try:
        node.host(hosted)
    except Exception as error:  # whose fault it is shows when each is loaded alone
        log(WARNING, "Clients are loaded one after the other after a failure", exc_info=error)
    return node, hosted


def _prepare(node: Node, received: Arrays, part: Part, clients: list[int]) -> None:
    """Measure for all of these clients in one pass."""
    try:
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
