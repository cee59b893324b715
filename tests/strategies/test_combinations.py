"""Every selection x weighting x participation x server optimizer: what is written of it is so.

Each allowed combination plays three rounds. In each of them the weights are its factor over its
divisor, both computed here from the words that the rules say of themselves, and the model moves
as an independent implementation of the optimizer moves it by their sum.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from conf.compose import PARTS, options
from conf.rules import OPTIMIZERS, WEIGHTINGS
from server_app.in_process import InProcessGrid
from strategies import ComposedStrategy
from strategies.codec import ClientReply, NamedArrays, Status, decode_arrays, encode_arrays
from strategies.composition import check_composition, divisor
from strategies.parameters import ParameterError
from strategies.selection import EpsilonGate, Everyone, PriorityOnly, Selection
from strategies.types import FloatArray, Population
from strategies.weighting import FedAU, KnownRates, Weighting
from tests.reference import server_optimizers as reference
from tests.strategies.test_adapter import scripted_app

ROOT = Path(__file__).parents[2]

# Clients 0 and 1 have priority. Client 4 is never aligned, and says so; 3 no longer is in round 3.
POPULATION = Population.of(5, [0, 1])
DATA = np.array([10.0, 10.0, 20.0, 40.0, 100.0])
LOSS = np.array([1.0, 1.0, 0.9, 1.1, 2.5])
LOSS_OF_3_IN_ROUND_3 = 0.1
PRESENT = ({0, 2, 3, 4}, {0, 1, 4}, {1, 2, 3})
ALIGNED = ({2, 3}, {2, 3}, {2})  # last known to be, once the round's replies are in
DELTA = np.random.default_rng(3).normal(size=(3, 5, 2))  # by round and client
MODEL: NamedArrays = {"w": np.array([0.5, -1.0])}
INVERSE = {0: 2.0, 1: 1.5, 2: 4.0, 3: 1.0, 4: 3.0}
ETA = 0.1

SELECTIONS: Mapping[str, Selection] = {
    "epsilon_gate": EpsilonGate(num_rounds=3, epsilon=0.5, warmup_fraction=0.0),
    "everyone": Everyone(),
    "priority_only": PriorityOnly(),
}
CORRECTIONS: Mapping[str, Callable[[Weighting[Any]], Weighting[Any]]] = {
    "none": lambda base: base,
    "fedau": lambda base: FedAU(base=base),
    "known_statistics": lambda base: KnownRates(INVERSE, base),
}
# FedAU by hand: client 1, away in round 1 and back in round 2, has had one interval of 2 rounds.
OMEGA: Mapping[str, tuple[Mapping[int, float], ...]] = {
    "none": ({}, {}, {}),
    "fedau": ({}, {}, {1: 2.0}),
    "known_statistics": (INVERSE, INVERSE, INVERSE),
}

WEIGHS_A_ROUND = {"qfedavg", "term", "propfair"}
"""Weightings by the losses of a round."""
NOT_CORRECTED = WEIGHS_A_ROUND | {"average_participating", "aaggff_s", "fedmgda"}
"""Weightings that have no weights over a fixed population."""

Combination = tuple[str, str, str, str]


def reason(selection: str, weighting: str, correction: str, optimizer: str) -> str | None:
    """Return how the reason begins why a combination is refused, None where it is allowed."""
    if correction != "none" and weighting in NOT_CORRECTED:
        return f"participation must be none with weighting={weighting} ("
    if weighting == "aaggff_s" and selection != "everyone":
        return "selection must be everyone with weighting=aaggff_s ("
    if weighting == "fedmgda" and selection == "epsilon_gate":
        return "selection must not be epsilon_gate with weighting=fedmgda ("
    if weighting == "fedmgda" and optimizer != "sgd":
        return "server_optimizer must be sgd with weighting=fedmgda ("
    return None


COMBINATIONS: list[Combination] = [*product(SELECTIONS, WEIGHTINGS, CORRECTIONS, OPTIMIZERS)]
ALLOWED = [one for one in COMBINATIONS if reason(*one) is None]
REFUSED = [one for one in COMBINATIONS if reason(*one) is not None]


def test_these_are_all_that_the_settings_offer() -> None:
    """No part that can be chosen by name is left out, nor any of their combinations."""
    assert [sorted(SELECTIONS), sorted(WEIGHTINGS), sorted(CORRECTIONS)] == [*map(options, PARTS)]
    assert sorted(OPTIMIZERS) == options("server_optimizer")
    assert len(ALLOWED) + len(REFUSED) == math.prod(
        map(len, (SELECTIONS, WEIGHTINGS, CORRECTIONS, OPTIMIZERS))
    )


def parts(selection: str, weighting: str, correction: str) -> tuple[Selection, Weighting[Any]]:
    return SELECTIONS[selection], CORRECTIONS[correction](WEIGHTINGS[weighting]())


def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
    """Train as the script says: away, silent by the client's half of the gate, or moved."""
    turn = config["server-round"] - 1
    if client not in PRESENT[turn] and not config.get("everybody"):
        return ClientReply(client, Status.UNAVAILABLE)
    loss = losses(turn)[client]
    if "epsilon" in config and client > 1 and loss > config["global-loss"] + config["epsilon"]:
        return ClientReply(client, Status.SILENT)
    metrics = {"num-examples": DATA[client], "loss": loss, "accuracy": 0.5}
    return ClientReply(client, Status.DONE, metrics, {"w": arrays["w"] + DELTA[turn, client]})


