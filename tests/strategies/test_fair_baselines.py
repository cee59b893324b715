"""Rules that mix by losses: what all of them promise, and each baseline against its formula."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy.qfedavg import compute_delta_and_h

from strategies.parameters import ParameterError
from strategies.types import Call, FloatArray, IntArray, Population, Responses, Weights
from strategies.weighting import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFS,
    DataFraction,
    FedMGDAPlus,
    PropFair,
    QFedAvg,
    Weighting,
)
from strategies.weighting.afl import AFLState
from strategies.weighting.exponentiated_gradient import exponentiated_gradient

SIZE = 9
HEARD = 3

FULL: dict[str, Weighting[Any]] = {
    "FedAvg": DataFraction(),
    "q-FedAvg": QFedAvg(q=0.5),
    "q-FedAvg, q = 8": QFedAvg(q=8.0),
    "TERM": TERM(tilt=0.7),
    "TERM, negative": TERM(tilt=-0.7),
    "PropFair": PropFair(bound=2.0),
    "AFL": AFL(step_size=0.05),
    "FedMGDA+": FedMGDAPlus(deviation=0.2),
    "FedMGDA+, free": FedMGDAPlus(deviation=1.0),
    "AAggFF-S": AAggFFS(),
    "AAggFF-S, [0, 1]": AAggFFS("weibull", c2=1.0),
    "AAggFF-D": AAggFFD(),
    "AAggFF-D, running": AAggFFD("frechet", rbar="running"),
}
SAMPLED: dict[str, Weighting[Any]] = {
    **{name: rule for name, rule in FULL.items() if not name.startswith("AAggFF")},
    "AAggFF-D": AAggFFD(fraction=HEARD / SIZE),
    "AAggFF-D, running": AAggFFD("logistic", rbar="running", fraction=HEARD / SIZE),
}
ALL = [(name, rule, SIZE) for name, rule in FULL.items()] + [
    (f"{name}, sampled", rule, HEARD) for name, rule in SAMPLED.items()
]

conforming = pytest.mark.parametrize(
    ("rule", "heard"), [a[1:] for a in ALL], ids=[a[0] for a in ALL]
)


def population(size: int = SIZE) -> Population:
    return Population(tuple(range(size)), frozenset(range(size)))


def answered(
    loss: Sequence[float],
    *,
    client: Sequence[int] | None = None,
    data: Sequence[float] | None = None,
    updates: FloatArray | None = None,
) -> Responses:
    n = len(loss)
    return Responses(
        client=np.array(range(n) if client is None else client, dtype=np.int64),
        priority_weight=np.ones(n),
        num_examples=np.array([10.0] * n if data is None else data, dtype=np.float64),
        loss=np.array(loss, dtype=np.float64),
        accuracy=np.full(n, 0.5),
        known=np.arange(SIZE),
        gram=None if updates is None else lambda: updates @ updates.T,
    )


def rounds_of(count: int, heard: int, *, seed: int = 0, spread: float = 1.0) -> list[Responses]:
    """Return what samples of clients answer: losses, data that stays, updates in R^12."""
    rng = np.random.default_rng(seed)
    level, data = rng.normal(size=SIZE), rng.integers(1, 100, SIZE)
    history = []
    for _ in range(count):
        client = np.sort(rng.choice(SIZE, heard, replace=False))
        history.append(
            answered(
                np.exp(spread * (level[client] + 0.2 * rng.normal(size=heard))).tolist(),
                client=client.tolist(),
                data=data[client].tolist(),
                updates=rng.normal(size=(heard, 12)) + 0.3,
            )
        )
    return history


def play(
    rule: Weighting[Any], history: Sequence[Responses], state: Any = None
) -> tuple[Any, list[Weights]]:
    """Return the last state and all decisions."""
    state, told = rule.init(population()) if state is None else state, []
    for responses in history:
        call = Call(tuple(responses.client.tolist()))
        state, weights = rule.weigh(state, call, responses, np.ones(len(responses.client)))
        told.append(weights)
    return state, told


def on_heard(weights: Weights, responses: Responses) -> FloatArray:
    """Return p of the clients heard: FedMGDA+'s weights are not p, FedAvg tells no p."""
    if weights.mixing is None or weights.mixing[responses.client].sum() == 0:
        return weights.weight
    mixing = weights.mixing[responses.client]
    return np.asarray(mixing / mixing.sum())


