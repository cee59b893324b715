"""Every error that FedQuorum raises on purpose, in one tree.

    FedQuorumError
     +-- ParameterError       a parameter of a rule or strategy is outside its range
     +-- StateError           a saved state does not fit the rules
     +-- ProtocolError        a message does not follow the protocol
     +-- SolverError          an optimisation did not reach the accuracy that it must have
     +-- ClientsMissingError  too few of the expected clients are connected
     +-- SettingsError        a setting is unknown, of the wrong type or outside its range
     +-- DataError            data is missing, or is not what the settings need
     +-- RunError             a run cannot start, did not end as it should, or cannot be read

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
        Its name in Python, such as ``epsilon``.
    allowed : str
        The allowed values, in words that follow "must be".
    got : object
        The value given.
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
        why = f" ({self.reason})" if self.reason else ""
        return f"{name} must be {self.allowed}{why}, got {self.got!r}"


class StateError(FedQuorumError, ValueError):
    """A saved state does not fit the rules; the message names the array."""


class ProtocolError(FedQuorumError, ValueError):
    """A message does not follow the protocol; the message says what is wrong with it."""


class SolverError(FedQuorumError, RuntimeError):
    """An optimisation did not reach its required accuracy; its solution is not used."""


class ClientsMissingError(FedQuorumError, RuntimeError):
    """Too few of the expected clients are connected, or a connected node cannot take part."""


class SettingsError(FedQuorumError):
    """The message names the setting, what is allowed and what was given."""


class DataError(FedQuorumError):
    """The message names the setting that points to the data and what is missing there."""


class RunError(FedQuorumError):
    """The message says what stopped the run, or which of its records cannot be read."""


def to_one_line(error: Exception) -> str:
    """Return a library's error message on one line, to end a message of ours."""
    said = " ".join(str(error).split())
    return re.sub(r"^\[Errno -?\d+\] ", "", said)  # an OSError's words follow its number


def describe_error(error: Exception) -> str:
    """Return the message of an error of ours, and of any other its class before it."""
    return str(error) if isinstance(error, FedQuorumError) else f"{type(error).__name__}: {error}"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return "did you mean NAME?" with the known names most like ``name``, "" for none.

    These are ``folder/name`` in all folders, else the one name that begins so, else the most alike.
    """
    names = [*known]
    near = [one for one in names if "/" in one and one.rpartition("/")[2] == name]
    if not near:
        longer = [one for one in names if one.startswith(name)] if name else []
        near = longer if len(longer) == 1 else get_close_matches(name, names, 1)
    if not near:
        return ""
    *others, last = near
    return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
