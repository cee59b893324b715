"""AAggFF and the fair methods that it was compared to, as Flower strategies.

All weigh the updates by a mixing vector p on the simplex that follows from the clients' losses
F_i of the model they RECEIVED: x_{t+1} = x_t + eta sum_{i in S} p_i Delta_i, p restricted to the
clients heard. Losses come first, then the weights: the decision of a round weighs its updates.
"""

from typing import Unpack

import strategies.weighting as rules
from strategies.sampled import Options, SampledStrategy
from strategies.types import IntArray, Population
from strategies.weighting.aaggff_d import AAggFFDState
from strategies.weighting.aaggff_s import AAggFFSState
from strategies.weighting.afl import AFLState


class AAggFFS(SampledStrategy[AAggFFSState]):
    """Fair mixing for few clients that all answer in every round: an online Newton step.

    See ``strategies.weighting.AAggFFS`` for the formula.

    Parameters
    ----------
    population : Population
        All clients; priority only says whose data the reported objective is of.
    cdf : str (default: "normal")
        The response's transform: weibull, exponential, frechet, normal, gumbel or logistic.
    c1, c2 : float, optional
        The range of the responses, 0 <= C1 < C2; by default [0, 1 / K].
    **options : Options
        See there; ``fraction`` must be 1.

    Raises
    ------
    ParameterError
        For a value outside its range, and for a fraction below 1.

    References
    ----------
    Hahn, Kim and Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision
    Making", ICML 2024, Algorithm 2.
    """

    def __init__(
        self,
        population: Population,
        *,
        cdf: str = "normal",
        c1: float | None = None,
        c2: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        rule = rules.AAggFFS(cdf, c1, c2)
        super().__init__(population, rule, options)


class AAggFFD(SampledStrategy[AAggFFDState]):
    """Fair mixing for many clients of which each round samples some: a closed form.

    See ``strategies.weighting.AAggFFD`` for the formula.

    Parameters
    ----------
    population : Population
        All clients.
    cdf : str (default: "weibull")
        The response's transform: weibull, exponential, frechet, normal, gumbel or logistic.
    c1, c2 : float, optional
        The range of the responses, 0 <= C1 < C2; by default [0, C].
    rbar : {"sample", "running"} (default: "sample")
        What stands in for the responses not heard: the sample's mean (the paper's) or that of
        the rounds before, which is unbiased.
    **options : Options
        See there.

    Raises
    ------
    ParameterError
        For a value outside its range.

    References
    ----------
    Hahn, Kim and Lee 2024, Algorithm 3.
    """

    def __init__(
        self,
        population: Population,
        *,
        cdf: str = "weibull",
        c1: float | None = None,
        c2: float | None = None,
        rbar: str = "sample",
        **options: Unpack[Options],
    ) -> None:
        rule = rules.AAggFFD(cdf, c1, c2, rbar, options.get("fraction", 1.0))
        super().__init__(population, rule, options)


class QFedAvg(SampledStrategy[IntArray]):
    """q-FedAvg: p_i proportional to w_i F_i^q, or its own update with a Lipschitz constant.

    See ``strategies.weighting.QFedAvg`` for both forms.

    Parameters
    ----------
    population : Population
        All clients.
    q : float (default: 1.0)
        Weight of large losses, >= 0; 0 is FedAvg.
    lipschitz : float, optional
        L > 0 of the original update; by default the mixing form.
    **options : Options
        See there.

    References
    ----------
    Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2.
    """

    def __init__(
        self,
        population: Population,
        *,
        q: float = 1.0,
        lipschitz: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(population, rules.QFedAvg(q, lipschitz), options)


class TERM(SampledStrategy[IntArray]):
    """Tilted losses: p_i proportional to w_i exp(lambda F_i).

    Parameters
    ----------
    population : Population
        All clients.
    tilt : float (default: 1.0)
        lambda; see ``strategies.weighting.TERM``.
    **options : Options
        See there.

    References
    ----------
    Li et al., "Tilted Empirical Risk Minimization", ICLR 2021.
    """

    def __init__(
        self, population: Population, *, tilt: float = 1.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(population, rules.TERM(tilt), options)


class PropFair(SampledStrategy[IntArray]):
    """Proportional fairness: p_i proportional to w_i / (M - F_i), guarded near M.

    Parameters
    ----------
    population : Population
        All clients.
    bound : float (default: 3.0)
        M; see ``strategies.weighting.PropFair``.
    guard : float (default: 0.2)
        How near to M the losses are taken as they are; see there.
    **options : Options
        See there.

    References
    ----------
    Zhang et al., "Proportional Fairness in Federated Learning", TMLR 2023.
    """

    def __init__(
        self,
        population: Population,
        *,
        bound: float = 3.0,
        guard: float = 0.2,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(population, rules.PropFair(bound, guard), options)


class AFL(SampledStrategy[AFLState]):
    """Agnostic federated learning: p moves along the losses and is projected onto the simplex.

    Parameters
    ----------
    population : Population
        All clients.
    step_size : float (default: 0.1)
        gamma; see ``strategies.weighting.AFL``.
    **options : Options
        See there.

    References
    ----------
    Mohri, Sivek and Suresh, "Agnostic Federated Learning", ICML 2019.
    """

    def __init__(
        self, population: Population, *, step_size: float = 0.1, **options: Unpack[Options]
    ) -> None:
        super().__init__(population, rules.AFL(step_size), options)


class FedMGDAPlus(SampledStrategy[IntArray]):
    """FedMGDA+: the shortest combination of updates of length 1, with p near w.

    Parameters
    ----------
    population : Population
        All clients.
    deviation : float (default: 1.0)
        epsilon in [0, 1], how far p_i may be from w_i; see ``strategies.weighting.FedMGDAPlus``.
    **options : Options
        See there.

    References
    ----------
    Hu et al., "Federated Learning Meets Multi-Objective Optimization", IEEE TNSE 2022.
    """

    def __init__(
        self, population: Population, *, deviation: float = 1.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(population, rules.FedMGDAPlus(deviation), options)
