"""The proxy's configurations, read and run by a real nginx."""

import os
import re
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.integration.conftest import find_free_port, wait_for
from tests.integration.deployed import DEPLOY, KEYS

AT_ONCE, RATE = 64, 100
"""Requests of one address: how many at once, and how many a second."""
CHUNK = 5 * 2**20
"""Bytes of the largest part that Flower sends of a model."""


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the certificate that the configurations name."""
    folder = tmp_path_factory.mktemp("nginx") / "tls"
    KEYS["make_server"](folder, ["superlink.example.org", "superlink", "127.0.0.1"])
    return folder


def written(
    configuration: str, folder: Path, tls: Path, ports: Mapping[str, int] | None = None
) -> Path:
    """Write a configuration of deploy/ for this machine: its paths, its ports, its user."""
    text = (DEPLOY / configuration).read_text()
    if "http {" not in text:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path /tmp/{kind};\n" for kind in kinds)
        main = "daemon off;\npid /tmp/nginx.pid;\nevents {}\n"
        text = f"{main}http {{\naccess_log off;\n{paths}{text}}}\n"
    if os.getuid() == 0:  # the workers, in folders of this user
        text = f"user root;\n{text}"
    text = text.replace("/tmp/", f"{folder}/")  # noqa: S108 - of a container
    text = text.replace("/etc/fedquorum/tls", str(tls))
    for before, port in (ports or {}).items():
        text = text.replace(before, str(port))
    path = folder / "nginx.conf"
    path.write_text(text)
    return path


@pytest.mark.parametrize("configuration", ["nginx.conf", "kubernetes/nginx.conf"])
def test_nginx_takes_the_configuration(
    nginx: str, tmp_path: Path, tls: Path, configuration: str
) -> None:
    """Of both ways of deployment, without a warning."""
    path = written(configuration, tmp_path, tls)
    command = [nginx, "-t", "-q", "-e", "stderr", "-c", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")


def test_both_ways_have_the_same_limits() -> None:
    """The names of zones and the ports differ."""
    limits = [
        re.findall(
            r"^ *(limit_(?:conn|req) .*\d;|rate=.*;|client_(?!body_temp)\w+ .*;|send_timeout .*;)",
            re.sub("fedquorum_", "", re.sub(" +", " ", (DEPLOY / path).read_text())),
            re.MULTILINE,
        )
        for path in ("nginx.conf", "kubernetes/nginx.conf")
    ]
    assert sorted(limits[0]) == sorted(limits[1])
    assert len(limits[0]) == 7


@dataclass
class SuperLink:
    """Stands behind the proxy: answers at once, or where it is asked to wait, when it may."""

    release: Event = field(default_factory=Event)
    waiting: int = 0

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """Return what answers a request."""
        superlink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.endswith("wait"):
                    superlink.waiting += 1
                    superlink.release.wait(60)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@dataclass
class Proxy:
    """A running nginx, and what stands behind it."""

    port: int
    context: ssl.SSLContext
    superlink: SuperLink

    def ask(self, path: str = "/v1/fleet/pull-messages", bytes_: int = 1) -> int:
        """Return the status of a request with a body of this many bytes."""
        connection = HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=60)
        try:
            connection.request("POST", path, bytes(bytes_))
            return connection.getresponse().status
        finally:
            connection.close()


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], tls: Path) -> Iterator[int]:
    """Give the port of a server with the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "server.pem", tls / "server.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def proxy(nginx: str, tmp_path: Path, tls: Path) -> Iterator[Proxy]:
    """Return a running nginx with deploy/nginx.conf."""
    superlink, port = SuperLink(), find_free_port()
    context = ssl.create_default_context(cafile=str(tls / "ca.pem"))
    with listening(superlink.handler(), tls) as behind:
        path = written("nginx.conf", tmp_path, tls, {"9443": port, "8000": behind})
        process = subprocess.Popen([nginx, "-e", str(tmp_path / "log"), "-c", str(path)])
        made = Proxy(port, context, superlink)
        try:
            wait_for("nginx answers", lambda: answers(made, process), 30)
            yield made
        finally:
            superlink.release.set()
            process.terminate()
            process.wait(30)


def answers(proxy: Proxy, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    try:
        return proxy.ask() == 200
    except ConnectionError:
        return False


@pytest.mark.slow
def test_what_passes_the_proxy(proxy: Proxy) -> None:
    """The nodes' API and no other; parts of a model, and nothing that Flower's nodes never send."""
    assert proxy.ask("/v1/fleet/push-object", CHUNK + 2**16) == 200
    assert proxy.ask("/v1/fleet/push-object", 17 * 2**20) == 413
    for path in ("/v1/control/list-runs", "/v1/runtime/pull-messages", "/health", "/"):
        assert proxy.ask(path) == 404


@pytest.mark.slow
def test_concurrent_requests_per_address_are_limited(proxy: Proxy) -> None:
    """The others are refused at once, in a way after which a node tries again."""
    asked = AT_ONCE + 6
    with ThreadPoolExecutor(asked) as threads:
        statuses = [threads.submit(proxy.ask, "/v1/fleet/wait") for _ in range(asked)]

        def is_settled() -> bool:
            refused = sum(status.done() for status in statuses)
            return refused + proxy.superlink.waiting == asked

        wait_for("all are refused or wait", is_settled, 30)
        proxy.superlink.release.set()
        found = [status.result() for status in statuses]
    assert set(found) == {200, 503}
    assert AT_ONCE - 2 <= found.count(200) <= AT_ONCE
    assert proxy.ask() == 200


@pytest.mark.slow
def test_a_node_is_slowed_down_and_not_refused(proxy: Proxy) -> None:
    """Flower's node has three requests at once; as many as they are, they come at the rate."""
    started = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: proxy.ask(), range(2 * RATE)))
    assert set(found) == {200}
    assert time.monotonic() - started > 1.9
