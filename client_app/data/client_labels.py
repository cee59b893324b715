"""Say which client is meant in the lines that a run records."""

from collections.abc import Sequence

from fedquorum.records.client_names import MAX_NAMED_CLIENTS


def keeps_names(num_clients: int, *, recorded: bool) -> bool:
    """Return whether records may have the names of so many clients; ``data.names`` allows it."""
    return recorded and num_clients <= MAX_NAMED_CLIENTS


def label_clients(
    names: Sequence[str] | None, num_clients: int, *, recorded: bool
) -> tuple[str, ...]:
    """Return what lines call each client: its name, or its id where records keep no names.

    Parameters
    ----------
    names : sequence of str, optional
        By client id.
    num_clients : int
    recorded : bool
        ``data.names``.
    """
    if names is not None and keeps_names(num_clients, recorded=recorded):
        return tuple(names)
    return tuple(f"client {client}" for client in range(num_clients))
