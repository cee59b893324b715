"""The runs of a study, within its budget."""

from collections.abc import Sequence
from pathlib import Path

from server_app.study.progress import ProgressFile
from server_app.study.settings import Budget, format_clock_time
from server_app.sweep_jobs import Job, count_complete_rounds
from server_app.sweep_runner import JobRunner

END_STATUSES = ("completed", "failed")


class BudgetExhaustedError(Exception):
    """The budget is spent, and something is left undone."""


class StudyJobs:
    """Runs jobs until the budget is spent.

    Parameters
    ----------
    runner : JobRunner
        Runs them.
    progress : ProgressFile
        Remembers the time spent.
    budget : Budget
        What may be spent.
    rounds : int
        The rounds of one run of every method, together.
    """

    def __init__(
        self, runner: JobRunner, progress: ProgressFile, budget: Budget, rounds: int
    ) -> None:
        self.runner = runner
        self.progress = progress
        self.budget = budget
        self._rounds = rounds
        self._folders: set[Path] = set()
        self._left = ""
        self._run_here = self._seconds_here = 0.0
        runner.display.left = self.format_remaining

    @property
    def spent(self) -> float:
        """What has been spent of the budget, in its unit."""
        if self.budget.unit == "seconds":
            return self.progress.seconds
        return float(sum(map(count_complete_rounds, self._folders)))

    @property
    def cost_per_seed(self) -> float:
        """What one run of every method takes; 0 if nobody knows yet."""
        return float(self._rounds) if self.budget.unit == "rounds" else self.progress.once or 0.0

    def get_job(self, overrides: Sequence[str], label: str) -> Job:
        """Return the job of these settings, which may have run already."""
        job = self.runner.folder.get_job(overrides, label, len(self._folders))
        self._folders.add(job.directory)
        return job

    def select_pending(self, jobs: Sequence[Job]) -> list[Job]:
        """Return those that have not ended."""
        return [job for job in jobs if job.read_state().status not in END_STATUSES]

    def run(self, jobs: Sequence[Job]) -> None:
        """Run those that have not ended, as many at a time as ``engine.jobs`` says.

        Raises
        ------
        BudgetExhaustedError
            If not all of them could be begun.
        """
        todo, at_a_time = self.select_pending(jobs), self.runner.at_a_time
        for first in range(0, len(todo), at_a_time):
            if self.spent >= self.budget.amount:
                raise BudgetExhaustedError
            spent, seconds = self.spent, self.progress.seconds
            self.runner.run(todo[first : first + at_a_time])
            self.progress.save()
            self._run_here += self.spent - spent
            self._seconds_here += self.progress.seconds - seconds
            self._update_remaining()

    def format_remaining(self) -> str:
        """Return in words what is left of the budget, of rounds as far as the last jobs' end."""
        if self.budget.unit == "seconds":
            return f"{self.budget.format_amount(max(self.budget.amount - self.spent, 0.0))} left"
        return self._left

    def _update_remaining(self) -> None:
        """Note what is left of a budget in rounds, and how long that takes at the speed here."""
        if self.budget.unit == "seconds":
            return
        left = max(self.budget.amount - self.spent, 0.0)
        seconds = left * self._seconds_here / (self._run_here or 1.0)
        about = f" (about {format_clock_time(seconds)})" if seconds else ""
        self._left = f"{self.budget.format_amount(left)} left{about}"

    def print_progress(self, text: str) -> None:
        """Print a line with what has been spent, and what is left."""
        self._update_remaining()
        self.runner.say(
            f"{text}; {self.budget.format_amount(self.spent)} spent, {self.format_remaining()}"
        )
