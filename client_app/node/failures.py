"""Report a node's failures to the server, without quoting the data of a real machine."""

from fedquorum.errors import ParameterError, ProtocolError, SettingsError, describe_error

SAFE_ERRORS = (ParameterError, ProtocolError, SettingsError)
"""Errors about the settings or the message, which the server knows; none quotes data."""


def get_failure_reason(error: Exception, *, hides_text: bool) -> str:
    """Return the reason of a failure for the server.

    A deployed node reports only the class of the error, unless its owner allows more. The text may
    quote data, so it stays in the node's log unless the error is about the run. Unexpected errors
    are named by their class too.

    Parameters
    ----------
    error : Exception
    hides_text : bool
        Whether the text of an error must stay on the node.
    """
    if hides_text and not isinstance(error, SAFE_ERRORS):
        return f"{type(error).__name__}: the log of the node has the text"
    return describe_error(error)
