"""Step a run through its rounds: each is written down before the next one begins.

Two loops drive a ``Runner``: the app's (``server_app/loop.py``), and Flower's own with the records
of a drop-in strategy (``fedquorum/flower/recorded.py``). The steps of a run:

1. ``resume_strategy`` brings the strategy of a resumed run to where it was.
2. ``Runner.begin`` writes the checkpoint that a new run has before its first round.
3. ``Runner.open_round`` begins a round.
4. The loop measures F(w_0) where the rules need it, trains, and moves the model.
5. The loop has the new model evaluated.
6. ``Runner.close_round`` writes the records, then a checkpoint if one is due, then calls the
   callbacks. No signal comes between. The next round begins with step 3.
7. The loop writes the last model, however the run ends. ``RunRecords`` sets the status.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import FedQuorumError, RunError, one_line
from ..report import ClientEvaluation
from ..state import StateArrays, array_like
from .checkpoint import Checkpoint, Checkpoints, Pace
from .interruption import uninterrupted
from .reader import load_run
from .round_record import RoundRecord
from .writer import RunRecords

if TYPE_CHECKING:
    from ..flower.strategy import ComposedStrategy


def resume_strategy(strategy: "ComposedStrategy", start: Checkpoint, initial: StateArrays) -> None:
    """Bring a strategy to where it was.

    Parameters
    ----------
    strategy : ComposedStrategy
        One with the same rules, before its first round.
    start : Checkpoint
        The round after which it goes on.
    initial : mapping
        The model that a new run would begin with, of the same form.

    Raises
    ------
    RunError
        If the checkpoint is of another strategy or model.
    """
    try:
        for name, array in initial.items():
            array_like(array, name, start.model)
        strategy.restore(start.strategy, start.model)
    except (FedQuorumError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"the checkpoint does not fit the strategy: {one_line(error)}") from None


@dataclass
class Runner:
    """Steps through the rounds of one run.

    Parameters
    ----------
    records : RunRecords
        Where the rounds are written.
    strategy : ComposedStrategy
        Whose outcomes they are.
    record : callable
        ``round_record``, with what is the same in all rounds.
    settings : mapping
        All settings by dotted key, for the checkpoints.
    after, last : int
        The round after which the run begins, 0 for a new run; and its last one to run.
    state, nodes : callable
        Return what the server keeps for the strategy, and the nodes; by default these nothing.
    every : int, "auto" or None
        A checkpoint every so many rounds, or as often as they cost little, and after the last
        round; or none at all.
    callbacks : list of callable
        Are told the record of each round, in this order.
    """

    records: RunRecords
    strategy: "ComposedStrategy"
    record: Callable[..., RoundRecord]
    settings: Mapping[str, Any]
    after: int
    last: int
    state: Callable[[], StateArrays]
    nodes: Callable[[], StateArrays] = dict
    every: Any = "auto"
    callbacks: list[Callable[[RoundRecord], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the folder of the checkpoints."""
        self._checkpoints = Checkpoints(self.records.directory)
        self._pace = Pace()
        self._previous: RoundRecord | None = None

    def begin(self, model: Callable[[], StateArrays]) -> Sequence[RoundRecord]:
        """Begin with a model, and return the records of the rounds that there are already."""
        self._checkpoints.forget_after(self.after)
        rounds = load_run(self.records.directory).rounds if self.after > 0 else ()
        self._previous = rounds[-1] if rounds else None
        if self.after == 0 and self.every is not None:
            self._save(0, model)
        return rounds

    def open_round(self) -> None:
        """Note when a round begins, and what was sent before it."""
        self._started, self._before = time.monotonic(), self.strategy.outcome.traffic

    def close_round(
        self,
        model: Callable[[], StateArrays],
        initial: Sequence[ClientEvaluation] = (),
        **facts: Any,
    ) -> RoundRecord:
        """Write the round down, tell the callbacks, and return its record.

        Parameters
        ----------
        model : callable
            Returns the model after the round.
        initial : sequence of ClientEvaluation
            The evaluations of the model before it, where F(w_0) had to be measured.
        **facts
            What ``record`` needs to know of this round.

        Raises
        ------
        RunError
            If it cannot be written, or the run was ended meanwhile.
        """
        with uninterrupted():
            outcome = self.strategy.outcome
            record = self._previous = self.record(
                outcome.report,
                outcome.evaluations,
                bytes_down=outcome.traffic.bytes_down - self._before.bytes_down,
                bytes_up=outcome.traffic.bytes_up - self._before.bytes_up,
                seconds=time.monotonic() - self._started,
                state_bytes=outcome.state_bytes,
                previous=self._previous,
                **facts,
            )
            self.records.add_evaluations(record.round - 1, initial)
            self.records.add_round(record, outcome.report, outcome.evaluations)
            if self._is_due(record.round):
                self._save(record.round, model)
            for tell in self.callbacks:
                tell(record)
        return record

    def _is_due(self, server_round: int) -> bool:
        if self.every is None or server_round == self.last:
            return self.every is not None
        return server_round % self.every == 0 if isinstance(self.every, int) else self._pace.due

    def _save(self, server_round: int, model: Callable[[], StateArrays]) -> None:
        with self._pace.writing():
            checkpoint = Checkpoint(
                server_round=server_round,
                model=model(),
                strategy=self.state(),
                summary=self.records.summary_state(),
                nodes=self.nodes(),
                records=self.records.position(),
                settings=self.settings,
            )
            self._checkpoints.save(checkpoint)
