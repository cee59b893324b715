"""Report a node's failures to the server, without quoting the data of a real machine."""

import sys
from collections.abc import Mapping
from typing import Any

from fedquorum.errors import ParameterError, ProtocolError, SettingsError, describe_error
from fedquorum.flower.codec import CLIENT_ID

SUPERNODE_MODULE = "flwr.supernode.runtime.run_clientapp"
"""Flower's module that runs an app on a SuperNode; a simulation never loads it."""

SAFE_ERRORS = (ParameterError, ProtocolError, SettingsError)
"""Errors about the settings or the message, which the server knows; none quotes data."""


def is_deployed(node_config: Mapping[str, Any]) -> bool:
    """Return whether a node is a real machine whose data must stay on it.

    A device names its client in the node config. A simulation numbers its nodes, which all belong
    to the user who runs it.

    Parameters
    ----------
    node_config : mapping
        Flower's node config.
    """
    return CLIENT_ID in node_config or SUPERNODE_MODULE in sys.modules


def get_failure_reason(error: Exception, *, deployed: bool) -> str:
    """Return the reason of a failure for the server.

    A deployed node reports only the class of the error. The text may quote data, so it stays in the
    node's log unless the error is about the run. Unexpected errors are named by their class too.

    Parameters
    ----------
    error : Exception
    deployed : bool
        Whether the node is a real machine whose data must stay on it.
    """
    if deployed and not isinstance(error, SAFE_ERRORS):
        return f"{type(error).__name__}: the log of the node has the text"
    return describe_error(error)
