"""Define the Flower ClientApp, which replies to each message for the node's clients.

With M nodes, node j hosts the clients k with k mod M = j (Flower's ``partition-id`` and
``num-partitions``); a device hosts one, named by ``client-id`` in its node config.
"""

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from logging import ERROR, WARNING
from typing import Any, TypeVar

import numpy as np
import torch
from fedquorum.errors import FedQuorumError
from fedquorum.flower.codec import (
    CLIENT_ID,
    EvaluateResult,
    EvaluateTask,
    NamedArrays,
    ResultT,
    Status,
    TrainResult,
    TrainTask,
    check_query,
    decode_evaluate_request,
    decode_selected_clients,
    decode_start_models,
    decode_sum_bins,
    decode_train_request,
    encode_evaluate_reply,
    encode_hosted_clients,
    encode_train_reply,
    has_masks,
    is_inquiry,
)
from fedquorum.flower.codec.keys import EVALUATE_METRICS
from fedquorum.flower.mods import SecureSumMod
from fedquorum.sanitize import abbreviate
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode

from client_app.data.base import Split
from client_app.data.coding.table import ClientScale
from client_app.node.agreement import (
    STATISTICS_ACTION,
    decode_scales,
    decode_statistics_query,
    encode_statistics,
)
from client_app.node.client import FederatedClient
from client_app.node.clipping import NO_NORM_REASON, clip_row, clip_stacked_models
from client_app.node.failures import get_failure_reason
from client_app.node.node import ALL_SPLITS, Node, is_deployed
from client_app.node.own_data import DataMod
from client_app.node.policy import PolicyMod, get_withheld, limit_results, may_send_reasons
from client_app.training.failure_log import FAILURE_LOG, log_failure
from client_app.training.local_sgd import Arrays
from client_app.training.sequential import NO_STARTS, OnTrained, Result
from client_app.training.update_sum import UpdateSum
from conf import ComposedConfig, compose_settings

# Freeze imported objects: collecting through PyTorch would dominate the time of a message.
gc.freeze()

TaskT = TypeVar("TaskT", TrainTask, EvaluateTask)

if "flwr.simulation.app" in sys.modules:
    # Flower's simulation loads the ClientApp before it joins a Ray cluster. Ray waits for minutes
    # if that cluster is gone, and nothing in this process can report an error meanwhile.
    from client_app.simulation.ray_address import check_ray_environment

    check_ray_environment()


