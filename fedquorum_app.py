"""Run FedQuorum from Python, with the settings, the records and the errors of its commands.

>>> from fedquorum_app import run
>>> result = run("fedalign/fmnist", rounds=20, seed=2, strategy="fedau")  # doctest: +SKIP
>>> result.rounds[["round", "test.all.accuracy"]]  # doctest: +SKIP

``run`` and ``load`` return a ``RunResult``, ``sweep`` and ``load_sweep`` a ``SweepResult``. Every
mistake raises a ``fedquorum.errors.FedQuorumError`` with the line that the command would print.

Settings are keywords. Give a setting below a group as a mapping, by its dotted key, or as an
override as on the command line:

>>> run("fedalign/fmnist", strategy="fedau", client={"lr": 0.1})  # doctest: +SKIP
>>> run("fedalign/fmnist", strategy="fedau", **{"strategy.cutoff": 50})  # doctest: +SKIP
>>> run("fedalign/fmnist", "strategy=fedau", "strategy.cutoff=50")  # doctest: +SKIP

The command starts here too, so nothing is imported before it is needed.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server_app.api.result import RunAudit, RunResult
    from server_app.api.sweep import SweepError, SweepResult
    from server_app.engines.in_process import InProcessGrid

_EXPORTS = {
    "InProcessGrid": "server_app.engines.in_process",
    "RunAudit": "server_app.api.result",
    "RunResult": "server_app.api.result",
    "SweepError": "server_app.api.sweep",
    "SweepResult": "server_app.api.sweep",
}
__all__ = [
    "InProcessGrid",
    "RunAudit",
    "RunResult",
    "SweepError",
    "SweepResult",
    "load",
    "load_sweep",
    "run",
    "sweep",
]


def run(
    experiment: str = "",
    /,
    *overrides: str,
    output: Path | str | None = None,
    verbose: bool = True,
    **settings: Any,
) -> "RunResult":
    """Run one job, as ``fedquorum`` does, and return its result.

    Parameters
    ----------
    experiment : str
        A preset, such as ``fedalign/fmnist``; by default ``fedalign/synth_low``,
        or ``custom`` if the settings choose other data.
    *overrides : str
        Overrides as on the command line, such as ``"strategy.cutoff=50"``.
    output : Path or str, optional
        The run's folder (``hydra.run.dir``); by default a new one,
        ``outputs/<experiment>/<time>``.
    verbose : bool
        Whether to print what the command prints.
    **settings
        Settings: ``rounds=20``, ``strategy="fedau"``, ``client={"lr": 0.1}``. None is null. They
        override ``overrides``. ``resume=DIR`` resumes an interrupted run.

    Raises
    ------
    FedQuorumError
        If a setting is wrong, data is missing, or the run did not complete.
    KeyboardInterrupt
        If the run was interrupted. The records hold all complete rounds, and ``resume`` continues
        it.
    """
    _import_app_packages()
    from server_app.api.result import RunResult
    from server_app.api.run import run_from_python

    given = (experiment, *overrides)
    return RunResult.read(
        run_from_python(given, settings, output=output, verbose=verbose), trust=True
    )


def load(directory: Path | str, *, trust: bool = False) -> "RunResult":
    """Return the run in a folder, complete or not.

    Parameters
    ----------
    directory : Path or str
        The run's folder.
    trust : bool
        Whether ``model``, ``audit`` and ``explain`` may import code that the records name by
        import path. Use it only for your own runs.

    Raises
    ------
    RunError
        If there is no run, or a record is damaged.
    """
    _import_app_packages()
    from server_app.api.result import RunResult

    return RunResult.read(Path(directory), trust=trust)


def sweep(
    experiment: str = "",
    /,
    *overrides: str,
    output: Path | str | None = None,
    verbose: bool = True,
    **settings: Any,
) -> "SweepResult":
    """Run all combinations of the settings that are lists, as ``fedquorum -m`` does.

    >>> sweep(strategy=["fedalign", "fedavg"], seed=range(1, 4), rounds=5)  # doctest: +SKIP

    Parameters
    ----------
    experiment, *overrides, verbose
        As in ``run``; ``"seed=1,2"`` is an axis as well.
    output : Path or str, optional
        The sweep's folder (``hydra.sweep.dir``); by default a new one,
        ``outputs/sweeps/<time>``. In a folder with jobs, the sweep does not repeat completed jobs,
        and the result has all jobs.
    **settings
        Settings. A list, a range or an array is an axis; a tuple is one value.
        ``engine={"jobs": 2}`` runs two jobs at a time.

    Raises
    ------
    SweepError
        If a job failed, after all other jobs have run. Its ``sweep`` is the result.
    FedQuorumError
        If the sweep cannot start, for example because all jobs share a mistake.
    KeyboardInterrupt
        If the sweep was interrupted. The same call with ``output`` continues it.
    """
    _import_app_packages()
    from server_app.api.run import sweep_from_python
    from server_app.api.sweep import SweepError, SweepResult

    given = (experiment, *overrides)
    folder, completed = sweep_from_python(given, settings, output=output, verbose=verbose)
    result = SweepResult.read(folder, trust=True)
    if not completed:
        raise SweepError(result)
    return result


def load_sweep(directory: Path | str, *, trust: bool = False) -> "SweepResult":
    """Return all runs in or below a folder, such as that of a sweep.

    Parameters
    ----------
    directory : Path or str
        The folder.
    trust : bool
        As in ``load``.

    Raises
    ------
    RunError
        If there is neither a run nor a failed job.
    """
    _import_app_packages()
    from server_app.api.sweep import SweepResult

    return SweepResult.read(Path(directory), trust=trust)


def main() -> int:
    """Run the command ``fedquorum`` or one of its subcommands; return the exit status."""
    from server_app.cli.commands import main as command

    return command(sys.argv[1:])


def _import_app_packages() -> None:
    """Import the app's packages from this folder, even if other packages have their names.

    Flower apps often have a ``server_app`` and a ``client_app``, and a notebook's folder comes
    first on the path.

    Raises
    ------
    ImportError
        If another package of such a name is already imported.
    """
    folder = Path(__file__).absolute().parent
    sys.path.insert(0, str(folder))
    try:
        for name in ("client_app", "server_app"):
            found = Path(str(import_module(name).__file__)).parent
            if found.resolve() != (folder / name).resolve():
                raise ImportError(
                    f"{name} must be FedQuorum's, in {folder}, got the one in {found}: use "
                    "fedquorum_app in a separate process"
                )
    finally:
        sys.path.remove(str(folder))


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _import_app_packages()
    return getattr(import_module(_EXPORTS[name]), name)


if __name__ == "__main__":
    sys.exit(main())
