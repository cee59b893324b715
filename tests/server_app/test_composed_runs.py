"""Every combination of parts, run from settings and decided again from its records."""

from pathlib import Path

import pytest

from conf import SettingsError
from conf.compose import PARTS, compose_words, options
from server_app.report.audit import audit
from tests.server_app.made_runs import real_run

SELECTIONS, WEIGHTINGS, CORRECTIONS = map(options, PARTS)
OPTIMIZERS = options("server_optimizer")
SMALL = ("rounds=3", "strategy.server_lr=0.05", "availability=bernoulli", "availability.p=0.7")
ALWAYS = ("rounds=3", "strategy.server_lr=0.05")

UNCORRECTED = {"average_participating", "aaggff_s", "qfedavg", "term", "propfair", "fedmgda"}
"""Weightings that have no weights over a fixed population."""


def reason(selection: str, weighting: str, correction: str, optimizer: str) -> str | None:
    """Return what a refused combination is told, None where it is allowed."""
    if correction != "none" and weighting in UNCORRECTED:
        return f"strategy.participation must be none with weighting={weighting} "
    if weighting == "aaggff_s" and selection != "everyone":
        return "strategy.selection must be everyone with weighting=aaggff_s "
    if weighting == "fedmgda" and selection == "epsilon_gate":
        return "strategy.selection must not be epsilon_gate with weighting=fedmgda "
    if weighting == "fedmgda" and optimizer != "sgd":
        return "server_optimizer must be sgd with weighting=fedmgda "
    return None


def words(selection: str, weighting: str, correction: str, optimizer: str) -> tuple[str, ...]:
    own = ALWAYS if weighting == "aaggff_s" else SMALL
    gate = ("strategy.selection.epsilon=1",) if selection == "epsilon_gate" else ()
    return (
        "strategy=composed",
        f"strategy/selection={selection}",
        f"strategy/weighting={weighting}",
        f"strategy/participation={correction}",
        f"server_optimizer={optimizer}",
        *own,
        *gate,
    )


COMBINATIONS = [
    (selection, weighting, correction, optimizer)
    for selection in SELECTIONS
    for weighting in WEIGHTINGS
    for correction in CORRECTIONS
    for optimizer in OPTIMIZERS
]
REFUSED = [one for one in COMBINATIONS if reason(*one) is not None]
# Every (selection, weighting, correction), the optimizers in turn and each with every single part:
# the optimizer sees nothing of them but the sum.
ALLOWED = sorted({one[:3] for one in COMBINATIONS if reason(*one) is None})
RUNS = [
    (*one, optimizer)
    for place, one in enumerate(ALLOWED)
    for turn, optimizer in enumerate(OPTIMIZERS)
    if reason(*one, optimizer) is None
    and (
        turn == place % len(OPTIMIZERS)
        or one[1] == "fedmgda"
        or one[::2] == ("everyone", "none")
        or one[:2] == ("epsilon_gate", "data_fraction")
        or one[1:] == ("data_fraction", "none")
    )
]


def test_every_pair_of_parts_is_run() -> None:
    """No two parts that go together are left out, nor any selection with weighting and omega."""
    assert {one[:3] for one in RUNS} == set(ALLOWED)
    for first, second in ((0, 3), (1, 3), (2, 3)):
        pairs = {(one[first], one[second]) for one in RUNS}
        allowed = {(o[first], o[second]) for o in COMBINATIONS if reason(*o) is None}
        assert pairs == allowed


@pytest.mark.parametrize("combination", RUNS, ids="-".join)
def test_three_rounds_of_every_combination_follow_from_their_records(
    tmp_path: Path, combination: tuple[str, str, str, str]
) -> None:
    """On SYNTH, with clients that come and go: the run completes and the audit finds nothing."""
    found = audit(real_run(tmp_path / "run", *words(*combination)).directory)
    assert [str(problem) for problem in found.problems] == []
    assert (found.run.status, found.rounds) == ("completed", 3)


@pytest.mark.parametrize("part", range(10))
def test_what_makes_no_sense_is_refused_before_any_work(part: int) -> None:
    """One line with the setting and the reason, from the settings alone."""
    for combination in REFUSED[part::10]:
        with pytest.raises(SettingsError) as caught:
            compose_words(words(*combination))
        assert str(caught.value).startswith(str(reason(*combination)))
        assert "\n" not in str(caught.value)