def losses(turn: int) -> FloatArray:
    return np.array([*LOSS[:3], LOSS_OF_3_IN_ROUND_3 if turn == 2 else LOSS[3], LOSS[4]])


def are(clients: Iterable[int]) -> FloatArray:
    """Return 1 for these clients and 0 for the others, shape (5,)."""
    return np.isin(np.arange(5), [*clients]).astype(np.float64)


def weights_by_words(combination: Combination, turn: int, mixing: FloatArray | None) -> FloatArray:
    """Return c_k = factor / divisor of all clients, shape (5,), as the rules' words say it.

    What stands in the words by a symbol: D_k, F_k, w_k, Delta_k and omega_k are the script's, p_k
    is the mixing vector that the round decided.
    """
    selected, name, correction, _ = combination
    selection, weighting = parts(selected, name, correction)
    whom = {
        "all known clients": are(range(5)),
        "the known priority clients": are({0, 1}),
        "the priority clients and the others last known to be aligned": are({0, 1} | ALIGNED[turn]),
    }
    there = whom[selection.covers] * (1.0 if name == "aaggff_s" else are(PRESENT[turn]))
    whom["the clients admitted in the round"] = there
    loss, omega = losses(turn), np.array([OMEGA[correction][turn].get(k, 1.0) for k in range(5)])
    p = np.zeros(5) if mixing is None else mixing
    factors = {
        "1": np.ones(5),
        "D_k": DATA,
        "p_k": p,
        "p_k / |Delta_k|": p / np.linalg.norm(DELTA[turn], axis=1),
        "w_k F_k^q": DATA * loss,
        "w_k exp(lambda F_k)": DATA * np.exp(loss),
        "w_k / max(M - F_k, epsilon)": DATA / np.maximum(3.0 - loss, 0.2),
    }
    words = re.sub(r"^(omega_k|\(1 / p_k\)) ?", "", weighting.factor) or "1"
    assert (words != weighting.factor) == (correction != "none")
    amounts = {
        "the number of": np.ones(5),
        "the training data of": DATA,
        "the sum of p over": p,
        "the sum of the same over": factors[words],
    }
    found = re.fullmatch(
        f"({'|'.join(amounts)}) ({'|'.join(whom)})(, which is 1)?", divisor(selection, weighting)
    )
    assert found is not None
    total = float((amounts[found[1]] * whom[found[2]]).sum())
    if found[3]:
        assert total == pytest.approx(1.0)
    return np.asarray(there * omega * factors[words] / total)


