"""Run a job with ``flwr run``, for ``engine=flower``.

``flwr run --stream`` exits with 0 even if the run died, so the status comes from ``flwr list``.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from fedquorum.contrib import collect_requirements
from fedquorum.errors import RunError
from fedquorum.io import lock_directory
from fedquorum.records.run_dir import read_manifest_or_empty
from fedquorum.records.safe_files import MANIFEST_FILE

from client_app.simulation.ray_address import check_ray_environment
from conf import ComposedConfig, Settings, compose_settings
from conf.overrides import to_overrides
from conf.schema.data import HfSettings
from conf.schema.ranges import FilePath
from conf.schema.rules import get_requirement_settings, get_rule_settings
from server_app.provenance import SOURCE_ROOT

ENDED_STATUS = "finished:"
COMPLETED_STATUS = f"{ENDED_STATUS}completed"
SUPERLINK_ENV = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
"""The environment of a SuperLink that ``flwr run`` starts: this one has all dependencies."""

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
NO_PROXIES = ("no_proxy", "no_grpc_proxy")
LOOPBACK = ("127.0.0.1", "localhost", "::1")

OUR_LINE = "fedquorum: "
"""The start of the line of an error, which the ServerApp prints last."""

STOP_SECONDS = 30.0  # time for the ServerApp to write its records when the run is stopped


def submit_job(composed: ComposedConfig, output_dir: str) -> None:
    """Run the job with Flower's local SuperLink, or that of ``engine.superlink``, and wait for it.

    A SuperLink runs in the working directory and environment of the process that started it, so
    paths are sent as absolute ones.

    Raises
    ------
    RunError
        If the job cannot be submitted or did not complete; the message has Flower's details.
    SettingsError
        If there is no Ray cluster at the environment's RAY_ADDRESS.
    KeyboardInterrupt
        If the job was interrupted, after stopping the Flower run.
    """
    flwr, settings = _find_flwr(), composed.settings.engine
    environment = build_environment(flwr, os.environ)
    if settings.superlink is None:
        check_ray_environment()
    run_config = make_paths_absolute(composed).run_config
    run_config["output-dir"] = str(Path(output_dir).absolute())
    superlink = [] if settings.superlink is None else [settings.superlink]
    command = [flwr, "run", str(_find_app_folder()), *superlink, "--stream"]
    if settings.num_supernodes is not None:
        command += ["--federation-config", f"num-supernodes={settings.num_supernodes}"]
    # In a file, because flwr ends a value on its command line at the first quote.
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        for key, value in run_config.items():
            print(f"{key} = {json.dumps(value, ensure_ascii=False)}", file=file, flush=True)
        run_id, last_line = _follow(
            [*command, "--run-config", file.name],
            lambda run_id: _stop_run(
                [flwr, "stop", run_id, *superlink], environment, run_id, Path(output_dir)
            ),
            environment,
        )
    status, details = _get_status(
        [flwr, "list", *superlink, "--run-id", run_id, "--format", "json"], environment
    )
    if last_line.removeprefix(OUR_LINE).strip() not in details:
        print(last_line, end="", flush=True)
    if not status.startswith(ENDED_STATUS):
        process = "flwr-simulation" if settings.superlink is None else "flwr-serverapp"
        raise RunError(_describe_lost_run(run_id, status, process, Path(output_dir).absolute()))
    if status != COMPLETED_STATUS:
        raise RunError(f"the Flower run {run_id} ended as {status}: {details or 'see its log'}")


def _find_flwr() -> str:
    """Return the path of ``flwr``, if possible the one of this Python environment."""
    folders = dict.fromkeys((str(Path(sys.executable).parent), sysconfig.get_path("scripts")))
    path = shutil.which("flwr", path=os.pathsep.join(folders)) or shutil.which("flwr")
    if path is None:
        raise RunError(
            f"engine=flower needs Flower's command flwr in {' or '.join(folders)} or on the PATH, "
            "which have none: install flwr in the environment of this Python"
        )
    return path


def build_environment(flwr: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of ``flwr`` and of what it starts.

    Flower looks for its other commands, such as flower-superlink, on the PATH. They are beside
    ``flwr``, also if this process was started by its full path, as by cron or a notebook. A proxy
    is for other hosts than this one, where the SuperLink and its processes talk to each other.
    """
    environment = {**SUPERLINK_ENV, **given, "PYTHONUNBUFFERED": "1"}
    folders = [str(Path(flwr).absolute().parent), given.get("PATH") or os.defpath]
    environment["PATH"] = os.pathsep.join(folders)
    if _list_proxies(given):  # or else a system's own settings of proxies would no longer count
        for name in NO_PROXIES:
            lower, upper = given.get(name), given.get(name.upper())
            if name == "no_proxy" or lower or upper:
                environment[name] = _add_loopback(lower or upper or "")
                environment[name.upper()] = _add_loopback(upper or lower or "")
    return environment


