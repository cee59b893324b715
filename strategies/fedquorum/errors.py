"""Every error that FedQuorum raises on purpose, in one tree.

    FedQuorumError
     +-- ParameterError       a parameter of a rule or strategy is outside its range
     +-- StateError           a saved state does not fit the rules
     +-- ProtocolError        a message does not follow the protocol
     +-- SolverError          an optimization did not reach its required accuracy
     +-- ClientsMissingError  too few of the expected clients are connected
     +-- SettingsError        a setting is unknown, of the wrong type or outside its range
     +-- DataError            data is missing, or does not fit the settings
     +-- RunError             a run cannot start, was interrupted, or cannot be read

A user can correct the cause of each of them, so the command line shows them as one line.
``ParameterError``, ``StateError`` and ``ProtocolError`` are also ``ValueError``.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "ClientsMissingError",
    "DataError",
    "FedQuorumError",
    "ParameterError",
    "ProtocolError",
    "RunError",
    "SettingsError",
    "SolverError",
    "StateError",
]


class FedQuorumError(Exception):
    """The base of all errors below."""


class ParameterError(FedQuorumError, ValueError):
    """A parameter has a value that is not allowed.

    Parameters
    ----------
    parameter : str
        The parameter's name in Python, such as ``epsilon``.
    allowed : str
        The allowed values, in words that follow "must be".
    got : object
    reason : str, optional
        Why only these values are allowed.
    """

    def __init__(self, parameter: str, allowed: str, got: object, reason: str = "") -> None:
        super().__init__(parameter, allowed, got, reason)
        self.parameter = parameter
        self.allowed = allowed
        self.got = got
        self.reason = reason

    def __str__(self) -> str:
        return self.format_for(self.parameter)

    def format_for(self, name: str) -> str:
        """Return the message with another name for the parameter, such as its setting's."""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{name} must be {self.allowed}{reason}, got {self.got!r}"


class StateError(FedQuorumError, ValueError):
    """A saved state does not fit the rules; the message names the array."""


class ProtocolError(FedQuorumError, ValueError):
    """A message does not follow the protocol; the message says what is wrong with it."""


class SolverError(FedQuorumError, RuntimeError):
    """An optimization did not reach its required accuracy; its solution is not used."""


class ClientsMissingError(FedQuorumError, RuntimeError):
    """Too few of the expected clients are connected, or a connected node cannot take part."""


class SettingsError(FedQuorumError):
    """A setting is wrong; the message names it, the allowed values and the value given."""


class DataError(FedQuorumError):
    """Data is missing or unusable; the message names the setting and what is missing."""


class RunError(FedQuorumError):
    """A run failed; the message says what stopped it, or which of its records is unreadable."""


def to_one_line(error: Exception) -> str:
    """Return a library's error message on one line, to append to a message of ours."""
    message = " ".join(str(error).split())
    return re.sub(r"^\[Errno -?\d+\] ", "", message)  # an OSError's words follow its number


def describe_error(error: Exception) -> str:
    """Return an error's message, preceded by its class if the error is not one of ours."""
    return str(error) if isinstance(error, FedQuorumError) else f"{type(error).__name__}: {error}"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return "did you mean NAME?" with the known names closest to ``name``, "" for none.

    The closest are ``folder/name`` in all folders, else the only name that starts with ``name``,
    else the most similar name.
    """
    names = [*known]
    matches = [
        candidate
        for candidate in names
        if "/" in candidate and candidate.rpartition("/")[2] == name
    ]
    if not matches:
        prefixed = [candidate for candidate in names if candidate.startswith(name)] if name else []
        matches = prefixed if len(prefixed) == 1 else get_close_matches(name, names, 1)
    if not matches:
        return ""
    *others, last = matches
    return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
