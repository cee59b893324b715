"""Explain one decision: why a client was selected, its reply, and its update's weight.

The rules supply the sentences and formulas; the records supply the numbers.
"""

from collections.abc import Iterator

from ..errors import ParameterError, RunError
from ..rules.composition import RuleSet
from ..rules.decisions import DecisionTrace
from ..rules.formatting import format_number
from ..rules.types import ClientsUnderWay
from .replay import AuditInput, ReplayedRound, TableRow, UndecidableError, replay_rounds


def describe_decision(
    recorded: AuditInput, client: int | str, number: int, form: str = "client={}"
) -> tuple[str, ...]:
    """Return the lines that explain the decision about a client in a round.

    Parameters
    ----------
    recorded : AuditInput
    client : int or str
        The client's id or name.
    number : int
        The round.
    form : str
        How the user gives the client, for errors; see ``ClientNames.find``.

    Raises
    ------
    RunError
        If there is no such client or round, or the rules refuse the records of an earlier round.
    """
    population, rounds = recorded.population, len(recorded.run.rounds)
    names, hosted = recorded.run.client_names, population.hosted_clients
    try:
        client = names.find(client, 1 + max(hosted), "client", form)
    except ParameterError as error:
        raise RunError(str(error)) from None
    if client in population.held_out:
        held_out = "it is a held-out client, which is only evaluated"
        return (f"client {names.format(client)} never trains: {held_out}",)
    if client not in population.clients:
        raise RunError(
            f"client must be the id of one of the run's {len(population.clients)} clients, got "
            f"{client}"
        )
    if not 1 <= number <= rounds:
        raise RunError(f"round must be from 1 to {rounds}, the run's rounds, got {number}")
    try:
        for replayed in replay_rounds(recorded):
            if replayed.record.round == number:
                return tuple(_format_lines(recorded, replayed, client))
    except UndecidableError as error:
        raise RunError(
            f"round {error.number}: the rules refuse what is recorded: {error}"
        ) from None
    raise RunError(f"clients/ has no rows of round {number}")


def _format_lines(recorded: AuditInput, replayed: ReplayedRound, client: int) -> Iterator[str]:
    number, population, rules = replayed.record.round, replayed.population, replayed.rules
    group = ""
    if population.non_priority_clients:
        group = f" ({'a' if client in population.priority else 'not a'} priority client)"
    name = recorded.run.client_names.format(client)
    yield f"round {number}, client {name}{group}, strategy {recorded.run.strategy}"
    if client not in population.clients:
        yield f"asked: no; it joined in round {recorded.joined_rounds[client]}"
        return
    row = next((row for row in replayed.rows if row["client"] == client), None)
    if replayed.under_way is None:
        asked = rules.selection.explain_selection(number - 1, population, replayed.plan, client)
    else:
        asked = _explain_setting_out(replayed, replayed.under_way, row, client)
    yield f"asked: {asked}"
    if row is None:
        return
    yield f"answered: {_describe_outcome(row)}"
    clients = replayed.decision.clients
    if client not in clients:
        yield "weight: 0; the server received no usable update"
        return
    index, trace = clients.index(client), replayed.decision.trace
    yield f"admitted: {rules.selection.explain_admission(trace, index)}"
    if trace.admitted_fraction[index] == 0.0:
        yield f"weight: 0; the server refused the update; recorded {format_number(row['weight'])}"
        return
    if replayed.refusal is not None:
        reason = row["reason"] or replayed.refusal
        yield f"weight: 0; {reason}; recorded {format_number(row['weight'])}"
        return
    for line in rules.weighting.explain(trace, index):
        yield f"weight: {line}"
    yield from _explain_discount(trace, row, index)
    if trace.weight_cap is not None:
        yield f"weight: at most robustness.max_weight = {trace.weight_cap:g}"
    yield from _explain_server_lr(rules, number)
    yield f"weight recorded: {format_number(row['weight'])}"


def _explain_setting_out(
    replayed: ReplayedRound, under_way: ClientsUnderWay, row: TableRow | None, client: int
) -> str:
    """Return when a client set out, where late updates count, or why it did not in this round."""
    if client in under_way.clients:
        if row is None:
            return "no; it is under way since an earlier round"
        return f"in round {row['start_round']}, and it trained from the model of that round"
    if client in under_way.blocked:
        return "no; its node trained for another of its clients"
    if client in replayed.plan.clients:
        return "yes; it was free"
    free = "it was free, but the draw among the free clients left it out"
    return f"no; {free} (engine.concurrency={under_way.concurrency})"


def _explain_discount(trace: DecisionTrace, row: TableRow, index: int) -> Iterator[str]:
    """Yield d(s), and the weight times it, where late updates count."""
    if trace.discount is None or trace.weights is None:
        return
    weight, discount = float(trace.weights.weight[index]), float(trace.discount[index])
    yield (
        f"weight: it started from the model of round {row['start_round']}, s = "
        f"{row['staleness']}: d(s) = "
        f"{format_number(discount)}, and c_k d(s) = {format_number(weight)} x "
        f"{format_number(discount)} = {format_number(weight * discount)}"
    )


def _explain_server_lr(rules: RuleSet, number: int) -> Iterator[str]:
    """Yield eta_t of the round, if it varies over the rounds."""
    if rules.server_lr_schedule.schedule == "constant":
        return
    initial, factor = (
        rules.server_optimizer.learning_rate,
        rules.server_lr_schedule.compute_factor(number - 1),
    )
    yield (
        f"server's learning rate: server_lr lr_0 / lr_t = {format_number(initial)} x "
        f"{format_number(factor)} = {format_number(initial * factor)}"
    )


def _describe_outcome(row: TableRow) -> str:
    reason = "" if row["reason"] is None else f": {row['reason']}"
    if row["status"] == "declined":
        return "declined; the client's side of the gate refused, so it reports no loss"
    if row["num_examples"] is None:
        masked = "an update in the sum of several nodes, whose masks hide the client's numbers"
        return masked if row["status"] == "trained" else f"{row['status']}{reason}"
    metrics = [
        f"{name} {format_number(row[key])}"
        for name, key in (("loss F_k", "loss"), ("accuracy", "accuracy"))
        if row[key] is not None
    ]
    numbers = ", ".join([f"D_k = {row['num_examples']}", *metrics])
    return f"an update, with {numbers} of the model it received"
