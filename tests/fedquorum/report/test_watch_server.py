"""Tests of the server of the page that follows a run: allowed requests and responses."""

import gzip
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from fedquorum.report import watch as watch_module
from fedquorum.report import watch_server
from fedquorum.report.cli import main
from fedquorum.report.watch import RunWatcher
from fedquorum.report.watch_server import WatchServer
from plotly.offline import get_plotlyjs
from prometheus_client.parser import text_string_to_metric_families

from tests.fedquorum.records.made import (
    add_rounds,
    make_accuracy,
    make_round_line,
    make_run,
    write_part,
    write_population,
)


class Client:
    """A client of a server in this process."""

    def __init__(self, server: WatchServer) -> None:
        self.server = server
        self.port = server.server_port

    def request(
        self, path: str = "/", method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Send a request, and return status, headers and text of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        text = reply.read().decode(errors="replace")
        connection.close()
        return reply.status, dict(reply.headers), text

    def send(self, data: bytes) -> bytes:
        """Send raw bytes, and return the raw response."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(4096), b""))

    def read_samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Read the metrics by name and labels."""
        self.server.watch.draw()
        status, _, text = self.request("/metrics")
        assert status == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make a running run of one round."""
    return make_run(tmp_path / "runs" / "run", [make_round_line(1)], status="running", rounds=10)


@pytest.fixture
def client(run: Path) -> Iterator[Client]:
    """Serve the run on a free port."""
    yield from serve(run)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Serve a run that no test changes."""
    folder = tmp_path_factory.mktemp("idle") / "runs" / "run"
    yield from serve(make_run(folder, [make_round_line(1)], status="running", rounds=10))


def serve(run: Path) -> Iterator[Client]:
    with WatchServer(run, 0) as server:
        server.watch.draw()
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield Client(server)
        server.shutdown()
        serving.join()


# --- allowed requests ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/content", "/content?a=b", "/plotly.js", "/metrics"])
def test_every_response_restricts_the_browser(idle: Client, path: str) -> None:
    """Only the page's scripts, no other origins, no frames; HEAD has the same headers."""
    status, headers, text = idle.request(path)
    assert status == 200
    assert int(headers["Content-Length"]) >= len(text)
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert [kind for kind, sources in policy.items() if "unsafe" in sources] == ["style-src-attr"]
    hashes = [*policy["style-src"].split(), *policy["script-src"].removeprefix("'self' ").split()]
    assert all(re.fullmatch(r"'sha256-[\w+/]{43}='", one) for one in hashes)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Server"] == "fedquorum"
    assert "Access-Control-Allow-Origin" not in headers
    for_head = idle.request(path, "HEAD")
    assert for_head[0] == 200
    assert for_head[2] == ""
    changing = {"Date", "Content-Length"}
    assert {k: v for k, v in for_head[1].items() if k not in changing} == {
        k: v for k, v in headers.items() if k not in changing
    }


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get"])
def test_only_reading_methods_are_allowed(idle: Client, method: str) -> None:
    """Any other method is refused with a text."""
    status, headers, text = idle.request("/content", method)
    assert (status, headers["Allow"], text) == (405, "GET, HEAD", "Method Not Allowed\n")
    assert headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "192.168.0.1", "[::1]"],
)
def test_a_foreign_host_name_is_refused(idle: Client, host: str) -> None:
    """DNS rebinding lets another page's name resolve to this machine."""
    for path in ("/", "/content", "/plotly.js", "/metrics"):
        status, _, text = idle.request(path, Host=host)
        assert (status, text) == (403, "expected 127.0.0.1 or localhost in the header Host\n")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9000"])
def test_the_host_may_have_any_port(idle: Client, host: str) -> None:
    """For example behind ``ssh -L 9000:localhost:8475``."""
    assert idle.request("/content", Host=host)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "/content/",
        "/content/../manifest.json",
        "//evil.example/content",
        "/etc/passwd",
        "/%2e%2e/x",
        "/favicon",
    ],
)
def test_there_are_four_paths(idle: Client, path: str) -> None:
    """No file is served by its name; the text lists the four paths."""
    status, _, text = idle.request(path)
    assert (status, text) == (404, "expected one of /, /content, /plotly.js, /metrics\n")


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"403"),
        (b"GET / HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"403"),
        (b"GET http://localhost/ HTTP/1.0\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /../../etc/passwd HTTP/1.0\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.0\r\n\r\n", b"414"),
        (b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
    ],
)
def test_malformed_requests_are_refused(
    idle: Client, capfd: pytest.CaptureFixture[str], request_text: bytes, status: bytes
) -> None:
    """With a status, and without output on the terminal."""
    reply = idle.send(request_text)
    assert reply.split()[1] == status
    assert b"script-src" in reply
    assert capfd.readouterr() == ("", "")


