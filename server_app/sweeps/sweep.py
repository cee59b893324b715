"""Run ``fedquorum -m``: start the jobs of a sweep, watch them, and report the result.

Hydra's launcher runs the jobs, here or on a cluster. The sweep reads their states from their
folders, so that it can continue after any interruption.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from fedquorum.errors import SettingsError
from hydra.core.override_parser.types import Override
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from conf.compose import compose_overrides
from conf.overrides import get_sweep_values
from server_app.runs.job import EXIT_ERROR, EXIT_INTERRUPTED, SweepUnfinished
from server_app.runs.next_commands import format_next_commands
from server_app.sweeps.runner import JobRunner


def run_grid(config: DictConfig, launcher: Launcher, overrides: Sequence[Override]) -> None:
    """Run all combinations of the values given.

    Parameters
    ----------
    config : DictConfig
        Hydra's settings of the sweep, without the settings of the jobs.
    launcher : Launcher
    overrides : sequence of Override
        The settings of the jobs, each with one value or several.

    Raises
    ------
    SettingsError, RunError
        If the sweep cannot start, for example because all jobs share a mistake.
    SweepUnfinished
        If not all jobs completed; the sweep has already reported them.
    """
    choices = [expand_sweep_override(override) for override in overrides]
    swept = [len(values) > 1 for values in choices]
    combinations = list(itertools.product(*choices))
    refuse_shared_errors(combinations)
    with Sweep(config, launcher).start() as sweep:
        jobs = []
        for number, combination in enumerate(combinations):
            label = " ".join(itertools.compress(combination, swept))
            jobs.append(sweep.folder.get_job(combination, label, number))
        sweep.run(jobs)


def refuse_shared_errors(combinations: Sequence[tuple[str, ...]]) -> None:
    """Report an error that all jobs share, such as a typo, once and before creating a folder.

    Raises
    ------
    SettingsError
        If the settings of all jobs are refused for the same reason.
    """
    reasons = set()
    for combination in combinations:
        try:
            compose_overrides(combination)
        except SettingsError as error:
            reasons.add(str(error))
        else:
            return
    if len(reasons) == 1:
        raise SettingsError(reasons.pop())


def expand_sweep_override(override: Override) -> list[str]:
    """Expand an override to one per value: ``seed=1,2`` becomes seed=1 and seed=2.

    Raises
    ------
    SettingsError
        For an interval, which has infinitely many values, and for an empty range.
    """
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key = override.get_key_element()
    if not override.is_discrete_sweep():
        raise SettingsError(
            f"{key} must be a list of values in a sweep, got {override.input_line} (type "
            f"{key}=A,B,C, or hydra/sweeper=optuna to search the interval)"
        )
    expanded = [f"{key}={value}" for value in get_sweep_values(override)]
    if not expanded:
        raise SettingsError(
            f"{key} must have at least one value in a sweep, got {override.input_line}"
        )
    return expanded


class Sweep:
    """A sweep in its folder, whose jobs run within the context of ``start``.

    Parameters
    ----------
    config : DictConfig
        Hydra's settings of the sweep.
    launcher : Launcher

    Raises
    ------
    SettingsError, RunError
        As ``JobRunner``.
    """

    def __init__(self, config: DictConfig, launcher: Launcher) -> None:
        self._runner = JobRunner(config, launcher)
        self.directory, self.folder = self._runner.directory, self._runner.folder
        self.run, self.say = self._runner.run, self._runner.say

    @contextmanager
    def start(self) -> Iterator[Self]:
        """Lock the folder, show the progress of the jobs, and report the result at the end.

        Raises
        ------
        RunError
            If another process runs a sweep in the folder.
        SettingsError
            On a system without POSIX signals.
        SweepUnfinished
            If not all jobs completed.
        """
        interrupted = False
        self.say(f"Sweep in {self.directory}")
        with self._runner.lock_folder():
            try:
                with self._runner.display:
                    yield self
            except KeyboardInterrupt:
                interrupted = True
            self._report_result(interrupted=interrupted)

    def _report_result(self, *, interrupted: bool) -> None:
        """Report the states of the jobs; raise SweepUnfinished unless all completed."""
        states = {job: job.read_state() for job in self._runner.jobs}
        for job, state in states.items():
            if state.status == "died":
                job.mark_failed(state.reason)
        failed = {job: s.reason for job, s in states.items() if s.status in ("failed", "died")}
        completed = sum(state.status == "completed" for state in states.values())
        self.say(f"{completed} of {len(states)} jobs completed in {self.directory}")
        if completed:
            settings = [job.composed.settings for job in states if job.composed is not None]
            self.say(format_next_commands(self.directory, settings))
        for job, reason in failed.items():
            print(f"fedquorum: {job} failed: {reason}", file=sys.stderr)
        if interrupted:
            print("fedquorum: interrupted; the records hold all complete rounds", file=sys.stderr)
            raise SweepUnfinished(EXIT_INTERRUPTED, self.directory)
        if completed < len(states):
            raise SweepUnfinished(EXIT_ERROR, self.directory)
