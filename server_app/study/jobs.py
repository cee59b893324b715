"""Run the jobs of a study within its budget."""

from collections.abc import Sequence
from pathlib import Path

from server_app.study.progress import ProgressFile
from server_app.study.settings import Budget, format_clock_time
from server_app.sweeps.jobs import Job, count_complete_rounds
from server_app.sweeps.runner import JobRunner

END_STATUSES = ("completed", "failed")


class BudgetExhaustedError(Exception):
    """The budget is spent before all jobs have started."""


class StudyJobs:
    """Runs jobs until the budget is spent.

    Parameters
    ----------
    runner : JobRunner
    progress : ProgressFile
        Stores the time spent.
    budget : Budget
    rounds : int
        The total rounds of one run of every method.
    """

    def __init__(
        self, runner: JobRunner, progress: ProgressFile, budget: Budget, rounds: int
    ) -> None:
        self.runner = runner
        self.progress = progress
        self.budget = budget
        self._rounds = rounds
        self._folders: set[Path] = set()
        self._remaining = ""
        self._run_here = self._seconds_here = 0.0
        runner.display.left = self.format_remaining

    @property
    def spent(self) -> float:
        """The amount spent, in the budget's unit."""
        if self.budget.unit == "seconds":
            return self.progress.seconds
        return float(sum(map(count_complete_rounds, self._folders)))

    @property
    def cost_per_seed(self) -> float:
        """The cost of one run of every method, in the budget's unit; 0 if still unknown."""
        return float(self._rounds) if self.budget.unit == "rounds" else self.progress.once or 0.0

    def get_job(self, overrides: Sequence[str], label: str) -> Job:
        """Return the job of these settings; it may have run already."""
        job = self.runner.folder.get_job(overrides, label, len(self._folders))
        self._folders.add(job.directory)
        return job

    def select_pending(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that have not ended."""
        return [job for job in jobs if job.read_state().status not in END_STATUSES]

    def run(self, jobs: Sequence[Job]) -> None:
        """Run the jobs that have not ended, ``engine.jobs`` of them in parallel.

        Raises
        ------
        BudgetExhaustedError
            If the budget was spent before all of them started.
        """
        todo, num_parallel = self.select_pending(jobs), self.runner.at_a_time
        for first in range(0, len(todo), num_parallel):
            if self.spent >= self.budget.amount:
                raise BudgetExhaustedError
            spent, seconds = self.spent, self.progress.seconds
            self.runner.run(todo[first : first + num_parallel])
            self.progress.save()
            self._run_here += self.spent - spent
            self._seconds_here += self.progress.seconds - seconds
            self._update_remaining()

    def format_remaining(self) -> str:
        """Format the rest of the budget; rounds count when their jobs end."""
        if self.budget.unit == "seconds":
            return f"{self.budget.format_amount(max(self.budget.amount - self.spent, 0.0))} left"
        return self._remaining

    def _update_remaining(self) -> None:
        """Update the text of the remaining rounds, with the time at the speed so far."""
        if self.budget.unit == "seconds":
            return
        remaining = max(self.budget.amount - self.spent, 0.0)
        seconds = remaining * self._seconds_here / (self._run_here or 1.0)
        estimate = f" (about {format_clock_time(seconds)})" if seconds else ""
        self._remaining = f"{self.budget.format_amount(remaining)} left{estimate}"

    def print_progress(self, text: str) -> None:
        """Print a line with the budget spent and remaining."""
        self._update_remaining()
        self.runner.say(
            f"{text}; {self.budget.format_amount(self.spent)} spent, {self.format_remaining()}"
        )
