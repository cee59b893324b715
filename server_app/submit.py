"""``engine=flower``: the same job by ``flwr run``, with its true status.

``flwr run --stream`` exits with 0 also when the run died, so the status comes from
``flwr list``.
"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from conf import Composed
from conf.errors import RunError
from server_app.records import SOURCE

COMPLETED = "finished:completed"


def submit(composed: Composed, output_dir: str) -> None:
    """Run the job with Flower's local SuperLink, or that of ``engine.superlink``, and wait for it.

    The SuperLink keeps the working directory and environment of whoever started it, so paths
    travel as absolute ones.

    Raises
    ------
    RunError
        If the job cannot be submitted or did not complete; the message has Flower's details.
    """
    flwr, settings = _flwr(), composed.settings.engine
    run_config = {
        **composed.run_config,
        "overrides": _with_absolute_paths(composed),
        "output-dir": str(Path(output_dir).absolute()),
    }
    superlink = [] if settings.superlink is None else [settings.superlink]
    command = [flwr, "run", str(_app_with_components()), *superlink, "--stream"]
    command += ["--run-config", " ".join(f"{k}={json.dumps(v)}" for k, v in run_config.items())]
    if settings.num_supernodes is not None:
        command += ["--federation-config", f"num-supernodes={settings.num_supernodes}"]
    run_id = _stream(command)
    status, details = _status([flwr, "list", *superlink, "--run-id", run_id, "--format", "json"])
    if status != COMPLETED:
        raise RunError(f"the Flower run {run_id} ended as {status}: {details or 'see its log'}")


def _flwr() -> str:
    """Return the ``flwr`` of this environment, not another one that is first on the PATH."""
    beside = Path(sys.executable).with_name("flwr")
    found = str(beside) if beside.exists() else shutil.which("flwr")
    if found is None:
        raise RunError("engine=flower needs Flower's command flwr on the PATH, which has none")
    return found


def _app_with_components() -> Path:
    if not (SOURCE / "pyproject.toml").exists():
        raise RunError(
            "engine=flower must run from a source checkout (pip install -e .), whose "
            f"pyproject.toml names the app's components; {SOURCE} has none"
        )
    return SOURCE


def _with_absolute_paths(composed: Composed) -> str:
    words = [str(composed.run_config["overrides"])]
    settings = composed.settings
    for group, key in (
        ("data", "root"),
        ("data", "path"),
        ("availability", "path"),
        ("strategy", "memory_dir"),
        ("engine", "nodes"),
    ):
        given = getattr(getattr(settings, group), key, None)
        if given is not None:
            words.append(shlex.quote(f"{group}.{key}={Path(given).expanduser().absolute()}"))
    return " ".join(words).strip()


def _stream(command: list[str]) -> str:
    """Run ``flwr run``, pass its output on, and return the id of the run it started."""
    run_id = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            _, found, rest = line.partition("Successfully started run ")
            if found:
                run_id = rest.split()[0]
    if not run_id:
        raise RunError(f"flwr run started no run (exit status {process.returncode})")
    return run_id


def _status(command: list[str]) -> tuple[str, str]:
    with tempfile.TemporaryFile("w+") as errors:
        found = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
        )
    try:
        runs: list[dict[str, Any]] = json.loads(found.stdout)["runs"]
        return str(runs[0]["status"]), str(runs[0]["status-details"])
    except (ValueError, KeyError, IndexError):
        return "unknown", found.stdout.strip()
