"""The command ``fedquorum``: a Hydra application over the settings in ``conf``."""

import shlex
import sys

import hydra
from fedquorum.errors import FedQuorumError

from conf.compose import compose_words, parse_word
from server_app.help import help_text
from server_app.job import EXIT_INTERRUPTED, SweepUnfinished, fail, run_job
from server_app.resuming import resumed_words

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
