"""Define and compose all settings of FedQuorum: the schemas and the YAML groups.

There is no other source of settings. ``compose_settings`` turns an experiment's name and a string
of Hydra overrides into a checked ``Settings``; the server, the clients and the command line use it.
"""

from fedquorum.errors import SettingsError

from conf.compose import ComposedConfig, compose_settings
from conf.schema.settings import Settings

__all__ = ["ComposedConfig", "Settings", "SettingsError", "compose_settings"]
