"""What Hydra cannot read is answered with the mistake, and with a word that it can read."""

import shlex

import pytest
from fedquorum.errors import SettingsError

from conf.compose import parse_override

BEGIN = "{name} must be a value in Hydra's grammar, got {word!r}: "
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


@pytest.mark.parametrize("word", MISTAKES)
def test_a_word_outside_the_grammar(word: str) -> None:
    """The setting, the word, what is wrong with it, in one line without Hydra's own words."""
    with pytest.raises(SettingsError) as caught:
        parse_override(word)
    begin = BEGIN.format(name=word.partition("=")[0], word=word)
    assert str(caught.value) == begin + MISTAKES[word]


@pytest.mark.parametrize(
    "word",
    [word for word in MISTAKES if "; type " in MISTAKES[word] or "out, or type " in MISTAKES[word]],
)
def test_hydra_reads_the_word_to_type(word: str) -> None:
    """What the message says to type is a setting of the same name, as a shell splits it."""
    (typed,) = shlex.split(MISTAKES[word].rpartition(" type ")[2])
    assert parse_override(typed).key_or_group == word.partition("=")[0]
