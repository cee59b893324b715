"""Say which client is meant in the lines that a run records."""

from collections.abc import Sequence

from fedquorum.records.client_names import can_record_names


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
    if names is not None and can_record_names(num_clients, recorded=recorded):
        return tuple(names)
    return tuple(f"client {client}" for client in range(num_clients))