def test_other_machines_cannot_connect(run: Path) -> None:
    """The server listens only on the loopback address."""
    with WatchServer(run, 0) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


# --- responses ----------------------------------------------------------------------------------


def test_the_page_contains_nothing_from_a_run(idle: Client) -> None:
    """It is the same for all runs; the content and Plotly.js are separate requests."""
    _, headers, text = idle.request("/")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "synth_low" not in text
    assert len(text) < 50_000
    assert not re.search(r"(src|href)=[\"']?https?:", text)


def test_plotly_is_the_installed_version(idle: Client) -> None:
    """It is served compressed."""
    connection = http.client.HTTPConnection("127.0.0.1", idle.port, timeout=10)
    connection.request("GET", "/plotly.js")
    reply = connection.getresponse()
    assert reply.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(reply.read()).decode() == get_plotlyjs()
    connection.close()


@pytest.mark.parametrize("path", ["/content", "/plotly.js"])
def test_cached_content_is_not_sent_again(idle: Client, path: str) -> None:
    """The browser names its cached content by the entity tag."""
    _, headers, _ = idle.request(path, "HEAD")
    status, again, text = idle.request(path, **{"If-None-Match": headers["ETag"]})
    assert (status, text, again["Content-Length"]) == (304, "", "0")
    assert idle.request("/metrics", **{"If-None-Match": headers["ETag"]})[0] == 200


def test_the_content_follows_the_run(client: Client, run: Path) -> None:
    """A response never waits for drawing: it has the last drawn content."""
    first = client.request("/content")
    assert "round 1 of 10" in first[2]
    add_rounds(run, make_round_line(2))
    tag = {"If-None-Match": first[1]["ETag"]}
    assert client.request("/content", **tag)[0] == 304
    client.server.watch.draw()
    status, _, text = client.request("/content", **tag)
    assert (status, "round 2 of 10" in text) == (200, True)


