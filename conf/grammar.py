"""Explain in one line why Hydra cannot read a word of the command line, and what to type."""

import re
from collections.abc import Iterator

from fedquorum.errors import did_you_mean
from fedquorum.intake import shown
from hydra.core.override_parser.overrides_parser import create_functions

from conf.schema.settings import Settings

_CLOSES = {"[": "]", "{": "}", "(": ")"}
_FUNCTIONS = create_functions().definitions
_KEY = re.compile(r"(\+{1,2}|~)?[A-Za-z_][\w/@:-]*(\.[\w@:-]+)*", re.ASCII)
_NEXT_SETTING = re.compile(r"\s+[+~]*[A-Za-z_][\w./]*=")


def ungrammatical(word: str, said: str) -> str:
    """Return the mistake in a word: its setting, what is wrong with it, and what to type.

    Parameters
    ----------
    word : str
        A word that Hydra's parser refused.
    said : str
        The parser's message, which is about its grammar.
    """
    name, equals, value = word.partition("=")
    if not equals:
        meant = _completed(word)
        return f"a setting must be NAME=VALUE, got {shown(word)!r} without a value{meant}"
    if not _KEY.fullmatch(name):
        return f"a setting must be NAME=VALUE, such as strategy.epsilon=0.1, got {shown(word)!r}"
    problem = next(_problems(name, value, said), None)
    if problem is None:
        typed = "put each text in it in quotes" if "{" in value else f"type {_quoted(name, value)}"
        problem = (
            "a value with other characters than letters, digits and . _ - / + needs quotes of its "
            f"own; {typed}"
        )
    return f"{name} must be a value in Hydra's grammar, got {shown(word)!r}: {problem}"


def _completed(word: str) -> str:
    """Return " (...)" with what a word without a value can have been meant for, "" if unknown."""
    settings = Settings.__dataclass_fields__
    if word.partition(".")[0] in settings:
        return f" (type {word}=VALUE)"
    if word == "help":
        return " (type fedquorum --help)"
    hint = did_you_mean(word, settings)
    return f" ({hint})" if hint else ""


def _problems(name: str, value: str, said: str) -> Iterator[str]:
    """Yield what can be wrong with a value, the surest first."""
    if match := re.search(r"Unknown function '(\w+)'\s+Available: (\S+)", said):
        yield f"{match[1]} is no function; there are {match[2].replace(',', ', ')}"
    if match := re.search(r"while evaluating '[^']*': (.+)", said):
        yield match[1].strip()
    unclosed, unopened, quote = _brackets(value)
    if "(" in unclosed and value.partition("(")[0].strip() not in _FUNCTIONS:
        unclosed = ""
    if quote:
        yield f"the quote {quote} is not closed; type {_quoted(name, value.replace(quote, ''))}"
    if unclosed:
        closed = value.rstrip(", ") + "".join(_CLOSES[bracket] for bracket in reversed(unclosed))
        yield f"{unclosed[-1]} is not closed; type '{name}={closed}'"
    if unopened:
        yield f"{unopened} closes nothing; leave it out, or type {_quoted(name, value)}"
    if not value.startswith(tuple(_CLOSES)) and (match := _NEXT_SETTING.search(value)):
        first, second = value[: match.start()], value[match.start() :].strip()
        yield f"it is more than one setting; give each as one word: {name}={first} {second}"
    if re.search(r"(^|,)\s*(,|$)", value):
        values = ",".join(part for part in (part.strip() for part in value.split(",")) if part)
        yield f"a comma needs a value before and after it; type {name}={values or 'VALUE'}"


def _brackets(value: str) -> tuple[str, str, str]:
    """Return the brackets that are not closed, one that was not opened, and an open quote."""
    opened, quote = "", ""
    for character in re.sub(r"\\.", "", value):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _CLOSES:
            opened += character
        elif character in _CLOSES.values():
            if not opened or _CLOSES[opened[-1]] != character:
                return opened, character, quote
            opened = opened[:-1]
    return opened, "", quote


def _quoted(name: str, value: str) -> str:
    """Return a setting whose value is a text, or several, quoted for Hydra and the shell."""
    texts = [text.strip().strip("'\"") for text in value.strip("[]").split(",")]
    if value.startswith("[") and value.endswith("]") and not set("[]{}'\"") & set("".join(texts)):
        return f"{name}=[{','.join(map(repr, texts))}]".join('""')
    return f"\"{name}='{value}'\"" if "'" not in value else f"'{name}=\"{value}\"'"
