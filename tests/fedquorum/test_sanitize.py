"""Sanitizing of texts and names from outside."""

import pytest
from fedquorum.sanitize import abbreviate, sanitize

HOSTILE = [
    "\ud800",
    "a\nb",
    "\x1b[2J\x1b[31mred",
    "\x00",
    "\u202egnp.exe",  # turns the direction of writing
    "\u2028",
    "\u200b",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_is_one_line_that_can_be_written(text: str) -> None:
    """It has no control sequence for a terminal, and every file can hold it."""
    sanitized = sanitize(f"before {text} after")
    sanitized.encode()
    assert sanitized.isprintable()
    assert sanitized.startswith("before ")
    assert sanitized.endswith(" after")


def test_a_long_text_is_truncated() -> None:
    """Even if all of it is invisible: the function reads a bounded part."""
    assert sanitize("x" * 10_000) == "x" * 200 + "..."
    assert sanitize("\n" * 10_000 + "x") == "..."
    assert sanitize("words and words", 5) == "words..."
    assert sanitize("words", 5) == "words"
    assert sanitize(ValueError("reason")) == "reason"


def test_many_values_are_abbreviated() -> None:
    """The first ten, and the number of all."""
    assert abbreviate([]) == ""
    assert abbreviate(range(3)) == "0, 1, 2"
    assert abbreviate(range(1000), 2) == "0, 1, ... (1000 in all)"
    columns = [f"gene_{i}" for i in range(2_000)]
    near = abbreviate(columns, 3, near="Gene_1234")
    assert near.startswith("gene_1234, ")
    assert near.endswith(", ... (2000 in all)")
    assert len(abbreviate(columns, near="label")) < 150
