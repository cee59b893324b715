"""One round's decisions in their order: who is admitted, who can count, how much each counts.

The adapter decides with it, and whoever decides a run again from its records.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from strategies.selection import Selection
from strategies.types import (
    Admission,
    Call,
    FloatArray,
    GlobalMeasure,
    Population,
    Responses,
    Weights,
)
from strategies.weighting import Weighting


@dataclass(frozen=True)
class Decision:
    """What was decided in a round.

    ``responses`` are what the weighting was given. ``state`` is the weighting's after it;
    ``covered`` what is admitted of every client as far as it is known, by the clients ascending,
    shape (N,), None where no gate needs remembering.
    """

    admission: Admission
    responses: Responses
    weights: Weights
    state: Any
    covered: FloatArray | None


def admit(
    selection: Selection,
    weighting: Weighting[Any],
    call: Call,
    measure: GlobalMeasure,
    responses: Responses,
) -> Admission:
    """Return whose update counts.

    In a gate p_k is undefined without any priority update, unless the weights are divided by a
    fixed population, whose data are known: then nothing is admitted.
    """
    admission = selection.admit(call, measure, responses)
    if call.epsilon is None or weighting.fixed_divisor or responses.priority.any():
        return admission
    n = len(responses.client)
    return Admission(np.zeros(n), ("no priority client's update arrived, so p_k is undefined",) * n)


def decide(
    selection: Selection,
    weighting: Weighting[Any],
    population: Population,
    *,
    call: Call,
    measure: GlobalMeasure,
    responses: Responses,
    state: Any,
    covered: FloatArray | None,
) -> Decision:
    """Return the decisions of a round; ``state`` and ``covered`` are those of the round before.

    Raises
    ------
    ValueError, SolverError
        What the weighting raises.
    """
    admission = admit(selection, weighting, call, measure, responses)
    of_all = None
    if weighting.fixed_divisor and call.epsilon is not None:
        of_all = covered = cover(
            population, call, measure, responses, share=admission.share, before=covered
        )
    elif weighting.fixed_divisor and call.pool is not None:
        of_all = population.priority_weights
    if of_all is not None:
        places = np.searchsorted(population.ascending, responses.known)
        responses = replace(responses, covered=of_all[places])
    following, weights = weighting.weigh(state, call, responses, admission.share)
    return Decision(admission, responses, weights, following, covered)


def cover(
    population: Population,
    call: Call,
    measure: GlobalMeasure,
    responses: Responses,
    *,
    share: FloatArray,
    before: FloatArray | None,
) -> FloatArray:
    """Return what a gate was last known to admit of each client, there or not, shape (N,).

    Of who answered it is its share, of the silent nothing; who was away keeps what it had. It
    begins with the priority weights lambda_k, 1 for priority clients and 0 for others, and comes
    back to them where the gate is closed. A round whose F(w_t) is unknown says nothing about
    anybody.
    """
    own = population.priority_weights
    covered = (own if before is None or call.epsilon == 0.0 else before).copy()
    unknown = np.isnan(measure.accuracy if call.criterion == "accuracy" else measure.loss)
    if call.epsilon == 0.0 or unknown:
        return covered
    silent = np.searchsorted(population.ascending, responses.silent)
    covered[silent] = own[silent]
    covered[np.searchsorted(population.ascending, responses.client)] = share
    return covered
