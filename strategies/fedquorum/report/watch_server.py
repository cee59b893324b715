"""Serve the page of watched runs, and their metrics, to this machine only."""

import base64
import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ..errors import RunError
from .page import compress_plotly, get_templates
from .watch import RunWatcher

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
"""Names under which a browser reaches this server.

Another name in a request means that a foreign page resolved its name to this machine. The port is
not checked: behind an SSH tunnel it differs.
"""
ALLOWED_METHODS = "GET, HEAD"
TIMEOUT_SECONDS = 10.0
TEXT_TYPE = "text/plain; charset=utf-8"
HTML_TYPE = "text/html; charset=utf-8"
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS_HINT = "/metrics needs the package prometheus_client: pip install prometheus-client"


@dataclass(frozen=True)
class HttpResponse:
    """A response; with ``is_gzipped`` its content is compressed."""

    content: bytes
    content_type: str
    status: HTTPStatus = HTTPStatus.OK
    is_gzipped: bool = False

    @classmethod
    def from_error(cls, status: HTTPStatus, reason: str) -> "HttpResponse":
        """Build a response with the reason of a refusal, in one line."""
        return cls(f"{reason}\n".encode(), TEXT_TYPE, status)

    @property
    def etag(self) -> str:
        """The entity tag of this content."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


class WatchServer(ThreadingHTTPServer):
    """Serves a page with the runs of a folder; use as a context manager.

    Parameters
    ----------
    root : Path
        A run, or a folder with runs.
    port : int
        0 takes any free port.

    Attributes
    ----------
    watch : RunWatcher
        The page is empty until it draws.

    Raises
    ------
    RunError
        If ``root`` is not a folder, or the port cannot be used.
    """

    def __init__(self, root: Path, port: int) -> None:
        if not root.is_dir():
            raise RunError(f"--watch must be a run or a folder with runs, got {root}")
        self.watch = RunWatcher(root.resolve())
        page, self.policy = _render_page()
        plotly = HttpResponse(compress_plotly(), "text/javascript; charset=utf-8", is_gzipped=True)
        self.routes: Mapping[str, Callable[[], HttpResponse]] = {
            "/": lambda: HttpResponse(page, HTML_TYPE),
            "/content": lambda: HttpResponse(self.watch.content.encode(), HTML_TYPE),
            "/plotly.js": lambda: plotly,
            "/metrics": self._build_metrics_response,
        }
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise RunError(
                f"--port must be a port that is free (0 takes any), got {port}: {error.strerror}"
            ) from None

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def metrics_notice(self) -> str:
        """The metrics' address, or the package that they need."""
        return (
            METRICS_HINT
            if _is_missing_prometheus()
            else f"Metrics for Prometheus: {self.url}metrics"
        )

    def server_bind(self) -> None:
        """Bind without a DNS lookup of the address, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.socket.getsockname()[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print one line for a failed request, unless the browser disconnected."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            print(f"a request failed: {type(error).__name__}", file=sys.stderr)

    def _build_metrics_response(self) -> HttpResponse:
        if _is_missing_prometheus():
            return HttpResponse.from_error(HTTPStatus.NOT_IMPLEMENTED, METRICS_HINT)
        if self.watch.metrics is None:
            reason = "the records are being read"
            return HttpResponse.from_error(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return HttpResponse(self.watch.metrics, PROMETHEUS_TYPE)


def _is_missing_prometheus() -> bool:
    return find_spec("prometheus_client") is None


def _render_page() -> tuple[bytes, str]:
    """Render the page, without content from runs, and its Content-Security-Policy."""
    style, script = (
        get_templates().get_template(f"watch.{kind}").render() for kind in ("css", "js")
    )
    page = (
        get_templates()
        .get_template("watch.html")
        .render(style=Markup(style), script=Markup(script))  # noqa: S704 - files of this package
    )
    # Plotly.js writes literal styles of its source into elements, and composes others for the
    # attributes of rasters; a style in an attribute loads nothing.
    found = re.finditer(r"""\.textContent=(['"])((?:(?!\1)[^\\])*)\1""", get_plotlyjs())
    policy = {
        "default-src": "'none'",
        "script-src": f"'self' {_compute_source_hash(script)}",
        "style-src": " ".join(map(_compute_source_hash, (style, *(one[2] for one in found)))),
        "style-src-attr": "'unsafe-inline'",
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return page.encode(), "; ".join(f"{name} {value}" for name, value in policy.items())


def _compute_source_hash(source: str) -> str:
    """Return the policy's hash of an inline script or style."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


class _Handler(BaseHTTPRequestHandler):
    """Answers only the paths of a ``WatchServer``."""

    server: WatchServer
    timeout = TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer a request."""
        self._send(self._build_response())

    do_HEAD = do_GET  # noqa: N815 - as above; no content is sent

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer requests that http.server refuses, such as other methods, without its page."""
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self._send(HttpResponse.from_error(status, status.phrase))

    def version_string(self) -> str:
        """Return the server's name without versions."""
        return "fedquorum"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as in http.server
        """Log nothing: a request may contain terminal control sequences."""

    def _build_response(self) -> HttpResponse:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].partition(":")[0].lower() not in HOSTS:
            names = " or ".join(HOSTS)
            return HttpResponse.from_error(
                HTTPStatus.FORBIDDEN, f"expected {names} in the header Host"
            )
        path, _, _ = self.path.partition("?")
        route = self.server.routes.get(path)
        if route is None:
            return HttpResponse.from_error(
                HTTPStatus.NOT_FOUND, f"expected one of {', '.join(self.server.routes)}"
            )
        response = route()
        if self.headers.get("If-None-Match") == response.etag:
            return replace(response, content=b"", status=HTTPStatus.NOT_MODIFIED)
        return response

    def _send(self, response: HttpResponse) -> None:
        self.send_response(response.status)
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.content)),
            "Cache-Control": "no-cache",
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        if response.status == HTTPStatus.OK:
            headers["ETag"] = response.etag
        if response.is_gzipped:
            headers["Content-Encoding"] = "gzip"
        if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ALLOWED_METHODS
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.content)