def test_a_request_that_fails_is_one_line(
    client: Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The terminal shows no traceback."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(watch_server._Handler, "_build_response", fail)
    client.send(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert capfd.readouterr().err == "a request failed: ZeroDivisionError\n"


# --- metrics --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_metrics_equal_the_records(client: Client, run: Path) -> None:
    """As read by Prometheus' parser."""
    late = [{"round": 1, "client": 1, "reply_seconds": 1.0}]
    add_rounds(
        run,
        make_round_line(
            2,
            simulated_seconds=7.5,
            late=2,
            late_replies=late,
            duration_seconds=1.5,
            test=make_accuracy(0.75),
        ),
    )
    write_population(run, rates=[1.0] * 3, priority=[True, False, False])
    write_part(run, 0, [{"round": 2, "client": 0}, {"round": 2, "client": 1, "status": "late"}])
    found = client.read_samples()

    def get_value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert get_value("fedquorum_round") == 2
    assert get_value("fedquorum_rounds") == 10
    assert get_value("fedquorum_runs", status="running") == 1
    assert get_value("fedquorum_run_status", status="running") == 1
    assert get_value("fedquorum_run_status", status="failed") == 0
    assert get_value("fedquorum_round_seconds") == 1.5
    assert get_value("fedquorum_seconds_total") == pytest.approx(1.6)
    assert get_value("fedquorum_global_loss") == 1.0
    assert get_value("fedquorum_accuracy", clients="priority", statistic="mean") == 0.75
    assert get_value("fedquorum_accuracy", clients="priority", statistic="worst") == 0.375
    assert get_value("fedquorum_test_loss", clients="all", statistic="mean") == 1.0
    assert get_value("fedquorum_clients", status="late") == 2
    assert get_value("fedquorum_answers_total", status="trained") == 6
    assert get_value("fedquorum_late_replies_total") == 1
    assert get_value("fedquorum_bytes_total", direction="down") == 20
    assert get_value("fedquorum_bytes_total", direction="up") == 40
    assert get_value("fedquorum_simulated_seconds") == 7.5
    assert get_value("fedquorum_clients_connected") == 2
    assert get_value("fedquorum_clients_known") == 3
    assert get_value("fedquorum_unreadable_records") == 0
    written = get_value("fedquorum_last_record_timestamp_seconds")
    assert written == pytest.approx((run / "rounds.jsonl").stat().st_mtime)
    labels = {"run": ".", "experiment": "fedalign/synth_low", "strategy": "fedalign", "seed": "1"}
    assert get_value("fedquorum_run_info", **labels) == 1


def test_every_metric_is_described(idle: Client) -> None:
    """Each has a HELP and a TYPE line; unknown metrics are absent."""
    _, headers, text = idle.request("/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(text))
    assert len(families) > 15
    for family in families:
        assert family.documentation
        assert family.type in ("gauge", "counter")
        assert family.name.startswith("fedquorum_")
    assert "fedquorum_simulated_seconds" not in text


def test_hostile_labels_are_escaped(client: Client, run: Path) -> None:
    """Quotes and line ends in a run's name cannot add a metric."""
    manifest = json.loads((run / "manifest.json").read_text())
    name = 'x"} 1 \\n fedquorum_round 99'
    (run / "manifest.json").write_text(json.dumps(manifest | {"experiment": name}))
    found = client.read_samples()
    assert found["fedquorum_round", frozenset()] == 1
    (info,) = [dict(labels) for family, labels in found if family == "fedquorum_run_info"]
    assert info["experiment"] == name
    (run / "manifest.json").write_text(json.dumps(manifest | {"experiment": 'x"}\nfedquorum 1'}))
    found = client.read_samples()
    assert found["fedquorum_unreadable_records", frozenset()] == 1
    assert ("fedquorum", frozenset()) not in found


def test_a_metric_other_than_accuracy_is_named(client: Client, run: Path) -> None:
    """The spread over clients is that of ``evaluation.metric``."""
    (run / "config.yaml").write_text("evaluation:\n  metric: auroc\n")
    test = {"all": {"loss": 1.0, "accuracy": 0.5, "auroc": 0.9, "worst": 0.8}}
    add_rounds(run, make_round_line(2, test=test))
    found = {
        key: get_value
        for key, get_value in client.read_samples().items()
        if "statistic" in dict(key[1])
    }
    all_clients = {("clients", "all")}
    assert found == {
        ("fedquorum_accuracy", frozenset({*all_clients, ("statistic", "mean")})): 0.5,
        ("fedquorum_test_loss", frozenset({*all_clients, ("statistic", "mean")})): 1.0,
        ("fedquorum_test_auroc", frozenset({*all_clients, ("statistic", "mean")})): 0.9,
        ("fedquorum_test_auroc", frozenset({*all_clients, ("statistic", "worst")})): 0.8,
    }


def test_a_folder_without_runs_has_metrics(tmp_path: Path) -> None:
    """Prometheus may start before the first run, but not before the first reading."""
    watch = RunWatcher(tmp_path)
    assert watch.metrics is None
    watch.draw()
    assert watch.metrics is not None
    assert b'fedquorum_runs{status="running"} 0.0' in watch.metrics
    assert b"fedquorum_round " not in watch.metrics


def test_metrics_are_not_made_up_while_records_are_read(client: Client) -> None:
    """Prometheus treats the response as a failure and retries."""
    client.server.watch.metrics = None
    assert client.request("/metrics")[::2] == (503, "the records are being read\n")


def test_without_prometheus_the_page_remains(
    client: Client, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names the package to install."""
    for module in (watch_server, watch_module):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    status, _, text = client.request("/metrics")
    assert status == 501
    assert text == ("/metrics needs the package prometheus_client: pip install prometheus-client\n")
    with WatchServer(run, 0) as server:
        server.watch.draw()
        assert "round 1 of 10" in server.watch.content
        assert server.watch.metrics is None
        assert server.metrics_notice == text.strip()


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--watch", "a", "b"], "give only one of DIR and --watch DIR"),
        (["a", "--port", "1"], "--port needs --watch DIR, whose page it serves"),
        (
            ["--watch", "a", "--paper-width", "3"],
            "--paper-width needs a DIR with runs, whose figures it ",
        ),
        (["--watch", "a", "--port", "65536"], "expected a whole number from 0 to 65535"),
        (["--watch", "a", "--port", "http"], "expected a whole number from 0 to 65535, got 'http'"),
        ([], "give a DIR with runs, or --watch DIR"),
    ],
)
def test_options_that_exclude_each_other(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage is followed by one line with the problem."""
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err.splitlines()[-1]


def test_a_port_in_use_and_a_missing_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--watch", str(run), "--port", str(port)]) == 1
    assert main(["--watch", str(tmp_path / "nowhere")]) == 1
    assert main(["--watch", str(run / "manifest.json")]) == 1
    first, *others = capsys.readouterr().err.splitlines()
    assert first == (
        f"fedquorum-report: --port must be a port that is free (0 takes any), got {port}: "
        "Address already in use"
    )
    assert others == [
        f"fedquorum-report: --watch must be a run or a folder with runs, got {path}"
        for path in (tmp_path / "nowhere", run / "manifest.json")
    ]


@pytest.mark.slow
def test_ctrl_c_ends_it(run: Path) -> None:
    """It prints the page's address, responds, and exits without a traceback."""
    program = "import sys; from fedquorum.report.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "--watch", str(run), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/", first)
        assert url, first
        assert first.startswith(f"Following {run} at ")
        assert process.stdout.readline() == f"Metrics for Prometheus: {url[0]}metrics\n"
        content = b""
        while b"round 1 of 10" not in content:
            with urlopen(f"{url[0]}content") as reply:  # noqa: S310 - our own
                content = reply.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "fedquorum-report: no longer followed\n")