def _list_proxies(environment: Mapping[str, str]) -> list[str]:
    """Return the variables that name a proxy."""
    names = [name for lower in PROXIES for name in (lower, lower.upper())]
    return [name for name in names if environment.get(name)]


def _add_loopback(hosts: str) -> str:
    """Return a list of hosts that are reached without a proxy, with this machine in it."""
    known = [host.strip() for host in hosts.split(",") if host.strip()]
    if "*" in known:
        return hosts
    return ",".join(dict.fromkeys((*known, *LOOPBACK)))


def _find_app_folder() -> Path:
    if not (SOURCE_ROOT / "pyproject.toml").exists():
        raise RunError(
            "engine=flower must run from a source checkout (pip install -e .), whose "
            f"pyproject.toml names the app's components; {SOURCE_ROOT} has none"
        )
    return SOURCE_ROOT


def make_paths_absolute(composed: ComposedConfig) -> ComposedConfig:
    """Return the settings with absolute paths, which do not depend on the working directory."""
    settings, paths = composed.settings, dict[str, str]()
    for key, path in _list_paths(settings):
        if path and "://" not in path:
            paths[key] = str(Path(path).expanduser().absolute())
    for key, requirement in collect_requirements(get_requirement_settings(settings)).items():
        if isinstance(requirement, str):
            paths[key] = str(Path(requirement).expanduser().absolute())
    data = settings.data
    if isinstance(data, HfSettings) and not Path(data.path).expanduser().is_dir():
        paths.pop("data.path", None)  # an id on Hugging Face's Hub
    overrides = to_overrides(paths | dict(_list_custom_files(settings)))
    return compose_settings(composed.experiment, shlex.join((*composed.overrides, *overrides)))


def _list_paths(settings: Settings) -> Iterator[tuple[str, str | None]]:
    """Yield the settings of paths, with their values."""
    for group in ("data", "model", "availability", "response_time", "engine", "tracker"):
        node = getattr(settings, group)
        for item in fields(node):
            if isinstance(item.metadata.get("allowed"), FilePath):
                yield f"{group}.{item.name}", getattr(node, item.name)
    for group, key in (("data", "root"), ("data", "path"), ("strategy", "memory_dir")):
        yield f"{group}.{key}", getattr(getattr(settings, group), key, None)


