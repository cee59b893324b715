"""Describe the progress of a run that is watched."""

import math
import time
from dataclasses import dataclass

from ..metrics.fairness import exact_sum
from ..records.reader import Run
from .names import method_title
from .terminal import format_time_left

NUM_RECENT_ROUNDS = 20
PATIENCE_SECONDS, PATIENCE_ROUNDS = 60.0, 10.0
MAX_SECONDS_LEFT = 1e9


@dataclass(frozen=True)
class WatchedRun:
    """A run with the last write time of its rounds or manifest, in seconds since 1970."""

    run: Run
    last_record: float

    @property
    def is_running(self) -> bool:
        """Whether the manifest says so; a killed run's manifest still does."""
        return self.run.status == "running"

    @property
    def seconds_per_round(self) -> float:
        """The mean duration of the recent rounds, NaN before the first."""
        seconds = [record.duration_seconds for record in self.run.rounds[-NUM_RECENT_ROUNDS:]]
        return exact_sum(seconds) / len(seconds) if seconds else math.nan

    @property
    def seems_killed(self) -> bool:
        """Whether a running run recorded nothing for a minute and for the time of ten rounds."""
        usual = self.seconds_per_round
        rounds = 0.0 if math.isnan(usual) else PATIENCE_ROUNDS * usual
        return self.is_running and time.time() - self.last_record > max(PATIENCE_SECONDS, rounds)

    @property
    def title(self) -> str:
        """Experiment, method and seed."""
        return f"{self.run.experiment}, {method_title(self.run.strategy)}, seed {self.run.seed}"

    def describe_progress(self) -> str:
        """Describe the run's progress in one line."""
        run, seconds = self.run, self.seconds_per_round
        done = run.rounds[-1].round if run.rounds else 0
        planned = f" of {run.planned:,}" if run.planned else ""
        rounds_left = float(run.planned - done)
        if (end := run.simulated_end) is not None:
            clock = run.simulated_seconds
            planned = f", {clock:,.0f} of {end:,.0f} simulated seconds"
            rounds_left = min(rounds_left, done * (end - clock) / clock) if clock else math.inf
        facts = [f"{self.title}: {f'round {done:,}' if done else 'no round yet'}{planned}"]
        if not math.isnan(seconds):
            facts.append(f"{seconds:.3g} s a round")
        if self.seems_killed:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.last_record))
            facts.append(f"nothing recorded since {since} UTC")
            facts.append("perhaps killed: fedquorum resume=DIR resumes it")
        elif done and rounds_left > 0 and seconds * rounds_left < MAX_SECONDS_LEFT:
            time_left = format_time_left(seconds * done, done / (done + rounds_left))
            facts.append(f"about {time_left}")
        return ", ".join(facts)
