"""Combinations of parts from the settings: run, and decided again from their records.

Every single combination is played in ``tests/strategies/test_combinations.py``, from Python. Here
is what settings, clients that train and records add to it.
"""

from itertools import cycle
from pathlib import Path

import pytest

from conf import SettingsError
from conf.compose import compose_words
from conf.rules import OPTIMIZERS
from server_app.report.audit import audit
from tests.server_app.made_runs import real_run
from tests.strategies.test_combinations import ALLOWED, COMBINATIONS, Combination, reason

SMALL = ("rounds=3", "strategy.server_lr=0.05")
COMING_AND_GOING = ("availability=bernoulli", "availability.p=0.7")


def words(selection: str, weighting: str, correction: str, optimizer: str) -> tuple[str, ...]:
    return (
        "strategy=composed",
        f"strategy/selection={selection}",
        f"strategy/weighting={weighting}",
        f"strategy/participation={correction}",
        f"server_optimizer={optimizer}",
        *SMALL,
        *(() if weighting == "aaggff_s" else COMING_AND_GOING),
        *(("strategy.selection.epsilon=1",) if selection == "epsilon_gate" else ()),
    )


PARTS = [*dict.fromkeys(one[:3] for one in ALLOWED)]
RUNS = [
    (*parts, optimizer if (*parts, optimizer) in ALLOWED else "sgd")
    for parts, optimizer in zip(PARTS, cycle(OPTIMIZERS), strict=False)
]
"""Every selection with every weighting and correction, the optimizers in turn."""


def test_every_part_is_run() -> None:
    """No selection with weighting and correction is left out, nor an optimizer with either end."""
    assert [one[:3] for one in RUNS] == PARTS
    for end in (0, 2):
        assert {(r[end], r[3]) for r in RUNS} == {(one[end], one[3]) for one in ALLOWED}


@pytest.mark.parametrize("combination", RUNS, ids="-".join)
def test_three_rounds_of_every_combination_follow_from_their_records(
    tmp_path: Path, combination: Combination
) -> None:
    """On SYNTH, with clients that come and go: the run completes and the audit finds nothing."""
    found = audit(real_run(tmp_path / "run", *words(*combination)).directory)
    assert [str(problem) for problem in found.problems] == []
    assert (found.run.status, found.rounds) == ("completed", 3)


REFUSED = {why: one for one in COMBINATIONS if (why := reason(*one)) is not None}
"""A combination for every reason."""


@pytest.mark.parametrize("why", REFUSED)
def test_what_makes_no_sense_is_refused_before_any_work(why: str) -> None:
    """One line with the setting's name and the reason, from the settings alone."""
    with pytest.raises(SettingsError) as caught:
        compose_words(words(*REFUSED[why]))
    assert str(caught.value).removeprefix("strategy.").startswith(why)
    assert str(caught.value).startswith(("strategy.", "server_optimizer "))
    assert "\n" not in str(caught.value)
