"""Certificates and keys of a deployment, made with the ``cryptography`` library.

    python deploy/keys.py server tls superlink.example.org 127.0.0.1
    python deploy/keys.py node keys/node-3
    python deploy/keys.py kubernetes keys --nodes 3

``server`` creates a new authority, and a certificate for the SuperLink that is valid for the given
host names and addresses: ``ca.pem`` (give it to every node), ``server.pem`` and ``server.key``.
The authority's private key is never written, so no one can issue a second certificate in its name.
When the certificate expires, create and distribute both again. If your organization has an
authority, use its certificates instead.

``node`` creates the key pair by which a SuperNode proves its identity: ``NAME`` and ``NAME.pub``,
as ``ssh-keygen -t ecdsa -b 384 -N "" -f NAME`` does. Create it on the node, so that the private
key never leaves the node.

The script overwrites no file. Files that belong together appear together: if one of them cannot be
written, none is written.

``kubernetes`` creates the missing files of both in a folder, for the clients from 0. It prints the
Secrets and ConfigMaps that deploy/kubernetes mounts, for ``kubectl apply``. A later call with more
nodes keeps all existing files.
"""

import argparse
import base64
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=365)
MAX_DAYS = 3650
MAX_NODES = 10_000
MAX_HOST = 253  # characters of a DNS name
LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
DNS_NAME = re.compile(rf"(\*\.)?{LABEL}(\.{LABEL})*")
CLOCK_SKEW = timedelta(hours=1)
SERVER_FILES = ("ca.pem", "server.pem", "server.key")
NAMESPACE = "fedquorum"
SERVICES = ("superlink", "superlink-control")


@dataclass(frozen=True)
class File:
    """A file to write: its name, its content, and whether only its owner may read it."""

    name: str
    content: bytes
    secret: bool


def make_server(folder: Path, hosts: Sequence[str], valid: timedelta = VALID) -> None:
    """Write ``ca.pem``, ``server.pem`` and ``server.key`` into ``folder``."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority_name, server_name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for name in ("FedQuorum deployment CA", "FedQuorum SuperLink")
    )
    start = datetime.now(UTC) - CLOCK_SKEW

    def unsigned(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(authority_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + CLOCK_SKEW + valid)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
        )

    authority = (
        unsigned(authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    server = (
        unsigned(server_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    private = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    contents = [certificate.public_bytes(Encoding.PEM) for certificate in (authority, server)]
    files = zip(SERVER_FILES, [*contents, private], (False, False, True), strict=True)
    _write(folder, [File(*file) for file in files])


def make_node(path: Path) -> None:
    """Write a node's private key to ``path`` and its public key to ``path``.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    line = public + f" {path.name}\n".encode()
    _write(path.parent, [File(path.name, private, True), File(f"{path.name}.pub", line, False)])


def make_kubernetes(folder: Path, nodes: int, hosts: Sequence[str]) -> dict[str, object]:
    """Create certificates and keys for deploy/kubernetes, and return them as one manifest.

    ``hosts`` are further names by which nodes outside the cluster reach the SuperLink. Such a
    node keeps its private key: ``folder``/keys has its public key only.
    """
    tls, keys = folder / "tls", folder / "keys"
    if not any((tls / name).exists() for name in SERVER_FILES):
        names = [f"{name}{end}" for name in SERVICES for end in ("", f".{NAMESPACE}.svc")]
        make_server(tls, [*names, "127.0.0.1", *hosts])
    private = [keys / f"node-{client}" for client in range(nodes)]
    public = [path.with_name(f"{path.name}.pub") for path in private]
    for path, other in zip(private, public, strict=True):
        if not other.exists():
            make_node(path)
    lines = [f"{client} {_public_key(path)}\n" for client, path in enumerate(public)]
    _replace(folder / "nodes", "".join(lines))
    items = [
        _manifest("Secret", "superlink-tls", [tls / name for name in SERVER_FILES]),
        _manifest("Secret", "supernode-keys", [path for path in private if path.exists()]),
        _manifest("ConfigMap", "superlink-ca", [tls / "ca.pem"]),
        _manifest("ConfigMap", "nodes", [folder / "nodes"]),
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _manifest(kind: str, name: str, files: Sequence[Path]) -> dict[str, object]:
    """Return a Secret or a ConfigMap with these files."""
    content = {path.name: path.read_bytes() for path in files}
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {
            file: base64.b64encode(data).decode() if kind == "Secret" else data.decode()
            for file, data in content.items()
        },
    }


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _public_key(path: Path) -> str:
    """Return the line of a public key's file."""
    content = path.read_bytes()
    try:
        load_ssh_public_key(content)
        (line,) = content.decode().splitlines()
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path} must be one line with an OpenSSH public key") from None
    return line.strip()