def _mask_error_text(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Reply without the error's text if a deployed node raises: the text may quote data.

    This mod comes first and is a function of the app. Ray's workers unpickle it before anything
    else, and the app must be imported before the library because it puts the library on the path.
    """
    try:
        return call_next(message, context)
    except Exception as error:
        if not is_deployed(context.node_config):
            raise
        log_failure(ERROR, "The message failed", error)
        hidden = not may_send_reasons(context.node_config)
        reply = Error(
            ErrorCode.CLIENT_APP_RAISED_EXCEPTION, get_failure_reason(error, hides_text=hidden)
        )
        return Message(reply, reply_to=message)


def _apply_policy(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let the owner of a device decide, before anything reads the data."""
    if CLIENT_ID not in context.node_config:  # the user owns all simulated nodes
        return call_next(message, context)
    return PolicyMod(_compose, _find_scale)(message, context, call_next)


def _check_own_data(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let a device compare its data with that of a run that it resumes."""
    if CLIENT_ID not in context.node_config:  # the server compares all data of a simulation
        return call_next(message, context)
    return DataMod(_compose, _compute_fingerprint)(message, context, call_next)


def _apply_run_mods(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Handle a train message with the mods that the run's settings require; most require none."""
    node, hosted = _get_node(context)
    for mod in reversed(node.get_mods(hosted)):
        call_next = _wrap_with_mod(call_next, mod)
    return call_next(message, context)


def _mask_sum(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Mask the sum of updates or of metrics in a round with masks."""
    if not has_masks(message.content, context.state):
        return call_next(message, context)
    return SecureSumMod(_find_summed_fields)(message, context, call_next)


def _find_summed_fields(message: Message, context: Context) -> frozenset[str]:
    """Return the numbers of an evaluation that the selected clients have, and do not withhold."""
    node, hosted = _load_hosted(message, context)
    _, clients = decode_selected_clients(message.content, hosted)
    found: set[str] = set()
    for client in clients:
        with suppress(Exception):  # its evaluation will fail, and say why
            found.update(node.get_client(client).find_summed_fields())
    withheld = get_withheld()
    return frozenset(name for name in found if EVALUATE_METRICS[name] not in withheld)


def _limit_results(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let the owner of a device withhold results, before anything is masked."""
    if CLIENT_ID not in context.node_config:
        return call_next(message, context)
    return limit_results(message, context, call_next)


def _wrap_with_mod(call_next: ClientAppCallable, mod: Mod) -> ClientAppCallable:
    return lambda message, context: mod(message, context, call_next)


def _compose(context: Context) -> ComposedConfig:
    return _compose_settings(*_read_run_config(context.run_config))


def _find_scale(context: Context) -> ClientScale | None:
    node, (client,) = _get_node(context)
    return node.find_own_scale(client)


def _compute_fingerprint(context: Context) -> Mapping[str, Any]:
    node, (client,) = _get_node(context)
    return node.compute_fingerprint(client)


app = ClientApp(mods=[_mask_error_text, _apply_policy, _check_own_data])


@app.query()
def handle_query(message: Message, context: Context) -> Message:
    """Reply with the ids of the clients that this node hosts."""
    check_query(message.content)
    node, hosted = _get_node(context)
    try:
        node.load_clients(hosted)
    except Exception as error:
        if is_deployed(context.node_config) or not isinstance(error, FedQuorumError):
            log_failure(ERROR, f"The data of clients {abbreviate(hosted)} cannot be used", error)
        reply = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, node.get_reason(error))
        return Message(reply, reply_to=message)
    ids = [node.get_client(k).get_properties({})[CLIENT_ID] for k in hosted]
    return Message(encode_hosted_clients(ids), reply_to=message)


@app.query(STATISTICS_ACTION)
def handle_statistics(message: Message, context: Context) -> Message:
    """Reply with the sums of clients' numbers, by which all clients agree on a scale."""
    check_query(message.content)
    node, hosted = _get_node(context)
    try:
        clients = decode_statistics_query(message.content, hosted)
        content = encode_statistics(node.measure_clients(clients))
    except Exception as error:
        log_failure(ERROR, f"The statistics of clients {abbreviate(hosted)} failed", error)
        reply = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, node.get_reason(error))
        return Message(reply, reply_to=message)
    return Message(content, reply_to=message)


@app.train(mods=[_apply_run_mods, _mask_sum, _limit_results])
def handle_train(message: Message, context: Context) -> Message:
    """Let every selected client decide whether to train, and train."""
    if is_inquiry(message.content):
        return _answer_inquiry(message, context)
    node, hosted = _load_hosted(message, context)
    arrays, tasks = decode_train_request(message.content, hosted)
    others = decode_start_models(message.content, tasks)
    # Clients with the same start share its arrays, by which the trainer recognizes it.
    distinct = {id(model): list(model.values()) for model in others.values()}
    starts = {client: distinct[id(model)] for client, model in others.items()}
    received = list(arrays.values())
    # One pass for all clients, before each one decides by its loss. Clients that start from another
    # model are evaluated separately.
    evaluating = [
        task.client for task in tasks if task.needs_evaluation and task.client not in starts
    ]
    _prepare_evaluation(node, received, "train", evaluating)

    def join(client: FederatedClient, task: TrainTask) -> TrainResult:
        return client.evaluate_and_decide(starts.get(task.client, received), task)

    results = list(_run_tasks(node, tasks, join, TrainResult))
    if node.clips_updates:
        _fail_without_norm(tasks, results)
    joined = [i for i, result in enumerate(results) if result.status is Status.DONE]
    # A rule that knows its weights before training needs only the sum of the updates: the reply
    # does not grow with the number of clients.
    if joined and tasks[joined[0]].can_be_summed:
        return _train_into_sum(message, node, arrays, tasks, results, joined=joined)
    return _train_to_models(message, node, arrays, tasks, results, joined=joined, starts=starts)


def _fail_without_norm(tasks: Sequence[TrainTask], results: list[TrainResult]) -> None:
    """Fail the clients that are to clip their updates, but were sent no norm."""
    for index, task in enumerate(tasks):
        if task.clipping_norm is None and results[index].status is Status.DONE:
            results[index] = TrainResult(task.client, Status.FAILED, reason=NO_NORM_REASON)


def _answer_inquiry(message: Message, context: Context) -> Message:
    """Reply that every client takes part; mods leave out those that are unavailable."""
    _, hosted = _get_node(context)
    _, clients = decode_selected_clients(message.content, hosted)
    results = [TrainResult(client, Status.DONE) for client in clients]
    return Message(encode_train_reply(results), reply_to=message)


def _train_to_models(
    message: Message,
    node: Node,
    arrays: NamedArrays,
    tasks: Sequence[TrainTask],
    results: list[TrainResult],
    *,
    joined: Sequence[int],
    starts: Mapping[int, Arrays],
) -> Message:
    """Return the reply with the model of each client that joined.

    ``starts`` holds the models of the clients that do not start from ``arrays``.
    """
    stacked = [np.empty((len(joined), *array.shape), array.dtype) for array in arrays.values()]

    def store_models(indices: list[int], models: list[torch.Tensor]) -> None:
        for whole, trained in zip(stacked, models, strict=True):
            whole[indices] = trained.cpu().numpy()

    failed = set()
    for indices, result in _train_joined(node, arrays, tasks, joined, store_models, starts=starts):
        if isinstance(result, Exception):
            failed.update(indices)
            results[joined[indices[0]]] = _report_failure(
                node, tasks[joined[indices[0]]].client, result
            )
    left = [index for index in range(len(joined)) if index not in failed]
    if node.clips_updates:
        for index in left:
            client = joined[index]
            bit = clip_row(arrays, stacked, index, tasks[client])
            results[client] = replace(results[client], norm_bit=bit)
    if not left:
        return Message(encode_train_reply(results), reply_to=message)
    whole = stacked if not failed else [array[left] for array in stacked]
    models = dict(zip(arrays, whole, strict=True))
    return Message(encode_train_reply(results, models), reply_to=message)


def _train_into_sum(
    message: Message,
    node: Node,
    arrays: NamedArrays,
    tasks: Sequence[TrainTask],
    results: list[TrainResult],
    *,
    joined: Sequence[int],
) -> Message:
    """Return the reply with the weighted sum of the updates of the clients that joined."""
    bins = decode_sum_bins(message.content, arrays)
    sums: dict[int, UpdateSum] = {}  # one per thread: any grouping has the same bits
    numerators = [tasks[i].compute_numerator(results[i].num_examples or 0.0) for i in joined]

    def add_models(indices: list[int], models: list[torch.Tensor]) -> list[str | None]:
        thread = threading.get_ident()
        if thread not in sums:
            sums[thread] = UpdateSum(arrays, models[0].device, bins)
        if node.clips_updates:  # nobody can clip an update that is in a sum
            models = _clip_models(arrays, models, tasks, results, [joined[i] for i in indices])
        return sums[thread].add(models, [numerators[index] for index in indices])

    for indices, result in _train_joined(node, arrays, tasks, joined, add_models):
        if isinstance(result, Exception):
            results[joined[indices[0]]] = _report_failure(
                node, tasks[joined[indices[0]]].client, result
            )
            continue
        for index, problem in zip(indices, result, strict=True):
            if problem is not None:
                client = tasks[joined[index]].client
                results[joined[index]] = TrainResult(client, Status.REJECTED, reason=problem)
    if not any(outcome.status is Status.DONE for outcome in results):
        return Message(encode_train_reply(results), reply_to=message)
    first, *others = sums.values()
    for other in others:
        first.merge(other)
    reply = encode_train_reply(results, weighted_sum=first.get_sums())
    return Message(reply, reply_to=message)


def _clip_models(
    arrays: NamedArrays,
    models: Sequence[torch.Tensor],
    tasks: Sequence[TrainTask],
    results: list[TrainResult],
    clients: Sequence[int],
) -> list[torch.Tensor]:
    """Return clipped models of the clients with these indices, and write their ``norm_bit``."""
    clipped, bits = clip_stacked_models(arrays, models, [tasks[index] for index in clients])
    for index, bit in zip(clients, bits, strict=True):
        results[index] = replace(results[index], norm_bit=bit)
    return clipped


def _train_joined(
    node: Node,
    arrays: NamedArrays,
    tasks: Sequence[TrainTask],
    joined: Sequence[int],
    on_trained: OnTrained[Result],
    *,
    starts: Mapping[int, Arrays] = NO_STARTS,
) -> Iterator[tuple[list[int], Result | Exception]]:
    """Train the clients that joined.

    Yields their indices in ``joined`` with the result of ``on_trained``, or with the exception.
    """
    if not joined:
        return
    clients = [tasks[i].client for i in joined]
    rounds = [tasks[i].server_round - 1 for i in joined]
    yield from node.trainer.train_clients(
        list(arrays.values()), clients, rounds, on_trained, starts=starts
    )


def _report_failure(node: Node, client: int, error: Exception) -> TrainResult:
    log_failure(ERROR, f"Client {client} failed", error)
    return TrainResult(client, Status.FAILED, reason=node.get_reason(error))


@app.evaluate(mods=[_mask_sum, _limit_results])
def handle_evaluate(message: Message, context: Context) -> Message:
    """Let every selected client evaluate the model."""
    node, hosted = _load_hosted(message, context)
    arrays, tasks = decode_evaluate_request(message.content, hosted)
    received = list(arrays.values())
    if any(task.finetune_epochs for task in tasks):
        results = _evaluate_finetuned(node, received, tasks)
        return Message(encode_evaluate_reply(results), reply_to=message)
    # One pass over each split for all clients.
    for split in ALL_SPLITS:
        selected = [task for task in tasks if (task.train if split == "train" else task.test)]
        _prepare_evaluation(node, received, split, [task.client for task in selected])

    def evaluate_task(client: FederatedClient, task: EvaluateTask) -> EvaluateResult:
        return client.evaluate_task(received, task)

    results = list(_run_tasks(node, tasks, evaluate_task, EvaluateResult))
    return Message(encode_evaluate_reply(results), reply_to=message)


def _evaluate_finetuned(
    node: Node, received: Arrays, tasks: Sequence[EvaluateTask]
) -> list[EvaluateResult]:
    """Train the received model on each client's rows, evaluate the results, and discard them."""
    epochs, server_round = tasks[0].finetune_epochs, tasks[0].server_round

    def check(client: FederatedClient, task: EvaluateTask) -> EvaluateResult:
        client.check_rows()
        return EvaluateResult(task.client, Status.DONE)

    results = {one.client: one for one in _run_tasks(node, tasks, check, EvaluateResult)}
    by_client = {task.client: task for task in tasks}
    able = [k for k in by_client if results[k].status is Status.DONE]
    # Each model is evaluated as soon as it is there, so that not all models are in memory.
    for client, model in node.trainer.finetune_clients(received, able, server_round, epochs):

        def evaluate(
            one: FederatedClient, task: EvaluateTask, model: Arrays | Exception = model
        ) -> EvaluateResult:
            if isinstance(model, Exception):
                raise model
            return one.evaluate_task(model, task)

        [results[client]] = _run_tasks(node, [by_client[client]], evaluate, EvaluateResult)
    return [results[task.client] for task in tasks]


def _load_hosted(message: Message, context: Context) -> tuple[Node, Sequence[int]]:
    """Return the node with its clients loaded, and the ids of those that this context hosts."""
    node, hosted = _get_node(context)
    if node.needs_agreement:
        node.agree(decode_scales(message.content))
    try:
        node.load_clients(hosted)
    except Exception as error:  # loading each client alone shows which one fails
        log_failure(WARNING, "Clients load one after the other after a failure", error)
    return node, hosted


def _prepare_evaluation(node: Node, received: Arrays, split: Split, clients: list[int]) -> None:
    """Evaluate all of these clients in one pass, if their data has this split."""
    try:
        if node.has_clients and split in node.evaluator.splits:
            node.evaluator.prepare(received, split, clients)
    except Exception as error:  # evaluating each client alone shows which one fails
        log_failure(WARNING, "Clients are evaluated one after the other after a failure", error)


def _run_tasks(
    node: Node,
    tasks: Sequence[TaskT],
    work: Callable[[FederatedClient, TaskT], ResultT],
    kind: type[ResultT],
) -> Iterator[ResultT]:
    """Yield each client's result; a client that raises has the status FAILED."""
    for task in tasks:
        try:
            result = work(node.get_client(task.client), task)
        except Exception as error:  # one client's failure must not take the others with it
            log_failure(ERROR, f"Client {task.client} failed", error)
            result = kind(task.client, Status.FAILED, reason=node.get_reason(error))
        yield result


def _get_node(context: Context) -> tuple[Node, Sequence[int]]:
    """Return the node of this process, and the ids of the clients that this context hosts."""
    FAILURE_LOG.run_id = context.run_id
    config = context.node_config
    path = str(config.get("data-path", ""))
    hides_text = is_deployed(config) and not may_send_reasons(config)
    node = get_node(context.run_config, path, hides_text=hides_text)
    return node, node.get_hosted_clients(dict(config))


def get_node(
    run_config: Mapping[str, Any], data_path: str = "", *, hides_text: bool = False
) -> Node:
    """Return the node of this process for a run, built once; see ``Node``."""
    node = _build_node(*_read_run_config(run_config), data_path, hides_text=hides_text)
    node.set_switches()
    return node


def _read_run_config(run_config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the experiment and the overrides of a run."""
    return str(run_config["experiment"]), str(run_config["overrides"])


@lru_cache(maxsize=1)
def _build_node(experiment: str, overrides: str, data_path: str, *, hides_text: bool) -> Node:
    settings = _compose_settings(experiment, overrides).settings
    return Node(settings, data_path, hides_text=hides_text)


@lru_cache(maxsize=1)
def _compose_settings(experiment: str, overrides: str) -> ComposedConfig:
    return compose_settings(experiment, overrides)