def moved_by(optimizer: str, sums: list[FloatArray]) -> list[list[float]]:
    """Return both weights of the model after every round, by the optimizer's reference."""
    paths = []
    for start, deltas in zip(MODEL["w"].tolist(), np.transpose(sums).tolist(), strict=True):
        if optimizer in ("sgd", "momentum"):
            x, velocity, path = start, 0.0, []
            for delta in deltas:
                velocity = (0.9 if optimizer == "momentum" else 0.0) * velocity + delta
                x += ETA * velocity
                path.append(x)
        else:
            beta1 = 0.0 if optimizer == "adagrad" else 0.9
            path = reference.adaptive(
                optimizer, deltas, x=start, eta=ETA, beta1=beta1, beta2=0.99, tau=1e-3
            )
        paths.append(path)
    return np.transpose(paths).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("combination", ALLOWED, ids="-".join)
def test_three_rounds_of_every_combination(combination: Combination) -> None:
    """c_k is what the words of the rules say, and the model moves by sum_k c_k Delta_k."""
    selection, weighting, correction, optimizer = combination
    rules = parts(selection, weighting, correction)
    strategy = ComposedStrategy(
        POPULATION,
        selection=rules[0],
        weighting=rules[1],
        server_optimizer=OPTIMIZERS[optimizer](ETA),
    )
    grid = InProcessGrid(scripted_app(5, fit), {}, 5)
    arrays, config = encode_arrays(MODEL), ConfigRecord({"everybody": weighting == "aaggff_s"})
    sums, path = [], []
    for turn in range(3):
        messages = strategy.configure_train(turn + 1, arrays, config, grid)
        moved, _ = strategy.aggregate_train(turn + 1, grid.send_and_receive(messages))
        assert moved is not None
        arrays = moved
        report = strategy.train_report
        weight = np.zeros(5)
        weight[[d.client for d in report.decisions]] = [d.weight for d in report.decisions]
        expected = weights_by_words(combination, turn, report.mixing)
        np.testing.assert_allclose(weight, expected, rtol=1e-9)
        sums.append(weight @ DELTA[turn])
        path.append(decode_arrays(moved)["w"])
    np.testing.assert_allclose(path, moved_by(optimizer, sums), rtol=1e-9)


@pytest.mark.parametrize("combination", REFUSED, ids="-".join)
def test_every_other_combination_is_refused_with_the_reason(combination: Combination) -> None:
    """Before any work, in one line: the part, what goes with it, and why."""
    selection, weighting, correction, optimizer = combination
    with pytest.raises(ParameterError) as caught:
        check_composition(*parts(selection, weighting, correction), OPTIMIZERS[optimizer](ETA))
    assert str(caught.value).startswith(str(reason(*combination)))
    assert "\n" not in str(caught.value)


def divisors() -> list[str]:
    """Return the lines of the tables in docs/composition.md, as the rules say them."""
    lines = []
    for name, make in WEIGHTINGS.items():
        own, over = make(), "the fixed population"
        covers = "the clients admitted in the round" if not own.fixed_divisor else over
        cells = [f"`{name}`", own.factor, own.divisor.format(whom=covers)]
        try:
            cells.append(FedAU(base=own).divisor.format(whom=over))
        except ParameterError as error:
            why = re.search(r"\((.+)\)$", str(error))
            assert why is not None
            cells.append(f"refused: {why[1]}")
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    lines += [f"| `{name}` | {rule.covers} |" for name, rule in SELECTIONS.items()]
    return lines


def test_the_divisors_in_the_docs_are_those_of_the_rules() -> None:
    """The tables of docs/composition.md have one line for each weighting and each selection."""
    text = (ROOT / "docs" / "composition.md").read_text()
    assert re.findall(r"^\| `.*$", text, re.MULTILINE) == divisors()


def test_a_divisor_that_is_fixed_does_not_depend_on_who_is_there() -> None:
    """In words: a correction never divides by the clients of the round."""
    for selection, weighting, correction in {one[:3] for one in ALLOWED}:
        words = divisor(*parts(selection, weighting, correction))
        fixed = correction != "none" or weighting == "average_all"
        assert ("in the round" in words) != fixed
