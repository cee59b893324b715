"""The command ``fedquorum``: a Hydra application over the settings in ``conf``."""

import logging
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

import hydra
from flwr.app import Context, RecordDict
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from conf import Composed
from conf.compose import compose_words
from conf.errors import FedQuorumError
from server_app.checkpoint import resumed_words
from strategies.directory import ClientsMissingError

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run what the command line says; exit with 0 only if it completed."""
    try:
        words = resumed_words(sys.argv[1:])
        sys.argv[1:] = words
        if not any(word.startswith("-") for word in words):
            compose_words(words)  # so that a mistake is one line, not Hydra's several
        _hydra_main()
    except FedQuorumError as error:
        _fail(error)


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
def _hydra_main(_: DictConfig) -> None:
    job = HydraConfig.get()
    words = tuple(job.overrides.task)
    signal.signal(signal.SIGTERM, _interrupt)
    threading.excepthook = _without_disk_errors
    try:
        composed = compose_words(words)
        if composed.settings.engine.name == "flower":
            from server_app.submit import submit

            submit(composed, job.runtime.output_dir)
        else:
            run_in_process(composed, job.runtime.output_dir)
    except (FedQuorumError, ClientsMissingError) as error:
        _fail(error)
    except KeyboardInterrupt:
        print("fedquorum: interrupted; the records hold all complete rounds", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def run_in_process(composed: Composed, output_dir: str) -> None:
    """Run ServerApp and ClientApp in this process."""
    from client_app.app import app as client_app
    from server_app.app import app as server_app
    from server_app.in_process import InProcessGrid

    logging.getLogger("flwr").setLevel(logging.WARNING)
    run_config = {**composed.run_config, "output-dir": output_dir}
    grid = InProcessGrid(client_app, run_config, composed.settings.engine.num_supernodes or 1)
    context = Context(
        run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config=dict(run_config)
    )
    server_app(grid, context)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Let a polite kill end a run as Ctrl-C does."""
    raise KeyboardInterrupt


def _without_disk_errors(told: threading.ExceptHookArgs) -> None:
    """Leave out what TensorBoard's thread cannot write: the run says so itself, in one line."""
    if not isinstance(told.exc_value, OSError):
        threading.__excepthook__(told)


def _fail(error: Exception) -> None:
    print(f"fedquorum: {error}", file=sys.stderr)
    sys.exit(EXIT_ERROR)