def _write(folder: Path, files: Sequence[File]) -> None:
    """Write files that belong together: all of them or, after an error, none."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    with TemporaryDirectory(prefix=".new-", dir=folder) as new:
        for file in files:
            _write_to_disk(Path(new, file.name), file.content, 0o600 if file.secret else 0o644)
        try:
            for file in files:
                # A hard link never replaces a file.
                os.link(Path(new, file.name), folder / file.name)
                made.append(folder / file.name)
        except BaseException:
            for path in made:
                path.unlink()
            raise


def _replace(path: Path, text: str) -> None:
    """Write a file, replacing an earlier one."""
    with TemporaryDirectory(prefix=".new-", dir=path.parent) as new:
        made = Path(new, path.name)
        _write_to_disk(made, text.encode(), 0o644)
        made.replace(path)


def _write_to_disk(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


class Parser(argparse.ArgumentParser):
    """Report a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """End with the message, without the usage."""
        sys.exit(f"{self.prog}: {message}")


def whole_number(text: str, low: int, high: int) -> int:
    """Parse a whole number within bounds."""
    with suppress(ValueError):
        if low <= (number := int(text)) <= high:
            return number
    raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}, got {text!r}")


def days(text: str) -> timedelta:
    """Parse the validity of a certificate in days."""
    return timedelta(days=whole_number(text, 1, MAX_DAYS))


def node_count(text: str) -> int:
    """Parse the number of nodes."""
    return whole_number(text, 1, MAX_NODES)


def host(text: str) -> str:
    """Parse an address or a DNS name that a certificate can hold."""
    with suppress(ValueError):
        return str(ip_address(text))
    if len(text) > MAX_HOST or not DNS_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"must be an address or a DNS name of at most {MAX_HOST} characters, one with other "
            f"letters than a to z in its form that begins with xn--, got {text!r}"
        )
    return text


def key_path(text: str) -> Path:
    """Parse the path of a node's private key; its name becomes the public key's comment."""
    path = Path(text)
    if not path.name or not path.name.isprintable():
        raise argparse.ArgumentTypeError(
            f"must be a path whose last part has printable characters only, got {text!r}"
        )
    return path


def parser() -> Parser:
    """Build the parser of the command line."""
    made = Parser(
        prog="keys.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", required=True)
    server = commands.add_parser("server", help="an authority and the SuperLink's certificate")
    server.add_argument("folder", type=Path)
    server.add_argument(
        "hosts", nargs="+", type=host, help="names and addresses by which nodes reach it"
    )
    server.add_argument("--days", type=days, default=VALID, help=f"of validity, {VALID.days}")
    node = commands.add_parser("node", help="a SuperNode's key pair")
    node.add_argument("path", type=key_path)
    kubernetes = commands.add_parser("kubernetes", help="both as manifests of Kubernetes")
    kubernetes.add_argument("folder", type=Path)
    kubernetes.add_argument(
        "--nodes", type=node_count, required=True, help="clients 0 to NODES - 1"
    )
    kubernetes.add_argument(
        "--host", action="append", type=host, default=[], help="a further name or address"
    )
    return made


def main() -> None:
    """Create the files that the command line requests."""
    given = parser().parse_args()
    try:
        if given.command == "server":
            make_server(given.folder, given.hosts, given.days)
        elif given.command == "node":
            make_node(given.path)
        else:
            print(json.dumps(make_kubernetes(given.folder, given.nodes, given.host)))
    except FileExistsError as error:
        place = error.filename2 or error.filename
        sys.exit(
            f"keys.py: {place} exists already and is not overwritten: give another name, or remove "
            "it to make it anew"
        )
    except OSError as error:
        sys.exit(f"keys.py: {error.filename2 or error.filename}: {error.strerror}")
    except ValueError as error:
        sys.exit(f"keys.py: {error}")


if __name__ == "__main__":
    main()
