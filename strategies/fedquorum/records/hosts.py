"""Name the node of a client in a deployment."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """The node that hosts a client.

    Parameters
    ----------
    node : int
        The id that the SuperLink gave to the node.
    key : str, optional
        The fingerprint of its public key.
    name : str
        The name with which the SuperLink's operator registered it; empty without one.
    """

    node: int
    key: str | None = None
    name: str = ""

    def __str__(self) -> str:
        name = f" ({self.name})" if self.name else ""
        return f"node {self.node}{name}{'' if self.key is None else f' with key {self.key}'}"
