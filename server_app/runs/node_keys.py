"""Read the public key of each client's node.

The file has one line for each client or each node, as in OpenSSH's ``allowed_signers``::

    # clients  key type             key          comment
    0          ecdsa-sha2-nistp384  AAAAE2VjZ... hospital-a
    1,2        ecdsa-sha2-nistp384  AAAAE2VjZ... hospital-b, which hosts two

Empty lines and lines that begin with # are comments. Every client has one key; a key may have
several clients.
"""

from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from fedquorum.errors import SettingsError
from fedquorum.flower.nodes import ClientsByKey, compute_fingerprint


def read_node_keys(path: str, num_clients: int) -> ClientsByKey:
    """Return the clients of every public key in a file, by the key's fingerprint.

    Raises
    ------
    SettingsError
        If there is no such file, or it does not list each client once. The message names the line.
    """
    file = Path(path).expanduser().absolute()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        clients_by_key: dict[str, frozenset[int]] = {}
        for client, key in _parse_entries(lines, num_clients):
            clients_by_key[key] = clients_by_key.get(key, frozenset()) | {client}
    except (OSError, ValueError) as error:
        raise SettingsError(
            "engine.node_keys must be a file with lines of client ids and OpenSSH public keys, "
            f"each of the {num_clients} clients once, got {file}: {error}"
        ) from None
    return clients_by_key


def _parse_entries(lines: Iterable[str], num_clients: int) -> Iterable[tuple[int, str]]:
    seen: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        ids, _, key = line.strip().partition(" ")
        if not ids or ids.startswith("#"):
            continue
        try:
            fingerprint = compute_fingerprint(load_ssh_public_key(key.strip().encode()))
        except (ValueError, UnsupportedAlgorithm):
            raise ValueError(f"line {number} has no OpenSSH public key") from None
        for text in ids.split(","):
            if not text.isascii() or not text.isdigit() or int(text) >= num_clients:
                raise ValueError(
                    f"line {number} has {text!r} for a client id from 0 to {num_clients - 1}"
                )
            client = int(text)
            if client in seen:
                raise ValueError(f"client {client} is in line {seen[client]} and line {number}")
            seen[client] = number
            yield client, fingerprint
    if missing := sorted(set(range(num_clients)) - seen.keys()):
        raise ValueError(f"it lacks client {missing[0]}")
