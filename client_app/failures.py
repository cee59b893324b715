"""Report a node's failures to the server, without quoting the data of a real machine."""

import sys
from collections.abc import Mapping
from typing import Any

from fedquorum.errors import ParameterError, ProtocolError, SettingsError, describe_error
from fedquorum.flower.codec import CLIENT_ID

SUPERNODE_MODULE = "flwr.supernode.runtime.run_clientapp"
"""Flower's module that runs an app on a SuperNode, which no simulation loads."""

SAFE_ERRORS = (ParameterError, ProtocolError, SettingsError)
"""Errors about the settings or the message, which the server has itself; none quotes data."""


def is_deployed(node_config: Mapping[str, Any]) -> bool:
    """Return whether a node is a machine whose data stay there.

    A device says which client it hosts. In a simulation the engine numbers the nodes, which
    belong to whoever runs it.

    Parameters
    ----------
    node_config : mapping
        Flower's node config.
    """
    return CLIENT_ID in node_config or SUPERNODE_MODULE in sys.modules


def get_failure_reason(error: Exception, *, deployed: bool) -> str:
    """Return the reason of a failure for the server.

    Of a deployed node it is the kind of error. The text of an error may quote data, so it stays in
    the node's own log, unless it is about the run. An error that nobody foresaw is named by its
    class as well.

    Parameters
    ----------
    error : Exception
        What was raised.
    deployed : bool
        Whether the node is a machine whose data stay there.
    """
    if deployed and not isinstance(error, SAFE_ERRORS):
        return f"{type(error).__name__}: the log of the node has the text"
    return describe_error(error)
