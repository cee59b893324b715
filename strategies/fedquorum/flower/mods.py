"""Simulate unavailable and slow clients in any ClientApp, by Flower mods."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from ..client.availability.processes import AvailabilityProcess, ProcessState, compute_process_state
from ..client.latency import LatencyModel
from .codec import (
    CLIENT_ID,
    Status,
    TrainResult,
    add_response_times,
    add_unavailable,
    decode_selected_clients,
    encode_train_reply,
    filter_clients,
    was_asked_before,
)

__all__ = ["AvailabilityMod", "NodeAvailability"]

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