def assert_on_the_simplex(mixing: FloatArray) -> None:
    assert np.isfinite(mixing).all()
    assert mixing.min() >= 0
    assert mixing.sum() == pytest.approx(1, abs=1e-12)


# --- what all of them promise ------------------------------------------------------------------


@conforming
def test_on_the_simplex(rule: Weighting[Any], heard: int) -> None:
    """p, over all clients and over those heard, is >= 0 and sums to 1 in every round."""
    history = rounds_of(30, heard)
    for weights, responses in zip(play(rule, history)[1], history, strict=True):
        assert_on_the_simplex(on_heard(weights, responses))
        if weights.mixing is not None:
            assert weights.mixing.shape == (SIZE,)
            assert_on_the_simplex(weights.mixing)
        if not isinstance(rule, FedMGDAPlus):
            np.testing.assert_allclose(weights.weight, on_heard(weights, responses), atol=1e-12)


@conforming
def test_finite_for_losses_of_any_size(rule: Weighting[Any], heard: int) -> None:
    """Losses from 1e-12 to 1e6 within a round, all tiny, all huge, and exact zeros."""
    rng = np.random.default_rng(1)
    rounds: list[list[float]] = [
        *(10.0 ** rng.uniform(-12, 6, (10, heard))).tolist(),
        [1e-12] * heard,
        [1e6] * heard,
        [0.0] * heard,
        [1e6, *[1e-12] * (heard - 1)],
        [0.0, *[1e6] * (heard - 1)],
        [1e-12, *[0.0] * (heard - 1)],
    ]
    history = [
        answered(losses, updates=rng.normal(size=(heard, 4)) * scale)
        for losses in rounds
        for scale in (1e-8, 1e8)
    ]
    for weights, responses in zip(play(rule, history)[1], history, strict=True):
        assert np.isfinite(weights.weight).all()
        assert weights.mixing is None or np.isfinite(weights.mixing).all()
        assert_on_the_simplex(on_heard(weights, responses))


@conforming
def test_permutation_equivariant(rule: Weighting[Any], heard: int) -> None:
    """Other names for the same clients give the same weights under those names."""
    history = rounds_of(15, heard, seed=2)
    name = np.random.default_rng(3).permutation(SIZE)

    def renamed(responses: Responses) -> tuple[Responses, IntArray]:
        order = np.argsort(name[responses.client])
        assert responses.gram is not None
        gram = responses.gram()[np.ix_(order, order)]
        return Responses(
            client=name[responses.client][order],
            priority_weight=responses.priority_weight[order],
            num_examples=responses.num_examples[order],
            loss=responses.loss[order],
            accuracy=responses.accuracy[order],
            known=responses.known,
            gram=lambda: gram,
        ), order

    others = [renamed(responses) for responses in history]
    told, told_others = play(rule, history)[1], play(rule, [o[0] for o in others])[1]
    for weights, other, (_, order) in zip(told, told_others, others, strict=True):
        np.testing.assert_allclose(other.weight, weights.weight[order], atol=1e-8)
        if weights.mixing is not None:
            assert other.mixing is not None
            np.testing.assert_allclose(other.mixing[name], weights.mixing, atol=1e-8)


def saved_and_restored(state: Any) -> Any:
    """Return a state after a round trip through a file of plain arrays."""
    if state is None:
        return None
    buffer = io.BytesIO()
    parts = {f.name: getattr(state, f.name) for f in fields(state)} if is_dataclass(state) else {}
    np.savez(buffer, allow_pickle=False, **(parts or {"state": state}))
    buffer.seek(0)
    read = dict(np.load(buffer, allow_pickle=False).items())
    if not parts:
        return read["state"]
    return type(state)(**{k: v.item() if v.ndim == 0 else v for k, v in read.items()})


