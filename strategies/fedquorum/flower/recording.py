"""Write the records of a drop-in strategy in any Flower app, and resume its runs."""

import inspect
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from ..errors import RunError
from ..records.callback import FinishedRound, RunCallback
from ..records.checkpoint import Checkpoint, CheckpointStore, check_unchanged
from ..records.failures import count_failures
from ..records.hosts import Host
from ..records.legs import CHANGEABLE_DROP_IN_OPTIONS
from ..records.provenance import RunInfo, find_commit, get_versions
from ..records.reader import explain_not_a_run, load_run, read_manifest
from ..records.round_record import build_round_record
from ..records.run_dir import can_start_run, holds_run, run_exists_error
from ..records.runner import CheckpointWriter, Runner, resume_strategy
from ..records.settings import dump_settings, flatten_settings
from ..records.writer import MASKS_ENTRY, RunWriter
from ..registry import to_builtins, to_settings
from ..rules.state_arrays import StateArrays
from .codec import decode_arrays, encode_arrays
from .secure.settings import MaskSummary, SecureAggregation
from .strategy import complete_result
from .waiting_grid import is_flower_grid

FLOWERS_ROUND_TITLE = "[ROUND %s/%s]"
FLOWERS_LAST_LINE = "Strategy execution finished in %.2fs"

EXPERIMENT = ENGINE = "drop-in"
"""The manifest's experiment and engine for runs without a preset and an engine of the app."""

SOURCE = Path(__file__).resolve().parents[3]
PACKAGES = ("flwr", "numpy", "scipy", "piqp", "pyarrow", "safetensors")

NOT_RESUMABLE = (
    "This run can never be resumed: a simulation draws new node ids for every run, so nobody knows "
    "which node is which client. For a run that can go on, let the ClientApp report its partition "
    "and set client_ids=\"query\" (docs/drop-in.md, 'Who is client 0')"
)

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

_KEYWORDS = {
    "strategy.name": "strategy",
    "strategy.fraction": "fraction_train",
    "strategy.minimum": "min_train_nodes",
    "server_optimizer.name": "server_optimizer",
    "server_optimizer.learning_rate": "server_lr",
}
"""The keywords of settings with other names."""


def build_strategy_settings(
    strategy: Any, parameters: Mapping[str, Any], *, num_rounds: int | None
) -> dict[str, Any]:
    """Return the settings of a drop-in strategy, from which the audit rebuilds its rules.

    Parameters
    ----------
    strategy : DropInStrategy
    parameters : mapping
        The parameters of its rules.
    num_rounds : int, optional
        T, for schedules.
    """
    communication, priority = strategy.communication, strategy.population.required
    names = (
        *("client_ids", "weighted_by_key", "loss_key", "accuracy_key", "arrayrecord_key"),
        *("configrecord_key", "fraction_evaluate", "min_evaluate_nodes", "max_reply_bytes"),
        "reply_memory",
    )
    options = {name: getattr(communication, name) for name in names if hasattr(communication, name)}
    if "client_ids" in options:
        options["client_ids"] = communication.client_ids_from
    options["min_available_nodes"] = strategy.min_available_nodes
    priority_ids = None if priority is None else sorted(priority)
    facts = {"protocol": strategy.protocol, "num_rounds": num_rounds, "priority": priority_ids}
    return {
        "seed": strategy.rules.selection.sampling.seed,
        **to_settings(strategy.entry, parameters, strategy.rules),
        "robustness": to_builtins(asdict(communication.robustness)),
        "drop_in": to_builtins({**facts, **options}),
        **_build_engine_settings(communication),
        **_build_mask_settings(communication.secure_aggregation),
    }


def _build_mask_settings(secure_aggregation: SecureAggregation | None) -> dict[str, Any]:
    """Return the app's settings of masks; empty without them."""
    if secure_aggregation is None:
        return {}
    return {"secure_aggregation": {"name": "masks", **asdict(secure_aggregation)}}


