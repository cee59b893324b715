"""The app's run loop; ``fedquorum.records.runner`` has the steps of a run."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

from fedquorum import ComposedStrategy, WaitingGrid
from fedquorum.errors import SettingsError
from fedquorum.flower.codec import decode_arrays, encode_arrays
from fedquorum.named import question_of
from fedquorum.records.checkpoint import Checkpoint, Checkpoints
from fedquorum.records.directory import may_start, new_run_directory
from fedquorum.records.round_record import round_record
from fedquorum.records.runner import Runner, resume_strategy
from fedquorum.records.settings import flat_settings
from fedquorum.records.writer import MEAN_MODEL, RunRecords
from fedquorum.report import ClientEvaluation
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from rich.console import Console

from client_app.arithmetic import Arithmetic
from client_app.data import FederatedData, load_data
from client_app.data.account import Account
from conf import Composed, Settings
from conf.schema.rules import rules_of
from conf.schema.settings import evaluated_metric
from server_app.arithmetic import arithmetic_of, check_arithmetic, recorded
from server_app.build import build_population, build_strategy, initial_arrays, run_hooks
from server_app.counted_rates import counted_rates
from server_app.display import (
    About,
    Display,
    Totals,
    closing_words,
    final_table,
)
from server_app.in_process import InProcessGrid, SimulationGrid
from server_app.naming import method_title
from server_app.privacy import PrivacySpent, check_private, spent_before
from server_app.recording import run_records, uninterrupted_settings
from server_app.resuming import check_resumable, resumed_manifest

_Evaluations = tuple[ClientEvaluation, ...]


def run(
    grid: Grid,
    composed: Composed,
    output_dir: str,
    *,
    engine: str,
    at_exit: Callable[[Callable[[], None]], object] | None = None,
) -> Path:
    """Run all rounds and return the directory with the records.

    Everything that can be wrong with the settings or the data shows before the directory is
    made. However the run ends, the records hold its complete rounds and the last model; with
    ``resume`` in the settings they are those of the run that goes on.

    Parameters
    ----------
    grid : Grid
        Where the clients are.
    composed : Composed
        The run's settings.
    output_dir : str
        The run's directory; empty for ``outputs/<experiment>/<time>`` below the working
        directory.
    engine : str
        ``in-process``, ``ray`` or ``flower``, for the records.
    at_exit : callable, optional
        Registers what to call when the process ends in another thread before the run does.
    """
    settings = composed.settings
    rules = rules_of(settings)  # imports custom rules, whose mistakes need no data to show
    data = load_data(settings.data, settings.seed)
    population = build_population(settings, data)
    rates = counted_rates(settings, rules, population, data)
    hooks = run_hooks(settings, data.num_clients)
    strategy = build_strategy(settings, population, rates, hooks)
    arrays = initial_arrays(settings, data)
    check_private(settings.privacy, decode_arrays(arrays))
    parts = _Parts(strategy.waiting(grid), strategy, settings)
    console = Console(force_jupyter=False)  # prints to sys.stdout, which others can redirect
    title = f"{method_title(settings.strategy.name)} on {settings.data.name}"
    about = _about(settings, strategy)
    arithmetic = _arithmetic(composed, data, grid)
    directory, start = _begin(composed, output_dir, arithmetic, console)
    if start is not None and start.server_round > 0:
        arrays = _go_on(parts, start, arrays)
    spent = _spent_before(directory, start, settings, len(population.clients))
    account = _told(data, settings.data.name, console)
    with run_records(
        directory,
        composed,
        strategy.rules,
        engine=engine,
        arithmetic=_recorded(directory, start, arithmetic),
        data=account.as_dict(),
        resumed=start,
    ) as records:
        if at_exit is not None:
            at_exit(records.interrupt)
        console.print(f"Results in {records.directory}", soft_wrap=True, highlight=False)
        ledger = _Ledger(records, spent)
        parts = replace(parts, release=ledger.release)
        to_run = _rounds_to_run(settings, start)
        runner = _runner(records, parts, to_run)
        try:
            if to_run.start == 1:
                records.save_population(population, rates, columns=strategy.rules.hooks.columns)
            totals = reduce(Totals.after, runner.begin(partial(decode_arrays, arrays)), Totals())
            with Display(console, settings.rounds, title, about) as display:
                runner.callbacks.append(display.show)
                for server_round in to_run:
                    runner.open_round()
                    initial, arrays, of_mean = _round(parts, arrays, server_round)
                    record = runner.close_round(
                        partial(decode_arrays, arrays),
                        initial,
                        rates=None if rates is None else rates.at(server_round - 1),
                        of_mean=of_mean,
                    )
                    totals = totals.after(record)
        finally:
            _save_models(records, strategy, arrays)
        _leave(records, settings, to_run, console)
    console.print(final_table(totals, title, about, ledger.facts, records.admitted_rounds))
    console.print(closing_words(records.directory), soft_wrap=True, markup=False, highlight=False)
    return records.directory


def _rounds_to_run(settings: Settings, start: Checkpoint | None) -> range:
    first = 1 if start is None else start.server_round + 1
    return range(
        first, min(settings.rounds, settings.engine.stop_after_round or settings.rounds) + 1
    )


def _leave(records: RunRecords, settings: Settings, to_run: range, console: Console) -> None:
    """Leave a run interrupted that is to stop before its last round."""
    last = to_run.stop - 1
    if last < settings.rounds:
        records.interrupt()
        line = f"Stopped after round {last} of {settings.rounds} (engine.stop_after_round={last})"
        console.print(line, highlight=False)


def _save_models(records: RunRecords, strategy: ComposedStrategy, arrays: ArrayRecord) -> None:
    """Write the last model, and the mean of the models that clients start from if there is one."""
    records.save_model(decode_arrays(arrays))
    if (mean := strategy.mean_start(arrays)) is not None:
        records.save_model(decode_arrays(mean), MEAN_MODEL)


def _told(data: FederatedData, name: str, console: Console) -> Account:
    """Say what the data was taken for, and return it."""
    account = data.account
    for line in account.lines(name):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    return account


def _arithmetic(composed: Composed, data: FederatedData, grid: Grid) -> Arithmetic:
    device = grid.device if isinstance(grid, SimulationGrid) else None
    in_process = isinstance(grid, InProcessGrid)
    return arithmetic_of(composed, data, in_process=in_process, device=device)


def _about(settings: Settings, strategy: ComposedStrategy) -> About:
    """Return by what the numbers of a run are chosen that people see."""
    question = question_of(settings.strategy.name, strategy.rules)
    clients, priority = strategy.population.clients, strategy.population.priority
    return About(evaluated_metric(settings), question, len(clients), frozenset(priority))


def _recorded(directory: Path, start: Checkpoint | None, arithmetic: Arithmetic) -> dict[str, Any]:
    """Return what the manifest says of the run's arithmetic."""
    going_on = start is not None and start.server_round > 0
    return recorded(arithmetic, resumed_manifest(directory) if going_on else None)


