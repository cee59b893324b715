"""The scores of one seed, over the same clients with every method.

In a simulation all clients report. On real devices a client may be away for one run and back for
the next, and its owner may refuse a strategy or keep a metric.
"""

from collections.abc import Collection, Mapping

from fedquorum.errors import RunError
from fedquorum.records.reader import read_population

from server_app.study.candidates import Candidate, MethodComparison
from server_app.study.jobs import StudyJobs
from server_app.study.methods import StudyMethod
from server_app.study.result import SeedRun
from server_app.study.scores import format_run_command, read_rejection_reasons, read_seed_run
from server_app.sweep_jobs import Job


def collect_seed_runs(
    comparison: MethodComparison, seed_jobs: Mapping[StudyMethod, Job], jobs: StudyJobs
) -> None:
    """Read what the methods came to with one seed, over the clients that report with all of them.

    A device may be away for one run and back for the next, its owner may refuse a strategy, and
    scores over different clients differ by who is in them. So a seed's scores are taken over the
    clients that have one with every method, whatever the scores are. A method with which fewer
    than half of the baseline's clients report would leave too few to speak for the federation: it
    is left out, and the reason names the clients' own.

    Raises
    ------
    RunError
        If the baseline failed, or the score is not defined over the clients that are left.
    """
    for contender in comparison.active_candidates:
        _collect_run(comparison, contender, seed_jobs[contender.method], jobs)
    plain = comparison.baseline.runs[-1].clients.keys()
    for contender in comparison.active_candidates:
        both = len(plain & contender.runs[-1].clients.keys())
        if 2 * both < len(plain):
            job = seed_jobs[contender.method]
            reasons = "".join(
                f"; client {k}: {why}" for k, why in read_rejection_reasons(job.directory).items()
            )
            reason = f"{both} of the baseline's {len(plain)} clients report with it{reasons}"
            exclude_candidate(comparison, contender, job, f"its run {job.number}: {reason}")
    _restrict_to_common_clients(comparison, seed_jobs, jobs)


def _restrict_to_common_clients(
    comparison: MethodComparison, seed_jobs: Mapping[StudyMethod, Job], jobs: StudyJobs
) -> None:
    """Take the scores of the last seed over the clients that report with every method."""
    shared = _find_common_clients(comparison)
    for contender in comparison.active_candidates:
        run = contender.runs[-1]
        if len(shared) == len(run.clients):
            continue
        try:
            contender.runs[-1] = _read_seed_run(
                comparison, seed_jobs[contender.method], jobs, shared
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
    """Return in words how many clients of the last seed are in no score, nothing if all are."""
    run = seed_jobs[comparison.baseline.method].directory
    everyone, counted = len(read_population(run)), len(_find_common_clients(comparison))
    if counted == everyone:
        return ""
    return f" over {counted} of {everyone} clients (the others report no {comparison.metric})"


def _collect_run(
    comparison: MethodComparison, candidate: Candidate, job: Job, jobs: StudyJobs
) -> None:
    """Read what a method came to with one seed."""
    if job.read_state().status != "completed":
        exclude_candidate(
            comparison, candidate, job, f"its run {job.number}: {job.read_state().reason}"
        )
        return
    try:
        candidate.runs.append(_read_seed_run(comparison, job, jobs))
    except RunError as error:
        exclude_candidate(comparison, candidate, job, f"its run {job.number}: {error}")


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
    """Compare a method no more.

    Raises
    ------
    RunError
        If it is the baseline. Its job is put back if it failed: on real machines it may succeed
        when the same command goes on.
    """
    if candidate is comparison.baseline:
        if job.read_state().status == "failed":
            job.mark_todo()
        raise RunError(f"the baseline {candidate.method.name} failed: {reason}")
    candidate.exclusion_reason = reason
