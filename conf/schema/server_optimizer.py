"""Derive the settings of the server optimizers from their declarations."""

from dataclasses import dataclass
from typing import Any

from fedquorum.registry import CUSTOM
from fedquorum.rules.parameters import SERVER_LR_SCHEDULE
from fedquorum.rules.rule import parameter
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS
from omegaconf import MISSING

from conf.schema.from_rules import make_custom_schema, make_schemas


@dataclass
class ServerOptimizerSettings:
    """The server's step by the combined update, with the rate ``strategy.server_lr``.

    ``lr_schedule``: constant keeps the rate; inverse_client divides it by the clients' lr_t / lr_0,
    see ``fedquorum.rules.schedules.ServerLRSchedule``.
    """

    name: str = MISSING
    lr_schedule: str = parameter("constant", SERVER_LR_SCHEDULE)


SERVER_OPTIMIZER_SCHEMAS: dict[str, type[Any]] = {
    **make_schemas(ServerOptimizerSettings, SERVER_OPTIMIZERS.values()),
    CUSTOM: make_custom_schema(
        ServerOptimizerSettings, "The user's own server optimizer; see ``docs/own-rule.md``."
    ),
}
"""The schema of every server optimizer by its name."""
