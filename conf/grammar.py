"""Explain in one line why Hydra cannot parse an override, and what to type instead."""

import re
from collections.abc import Iterator

from fedquorum.errors import suggest_name
from fedquorum.sanitize import sanitize
from hydra.core.override_parser.overrides_parser import create_functions

from conf.schema.settings import Settings

_CLOSING_BRACKETS = {"[": "]", "{": "}", "(": ")"}
_HYDRA_FUNCTIONS = create_functions().definitions
_KEY_PATTERN = re.compile(r"(\+{1,2}|~)?[A-Za-z_][\w/@:-]*(\.[\w@:-]+)*", re.ASCII)
_NEXT_SETTING_PATTERN = re.compile(r"\s+[+~]*[A-Za-z_][\w./]*=")


def explain_syntax(override: str, parser_message: str) -> str:
    """Explain the mistake in an override: its setting, the problem, and what to type.

    Parameters
    ----------
    override : str
        An override that Hydra's parser refused.
    parser_message : str
        The parser's message, which is about its grammar.
    """
    name, equals, value = override.partition("=")
    if not equals:
        hint = _suggest_completion(override)
        return f"a setting must be NAME=VALUE, got {sanitize(override)!r} without a value{hint}"
    if not _KEY_PATTERN.fullmatch(name):
        return (
            "a setting must be NAME=VALUE, such as strategy.epsilon=0.1, got "
            f"{sanitize(override)!r}"
        )
    problem = next(_find_problems(name, value, parser_message), None)
    if problem is None:
        advice = (
            "put each text in it in quotes"
            if "{" in value
            else f"type {_quote_setting(name, value)}"
        )
        problem = (
            "a value with other characters than letters, digits and . _ - / + needs its own "
            f"quotes; {advice}"
        )
    return f"{name} must be a value in Hydra's grammar, got {sanitize(override)!r}: {problem}"


def _suggest_completion(override: str) -> str:
    """Return " (...)" with the likely meaning of an override without a value, "" if unknown."""
    settings = Settings.__dataclass_fields__
    if override.partition(".")[0] in settings:
        return f" (type {override}=VALUE)"
    if override == "help":
        return " (type fedquorum --help)"
    hint = suggest_name(override, settings)
    return f" ({hint})" if hint else ""


def _find_problems(name: str, value: str, parser_message: str) -> Iterator[str]:
    """Yield possible problems of a value, the most certain first."""
    if match := re.search(r"Unknown function '(\w+)'\s+Available: (\S+)", parser_message):
        yield f"{match[1]} is no function; there are {match[2].replace(',', ', ')}"
    if match := re.search(r"while evaluating '[^']*': (.+)", parser_message):
        yield match[1].strip()
    unclosed, unopened, quote = _find_open_brackets(value)
    if "(" in unclosed and value.partition("(")[0].strip() not in _HYDRA_FUNCTIONS:
        unclosed = ""
    if quote:
        fixed = _quote_setting(name, value.replace(quote, ""))
        yield f"the quote {quote} is not closed; type {fixed}"
    if unclosed:
        closed = value.rstrip(", ") + "".join(
            _CLOSING_BRACKETS[bracket] for bracket in reversed(unclosed)
        )
        yield f"{unclosed[-1]} is not closed; type '{name}={closed}'"
    if unopened:
        yield f"{unopened} closes nothing; leave it out, or type {_quote_setting(name, value)}"
    if not value.startswith(tuple(_CLOSING_BRACKETS)) and (
        match := _NEXT_SETTING_PATTERN.search(value)
    ):
        first, second = value[: match.start()], value[match.start() :].strip()
        yield f"it is more than one setting; give each as one word: {name}={first} {second}"
    if re.search(r"(^|,)\s*(,|$)", value):
        values = ",".join(item for item in (item.strip() for item in value.split(",")) if item)
        yield f"a comma needs a value before and after it; type {name}={values or 'VALUE'}"


def _find_open_brackets(value: str) -> tuple[str, str, str]:
    """Return the unclosed brackets, the first unopened bracket, and the open quote."""
    opened, quote = "", ""
    for character in re.sub(r"\\.", "", value):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _CLOSING_BRACKETS:
            opened += character
        elif character in _CLOSING_BRACKETS.values():
            if not opened or _CLOSING_BRACKETS[opened[-1]] != character:
                return opened, character, quote
            opened = opened[:-1]
    return opened, "", quote


def _quote_setting(name: str, value: str) -> str:
    """Return a setting with one or several texts as its value, quoted for Hydra and the shell."""
    texts = [text.strip().strip("'\"") for text in value.strip("[]").split(",")]
    if value.startswith("[") and value.endswith("]") and not set("[]{}'\"") & set("".join(texts)):
        return f"{name}=[{','.join(map(repr, texts))}]".join('""')
    return f"\"{name}='{value}'\"" if "'" not in value else f"'{name}=\"{value}\"'"