def _build_engine_settings(communication: Any) -> dict[str, Any]:
    """Return the app's settings of a quorum and of late updates; empty without a quorum."""
    quorum, late = communication.quorum.size, communication.late_updates
    engine = {} if quorum is None else {"quorum": quorum}
    if late is not None:
        engine |= {"quorum": quorum, "late_replies": "count", **asdict(late)}
    return {"engine": to_builtins(engine)} if engine else {}


@dataclass(frozen=True)
class RunRecorder:
    """The records of a drop-in strategy's run.

    Parameters
    ----------
    directory : Path
        The folder of the run.
    settings : mapping
        The strategy's settings.
    resume : bool
        Whether to resume the run in the folder.
    """

    directory: Path
    settings: Mapping[str, Any]
    resume: bool

    def start(
        self,
        strategy: Any,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        *args: Any,
        **kwargs: Any,
    ) -> Result:
        """Run all remaining rounds, as Flower's ``Strategy.start`` does.

        Raises
        ------
        RunError
            If the folder unexpectedly holds a run or cannot be written, or this strategy cannot
            resume the run in it.
        """
        settings = {**self.settings, "rounds": num_rounds}
        checkpoint = self._find_checkpoint(settings)
        if checkpoint is not None and checkpoint.model:
            if checkpoint.server_round > 0:
                resume_strategy(strategy, checkpoint, decode_arrays(initial_arrays))
            initial_arrays = encode_arrays(checkpoint.model)
        with RunWriter(
            self.directory,
            _build_identity(settings),
            dump_settings(settings),
            regret_bound=strategy.rules.compute_regret_bound,
            resumed=checkpoint,
        ) as records:
            log(INFO, "Records in %s", self.directory)
            if not strategy.communication.can_identify_clients(grid):
                log(WARNING, NOT_RESUMABLE)
            # Flower's log names the class, so it has the name of the method.
            kind = type(type(strategy).__name__, (RecordingStrategy,), {})
            run: RecordingStrategy = kind(strategy, records, settings, initial_arrays, checkpoint)
            if is_flower_grid(grid):
                grid = strategy.build_waiting_grid(grid)
            try:
                result = run.start(grid, initial_arrays, num_rounds, *args, **kwargs)
            finally:
                run.runner.save_model()
            _mark_if_failed(records, strategy)
            return result

    def _find_checkpoint(self, settings: Mapping[str, Any]) -> Checkpoint | None:
        """Return the checkpoint from which to resume, None for a new run."""
        if not self.resume:
            if holds_run(self.directory):
                raise RunError(f"{run_exists_error(self.directory)} (resume_from=FOLDER)")
            return None
        if can_start_run(self.directory):
            log(INFO, "Nothing was done yet in %s: the run starts", self.directory)
            return None
        try:
            engine = read_manifest(self.directory).get("engine")
        except RunError as error:
            raise RunError(
                "resume_from must be the folder of a run, got "
                f"{explain_not_a_run(self.directory, error)}"
            ) from None
        if engine != ENGINE:
            raise RunError(
                "resume_from must be the folder of a run of a drop-in strategy, got one of the "
                f"app: resume it with {shlex.join(['fedquorum', f'resume={self.directory}'])}"
            )
        checkpoints = CheckpointStore(self.directory)
        found = checkpoints.find_newest()
        for problem in found.problems:
            log(WARNING, "Not used: %s", problem)
        if found.checkpoint is None:
            return checkpoints.build_initial()
        before, now = (
            _to_keywords(found.checkpoint.settings),
            _to_keywords(flatten_settings(settings)),
        )
        check_unchanged(before, now, changeable_prefixes=CHANGEABLE_DROP_IN_OPTIONS)
        return found.checkpoint


class MaskRecorder(RunCallback):
    """Records the masks of a run, once its nodes are connected.

    Parameters
    ----------
    records : RunWriter
    strategy : ComposedStrategy
    """

    def __init__(self, records: RunWriter, strategy: Any) -> None:
        self._records = records
        self._strategy = strategy
        self._recorded: MaskSummary | None = None

    def end_round(self, finished: FinishedRound) -> None:
        """Write the entry of the manifest after the first round."""
        summary: MaskSummary | None = self._strategy.mask_summary
        if summary is not None and summary != self._recorded:
            self._records.set_entry(MASKS_ENTRY, asdict(summary))
            self._recorded = summary


