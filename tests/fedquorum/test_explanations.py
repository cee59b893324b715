"""The explanations of rules' decisions, with the numbers of one small round.

Every rule explains its decisions. A snapshot holds the texts of the rules listed here; a new rule
need not be listed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from fedquorum.registry import ALL_SELECTIONS, ALL_WEIGHTINGS
from fedquorum.rules.participation import PARTICIPATIONS
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection import Sampling
from fedquorum.rules.types import ClientReports, Population
from fedquorum.rules.weighting import AverageAll, Weighting

from tests.builders import build_corrected_weighting, decide_first_round, make_client_updates
from tests.snapshot import Snapshot, join_sections

CONTEXT = RunContext(num_rounds=20, seed=3)
REQUIRED_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "maxfl": {"requirement": 2.0},
    "known_statistics": {"probabilities": {0: 0.5, 1: 0.25}},
}
EXPLAINED_WEIGHTINGS = (
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
    "fedau",
    "empirical",
    "known_statistics",
)
EXPLAINED_SELECTIONS = (
    "epsilon_gate",
    "everyone",
    "after_warmup",
    "priority_only",
    "power_of_choice",
)
UPDATES = np.array([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]])
UPDATES_OF_ROUND = make_client_updates([1.0, 3.0, 2.0], data=[10, 30, 20], updates=UPDATES)


def build_weightings() -> Iterator[tuple[str, Weighting[Any]]]:
    """Yield every weighting by its key, and the average with every correction."""
    for key, rule in ALL_WEIGHTINGS.items():
        yield key, rule.from_options(REQUIRED_OPTIONS.get(key, {}), CONTEXT)
    for key in PARTICIPATIONS:
        yield key, build_corrected_weighting(AverageAll(), key, **REQUIRED_OPTIONS.get(key, {}))


def test_weights(snapshot: Snapshot) -> None:
    """The second of three clients in the first round."""
    texts = {}
    for key, rule in build_weightings():
        made = decide_first_round(rule, UPDATES_OF_ROUND, 3)
        texts[key] = "\n".join(rule.explain(made, 1))
    assert all(texts.values())
    snapshot("audit/weights.txt", join_sections({key: texts[key] for key in EXPLAINED_WEIGHTINGS}))


def test_plans(snapshot: Snapshot) -> None:
    """For clients with and without priority: in any warm-up, of all, and of half afterwards."""
    population = Population.from_size(6, [0, 1, 2])
    reports = ClientReports(
        dict.fromkeys(range(6), 10.0), evaluated_losses=dict.fromkeys(range(6), 1.0)
    )
    warmup = {"warmup_rounds": 2}
    texts = {}
    for key, kind in ALL_SELECTIONS.items():
        rule: Any = kind.from_options(
            warmup if key in ("epsilon_gate", "after_warmup") else {}, CONTEXT
        )
        sampled = replace(rule, sampling=Sampling(0.5, seed=3))
        texts[key] = "\n".join(
            f"round {t + 1}, client {client}: "
            f"{one.explain_selection(t, population, one.plan(t, population, reports), client)}"
            for t, one in ((0, rule), (2, sampled))
            for client in (0, 5)
        )
    snapshot("audit/calls.txt", join_sections({key: texts[key] for key in EXPLAINED_SELECTIONS}))
