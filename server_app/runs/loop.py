"""Run the app's runs: build the parts of a run, and let the library's ``Runner`` run its rounds."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial, reduce
from pathlib import Path
from typing import Any

from fedquorum import ComposedStrategy
from fedquorum.errors import SettingsError
from fedquorum.flower.codec import decode_arrays, encode_arrays
from fedquorum.flower.recording import list_mask_callbacks
from fedquorum.records.callback import RunCallback
from fedquorum.records.checkpoint import Checkpoint, CheckpointStore
from fedquorum.records.client_names import ClientNames, can_record_names
from fedquorum.records.data_fingerprint import get_fingerprint
from fedquorum.records.round_record import build_round_record
from fedquorum.records.run_dir import can_start_run, create_run_directory
from fedquorum.records.runner import CheckpointWriter, Runner, resume_strategy
from fedquorum.records.settings import flatten_settings
from fedquorum.records.writer import MEAN_MODEL, RunWriter
from fedquorum.registry import get_goal
from fedquorum.report.names import method_title
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from rich.console import Console

from client_app.data import FederatedData, load_data
from client_app.data.describe import describe_data
from client_app.data.summary import DataSummary
from client_app.models import build_model_for
from client_app.node.agreement import encode_scales
from client_app.training.numerics import NumericsInfo
from conf import ComposedConfig, Settings
from conf.schema.settings import get_evaluation_metric
from server_app.engines.in_process import InProcessGrid, SimulationGrid
from server_app.runs.agreement import agree_on_scales
from server_app.runs.build import (
    build_hooks,
    build_population,
    build_strategy,
    encode_model,
)
from server_app.runs.counted_rates import compute_counted_rates
from server_app.runs.data_check import (
    build_data_entry,
    check_same_data,
    get_recorded_fingerprint,
)
from server_app.runs.display import (
    Display,
    DisplaySpec,
    RunTotals,
    build_final_table,
)
from server_app.runs.failures import FailureWatch
from server_app.runs.first_lines import list_evaluated_groups, list_first_lines
from server_app.runs.masks import name_settings, summarize_masks
from server_app.runs.model_card import ModelCardWriter, describe_class
from server_app.runs.next_commands import format_next_commands
from server_app.runs.numerics import build_manifest_entry, check_numerics, detect_numerics
from server_app.runs.privacy import (
    PrivacyLedger,
    PrivacySpent,
    check_private_model,
    compute_privacy_spent,
)
from server_app.runs.recording import (
    NameRecorder,
    create_run_writer,
    drop_resume_settings,
)
from server_app.runs.resume import (
    check_resumable,
    list_trust_overrides,
    read_resumed_manifest,
)


def run_rounds(
    grid: Grid,
    composed: ComposedConfig,
    output_dir: str,
    *,
    engine: str,
    at_exit: Callable[[Callable[[], None]], object] | None = None,
) -> Path:
    """Run all rounds and return the directory with the records.

    Errors in the settings or the data are raised before the directory is created. However the run
    ends, the records hold its complete rounds and the last model. With ``resume`` in the settings,
    they continue the records of the resumed run.

    Parameters
    ----------
    grid : Grid
        The connection to the clients' nodes.
    composed : ComposedConfig
        The run's settings.
    output_dir : str
        The run's directory; if empty, ``outputs/<experiment>/<time>`` below the working directory.
    engine : str
        ``in-process``, ``ray`` or ``flower``, for the records.
    at_exit : callable, optional
        Registers a function to call if another thread ends the process before the run ends.
    """
    settings = composed.settings
    # Custom rules are imported before the data is read, because their errors do not depend on it.
    rules = composed.rules
    data = load_data(settings.data, settings.seed)
    console = Console(force_jupyter=False)  # prints to sys.stdout, which others can redirect
    names = ClientNames.from_list(data.client_names, recorded=settings.data.names)
    # First, because other data may fail at any later step, by a less clear message.
    start = _find_start(settings, output_dir, data, console)
    population = build_population(settings, data)
    rates = compute_counted_rates(settings, rules, population, data)
    has_names = can_record_names(data.num_clients, recorded=settings.data.names)
    strategy = build_strategy(
        composed, population, rates, build_hooks(settings, data.num_clients), names
    )
    num_nodes = grid.num_nodes if isinstance(grid, SimulationGrid) else None
    masks = summarize_masks(settings, strategy.rules, population, num_nodes)
    initial_model, model_class = _build_model(settings, data)
    check_private_model(settings.privacy, decode_arrays(initial_model))
    numerics = _get_numerics(composed, data, grid)
    directory = _prepare_directory(composed, output_dir, start, numerics, console)
    arrays = _resume_run(grid, strategy, start, initial_model)
    scales = agree_on_scales(
        grid,
        strategy,
        settings.data,
        data,
        {} if start is None else read_resumed_manifest(directory),
    )
    spent = _compute_privacy_spent(directory, start, settings, len(population.clients))
    summary = describe_data(data, list_evaluated_groups(population), names=has_names)
    _print_lines(console, list_first_lines(composed, summary, masks))
    spec = _build_display_spec(settings, strategy, summary)
    with create_run_writer(
        directory,
        composed,
        strategy.rules,
        engine=engine,
        arithmetic=_build_numerics_entry(directory, start, numerics),
        data=build_data_entry(settings.data, data, summary),
        resumed=start,
    ) as records:
        if at_exit is not None:
            at_exit(records.mark_interrupted)
        console.print(f"Results in {records.directory}", soft_wrap=True, highlight=False)
        ledger = None if spent is None else PrivacyLedger(records, spent)
        save_population = partial(
            records.save_population, population, rates, columns=strategy.rules.hooks.columns
        )
        card = ModelCardWriter(records, composed, data, summary, model_class, strategy)
        callbacks: list[RunCallback] = [
            *([] if ledger is None else [ledger]),
            _build_checkpoints(records, strategy, grid, settings),
            *list_mask_callbacks(records, strategy),
            *(
                []
                if isinstance(grid, SimulationGrid)  # whose nodes report no names
                else [
                    NameRecorder(records.directory, strategy, save_population, has_names=has_names)
                ]
            ),
        ]
        build_record = partial(
            build_round_record,
            get_rates=None if rates is None else rates.get_rates,
            metric=get_evaluation_metric(settings),
            all_evaluated=settings.evaluation.clients == "all",
            hooks=strategy.rules.hooks,
        )
        watch = FailureWatch(strategy, stops=isinstance(grid, InProcessGrid))
        runner = Runner(
            strategy,
            records,
            callbacks,
            build_record,
            _compute_round_range(settings, start),
            arrays,
            decode_arrays,
            personal_epochs=settings.evaluation.personal_epochs,
            initial_model=initial_model,
        )
        try:
            if runner.rounds.start == 1:
                save_population(names=names)
            totals = _start(runner, watch)
            with (
                Display(console, settings.rounds, _get_title(settings), spec, totals) as display,
                name_settings(),
            ):
                # Last: the records of a round that they show, or that ends the run, are written.
                callbacks += [display, watch]
                runner.run(
                    strategy.build_waiting_grid(grid),
                    ConfigRecord if scales is None else partial(encode_scales, scales),
                )
        finally:
            _save_models(runner)
            card.save(runner.last_evaluated)
        watch.check_end()
        _note_early_end(records, runner, settings, console)
    console.print(
        build_final_table(
            display.totals,
            _get_title(settings),
            spec,
            None if ledger is None else ledger.facts,
            records.admission_counts,
            failed=watch.format_row(),
        )
    )
    final_lines = (
        *watch.list_final_lines(),
        f"Results in {records.directory}",
        format_next_commands(records.directory, [settings]),
    )
    _print_lines(console, final_lines)
    return records.directory


def _build_model(settings: Settings, data: FederatedData) -> tuple[ArrayRecord, str]:
    """Return the initial model as arrays, and the import path of its class."""
    model = build_model_for(settings, data)
    return encode_model(model), describe_class(model)


def _start(runner: Runner, watch: FailureWatch) -> RunTotals:
    """Start the callbacks; let these count the earlier rounds, and return the totals of those."""
    earlier = runner.start()
    watch.add_earlier(runner.records.directory, earlier)
    return reduce(RunTotals.add_round, earlier, RunTotals())


def _compute_round_range(settings: Settings, start: Checkpoint | None) -> range:
    first = 1 if start is None else start.server_round + 1
    return range(
        first, min(settings.rounds, settings.engine.stop_after_round or settings.rounds) + 1
    )


def _note_early_end(
    records: RunWriter, runner: Runner, settings: Settings, console: Console
) -> None:
    """Say why the run ends before its last round; mark it as interrupted if it can go on."""
    engine, last = settings.engine, runner.rounds.stop - 1
    if runner.strategy.is_time_up:
        done = records.manifest["rounds_completed"]
        reason = f"engine.simulated_seconds={engine.simulated_seconds:g}"
        console.print(f"Ended after round {done} of {settings.rounds} ({reason})", highlight=False)
    elif last < settings.rounds:
        records.mark_interrupted()
        line = f"Stopped after round {last} of {settings.rounds} (engine.stop_after_round={last})"
        console.print(line, highlight=False)


def _save_models(runner: Runner) -> None:
    """Write the last model, and the mean start model if the strategy has one."""
    runner.save_model()
    if (mean := runner.strategy.compute_mean_start_model(runner.model)) is not None:
        runner.records.save_model(decode_arrays(mean), MEAN_MODEL)


def _get_title(settings: Settings) -> str:
    return f"{method_title(settings.strategy.name)} on {settings.data.name}"


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _get_numerics(composed: ComposedConfig, data: FederatedData, grid: Grid) -> NumericsInfo:
    device = grid.device if isinstance(grid, SimulationGrid) else None
    in_process = isinstance(grid, InProcessGrid)
    return detect_numerics(composed, data, in_process=in_process, device=device)


def _build_display_spec(
    settings: Settings, strategy: ComposedStrategy, summary: DataSummary
) -> DisplaySpec:
    """Return which statistics to display for this run."""
    goal = get_goal(settings.strategy.name, strategy.rules)
    clients, priority = strategy.population.clients, strategy.population.priority
    has_masks = settings.secure_aggregation.name == "masks"
    return DisplaySpec(
        get_evaluation_metric(settings),
        goal,
        len(clients),
        frozenset(priority),
        summary.constant_accuracy,
        settings.engine.simulated_seconds,
        has_masks=has_masks,
        by_data=not has_masks or strategy.rules.weighting.traits.weights_by_data,
        names_group=has_masks,
    )


def _build_numerics_entry(
    directory: Path, start: Checkpoint | None, numerics: NumericsInfo
) -> dict[str, Any]:
    """Return the manifest's entry for the run's arithmetic."""
    is_resumed = start is not None and start.server_round > 0
    return build_manifest_entry(numerics, read_resumed_manifest(directory) if is_resumed else None)


def _find_start(
    settings: Settings, output_dir: str, data: FederatedData, console: Console
) -> Checkpoint | None:
    """Return the checkpoint to resume from, None for a new run; refuse other settings and data."""
    if settings.resume is None:
        return None
    directory = Path(settings.resume).expanduser().absolute()
    if output_dir and Path(output_dir).absolute() != directory:
        raise SettingsError(
            f"output-dir must be empty or the folder in resume ({directory}), got {output_dir}"
        )
    if can_start_run(directory):
        _print_lines(console, [f"Nothing was done yet in {directory}: the run starts"])
        return None
    manifest = read_resumed_manifest(directory)
    checkpoints = CheckpointStore(directory)
    found = checkpoints.find_newest()
    _print_lines(console, [f"Not used: {problem}" for problem in found.problems])
    if found.checkpoint is None:
        return checkpoints.build_initial()
    recorded = get_recorded_fingerprint(found.checkpoint, manifest)
    check_resumable(found.checkpoint, settings, recorded)
    line = check_same_data(directory, recorded, settings.data, data)
    _print_lines(console, [] if line is None else [line])
    return found.checkpoint


def _prepare_directory(
    composed: ComposedConfig,
    output_dir: str,
    start: Checkpoint | None,
    numerics: NumericsInfo,
    console: Console,
) -> Path:
    """Return the run's directory; refuse to resume with another arithmetic."""
    settings = composed.settings
    if settings.resume is None:
        if output_dir:
            return Path(output_dir)
        return create_run_directory(Path("outputs"), composed.experiment)
    directory = Path(settings.resume).expanduser().absolute()
    if start is None:
        return directory
    if start.server_round > 0:
        manifest = read_resumed_manifest(directory)
        allowed = settings.engine.on_numerics_change
        check_numerics(directory, manifest, numerics, allowed, list_trust_overrides(settings))
    line = f"Continuing after round {start.server_round} of the run in {directory}"
    _print_lines(console, [line])
    return directory


