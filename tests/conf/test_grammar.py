"""Tests that syntax errors are explained, with an override that Hydra can read."""

import shlex

import pytest
from fedquorum.errors import SettingsError

from conf.compose import parse_override

PREFIX = "{name} must be a value in Hydra's grammar, got {override!r}: "
QUOTES = "a value with other characters than letters, digits and . _ - / + needs its own quotes"
FUNCTIONS = "bool, choice, float, glob, int, interval, range, shuffle, sort, str, tag"
MISTAKES = {
    "a=[1": "[ is not closed; type 'a=[1]'",
    "a=[[1, 2": "[ is not closed; type 'a=[[1, 2]]'",
    "a={b: [1": "[ is not closed; type 'a={b: [1]}'",
    "seed=range(1,": "( is not closed; type 'seed=range(1)'",
    "a=1]": "] closes nothing; leave it out, or type \"a='1]'\"",
    "a='x": "the quote ' is not closed; type \"a='x'\"",
    "epsilon=0.1,": "a comma needs a value before and after it; type epsilon=0.1",
    "a=1,,2": "a comma needs a value before and after it; type a=1,2",
    "a=,": "a comma needs a value before and after it; type a=VALUE",
    "seed=1 rounds=3": "it is more than one setting; give each as one word: seed=1 rounds=3",
    "data.path=a(b": f"{QUOTES}; type \"data.path='a(b'\"",
    "data.path=x=y": f"{QUOTES}; type \"data.path='x=y'\"",
    "data.target=größe": f"{QUOTES}; type \"data.target='größe'\"",
    "data.drop_columns=[größe, x]": f"{QUOTES}; type \"data.drop_columns=['größe','x']\"",
    "data.path=it's(1)": "the quote ' is not closed; type \"data.path='its(1)'\"",
    "a=nope(0, 1)": f"nope is no function; there are {FUNCTIONS}",
    "a=range(1, x)": (
        "mismatch type argument stop: str is incompatible with Optional[Union[int, float]]"
    ),
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_syntax_error_is_explained(override: str) -> None:
    """One line has the setting, the override and the problem, without Hydra's own message."""
    with pytest.raises(SettingsError) as caught:
        parse_override(override)
    prefix = PREFIX.format(name=override.partition("=")[0], override=override)
    assert str(caught.value) == prefix + MISTAKES[override]


@pytest.mark.parametrize(
    "override",
    [
        override
        for override in MISTAKES
        if "; type " in MISTAKES[override] or "out, or type " in MISTAKES[override]
    ],
)
def test_hydra_reads_the_suggested_override(override: str) -> None:
    """The suggestion sets the same setting after a shell has split it."""
    (suggestion,) = shlex.split(MISTAKES[override].rpartition(" type ")[2])
    assert parse_override(suggestion).key_or_group == override.partition("=")[0]
