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
from server_app.runs.loop import run_rounds

_STEP = re.compile(r"(configure|aggregate)_(train|evaluate): ")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the job of the run config's ``experiment`` and ``overrides``, into ``output-dir``."""
    try:
        # flwr stop ends the process from its main thread; this code runs in another thread.
        with _hide_step_logs():
            run_rounds(grid, *_read_job(context), engine="flower", at_exit=add_exit_handler)
    except FedQuorumError as error:
        # Flower logs the trace of an error and then ends the process, so print the line after it.
        add_exit_handler(partial(print, f"fedquorum: {error}", file=sys.stderr))
        raise


@contextmanager
def _hide_step_logs() -> Iterator[None]:
    """Hide the steps of every round from Flower's log, because the display shows the rounds."""
    log = logging.getLogger("flwr")
    log.addFilter(_is_not_step)
    try:
        yield
    finally:
        log.removeFilter(_is_not_step)


def _is_not_step(entry: logging.LogRecord) -> bool:
    return entry.levelno >= logging.WARNING or not _STEP.match(str(entry.msg))


def _read_job(context: Context) -> tuple[ComposedConfig, str]:
    """Return the settings and the directory of the job."""
    config = context.run_config
    composed = compose_settings(str(config["experiment"]), str(config["overrides"]))
    return composed, str(config["output-dir"])