@conforming
def test_saved_and_restored_decides_the_same(rule: Weighting[Any], heard: int) -> None:
    """A state is plain arrays: from a file it gives the same next decisions, to the last bit."""
    history = rounds_of(12, heard, seed=4)
    state, _ = play(rule, history[:7])
    expected = play(rule, history[7:], state)[1]
    got = play(rule, history[7:], saved_and_restored(state))[1]
    for one, other in zip(expected, got, strict=True):
        assert one.weight.tolist() == other.weight.tolist()


@conforming
def test_no_look_into_the_future(rule: Weighting[Any], heard: int) -> None:
    """Decisions are the same however the run goes on, and l_t is of a p without round t."""
    history, other = rounds_of(12, heard, seed=5), rounds_of(12, heard, seed=6)
    told = play(rule, history)[1]
    for cut in (1, 6, 11):
        changed = play(rule, [*history[:cut], *other[cut:]])[1]
        for one, same in zip(told[:cut], changed[:cut], strict=True):
            assert one.weight.tolist() == same.weight.tolist()
            assert one.decision_loss == same.decision_loss
        assert told[cut].weight.tolist() != changed[cut].weight.tolist()


@conforming
def test_the_state_passed_in_is_not_changed(rule: Weighting[Any], heard: int) -> None:
    """A rule is a function: the same state twice gives the same decision twice."""
    history = rounds_of(6, heard, seed=7)
    state, _ = play(rule, history[:5])
    first, second = (play(rule, history[5:], state)[1][0] for _ in range(2))
    assert first.weight.tolist() == second.weight.tolist()


@conforming
def test_nobody_heard(rule: Weighting[Any], heard: int) -> None:
    """A round without answers has no weights, and the next is as if it had not been."""
    history = rounds_of(4, heard, seed=8)
    state, _ = play(rule, history[:3])
    call = Call(tuple(range(heard)))
    nobody = answered([], updates=np.zeros((0, 12)))
    after, weights = rule.weigh(state, call, nobody, np.zeros(0))
    assert weights.weight.shape == (0,)
    refused, weights = rule.weigh(after, call, history[3], np.zeros(heard))
    assert weights.weight.tolist() == [0.0] * heard
    expected, got = (play(rule, history[3:], s)[1][0] for s in (state, refused))
    assert expected.weight.tolist() == got.weight.tolist()


@conforming
def test_who_is_not_admitted_does_not_count(rule: Weighting[Any], heard: int) -> None:
    """A share of 0 has weight 0 and leaves the weights of the others a distribution."""
    history = rounds_of(1, heard, seed=9)
    share = np.ones(heard)
    share[1] = 0.0
    call = Call(tuple(history[0].client.tolist()))
    _, weights = rule.weigh(rule.init(population()), call, history[0], share)
    assert weights.weight[1] == 0
    if not isinstance(rule, FedMGDAPlus):
        assert_on_the_simplex(weights.weight)


# --- the language of exponentiated gradients --------------------------------------------------

LOSS = [0.5, 1.0, 2.0, 1.9]
DATA = [10.0, 20.0, 30.0, 40.0]


def decide(rule: Weighting[Any], responses: Responses, size: int = 4) -> Weights:
    state = rule.init(population(size))
    share = np.ones(len(responses.client))
    return rule.weigh(state, Call(tuple(responses.client.tolist())), responses, share)[1]


def mixing_of(weights: Weights) -> FloatArray:
    assert weights.mixing is not None
    return weights.mixing


