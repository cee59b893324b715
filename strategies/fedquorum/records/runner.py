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
7. The loop writes the last model, however the run ends. ``RunWriter`` sets the status.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..decisions import ClientEvaluation
from ..errors import FedQuorumError, RunError, to_one_line
from ..state_arrays import StateArrays, expect_array
from .checkpoint import Checkpoint, CheckpointPacer, CheckpointStore
from .interruption import defer_signals
from .reader import load_run
from .round_record import RoundRecord
from .writer import RunWriter

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
        Where the rounds are written.
    strategy : ComposedStrategy
        Whose outcomes they are.
    build_record : callable
        ``round_record``, with what is the same in all rounds.
    settings : mapping
        All settings by dotted key, for the checkpoints.
    start_after_round, last_round : int
        The round after which the run begins, 0 for a new run; and its last one to run.
    get_state, get_node_states : callable
        Return what the server keeps for the strategy, and the nodes; by default these nothing.
    checkpoint_every : int, "auto" or None
        A checkpoint every so many rounds, or as often as they cost little, and after the last
        round; or none at all.
    on_round_end : list of callable
        Are told the record of each round, in this order.
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
        """Open the folder of the checkpoints."""
        self._checkpoints = CheckpointStore(self.records.directory)
        self._pace = CheckpointPacer()
        self._previous: RoundRecord | None = None

    def start(self, model: Callable[[], StateArrays]) -> Sequence[RoundRecord]:
        """Begin with a model, and return the records of the rounds that there are already."""
        self._checkpoints.delete_after(self.start_after_round)
        rounds = load_run(self.records.directory).rounds if self.start_after_round > 0 else ()
        self._previous = rounds[-1] if rounds else None
        if self.start_after_round == 0 and self.checkpoint_every is not None:
            self._save(0, model)
        return rounds

    def open_round(self) -> None:
        """Note when a round begins, and what was sent before it."""
        self._started, self._before = time.monotonic(), self.strategy.step_result.traffic

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
            What ``build_record`` needs to know of this round.

        Raises
        ------
        RunError
            If it cannot be written, or the run was ended meanwhile.
        """
        with defer_signals():
            outcome = self.strategy.step_result
            record = self._previous = self.build_record(
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
            for tell in self.on_round_end:
                tell(record)
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
