"""One probe as a kubelet makes it: ``python probe.py grpc|httpGet|tcpSocket ADDRESS PORT [PATH]``.

A script, because it runs where the network of the pods is. It ends with 0 if the probe succeeds.
"""

import socket
import ssl
import sys
import urllib.request

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

SECONDS = 5


def main(kind: str, address: str, port: str, path: str = "/") -> None:
    """Make the probe; one that fails ends in its exception."""
    if kind == "tcpSocket":
        socket.create_connection((address, int(port)), SECONDS).close()
    elif kind == "httpGet":
        unverified = ssl.create_default_context()  # as a kubelet does
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        url = f"https://{address}:{port}{path}"
        urllib.request.urlopen(url, timeout=SECONDS, context=unverified).close()
    else:
        with grpc.insecure_channel(f"{address}:{port}") as channel:
            answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=SECONDS)
        assert answer.status == HealthCheckResponse.SERVING


if __name__ == "__main__":
    main(*sys.argv[1:])
