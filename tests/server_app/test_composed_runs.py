"""Combinations of parts from the settings: run, and decided again from their records.

Every single combination is played in ``tests/fedquorum/test_combinations.py``, from Python. Here
is what settings, clients that train and records add to it.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from fedquorum.audit.check import audit_run
from fedquorum.errors import ParameterError
from fedquorum.named import ALL_SELECTIONS, ALL_WEIGHTINGS, COMPOSED, NONE, build_rules
from fedquorum.participation import PARTICIPATIONS
from fedquorum.rule import RunContext
from fedquorum.server_optimizer import SERVER_OPTIMIZERS

from conf import SettingsError
from conf.compose import compose_overrides
from tests.cases import sample_cases
from tests.server_app.made_runs import make_real_run

Combination = tuple[str, str, str, str]

COMBINATIONS = [
    *product(ALL_SELECTIONS, ALL_WEIGHTINGS, (NONE, *PARTICIPATIONS), SERVER_OPTIMIZERS)
]
SMALL = ("rounds=3", "strategy.server_lr=0.05")
COMING_AND_GOING = ("availability=bernoulli", "availability.p=0.7")


def refusal(combination: Combination) -> ParameterError | None:
    """Return why the library refuses a combination of rules, None where it takes it."""
    selection, weighting, participation, optimizer = combination
    parts = {"selection": selection, "weighting": weighting, "participation": participation}
    options = {part: {"name": name} for part, name in parts.items()}
    try:
        build_rules({"name": COMPOSED, **options}, {"name": optimizer}, RunContext(num_rounds=3))
    except ParameterError as error:
        return error
    return None


WHY = {one: refusal(one) for one in COMBINATIONS}
ALLOWED = [one for one, why in WHY.items() if why is None]
PARTS = [*dict.fromkeys(one[:3] for one in ALLOWED)]


def with_optimizers() -> Iterator[Combination]:
    """Yield all other parts, each with an optimizer that either end was not yet seen with."""
    seen: set[tuple[str, str]] = set()
    for parts in PARTS:
        allowed = [one for one in SERVER_OPTIMIZERS if (*parts, one) in ALLOWED]
        unseen = [sum((parts[end], one) not in seen for end in (0, 2)) for one in allowed]
        optimizer = allowed[unseen.index(max(unseen))]
        seen |= {(parts[0], optimizer), (parts[2], optimizer)}
        yield *parts, optimizer


RUNS = [*with_optimizers()]
"""Every selection with every weighting and correction, with optimizers in turn."""
REFUSED = {str(why): one for one, why in WHY.items() if why is not None}
"""A combination for every refusal."""


def words(combination: Combination) -> tuple[str, ...]:
    """Return the command line of a combination."""
    selection, weighting, participation, optimizer = combination
    everyone = ALL_WEIGHTINGS[weighting].requires_full_participation
    return (
        "strategy=composed",
        f"strategy/selection={selection}",
        f"strategy/weighting={weighting}",
        f"strategy/participation={participation}",
        f"server_optimizer={optimizer}",
        *SMALL,
        *(() if everyone else COMING_AND_GOING),
        *(("strategy.selection.epsilon=1",) if ALL_SELECTIONS[selection].has_gate else ()),
        *(
            ("evaluation.requirement=1",)
            if "requirement" in ALL_WEIGHTINGS[weighting].required_options
            else ()
        ),
    )


def test_every_part_is_run() -> None:
    """No selection with weighting and correction is left out, nor an optimizer with either end."""
    assert len(PARTS) > len(ALL_WEIGHTINGS)
    for end in (0, 2):
        assert {(r[end], r[3]) for r in RUNS} == {(one[end], one[3]) for one in ALLOWED}


@pytest.mark.parametrize("combination", sample_cases(RUNS, 24), ids="-".join)
def test_three_rounds_of_every_combination_follow_from_their_records(
    tmp_path: Path, combination: Combination
) -> None:
    """On SYNTH, with clients that come and go: the run completes and the audit finds nothing."""
    found = audit_run(make_real_run(tmp_path / "run", *words(combination)).directory)
    assert [str(problem) for problem in found.mismatches] == []
    assert (found.run.status, found.num_rounds) == ("completed", 3)


@pytest.mark.parametrize("why", REFUSED)
def test_what_makes_no_sense_is_refused_before_any_work(why: str) -> None:
    """One line with the setting's name and the reason, from the settings alone."""
    with pytest.raises(SettingsError) as caught:
        compose_overrides(words(REFUSED[why]))
    assert str(caught.value).removeprefix("strategy/") == why
    assert str(caught.value).startswith(("strategy/", "server_optimizer "))
    assert "\n" not in str(caught.value)
