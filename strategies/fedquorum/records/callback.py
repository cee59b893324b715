"""Follow a run while it runs: the callbacks of the ``Runner``, and the observers of its records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..rules.decisions import ClientEvaluation, RoundReport
from ..rules.state_arrays import StateArrays
from .round_record import RoundRecord, get_scalars


@dataclass(frozen=True)
class FinishedRound:
    """A round after its last step.

    Parameters
    ----------
    record : RoundRecord
        The round in numbers.
    report : RoundReport
        The decisions about each client.
    evaluations : sequence of ClientEvaluation
        The clients' evaluations of the model after the round.
    initial_evaluations : sequence of ClientEvaluation
        Those of the model before it; empty unless the round evaluated F(w_0).
    get_model : callable
        Returns the model after the round.
    is_last : bool
        Whether no round follows, in this process.
    """

    record: RoundRecord
    report: RoundReport
    evaluations: Sequence[ClientEvaluation] = ()
    initial_evaluations: Sequence[ClientEvaluation] = ()
    get_model: Callable[[], StateArrays] = dict
    is_last: bool = False

    @cached_property
    def scalars(self) -> Mapping[str, float]:
        """The numbers of the round that are defined, by names such as ``round/global_loss``."""
        return get_scalars(self.record)


class RunCallback:
    """A listener to the rounds of a run; a subclass overrides the events that it needs.

    An ``OSError`` or ``RunError`` raised by a callback ends the run, like a record that cannot be
    written. A callback that the run can do without therefore catches its own errors.
    """

    def start_rounds(self, server_round: int, get_model: Callable[[], StateArrays]) -> None:
        """Start after ``server_round``, 0 for a new run, with the model of ``get_model``."""

    def release_model(self) -> None:
        """Note that there is a new model, which no client has received yet."""

    def end_round(self, finished: FinishedRound) -> None:
        """Receive a finished round."""


class RunObserver(RunCallback):
    """A callback with files beside the records; ``RunWriter`` passes on the events of a round.

    ``finish`` must raise no error.
    """

    def start(self, directory: Path) -> None:
        """Start; the run's records are in ``directory``."""

    def flush(self) -> None:
        """Write buffered data, before a checkpoint records the lengths of the files."""

    def close(self) -> None:
        """Close the files."""

    def finish(self, status: str, files: Mapping[str, str]) -> None:
        """Receive the run's final status, and the paths of its records by name."""
