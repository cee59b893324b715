"""Evaluate a model by sums with masks, so that no number of a single client leaves its node.

As in a round of training, four exchanges add up the nodes' vectors; these have the clients' losses
and accuracies. Each client counts once, or by its training data if the weights of the updates do
(``fedquorum.flower.evaluation_sums``). A model is evaluated once, by one set of clients: the sums
of two sets would tell the numbers of a client that is in one of them.

A number is in the sum only if at least ``MIN_NODES`` nodes have it. Each node says with its keys
which numbers it expects to have, and with its vector which ones it has. If a number that was asked
for turns out to be of fewer nodes, as one is not finite or a node was lost, the masks stay, and the
model is evaluated once more without that number. Nothing is known of the first sums.
"""

import time
from collections.abc import Sequence

from flwr.app import ArrayRecord, ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from ..errors import ProtocolError
from ..rules.decisions import SUMMED_FIELDS, EvaluationSums
from ..sanitize import MAX_REASON_LENGTH, sanitize
from ..server.virtual_clock import NO_REPLY_REASON
from .codec import EvaluateRequest, EvaluateResult, Status
from .codec.secure import decode_summed_fields
from .evaluation_sums import NUM_INTEGERS, decode_evaluations, find_rare_fields
from .masked_round import MaskedRound
from .secure.errors import ProtocolViolationError, SecureSumError
from .secure.messages import MaskedVector
from .session import NodeSession, ReplyResults

NO_MASK_REASON = "its node did not send the masked sums that the server requires"


def open_masked_evaluation(
    session: NodeSession,
    grid: Grid,
    server_round: int,
    config: ConfigRecord,
    clients: Sequence[int],
    *,
    priority: frozenset[int],
    seed: int,
    started: float | None = None,
) -> MaskedRound:
    """Play the exchanges of keys and of shares with the nodes of ``clients``."""
    session.open_exchange(grid, clients, None, priority=priority)
    return MaskedRound.open(
        session,
        grid,
        server_round,
        config,
        length=NUM_INTEGERS,
        seed=seed,
        of_evaluation=True,
        started=started,
    )


def repeat_masked_evaluation(
    masks: MaskedRound,
    session: NodeSession,
    arrays: ArrayRecord,
    clients: Sequence[int],
    *,
    priority: frozenset[int],
    seed: int,
    by_data: bool,
) -> EvaluationSums | None:
    """Evaluate a model again, without the numbers that turned out to be of too few nodes.

    Both evaluations have one deadline.
    """
    grid, number, config = masks.grid, masks.server_round, masks.config
    again = open_masked_evaluation(
        session, grid, number, config, clients, priority=priority, seed=seed, started=masks.started
    )
    again.withheld = masks.withheld
    contents = build_evaluate_contents(again, session, arrays, len(clients), by_data=by_data)
    messages = session.build_messages(contents, MessageType.EVALUATE, number, config)
    timeout = max(0.0, again.get_end("vectors") - time.monotonic())
    replies = grid.send_and_receive(messages, timeout=timeout)
    results = session.collect_evaluate_results(replies, number)
    return close_masked_evaluation(again, session, results, by_data=by_data)


def build_evaluate_contents(
    masks: MaskedRound, session: NodeSession, arrays: ArrayRecord, num_terms: int, *, by_data: bool
) -> dict[int, RecordDict]:
    """Return the content of the message to each node that masks its sum."""
    asked = choose_summed_fields(masks)
    session.log_withheld(_find_rare_fields(masks))
    return {
        node: session.communication.build_evaluate_content(
            arrays,
            EvaluateRequest(
                masks.server_round,
                clients,
                train=(True,) * len(clients),
                test=(True,) * len(clients),
                masking=masks.requests[node],
                num_terms=num_terms,
                summed_fields=asked,
                by_data=by_data,
            ),
        )
        for node, clients in masks.clients_by_node.items()
    }


def choose_summed_fields(masks: MaskedRound) -> frozenset[str]:
    """Return the numbers to add up over the nodes that are asked for their sums."""
    return frozenset(SUMMED_FIELDS).difference(_find_rare_fields(masks), masks.withheld)


def _find_rare_fields(masks: MaskedRound) -> tuple[str, ...]:
    """Return the numbers that too few of the nodes that are asked expect to have."""
    return find_rare_fields(masks.fields_by_node[node] for node in masks.requests)


def close_masked_evaluation(
    masks: MaskedRound,
    session: NodeSession,
    results: ReplyResults[EvaluateResult],
    *,
    by_data: bool,
) -> EvaluationSums | None:
    """Add up the nodes' vectors, and remove their masks; None if they cannot be removed.

    They are not if a number is of too few nodes; ``masks.withheld`` has it then. Why a client is
    not in the sums is logged.
    """
    problems = {k: one.reason or one.status for k, one in masks.outcomes.items()}
    num_clients, fields_by_node = 0, dict[int, frozenset[str]]()
    for node, clients in masks.clients_by_node.items():
        left_out = _receive_vector(masks, node, clients, results, fields_by_node)
        num_clients += len(clients) - len(left_out)
        problems |= left_out
    for client, reason in sorted(problems.items()):
        session.log_evaluation_problem(client, reason)
    asked = choose_summed_fields(masks)
    rare = [name for name in find_rare_fields(fields_by_node.values()) if name in asked]
    problem = masks.problem
    if rare and problem is None:
        masks.withheld |= frozenset(rare)
        session.log_withheld(rare)
        return None
    if problem is None:
        try:
            total = masks.compute_total(session.log_evaluation_problem)
            metric = session.communication.metric
            return decode_evaluations(total, num_clients, metric, by_data=by_data)
        except (SecureSumError, ProtocolViolationError, ArithmeticError) as error:
            problem = str(error)
    session.log_sums_problem(problem)
    return None


def _receive_vector(
    masks: MaskedRound,
    node: int,
    clients: Sequence[int],
    results: ReplyResults[EvaluateResult],
    fields_by_node: dict[int, frozenset[str]],
) -> dict[int, str]:
    """Add a node's vector to the sum, and its numbers' names to ``fields_by_node``.

    Returns
    -------
    dict of int to str
        The clients that are not in the sum, with the reasons.
    """
    problems = _find_client_problems(clients, results)
    node_sum = results.node_sums.get(node)
    summed = () if node_sum is None else node_sum.clients
    # Nothing can be taken out of a masked vector: one bad client spoils it for the others.
    problem = next((problems[k] for k in summed if k in problems), None)
    if node_sum is None:
        problem = NO_MASK_REASON
    elif problem is None and summed:
        assert isinstance(node_sum.updates, MaskedVector)
        try:
            fields = decode_summed_fields(results.contents[summed[0]])
        except ProtocolError as error:
            problem = sanitize(error, MAX_REASON_LENGTH)
        else:
            problem = masks.receive_vector(node, node_sum.updates)
            if problem is None:
                fields_by_node[node] = fields
    if problem is not None:
        problems = {client: problems.get(client, problem) for client in clients}
    return problems


def _find_client_problems(
    clients: Sequence[int], results: ReplyResults[EvaluateResult]
) -> dict[int, str]:
    """Return why some of a node's clients were not evaluated."""
    problems = {}
    for client in clients:
        result = results.by_client.get(client)
        if client in results.malformed:
            problems[client] = results.malformed[client]
        elif result is None:
            problems[client] = NO_REPLY_REASON
        elif result.status is not Status.DONE:
            problems[client] = result.reason or result.status.name.lower()
    return problems
