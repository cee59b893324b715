"""The scores of one seed, over the same clients with every method.

In a simulation all clients report. On real devices a client may be away for one run and back for
the next, and its owner may refuse a strategy or keep a metric.
"""

from collections.abc import Collection, Mapping

from fedquorum.errors import RunError
from fedquorum.records.reader import read_population

from server_app.study.answer import SeedRun
from server_app.study.contenders import Contender, Contest
from server_app.study.jobs import StudyJobs
from server_app.study.methods import Method
from server_app.study.scores import refused, run_command, seed_run
from server_app.sweep_jobs import Job


def take_seed(contest: Contest, of_seed: Mapping[Method, Job], jobs: StudyJobs) -> None:
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
    for contender in contest.live:
        _take(contest, contender, of_seed[contender.method], jobs)
    plain = contest.baseline.runs[-1].clients.keys()
    for contender in contest.live:
        both = len(plain & contender.runs[-1].clients.keys())
        if 2 * both < len(plain):
            job = of_seed[contender.method]
            reasons = "".join(f"; client {k}: {why}" for k, why in refused(job.directory).items())
            reason = f"{both} of the baseline's {len(plain)} clients report with it{reasons}"
            leave_out(contest, contender, job, f"its run {job.number}: {reason}")
    _pair(contest, of_seed, jobs)


def _pair(contest: Contest, of_seed: Mapping[Method, Job], jobs: StudyJobs) -> None:
    """Take the scores of the last seed over the clients that report with every method."""
    shared = _shared(contest)
    for contender in contest.live:
        run = contender.runs[-1]
        if len(shared) == len(run.clients):
            continue
        try:
            contender.runs[-1] = _seed_run(contest, of_seed[contender.method], jobs, shared)
        except RunError:
            raise RunError(
                f"methods must leave clients over which test.{contest.score} is defined, got "
                f"{sorted(shared)}, which report with all methods and seed={run.seed}"
            ) from None


def _shared(contest: Contest) -> frozenset[int]:
    """Return the clients that report with every method, in the last seed."""
    return frozenset.intersection(*(frozenset(c.runs[-1].clients) for c in contest.live))


def not_counted(contest: Contest, of_seed: Mapping[Method, Job]) -> str:
    """Return in words how many clients of the last seed are in no score, nothing if all are."""
    run = of_seed[contest.baseline.method].directory
    everyone, counted = len(read_population(run)), len(_shared(contest))
    if counted == everyone:
        return ""
    return f" over {counted} of {everyone} clients (the others report no {contest.metric})"


def _take(contest: Contest, contender: Contender, job: Job, jobs: StudyJobs) -> None:
    """Read what a method came to with one seed."""
    if job.state().status != "completed":
        leave_out(contest, contender, job, f"its run {job.number}: {job.state().reason}")
        return
    try:
        contender.runs.append(_seed_run(contest, job, jobs))
    except RunError as error:
        leave_out(contest, contender, job, f"its run {job.number}: {error}")


def _seed_run(
    contest: Contest, job: Job, jobs: StudyJobs, among: Collection[int] | None = None
) -> SeedRun:
    root, command = jobs.runner.directory, run_command(job.words)
    return seed_run(job.directory, root, contest.score, contest.metric, command, among=among)


def leave_out(contest: Contest, contender: Contender, job: Job, reason: str) -> None:
    """Compare a method no more.

    Raises
    ------
    RunError
        If it is the baseline. Its job is put back if it failed: on real machines it may succeed
        when the same command goes on.
    """
    if contender is contest.baseline:
        if job.state().status == "failed":
            job.put_back()
        raise RunError(f"the baseline {contender.method.name} failed: {reason}")
    contender.left_out = reason
