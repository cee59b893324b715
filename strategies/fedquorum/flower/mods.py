"""Flower mods for any ClientApp: simulate unavailable and slow clients, and mask sums."""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from ..client.availability.processes import AvailabilityProcess, ProcessState, compute_process_state
from ..client.latency import LatencyModel
from ..errors import ProtocolError
from ..rules.decisions import SUMMED_FIELDS
from ..sanitize import MAX_REASON_LENGTH, sanitize
from ..server.fixed_bins import FixedBins
from .codec import (
    CLIENT_ID,
    EvaluateResult,
    Status,
    TrainResult,
    add_response_times,
    add_unavailable,
    decode_evaluate_reply,
    decode_listed_clients,
    decode_partial_sum,
    decode_selected_clients,
    decode_sum_bins,
    decode_train_reply,
    drop_sum,
    encode_evaluate_reply,
    encode_train_reply,
    filter_clients,
    find_num_terms,
    find_round,
    find_weighs_by_data,
    has_clipping_norm,
    has_protocol_version,
    is_inquiry,
    is_of_evaluation,
    view_model,
    was_asked_before,
)
from .codec.keys import MASK_KEYS, MASK_SHARES, MASKED_SUM
from .codec.secure import (
    Records,
    decode_share_request,
    decode_state,
    decode_summed_fields,
    decode_unmask_request,
    decode_vector_request,
    encode_keys,
    encode_masked_vector,
    encode_shares,
    encode_state,
    encode_summed_fields,
    encode_unmask_shares,
    encode_used_state,
    find_earlier_fields,
    find_step,
    is_masked_round,
)
from .evaluation_sums import encode_evaluations, find_fields, select_fields
from .secure.errors import ProtocolViolationError
from .secure.keys import RoundId, Vector
from .secure.messages import VectorRequest
from .secure.node import NodeState, make_keys, make_shares, mask_vector, unmask
from .standard_app_mod import MODS_ORDER, StandardAppMod
from .validation import HOLDS_UP_TO, NO_CLIP_INDICATOR, find_sum_problem

__all__ = ["AvailabilityMod", "NodeAvailability", "SecureSumMod", "StandardAppMod"]

STATE_RECORD = "availability"


@dataclass(frozen=True)
class NodeAvailability:
    """The availability of one node's clients.

    Parameters
    ----------
    seed : int
        The run's seed, >= 0. The same seed, process and client id give the same rounds on any
        node.
    hosted : sequence of int
        The ids of the node's clients.
    process : callable
        Returns the process of a client.
    """

    seed: int
    hosted: Sequence[int]
    process: Callable[[int], AvailabilityProcess]


@dataclass(frozen=True)
class AvailabilityMod:
    """Answer train messages for unavailable clients, and pass on the rest.

    The clients of a message are those in its config's ``client-id``, or all clients of the node.
    The mod removes unavailable clients from the request. In the reply, their result is their id and
    the status UNAVAILABLE. If no client is available, the mod does not call the ClientApp. It
    passes evaluations and queries on, since the experimenter makes them. It passes an error reply
    back unchanged, for all selected clients.

    The node's ``context.state`` has the processes' states, three numbers for each client of one
    run. A node that lost them, or that was not selected for some rounds, computes the missed
    rounds.

    The server needs a strategy that reads the status, such as those of this project.

    Parameters
    ----------
    get_node_availability : callable
        Takes a node's context and returns the availability of its clients; None if all are always
        available.

    Raises
    ------
    ProtocolError
        If a request has no ``server-round``, or names a client of another node.
    """

    get_node_availability: Callable[[Context], NodeAvailability | None]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message."""
        node = self.get_node_availability(context) if _is_first_train_message(message) else None
        if node is None:
            return call_next(message, context)
        server_round, selected = decode_selected_clients(message.content, node.hosted)
        unavailable = _find_unavailable(node, context, server_round, selected)
        if not unavailable:
            return call_next(message, context)
        if len(unavailable) == len(selected):
            absent = [TrainResult(k, Status.UNAVAILABLE) for k in selected]
            return Message(encode_train_reply(absent), reply_to=message)
        request = copy(message)
        request.content = filter_clients(
            message.content, selected, [k for k in selected if k not in unavailable]
        )
        reply = call_next(request, context)
        if not reply.has_error():
            reply.content = add_unavailable(reply.content, selected, unavailable)
        return reply


def get_base_message_type(message: Message) -> str:
    """Return the type of a message, without the name of a ClientApp's function."""
    return message.metadata.message_type.partition(".")[0]