def _resume_run(
    grid: Grid,
    strategy: ComposedStrategy,
    start: Checkpoint | None,
    initial: ArrayRecord,
) -> ArrayRecord:
    """Restore the states of strategy and nodes, and return the model; initial for a new run."""
    if start is None or start.server_round == 0:
        return initial
    resume_strategy(strategy, start, decode_arrays(initial))
    # Nodes store the states of availability. These follow from the seed, so another number of nodes
    # can recompute them.
    if isinstance(grid, SimulationGrid) and len(start.nodes) == grid.num_nodes:
        grid.restore_node_states(start.nodes)
    return encode_arrays(start.model)


def _compute_privacy_spent(
    directory: Path, start: Checkpoint | None, settings: Settings, num_clients: int
) -> PrivacySpent | None:
    """Return the privacy cost of the run so far; None if the run is not private."""
    manifest = {} if start is None else read_resumed_manifest(directory)
    rounds = 0 if start is None else start.server_round
    return compute_privacy_spent(settings.privacy, num_clients, manifest, rounds=rounds)


def _build_checkpoints(
    records: RunWriter,
    strategy: ComposedStrategy,
    grid: Grid,
    settings: Settings,
) -> CheckpointWriter:
    """Return the writer of checkpoints at the settings' interval."""
    return CheckpointWriter(
        records,
        flatten_settings(asdict(drop_resume_settings(settings))),
        get_state=strategy.get_state,
        get_node_states=grid.get_node_states if isinstance(grid, SimulationGrid) else dict,
        every=settings.engine.checkpoint_every,
        data=get_fingerprint(records.manifest),
    )
