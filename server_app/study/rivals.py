"""Compare the methods with their honest rival: a model of each client's own.

Two rivals join a study. ``alone``: each client trains from the first model, without the others.
``fine-tuned``: each client trains the baseline's last model further. Both are evaluations at the
end of the baseline's runs (``evaluation.alone_epochs``, ``evaluation.finetune_epochs``), so they
cost no run of the budget. In each run the number of epochs is the one of a few with the best mean
on validation splits.

The rivals answer another question than the methods, so they are a family of comparisons of their
own: neither family widens the intervals of the other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedquorum.audit.replay import read_audit_input
from fedquorum.errors import RunError
from fedquorum.records.round_record import summarize_evaluations
from fedquorum.rules.decisions import (
    ALONE,
    EPOCH_SETTINGS,
    FINETUNED,
    PERSONAL_MODELS,
    ClientEvaluation,
)

from conf import Settings
from conf.overrides import to_overrides
from conf.schema.rules import rules_from_settings
from server_app.study.candidates import Candidate, MethodComparison
from server_app.study.methods import StudyMethod
from server_app.study.paired_statistics import Decision
from server_app.study.result import RivalComparison, SeedRun
from server_app.study.scores import get_test_metric, read_record_scores

FINETUNE_CANDIDATES = (0, 1, 3, 10)
"""The numbers of epochs for which clients train the last model; 0 leaves it as it is."""

ALONE_FRACTIONS = (1 / 16, 1 / 4, 1.0)
"""The numbers of epochs for which clients train alone, as fractions of those of a whole run."""

RIVALS: Mapping[str, StudyMethod] = {
    ALONE: StudyMethod("alone", (), "Each client trains a model of its own, without the others."),
    FINETUNED: StudyMethod(
        "fine-tuned", (), "Each client trains the baseline's last model further on its own rows."
    ),
}
"""The rivals by their models in the records."""

Decide = Callable[[Mapping[str, Sequence[float]], str], Decision]
"""Decides on methods' scores by name, compared with one of them; see ``decide_best_method``."""


def can_have_rivals(comparison: MethodComparison) -> bool:
    """Say whether the clients of a study can train models of their own to be scored like methods.

    They cannot with a baseline whose clients have their own models already, and for a score of
    clients that never train, or of such models themselves.
    """
    group = comparison.score.partition(".")[0]
    settings = comparison.settings
    is_scored = group not in ("held_out", *PERSONAL_MODELS)
    return is_scored and not rules_from_settings(settings).trains_local_models


def build_rival_overrides(settings: Settings) -> tuple[str, ...]:
    """Return the overrides by which the baseline's runs evaluate the rivals.

    A number of epochs that the user set stays.

    Parameters
    ----------
    settings : Settings
        The baseline's settings.
    """
    given = settings.evaluation.personal_epochs
    epochs = settings.rounds * (
        settings.client.local_epochs if settings.client.local_steps is None else 1
    )
    candidates = {
        FINETUNED: [n for n in FINETUNE_CANDIDATES if n <= epochs],
        ALONE: sorted({max(1, round(fraction * epochs)) for fraction in ALONE_FRACTIONS}),
    }
    return to_overrides(
        {EPOCH_SETTINGS[model]: found for model, found in candidates.items() if model not in given}
    )


def compare_rivals(
    comparison: MethodComparison, directory: Path, decide: Decide, *, has_seeds: bool
) -> tuple[RivalComparison, tuple[Candidate, ...]]:
    """Compare the rivals with the baseline, and with every other method.

    A rival beats all methods if, compared with each of them, the interval of its difference lies
    above 0. Each comparison is of two rivals, so each rival has half of the level. The methods need
    no further correction, because a rival must beat all of them (an intersection-union test,
    Berger 1982).

    Parameters
    ----------
    comparison : MethodComparison
        The methods with their runs.
    directory : Path
        The study's folder.
    decide : callable
    has_seeds : bool
        Whether there are enough seeds for a decision.

    Returns
    -------
    comparison : RivalComparison
        Without ``methods``, which the caller builds from the second value.
    rivals : tuple of Candidate
        The rivals with their runs, as if they were methods.
    """
    rivals, left_out = [], {}
    for model, method in RIVALS.items():
        try:
            runs = [
                _read_rival_run(comparison, directory, run, model)
                for run in comparison.baseline.runs
            ]
        except RunError as error:
            left_out[method.name] = str(error)
        else:
            rivals.append(replace(comparison.baseline, method=method, overrides=(), runs=runs))
    if not (rivals and has_seeds):
        return RivalComparison(left_out=left_out), tuple(rivals)
    sign = 1.0 if comparison.higher_is_better else -1.0
    scores = {
        one.method.name: [sign * run.score for run in one.runs]
        for one in (*comparison.active_candidates, *rivals)
    }
    names = [rival.method.name for rival in rivals]
    decisions = [
        decide(
            {name: scores[name] for name in (candidate.method.name, *names)}, candidate.method.name
        )
        for candidate in comparison.active_candidates
    ]
    beating = [
        {one.method for one in decision.differences if one.low > 0} for decision in decisions
    ]
    beats_all = tuple(
        one.method
        for one in decisions[0].differences
        if all(one.method in found for found in beating)
    )
    return RivalComparison((), decisions[0], beats_all, left_out), tuple(rivals)


def _read_rival_run(
    comparison: MethodComparison, directory: Path, run: SeedRun, model: str
) -> SeedRun:
    """Read a rival's scores from a run of the baseline, over the clients of the baseline's score.

    Raises
    ------
    RunError
        If a client has no such model, or the score is not defined.
    """
    recorded = read_audit_input(directory / run.folder)
    last = len(recorded.run.rounds)
    found = [e for e in recorded.get_evaluations(last) if e.client in run.clients]
    evaluations = [e for e in (one.replace_by_personal(model) for one in found) if e is not None]
    if len(evaluations) < len(found):
        raise RunError(
            f"{len(evaluations)} of {len(found)} clients have such a model with seed={run.seed}"
        )
    test = summarize_evaluations(evaluations, comparison.metric, all_evaluated=True)
    score, measures = read_record_scores({"test": test}, comparison.score, comparison.metric)
    if score is None:
        raise RunError(f"its test.{comparison.score} is not defined with seed={run.seed}")
    return replace(
        run,
        score=score,
        measures={**measures, "epochs": float(_get_epochs(found, model))},
        clients={e.client: get_test_metric(e, comparison.metric) for e in evaluations},
        curve=(),
        megabytes=0.0 if model == ALONE else run.megabytes,
    )


def _get_epochs(evaluations: Sequence[ClientEvaluation], model: str) -> int:
    return max(one.epochs for e in evaluations for one in e.personal if one.model == model)


def describe_epochs(runs: Sequence[SeedRun]) -> str:
    """Return the epochs that the runs chose, as a setting: "epochs=3", or "epochs=1 to 10"."""
    epochs = sorted({int(run.measures["epochs"]) for run in runs})
    return f"epochs={epochs[0]}" + (f" to {epochs[-1]}" if len(epochs) > 1 else "")