@pytest.mark.parametrize(
    ("rule", "weight"),
    [
        (QFedAvg(q=2.0), lambda f: f**2),
        (QFedAvg(q=0.1), lambda f: f**0.1),
        (TERM(tilt=1.5), lambda f: np.exp(1.5 * f)),
        (TERM(tilt=-1.0), lambda f: np.exp(-f)),
        (PropFair(bound=3.0), lambda f: 1 / (3 - f)),
        (PropFair(bound=2.0, guard=0.15), lambda f: 1 / np.array([1.5, 1.0, 0.15, 0.15])),
    ],
)
def test_formulas(rule: Weighting[Any], weight: Callable[[FloatArray], FloatArray]) -> None:
    """c ~ w F^q, w exp(lambda F), w / (M - F): each is w exp(r) of the response that it tells."""
    weights = decide(rule, answered(LOSS, data=DATA))
    expected = np.array(DATA) * weight(np.array(LOSS))
    np.testing.assert_allclose(weights.weight, expected / expected.sum(), rtol=1e-13)
    assert weights.response is not None
    np.testing.assert_allclose(
        exponentiated_gradient(np.array(DATA), weights.response), weights.weight, rtol=1e-13
    )


@pytest.mark.parametrize(
    "rule", [QFedAvg(q=0.0), TERM(tilt=0.0), PropFair(bound=1e12), QFedAvg(q=0.0, lipschitz=3.0)]
)
def test_limits_are_fedavg(rule: Weighting[Any]) -> None:
    """q = 0, lambda = 0 and M to infinity weigh by data alone."""
    responses = answered(LOSS, data=DATA, updates=np.random.default_rng(0).normal(size=(4, 3)))
    np.testing.assert_allclose(
        decide(rule, responses).weight, decide(DataFraction(), responses).weight, rtol=1e-10
    )


@pytest.mark.parametrize("rule", [QFedAvg(q=500.0), TERM(tilt=500.0), AFL(step_size=500.0)])
def test_limits_are_the_worst_client(rule: Weighting[Any]) -> None:
    """q, lambda and gamma to infinity look at the largest loss only."""
    np.testing.assert_allclose(
        decide(rule, answered(LOSS, data=DATA)).weight, [0, 0, 1, 0], atol=1e-10
    )


def test_q_fedavg_without_losses_left() -> None:
    """All losses 0 weigh by data; one that is not has all the weight."""
    assert decide(QFedAvg(), answered([0.0] * 2, data=[1.0, 3.0])).weight.tolist() == [0.25, 0.75]
    assert decide(QFedAvg(), answered([0.0, 1e-12, 0.0])).weight.tolist() == [0, 1, 0]


def test_propfair_near_its_bound() -> None:
    """A loss at or above M has the weight of M - epsilon, the largest: never one below 0."""
    weights = decide(PropFair(bound=2.0), answered([1.0, 1.8, 2.0, 50.0])).weight
    np.testing.assert_allclose(weights, np.array([1, 5, 5, 5]) / 16)


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 2.5])
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_q_fedavg_with_h_is_flowers(q: float, rate: float) -> None:
    """With equal amounts of data the step is that of Flower's QFedAvg, L = 1 / learning rate."""
    rng = np.random.default_rng(1)
    model, updates = rng.normal(size=6), rng.normal(size=(4, 6))
    deltas, hs = zip(
        *(
            compute_delta_and_h([model.copy()], [model + u], q, 1 / rate, loss)
            for u, loss in zip(updates, LOSS, strict=True)
        ),
        strict=True,
    )
    expected = model - sum(d[0] for d in deltas) / sum(hs)
    weights = decide(QFedAvg(q=q, lipschitz=1 / rate), answered(LOSS, updates=updates))
    np.testing.assert_allclose(model + weights.weight @ updates, expected, rtol=1e-8)
    assert weights.weight.sum() == pytest.approx(1) if q == 0 else weights.weight.sum() < 1


def test_q_fedavg_with_h_and_data() -> None:
    """c_i = w_i F_i^q / sum_j w_j (q F_j^(q-1) L |Delta_j|^2 + F_j^q), w the data's fractions."""
    updates = np.random.default_rng(2).normal(size=(4, 5))
    loss, w, q, lipschitz = np.array(LOSS), np.array(DATA) / 100, 1.5, 4.0
    h = q * loss ** (q - 1) * lipschitz * (updates**2).sum(axis=1) + loss**q
    weights = decide(QFedAvg(q, lipschitz), answered(LOSS, data=DATA, updates=updates))
    np.testing.assert_allclose(weights.weight, w * loss**q / (w @ h), rtol=1e-13)
    np.testing.assert_allclose(
        mixing_of(weights), decide(QFedAvg(q), answered(LOSS, data=DATA)).weight, rtol=1e-13
    )