def is_train_message(message: Message) -> bool:
    """Say whether a message asks for training."""
    return get_base_message_type(message) == MessageType.TRAIN


def _is_first_train_message(message: Message) -> bool:
    """Say whether a message asks for training for the first time; later ones change nothing."""
    return is_train_message(message) and not was_asked_before(message.content)


def _find_unavailable(
    node: NodeAvailability, context: Context, server_round: int, selected: Sequence[int]
) -> frozenset[int]:
    """Return the unavailable clients among those selected, and save the processes' states."""
    states = _load_states(context)
    unavailable = set()
    for client in selected:
        process = node.process(client)
        states[client] = compute_process_state(
            process,
            seed=node.seed,
            client=client,
            server_round=server_round,
            last=states.get(client),
        )
        if not process.is_available(states[client].state):
            unavailable.add(client)
    _save_states(context, states)
    return frozenset(unavailable)


def _load_states(context: Context) -> dict[int, ProcessState]:
    """Return the states of this run; another run's states belong to other settings."""
    record: Mapping[str, Any] = context.state.config_records.get(STATE_RECORD) or {}
    if record.get("run") != context.run_id:
        return {}
    entries = zip(record[CLIENT_ID], record["round"], record["state"], strict=True)
    return {client: ProcessState(server_round, state) for client, server_round, state in entries}


def _save_states(context: Context, states: Mapping[int, ProcessState]) -> None:
    context.state[STATE_RECORD] = ConfigRecord(
        {
            "run": context.run_id,
            CLIENT_ID: list(states),
            "round": [entry.server_round for entry in states.values()],
            "state": [entry.state for entry in states.values()],
        }
    )


@dataclass(frozen=True)
class NodeResponseTimes:
    """The response times of one node's clients.

    Parameters
    ----------
    seed : int
        The run's seed, >= 0.
    hosted : sequence of int
        The ids of the node's clients.
    times : LatencyModel
    """

    seed: int
    hosted: Sequence[int]
    times: LatencyModel


