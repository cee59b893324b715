"""The Flower ServerApp."""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedquorum.errors import FedQuorumError
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.exit import add_exit_handler

from conf import ComposedConfig, compose_settings
from server_app.runs.loop import run_rounds

_EXIT = "Exit Code: "
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
        _show_line_alone(error)
        raise


def _show_line_alone(error: FedQuorumError) -> None:
    """Print the line of an error when Flower ends the process, instead of its trace and exit code.

    The trace of any other error stays in Flower's log.
    """
    log = logging.getLogger("flwr")

    def is_of_other_error(entry: logging.LogRecord) -> bool:
        is_trace = isinstance(entry.exc_info, tuple) and entry.exc_info[1] is error
        return not is_trace and not str(entry.msg).startswith(_EXIT)

    def print_line() -> None:
        log.removeFilter(is_of_other_error)
        print(f"fedquorum: {error}", file=sys.stderr)

    log.addFilter(is_of_other_error)
    add_exit_handler(print_line)


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
