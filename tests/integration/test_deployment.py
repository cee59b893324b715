"""A deployment as in docs/deployment.md: SuperLink and SuperNodes over TLS on loopback."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.audit.check import audit_run
from fedquorum.records.run_dir import read_manifest_or_empty

from conf import compose_settings
from server_app.runs.job import run_in_process
from tests.builders_runs import read_rows
from tests.cases import is_long
from tests.integration.conftest import BIN, Shell, find_free_port, wait_for
from tests.integration.deployed import (
    Deployment,
    assert_same_run,
    make_certificates,
    make_client_data,
    start_deployment,
    write_all,
)

pytestmark = [pytest.mark.slow, pytest.mark.flower]

CLIENTS = 5 if is_long() else 3  # each message to a node is a process there
RUN = "data=npz data.priority=[0,1] evaluation.every=2 client.local_epochs=1"
ON_DEVICES = (
    f"{RUN} data.partition=device data.path=here.npz data.num_clients={CLIENTS} "
    "data.input_shape=[8] data.num_classes=3"
)
STRATEGIES = {
    # A volunteer that fits trains in the first round, and in the second nobody fits.
    "fedalign": "rounds=2 strategy=fedalign strategy.epsilon=0.05 strategy.epsilon_schedule=linear "
    "strategy.warmup_fraction=0 evaluation.finetune_epochs=2 evaluation.alone_epochs=1",
    "fedau": "rounds=2 strategy=fedau strategy.cutoff=5 availability=bernoulli availability.p=0.6 "
    "evaluation.clients=priority",
    "aaggff_s": f"rounds={2 if is_long() else 1} strategy=aaggff_s evaluation.clients=priority",
}

Simulated = Callable[[str], Path]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Return a SuperLink with TLS and authentication, SuperNodes, and one that is uninvited.

    That is registered at the SuperLink, says it is client 0, and is in no line of the server's
    file.
    """
    with start_deployment(tmp_path_factory.mktemp("deployment")) as made:
        names = [f"node-{client}" for client in range(CLIENTS)]
        made.register_clients(names)
        made.register("uninvited")
        for name, client in [*zip(names, range(CLIENTS), strict=True), ("uninvited", 0)]:
            data = made.folder / f"data of {name}.npz"
            np.savez(data, **make_client_data(client))
            preload = name not in ("node-0", "uninvited")  # that is only for nodes with messages
            made.start_node(name, client, data=data, preload=preload)
        yield made


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """Return what runs a strategy's job in process, on the data of all devices in one file."""
    folder = tmp_path_factory.mktemp("simulated")
    write_all(folder / "all.npz", CLIENTS)

    def simulate(name: str) -> Path:
        words = f"{RUN} {STRATEGIES[name]} data.partition=natural data.path={folder}/all.npz"
        run_in_process(compose_settings("custom", words), str(folder / name))
        return folder / name

    return simulate


def statuses(run: Path, client: int) -> list[str]:
    """Return a client's status in each round of a run."""
    rows = read_rows(run)
    return [row["status"] for row in rows if row["client"] == client]


def test_fedalign_as_in_the_simulation(
    deployment: Deployment, simulation: Simulated, ssh_keygen: str
) -> None:
    """Devices give the same numbers as in process; the uninvited node gets no message."""
    overrides = f"{ON_DEVICES} {STRATEGIES['fedalign']} engine.node_keys={deployment.nodes}"
    done = deployment.run("fedalign", overrides, "--stream")
    assert done.status == 0, done.stderr
    assert_same_run(deployment.folder / "fedalign", simulation("fedalign"))
    assert statuses(deployment.folder / "fedalign", 2) == ["trained", "declined"]
    fingerprint = key_fingerprint(ssh_keygen, deployment.make_key("uninvited"))
    assert f"with key {fingerprint} is of no client of this run" in done.stdout
    assert "RUN" not in deployment.log("uninvited").read_text()


@pytest.mark.skipif(not is_long(), reason="only with --long")
@pytest.mark.parametrize("strategy", ["fedau", "aaggff_s"])
def test_others_as_in_the_simulation(
    deployment: Deployment, simulation: Simulated, strategy: str
) -> None:
    """``engine=flower engine.superlink=NAME`` submits to the deployment: same numbers there."""
    words = f"experiment=custom {ON_DEVICES} {STRATEGIES[strategy]} engine=flower".split()
    words += [
        "engine.superlink=deployment",
        "engine.node_keys=nodes.txt",
        f"hydra.run.dir={strategy}",
    ]
    done = Shell(deployment.folder, deployment.env)("fedquorum", *words)
    assert done.status == 0, done.stdout + done.stderr
    assert_same_run(deployment.folder / strategy, simulation(strategy))
    if strategy == "fedau":
        assert set(statuses(deployment.folder / strategy, 2)) == {"trained", "unavailable"}