@pytest.mark.parametrize("rule", [QFedAvg(1.0, 4.0), FedMGDAPlus(0.2)])
def test_rules_that_look_at_updates_tell_their_norms(rule: Weighting[Any]) -> None:
    """|Delta_i| is on record, so that a weight that depends on it can be recomputed."""
    updates = np.random.default_rng(5).normal(size=(4, 5))
    norms = decide(rule, answered(LOSS, updates=updates)).update_norm
    assert norms is not None
    np.testing.assert_allclose(norms, np.linalg.norm(updates, axis=1), rtol=1e-12)
    assert decide(TERM(), answered(LOSS, updates=updates)).update_norm is None


def test_q_fedavg_with_h_at_extreme_losses() -> None:
    """Finite, and at most 1 in sum, with losses of 0 and of 1e6 in one round."""
    updates = np.random.default_rng(3).normal(size=(4, 5))
    for q in (0.1, 1.0, 60.0):
        weights = decide(QFedAvg(q, 10.0), answered([0.0, 1e-12, 1.0, 1e6], updates=updates))
        assert np.isfinite(weights.weight).all()
        assert 0 <= weights.weight.sum() <= 1


# --- AFL ----------------------------------------------------------------------------------------


def test_afl_by_hand() -> None:
    """p = (1/2, 1/2) + 0.1 (1, 3) is projected back: the mean is taken off."""
    state, told = AFL(0.1).init(population(2)), []
    for _ in range(2):
        state, weights = AFL(0.1).weigh(state, Call((0, 1)), answered([1.0, 3.0]), np.ones(2))
        told.append(weights.weight)
    np.testing.assert_allclose(told, [[0.4, 0.6], [0.3, 0.7]])


def test_afl_moves_only_the_mass_of_those_heard() -> None:
    """Who is not heard keeps p; the others share what they had together."""
    rule = AFL(0.1)
    state = rule.init(population(4))
    state, weights = rule.weigh(
        state, Call((1, 3)), answered([1.0, 3.0], client=[1, 3]), np.ones(2)
    )
    np.testing.assert_allclose(state.mixing, [0.25, 0.15, 0.25, 0.35])
    np.testing.assert_allclose(weights.weight, [0.3, 0.7])


def test_afl_with_no_mass_left_among_those_heard() -> None:
    """Their p stays 0, and the worst off of them is followed, as with hardly any mass."""
    rule = AFL(1.0)
    state = rule.init(population(3))
    state, _ = rule.weigh(state, Call((0, 1, 2)), answered([0.0, 0.0, 100.0]), np.ones(3))
    assert state.mixing.tolist() == [0, 0, 1]
    state, weights = rule.weigh(state, Call((0, 1)), answered([5.0, 1.0]), np.ones(2))
    assert weights.weight.tolist() == [1, 0]
    assert state.mixing.tolist() == [0, 0, 1]
    hardly = AFLState(state.client, np.array([1e-12, 1e-12, 1 - 2e-12]))
    _, close = rule.weigh(hardly, Call((0, 1)), answered([5.0, 1.0]), np.ones(2))
    assert close.weight.tolist() == [1, 0]


# --- FedMGDA+ ----------------------------------------------------------------------------------


def test_fedmgda_for_two_clients() -> None:
    """The shortest mixture of two directions is their mean, within epsilon of the data's."""
    updates = np.array([[3.0, 0.0], [0.0, 0.5]])
    for deviation, expected in ((1.0, 0.5), (0.1, 0.3), (0.0, 0.2)):
        weights = decide(
            FedMGDAPlus(deviation), answered([1.0, 1.0], data=[20.0, 80.0], updates=updates), 2
        )
        np.testing.assert_allclose(mixing_of(weights), [expected, 1 - expected], atol=1e-8)
        np.testing.assert_allclose(weights.weight, [expected / 3, (1 - expected) / 0.5], atol=1e-7)


