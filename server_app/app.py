"""The Flower ServerApp."""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fedquorum.errors import FedQuorumError
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.exit import add_exit_handler

from conf import ComposedConfig, compose_settings
from server_app.in_process import SimulationGrid
from server_app.loop import run_rounds

_STEP = re.compile(r"(configure|aggregate)_(train|evaluate): ")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one job: the run config's ``experiment`` and ``overrides``, into ``output-dir``."""
    if isinstance(grid, SimulationGrid):
        run_rounds(grid, *_read_job(context), engine=grid.engine)
        return
    try:
        # flwr stop ends the process from its main thread; this code runs in another one.
        with _steps_unlogged():
            run_rounds(grid, *_read_job(context), engine="flower", at_exit=add_exit_handler)
    except FedQuorumError as error:
        # Flower logs the trace of an error and then ends the process: the line is below the trace.
        add_exit_handler(partial(print, f"fedquorum: {error}", file=sys.stderr))
        raise


@contextmanager
def _steps_unlogged() -> Iterator[None]:
    """Keep the steps of every round out of Flower's log: the display shows the rounds."""
    log = logging.getLogger("flwr")
    log.addFilter(_is_no_step)
    try:
        yield
    finally:
        log.removeFilter(_is_no_step)


def _is_no_step(entry: logging.LogRecord) -> bool:
    return entry.levelno >= logging.WARNING or not _STEP.match(str(entry.msg))


def _read_job(context: Context) -> tuple[ComposedConfig, str]:
    """Return the settings of the job, and its directory."""
    config = context.run_config
    composed = compose_settings(str(config["experiment"]), str(config["overrides"]))
    return composed, str(config["output-dir"])
