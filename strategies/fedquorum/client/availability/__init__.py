"""Simulate availability: in which rounds each client takes part, unknown to the server.

``processes`` and ``periodic`` decide when one client is available, ``probabilities`` how often, and
``trace`` reads both from a file. ``AvailabilityMod`` makes clients unavailable in any ClientApp::

    from fedquorum.client.availability import AvailabilityMod, Bernoulli, NodeAvailability

    def availability(context: Context) -> NodeAvailability:
        client = int(context.node_config["partition-id"])
        return NodeAvailability(seed=1, hosted=(client,), process=lambda _: Bernoulli(0.3))

    app = ClientApp(mods=[AvailabilityMod(availability)])
"""

from typing import TYPE_CHECKING, Any

from .periodic import InterleavedSine, PeriodicProcess, Sine, Staircase
from .processes import AvailabilityProcess, Bernoulli, Cooldown, Cyclic, Markov, Trace

if TYPE_CHECKING:
    from ...flower.availability import AvailabilityMod, NodeAvailability

__all__ = [
    "AvailabilityMod",
    "AvailabilityProcess",
    "Bernoulli",
    "Cooldown",
    "Cyclic",
    "InterleavedSine",
    "Markov",
    "NodeAvailability",
    "PeriodicProcess",
    "Sine",
    "Staircase",
    "Trace",
]


def __getattr__(name: str) -> Any:
    if name in ("AvailabilityMod", "NodeAvailability"):  # only the mod needs Flower
        from ...flower import availability

        return getattr(availability, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
