"""The page, its data and the metrics, served to this machine alone."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs

from fedquorum.errors import RunError

from server_app.report.watch.page import WatchPage
from server_app.report.watch.watch import Watch

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
"""Names under which a browser reaches this server.

Another name in a request means that some page made its own name point to this machine. The port is
of no account: it is another one behind an SSH tunnel.
"""
METHODS = "GET, HEAD"
TIMEOUT_SECONDS = 10.0
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
NO_METRICS = "/metrics needs the package prometheus_client: pip install prometheus-client"


@dataclass(frozen=True)
class Answer:
    """What is answered to a request."""

    content: bytes
    content_type: str
    status: HTTPStatus = HTTPStatus.OK

    @classmethod
    def refusal(cls, status: HTTPStatus, reason: str) -> "Answer":
        """Return why a request is refused, in one line."""
        return cls(f"{reason}\n".encode(), TEXT, status)


Route = Callable[[Mapping[str, str], str], Answer]
"""Answers a request with this query, and this header ``Accept``."""


class WatchServer(ThreadingHTTPServer):
    """Serves a page that follows the runs of a folder; use as a context manager.

    Parameters
    ----------
    root : Path
        A run, or a folder with runs.
    port : int
        Where to listen; 0 for any port that is free.

    Raises
    ------
    RunError
        If ``root`` is no folder, or the port cannot be used.
    """

    def __init__(self, root: Path, port: int) -> None:
        if not root.is_dir():
            raise RunError(f"--watch must be a run or a folder with runs, got {root}")
        self._watch = Watch(root.resolve())
        self._page = WatchPage.made()
        self.policy = self._page.policy
        self.routes: Mapping[str, Route] = {
            "/": self._answer_page,
            "/data": self._answer_data,
            "/metrics": self._answer_metrics,
        }
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise RunError(
                f"--port must be a port that is free (0 takes any), got {port}: {error.strerror}"
            ) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def metrics_notice(self) -> str:
        """Where the metrics are, or what they need."""
        return NO_METRICS if _no_metrics() else f"Metrics for Prometheus: {self.url}metrics"

    def server_bind(self) -> None:
        """Bind without looking the address up, which may take long and tells nothing."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.socket.getsockname()[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in one line that a request was not answered; nothing of a browser that went away."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            print(f"fedquorum-report: a request failed: {type(error).__name__}", file=sys.stderr)

    def _answer_page(self, _query: Mapping[str, str], _accept: str) -> Answer:
        return Answer(self._page.content, HTML)

    def _answer_data(self, query: Mapping[str, str], _accept: str) -> Answer:
        found = self._watch.data(query.get("run"), query.get("drawn", ""))
        return Answer(json.dumps(found, allow_nan=False).encode(), JSON)

    def _answer_metrics(self, _query: Mapping[str, str], accept: str) -> Answer:
        if _no_metrics():
            return Answer.refusal(HTTPStatus.NOT_IMPLEMENTED, NO_METRICS)
        return Answer(*self._watch.metrics(accept))


def _no_metrics() -> bool:
    return find_spec("prometheus_client") is None


class _Handler(BaseHTTPRequestHandler):
    """Answers the three paths of a ``WatchServer``, and nothing else."""

    server: WatchServer
    timeout = TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Answer a request."""
        self._send(self._answer())

    do_HEAD = do_GET  # noqa: N815 - as above; no content is sent

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what http.server refuses, such as other methods, without its page."""
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self._send(Answer.refusal(status, status.phrase))

    def version_string(self) -> str:
        """Say nothing of versions."""
        return "fedquorum-report"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as in http.server
        """Log nothing: a request may hold what a terminal obeys."""

    def _answer(self) -> Answer:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].partition(":")[0].lower() not in HOSTS:
            names = " or ".join(HOSTS)
            return Answer.refusal(HTTPStatus.FORBIDDEN, f"expected {names} in the header Host")
        path, _, query = self.path.partition("?")
        route = self.server.routes.get(path)
        if route is None:
            return Answer.refusal(
                HTTPStatus.NOT_FOUND, f"expected one of {', '.join(self.server.routes)}"
            )
        try:
            words = {name: values[0] for name, values in parse_qs(query).items()}
            return route(words, self.headers.get("Accept", ""))
        except Exception as error:
            reason = f"the records cannot be shown ({type(error).__name__})"
            return Answer.refusal(HTTPStatus.INTERNAL_SERVER_ERROR, reason)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.content)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = METHODS
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)