def _begin(
    composed: Composed, output_dir: str, arithmetic: Arithmetic, console: Console
) -> tuple[Path, Checkpoint | None]:
    """Return the run's directory and, where it goes on, from where."""
    resume = composed.settings.resume
    if resume is None:
        made = new_run_directory(Path("outputs"), composed.experiment) if not output_dir else None
        return made or Path(output_dir), None
    directory = Path(resume).expanduser().absolute()
    if output_dir and Path(output_dir).absolute() != directory:
        raise SettingsError(
            f"output-dir must be empty or the folder in resume ({directory}), got {output_dir}"
        )
    if may_start(directory):
        line = f"Nothing was done yet in {directory}: the run starts"
        console.print(line, soft_wrap=True, markup=False, highlight=False)
        return directory, None
    manifest = resumed_manifest(directory)
    checkpoints = Checkpoints(directory)
    found = checkpoints.newest()
    for problem in found.problems:
        console.print(f"Not used: {problem}", soft_wrap=True, markup=False, highlight=False)
    start = found.checkpoint
    if start is None:
        start = checkpoints.beginning()
    else:
        check_resumable(start, composed.settings)
        if start.server_round > 0:
            allowed = composed.settings.engine.on_numerics_change
            check_arithmetic(directory, manifest, arithmetic, allowed)
    line = f"Continuing after round {start.server_round} of the run in {directory}"
    console.print(line, soft_wrap=True, markup=False, highlight=False)
    return directory, start


