"""Explain one decision: why a client was asked, its answer, and its update's weight.

The rules supply the sentences and formulas; the records supply the numbers.
"""

from collections.abc import Iterator

from ..composition import Rules
from ..errors import RunError
from ..words import digits
from .replay import Recorded, Replayed, Row, UndecidableError, replay


def explain(recorded: Recorded, client: int, number: int) -> tuple[str, ...]:
    """Return the lines that explain the decision about a client in a round.

    Raises
    ------
    RunError
        If there is no such client or round, or the rules refuse the records of an earlier round.
    """
    population, rounds = recorded.population, len(recorded.run.rounds)
    if client in population.unseen:
        return (f"client {client} never trains: it is a held-out client, which is only evaluated",)
    if client not in population.clients:
        raise RunError(
            f"client must be the id of one of the run's {len(population.clients)} clients, got "
            f"{client}"
        )
    if not 1 <= number <= rounds:
        raise RunError(f"round must be from 1 to {rounds}, the run's rounds, got {number}")
    try:
        for replayed in replay(recorded):
            if replayed.record.round == number:
                return tuple(_lines(recorded, replayed, client))
    except UndecidableError as error:
        raise RunError(
            f"round {error.number}: the rules refuse what is recorded: {error}"
        ) from None
    raise RunError(f"clients/ has no rows of round {number}")


def _lines(recorded: Recorded, replayed: Replayed, client: int) -> Iterator[str]:
    number, population, rules = replayed.record.round, replayed.population, replayed.rules
    yield (
        f"round {number}, client {client} "
        f"({'a' if client in population.priority else 'not a'} priority client), strategy "
        f"{recorded.run.strategy}"
    )
    if client not in population.clients:
        yield f"asked: no; it joined in round {recorded.joined[client]}"
        return
    asked = rules.selection.explain_call(number - 1, population, replayed.call, client)
    yield f"asked: {asked}"
    row = next((row for row in replayed.rows if row["client"] == client), None)
    if row is None:
        return
    yield f"answered: {_answer(row)}"
    clients = replayed.round.clients
    if client not in clients:
        yield "weight: 0; the server received no usable update"
        return
    place, decided = clients.index(client), replayed.round.decided
    yield f"admitted: {rules.selection.explain_admission(decided, place)}"
    if decided.share[place] == 0.0:
        yield f"weight: 0; the server refused the update; recorded {digits(row['weight'])}"
        return
    if replayed.refused is not None:
        yield f"weight: 0; {row['reason'] or replayed.refused}; recorded {digits(row['weight'])}"
        return
    for line in rules.weighting.explain(decided, place):
        yield f"weight: {line}"
    if decided.capped is not None:
        yield f"weight: at most robustness.max_weight = {decided.capped:g}"
    yield from _server_rate(rules, number)
    yield f"weight recorded: {digits(row['weight'])}"


def _server_rate(rules: Rules, number: int) -> Iterator[str]:
    """Yield eta_t of the round, where it is not the same in all rounds."""
    if rules.server_rate.schedule == "constant":
        return
    first, factor = rules.server_optimizer.learning_rate, rules.server_rate.factor(number - 1)
    yield (
        f"server's learning rate: server_lr lr_0 / lr_t = {digits(first)} x {digits(factor)} = "
        f"{digits(first * factor)}"
    )


def _answer(row: Row) -> str:
    reason = "" if row["reason"] is None else f": {row['reason']}"
    if row["status"] == "declined":
        return "declined; the client's side of the gate refused, so it reports no loss"
    if row["num_examples"] is None:
        return f"{row['status']}{reason}"
    measured = [
        f"{name} {digits(row[key])}"
        for name, key in (("loss F_k", "loss"), ("accuracy", "accuracy"))
        if row[key] is not None
    ]
    numbers = ", ".join([f"D_k = {row['num_examples']}", *measured])
    return f"an update, with {numbers} of the model it received"
