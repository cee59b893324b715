"""Certificates and keys of a deployment, made with the ``cryptography`` library.

    python deploy/keys.py server tls superlink.example.org 127.0.0.1
    python deploy/keys.py node keys/node-3
    python deploy/keys.py kubernetes keys --nodes 3

``server`` makes an authority of its own and a certificate for the SuperLink that is valid for the
host names and addresses given: ``ca.pem`` (give it to every node), ``server.pem`` and
``server.key``. The authority's own private key is never written, so nobody can issue a second
certificate in its name; when the certificate expires, make and hand out both anew. Where your
organisation has an authority, use its certificates instead.

``node`` makes the key pair by which a SuperNode proves who it is: ``NAME`` and ``NAME.pub``, as
``ssh-keygen -t ecdsa -b 384 -N "" -f NAME`` does. Make it on the node: the private key never has
to leave it. Nothing that exists is overwritten.

``kubernetes`` makes in a folder what is missing of both for the clients from 0, and prints it as
the Secrets and ConfigMaps that deploy/kubernetes mounts, for ``kubectl apply``. Called again with
more nodes it keeps all that it made.
"""

import argparse
import base64
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=365)
CLOCK_SKEW = timedelta(hours=1)
SERVER_FILES = ("ca.pem", "server.pem", "server.key")
NAMESPACE = "fedquorum"
SERVICES = ("superlink", "superlink-control")


def make_server(folder: Path, hosts: Sequence[str], valid: timedelta = VALID) -> None:
    """Write ``ca.pem``, ``server.pem`` and ``server.key`` into ``folder``."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority_name, server_name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for name in ("FedQuorum deployment CA", hosts[0])
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
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "ca.pem", authority.public_bytes(Encoding.PEM), secret=False)
    _write(folder / "server.pem", server.public_bytes(Encoding.PEM), secret=False)
    _write(
        folder / "server.key",
        server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        secret=True,
    )


def make_node(path: Path) -> None:
    """Write a node's private key to ``path`` and its public key to ``path``.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(path, private, secret=True)
    _write(path.with_name(f"{path.name}.pub"), public + f" {path.name}\n".encode(), secret=False)


def make_kubernetes(folder: Path, nodes: int, hosts: Sequence[str]) -> dict[str, object]:
    """Make certificates and keys for deploy/kubernetes, and return them as one manifest.

    ``hosts`` are further names by which nodes outside the cluster reach the SuperLink. Such a
    node keeps its private key: ``folder``/keys has its public key only.
    """
    tls, keys = folder / "tls", folder / "keys"
    if not tls.exists():
        names = [f"{name}{end}" for name in SERVICES for end in ("", f".{NAMESPACE}.svc")]
        make_server(tls, [*names, "127.0.0.1", *hosts])
    private = [keys / f"node-{client}" for client in range(nodes)]
    public = [path.with_name(f"{path.name}.pub") for path in private]
    for path, other in zip(private, public, strict=True):
        if not other.exists():
            make_node(path)
    lines = [f"{client} {path.read_text().strip()}\n" for client, path in enumerate(public)]
    (folder / "nodes").write_text("".join(lines))
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


def _write(path: Path, content: bytes, *, secret: bool) -> None:
    mode = 0o600 if secret else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def main() -> None:
    """Make what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("server", help="an authority and the SuperLink's certificate")
    server.add_argument("folder", type=Path)
    server.add_argument("hosts", nargs="+", help="names and addresses by which nodes reach it")
    server.add_argument("--days", type=int, default=VALID.days)
    node = commands.add_parser("node", help="a SuperNode's key pair")
    node.add_argument("path", type=Path)
    kubernetes = commands.add_parser("kubernetes", help="both as manifests of Kubernetes")
    kubernetes.add_argument("folder", type=Path)
    kubernetes.add_argument("--nodes", type=int, required=True, help="clients 0 to NODES - 1")
    kubernetes.add_argument("--host", action="append", default=[], help="a further name or address")
    given = parser.parse_args()
    try:
        if given.command == "server":
            make_server(given.folder, given.hosts, timedelta(days=given.days))
        elif given.command == "node":
            make_node(given.path)
        else:
            print(json.dumps(make_kubernetes(given.folder, given.nodes, given.host)))
    except FileExistsError as error:
        sys.exit(f"keys.py: {error.filename} exists already and is not overwritten")


if __name__ == "__main__":
    main()