def test_fedmgda_harms_nobody() -> None:
    """With epsilon = 1 the step has a product >= 0 with every client's own update."""
    rng = np.random.default_rng(4)
    for _ in range(10):
        updates = rng.normal(size=(6, 8)) * rng.lognormal(size=(6, 1)) + 0.2
        weights = decide(FedMGDAPlus(), answered([1.0] * 6, updates=updates), 6)
        step = weights.weight @ updates
        directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        assert np.all(directions @ step >= step @ step - 1e-9)
        assert np.linalg.norm(step) <= 1


def test_fedmgda_stays_in_its_box() -> None:
    """|p_i - w_i| <= epsilon for every client, also where the program is singular."""
    rng = np.random.default_rng(5)
    updates = rng.normal(size=(8, 2))
    data = rng.integers(1, 50, 8).astype(np.float64)
    for deviation in (0.02, 0.1, 0.5):
        weights = decide(
            FedMGDAPlus(deviation), answered([1.0] * 8, data=data.tolist(), updates=updates), 8
        )
        assert np.abs(mixing_of(weights) - data / data.sum()).max() <= deviation + 1e-11


def test_fedmgda_with_more_clients_than_dimensions() -> None:
    """p is one of many then, but the step is the same in whatever order the clients come."""
    rng = np.random.default_rng(6)
    updates, order = rng.normal(size=(9, 4)) + 0.3, rng.permutation(9)
    steps = [
        decide(FedMGDAPlus(0.2), answered([1.0] * 9, updates=own), 9).weight @ own
        for own in (updates, updates[order])
    ]
    np.testing.assert_allclose(steps[0], steps[1], atol=1e-6)


def test_fedmgda_with_an_update_of_length_zero() -> None:
    """It has no direction, moves nothing, and divides nothing by 0."""
    updates = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    weights = decide(FedMGDAPlus(0.1), answered([1.0] * 3, updates=updates), 3)
    assert weights.weight[0] == 0
    assert np.isfinite(weights.weight).all()
    assert_on_the_simplex(mixing_of(weights))


def test_rules_on_updates_need_their_products() -> None:
    """Without inner products of the updates the message says what is missing."""
    with pytest.raises(ValueError, match=r"FedMGDA\+ needs the inner products of the updates"):
        decide(FedMGDAPlus(), answered(LOSS))
    with pytest.raises(ValueError, match="needs the norms of the updates"):
        decide(QFedAvg(lipschitz=1.0), answered(LOSS))


def test_products_are_computed_only_when_asked_for() -> None:
    """Rules on losses alone leave the updates alone."""

    def fail() -> FloatArray:
        raise AssertionError("not needed")

    responses = answered(LOSS)
    responses = Responses(**{**vars(responses), "gram": fail})
    for name, rule in FULL.items():
        if not name.startswith("FedMGDA"):
            decide(rule, responses)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QFedAvg(q=-1.0), r"q must be a number >= 0, got -1\.0"),
        (lambda: QFedAvg(lipschitz=0.0), r"lipschitz must be a number > 0, got 0\.0"),
        (lambda: TERM(tilt=math.inf), "tilt must be a number, got inf"),
        (lambda: PropFair(bound=0.0), r"bound must be a number > 0, got 0\.0"),
        (lambda: PropFair(guard=0.0), r"guard must be a number > 0, got 0\.0"),
        (lambda: AFL(step_size=0.0), r"step_size must be a number > 0, got 0\.0"),
        (lambda: FedMGDAPlus(1.5), r"deviation must be a number >= 0 and <= 1, got 1\.5"),
    ],
)
def test_parameters_out_of_range(make: Callable[[], object], message: str) -> None:
    """A value outside its range is refused with the parameter's name."""
    with pytest.raises(ParameterError, match=message):
        make()
