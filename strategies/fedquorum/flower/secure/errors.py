"""Say which node broke the protocol of secure sums, and which round cannot be summed."""

from ...errors import FedQuorumError


class SecureSumError(FedQuorumError):
    """The vectors of a round cannot be summed; the model stays, and the run continues."""


class ProtocolViolationError(FedQuorumError):
    """A message breaks the protocol.

    Parameters
    ----------
    sender : int or None
        The node that sent it; None for the server.
    reason : str
    """

    def __init__(self, sender: int | None, reason: str) -> None:
        super().__init__(f"{'the server' if sender is None else f'node {sender}'}: {reason}")
        self.sender = sender
        self.reason = reason
