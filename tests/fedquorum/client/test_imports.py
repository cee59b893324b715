"""The requirements of the client's side of the library."""

import subprocess
import sys
from pathlib import Path

import pytest

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
    """They can be imported without Flower, torch and this project's app."""
    missing = ("flwr", "torch", "client_app", "server_app", "conf")
    program = f"import sys; sys.modules.update(dict.fromkeys({missing})); import {module}"
    subprocess.run([sys.executable, "-c", program], cwd=LIBRARY, env={}, check=True)