@pytest.mark.skipif(not is_long(), reason="only with --long")
def test_a_quorum_does_not_wait_for_a_frozen_node(deployment: Deployment) -> None:
    """It is late in the round in which it froze, and busy in the next one, without a message."""
    words = f"rounds=2 strategy=fedavg engine.quorum={CLIENTS - 1} evaluation.clients=priority"
    overrides = f"{ON_DEVICES} {words} engine.node_keys={deployment.nodes}"
    submitted = json.loads(deployment.run("quorum", overrides, "--format", "json").stdout)
    run = deployment.folder / "quorum"
    started = f"[RUN {submitted['run-id']}, ROUND train 1]"
    log = deployment.log("node-2")
    wait_for("client 2 is asked", lambda: started in log.read_text(errors="replace"), 120)
    deployment.send_signal("node-2", signal.SIGSTOP)
    try:
        wait_for("the run ends", lambda: status_of(run) not in {None, "running"}, 180)
    finally:
        deployment.send_signal("node-2", signal.SIGCONT)
    assert status_of(run) == "completed"
    assert statuses(run, 2) == ["late", "busy"]
    for client in set(range(CLIENTS)) - {2}:
        assert statuses(run, client) == ["trained", "trained"]
    assert not audit_run(run).mismatches


def status_of(run: Path) -> str | None:
    """Return what the run's manifest says, None before there is one."""
    return read_manifest_or_empty(run).get("status")


def test_without_a_registered_key_no_node_gets_in(deployment: Deployment) -> None:
    """A SuperNode with a key that nobody registered, or with none, is turned away."""
    refused = [deployment.start_node("unregistered", 1, preload=False)]
    command = [str(BIN / "flower-supernode"), "--superlink", f"127.0.0.1:{deployment.port}"]
    command += ["--root-certificates", str(deployment.folder / "tls" / "ca.pem")]
    command += ["--node-config", "client-id=1", "--port", str(find_free_port())]
    refused.append(deployment.start("keyless", command, FLWR_HOME=deployment.folder / "keyless"))
    assert all(node.wait(60) != 0 for node in refused)
    for name in ("unregistered", "keyless"):
        log = deployment.log(name).read_text()
        assert "Failed to initialize the connection to the SuperLink" in log
    listed = json.loads(
        deployment.run_flwr("supernode", "list", "deployment", "--format", "json").stdout
    )
    assert len(listed["nodes"]) == CLIENTS + 1


def test_a_node_does_not_trust_another_certificate(deployment: Deployment) -> None:
    """A node with the certificate of another authority does not talk to this SuperLink."""
    make_certificates(deployment.folder / "elsewhere")
    ca = deployment.folder / "elsewhere" / "ca.pem"
    node = deployment.start_node("mistaken", 1, ca=ca, preload=False)
    assert node.wait(60) != 0
    assert "SSL/TLS handshake error" in deployment.log("mistaken").read_text()


def test_no_secret_is_left_behind(deployment: Deployment) -> None:
    """No private key is in any record, log or database of the runs above."""
    private_folders = {"keys", "tls", "elsewhere"}
    private = [path for path in (deployment.folder / "keys").iterdir() if not path.suffix]
    secrets = [
        line.encode()
        for path in [deployment.folder / "tls" / "server.key", *private]
        for line in path.read_text().splitlines()
        if not line.startswith("-----")
    ]
    assert len(secrets) > 2 * CLIENTS
    left = [
        path
        for path in deployment.folder.rglob("*")
        if path.is_file() and path.relative_to(deployment.folder).parts[0] not in private_folders
    ]
    assert {"superlink.log", "superlink.db", "node-0.log"} <= {path.name for path in left}
    for path in left:
        content = path.read_bytes()
        assert not [path for secret in secrets if secret in content]


def key_fingerprint(ssh_keygen: str, path: Path) -> str:
    """Return what ssh-keygen prints for a key, by an implementation that is not ours."""
    printed: Any = subprocess.check_output([ssh_keygen, "-l", "-f", f"{path}.pub"], text=True)
    return str(printed.split()[1])
