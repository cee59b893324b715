"""The manifests in deploy/kubernetes: valid, complete, and no container with privileges."""

import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from conf.compose import compose_overrides
from server_app.runs.node_keys import read_node_keys
from tests.builders_kubernetes import (
    FOLDER,
    ROOT,
    Manifest,
    build_kustomization,
    find_manifest,
    get_containers,
    get_data_files,
    get_mounted_files,
    get_pod_spec,
    read_containerfile,
    read_manifests,
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN = build_kustomization(FOLDER / "run")
MANIFESTS = [*build_kustomization(FOLDER), *RUN, *read_manifests(FOLDER / "namespace.yaml")]
OWNERS = [manifest for manifest in MANIFESTS if get_containers(manifest)]
CONTAINERS = [
    pytest.param(owner, container, id=f"{owner['metadata']['name']}-{container['name']}")
    for owner in OWNERS
    for container in get_containers(owner)
]
SUPERLINK = find_manifest(MANIFESTS, "Deployment", "superlink")
SUPERNODE = find_manifest(MANIFESTS, "StatefulSet", "supernode")
JOB = find_manifest(MANIFESTS, "Job", "run")
NODES = SUPERNODE["spec"]["replicas"]
VERSIONS = ("1.28", kubernetes_validate.latest_version())
"""Of Kubernetes: the oldest of docs/kubernetes.md, and the newest known."""


def name_of(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def kubernetes(folder: Path, *words: str) -> list[Manifest]:
    """Return what ``keys.py kubernetes`` prints for a folder."""
    command = [sys.executable, str(ROOT / "deploy" / "keys.py"), "kubernetes", str(folder), *words]
    printed: list[Manifest] = json.loads(subprocess.check_output(command, text=True))["items"]
    return printed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """Return the Secrets and ConfigMaps that keys.py makes for the nodes of the manifests."""
    return kubernetes(tmp_path_factory.mktemp("keys") / "made", "--nodes", str(NODES))


def container(owner: Manifest, name: str) -> Manifest:
    """Return one container of a manifest's pods."""
    (found,) = [each for each in get_containers(owner) if each["name"] == name]
    return found


def environment(manifest: Manifest) -> dict[str, str]:
    """Return a container's variables; those that a pod fills in are "0"."""
    return {each["name"]: each.get("value", "0") for each in manifest.get("env", ())}


# --- valid -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=name_of)
def test_every_manifest_is_valid(manifest: Manifest, version: str) -> None:
    """By the schema of its kind, without fields that this does not have."""
    assert kubernetes_validate.validate(manifest, version, strict=True)


def test_what_keys_are_mounted_from_is_valid(made: list[Manifest]) -> None:
    """The Secrets and ConfigMaps that keys.py prints."""
    assert {name_of(each) for each in made} == {
        *("Secret superlink-tls", "Secret supernode-keys"),
        *("ConfigMap superlink-ca", "ConfigMap nodes"),
    }
    for manifest in made:
        assert kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(
    ("at", "value"),
    [("replica", 3), ("replicas", "3"), ("template", {"spec": {"container": []}})],
)
def test_a_slip_is_found(at: str, value: Any) -> None:
    """An unknown field, a value of another type, and both further down."""
    wrong = {**SUPERNODE, "spec": {**SUPERNODE["spec"], at: value}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_file_is_used() -> None:
    """By a kustomization, or it is one; the namespace is applied by itself, for good reason."""
    used = {Path("namespace.yaml")}
    for path in FOLDER.rglob("kustomization.yaml"):
        (said,) = read_manifests(path)
        used.add(path.relative_to(FOLDER))
        names = [*said.get("resources", ())]
        names += [name for each in said.get("configMapGenerator", ()) for name in each["files"]]
        used |= {(path.parent / name).relative_to(FOLDER) for name in names}
    assert used == {path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file()}


# --- no privileges -------------------------------------------------------------------------


@pytest.mark.parametrize("owner", OWNERS, ids=name_of)
def test_pods_have_no_privileges(owner: Manifest) -> None:
    """Not root, the user of the image, the runtime's seccomp profile, nothing of the machine."""
    pod = get_pod_spec(owner)
    user = read_containerfile().user
    assert user > 0
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {user}
    assert pod["automountServiceAccountToken"] is False
    assert pod["terminationGracePeriodSeconds"] >= 30
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    kinds = {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}}
    assert kinds <= {"configMap", "secret", "projected", "emptyDir", "persistentVolumeClaim"}


@pytest.mark.parametrize(("owner", "manifest"), CONTAINERS)
def test_containers_have_no_privileges(owner: Manifest, manifest: Manifest) -> None:
    """No capabilities, a read-only root filesystem, and nothing that takes this back."""
    assert manifest["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= manifest["resources"]["requests"].keys()
    assert "memory" in manifest["resources"]["limits"]


def test_the_namespace_refuses_privileges() -> None:
    """The API server enforces the strictest standard there; everything is in that namespace."""
    (namespace,) = read_manifests(FOLDER / "namespace.yaml")
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {each["metadata"].get("namespace") for each in MANIFESTS} == {
        None,
        namespace["metadata"]["name"],
    }


# --- keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", OWNERS, ids=name_of)
def test_every_mount_has_a_volume(owner: Manifest, made: list[Manifest]) -> None:
    """No volume is left over, each Secret, ConfigMap and claim exists, with the files mounted."""
    known = [*MANIFESTS, *made]
    templates = owner["spec"].get("volumeClaimTemplates", ())
    volumes = {volume["name"]: volume for volume in get_pod_spec(owner)["volumes"]}
    volumes |= {template["metadata"]["name"]: {} for template in templates}
    mounted = [mount for each in get_containers(owner) for mount in each["volumeMounts"]]
    assert {mount["name"] for mount in mounted} == volumes.keys()
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            assert find_manifest(known, "PersistentVolumeClaim", claim)
        files = get_mounted_files(volume, known)
        assert bool(files) == bool({"configMap", "secret", "projected"} & volume.keys())
        for mount in mounted:
            if files and mount["name"] == volume["name"]:
                assert mount["readOnly"] is True
                at = mount.get("subPath") or mount.get("subPathExpr", "")
                assert not at or at.replace("$(CLIENT)", str(NODES - 1)) in files


def mounted_at(owner: Manifest, name: str, known: list[Manifest]) -> set[str]:
    """Return the paths of the files of Secrets and ConfigMaps that a container sees."""
    volumes = {volume["name"]: volume for volume in get_pod_spec(owner)["volumes"]}
    seen: set[str] = set()
    for mount in container(owner, name)["volumeMounts"]:
        files = get_mounted_files(volumes.get(mount["name"], {}), known)
        if "subPath" in mount or "subPathExpr" in mount:
            seen.add(mount["mountPath"])
        else:
            seen |= {f"{mount['mountPath']}/{file}" for file in files}
    return seen


def test_who_sees_which_key(made: list[Manifest]) -> None:
    """A node its own one; the server's those who serve; a run and what registers keys none."""
    known = [*MANIFESTS, *made]
    tls = "/etc/fedquorum/tls"
    served = {f"{tls}/ca.pem", f"{tls}/server.pem", f"{tls}/server.key", "/etc/fedquorum/nodes"}
    config = "/var/lib/fedquorum/config.toml"
    assert mounted_at(SUPERLINK, "superlink", known) == served
    assert mounted_at(SUPERLINK, "proxy", known) == served | {"/etc/nginx/proxy/nginx.conf"}
    assert mounted_at(SUPERLINK, "register", known) == {
        *(f"{tls}/ca.pem", "/etc/fedquorum/nodes", config)
    }
    assert mounted_at(SUPERNODE, "data", known) == set()
    assert mounted_at(SUPERNODE, "supernode", known) == {f"{tls}/ca.pem", "/etc/fedquorum/key"}
    assert mounted_at(JOB, "run", known) == {f"{tls}/ca.pem", config}
    (key,) = [
        mount
        for mount in container(SUPERNODE, "supernode")["volumeMounts"]
        if mount["name"] == "keys"
    ]
    assert key["subPathExpr"] == "node-$(CLIENT)"
    (client,) = [
        each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container(SUPERNODE, "supernode")["env"]
        if each["name"] == "CLIENT"
    ]
    assert client == "metadata.labels['apps.kubernetes.io/pod-index']"


def test_keys_fit_to_each_other(made: list[Manifest], tmp_path: Path) -> None:
    """The server's file has for each client the public half of the key that its pod mounts."""
    keys = get_data_files(find_manifest(made, "Secret", "supernode-keys"))
    (tmp_path / "nodes").write_bytes(
        get_data_files(find_manifest(made, "ConfigMap", "nodes"))["nodes"]
    )
    clients = read_node_keys(str(tmp_path / "nodes"), NODES)
    assert sorted(clients.values()) == [{client} for client in range(NODES)]
    lines = (tmp_path / "nodes").read_text().splitlines()
    assert len(keys) == len(lines) == NODES
    for line in lines:
        client, _, public = line.partition(" ")
        private = load_ssh_private_key(keys[f"node-{client}"], None)
        assert private.public_key() == load_ssh_public_key(public.encode())


def test_more_nodes_keep_the_keys_of_the_others(tmp_path: Path) -> None:
    """Nothing is made twice; a node elsewhere keeps its private key; folders are the owner's."""
    before = kubernetes(tmp_path / "made", "--nodes", "1", "--host", "superlink.example.org")
    kubernetes(tmp_path / "device", "--nodes", "2")
    device = tmp_path / "device" / "keys" / "node-1.pub"
    (tmp_path / "made" / "keys" / "node-1.pub").write_text(device.read_text())
    after = kubernetes(tmp_path / "made", "--nodes", "3")
    for kind, name in (("Secret", "superlink-tls"), ("ConfigMap", "superlink-ca")):
        assert find_manifest(before, kind, name) == find_manifest(after, kind, name)
    keys = [
        get_data_files(find_manifest(each, "Secret", "supernode-keys")) for each in (before, after)
    ]
    assert [sorted(each) for each in keys] == [["node-0"], ["node-0", "node-2"]]
    assert keys[0]["node-0"] == keys[1]["node-0"]
    nodes = (
        get_data_files(find_manifest(after, "ConfigMap", "nodes"))["nodes"].decode().splitlines()
    )
    assert nodes[1] == f"1 {device.read_text().strip()}"
    assert len(nodes) == 3
    assert stat.S_IMODE((tmp_path / "made" / "keys" / "node-0").stat().st_mode) == 0o600


def test_the_certificate_has_the_names_that_are_connected_to(made: list[Manifest]) -> None:
    """Those of the Services, and what the proxy expects of the SuperLink behind it."""
    pem = get_data_files(find_manifest(made, "Secret", "superlink-tls"))["server.pem"]
    names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    valid = {str(each) for each in names.value.get_values_for_type(x509.DNSName)}
    valid |= {str(each) for each in names.value.get_values_for_type(x509.IPAddress)}
    connections = tomllib.loads((FOLDER / "config.toml").read_text())["superlink"]
    asked = [connections[name]["address"] for name in ("deployment", "local")]
    asked.append(environment(container(SUPERNODE, "supernode"))["SUPERLINK"])
    (expected,) = re.findall(r"proxy_ssl_name\s+(\S+);", (FOLDER / "nginx.conf").read_text())
    assert {address.partition(":")[0] for address in asked} | {expected} <= valid


# --- who reaches whom ------------------------------------------------------------------------


def test_services_and_probes_use_open_ports() -> None:
    """Each port of the proxy's configuration has a Service, and is a port of its container."""
    proxy = container(SUPERLINK, "proxy")
    listens = re.findall(r"listen (\d+) ssl;", (FOLDER / "nginx.conf").read_text())
    open_ports = [port["containerPort"] for port in proxy["ports"]]
    assert [int(port) for port in listens] == open_ports
    labels = SUPERLINK["spec"]["template"]["metadata"]["labels"]
    services = {
        each["metadata"]["name"]: each["spec"]
        for each in MANIFESTS
        if each["kind"] == "Service" and each["spec"]["selector"].items() <= labels.items()
    }
    served = {name: [port["port"] for port in spec["ports"]] for name, spec in services.items()}
    assert served == {"superlink": [9443], "superlink-control": [9444]}
    assert sorted(open_ports) == [9443, 9444]
    for each in (each for owner in OWNERS for each in get_containers(owner)):
        ports = {port["containerPort"] for port in each.get("ports", ())}
        probes = [probe for key, probe in each.items() if key.endswith("Probe")]
        for probe in probes:
            asked = [
                probe[kind]["port"] for kind in ("grpc", "httpGet", "tcpSocket") if kind in probe
            ]
            assert set(asked) <= ports
        if health := environment(each).get("HEALTH"):
            assert f"0.0.0.0:{probes[0]['grpc']['port']}" == health


def test_everybody_connects_to_the_service_for_them() -> None:
    """Nodes to the nodes' port, runs to that of the Control API."""
    assert environment(container(SUPERNODE, "supernode"))["SUPERLINK"] == "superlink:9443"
    connections = tomllib.loads((FOLDER / "config.toml").read_text())["superlink"]
    assert connections["deployment"]["address"] == "superlink-control:9444"
    assert connections["local"]["address"] == "127.0.0.1:8000"
    used = environment(container(SUPERLINK, "register"))["CONNECTION"]
    assert (used, connections["default"]) == ("local", "deployment")


def list_allowed_peers(direction: str, component: str) -> set[tuple[str, int]]:
    """Return with whom network policies let a component talk, by component and port."""
    peer = {"ingress": "from", "egress": "to"}[direction]
    found: set[tuple[str, int]] = set()
    for policy in (each for each in MANIFESTS if each["kind"] == "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]
        chosen = [selector.get("matchLabels", {}).get("app.kubernetes.io/component")]
        chosen += [word for each in selector.get("matchExpressions", ()) for word in each["values"]]
        for rule in policy["spec"].get(direction, ()) if component in chosen else ():
            for other in rule[peer]:
                labels = other.get("podSelector", other.get("namespaceSelector"))["matchLabels"]
                found |= {(next(iter(labels.values())), port["port"]) for port in rule["ports"]}
    return found


def test_the_network_lets_pass_what_is_needed() -> None:
    """All else is denied, a node's way to the Control API and to other nodes among it."""
    denied = find_manifest(MANIFESTS, "NetworkPolicy", "nothing-else")["spec"]
    assert denied == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert list_allowed_peers("ingress", "superlink") == {("supernode", 9443), ("run", 9444)}
    assert list_allowed_peers("egress", "superlink") == set()
    assert list_allowed_peers("egress", "supernode") == {("superlink", 9443), ("kube-system", 53)}
    assert list_allowed_peers("egress", "run") == {("superlink", 9444), ("kube-system", 53)}
    assert (
        list_allowed_peers("ingress", "supernode") == list_allowed_peers("ingress", "run") == set()
    )


# --- commands --------------------------------------------------------------------------------


@pytest.mark.parametrize(("owner", "manifest"), CONTAINERS)
def test_every_command_is_in_its_image(owner: Manifest, manifest: Manifest) -> None:
    """A script of deploy/ with all settings that it needs, or a program that is there anyway."""
    command = manifest["command"][0]
    if manifest["image"].startswith("docker.io/library/nginx:"):
        assert command == "nginx"
        return
    assert manifest["image"] == container(SUPERNODE, "supernode")["image"]
    script = read_containerfile().copied.get(f"/usr/local/bin/{command}")
    if script is None:
        assert command in {"sh", *PROJECT["project"]["scripts"]}
        return
    assert os.access(script, os.X_OK)
    needed = re.findall(r'^: "\$\{(\w+):\?', script.read_text(), re.MULTILINE)
    assert set(needed) <= {*environment(manifest), *read_containerfile().env}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("superlink.sh", "flower-superlink"),
        ("supernode.sh", "flower-supernode"),
        ("register.sh", "flwr supernode register"),
    ],
)
def test_every_flag_of_the_scripts_exists(script: str, program: str) -> None:
    """Flower's own help has it."""
    text = (ROOT / "deploy" / script).read_text().replace("\\\n", " ")
    calls = re.findall(rf"^.*\b{program} .*$", text, re.MULTILINE)
    flags = {flag for call in calls for flag in re.findall(r" (--[a-z-]+)", call)}
    assert flags
    words = program.split()
    help_text = subprocess.check_output(
        [str(Path(sys.executable).with_name(words[0])), *words[1:], "--help"],
        env={**os.environ, "COLUMNS": "200"},
        text=True,
    )
    assert flags <= set(re.findall(r"--[a-z-]+", help_text))


def test_the_run_fits_to_the_nodes() -> None:
    """The Job's settings are valid, of as many clients as there are nodes, bound to their keys."""
    run = container(JOB, "run")
    composed = compose_overrides(tuple(run["args"]))
    settings = composed.settings
    assert settings.data.num_clients == NODES
    assert (settings.engine.name, settings.engine.superlink) == ("flower", "deployment")
    assert settings.engine.node_keys == "/etc/fedquorum/nodes"
    # Results are below the working directory of the Job, a path of the SuperLink's volume.
    state = environment(container(SUPERLINK, "superlink"))["STATE"]
    assert run["workingDir"] == state
    mounts = container(SUPERLINK, "superlink")["volumeMounts"]
    assert [mount["name"] for mount in mounts if mount["mountPath"] == state] == ["state"]


def test_all_images_match_the_containerfile() -> None:
    """That of the Containerfile for server, nodes and runs; none without a version."""
    names = {each["image"] for owner in OWNERS for each in get_containers(owner)}
    (changes,) = read_manifests(FOLDER / "image" / "kustomization.yaml")
    (ours,) = changes["images"]
    assert names == {f"{ours['newName']}:{ours['newTag']}", "docker.io/library/nginx:1.28"}
    assert ours["newTag"] == PROJECT["project"]["version"].partition(".dev")[0]


def test_the_image_has_the_whole_app() -> None:
    """All packages that are installed, and every file that a run submits."""
    app = read_containerfile()
    copied = [Path(path).relative_to(app.workdir) for path in app.copied if app.workdir in path]
    tools = PROJECT["tool"]
    needed = [*tools["hatch"]["build"]["targets"]["wheel"]["packages"], "pyproject.toml"]
    needed += [pattern.lstrip("/") for pattern in tools["flwr"]["app"]["fab-include"]]
    for path in map(Path, needed):
        assert [each for each in copied if path.is_relative_to(each)], path