def _list_custom_files(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings that name a class in a file, with the file's absolute path."""
    for group, node in {**get_rule_settings(settings), "model": settings.model}.items():
        file, colon, name = str(getattr(node, "path", "")).rpartition(":")
        if colon:
            yield f"{group}.path", f"{Path(file).expanduser().absolute()}:{name}"


def _follow(
    command: list[str], stop: Callable[[str], None], environment: Mapping[str, str]
) -> tuple[str, str]:
    """Run ``flwr run`` and print its output.

    An interruption calls ``stop``, because the run would otherwise continue.

    Returns
    -------
    tuple of str and str
        The id of the run that it started, and its last line if that is one of ours. That line is
        not printed, because it may be the error that the status repeats.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches this process only, which needs the run's id first
    ) as process:
        output = _FlowerOutput(process.stdout or ())
        try:
            output.print_lines()
        except KeyboardInterrupt:
            with suppress(OSError):  # such as a closed output; the interruption is still raised
                print(output.last_line, end="", flush=True)
                if run_id := output.wait_for_run():
                    stop(run_id)
            process.terminate()
            raise
        finally:
            output.wait_for_end()
    if not output.run_id:
        print(output.last_line, end="", flush=True)
        raise RunError(
            f"flwr run started no run (exit status {process.returncode}); its message is above"
            + _describe_proxies(environment)
        )
    return output.run_id, output.last_line


def _describe_lost_run(run_id: str, status: str, process: str, directory: Path) -> str:
    """Return what happened to a run whose output ended before the run, and how to go on."""
    text = f"the connection to the SuperLink was lost while the Flower run {run_id} was {status}: "
    if not (directory / MANIFEST_FILE).exists():
        return f"{text}it had not started; start the SuperLink again and repeat this command"
    lock = lock_directory(directory)
    if lock is None:  # a simulation needs no SuperLink; a ServerApp waits for it to come back
        wait = f"its process {process} is still at work there: wait for its end, or end it; then"
    else:
        os.close(lock)
        wait = "the records there hold all complete rounds; when the SuperLink runs again,"
    resume = shlex.join(["fedquorum", f"resume={directory}"])
    return f"{text}its folder is {directory}; {wait} continue it with: {resume}"


def _describe_proxies(environment: Mapping[str, str]) -> str:
    """Return what to know about proxies where no run could start; empty without any."""
    proxies = _list_proxies(environment)
    return (
        f" ({proxies[0]} is set: where the SuperLink is not behind this proxy, add its host to "
        f"no_proxy, which is {environment.get('no_proxy')})"
        if proxies
        else ""
    )


class _FlowerOutput:
    """The output of ``flwr run``, and the id of the run once it is printed.

    A thread reads it: Ctrl-C interrupts the main thread only, and could there fall between a line
    and the id in it, without which the run cannot be stopped.

    A line of ours is in ``last_line`` until the next one is printed.
    """

    def __init__(self, stream: Iterable[str]) -> None:
        self.run_id = ""
        self.last_line = ""
        self._lines = SimpleQueue[str | None]()
        self._thread = threading.Thread(target=self._read_lines, args=(stream,), daemon=True)
        self._thread.start()

    def _read_lines(self, stream: Iterable[str]) -> None:
        for line in stream:
            _, found, rest = line.partition("Successfully started run ")
            if found:
                self.run_id = rest.split()[0]
            self._lines.put(line)
        self._lines.put(None)

    def print_lines(self) -> None:
        """Print the output to its end."""
        while (line := self._lines.get()) is not None:
            print(self.last_line, end="", flush=True)
            self.last_line = line if line.startswith(OUR_LINE) else ""
            if not self.last_line:
                print(line, end="", flush=True)

    def wait_for_run(self) -> str:
        """Print lines until the run has started, and return its id, or "" if none started."""
        while not self.run_id and (line := self._lines.get()) is not None:
            print(line, end="", flush=True)
        return self.run_id

    def wait_for_end(self) -> None:
        """Wait until the stream ends; only then may another thread close it."""
        self._thread.join()


def _stop_run(
    command: list[str], environment: Mapping[str, str], run_id: str, output_dir: Path
) -> None:
    """Stop a run, and wait until its records are complete."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        print(
            f"fedquorum: the Flower run {run_id} is still running, flwr stop failed: "
            f"{(result.stderr or result.stdout).strip()}",
            file=sys.stderr,
        )
        return
    print(f"fedquorum: stopped the Flower run {run_id}", file=sys.stderr)
    deadline = time.monotonic() + STOP_SECONDS
    while (
        read_manifest_or_empty(output_dir).get("status") == "running"
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)


def _get_status(command: list[str], environment: Mapping[str, str]) -> tuple[str, str]:
    with tempfile.TemporaryFile("w+") as errors:
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
            env=environment,
        )
    try:
        runs: list[dict[str, Any]] = json.loads(result.stdout)["runs"]
        return str(runs[0]["status"]), str(runs[0]["status-details"])
    except (ValueError, KeyError, IndexError):
        return "unknown", result.stdout.strip()
