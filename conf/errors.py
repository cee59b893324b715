"""Errors that a user can cause.

FedQuorumError
 +-- SettingsError      a setting is unknown, of the wrong type or outside its range
 +-- DataError          data is not where the settings say, or not what they need
 +-- RunError           a run cannot start or did not end as it should
"""


class FedQuorumError(Exception):
    """Anything a user can mend; shown as one line, without a stack trace."""


class SettingsError(FedQuorumError):
    """The message names the setting, what is allowed and what was given."""


class DataError(FedQuorumError):
    """The message names the setting that points to the data and what is missing there."""


class RunError(FedQuorumError):
    """The message says what stopped the run."""


def one_line(error: Exception) -> str:
    """Return what a library says of its failure, to end a message of one line."""
    return " ".join(str(error).split())
