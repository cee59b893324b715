"""The pods of deploy/kubernetes, from keys to records, in sandboxes on this machine."""

import io
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from conf import compose_settings
from server_app.runs.job import run_in_process
from tests.builders_kubernetes import FOLDER, build_kustomization, find_manifest
from tests.cases import is_long
from tests.integration.conftest import wait_for
from tests.integration.deployed import KEYS, assert_same_run, make_client_data, write_all
from tests.integration.pods import Cluster, Pod, open_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.flower,
    pytest.mark.skipif(not is_long(), reason="only with --long"),
]

# Each message to a node is a process there, which imports PyTorch.
SETTINGS = ("strategy=fedavg", "client.local_epochs=1", "evaluation.clients=priority")
RUN = f"data=npz data.priority=[0] rounds=1 {' '.join(SETTINGS)}"
COPY = 'cat > /srv/fedquorum/part && mv /srv/fedquorum/part "$DATA"'
"""How docs/kubernetes.md brings a client's data to its node."""

ASK = """
import ssl, sys, urllib.error, urllib.request
context = ssl.create_default_context(cafile="/etc/fedquorum/tls/ca.pem")
for url in sys.argv[1:]:
    try:
        request = urllib.request.Request(url, data=b"")
        print(urllib.request.urlopen(request, context=context, timeout=5).status)
    except urllib.error.HTTPError as error:
        print(error.code)
    except urllib.error.URLError as error:
        print(type(error.reason).__name__)
"""


@dataclass
class Running:
    """What ``kubectl apply -k deploy/kubernetes`` starts."""

    cluster: Cluster
    superlink: Pod
    nodes: list[Pod]


