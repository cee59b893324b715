"""What rules say of a decision, in words and with the numbers of one small round.

Every rule says something. The words of those listed here are kept; a new rule need not be listed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from fedquorum.named import ALL_SELECTIONS, ALL_WEIGHTINGS
from fedquorum.participation import PARTICIPATIONS
from fedquorum.rule import RunContext
from fedquorum.selection import AllClients, LocalModelSelection, Sampling
from fedquorum.types import ClientReports, Population
from fedquorum.weighting import AverageAll, Weighting

from tests.builders import build_corrected_weighting, decide_first_round, make_client_updates
from tests.snapshot import Snapshot, join_sections

FACTS = RunContext(num_rounds=20, seed=3)
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
GIVEN = make_client_updates([1.0, 3.0, 2.0], data=[10, 30, 20], updates=UPDATES)


def weightings() -> Iterator[tuple[str, Weighting[Any]]]:
    """Yield every weighting by its key, and the average with every correction."""
    for key, rule in ALL_WEIGHTINGS.items():
        yield key, rule.from_options(NEEDED.get(key, {}), FACTS)
    for key in PARTICIPATIONS:
        yield key, build_corrected_weighting(AverageAll(), key, **NEEDED.get(key, {}))


def test_weights(snapshot: Snapshot) -> None:
    """The second of three clients in the first round."""
    told = {}
    for key, rule in weightings():
        made = decide_first_round(
            rule, GIVEN, 3, AllClients() if rule.aggregates else LocalModelSelection()
        )
        told[key] = "\n".join(rule.explain(made, 1))
    assert all(told.values())
    snapshot("audit/weights.txt", join_sections({key: told[key] for key in WEIGHTS_KEPT}))


def test_calls(snapshot: Snapshot) -> None:
    """With and without priority: in warm-up where there is one, of all, and of half afterwards."""
    population = Population.from_size(6, [0, 1, 2])
    heard = ClientReports(
        dict.fromkeys(range(6), 10.0), evaluated_losses=dict.fromkeys(range(6), 1.0)
    )
    warmup = {"warmup_rounds": 2}
    told = {}
    for key, kind in ALL_SELECTIONS.items():
        rule: Any = kind.from_options(
            warmup if key in ("epsilon_gate", "after_warmup") else {}, FACTS
        )
        drawn = replace(rule, sampling=Sampling(0.5, seed=3))
        told[key] = "\n".join(
            f"round {t + 1}, client {client}: "
            f"{one.explain_call(t, population, one.call(t, population, heard), client)}"
            for t, one in ((0, rule), (2, drawn))
            for client in (0, 5)
        )
    snapshot("audit/calls.txt", join_sections({key: told[key] for key in CALLS_KEPT}))
