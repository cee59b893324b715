"""Recognize Flower's grids without importing them.

Their modules load SQLAlchemy, Alembic and FastAPI, a second of CPU time that a run in one process
does not need. A caller with one of Flower's grids has imported them already.
"""

import sys
from typing import TYPE_CHECKING, TypeGuard

from flwr.serverapp import Grid

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

GRID_MODULE = "flwr.superlink.grid"


def is_http_grid(grid: Grid) -> "TypeGuard[HttpGrid]":
    """Say whether a grid is Flower's connection to a SuperLink."""
    return _is_grid(grid, "HttpGrid")


def is_in_memory_grid(grid: Grid) -> bool:
    """Say whether a grid is the one of Flower's simulation."""
    return _is_grid(grid, "InMemoryGrid")


def is_flower_grid(grid: Grid) -> bool:
    """Say whether a grid is one of these two."""
    return is_http_grid(grid) or is_in_memory_grid(grid)


def _is_grid(grid: Grid, name: str) -> bool:
    module = sys.modules.get(GRID_MODULE)
    return module is not None and isinstance(grid, getattr(module, name))
