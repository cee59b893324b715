"""Pods of deploy/kubernetes without Kubernetes: each container in a sandbox of bubblewrap.

A container runs its manifest's command with its manifest's environment, user, mounts and root
filesystem, without capabilities, in separate namespaces. The containers of a pod share an
address, and pods reach each other by the names of their Services. For the image stand this
machine's programs, this Python environment and what the Containerfile copies of the repository.
Missing are limits of resources, seccomp, network policies, probes by themselves and restarts.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.builders_kubernetes import (
    Image,
    Manifest,
    expand_variables,
    get_containers,
    get_mounted_files,
    get_pod_spec,
    read_containerfile,
)
from tests.integration.conftest import wait_for

TOOLS = ("bwrap", "ip", "nginx", "nsenter", "unshare")
PATH = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
SCRIPTS = "/image/bin"
"""Stands for /usr/local/bin of the image."""

NETWORK = "10.244.0"
INDEX = "apps.kubernetes.io/pod-index"
PROBE = str(Path(__file__).with_name("probe.py"))


def find_tool(name: str) -> str:
    """Return the path of a program of this machine."""
    return str(shutil.which(name, path=PATH))


def list_missing() -> list[str]:
    """Return what pods need and this machine lacks."""
    lacking = [name for name in TOOLS if shutil.which(name, path=PATH) is None]
    if lacking:
        return lacking
    tried = subprocess.run([find_tool("unshare"), "-Urn", "true"], capture_output=True, check=False)
    return [] if tried.returncode == 0 else ["user namespaces"]


@dataclass
class Network:
    """A network namespace, which lives until it is closed or this process ends."""

    holder: subprocess.Popen[bytes]

    @classmethod
    def make(cls, inside: "Network | None" = None) -> "Network":
        """Make a namespace, with the users of another one or with new users."""
        unshare = [
            find_tool("unshare"),
            "--net",
            *([] if inside else ["--user", "--map-root-user"]),
        ]
        holder = subprocess.Popen(
            [
                *(inside.get_command_prefix() if inside else ()),
                *unshare,
                "sh",
                "-c",
                "echo; read end",
            ],
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends
            stdout=subprocess.PIPE,
        )
        assert holder.stdout
        assert holder.stdout.readline()  # it is there
        return cls(holder)

    def get_command_prefix(self) -> list[str]:
        """Return the words before a command that is to run here."""
        where = ["--target", str(self.holder.pid), "--user", "--preserve-credentials", "--net"]
        return [find_tool("nsenter"), *where]

    def run_ip(self, *commands: str) -> None:
        """Configure the network."""
        for words in commands:
            subprocess.run(
                [*self.get_command_prefix(), find_tool("ip"), *words.split()], check=True
            )

    def close(self) -> None:
        """End what keeps it alive."""
        self.holder.communicate(timeout=30)


@dataclass
class Container:
    """A container that was started."""

    process: subprocess.Popen[bytes]
    pid: int
    """Of the process that has the number 1 inside."""

    def stop(self, seconds: float) -> int:
        """End it as a kubelet does, and return its status: -SIGKILL if it took too long."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
            return -signal.SIGKILL


