"""Which clients are there at all: a simulated world on the client's side, unknown to the server.

``processes`` (when one client is available), ``probabilities`` (how often), ``trace`` (from a
file), ``mod`` (a Flower mod that makes clients unavailable), ``build`` (all of it from the
settings). The mod works in any ClientApp::

    from client_app.availability import AvailabilityMod, Bernoulli, NodeAvailability

    def availability(context: Context) -> NodeAvailability:
        client = int(context.node_config["partition-id"])
        return NodeAvailability(seed=1, hosted=(client,), process=lambda _: Bernoulli(0.3))

    app = ClientApp(mods=[AvailabilityMod(availability)])
"""

from client_app.availability.build import client_processes, participation_probabilities
from client_app.availability.mod import AvailabilityMod, NodeAvailability
from client_app.availability.processes import Bernoulli, Cyclic, Markov, Process, Trace

__all__ = [
    "AvailabilityMod",
    "Bernoulli",
    "Cyclic",
    "Markov",
    "NodeAvailability",
    "Process",
    "Trace",
    "client_processes",
    "participation_probabilities",
]
