"""The systemd units: what systemd thinks of them, and that what they allow is enough to train."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.builders_runs import run_here

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONFINED = Path(__file__).with_name("confined.py")
UNITS = ("superlink.service", "supernode@.service")
THRESHOLD = 20
"""Ten times the exposure that ``systemd-analyze security`` may find."""


def install_unit(unit: str, folder: Path) -> Path:
    """Return a unit as it is installed: an instance of a template, with a command that exists."""
    text = (DEPLOY / unit).read_text().replace("/opt/fedquorum/", f"{DEPLOY}/")
    path = folder / f"fedquorum-{unit.replace('@', '@3')}"
    path.write_text(text)
    return path


def exposure(systemd_analyze: str, unit: Path) -> subprocess.CompletedProcess[str]:
    """Let systemd judge a unit; the status is 0 where it is below the threshold."""
    words = ["security", "--offline=true", "--no-pager", f"--threshold={THRESHOLD}", str(unit)]
    command = [systemd_analyze, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("unit", UNITS)
def test_units_are_exposed_little(systemd_analyze: str, tmp_path: Path, unit: str) -> None:
    """Below 2.0 of 10."""
    judged = exposure(systemd_analyze, install_unit(unit, tmp_path))
    assert judged.returncode == 0, judged.stdout + judged.stderr
    print(judged.stdout.splitlines()[-1])


@pytest.mark.parametrize("unit", UNITS)
def test_without_its_directives_a_unit_is_exposed(
    systemd_analyze: str, tmp_path: Path, unit: str
) -> None:
    """So the judgement above can fail."""
    path = install_unit(unit, tmp_path)
    restrictions = r"(?ms)^# Restrictions of the service and its runs.*?^$"
    path.write_text(re.sub(restrictions, "", path.read_text()))
    assert exposure(systemd_analyze, path).returncode != 0


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_knows_every_directive(systemd_analyze: str, tmp_path: Path, unit: str) -> None:
    """It warns of unknown ones, and of values that it cannot read."""
    command = [systemd_analyze, "verify", "--man=no", "--recursive-errors=no"]
    path = install_unit(unit, tmp_path)
    said = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    path.write_text(path.read_text().replace("PrivateTmp=yes", "PrivateTemp=yes"))
    said = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    assert re.search("Unknown key.* 'PrivateTemp'", said.stderr)


def test_instances_share_nothing() -> None:
    """Each has a separate user, key, state directory and data."""
    text = (DEPLOY / "supernode@.service").read_text()
    said = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"\w+=", line))
    assert said["DynamicUser"] == "yes"
    for name in ("User", "LoadCredential", "StateDirectory", "BindReadOnlyPaths"):
        assert "%i" in said[name], name
    assert said["LoadCredential"].split(":") == ["key", "/etc/fedquorum/node-%i"]
    assert "KEY=%d/key" in text
    # A line of the file would take the place of the unit's.
    assert "KEY=" not in (DEPLOY / "node.env").read_text()


def test_the_servers_key_is_a_credential() -> None:
    """Of all files that superlink.sh reads below TLS."""
    text = (DEPLOY / "superlink.service").read_text()
    needed = set(re.findall(r"\$TLS/([\w.]+)", (DEPLOY / "superlink.sh").read_text()))
    assert needed == {"ca.pem", "server.pem", "server.key"}
    for name in needed:
        assert f"LoadCredential={name}:/etc/fedquorum/tls/{name}\n" in text
    assert "TLS=%d" in text


# --- what the directives do to a process -----------------------------------------------------

DENIED = """
import ctypes, os, socket
def tried(call):
    try:
        call()
    except OSError as error:
        return error.strerror
libc = ctypes.CDLL(None, use_errno=True)
def mount():
    if libc.mount(None, b"/", None, 0, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
print([tried(call) for call in (
    lambda: socket.socket(socket.AF_INET).close(),
    lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    lambda: os.sched_setaffinity(0, {0}),
    mount,
)])
"""


@pytest.mark.parametrize("unit", UNITS)
def test_what_a_unit_denies_is_denied(systemd_analyze: str, tmp_path: Path, unit: str) -> None:
    """A family of addresses, a call of a group that was taken out, and one of no group."""
    command = [sys.executable, str(CONFINED), str(DEPLOY / unit), sys.executable, "-c", DENIED]
    said = subprocess.check_output(command, text=True)
    assert said == f"{[None, *['Operation not permitted'] * 3]}\n"


@pytest.mark.slow
def test_a_cnn_trains_inside_of_a_unit(systemd_analyze: str, tmp_path: Path) -> None:
    """A round of two clients, to the same bits as outside: oneDNN writes code that it then runs."""
    rng = np.random.default_rng(0)
    images, labels = rng.random((40, 1, 28, 28), np.float32), rng.integers(0, 10, 40)
    parts = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(tmp_path / "data.npz", **parts)  # type: ignore[arg-type]
    words = [
        *("experiment=custom", "data=npz", f"data.path={tmp_path}/data.npz", "data.num_clients=2"),
        *("data.partition=iid", "data.priority=all", "model=cnn", "client.local_epochs=1"),
        *("strategy=fedavg", "rounds=1", "client.device=cpu", "client.batching=sequential"),
    ]
    confined = [sys.executable, str(CONFINED), str(DEPLOY / "supernode@.service")]
    train = [str(Path(sys.executable).with_name("fedquorum")), *words]
    command = [*confined, *train, f"hydra.run.dir={tmp_path / 'inside'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run_here(tmp_path / "outside", *words)
    for name in ("inside", "outside"):
        assert json.loads((tmp_path / name / "manifest.json").read_text())["status"] == "completed"
    models = [
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("inside", "outside")
    ]
    assert models[0] == models[1]