@dataclass
class Pod:
    """One pod: an address, volumes and containers."""

    folder: Path
    name: str
    owner: Manifest
    labels: dict[str, str]
    image: Image
    network: Network
    address: str
    volumes: dict[str, Path]
    started: dict[str, Container] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> Container:
        """Start one of its containers; ``arguments`` follow those of the manifest."""
        manifest = self.get_container(name)
        words = [*manifest["command"], *manifest.get("args", ()), *arguments]
        reader, writer = os.pipe()
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*self._build_sandbox(manifest), "--info-fd", str(writer), *words],
                env=self._build_environment(manifest),
                pass_fds=(writer,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        os.close(writer)
        with os.fdopen(reader) as info:
            said = info.read()
        assert said, self.log(name).read_text()
        self.started[name] = Container(process, json.loads(said)["child-pid"])
        return self.started[name]

    def run(self, name: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command as one of its containers, which is what ``kubectl exec`` is for."""
        manifest = self.get_container(name)
        return subprocess.run(
            [*self._build_sandbox(manifest), *words],
            env=self._build_environment(manifest),
            input=stdin,
            capture_output=True,
            check=False,
        )

    def log(self, name: str) -> Path:
        """Return the file with what a container printed."""
        return self.folder / f"{self.name}.{name}.log"

    def get_container(self, name: str) -> Manifest:
        """Return what the manifest says of a container."""
        (found,) = [each for each in get_containers(self.owner) if each["name"] == name]
        return found

    def is_passing(self, name: str, probe: Manifest) -> bool:
        """Say whether a probe of a container succeeds."""
        if "exec" in probe:
            return self.run(name, *probe["exec"]["command"]).returncode == 0
        ((kind, where),) = [
            (key, probe[key]) for key in ("grpc", "httpGet", "tcpSocket") if key in probe
        ]
        words = [kind, self.address, str(where["port"]), where.get("path", "/")]
        made = [*self.network.get_command_prefix(), sys.executable, PROBE, *words]
        return subprocess.run(made, capture_output=True, check=False).returncode == 0

    def wait_until_ready(self, seconds: float = 90) -> None:
        """Wait until all probes of the containers that were started succeed."""
        for name in self.started:
            for key, probe in self.get_container(name).items():
                if key.endswith("Probe"):
                    what = f"{key} of {name} in {self.name}"
                    wait_for(what, partial(self._is_alive_and_passing, name, probe), seconds)

    def _is_alive_and_passing(self, name: str, probe: Manifest) -> bool:
        assert self.started[name].process.poll() is None, self.log(name).read_text()
        return self.is_passing(name, probe)

    def stop(self) -> dict[str, int]:
        """End its containers, the last first, and return their statuses."""
        seconds = get_pod_spec(self.owner)["terminationGracePeriodSeconds"]
        return {name: running.stop(seconds) for name, running in reversed(self.started.items())}

    def _build_environment(self, manifest: Manifest) -> dict[str, str]:
        env = {"PATH": f"{SCRIPTS}:{sys.prefix}/bin:/usr/bin:/bin:/usr/sbin"}
        if _is_ours(manifest):
            env |= self.image.env
            # Stands for the editable installation.
            env["PYTHONPATH"] = f"{self.image.workdir}:{self.image.workdir}/strategies"
        for variable in manifest.get("env", ()):
            if "value" in variable:
                env[variable["name"]] = variable["value"]
            else:
                field_path = variable["valueFrom"]["fieldRef"]["fieldPath"]
                label = field_path.removeprefix("metadata.labels['").removesuffix("']")
                env[variable["name"]] = self.labels[label]
        return env

    def _build_sandbox(self, manifest: Manifest) -> list[str]:
        """Return the command that makes of this machine the container, for another command."""
        user, security = get_pod_spec(self.owner)["securityContext"], manifest["securityContext"]
        words = [
            *self.network.get_command_prefix(),
            find_tool("bwrap"),
            "--die-with-parent",
            "--as-pid-1",
        ]
        words += ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        words += ["--uid", str(user["runAsUser"]), "--gid", str(user["runAsGroup"])]
        words += ["--hostname", self.name, "--proc", "/proc", "--dev", "/dev"]
        for capability in security["capabilities"]["drop"]:
            words += ["--cap-drop", capability]
        for link in ("bin", "sbin", "lib", "lib64"):
            words += ["--symlink", f"usr/{link}", f"/{link}"]
        seen = {Path(place): Path(place) for place in ("/usr", "/etc/ld.so.cache", "/etc/ssl")}
        seen |= {Path("/etc", name): self.folder / "etc" / name for name in ("hosts", "passwd")}
        words += _build_binds("--ro-bind", seen)
        env = self._build_environment(manifest)
        # A folder before what is mounted in it.
        for mount in sorted(manifest["volumeMounts"], key=lambda mount: str(mount["mountPath"])):
            place = mount.get("subPath") or expand_variables(mount.get("subPathExpr", ""), env)
            how = "--ro-bind" if mount.get("readOnly") else "--bind"
            words += _build_binds(
                how, {Path(mount["mountPath"]): self.volumes[mount["name"]] / place}
            )
        workdir = "/"
        # These may be below a folder that the manifest mounts, as /tmp.
        seen = {Path(place): Path(place) for place in (sys.prefix, sys.base_prefix)}
        if _is_ours(manifest):
            workdir = self.image.cwd
            words += ["--dir", workdir]
            seen |= {Path(SCRIPTS): self.folder / "image" / "bin"}
            seen |= {Path(self.image.workdir): self.folder / "image" / "app"}
        words += _build_binds("--ro-bind", seen)
        if security["readOnlyRootFilesystem"]:
            words += ["--remount-ro", "/"]
        return [*words, "--chdir", manifest.get("workingDir", workdir)]


def _is_ours(manifest: Manifest) -> bool:
    """Say whether a container has the image of deploy/Containerfile."""
    return "fedquorum" in manifest["image"]


def _build_binds(how: str, places: dict[Path, Path]) -> list[str]:
    return [word for inside, here in places.items() for word in (how, str(here), str(inside))]


@dataclass
class Cluster:
    """A network of pods, and the volumes that outlast them."""

    folder: Path
    manifests: Sequence[Manifest]
    network: Network
    image: Image = field(default_factory=read_containerfile)
    pods: list[Pod] = field(default_factory=list)

    def make_pod(self, owner: Manifest, index: int = 0) -> Pod:
        """Return a pod of a Deployment, a StatefulSet or a Job, with a network and volumes."""
        name, number = f"{owner['metadata']['name']}-{index}", len(self.pods) + 2
        network, address = Network.make(self.network), f"{NETWORK}.{number}"
        self.network.run_ip(
            f"link add pod{number} type veth peer name eth0 netns {network.holder.pid}",
            f"link set pod{number} master pods up",
        )
        network.run_ip("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up")
        labels = {**owner["spec"]["template"]["metadata"]["labels"], INDEX: str(index)}
        volumes = self._make_volumes(owner, name)
        made = Pod(self.folder, name, owner, labels, self.image, network, address, volumes)
        self.pods.append(made)
        self._write_names()
        return made

    def get_claim_folder(self, name: str) -> Path:
        """Return the folder of a persistent volume."""
        path = self.folder / "claims" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _make_volumes(self, owner: Manifest, pod: str) -> dict[str, Path]:
        """Return a folder for each volume of a pod, with the files that it begins with."""
        templates = owner["spec"].get("volumeClaimTemplates", ())
        names = [template["metadata"]["name"] for template in templates]
        made = {name: self.get_claim_folder(f"{name}-{pod}") for name in names}
        for volume in get_pod_spec(owner)["volumes"]:
            if "persistentVolumeClaim" in volume:
                path = self.get_claim_folder(volume["persistentVolumeClaim"]["claimName"])
            else:
                path = self.folder / "volumes" / pod / volume["name"]
                path.mkdir(parents=True)
                for name, content in get_mounted_files(volume, self.manifests).items():
                    (path / name).parent.mkdir(exist_ok=True)
                    (path / name).write_bytes(content)
            made[volume["name"]] = path
        return made

    def _write_names(self) -> None:
        """Tell all pods under which names the Services' pods are found."""
        lines = ["127.0.0.1 localhost"]
        for service in (each for each in self.manifests if each["kind"] == "Service"):
            selector = service["spec"]["selector"].items()
            lines += [
                f"{pod.address} {service['metadata']['name']}"
                for pod in self.pods
                if selector <= pod.labels.items()
            ]
        (self.folder / "etc" / "hosts").write_text("\n".join([*lines, ""]))


@contextmanager
def open_cluster(folder: Path, manifests: Sequence[Manifest]) -> Iterator[Cluster]:
    """Give a cluster without pods; all that is started in it is ended with it."""
    network = Network.make()
    made = Cluster(folder, manifests, network)
    _write_image(folder / "image", made.image)
    (folder / "etc").mkdir()
    user = made.image.user
    (folder / "etc" / "passwd").write_text(
        f"fedquorum:x:{user}:{user}::{made.image.env['HOME']}:/bin/sh\n"
    )
    try:
        network.run_ip(
            "link set lo up",
            "link add pods type bridge",
            f"addr add {NETWORK}.1/24 dev pods",
            "link set pods up",
        )
        yield made
    finally:
        for pod in reversed(made.pods):
            for running in pod.started.values():
                running.process.kill()
                running.process.wait(30)
            pod.network.close()
        network.close()


def _write_image(folder: Path, made: Image) -> None:
    """Copy what the Containerfile copies."""
    for inside, source in made.copied.items():
        app = Path(inside).is_relative_to(made.workdir)
        within = Path(inside).relative_to(made.workdir if app else "/usr/local/bin")
        target = folder / ("app" if app else "bin") / within
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
