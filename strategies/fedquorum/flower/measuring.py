"""Turn the replies of an evaluation into measurements, and into F for the next broadcast."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..composition import Rules
from ..hooks import Candidates
from ..report import ClientEvaluation, priority_objective
from ..server_state import ServerState
from ..types import Call, Population, Told
from .codec import EvaluateAnswer
from .communication import Communication
from .replies import Answers, usable_evaluations
from .validation import MAX_LOSS


@dataclass(frozen=True)
class Measuring:
    """The clients that measure a model, and the parts that they measure, ascending by client id.

    Parameters
    ----------
    tested : tuple of int
        The clients whose test part is measured.
    measured : tuple of int
        The clients whose training part is measured for the objective.
    recorded : tuple of int
        The clients whose training part is measured for the records alone.
    keeps_model : bool
        Whether each measures its own model instead.
    """

    tested: tuple[int, ...] = ()
    measured: tuple[int, ...] = ()
    recorded: tuple[int, ...] = ()
    keeps_model: bool = False

    @property
    def trained_on(self) -> frozenset[int]:
        """The clients whose training parts are measured."""
        return frozenset((*self.measured, *self.recorded))

    @classmethod
    def first(cls, population: Population, rules: Rules) -> "Measuring":
        """Return the clients that measure the first model."""
        before = rules.hooks.before_round
        if before is None:
            return cls(measured=population.priority_clients)
        return cls(measured=before.candidates_of(0, population, Told()).measuring)

    @classmethod
    def after(
        cls,
        population: Population,
        communication: Communication,
        tested: tuple[int, ...],
        following: Candidates,
        *,
        rules: Rules,
        present: frozenset[int] | None = None,
    ) -> "Measuring":
        """Return the clients that measure the model with which the round ``following`` begins.

        Where the rules need F(w_{t+1}), it is the mean by data over the priority clients that this
        round will ask, or over all of them, connected if ``present`` says who is: the selection's
        ``samples_objective`` says which. Otherwise all priority clients are asked for it together
        with the test metrics. The candidates of ``following`` that measure first do so too. With
        ``evaluated_training`` all clients tested measure their training part; what the others
        measure is in no objective and no rule's state.
        """
        measured: tuple[int, ...] = ()
        if rules.needs_objective:
            measured = _of_objective(population, following, rules, present)
        elif tested:
            measured = communication.measured(population, tested)
        if following.measuring:
            measured = tuple(sorted({*measured, *following.measuring}))
        recorded = tested if communication.evaluated_training else ()
        return cls(tested, measured, recorded, rules.keeps_models)


def candidates_of(
    server_round: int,
    population: Population,
    told: Told,
    rules: Rules,
    call: Callable[[int], Call],
) -> Candidates:
    """Return whom a round may ask, as far as that is known before its model is measured.

    Without a hook ``before_round`` that is whom ``call`` asks.
    """
    before = rules.hooks.before_round
    if before is None:
        return Candidates(call(server_round).clients)
    return before.candidates_of(server_round - 1, population, told)


def _of_objective(
    population: Population, following: Candidates, rules: Rules, present: frozenset[int] | None
) -> tuple[int, ...]:
    """Return the priority clients whose F_k make up F(w) of a round, ascending."""
    if rules.selection.samples_objective:
        return tuple(k for k in following.clients if k in population.priority)
    return tuple(k for k in population.priority_clients if present is None or k in present)


def client_evaluations(
    answers: Answers[EvaluateAnswer], population: Population, metric: str = "accuracy"
) -> tuple[ClientEvaluation, ...]:
    """Return the clients' measurements; ``metric`` is the metric beside loss and accuracy."""
    usable = usable_evaluations(answers, metric=metric)
    return tuple(_evaluation(k, answer, population) for k, answer in usable.items())


def with_objective(
    state: ServerState,
    asked: frozenset[int],
    evaluations: Sequence[ClientEvaluation],
    *,
    stands_in: bool,
) -> ServerState:
    """Return the state with F over the priority clients that were asked for it, and who missed it.

    With ``stands_in``, what each measured last is kept, and stands in for it where it misses a
    later measuring.
    """
    heard = [e for e in evaluations if e.client in asked]
    known = state.measured
    objective = priority_objective(heard, [known[k] for k in asked & known.keys()])
    counted = {*(e.client for e in heard if e.measured), *objective.stale}
    objective = replace(objective, unmeasured=tuple(sorted(asked - counted)))
    if stands_in:
        newest = [e for e in evaluations if e.measured and (e.client in asked or e.client in known)]
        known = {**known, **{e.client: e for e in newest}}
    return replace(state, objective=objective, measured=known)


def _counted(loss: float) -> float:
    """Return a loss as it counts: above any that an update may report, it is infinite.

    Sums of such numbers could leave the range of floats.
    """
    return math.inf if loss > MAX_LOSS else loss


def _defined(metric: float) -> float:
    """Return a metric as it counts: NaN where it is so large that means of it could overflow."""
    return metric if abs(metric) <= MAX_LOSS else math.nan


def _evaluation(client: int, answer: EvaluateAnswer, population: Population) -> ClientEvaluation:
    return ClientEvaluation(
        client=client,
        priority_weight=population.priority_weight(client),
        num_examples=float(answer.num_examples or math.nan),
        loss=_counted(answer.loss),
        accuracy=answer.accuracy,
        test_num_examples=answer.test_num_examples,
        test_loss=_counted(answer.test_loss),
        test_accuracy=answer.test_accuracy,
        test_metric=_defined(answer.test_metric),
        validation_num_examples=answer.validation_num_examples,
        validation_loss=_counted(answer.validation_loss),
        validation_accuracy=answer.validation_accuracy,
        validation_metric=_defined(answer.validation_metric),
        held_out=client in population.unseen,
    )
