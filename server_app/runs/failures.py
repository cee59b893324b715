"""End a run in which no client trains with success, and name each distinct failure once."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedquorum import ComposedStrategy
from fedquorum.errors import RunError
from fedquorum.records.callback import FinishedRound, RunCallback
from fedquorum.records.failures import count_failures
from fedquorum.records.round_record import RoundRecord
from fedquorum.rules.failures import FailureCounts
from fedquorum.rules.round import NOT_FINITE

MIN_ALIKE = 2
"""The clients that must fail for one reason before a run stops: one alone may have bad data."""

AWAY = frozenset({"unavailable", "busy", "late"})
"""The statuses of clients without a reply that the round could use, which is no failure."""


class FailureWatch(RunCallback):
    """Counts the rounds' failures, and ends a run in which no client trains with success.

    Parameters
    ----------
    strategy : ComposedStrategy
        Knows the clients that may train, and their names.
    stops : bool
        Whether to end the run as soon as all clients fail for one reason, as they would in every
        round. Clients on other machines may recover.

    Attributes
    ----------
    counts : FailureCounts
        The failures of all rounds so far.
    rounds, empty_rounds : int
        Number of rounds, and number of rounds in which no selected client was there.
    """

    def __init__(self, strategy: ComposedStrategy, *, stops: bool) -> None:
        self.counts = FailureCounts()
        self._new = FailureCounts()  # of this leg: a repaired model is not stopped for the last one
        self.rounds = self.empty_rounds = 0
        self._strategy = strategy
        self._stops = stops

    @property
    def _num_clients(self) -> int:
        return len(self._strategy.population.clients)

    def _format_failures(self) -> str:
        return self.counts.format(self._strategy.client_names.format)

    def add_earlier(self, directory: Path, records: Sequence[RoundRecord]) -> None:
        """Add the rounds of a resumed run, whose clients' rows are in its records."""
        self.counts = count_failures(directory, records)
        for record in records:
            self._count(record)

    def end_round(self, finished: FinishedRound) -> None:
        """Add a round.

        Raises
        ------
        RunError
            If no client has trained so far, and all that were there failed for one reason.
        """
        report = finished.report
        self._count(finished.record)
        trained, refused = finished.record.trained, report.rejection_reason
        if self.counts.trained and not finished.record.failed + finished.record.rejected:
            return  # nothing failed, as in most rounds
        self.counts.add_round(report.decisions, trained=trained, refused=refused)
        there = [decision for decision in report.decisions if decision.status not in AWAY]
        before = self._new.times
        self._new.add_round(there, trained=trained, refused=refused)
        if not self._stops or self.counts.trained:
            return
        all_fail = self._new.times - before == len(there) > 0
        enough = len(self._new.clients) >= min(MIN_ALIKE, self._num_clients)
        if all_fail and enough and self._new.are_alike():
            raise RunError(
                f"{self._describe()}; the run stops, because all clients fail for the same reason"
            )

    def check_end(self) -> None:
        """Refuse a run in which clients failed and none trained: its model is the initial one.

        A run without an update because no client was there, or none may change the model, is not
        wrong.

        Raises
        ------
        RunError
            The message has each distinct failure once.
        """
        if self.counts.nobody_trained:
            raise RunError(self._describe())

    def format_row(self) -> str:
        """Return how many clients failed and how often, for the final table; "" without any."""
        if not self.counts.failures:
            return ""
        times = self.counts.times
        return f"{len(self.counts.clients)} of {self._num_clients}, {times} time{'s'[: times > 1]}"

    def list_final_lines(self) -> Iterator[str]:
        """Yield the failures, and in how many rounds nobody was there, to print at the end."""
        if self.counts.failures:
            yield f"Clients failed: {self._format_failures()}"
        if self.empty_rounds:
            yield (
                f"In {self.empty_rounds} of {self.rounds} rounds none of the selected clients was "
                "available"
            )

    def _count(self, record: RoundRecord) -> None:
        self.rounds += 1
        self.empty_rounds += 0 < record.selected == record.unavailable + record.busy

    def _describe(self) -> str:
        text = self.counts.describe(self.rounds, self._strategy.client_names.format)
        failures = self.counts.failures.values()
        if any(failure.reason.startswith(NOT_FINITE) for failure in failures):
            text += "; the strategy's weights or the server's step are not finite"
        elif any(failure.is_diverged for failure in failures):
            text += "; where training diverges, a smaller client.lr helps"
        return text
