"""Run a job with ``flwr run``, for ``engine=flower``.

``flwr run --stream`` exits with 0 even if the run died, so the status comes from ``flwr list``.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from fedquorum.contrib import collect_requirements
from fedquorum.errors import RunError
from fedquorum.records.run_dir import read_manifest_or_empty

from client_app.simulation.ray_address import check_ray_environment
from conf import ComposedConfig, Settings, compose_settings
from conf.overrides import to_overrides
from conf.schema.data import HfSettings
from conf.schema.rules import get_requirement_settings, get_rule_settings
from server_app.provenance import SOURCE_ROOT

COMPLETED_STATUS = "finished:completed"
SUPERLINK_ENV = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
"""The environment of a SuperLink that ``flwr run`` starts: this one has all dependencies."""

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
            lambda run_id: _stop_run([flwr, "stop", run_id, *superlink], run_id, Path(output_dir)),
        )
    status, details = _get_status(
        [flwr, "list", *superlink, "--run-id", run_id, "--format", "json"]
    )
    if last_line.removeprefix(OUR_LINE).strip() not in details:
        print(last_line, end="", flush=True)
    if status != COMPLETED_STATUS:
        raise RunError(f"the Flower run {run_id} ended as {status}: {details or 'see its log'}")


def _find_flwr() -> str:
    """Return the path of ``flwr``, if possible the one of this Python environment."""
    beside = Path(sys.executable).with_name("flwr")
    path = str(beside) if beside.exists() else shutil.which("flwr")
    if path is None:
        raise RunError("engine=flower needs Flower's command flwr on the PATH, which has none")
    return path


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
    for group, key in (
        ("data", "root"),
        ("data", "path"),
        ("data", "cache_dir"),
        ("availability", "path"),
        ("response_time", "path"),
        ("strategy", "memory_dir"),
        ("engine", "node_keys"),
        ("tracker", "uri"),
    ):
        path = getattr(getattr(settings, group), key, None)
        if path is not None and "://" not in path:
            paths[f"{group}.{key}"] = str(Path(path).expanduser().absolute())
    for key, requirement in collect_requirements(get_requirement_settings(settings)).items():
        if isinstance(requirement, str):
            paths[key] = str(Path(requirement).expanduser().absolute())
    data = settings.data
    if isinstance(data, HfSettings) and not Path(data.path).expanduser().is_dir():
        paths.pop("data.path", None)  # an id on Hugging Face's Hub
    overrides = to_overrides(paths | dict(_list_custom_files(settings)))
    return compose_settings(composed.experiment, shlex.join((*composed.overrides, *overrides)))


def _list_custom_files(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings that name a class in a file, with the file's absolute path."""
    for group, node in {**get_rule_settings(settings), "model": settings.model}.items():
        file, colon, name = str(getattr(node, "path", "")).rpartition(":")
        if colon:
            yield f"{group}.path", f"{Path(file).expanduser().absolute()}:{name}"


def _follow(command: list[str], stop: Callable[[str], None]) -> tuple[str, str]:
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
        env={
            **SUPERLINK_ENV,
            **os.environ,
            "PYTHONUNBUFFERED": "1",
        },
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
        )
    return output.run_id, output.last_line


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


def _stop_run(command: list[str], run_id: str, output_dir: Path) -> None:
    """Stop a run, and wait until its records are complete."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
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


def _get_status(command: list[str]) -> tuple[str, str]:
    with tempfile.TemporaryFile("w+") as errors:
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
        )
    try:
        runs: list[dict[str, Any]] = json.loads(result.stdout)["runs"]
        return str(runs[0]["status"]), str(runs[0]["status-details"])
    except (ValueError, KeyError, IndexError):
        return "unknown", result.stdout.strip()
