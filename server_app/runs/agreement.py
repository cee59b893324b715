"""Let devices agree on the scales of their numbers before the first round."""

from collections.abc import Mapping
from logging import INFO, WARNING
from typing import Any

from fedquorum import ComposedStrategy
from fedquorum.errors import ClientsMissingError, ProtocolError, RunError
from fedquorum.flower.waiting_grid import WaitingGrid
from fedquorum.sanitize import MAX_REASON_LENGTH, abbreviate, sanitize
from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from client_app.data import FederatedData
from client_app.data.agreed import ClientMoments, build_scales, describe_far_clients
from client_app.data.scaling import AgreedScales
from client_app.data.single_client import SingleClientData
from client_app.node.agreement import QUERY_TYPE, decode_statistics, encode_statistics_query
from conf.schema.data import DataSettings, agrees_on_numbers, agrees_on_target, needs_agreement


def agree_on_scales(
    grid: Grid,
    strategy: ComposedStrategy,
    settings: DataSettings,
    data: FederatedData,
    manifest: Mapping[str, Any],
) -> AgreedScales | None:
    """Fix the scales that all clients share; return those that requests must have, if any.

    In one process the data has them already. Devices send exact sums of their training rows, once:
    a resumed run has the scales of its ``manifest``, and a client that joins late counts in none.

    Raises
    ------
    ClientsMissingError
        If too few clients connect, or no client sends its sums.
    """
    if not needs_agreement(settings) or not isinstance(data, SingleClientData):
        return None
    recorded = _read_recorded_scales(manifest)
    if recorded is not None:
        data.agree(recorded)
        return recorded
    names: list[str] = []
    if agrees_on_numbers(settings):
        names = (getattr(settings, "columns", None) or {}).get("numbers", [])
    sizes = {"target": 1} if agrees_on_target(settings) else {}
    sizes |= {"numbers": len(names)} if agrees_on_numbers(settings) else {}
    moments = _collect_moments(grid, strategy, sizes)
    scales = build_scales([*moments.values()], settings, names)
    clients = [f"client {client}" for client in moments]
    data.agree(scales, describe_far_clients(clients, [*moments.values()], scales))
    return scales


def _read_recorded_scales(manifest: Mapping[str, Any]) -> AgreedScales | None:
    """Return the scales of a resumed run, None for a new one."""
    recorded = (manifest.get("data") or {}).get("scales")
    if recorded is None:
        return None
    try:
        return AgreedScales.from_dict(recorded)
    except ValueError as error:
        raise RunError(f"the manifest of the resumed run cannot be used: {error}") from None


def _collect_moments(
    grid: Grid, strategy: ComposedStrategy, sizes: Mapping[str, int]
) -> dict[int, ClientMoments]:
    """Return the moments of each connected client that trains, ascending by id."""
    clients_by_node = strategy.find_nodes(grid, strategy.population.clients)
    queries = [
        Message(encode_statistics_query(clients), node, QUERY_TYPE)
        for node, clients in clients_by_node.items()
    ]
    timeout = strategy.communication.reply_timeout
    moments: dict[int, ClientMoments] = {}
    problems = []
    for arrival in WaitingGrid(grid).send_and_collect(queries, timeout=timeout):
        clients, reply = clients_by_node[arrival.node], arrival.message
        problem = reply.error.reason if reply.has_error() else ""
        if not reply.has_error():
            try:
                moments |= decode_statistics(reply.content, clients, sizes)
            except ProtocolError as error:
                problem = str(error)
        if problem:
            problems.append(f"client {abbreviate(clients)}: {sanitize(problem, MAX_REASON_LENGTH)}")
    for problem in problems:
        log(WARNING, "Without a part in the agreed scales: %s", problem)
    if not any(one.counts[0] for found in moments.values() for one in found.values()):
        reason = problems[0] if problems else "no client replied"
        raise ClientsMissingError(
            f"no client sends the statistics that the scale of its numbers needs: {reason}"
        )
    log(INFO, "%d clients agree on the scale of their numbers", len(moments))
    return dict(sorted(moments.items()))
