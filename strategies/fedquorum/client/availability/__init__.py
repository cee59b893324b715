"""Simulate availability: in which rounds each client takes part, unknown to the server.

``processes`` and ``periodic`` decide when one client is available, ``probabilities`` how often, and
``trace`` reads both from a file. ``fedquorum.flower.mods`` makes clients of any ClientApp
unavailable::

    from fedquorum.client.availability import Bernoulli
    from fedquorum.flower.mods import AvailabilityMod, NodeAvailability

    def availability(context: Context) -> NodeAvailability:
        client = int(context.node_config["partition-id"])
        return NodeAvailability(seed=1, hosted=(client,), process=lambda _: Bernoulli(0.3))

    app = ClientApp(mods=[AvailabilityMod(availability)])
"""

from .periodic import InterleavedSine, PeriodicProcess, Sine, Staircase
from .processes import AvailabilityProcess, Bernoulli, Cooldown, Cyclic, Markov, Trace

__all__ = [
    "AvailabilityProcess",
    "Bernoulli",
    "Cooldown",
    "Cyclic",
    "InterleavedSine",
    "Markov",
    "PeriodicProcess",
    "Sine",
    "Staircase",
    "Trace",
]
