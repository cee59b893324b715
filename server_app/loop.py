"""The run loop: the rounds of one run, from the first broadcast to the last record."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from rich.console import Console

from client_app.availability import participation_probabilities
from client_app.data import load_data
from conf import Composed, Settings
from server_app.build import build_population, build_strategy, initial_arrays
from server_app.display import Display, final_table
from server_app.records import RoundRecord, RunRecords, new_run_directory, round_record
from strategies import ComposedStrategy
from strategies.codec import decode_arrays


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
    made. However the run ends, the records hold its complete rounds and the last model.

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
        ``in-process`` or ``flower``, for the records.
    at_exit : callable, optional
        Registers what to call when the process ends in another thread before the run does.
    """
    settings = composed.settings
    data = load_data(settings.data, settings.seed)
    rates = participation_probabilities(settings, data)
    population = build_population(settings.data, data)
    strategy = build_strategy(settings, population, rates)
    parts = _Parts(grid, strategy, settings, rates)
    arrays = initial_arrays(settings, data)
    directory = (
        Path(output_dir) if output_dir else new_run_directory(Path("outputs"), composed.experiment)
    )
    console = Console()
    title = f"{settings.strategy.name} on {settings.data.name}"
    rounds: list[RoundRecord] = []
    with RunRecords(directory, composed, engine=engine) as records:
        if at_exit is not None:
            at_exit(records.interrupt)
        console.print(f"Results in {records.directory}", soft_wrap=True, highlight=False)
        records.save_population(population, rates)
        try:
            with Display(console, settings.rounds, title) as display:
                for server_round in range(1, settings.rounds + 1):
                    previous = rounds[-1] if rounds else None
                    arrays, record = _round(parts, arrays, server_round, previous)
                    records.add_evaluations(server_round - 1, strategy.measured_before)
                    records.add_round(record, strategy.train_report, strategy.evaluations)
                    rounds.append(record)
                    display.show(record)
        finally:
            records.save_model(decode_arrays(arrays))
    console.print(final_table(rounds, title))
    console.print(f"Results in {records.directory}", soft_wrap=True, highlight=False)
    return records.directory


@dataclass(frozen=True)
class _Parts:
    """What every round of a run works with; ``rates`` is p_n where a simulation knows it."""

    grid: Grid
    strategy: ComposedStrategy[Any]
    settings: Settings
    rates: Sequence[float] | None


def _round(
    parts: _Parts, arrays: ArrayRecord, server_round: int, previous: RoundRecord | None
) -> tuple[ArrayRecord, RoundRecord]:
    """Train, combine and evaluate once; return the new model and the record of the round."""
    grid, strategy, settings = parts.grid, parts.strategy, parts.settings
    timeout = settings.engine.round_timeout
    started, before = time.monotonic(), strategy.traffic
    messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
    replies = grid.send_and_receive(messages, timeout=timeout)
    combined, _ = strategy.aggregate_train(server_round, replies)
    if combined is not None:
        arrays = combined
    last = server_round == settings.rounds
    measure_test = last or server_round % settings.evaluation.every == 0
    config = ConfigRecord({"measure-test": measure_test})
    messages = strategy.configure_evaluate(server_round, arrays, config, grid)
    replies = grid.send_and_receive(messages, timeout=timeout)
    strategy.aggregate_evaluate(server_round, replies)
    return arrays, round_record(
        strategy.train_report,
        strategy.evaluations,
        bytes_down=strategy.traffic.bytes_down - before.bytes_down,
        bytes_up=strategy.traffic.bytes_up - before.bytes_up,
        seconds=time.monotonic() - started,
        state_bytes=strategy.state_bytes,
        rates=parts.rates,
        metric=settings.evaluation.metric,
        all_evaluated=settings.evaluation.clients == "all",
        previous=previous,
    )
