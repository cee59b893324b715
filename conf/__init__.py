"""All settings of FedQuorum: the schemas, the YAML groups, and how they are composed.

The only source of settings. ``compose`` turns an experiment's name and a string of Hydra
overrides into a checked ``Settings``; server, clients and command line all use it.
"""

from fedquorum.errors import SettingsError

from conf.compose import Composed, compose
from conf.schema.settings import Settings

__all__ = ["Composed", "Settings", "SettingsError", "compose"]
