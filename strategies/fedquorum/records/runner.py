"""Step a run through its rounds; each is recorded before the next one starts.

Two loops drive a ``Runner``: the app's (``server_app/runs/loop.py``), and Flower's own with the
records of a drop-in strategy (``fedquorum/flower/recording.py``). The steps of a run:

1. ``resume_strategy`` restores the strategy of a resumed run.
2. ``Runner.start`` writes the checkpoint that a new run has before its first round.
3. ``Runner.open_round`` starts a round.
4. The loop evaluates F(w_0) if the rules need it, trains, and updates the model.
5. The loop has the new model evaluated.
6. ``Runner.close_round`` writes the records, then a checkpoint if one is due, then calls the
   callbacks. Signals are deferred meanwhile. The next round starts with step 3.
7. The loop writes the last model, however the run ends. ``RunWriter`` sets the status.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import FedQuorumError, RunError, to_one_line
from ..io import defer_signals
from ..rules.decisions import ClientEvaluation
from ..rules.state_arrays import StateArrays, expect_array
from .checkpoint import Checkpoint, CheckpointPacer, CheckpointStore
from .reader import load_run
from .round_record import RoundRecord
from .writer import RunWriter

if TYPE_CHECKING:
    from ..flower.strategy import ComposedStrategy


def resume_strategy(strategy: "ComposedStrategy", start: Checkpoint, initial: StateArrays) -> None:
    """Restore a strategy from a checkpoint.

    Parameters
    ----------
    strategy : ComposedStrategy
        A strategy with the same rules, before its first round.
    start : Checkpoint
        The checkpoint from which the run resumes.
    initial : mapping
        The initial model of a new run, with arrays of the same names and shapes.

    Raises
    ------
    RunError
        If the checkpoint is of another strategy or model.
    """
    try:
        for name, array in initial.items():
            expect_array(array, name, start.model)
        strategy.restore(start.strategy, start.model)
    except (FedQuorumError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"the checkpoint does not fit the strategy: {to_one_line(error)}") from None


@dataclass
class Runner:
    """Steps through the rounds of one run.

    Parameters
    ----------
    records : RunWriter
        The writer of the rounds.
    strategy : ComposedStrategy
    build_record : callable
        ``build_round_record``, with the arguments that are the same in all rounds.
    settings : mapping
        All settings by dotted key, for the checkpoints.
    start_after_round, last_round : int
        The round after which the run starts, 0 for a new run; and the last round to run.
    get_state, get_node_states : callable
        Return the state of the server and of the nodes; by default the nodes have none.
    checkpoint_every : int, "auto" or None
        Write a checkpoint every this many rounds, or ("auto") as often as it costs little time,
        and after the last round; None writes none.
    on_round_end : list of callable
        Called with the record of each round, in this order.
    """

    records: RunWriter
    strategy: "ComposedStrategy"
    build_record: Callable[..., RoundRecord]
    settings: Mapping[str, Any]
    start_after_round: int
    last_round: int
    get_state: Callable[[], StateArrays]
    get_node_states: Callable[[], StateArrays] = dict
    checkpoint_every: Any = "auto"
    on_round_end: list[Callable[[RoundRecord], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the checkpoints."""
        self._checkpoints = CheckpointStore(self.records.directory)
        self._pace = CheckpointPacer()
        self._previous: RoundRecord | None = None

    def start(self, model: Callable[[], StateArrays]) -> Sequence[RoundRecord]:
        """Start with a model, and return the records of the earlier rounds."""
        self._checkpoints.delete_after(self.start_after_round)
        rounds = load_run(self.records.directory).rounds if self.start_after_round > 0 else ()
        self._previous = rounds[-1] if rounds else None
        if self.start_after_round == 0 and self.checkpoint_every is not None:
            self._save(0, model)
        return rounds

    def open_round(self) -> None:
        """Store the start time of a round and the traffic before it."""
        self._started, self._before = time.monotonic(), self.strategy.step_result.traffic

    def close_round(
        self,
        model: Callable[[], StateArrays],
        initial: Sequence[ClientEvaluation] = (),
        **facts: Any,
    ) -> RoundRecord:
        """Write the round, call the callbacks, and return the record.

        Parameters
        ----------
        model : callable
            A function that returns the model after the round.
        initial : sequence of ClientEvaluation
            The evaluations of the model before it, if F(w_0) was evaluated.
        **facts
            Further arguments of ``build_record``.

        Raises
        ------
        RunError
            If the round cannot be written, or the run has ended meanwhile.
        """
        with defer_signals():
            result = self.strategy.step_result
            record = self._previous = self.build_record(
                result.report,
                result.evaluations,
                bytes_down=result.traffic.bytes_down - self._before.bytes_down,
                bytes_up=result.traffic.bytes_up - self._before.bytes_up,
                seconds=time.monotonic() - self._started,
                state_bytes=result.state_bytes,
                previous=self._previous,
                **facts,
            )
            self.records.add_evaluations(record.round - 1, initial)
            self.records.add_round(record, result.report, result.evaluations)
            if self._is_due(record.round):
                self._save(record.round, model)
            for callback in self.on_round_end:
                callback(record)
        return record

    def _is_due(self, server_round: int) -> bool:
        if self.checkpoint_every is None or server_round == self.last_round:
            return self.checkpoint_every is not None
        return (
            server_round % self.checkpoint_every == 0
            if isinstance(self.checkpoint_every, int)
            else self._pace.is_due
        )

    def _save(self, server_round: int, model: Callable[[], StateArrays]) -> None:
        with self._pace.measure_write():
            checkpoint = Checkpoint(
                server_round=server_round,
                model=model(),
                strategy=self.get_state(),
                summary=self.records.get_summary_state(),
                nodes=self.get_node_states(),
                records=self.records.flush_and_get_offsets(),
                settings=self.settings,
            )
            self._checkpoints.save(checkpoint)
