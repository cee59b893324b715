"""Test the server's file of clients and public keys."""

import re
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fedquorum.flower.nodes import compute_fingerprint

from conf import SettingsError
from server_app.runs.node_keys import read_node_keys

KEYS = [ec.generate_private_key(ec.SECP384R1()).public_key() for _ in range(3)]
LINES = [key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() for key in KEYS]


def write_nodes_file(folder: Path, *lines: str) -> str:
    path = folder / "nodes"
    path.write_text("\n".join(lines))
    return str(path)


def test_clients_are_read_by_fingerprint(tmp_path: Path) -> None:
    """A line has one client or several, a key may have two lines, and comments are ignored."""
    path = write_nodes_file(
        tmp_path, "# ours", "", f"0 {LINES[0]} one", f"  1,2   {LINES[1]}", f"3 {LINES[0]}"
    )
    assert read_node_keys(path, 4) == {
        compute_fingerprint(KEYS[0]): frozenset({0, 3}),
        compute_fingerprint(KEYS[1]): frozenset({1, 2}),
    }


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ((f"0 {LINES[0]}",), "it lacks client 1"),
        ((f"0 {LINES[0]}", f"0 {LINES[1]}", f"1 {LINES[2]}"), "client 0 is in line 1 and line 2"),
        ((f"0 {LINES[0]}", f"2 {LINES[1]}"), "line 2 has '2' for a client id from 0 to 1"),
        ((f"-1 {LINES[0]}",), "line 1 has '-1' for a client id from 0 to 1"),
        ((f"0,x {LINES[0]}",), "line 1 has 'x' for a client id from 0 to 1"),
        (("0 ssh-rsa nonsense",), "line 1 has no OpenSSH public key"),
        (("0",), "line 1 has no OpenSSH public key"),
    ],
)
def test_the_error_names_the_wrong_line(
    tmp_path: Path, lines: tuple[str, ...], problem: str
) -> None:
    """Each client must be listed once, with a key."""
    path = write_nodes_file(tmp_path, *lines)
    with pytest.raises(SettingsError, match=re.escape(f"got {path}: {problem}") + "$"):
        read_node_keys(path, 2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error has the setting and the path."""
    with pytest.raises(
        SettingsError, match=r"engine\.node_keys must be a file.*got .*/none: .*No such"
    ):
        read_node_keys(str(tmp_path / "none"), 2)


def test_the_fingerprint_is_that_of_ssh_keygen(tmp_path: Path, ssh_keygen: str) -> None:
    """The owner of a key can compare it with the server's log."""
    (tmp_path / "key.pub").write_text(LINES[0])
    printed = subprocess.check_output(
        [ssh_keygen, "-l", "-f", str(tmp_path / "key.pub")], text=True
    )
    assert printed.split()[1] == compute_fingerprint(KEYS[0])
