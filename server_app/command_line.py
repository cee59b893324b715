"""The command ``fedquorum``: a Hydra application over the settings in ``conf``."""

import io
import logging
import shlex
import sys

import hydra
from flwr.app import Context, RecordDict

from conf import Composed
from conf.compose import compose_words, parse_word
from conf.errors import FedQuorumError
from server_app.checkpoint import resumed_words
from server_app.help import help_text
from server_app.job import EXIT_INTERRUPTED, SweepUnfinished, fail, run_job

_OF_THE_WHOLE_SWEEP = ("hydra.", "hydra/", "engine.jobs=")


def main() -> None:
    """Run what the command line says; exit with 0 only if everything completed."""
    words: tuple[str, ...] = ()
    try:
        words = resumed_words(sys.argv[1:])
        flags = {word for word in words if word.startswith("-")}
        sys.argv[1:] = words
        if flags & {"-h", "--help"}:
            print(help_text([word for word in words if not word.startswith("-")]), end="")
            return
        if not flags:
            compose_words(words)  # so that a mistake is one line, not Hydra's several
        elif flags <= {"-m", "--multirun"}:
            compose_words(tuple(word for word in words if word.startswith(_OF_THE_WHOLE_SWEEP)))
            sys.argv[1:] = [_left_to_the_jobs(word) for word in words]
        _hydra_main()
    except FedQuorumError as error:
        fail(error)
    except KeyboardInterrupt:
        print("fedquorum: interrupted before anything was run", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except SweepUnfinished as end:
        again = [word for word in words if not word.startswith("hydra.sweep.dir=")]
        command = shlex.join(["fedquorum", *again, f"hydra.sweep.dir={end.directory}"])
        print(f"fedquorum: to go on with what is not done: {command}", file=sys.stderr)
        raise


_hydra_main = hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")(
    run_job
)


def _left_to_the_jobs(word: str) -> str:
    """Return a setting of a sweep so that Hydra composes it for each job, not once before.

    What fits a swept group, as ``availability.p=0.3`` fits ``availability=bernoulli,markov``,
    may not fit the default that Hydra composes before it launches.
    """
    if word.startswith(("-", *_OF_THE_WHOLE_SWEEP)):
        return word
    override = parse_word(word)
    key, _, value = word.partition("=")
    return word if override.is_sweep_override() or not value else f"{key}=choice({value})"


class _Stderr(io.TextIOBase):
    """The standard error of the moment: above the live lines, or in the log of a sweep's job."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def run_in_process(composed: Composed, output_dir: str) -> None:
    """Run ServerApp and ClientApp in this process."""
    from flwr.common.logger import console_handler, update_console_handler

    from client_app.app import app as client_app
    from server_app.app import app as server_app
    from server_app.in_process import InProcessGrid

    logging.getLogger("flwr").setLevel(logging.WARNING)
    update_console_handler(colored=sys.stderr.isatty())
    console_handler.setStream(_Stderr())
    run_config = {**composed.run_config, "output-dir": output_dir}
    grid = InProcessGrid(client_app, run_config, composed.settings.engine.num_supernodes or 1)
    context = Context(
        run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config=dict(run_config)
    )
    server_app(grid, context)
