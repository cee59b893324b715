"""Values of cells, in settings and in model cards."""

from typing import Any

Value = str | int | float | bool | None
"""A value of a column: of the settings, or a text of the file; None for a missing one."""

UNKNOWN = -2
"""The place of a value that is none of a column's categories."""


def format_value(value: Any) -> str:
    """Return a value as text, whole numbers without a decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
