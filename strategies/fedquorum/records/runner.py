"""Run the rounds of a run, of the app or of a drop-in strategy with records.

``Runner.run_round`` is one round, top to bottom. With a drop-in strategy, Flower's own loop sends
the messages; ``fedquorum.flower.recording`` therefore takes the same steps one by one. What else a
run does is a ``RunCallback``: records and trackers, checkpoints, display, and the privacy ledger.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import FedQuorumError, RunError, to_one_line
from ..io import defer_signals
from ..rules.decisions import ALONE, FINETUNED, ClientEvaluation
from ..rules.state_arrays import StateArrays, expect_array
from .callback import FinishedRound, RunCallback
from .checkpoint import Checkpoint, CheckpointStore
from .personal_models import build_personal_evaluations, select_epochs
from .reader import load_run
from .round_record import RoundRecord
from .writer import RunWriter

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Message
    from flwr.serverapp import Grid

    from ..flower.strategy import ComposedStrategy

NO_FINGERPRINT: Mapping[str, Any] = MappingProxyType({})

MIN_SECONDS_BETWEEN = 1.0
"""Between two automatic checkpoints: a round of a small model takes milliseconds, and syncing a
checkpoint to the disk takes longer than that."""

MAX_TIME_FRACTION = 0.05
"""Of a run's time, for automatic checkpoints: of a large model, one takes longer than a round."""


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
    """Runs the rounds of one run.

    Parameters
    ----------
    strategy : ComposedStrategy
    records : RunWriter
        The records, which receive each event first.
    callbacks : list of RunCallback
        Called after them, in this order.
    build_record : callable
        ``build_round_record``, with the arguments that are the same in all rounds.
    rounds : range
        The rounds to run; from 1 for a new run.
    model : ArrayRecord
        The model before them; later the model after the last closed round.
    decode_model : callable
        Returns the arrays of a model.
    personal_epochs : mapping of str to sequence of int
        By ``PERSONAL_MODELS``, the numbers of epochs for which clients train a personal model
        after the last round; of several, the one with the best mean on validation splits counts.
    initial_model : ArrayRecord, optional
        The model before round 1, from which clients train alone.

    Attributes
    ----------
    last_evaluated : RoundRecord or None
        The last round whose model was evaluated on test or validation splits; the first round if
        there is none.
    """

    strategy: "ComposedStrategy"
    records: RunWriter
    callbacks: list[RunCallback]
    build_record: Callable[..., RoundRecord]
    rounds: range
    model: "ArrayRecord"
    decode_model: Callable[["ArrayRecord"], StateArrays]
    grid: "Grid" = field(init=False)
    personal_epochs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    initial_model: "ArrayRecord | None" = None
    initial_evaluations: Sequence[ClientEvaluation] = ()
    last_evaluated: RoundRecord | None = None

    def start(self) -> Sequence[RoundRecord]:
        """Start the callbacks, and return the records of the earlier rounds."""
        last_round = self.rounds.start - 1
        earlier = load_run(self.records.directory).rounds if last_round > 0 else ()
        self._previous = earlier[-1] if earlier else None
        for record in earlier:
            self._note_evaluation(record)
        for callback in (self.records, *self.callbacks):
            callback.start_rounds(last_round, self._get_model)
        return earlier

    def run(self, grid: "Grid", build_config: Callable[[], "ConfigRecord"]) -> None:
        """Run all rounds; ``build_config`` returns a new config for the messages of a step."""
        self.grid, self._build_config = grid, build_config
        for server_round in self.rounds:
            if self.strategy.is_time_up:  # a resumed run may have ended before
                break
            self.run_round(server_round)

    def run_round(self, server_round: int) -> None:
        """Run one round."""
        strategy, grid = self.strategy, self.grid

        # 1. Before any message, because the duration and the traffic of round 1 include F(w_0).
        self.open_round()

        # 2. Rules that decide by F(w_t) need it in round 1 too, before any client has trained.
        self.initial_evaluations = strategy.evaluate_initial(self.model, grid, self._build_config())

        # 3. Without an update that counts there is no new model, and the current one stays.
        messages = strategy.configure_train(server_round, self.model, self._build_config(), grid)
        new_model, _ = strategy.aggregate_train(server_round, self._exchange(messages))
        model = self.model if new_model is None else new_model

        # 4. Before a client receives the model: what is spent counts even if the run dies next.
        self.release_model()

        # 5. Clients that start from models of their own are also tested on the mean of these. This
        #    comes before step 6, whose evaluations are the ones that the strategy keeps.
        mean_evaluations = self._evaluate_mean(server_round, model)

        # 6. After the round, because the next round sends this objective with the model.
        self._evaluate(server_round, model)

        # 7. With the last round, so that a run that dies before repeats both when it is resumed.
        if self.personal_epochs and strategy.is_last_round(server_round):
            self._evaluate_personal_models(server_round, model)

        # 8. Last, so that the records of a round say all of it or nothing.
        self.close_round(model, mean_model=mean_evaluations)

    def open_round(self) -> None:
        """Store the start time of a round and the traffic before it."""
        self._started, self._before = time.monotonic(), self.strategy.step_result.traffic
        self.initial_evaluations = ()

    def release_model(self) -> None:
        """Tell the callbacks that there is a new model, before a client receives it."""
        for callback in self.callbacks:
            callback.release_model()

    def close_round(self, model: "ArrayRecord", **facts: Any) -> None:
        """Write the round and call the callbacks; signals wait until all have run.

        Parameters
        ----------
        model : ArrayRecord
            The model after the round.
        **facts
            Further arguments of ``build_record``.

        Raises
        ------
        RunError
            If the round cannot be written, or the run has ended meanwhile.
        """
        self.model = model
        # Otherwise a signal could end the run between the records and their checkpoint.
        with defer_signals():
            result = self.strategy.step_result
            record = self._previous = self.build_record(
                result.report,
                result.evaluations,
                bytes_down=result.traffic.bytes_down - self._before.bytes_down,
                bytes_up=result.traffic.bytes_up - self._before.bytes_up,
                seconds=time.monotonic() - self._started,
                state_bytes=result.state_bytes,
                some_busy=result.some_busy,
                sums=result.sums,
                previous=self._previous,
                **facts,
            )
            self._note_evaluation(record)
            finished = FinishedRound(
                record,
                result.report,
                result.evaluations,
                self.initial_evaluations,
                self._get_model,
                is_last=record.round == self.rounds.stop - 1 or self.strategy.is_time_up,
            )
            for callback in (self.records, *self.callbacks):
                callback.end_round(finished)

    def _note_evaluation(self, record: RoundRecord) -> None:
        """Keep the record of the last evaluation on the test or validation splits."""
        if record.test is not None or record.validation is not None or self.last_evaluated is None:
            self.last_evaluated = record

    def save_model(self) -> None:
        """Write the model after the last closed round, however the run ends."""
        self.records.save_model(self._get_model())

    def _get_model(self) -> StateArrays:
        return self.decode_model(self.model)

    def _exchange(self, messages: Iterable["Message"]) -> Iterable["Message"]:
        timeout = self.strategy.communication.reply_timeout
        return self.grid.send_and_receive(messages, timeout=timeout)

    def _evaluate(self, server_round: int, model: "ArrayRecord") -> Sequence[ClientEvaluation]:
        """Return the clients' evaluations of a model after a round, empty if none is due."""
        strategy = self.strategy
        messages = strategy.configure_evaluate(server_round, model, self._build_config(), self.grid)
        strategy.aggregate_evaluate(server_round, self._exchange(messages))
        return strategy.step_result.evaluations

    def _evaluate_personal_models(self, server_round: int, model: "ArrayRecord") -> None:
        """Let each client train and evaluate personal models, and add the evaluations.

        The client discards these models, so nothing else of the run depends on them.
        """
        starts = {FINETUNED: (server_round, model), ALONE: (0, self.initial_model)}
        found = {}
        for name, candidates in self.personal_epochs.items():
            start_round, start = starts[name]
            assert start is not None, "a run whose clients train alone keeps its first model"
            by_epochs = {
                epochs: self._evaluate_finetuned(start_round, start, epochs)
                for epochs in sorted({*candidates})
            }
            epochs = select_epochs(by_epochs, self.strategy.communication.metric)
            found[name] = build_personal_evaluations(name, epochs, by_epochs[epochs])
        self.strategy.add_personal_evaluations(found)

    def _evaluate_finetuned(
        self, start_round: int, start: "ArrayRecord", epochs: int
    ) -> Sequence[ClientEvaluation]:
        """Return the evaluations of the personal models after ``epochs`` epochs."""
        strategy = self.strategy
        messages = strategy.configure_finetune(
            start_round, start, self._build_config(), self.grid, epochs=epochs
        )
        return strategy.aggregate_finetune(start_round, self._exchange(messages))

    def _evaluate_mean(self, server_round: int, model: "ArrayRecord") -> Sequence[ClientEvaluation]:
        """Return the clients' evaluations of the mean start model, empty if there is none."""
        strategy = self.strategy
        if strategy.rules.hooks.client_start is None:
            return ()
        due = strategy.is_test_round(server_round)
        mean = strategy.compute_mean_start_model(model) if due else None
        return () if mean is None else self._evaluate(server_round, mean)


