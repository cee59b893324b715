"""Project other updates onto the priority clients' step (FedGP)."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..description import NO_SUM, RuleDescription
from ..errors import ParameterError
from ..parameters import FRACTION
from ..report import Decided
from ..responses import scattered
from ..rule import Question, parameter
from ..search import Between
from ..selection.base import Selection
from ..server_optimizer.base import ServerOptimizer
from ..types import BoolArray, Call, FloatArray, Population, Responses, Weights
from ..words import digits
from .base import Weighting
from .data_fraction import DataFraction


@dataclass(frozen=True)
class GradientProjection(Weighting[None]):
    """Step by (1 - beta) g_T + (beta / N_s) sum_i max(<g_T, Delta_i>, 0) / |Delta_i|^2 Delta_i.

    g_T = sum_{k in P} p_k Delta_k is FedAvg's step on the priority clients P. The N_s other clients
    are the sources. A priority client has the weight c_k = (1 - beta) p_k. A source has c_i = (beta
    / N_s) max(<g_T, Delta_i>, 0) / |Delta_i|^2, with <g_T, Delta_i> = sum_{k in P} p_k <Delta_k,
    Delta_i>. A source moves the model by at most (beta / N_s) |g_T|, whatever the length of its
    update, although c_i has no bound. Its weight is 0 if its update points away from g_T, has
    length 0, or is so short that c_i overflows.

    With beta = 0, or without any source, the step is FedAvg on P with the same bits. Without an
    update of a priority client, all weights are 0. Priority weights lambda_k below 1 enter as in
    the objective, p_k = lambda_k D_k / sum_i lambda_i D_i; such clients are not sources.

    Parameters
    ----------
    beta : float
        In [0, 1], the same for all sources.

    Raises
    ------
    ParameterError
        If beta is outside its range.

    References
    ----------
    Jiang, Zhang and Koyejo, "Principled Federated Domain Adaptation: Gradient Projection and
    Auto-Weighting", ICLR 2024, Definition 4.3, and its default beta. Here several clients may be
    the target. The authors' code projects array by array and weighs the sources by their data;
    this is the paper's form, on whole updates. The weights beta_i that the paper estimates from
    the target's single batches are left out.
    """

    key = "fedgp"
    summary = "FedGP: other updates count by their projection onto the priority clients' step."
    description = RuleDescription(
        weight=(
            "(1 - beta) p_k with priority; any other update counts only by its projection "
            "onto the priority clients' step"
        ),
        source="[Jiang, Zhang and Koyejo 2024](https://arxiv.org/abs/2302.05049), Definition 4.3",
        trusts="the update; `num-examples` of clients with priority",
        gain=(
            "a client without priority can turn the step by the direction of its update "
            "alone; a priority client moves the direction against which all other updates are "
            "measured"
        ),
        limit=(
            "the other clients together move the model by at most beta times the priority "
            "clients' step, whatever they send"
        ),
        secure_sum=NO_SUM,
    )
    question = Question.PRIORITY
    needs_losses = False
    needs_updates = True
    by_data = True
    unbounded = (
        "an update counts by its client's amount of data or by the priority clients' updates, "
        "which its weight tells of"
    )
    not_recorded = (
        "the projections of fedgp: they need the inner products of the updates, which no record "
        "holds (checked instead: the priority clients' weights, and that no other update moves "
        "the model further than its bound)"
    )
    factor = (
        "(1 - beta) D_k with priority, "
        "(beta / N_s) max(sum of D_j <Delta_j, Delta_k> over P, 0) / |Delta_k|^2 without"
    )
    divisor = "the training data of the priority clients among {whom}"
    drawn_whom = "all clients, drawn or not"
    late = "It did not take part."
    needed: ClassVar[Mapping[str, tuple[str, str]]] = {
        "priority": (
            "the ids of the priority clients, such as [0, 1]",
            "the other clients' updates are projected on theirs",
        )
    }

    beta: float = parameter(0.5, FRACTION, Between(0.1, 0.9, log=False))

    def over_known(self) -> Weighting[Any]:
        """Refuse a correction for participation."""
        raise self.uncorrectable(
            "multiplied by omega an update may move the model further than its bound, which is "
            "the point of the projection"
        )

    def init(self, population: Population) -> None:
        """Return the empty state."""

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return c_k, and ``update_norm`` if a source is projected.

        Raises
        ------
        ValueError
            If there are sources, and the updates' inner products are not available.
        """
        target, sources = _target(call, responses, share), _sources(responses, share)
        if not sources.any() or not target.factor.any():
            return None, target
        if responses.gram is None:
            raise ValueError(
                "FedGP needs the inner products of the updates, and nobody provides them"
            )
        gram, counts = responses.gram(), share > 0
        projection = np.where(sources, _projections(target.factor, gram), 0.0)
        return None, Weights(
            (1.0 - self.beta) * target.factor + self.beta / sources.sum() * projection,
            target.divisor,
            update_norm=scattered(np.sqrt(np.diag(gram)[counts]), counts),
        )

    def check_with(self, selection: Selection, server_optimizer: ServerOptimizer[Any]) -> None:
        """Refuse a gate."""
        if selection.gated:
            raise ParameterError(
                "selection",
                "one without a gate with the weighting fedgp",
                selection.key,
                "the projection decides itself what the clients without priority add",
            )

    def explain(self, decided: Decided, place: int) -> Iterator[str]:
        """Yield the weight of a priority client by its data, and a source's with its bound."""
        call, responses, share = decided.call, decided.responses, decided.share
        target, sources = _target(call, responses, share), _sources(responses, share)
        recorded = decided.recorded[place]
        c = f"c_k = {digits(recorded.weight)}"
        if not sources[place]:
            beta = self.beta if sources.any() else 0.0
            yield (
                "c_k = (1 - beta) p_k, p_k its fraction of the priority clients' data: "
                f"(1 - {beta:g}) x {digits(target.weight[place])}"
                f"{'' if sources.any() else ', as no source was heard'}: {c}"
            )
            return
        if recorded.update_norm is None:
            yield f"no priority client's update arrived to project the other updates onto: {c}"
            return
        yield (
            "c_k = (beta / N_s) max(<g_T, Delta_k>, 0) / |Delta_k|^2, g_T the priority clients' "
            f"step, beta = {self.beta:g}, N_s = {sources.sum()}, |Delta_k| = "
            f"{digits(recorded.update_norm)}; the inner products are not in the records"
        )
        yield (
            f"it moves the model by c_k |Delta_k| = {digits(recorded.weight)} x "
            f"{digits(recorded.update_norm)} <= (beta / N_s) |g_T| <= (beta / N_s) sum of p_j "
            f"|Delta_j| over P = {digits(self._bound(decided, target, sources))}: {c}"
        )

    def check_recorded(self, decided: Decided) -> Iterator[tuple[int | None, str]]:
        """Yield wrong weights of priority clients, and sources that exceed their bound."""
        call, responses, share = decided.call, decided.responses, decided.share
        target, sources = _target(call, responses, share), _sources(responses, share)
        heard = bool(sources.any() and target.factor.any())
        expected = (1.0 - self.beta if heard else 1.0) * target.factor / target.divisor
        bound = self._bound(decided, target, sources) if heard else 0.0
        for place, recorded in enumerate(decided.recorded):
            weight, norm = recorded.weight, recorded.update_norm
            if sources[place] and heard:
                if norm is None or not 0.0 <= weight * norm <= bound * (1.0 + self.tolerance):
                    text = (
                        f"its update moves the model by weight x length = {weight:.9g} x "
                        f"{digits(norm)}, outside of 0 to {bound:.9g}"
                    )
                    yield recorded.client, text
                continue
            given = expected[place]
            if decided.capped is not None:
                given = min(given, decided.capped)
            if not math.isclose(weight, given, rel_tol=self.tolerance, abs_tol=1e-12):
                text = f"weight is {weight:.9g}, the other records give {given:.9g}"
                yield recorded.client, text

    def _bound(self, decided: Decided, target: Weights, sources: BoolArray) -> float:
        """Return (beta / N_s) sum_{k in P} p_k |Delta_k| >= (beta / N_s) |g_T|."""
        norms = np.array([recorded.update_norm or 0.0 for recorded in decided.recorded])
        return float(self.beta / sources.sum() * (target.weight @ norms))


def _target(call: Call, responses: Responses, share: FloatArray) -> Weights:
    """Return FedAvg's weights on the priority clients, p_k, as the strategy on them alone has."""
    of_target = np.minimum(share, responses.priority_weight)
    return DataFraction().weigh(None, call, responses, of_target)[1]


def _projections(factor: FloatArray, gram: FloatArray) -> FloatArray:
    """Return max(<sum_j a_j Delta_j, Delta_i>, 0) / |Delta_i|^2, 0 where that is no number."""
    counts = factor > 0
    with np.errstate(all="ignore"):
        along = (factor[counts, None] * gram[counts]).sum(axis=0)
        projection: FloatArray = np.maximum(along, 0.0) / np.diag(gram)
    return np.where(np.isfinite(projection), projection, 0.0)


def _sources(responses: Responses, share: FloatArray) -> BoolArray:
    """Return whose update is projected, shape (n,): the clients without priority admitted."""
    sources: BoolArray = ~responses.priority & (share > 0)
    return sources