@dataclass(frozen=True)
class ResponseTimeMod:
    """Add simulated seconds to the replies to train messages, for the server's virtual clock.

    The mod does not wait: the reply leaves at once, and a server with
    ``NativeProtocol.virtual_clock`` decides by the seconds which replies are in time. Evaluations
    and queries take no simulated time, since the experimenter makes them.

    Parameters
    ----------
    get_node_response_times : callable
        Takes a node's context and returns the response times of its clients; None without any.

    Raises
    ------
    ProtocolError
        If a request has no ``server-round``, or names a client of another node.
    """

    get_node_response_times: Callable[[Context], NodeResponseTimes | None]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message."""
        node = self.get_node_response_times(context) if _is_first_train_message(message) else None
        if node is None:
            return call_next(message, context)
        server_round, selected = decode_selected_clients(message.content, node.hosted)
        reply = call_next(message, context)
        if not reply.has_error():
            times = node.times.list_seconds(node.seed, selected, server_round)
            by_client = dict(zip(selected, times, strict=True))
            reply.content = add_response_times(reply.content, by_client)
        return reply


NO_MASK_STATE = "it has no secrets of this round's masks: it was restarted, or has answered already"
IN_THE_CLEAR = "this round has masks, and the request would have its numbers without any"
TOO_LARGE = "its update holds values that are too large"
NO_SUM = "its ClientApp returned no weighted sum of its updates"
NOT_NATIVE = f"its ClientApp replies as to Flower's strategies, so {MODS_ORDER}"


@dataclass(frozen=True)
class SecureSumMod:
    """Mask the weighted sum of a node's updates, so that the server learns the sum of all nodes.

    A round has four train messages, each with a record by which the mod knows it. The mod answers
    the first, second and fourth one itself. For the third it calls the ClientApp, and replaces the
    sum in the reply by a masked one. It must be the last of the mods, next to the app. An
    evaluation has the same messages, of which the third one is of type evaluate; the masked sums
    are those of the clients' losses and accuracies. Each reply with keys names the numbers that the
    node expects to have, and each reply with a vector those that it has: the server asks only for
    numbers of enough nodes, and all others are 0 in the vector.

    Of each client only its status leaves the node, and its amount of data where the weights need
    it: the ClientApp's losses, metrics and further records do not. The number of clients whose
    update needed no clipping is masked with the sum, as its last integer.

    If anything is wrong the clients fail with the reason, and no update leaves the node: not in the
    clear, and not after a request without masks in a round that has them.

    The secrets of a round are in ``context.state``, because another process may handle the next
    message. They are deleted with the last answer, with a failure, or when keys are asked for anew.

    Parameters
    ----------
    find_fields : callable, optional
        Takes the message that asks for keys for an evaluation, and the context, and returns which
        of ``SUMMED_FIELDS`` the node's clients may report; by default those of the node's last
        evaluation, and all before the first one.
    """

    find_fields: Callable[[Message, Context], Collection[str]] | None = None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message."""
        kind = get_base_message_type(message)
        if kind not in {MessageType.TRAIN, MessageType.EVALUATE}:
            return call_next(message, context)
        step = find_step(message.content)
        if step is None and not _was_masked(message, context):
            return call_next(message, context)
        server_round, clients = decode_listed_clients(message.content)
        evaluates = kind == MessageType.EVALUATE
        round_id = RoundId(str(context.run_id), server_round)
        if evaluates or is_of_evaluation(message.content):
            round_id = round_id.of_evaluation
        try:
            if step == MASKED_SUM:
                answer_with_sum = self._evaluate if evaluates else self._train
                return answer_with_sum(message, context, call_next, round_id)
            answer = self._answer(step, message, context, round_id)
        except (ProtocolError, ProtocolViolationError) as error:
            reason = sanitize(error, MAX_REASON_LENGTH)
            return Message(_encode_failures(kind, clients, reason), reply_to=message)
        done = encode_train_reply([TrainResult(k, Status.DONE) for k in clients])
        return Message(RecordDict({**done, **answer}), reply_to=message)

    def _answer(
        self, step: str | None, message: Message, context: Context, round_id: RoundId
    ) -> Records:
        """Return the answer to a step without training, and keep the new secrets."""
        if step is None:
            raise ProtocolError(IN_THE_CLEAR)
        if step == MASK_KEYS:
            state, keys = make_keys(context.node_id, round_id)
            context.state.update(encode_state(state))
            if not is_of_evaluation(message.content):
                return encode_keys(keys)
            find = self.find_fields
            if find is not None:
                return encode_keys(keys) | encode_summed_fields(find(message, context))
            earlier = find_earlier_fields(context.state)
            fields = SUMMED_FIELDS if earlier is None else earlier
            return encode_keys(keys) | encode_summed_fields(fields)
        state = _take_state(context, round_id)
        if step == MASK_SHARES:
            state, shares = make_shares(state, decode_share_request(message.content))
            context.state.update(encode_state(state))
            return encode_shares(shares)
        return encode_unmask_shares(unmask(state, decode_unmask_request(message.content)))

    def _train(
        self, message: Message, context: Context, call_next: ClientAppCallable, round_id: RoundId
    ) -> Message:
        """Let the ClientApp train, and mask its sum."""
        state = _take_state(context, round_id)
        request = decode_vector_request(message.content)
        model = view_model(message.content)
        bins = decode_sum_bins(message.content, model)
        if not isinstance(bins, FixedBins):
            raise ProtocolError("a masked sum needs bins that are fixed before training")
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        _check_native(reply)
        results = decode_train_reply(drop_sum(reply.content))
        weighs_by_data = find_weighs_by_data(message.content)
        content = encode_train_reply(
            [
                TrainResult(
                    result.client,
                    result.status,
                    reason=_hide_numbers(result),
                    num_examples=result.num_examples if weighs_by_data else None,
                )
                for result in results
            ]
        )
        trained = [result for result in results if result.status is Status.DONE]
        if trained:
            sums = decode_partial_sum(reply.content)
            problem = NO_SUM if sums is None else find_sum_problem(sums, model, bins)
            if problem is not None or sums is None:  # mypy knows that both are the same
                raise ProtocolError(problem)
            num_unclipped = _count_unclipped(message.content, trained)
            integers = bins.to_integers(sums).reshape(-1)
            vector = np.concatenate([integers, np.array([num_unclipped], np.uint64)])
            content.update(_mask_vector(context, state, request, vector))
        reply.content = content
        return reply

    def _evaluate(
        self, message: Message, context: Context, call_next: ClientAppCallable, round_id: RoundId
    ) -> Message:
        """Let the ClientApp evaluate, and mask the sums of its clients' metrics."""
        state = _take_state(context, round_id)
        request = decode_vector_request(message.content)
        asked = decode_summed_fields(message.content)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        _check_native(reply)
        results = decode_evaluate_reply(reply.content)
        content = encode_evaluate_reply(
            [
                EvaluateResult(result.client, result.status, reason=result.reason)
                for result in results
            ]
        )
        evaluated = [result for result in results if result.status is Status.DONE]
        if evaluated:
            vector = encode_evaluations(
                evaluated,
                find_num_terms(message.content),
                by_data=find_weighs_by_data(message.content),
            )
            fields = find_fields(vector)
            if self.find_fields is None:
                context.state.update(encode_summed_fields(fields))
            content.update(_mask_vector(context, state, request, select_fields(vector, asked)))
            content.update(encode_summed_fields(fields))
        reply.content = content
        return reply


