"""Count the clients that train with success and those that fail, and why, over a run's rounds.

A client fails in a round if it raises, does not reply, or its update is rejected for a defect. An
update that a rule gives no weight, or a gate refuses, is one of a client that trained.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .decisions import ClientDecision
from .round import NO_PRIORITY_UPDATE, NOT_FINITE, NOT_SOLVED, NOT_UNMASKED

MAX_LISTED = 5
"""The most failures that a message lists; it counts the others."""

FOUND_KEYS_PREFIX = "; found "
"""What precedes the keys that a malformed reply has instead."""

_NUMBER = re.compile(r"[-+]?(\d(?:[\d.,e+-]*\d)?|\binf\b|\bnan\b)")
_ARRAY = re.compile(r"\barray '[^']*'")
_DIVERGED = re.compile(
    r"holds NaN or Inf|holds values up to|^loss is [^,]*, not in|is too large for the sum of|"
    + re.escape(NOT_FINITE)
)


def normalize_reason(reason: str | None) -> str:
    """Return a reason without its numbers, the same for each client and round."""
    text = _ARRAY.sub("array", reason or "")
    return _NUMBER.sub("#", text.partition(FOUND_KEYS_PREFIX)[0])


def is_failure(decision: ClientDecision, refused: str | None = None) -> bool:
    """Say whether a client failed, or its update was rejected for a defect.

    ``refused`` is why the server rejected the whole round; None if it did not.
    """
    if decision.status == "failed":
        return True
    if decision.status != "rejected":
        return False
    return decision.num_examples is None or (
        refused is not None and (decision.reason or "").startswith(refused)
    )


@dataclass
class Failure:
    """A distinct failure: how often it came, at which clients, and the first one's reason."""

    reason: str
    times: int = 0
    clients: set[int] = field(default_factory=set)

    @property
    def is_diverged(self) -> bool:
        """Whether numbers became too large or not finite, in a model or in a loss."""
        return _DIVERGED.search(self.reason) is not None

    def format(self, format_client: Callable[[int], str]) -> str:
        """Return the reason, its client or one of them, and how often it came."""
        num_clients, one = len(self.clients), format_client(min(self.clients))
        who = f"client {one}" if num_clients == 1 else f"{num_clients} clients, such as {one}"
        times = f", {self.times} times" if self.times > num_clients else ""
        return f"{self.reason} ({who}{times})"


class FailureCounts:
    """The failures of a run so far, each distinct one once; their number does not matter.

    Attributes
    ----------
    trained : int
        How often a client trained with success.
    failures : dict of str to Failure
        The distinct failures, by their reasons without numbers.
    """

    def __init__(self) -> None:
        self.trained = 0
        self.failures: dict[str, Failure] = {}

    @property
    def nobody_trained(self) -> bool:
        """Whether clients failed, and none trained with success."""
        return bool(self.failures) and not self.trained

    @property
    def times(self) -> int:
        """How often a client failed."""
        return sum(failure.times for failure in self.failures.values())

    @property
    def clients(self) -> set[int]:
        """The clients that failed at least once."""
        return set().union(*(failure.clients for failure in self.failures.values()))

    def add_round(
        self, decisions: Iterable[ClientDecision], *, trained: int, refused: str | None = None
    ) -> None:
        """Add a round.

        Parameters
        ----------
        decisions : iterable of ClientDecision
            The decisions about the clients of the round; those that ``trained`` may be missing.
        trained : int
            How many clients have the status ``trained``.
        refused : str, optional
            Why the server rejected the whole round, in which no client then trains with success.
        """
        failed, gated, waited = [], 0, 0
        for decision in decisions:
            if is_failure(decision, refused):
                failed.append(decision)
            elif decision.status == "rejected":
                gated += 1
                waited += (decision.reason or "").startswith(NO_PRIORITY_UPDATE)
        if refused is None:
            self.trained += trained + gated
            # These updates were fine, but cannot count because of the priority clients' failures.
            if any(decision.priority for decision in failed):
                self.trained -= waited
        for decision in failed:
            reason = decision.reason or "it gave no reason"
            failure = self.failures.setdefault(normalize_reason(reason), Failure(reason))
            failure.times += 1
            failure.clients.add(decision.client)

    def are_alike(self) -> bool:
        """Say whether all failures have one cause, which the next round would repeat.

        Numbers that diverge are one cause, wherever they show first. A solver that finds no weights
        may find those of the next round, and other nodes may be left to remove its masks.
        """
        if any(reason.startswith((NOT_SOLVED, NOT_UNMASKED)) for reason in self.failures):
            return False
        return len(self.failures) == 1 or (
            bool(self.failures) and all(one.is_diverged for one in self.failures.values())
        )

    def format(self, format_client: Callable[[int], str] = str) -> str:
        """Return the most frequent failures on one line, and the number of the others."""
        ranked = sorted(self.failures.values(), key=lambda one: -one.times)
        texts = [failure.format(format_client) for failure in ranked[:MAX_LISTED]]
        if rest := ranked[MAX_LISTED:]:
            times = sum(failure.times for failure in rest)
            texts.append(f"and {len(rest)} more ({times} times)")
        return "; ".join(texts)

    def describe(self, rounds: int, format_client: Callable[[int], str] = str) -> str:
        """Say that no client trained with success in a run of these rounds, and why."""
        when = "round 1" if rounds == 1 else f"any of {rounds} rounds"
        return (
            f"no client trained with success in {when}, so the model is the initial one: "
            f"{self.format(format_client)}"
        )