def list_mask_callbacks(records: RunWriter, strategy: Any) -> list[RunCallback]:
    """Return what records a run's masks, nothing for a run without them."""
    has_masks = strategy.communication.secure_aggregation is not None
    return [MaskRecorder(records, strategy)] if has_masks else []


class RecordingStrategy(Strategy):
    """Take the steps of ``Runner.run_round`` as Flower's loop calls the strategy.

    Rounds that are already in the records are skipped: they select no clients.

    Parameters
    ----------
    strategy : DropInStrategy
    records : RunWriter
    settings : mapping
        All settings of the run.
    arrays : ArrayRecord
        The model with which the run starts or resumes.
    checkpoint : Checkpoint, optional
        The checkpoint of a resumed run.
    """

    def __init__(
        self,
        strategy: Any,
        records: RunWriter,
        settings: Mapping[str, Any],
        arrays: ArrayRecord,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._strategy = strategy
        self._records = records
        self._last_recorded_round = 0 if checkpoint is None else checkpoint.server_round
        self._hosts: Mapping[int, Host] = {}
        self._joined_rounds = {} if checkpoint is None else _read_joined_rounds(checkpoint)
        checkpoints = CheckpointWriter(
            records, flatten_settings(settings), get_state=self._get_state
        )
        self.runner = Runner(
            strategy,
            records,
            [checkpoints, *list_mask_callbacks(records, strategy)],
            partial(build_round_record, get_rates=None, metric="accuracy", all_evaluated=True),
            range(self._last_recorded_round + 1, settings["rounds"] + 1),
            arrays,
            decode_arrays,
        )
        self.runner.start()
        if self._joined_rounds:
            self._save_population()

    def summary(self) -> None:
        """Log the strategy's parts."""
        self._strategy.summary()

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """Run the remaining rounds; only these call ``evaluate_fn``."""
        bound = inspect.signature(Strategy.start).bind(self, grid, initial_arrays, *args, **kwargs)
        given: EvaluateFn | None = bound.arguments.get("evaluate_fn")
        if given is not None and self._last_recorded_round > 0:
            bound.arguments["evaluate_fn"] = self._wrap_evaluate(given)
        hidden = _SkippedRounds(self._last_recorded_round)
        # Steps 1 and 2 of the first round come before Flower's loop, which sends no such messages.
        self.runner.open_round()
        self.runner.initial_evaluations = self._strategy.evaluate_initial(initial_arrays, grid)
        flower = logging.getLogger("flwr")
        flower.addFilter(hidden)
        try:
            result = Strategy.start(*bound.args, **bound.kwargs)
        finally:
            flower.removeFilter(hidden)
        return complete_result(result, initial_arrays)

    def _wrap_evaluate(self, evaluate: EvaluateFn) -> EvaluateFn:
        def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            return (
                evaluate(server_round, arrays) if server_round > self._last_recorded_round else None
            )

        return evaluate_fn

    # --- the steps of a round, numbered as in Runner.run_round -------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's train messages: step 1, and the first half of step 3."""
        if server_round <= self._last_recorded_round:
            return []
        if server_round > self._last_recorded_round + 1:
            self.runner.open_round()
        messages: Iterable[Message] = self._strategy.configure_train(
            server_round, arrays, config, grid
        )
        self._disconnected = self._strategy.step_result.disconnected
        self._note_joined(server_round)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the strategy's result: the second half of step 3, and step 4.

        A resumed run first returns the model of its last round.
        """
        if server_round <= self._last_recorded_round:
            return (self.runner.model if server_round == self._last_recorded_round else None), None
        result: tuple[ArrayRecord | None, MetricRecord | None] = self._strategy.aggregate_train(
            server_round, replies
        )
        self.runner.release_model()
        return result

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the evaluate messages, the first half of step 6, and store their model."""
        if server_round <= self._last_recorded_round:
            return []
        self._evaluated = arrays
        messages: Iterable[Message] = self._strategy.configure_evaluate(
            server_round, arrays, config, grid
        )
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy read the replies, and close the round: steps 6 and 7."""
        if server_round <= self._last_recorded_round:
            return None
        metrics: MetricRecord | None = self._strategy.aggregate_evaluate(server_round, replies)
        self._note_joined(server_round + 1)
        self.runner.close_round(self._evaluated, away=self._disconnected)
        return metrics

    # --- what is written ---------------------------------------------------------------------

    def _note_joined(self, server_round: int) -> None:
        """Note the clients that take part from a round on, and the nodes that host them."""
        new = [k for k in self._strategy.population.clients if k not in self._joined_rounds]
        if new:
            self._joined_rounds |= dict.fromkeys(new, server_round)
        if new or self._hosts != self._strategy.client_hosts:
            self._save_population()

    def _save_population(self) -> None:
        population, names = self._strategy.population, self._strategy.client_names
        self._hosts = self._strategy.client_hosts
        self._records.save_population(
            population, None, self._joined_rounds, names=names, hosts=self._hosts
        )

    def _get_state(self) -> StateArrays:
        return {**self._strategy.get_state(), **_encode_joined_rounds(self._joined_rounds)}


def _mark_if_failed(records: RunWriter, strategy: Any) -> None:
    """Mark a run in which clients failed and none trained as failed; its result is as it is."""
    if records.admission_counts:
        return
    records.flush_and_get_offsets()
    rounds = load_run(records.directory).rounds
    counts = count_failures(records.directory, rounds)
    if counts.nobody_trained:
        text = counts.describe(len(rounds), strategy.client_names.format)
        log(WARNING, "The run has failed: %s", text)
        records.mark_failed(RunError(text))


class _SkippedRounds(logging.Filter):
    """Replaces what Flower's loop logs about rounds that are in the records by one line."""

    def __init__(self, last_round: int) -> None:
        super().__init__()
        self._last_round = last_round
        self._is_skipping = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether to log a record."""
        if record.msg == FLOWERS_ROUND_TITLE and isinstance(record.args, tuple):
            started, was_skipping = record.args[0], self._is_skipping
            self._is_skipping = isinstance(started, int) and started <= self._last_round
            if self._is_skipping and not was_skipping:
                record.msg = "Rounds 1 to %d are in the records and are not repeated"
                record.args = (self._last_round,)
                return True
        elif record.msg == FLOWERS_LAST_LINE:
            self._is_skipping = False
        return not self._is_skipping or record.levelno > logging.INFO


def _encode_joined_rounds(joined_rounds: Mapping[int, int]) -> StateArrays:
    return {
        "joined.client": np.array([*joined_rounds], dtype=np.int64),
        "joined.round": np.array([*joined_rounds.values()], dtype=np.int64),
    }


def _read_joined_rounds(checkpoint: Checkpoint) -> dict[int, int]:
    """Return the first round of every earlier client."""
    if checkpoint.server_round == 0:
        return {}
    try:
        clients, rounds = (checkpoint.strategy[f"joined.{name}"] for name in ("client", "round"))
    except KeyError as error:
        raise RunError(f"the checkpoint does not fit the strategy: {error} is missing") from None
    return dict(zip(clients.tolist(), rounds.tolist(), strict=True))


def _to_keywords(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, given by dotted key, by the keywords of the constructors."""
    return {
        _KEYWORDS.get(key, key.partition(".")[2] or key if "robust" not in key else key): value
        for key, value in settings.items()
    }


def _build_identity(settings: Mapping[str, Any]) -> RunInfo:
    return RunInfo(
        experiment=EXPERIMENT,
        overrides=(),
        strategy=settings["strategy"]["name"],
        seed=settings["seed"],
        engine=ENGINE,
        device="",
        rounds=settings["rounds"],
        source=str(SOURCE),
        commit=find_commit(SOURCE),
        packages=get_versions(PACKAGES),
    )
