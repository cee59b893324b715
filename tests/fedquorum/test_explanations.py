"""What rules say of a decision, in words and with the numbers of one small round.

Every rule says something. The words of those listed here are kept; a new rule need not be listed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from fedquorum.named import ALL_SELECTIONS, ALL_WEIGHTINGS
from fedquorum.participation import PARTICIPATIONS
from fedquorum.rule import RunFacts
from fedquorum.selection import Alone, Everyone, Sampling
from fedquorum.types import Population, Told
from fedquorum.weighting import AverageAll, Weighting

from tests.builders import corrected, decided, responses
from tests.snapshot import Snapshot, in_sections

FACTS = RunFacts(num_rounds=20, seed=3)
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "maxfl": {"requirement": 2.0},
    "known_statistics": {"probabilities": {0: 0.5, 1: 0.25}},
}
WEIGHTS_KEPT = (
    "data_fraction",
    "average_participating",
    "average_all",
    "fedawe",
    "aaggff_s",
    "aaggff_d",
    "qfedavg",
    "term",
    "propfair",
    "afl",
    "fedmgda",
    "fedgp",
    "maxfl",
    "no_weight",
    "fedau",
    "empirical",
    "known_statistics",
)
CALLS_KEPT = (
    "epsilon_gate",
    "everyone",
    "after_warmup",
    "priority_only",
    "power_of_choice",
    "alone",
)
UPDATES = np.array([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]])
GIVEN = responses([1.0, 3.0, 2.0], data=[10, 30, 20], updates=UPDATES)


def weightings() -> Iterator[tuple[str, Weighting[Any]]]:
    """Yield every weighting by its key, and the average with every correction."""
    for key, rule in ALL_WEIGHTINGS.items():
        yield key, rule.of(NEEDED.get(key, {}), FACTS)
    for key in PARTICIPATIONS:
        yield key, corrected(AverageAll(), key, **NEEDED.get(key, {}))


def test_weights(snapshot: Snapshot) -> None:
    """The second of three clients in the first round."""
    told = {}
    for key, rule in weightings():
        made = decided(rule, GIVEN, 3, Everyone() if rule.aggregates else Alone())
        told[key] = "\n".join(rule.explain(made, 1))
    assert all(told.values())
    snapshot("audit/weights.txt", in_sections({key: told[key] for key in WEIGHTS_KEPT}))


def test_calls(snapshot: Snapshot) -> None:
    """With and without priority: in warm-up where there is one, of all, and of half afterwards."""
    population = Population.of(6, [0, 1, 2])
    heard = Told(dict.fromkeys(range(6), 10.0), measured=dict.fromkeys(range(6), 1.0))
    warmup = {"warmup_rounds": 2}
    told = {}
    for key, kind in ALL_SELECTIONS.items():
        rule: Any = kind.of(warmup if key in ("epsilon_gate", "after_warmup") else {}, FACTS)
        drawn = replace(rule, sampling=Sampling(0.5, seed=3))
        told[key] = "\n".join(
            f"round {t + 1}, client {client}: "
            f"{one.explain_call(t, population, one.call(t, population, heard), client)}"
            for t, one in ((0, rule), (2, drawn))
            for client in (0, 5)
        )
    snapshot("audit/calls.txt", in_sections({key: told[key] for key in CALLS_KEPT}))