@pytest.fixture(scope="module")
def running(sandboxes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Return the server and the nodes, ready, each node with its own data."""
    folder = tmp_path_factory.mktemp("kubernetes")
    manifests = [*build_kustomization(FOLDER), *build_kustomization(FOLDER / "run")]
    supernode = find_manifest(manifests, "StatefulSet", "supernode")
    replicas = supernode["spec"]["replicas"]
    manifests += KEYS["make_kubernetes"](folder / "made", replicas, [])["items"]
    with open_cluster(folder, manifests) as made:
        link = made.make_pod(find_manifest(manifests, "Deployment", "superlink"))
        for name in ("superlink", "proxy", "register"):
            link.start(name)
        nodes = [made.make_pod(supernode, index) for index in range(replicas)]
        waiting = [node.start("data").process for node in nodes]
        link.wait_until_ready()
        for client, node in enumerate(nodes):
            assert waiting[client].poll() is None
            data = io.BytesIO()
            np.savez(data, **make_client_data(client))
            copied = node.run("data", "sh", "-c", COPY, stdin=data.getvalue())
            assert copied.returncode == 0, copied.stderr
        for process, node in zip(waiting, nodes, strict=True):
            assert process.wait(30) == 0
            del node.started["data"]
            node.start("supernode")
        for node in nodes:
            node.wait_until_ready()
        yield Running(made, link, nodes)


def test_a_run_as_in_the_simulation(running: Running, tmp_path: Path) -> None:
    """The Job ends well, its log is the run's, and the server's volume has the records."""
    job = running.cluster.make_pod(find_manifest(list(running.cluster.manifests), "Job", "run"))
    status = job.start("run", "rounds=1", *SETTINGS).process.wait(300)
    log = job.log("run").read_text()
    assert status == 0, log + running.superlink.log("superlink").read_text()
    assert "of no client of this run" not in log
    (run,) = (running.cluster.get_claim_folder("superlink-state") / "outputs" / "custom").iterdir()
    assert f"Results in /var/lib/fedquorum/outputs/custom/{run.name}" in log
    write_all(tmp_path / "all.npz", len(running.nodes))
    words = f"{RUN} data.partition=natural data.path={tmp_path}/all.npz"
    run_in_process(compose_settings("custom", words), str(tmp_path / "simulated"))
    assert_same_run(run, tmp_path / "simulated")
    assert json.loads((run / "manifest.json").read_text())["engine"] == "flower"


def test_a_job_that_is_deleted_stops_its_run(running: Running) -> None:
    """In its grace period; the records say so."""
    outputs = running.cluster.get_claim_folder("superlink-state") / "outputs" / "custom"
    before = set(outputs.iterdir())
    job = running.cluster.make_pod(find_manifest(list(running.cluster.manifests), "Job", "run"), 1)
    job.start("run", "rounds=1000", *SETTINGS)
    found = f"{len(running.nodes)} of {len(running.nodes)} clients found"
    wait_for("the run", lambda: found in job.log("run").read_text(), 180)
    (status,) = job.stop().values()
    assert status not in {0, -signal.SIGKILL}, job.log("run").read_text()
    (run,) = set(outputs.iterdir()) - before
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"


def test_a_node_sees_its_own_key_and_data(running: Running) -> None:
    """No other's, and not the server's."""
    secrets = running.cluster.folder / "made"
    for client, node in enumerate(running.nodes):
        found = node.run("supernode", "sh", "-c", "cat /etc/fedquorum/key; ls /etc/fedquorum/*")
        private = (secrets / "keys" / f"node-{client}").read_text()
        assert (
            found.stdout.decode() == f"{private}/etc/fedquorum/key\n\n/etc/fedquorum/tls:\nca.pem\n"
        )
        assert np.load(node.volumes["data"] / "own.npz")["y_train"].shape == (25 + 10 * client,)


def test_nothing_but_volumes_can_be_written(running: Running) -> None:
    """Not the image, not the data, not the keys; and the user is not root."""
    tried = 'id -u; for place; do touch "$place/file" 2>/dev/null && echo "$place"; done'
    image = ["/", "/etc", "/opt/fedquorum", "/usr/bin", "/var/lib"]
    written = ["/tmp", "/var/lib/fedquorum"]  # noqa: S108 - of the container
    for pod, name, mounted in (
        (running.superlink, "superlink", ["/etc/fedquorum", "/etc/fedquorum/tls"]),
        (running.nodes[0], "supernode", ["/etc/fedquorum/tls", "/srv/fedquorum"]),
    ):
        said = pod.run(name, "sh", "-c", tried, "sh", *image, *mounted, *written)
        assert said.stdout.decode().split() == [str(running.cluster.image.user), *written]
        for mount in pod.get_container(name)["volumeMounts"]:
            there = pod.run(name, "test", "-e", mount["mountPath"])
            assert there.returncode == 0, mount


def test_each_port_has_one_api(running: Running) -> None:
    """Nodes reach the nodes' API; the Control API has its own port, the SuperLink itself none."""
    paths = ("v1/fleet/pull-messages", "v1/control/list-runs", "v1/runtime/pull-messages", "docs")
    urls = [f"https://superlink:{port}/{path}" for port in (9443, 9444, 8000) for path in paths]
    said = running.nodes[0].run("supernode", sys.executable, "-c", ASK, *urls)
    taken, not_there, refused = (
        "415",
        "404",
        "ConnectionRefusedError",
    )  # 415: by Flower, no protobuf
    assert said.stdout.decode().split() == [
        *(taken, not_there, not_there, not_there),
        *(not_there, taken, not_there, not_there),
        *([refused] * 4),
    ], said.stderr


def test_a_new_line_lets_a_node_in(running: Running) -> None:
    """The container that registers keys sees the change of the file, and may start again."""
    KEYS["make_node"](running.cluster.folder / "new")
    public = (running.cluster.folder / "new.pub").read_text()
    nodes = running.superlink.volumes["nodes"] / "nodes"
    new = len(running.nodes)
    nodes.write_text(f"{nodes.read_text()}# a comment\n\n{new} {public}")
    log = running.superlink.log("register")
    wait_for("the new key", lambda: f"client {new}: registered\n" in log.read_text(), 60)
    assert "before" not in log.read_text()
    assert running.superlink.started["register"].stop(60) == 0
    running.superlink.start("register")
    again = f"client {new}: was registered before\n"
    wait_for("all keys again", lambda: again in log.read_text(), 120)
    for client in range(new + 1):
        assert log.read_text().count(f"client {client}: registered\n") == 1


def test_pods_stop_on_request(running: Running) -> None:
    """Within their grace period and by themselves; a node signs off."""
    pods = [*running.nodes, running.superlink]
    assert [pod.stop() for pod in pods] == [
        *([{"supernode": 0}] * len(running.nodes)),
        {"register": 0, "proxy": 0, "superlink": 0},
    ]
    for node in running.nodes:
        assert "SuperNode terminated gracefully" in node.log("supernode").read_text()
