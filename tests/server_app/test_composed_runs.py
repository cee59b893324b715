"""Run combinations of parts from settings, and audit their records.

``tests/fedquorum/test_combinations.py`` tests every combination from Python. These tests add
settings, clients that train, and records.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from fedquorum.audit.check import audit_run
from fedquorum.errors import ParameterError
from fedquorum.registry import ALL_SELECTIONS, ALL_WEIGHTINGS, COMPOSED, NONE, build_rules
from fedquorum.rules.participation import PARTICIPATIONS
from fedquorum.rules.rule import RunContext
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS

from conf import SettingsError
from conf.compose import compose_overrides
from tests.cases import sample_cases
from tests.server_app.made_runs import make_real_run

Combination = tuple[str, str, str, str]

COMBINATIONS = [
    *product(ALL_SELECTIONS, ALL_WEIGHTINGS, (NONE, *PARTICIPATIONS), SERVER_OPTIMIZERS)
]
SMALL = ("rounds=3", "strategy.server_lr=0.05")
INTERMITTENT = ("availability=bernoulli", "availability.p=0.7")


def find_refusal(combination: Combination) -> ParameterError | None:
    """Return the library's error for a combination of rules; None if it is allowed."""
    selection, weighting, participation, optimizer = combination
    parts = {"selection": selection, "weighting": weighting, "participation": participation}
    options = {part: {"name": name} for part, name in parts.items()}
    try:
        build_rules({"name": COMPOSED, **options}, {"name": optimizer}, RunContext(num_rounds=3))
    except ParameterError as error:
        return error
    return None


REFUSALS = {one: find_refusal(one) for one in COMBINATIONS}
ALLOWED = [one for one, error in REFUSALS.items() if error is None]
PARTS = [*dict.fromkeys(one[:3] for one in ALLOWED)]


def add_optimizers() -> Iterator[Combination]:
    """Yield all other parts, each with an optimizer that is new to its selection or correction."""
    seen: set[tuple[str, str]] = set()
    for parts in PARTS:
        allowed = [one for one in SERVER_OPTIMIZERS if (*parts, one) in ALLOWED]
        new_pairs = [sum((parts[end], one) not in seen for end in (0, 2)) for one in allowed]
        optimizer = allowed[new_pairs.index(max(new_pairs))]
        seen |= {(parts[0], optimizer), (parts[2], optimizer)}
        yield *parts, optimizer


RUNS = [*add_optimizers()]
"""All combinations of selection, weighting and correction, with optimizers in turn."""
REFUSED = {str(error): one for one, error in REFUSALS.items() if error is not None}
"""One combination for every error message."""


def build_overrides(combination: Combination) -> tuple[str, ...]:
    """Return the overrides of a combination."""
    selection, weighting, participation, optimizer = combination
    everyone = ALL_WEIGHTINGS[weighting]().traits.requires_full_participation
    return (
        "strategy=composed",
        f"strategy/selection={selection}",
        f"strategy/weighting={weighting}",
        f"strategy/participation={participation}",
        f"server_optimizer={optimizer}",
        *SMALL,
        *(() if everyone else INTERMITTENT),
        *(("strategy.selection.epsilon=1",) if ALL_SELECTIONS[selection].traits.has_gate else ()),
        *(
            ("evaluation.requirement=1",)
            if "requirement" in ALL_WEIGHTINGS[weighting].description.required_options
            else ()
        ),
    )


def test_every_part_is_run() -> None:
    """Each optimizer runs with each selection and each correction that allows it."""
    assert len(PARTS) > len(ALL_WEIGHTINGS)
    for end in (0, 2):
        assert {(r[end], r[3]) for r in RUNS} == {(one[end], one[3]) for one in ALLOWED}


@pytest.mark.parametrize("combination", sample_cases(RUNS, 24), ids="-".join)
def test_three_rounds_of_every_combination_pass_the_audit(
    tmp_path: Path, combination: Combination
) -> None:
    """The run on SYNTH with intermittent clients completes, and the audit finds no mismatch."""
    audit = audit_run(make_real_run(tmp_path / "run", *build_overrides(combination)).directory)
    assert [str(problem) for problem in audit.mismatches] == []
    assert (audit.run.status, audit.num_rounds) == ("completed", 3)


@pytest.mark.parametrize("message", REFUSED)
def test_a_meaningless_combination_is_refused_by_its_settings(message: str) -> None:
    """The error is one line with the setting's name and the reason, without any data."""
    with pytest.raises(SettingsError) as caught:
        compose_overrides(build_overrides(REFUSED[message]))
    assert str(caught.value).removeprefix("strategy/") == message
    assert str(caught.value).startswith(("strategy/", "server_optimizer "))
    assert "\n" not in str(caught.value)