class CheckpointWriter(RunCallback):
    """Writes a checkpoint when one is due, and after the last round.

    Parameters
    ----------
    records : RunWriter
        The records, whose lengths a checkpoint stores.
    settings : mapping
        All settings by dotted key.
    get_state, get_node_states : callable
        Return the state of the server and of the nodes; by default the nodes have none.
    every : int, "auto" or None
        Write a checkpoint every this many rounds, or ("auto") as often as it costs little time;
        None writes none.
    data : mapping
        The fingerprint of the data, if it is known.
    """

    def __init__(
        self,
        records: RunWriter,
        settings: Mapping[str, Any],
        *,
        get_state: Callable[[], StateArrays],
        get_node_states: Callable[[], StateArrays] = dict,
        every: Any = "auto",
        data: Mapping[str, Any] = NO_FINGERPRINT,
    ) -> None:
        self._records = records
        self._settings = settings
        self._get_state, self._get_node_states = get_state, get_node_states
        self._every = every
        self._data = data
        self._store = CheckpointStore(records.directory)
        self._next_time = 0.0  # of an automatic checkpoint

    def start_rounds(self, server_round: int, get_model: Callable[[], StateArrays]) -> None:
        """Remove the checkpoints of rounds to run again; a new run gets one before round 1."""
        self._store.delete_after(server_round)
        if server_round == 0 and self._every is not None:
            self._save(0, get_model)

    def end_round(self, finished: FinishedRound) -> None:
        """Write a checkpoint if one is due."""
        if self._is_due(finished):
            self._save(finished.record.round, finished.get_model)

    def _is_due(self, finished: FinishedRound) -> bool:
        if self._every is None:
            return False
        if finished.is_last:
            return True
        if self._every == "auto":
            return time.monotonic() >= self._next_time
        return bool(finished.record.round % self._every == 0)

    def _save(self, server_round: int, get_model: Callable[[], StateArrays]) -> None:
        started = time.monotonic()
        checkpoint = Checkpoint(
            server_round=server_round,
            model=get_model(),
            strategy=self._get_state(),
            summary=self._records.get_summary_state(),
            nodes=self._get_node_states(),
            records=self._records.flush_and_get_offsets(),
            settings=self._settings,
            data=self._data,
        )
        self._store.save(checkpoint)
        ended = time.monotonic()
        pause = max(MIN_SECONDS_BETWEEN, (ended - started) / MAX_TIME_FRACTION)
        self._next_time = ended + pause
