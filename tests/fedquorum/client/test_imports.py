"""What the client's half of the library needs."""

import subprocess
import sys
from pathlib import Path

import pytest
from fedquorum.client import availability
from fedquorum.flower.availability import AvailabilityMod

LIBRARY = Path(__file__).parents[3] / "strategies"


@pytest.mark.parametrize(
    "module",
    [
        "fedquorum.client.gate",
        "fedquorum.client.availability",
        "fedquorum.client.availability.processes",
        "fedquorum.client.availability.probabilities",
        "fedquorum.client.availability.trace",
    ],
)
def test_decisions_and_processes_need_neither_flower_nor_the_app(module: str) -> None:
    """They can be imported where Flower, torch, and this project's app are missing."""
    missing = ("flwr", "torch", "client_app", "server_app", "conf")
    program = f"import sys; sys.modules.update(dict.fromkeys({missing})); import {module}"
    subprocess.run([sys.executable, "-c", program], cwd=LIBRARY, env={}, check=True)


def test_what_is_no_part_of_the_availability_is_missing() -> None:
    """The mod is imported when it is used; another name is an error like in any module."""
    assert availability.AvailabilityMod is AvailabilityMod
    expected = "^module 'fedquorum.client.availability' has no attribute 'AvailabilityModule'$"
    with pytest.raises(AttributeError, match=expected):
        _ = availability.AvailabilityModule
