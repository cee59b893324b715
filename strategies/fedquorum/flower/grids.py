"""Which of Flower's grids a grid is, without loading them.

Their modules load SQLAlchemy, Alembic and FastAPI, a second of CPU time that a run in one process
does not need. Whoever has a grid of Flower's has loaded them already.
"""

import sys
from typing import TYPE_CHECKING, TypeGuard

from flwr.serverapp import Grid

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

MODULE = "flwr.superlink.grid"


def is_http(grid: Grid) -> "TypeGuard[HttpGrid]":
    """Say whether a grid is Flower's connection to a SuperLink."""
    return _is(grid, "HttpGrid")


def is_in_memory(grid: Grid) -> bool:
    """Say whether a grid is that of Flower's simulation."""
    return _is(grid, "InMemoryGrid")


def is_flowers(grid: Grid) -> bool:
    """Say whether a grid is one of these two."""
    return is_http(grid) or is_in_memory(grid)


def _is(grid: Grid, name: str) -> bool:
    module = sys.modules.get(MODULE)
    return module is not None and isinstance(grid, getattr(module, name))