@dataclass(frozen=True)
class _Parts:
    """What every round of a run works with.

    ``release`` is called with every new model before anybody is sent it.
    """

    grid: WaitingGrid
    strategy: ComposedStrategy
    settings: Settings
    release: Callable[[], None] = lambda: None


def _go_on(parts: _Parts, start: Checkpoint, initial: ArrayRecord) -> ArrayRecord:
    """Bring strategy and nodes to where they were, and return the model."""
    resume_strategy(parts.strategy, start, decode_arrays(initial))
    grid, keeps_models = parts.grid.inner, parts.strategy.rules.keeps_models
    if isinstance(grid, SimulationGrid) and start.nodes:
        # Of availability nodes keep what follows from the seed, too: other nodes find it again.
        if keeps_models or len(start.nodes) == grid.num_nodes:
            grid.restore_node_states(start.nodes)
    elif keeps_models:
        raise SettingsError(
            "engine must be in-process or ray, before and now, where a run with "
            f"strategy={parts.settings.strategy.name} goes on: elsewhere the clients' models are "
            "lost with the run"
        )
    return encode_arrays(start.model)


def _spent_before(
    directory: Path, start: Checkpoint | None, settings: Settings, num_clients: int
) -> PrivacySpent | None:
    """Return what a private run has spent so far, None if the run is not private."""
    manifest = {} if start is None else resumed_manifest(directory)
    rounds = 0 if start is None else start.server_round
    return spent_before(settings.privacy, num_clients, manifest, rounds=rounds)


class _Ledger:
    """Counts the private models of a run in its manifest, each before it is sent to anybody."""

    def __init__(self, records: RunRecords, spent: PrivacySpent | None) -> None:
        self._records = records
        self._spent = spent
        self._write()

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest says of it, empty where the run is not private."""
        return {} if self._spent is None else self._spent.as_dict()

    def release(self) -> None:
        """Count one model more."""
        if self._spent is not None:
            self._spent = self._spent.after_release()
            self._write()

    def _write(self) -> None:
        if self._spent is not None:
            self._records.set_privacy(self.facts)


def _runner(records: RunRecords, parts: _Parts, to_run: range) -> Runner:
    """Return what steps through the rounds, and writes checkpoints as the settings say."""
    settings, strategy, grid = parts.settings, parts.strategy, parts.grid.inner
    record = partial(
        round_record,
        metric=evaluated_metric(settings),
        all_evaluated=settings.evaluation.clients == "all",
        hooks=strategy.rules.hooks,
    )
    return Runner(
        records,
        strategy,
        record,
        flat_settings(asdict(uninterrupted_settings(settings))),
        after=to_run.start - 1,
        last=to_run.stop - 1,
        state=strategy.state,
        nodes=grid.node_states if isinstance(grid, SimulationGrid) else dict,
        every=settings.engine.checkpoint_every,
    )


def _round(
    parts: _Parts, arrays: ArrayRecord, server_round: int
) -> tuple[_Evaluations, ArrayRecord, _Evaluations]:
    """Train, combine and evaluate once.

    Returns the evaluations of the first model where F(w_0) had to be measured, the new model, and
    the evaluations of the mean of the models that clients start from where there is one.
    """
    grid, strategy = parts.grid, parts.strategy
    initial = strategy.measure_initial(arrays, grid)
    messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
    timeout = strategy.communication.reply_timeout
    replies = grid.send_and_receive(messages, timeout=timeout)
    combined, _ = strategy.aggregate_train(server_round, replies)
    parts.release()
    if combined is not None:
        arrays = combined
    due = strategy.communication.tests_after(server_round)
    mean = strategy.mean_start(arrays) if due else None
    of_mean = () if mean is None else _evaluated(parts, mean, server_round)
    _evaluated(parts, arrays, server_round)  # last: what is told of it goes on to the next round
    return initial, arrays, of_mean


def _evaluated(parts: _Parts, arrays: ArrayRecord, server_round: int) -> _Evaluations:
    """Return what the clients measure of a model after a round, nothing if that is not due."""
    strategy, grid = parts.strategy, parts.grid
    messages = strategy.configure_evaluate(server_round, arrays, ConfigRecord(), grid)
    timeout = strategy.communication.reply_timeout
    strategy.aggregate_evaluate(server_round, grid.send_and_receive(messages, timeout=timeout))
    return strategy.outcome.evaluations
