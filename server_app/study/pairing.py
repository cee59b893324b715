"""Collect the scores of one seed over the same clients for every method.

In a simulation all clients report. On real devices a client may be unavailable for one run and back
for the next, and its owner may refuse a strategy or withhold a metric.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress

from fedquorum.errors import RunError
from fedquorum.records.reader import read_population

from server_app.study.candidates import Candidate, MethodComparison
from server_app.study.jobs import StudyJobs
from server_app.study.methods import StudyMethod
from server_app.study.result import SeedRun
from server_app.study.scores import (
    find_diverged_clients,
    format_run_command,
    read_rejection_reasons,
    read_seed_run,
)
from server_app.sweeps.jobs import Job


def collect_seed_runs(
    comparison: MethodComparison, seed_jobs: Mapping[StudyMethod, Job], jobs: StudyJobs
) -> str:
    """Read each method's run with one seed, over the clients that report with every method.

    Scores over different clients are not comparable, so a seed's scores count only the clients that
    report with every method. This choice never depends on the scores. If fewer than half of the
    baseline's clients report with a method, the rest would not represent the federation: the method
    is excluded, and the reason quotes the clients' reasons. So is a method that diverges: without
    the clients whose loss it makes infinite it would seem better. A seed in which a simulated
    baseline has no score, or diverges, counts for no method.

    Returns
    -------
    str
        Why the seed does not count; empty if it does.

    Raises
    ------
    RunError
        If the baseline failed on devices, or the score is undefined over the common clients.
    """
    baseline = comparison.baseline
    if problem := _collect_run(comparison, baseline, seed_jobs[baseline.method], jobs):
        if comparison.settings.engine.superlink is not None:
            exclude_candidate(comparison, baseline, seed_jobs[baseline.method], problem)
        return problem
    for candidate in comparison.active_candidates[1:]:
        job = seed_jobs[candidate.method]
        if problem := _collect_run(comparison, candidate, job, jobs):
            exclude_candidate(comparison, candidate, job, problem)
    baseline_clients = comparison.baseline.runs[-1].clients.keys()
    for candidate in comparison.active_candidates:
        num_common = len(baseline_clients & candidate.runs[-1].clients.keys())
        if 2 * num_common < len(baseline_clients):
            job = seed_jobs[candidate.method]
            reasons = "".join(
                f"; client {client}: {cause}"
                for client, cause in read_rejection_reasons(job.directory).items()
            )
            total = len(baseline_clients)
            reason = f"{num_common} of the baseline's {total} clients report with it{reasons}"
            exclude_candidate(comparison, candidate, job, f"its run {job.number}: {reason}")
    _restrict_to_common_clients(comparison, seed_jobs, jobs)
    return ""


def collect_restarted_run(comparison: MethodComparison, job: Job, jobs: StudyJobs) -> None:
    """Read the baseline's run with another start; without a score there is none."""
    if job.read_state().status == "completed":
        with suppress(RunError):
            comparison.baseline.restarted = _read_seed_run(comparison, job, jobs)


def _restrict_to_common_clients(
    comparison: MethodComparison, seed_jobs: Mapping[StudyMethod, Job], jobs: StudyJobs
) -> None:
    """Recompute the scores of the last seed over the clients that report with every method."""
    shared = _find_common_clients(comparison)
    for candidate in comparison.active_candidates:
        run = candidate.runs[-1]
        if len(shared) == len(run.clients):
            continue
        try:
            candidate.runs[-1] = _read_seed_run(
                comparison, seed_jobs[candidate.method], jobs, shared
            )
        except RunError:
            raise RunError(
                f"methods must leave clients over which test.{comparison.score} is defined, got "
                f"{sorted(shared)}, which report with all methods and seed={run.seed}"
            ) from None


def _find_common_clients(comparison: MethodComparison) -> frozenset[int]:
    """Return the clients that report with every method, in the last seed."""
    return frozenset.intersection(
        *(frozenset(c.runs[-1].clients) for c in comparison.active_candidates)
    )


def describe_excluded_clients(
    comparison: MethodComparison, seed_jobs: Mapping[StudyMethod, Job]
) -> str:
    """Describe the clients of the last seed that no score counts; empty if all count."""
    run = seed_jobs[comparison.baseline.method].directory
    total, counted = len(read_population(run)), len(_find_common_clients(comparison))
    if counted == total:
        return ""
    return f" over {counted} of {total} clients (the others report no {comparison.metric})"


def _collect_run(
    comparison: MethodComparison, candidate: Candidate, job: Job, jobs: StudyJobs
) -> str:
    """Read a method's run with one seed, or return why it has no score."""
    if job.read_state().status != "completed":
        return f"its run {job.number}: {job.read_state().reason}"
    if diverged := find_diverged_clients(job.directory):
        clients = f"{len(diverged)} client{'s' if len(diverged) > 1 else ''}"
        return f"its run {job.number} diverged: the loss of {clients} is not finite"
    try:
        candidate.runs.append(_read_seed_run(comparison, job, jobs))
    except RunError as error:
        return f"its run {job.number}: {error}"
    return ""


def _read_seed_run(
    comparison: MethodComparison,
    job: Job,
    jobs: StudyJobs,
    included_clients: Collection[int] | None = None,
) -> SeedRun:
    root, command = jobs.runner.directory, format_run_command(job.overrides)
    return read_seed_run(
        job.directory,
        root,
        comparison.score,
        comparison.metric,
        command,
        included_clients=included_clients,
    )


def exclude_candidate(
    comparison: MethodComparison, candidate: Candidate, job: Job, reason: str
) -> None:
    """Exclude a method from the comparison.

    Raises
    ------
    RunError
        If the method is the baseline. If its job failed, it is marked to run again: on real
        machines it may succeed when the same command resumes the study.
    """
    if candidate is comparison.baseline:
        if job.read_state().status == "failed":
            job.mark_todo()
        raise RunError(f"the baseline {candidate.method.name} failed: {reason}")
    candidate.exclusion_reason = reason
