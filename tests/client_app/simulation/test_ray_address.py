"""Test the address of a Ray cluster that does not exist."""

import socket
import time
from collections.abc import Iterator

import pytest
from fedquorum.errors import SettingsError

from client_app.simulation import ray_address
from client_app.simulation.ray_address import check_ray_address, check_ray_environment
from conf import compose_settings
from server_app.engines.flower import submit_job
from tests.integration.conftest import find_free_port


@pytest.fixture
def unresponsive_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return an address with a listener that never replies."""
    monkeypatch.setattr(ray_address, "CONNECT_SECONDS", 0.5)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_something_else_listens(unresponsive_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would try for minutes."""
    message = (
        r"^x must be the HOST:PORT .*, got 127\.0\.0\.1:\d+ \(what listens there is not Ray\): go"
    )
    with pytest.raises(SettingsError, match=message):
        check_ray_address("x", unresponsive_address, "go")
    monkeypatch.setenv("RAY_USE_TLS", "1")  # Ray alone has the keys
    check_ray_address("x", unresponsive_address, "go")


def test_flowers_simulation_would_wait_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing is submitted, and one line says within seconds what cannot be reached."""
    address = f"127.0.0.1:{find_free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    started = time.monotonic()
    message = rf"^RAY_ADDRESS must be .* got {address} \(.*refused\): start .* stop Flower's local"
    with pytest.raises(SettingsError, match=message):
        submit_job(compose_settings("", "engine=flower"), "")
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("address", ["", "auto", "local", "ray://head:10001"])
def test_words_are_left_to_ray(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """No address is tried where there is none."""
    monkeypatch.setenv("RAY_ADDRESS", address)
    check_ray_environment()