def _check_native(reply: Message) -> None:
    """Refuse a reply that no mod has translated."""
    if not has_protocol_version(reply.content):
        raise ProtocolError(NOT_NATIVE)


def _mask_vector(
    context: Context, state: NodeState, request: VectorRequest, vector: Vector
) -> Records:
    """Return the record of a node's masked vector, and keep what is left of its secrets."""
    state, masked = mask_vector(state, request, vector)
    context.state.update(encode_state(state))
    return encode_masked_vector(masked)


def _encode_failures(kind: str, clients: Sequence[int], reason: str) -> RecordDict:
    """Return the content of a reply in which all clients have failed."""
    if kind == MessageType.EVALUATE:
        failed = [EvaluateResult(k, Status.FAILED, reason=reason) for k in clients]
        return encode_evaluate_reply(failed)
    return encode_train_reply([TrainResult(k, Status.FAILED, reason=reason) for k in clients])


def _hide_numbers(result: TrainResult) -> str | None:
    """Return why a client does not count, without the number that its own model has."""
    return TOO_LARGE if HOLDS_UP_TO in (result.reason or "") else result.reason


def _count_unclipped(content: RecordDict, trained: Sequence[TrainResult]) -> int:
    """Return how many updates needed no clipping, 0 if the request has no norm."""
    if not has_clipping_norm(content):
        return 0
    if not all(result.has_clip_indicator for result in trained):
        raise ProtocolError(NO_CLIP_INDICATOR)
    return sum(result.norm_bit == 0 for result in trained)


def _was_masked(message: Message, context: Context) -> bool:
    """Say whether a request would have something in the clear, in a round with masks."""
    if is_inquiry(message.content):
        return False
    round_id = RoundId(str(context.run_id), find_round(message.content))
    return any(is_masked_round(context.state, one) for one in (round_id, round_id.of_evaluation))


def _take_state(context: Context, round_id: RoundId) -> NodeState:
    """Return the secrets of a round and delete them; what is left says that the round has masks."""
    state = decode_state(context.state, context.node_id, round_id)
    if state is None:
        raise ProtocolError(NO_MASK_STATE)
    context.state.update(encode_used_state(round_id))
    return state
