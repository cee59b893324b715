"""Read deploy/kubernetes: the manifests of its kustomizations, their pods and containers."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "kubernetes"

Manifest = dict[str, Any]
Files = dict[str, bytes]


def read_manifests(path: Path) -> list[Manifest]:
    """Return the manifests of one file."""
    return list(yaml.safe_load_all(path.read_text()))


def build_kustomization(folder: Path) -> list[Manifest]:
    """Return the manifests of a kustomization as ``kubectl kustomize`` makes them.

    It supports only the fields used here: resources, the namespace, the images of a component, and
    ConfigMaps of files, whose names get no hash.
    """
    (said,) = read_manifests(folder / "kustomization.yaml")
    made = [found for name in said["resources"] for found in read_manifests(folder / name)]
    for generator in said.get("configMapGenerator", ()):
        content = {name: (folder / name).read_text() for name in generator["files"]}
        metadata = {"name": generator["name"]}
        made.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": content}
        )
    for manifest in made:
        manifest["metadata"]["namespace"] = said["namespace"]
    for component in said.get("components", ()):
        (changes,) = read_manifests(folder / component / "kustomization.yaml")
        for image in changes["images"]:
            for container in (each for manifest in made for each in get_containers(manifest)):
                if container["image"] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    return made


def get_pod_spec(manifest: Manifest) -> Manifest:
    """Return the spec of the pods that a manifest makes, an empty one if it makes none."""
    spec: Manifest = manifest.get("spec", {}).get("template", {}).get("spec", {})
    return spec


def get_containers(manifest: Manifest) -> list[Manifest]:
    """Return the containers of a manifest's pods, those first that run first."""
    pod = get_pod_spec(manifest)
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


def find_manifest(manifests: Sequence[Manifest], kind: str, name: str) -> Manifest:
    """Return the one manifest of a kind and a name."""
    (found,) = [
        each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def get_data_files(manifest: Manifest) -> Files:
    """Return the files that a Secret or a ConfigMap carries."""
    decode = base64.b64decode if manifest["kind"] == "Secret" else str.encode
    return {name: decode(text) for name, text in manifest["data"].items()}


def get_mounted_files(volume: Manifest, manifests: Sequence[Manifest]) -> Files:
    """Return the files that a volume begins with, by their path in it."""
    found: Files = {}
    for source in volume.get("projected", {}).get("sources", [volume]):
        for kind, key in (("Secret", "secret"), ("ConfigMap", "configMap")):
            if key in source:
                # A volume of a Secret and a source of a projected one name it by two words.
                name = source[key].get("name") or source[key].get("secretName")
                content = get_data_files(find_manifest(manifests, kind, name))
                items = source[key].get("items", [{"key": file, "path": file} for file in content])
                found |= {item["path"]: content[item["key"]] for item in items}
    return found


@dataclass(frozen=True)
class Image:
    """What deploy/Containerfile says of the image."""

    workdir: str
    """Where the app is."""
    cwd: str
    """Where commands run."""
    user: int
    env: dict[str, str]
    copied: dict[str, Path]
    """By the path in the image the file or the folder of this repository that is copied there."""


def read_containerfile() -> Image:
    """Read deploy/Containerfile, of whose instructions this knows the few that say something."""
    text = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
    said = [line.split() for line in text.splitlines() if line.strip()]
    workdir, cwd = [words[1] for words in said if words[0] == "WORKDIR"]
    ((_, user),) = [words for words in said if words[0] == "USER"]
    env = dict(word.split("=", 1) for words in said if words[0] == "ENV" for word in words[1:])
    copied: dict[str, Path] = {}
    for *sources, target in (words[1:] for words in said if words[0] == "COPY"):
        for source in sources:
            # Into a folder whose name ends with a slash; else this is the copy's name.
            name = Path(source).name if target.endswith("/") else ""
            copied[str(Path(workdir, target, name))] = ROOT / source
    return Image(workdir, cwd, int(user.partition(":")[0]), env, copied)


def expand_variables(text: str, env: dict[str, str]) -> str:
    """Return a text of a manifest with the container's variables in place of ``$(NAME)``."""
    return re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], text)
