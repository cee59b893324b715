"""Settings of the server optimizers, made from their declarations."""

from dataclasses import dataclass
from typing import Any

from fedquorum.named import CUSTOM
from fedquorum.server_optimizer import SERVER_OPTIMIZERS
from omegaconf import MISSING

from conf.schema.derived import custom_schema, schemas_of


@dataclass
class ServerOptimizerSettings:
    """How the combined update moves the model, by ``strategy.server_lr``."""

    name: str = MISSING


SERVER_OPTIMIZER_SCHEMAS: dict[str, type[Any]] = {
    **schemas_of(ServerOptimizerSettings, SERVER_OPTIMIZERS.values()),
    CUSTOM: custom_schema(
        ServerOptimizerSettings, "A server optimizer of the user's own; see ``docs/own-rule.md``."
    ),
}
"""The schema of every server optimizer by its name."""
