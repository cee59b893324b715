"""Test the address of a Ray cluster before Ray itself waits for it for minutes."""

import os
import socket

import grpc
from fedquorum.errors import SettingsError

from conf.schema.ranges import ClusterAddress

CONNECT_SECONDS = 5.0  # to accept a connection, and again to reply


def check_ray_address(name: str, address: str, advice: str) -> None:
    """Refuse an address at which there is no cluster.

    Parameters
    ----------
    name : str
        The setting or variable that holds it.
    address : str
        HOST:PORT.
    advice : str
        What the user should do if there is no cluster.

    Raises
    ------
    SettingsError
        If the address is malformed, or has no cluster.
    """
    allowed = ClusterAddress()
    if not allowed.contains(address):
        raise SettingsError(f"{name} must be {allowed.describe()}, got {address}")
    problem = _find_address_problem(address)
    if problem is not None:
        raise SettingsError(
            f"{name} must be the HOST:PORT of a Ray cluster that runs, got {address} ({problem}): "
            f"{advice}"
        )


def check_ray_environment() -> None:
    """Refuse a RAY_ADDRESS without a cluster, because Flower's simulation would use it.

    Raises
    ------
    SettingsError
        If there is no cluster.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    # Ray checks its other forms, such as auto.
    if address.rpartition(":")[2].isdecimal() and ClusterAddress().contains(address):
        check_ray_address(
            "RAY_ADDRESS",
            address,
            "start one with ray start --head, which prints its address, or unset RAY_ADDRESS; "
            "stop Flower's local SuperLink too (pkill -f flower-superlink) if it was started so",
        )


def _find_address_problem(address: str) -> str | None:
    """Return why an address is not that of a Ray cluster, or None if it may be."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        return str(error)
    if os.environ.get("RAY_USE_TLS", "0") != "0":  # only Ray has the keys
        return None
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
        except grpc.FutureTimeoutError:
            return "what listens there is not Ray"
    return None
