"""Test ``engine=flower`` with a fake command flwr; integration/ tests it with the real one."""

import json
import os
import shlex
import signal
import stat
import sys
import sysconfig
import threading
import time
import tomllib
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest
from fedquorum.errors import RunError
from fedquorum.records.run_dir import lock_run

from conf import compose_settings
from conf.compose import quote
from server_app.engines.flower import (
    _find_flwr,
    build_environment,
    make_paths_absolute,
    submit_job,
)

# Starts a run, which continues until flwr stop, and then writes its status.
FLWR = """#!{python}
import json, os, sys, time
from pathlib import Path
here = Path(__file__).parent
arguments = sys.argv[1:]
with (here / "calls.txt").open("a") as calls:
    calls.write(" ".join(arguments) + "\\n")
if arguments[0] == "run":
    config = Path(arguments[arguments.index("--run-config") + 1])
    (here / "config.toml").write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
    (here / "environment.json").write_text(json.dumps(dict(os.environ)))
    print("Successfully started run 77", flush=True)
    (here / "started").touch()
    while (here / "running").exists():
        time.sleep(0.05)
    print("the end" if not (here / "last.txt").exists() else (here / "last.txt").read_text())
elif arguments[0] == "stop":
    if (here / "unstoppable").exists():
        sys.exit("no such run")
    (here / "running").unlink()
    (here / "run" / "manifest.json").write_text('{{"status": "interrupted"}}')
else:
    print(json.dumps({{"runs": [json.loads((here / "status.json").read_text())]}}))
"""


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a fake ``flwr`` whose runs complete at once."""
    path = tmp_path / "flwr"
    path.write_text(FLWR.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("server_app.engines.flower._find_flwr", lambda: str(path))
    (tmp_path / "status.json").write_text(
        json.dumps({"status": "finished:completed", "status-details": ""})
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text('{"status": "running"}')
    return tmp_path


def test_a_completed_run_prints_flowers_output(
    flwr: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flower receives the settings and absolute paths."""
    submit_job(
        compose_settings("", "engine=flower engine.num_supernodes=3 rounds=7"), str(flwr / "run")
    )
    command, listing = (flwr / "calls.txt").read_text().splitlines()
    config = tomllib.loads((flwr / "config.toml").read_text(encoding="utf-8"))
    assert config["output-dir"] == str(flwr / "run")
    assert "rounds=7" in shlex.split(config["overrides"])
    assert "--federation-config num-supernodes=3" in command
    assert listing == "list --run-id 77 --format json"
    assert capsys.readouterr().out.splitlines() == ["Successfully started run 77", "the end"]


@pytest.mark.parametrize("given", [None, "0"])
def test_flower_does_not_reinstall_dependencies(
    flwr: Path, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment can override this."""
    name = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    submit_job(compose_settings("", "engine=flower"), str(flwr / "run"))
    environment = json.loads((flwr / "environment.json").read_text())
    assert environment[name] == (given or "1")


@pytest.mark.parametrize("path", ["/usr/bin:/bin", "", None])
def test_flower_finds_its_other_commands(
    flwr: Path, path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are beside ``flwr``, though cron, systemd or a notebook has another PATH, or none."""
    if path is None:
        monkeypatch.delenv("PATH")
    else:
        monkeypatch.setenv("PATH", path)
    submit_job(compose_settings("", "engine=flower"), str(flwr / "run"))
    given = json.loads((flwr / "environment.json").read_text())["PATH"]
    assert given == f"{flwr}{os.pathsep}{path or os.defpath}"


def test_flwr_is_the_one_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only without one, the PATH counts; the error says where it was looked for."""
    beside, elsewhere = tmp_path / "bin", tmp_path / "elsewhere"
    for folder in (beside, elsewhere):
        folder.mkdir()
        (folder / "flwr").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(beside))
    monkeypatch.setenv("PATH", str(elsewhere))
    assert _find_flwr() == str(beside / "flwr")
    (beside / "flwr").unlink()
    assert _find_flwr() == str(elsewhere / "flwr")
    (elsewhere / "flwr").unlink()
    with pytest.raises(RunError, match=f"flwr in {beside} or on the PATH, which have none"):
        _find_flwr()


LOOPBACK = "127.0.0.1,localhost,::1"


@pytest.mark.parametrize(
    ("given", "lower", "upper"),
    [
        ({"http_proxy": "http://p:8080"}, LOOPBACK, LOOPBACK),
        ({"HTTPS_PROXY": "http://p:8080"}, LOOPBACK, LOOPBACK),
        ({"all_proxy": "http://p", "no_proxy": ""}, LOOPBACK, LOOPBACK),
        (
            {"ALL_PROXY": "http://p", "NO_PROXY": ".org, b"},
            f".org,b,{LOOPBACK}",
            f".org,b,{LOOPBACK}",
        ),
        (
            {"grpc_proxy": "http://p", "no_proxy": "a", "NO_PROXY": "b"},
            f"a,{LOOPBACK}",
            f"b,{LOOPBACK}",
        ),
        (
            {"http_proxy": "http://p", "no_proxy": "localhost,a"},
            "localhost,a,127.0.0.1,::1",
            "localhost,a,127.0.0.1,::1",
        ),
        ({"http_proxy": "http://p", "no_proxy": "*"}, "*", "*"),
        ({"http_proxy": "", "no_proxy": "a"}, "a", None),
        ({}, None, None),
    ],
)
def test_this_machine_is_reached_without_a_proxy(
    given: dict[str, str], lower: str | None, upper: str | None
) -> None:
    """The user's hosts stay in the list; without a proxy there is nothing to add to."""
    found = build_environment("/bin/flwr", given)
    assert (found.get("no_proxy"), found.get("NO_PROXY")) == (lower, upper)
    assert "no_grpc_proxy" not in found


def test_grpcs_own_list_is_extended() -> None:
    """It would hide ``no_proxy``."""
    given = {"http_proxy": "http://p", "no_grpc_proxy": "a"}
    assert build_environment("/bin/flwr", given)["no_grpc_proxy"] == f"a,{LOOPBACK}"


@pytest.mark.parametrize("proxy", ["HTTPS_PROXY", None])
def test_a_proxy_is_named_where_no_run_starts(
    flwr: Path, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperLink elsewhere may not be behind it."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    if proxy:
        monkeypatch.setenv(proxy, "http://user:secret@p:8080")
    (flwr / "flwr").write_text("#!/bin/sh\necho no connection\nexit 1\n")
    with pytest.raises(RunError, match="started no run") as caught:
        submit_job(compose_settings("", "engine=flower"), str(flwr / "run"))
    expected = (
        " (HTTPS_PROXY is set: where the SuperLink is not behind this proxy, add its host to "
        f"no_proxy, which is {LOOPBACK})"
    )
    assert str(caught.value) == (
        "flwr run started no run (exit status 1); its message is above" + expected * bool(proxy)
    )


def test_overrides_with_quotes_reach_the_run(flwr: Path) -> None:
    """A quoted path, such as that of ``resume``, and a mapping arrive unchanged."""
    folder = flwr / "it's \N{SNOWMAN} \N{ROCKET}"
    overrides = f'engine=flower "resume={quote(str(folder))}" "data.priority_weights={{0: 0.5}}"'
    submit_job(compose_settings("", overrides), str(flwr / "run"))
    config = tomllib.loads((flwr / "config.toml").read_text(encoding="utf-8"))
    settings = compose_settings(config["experiment"], config["overrides"]).settings
    assert settings.resume == str(folder)
    assert settings.data.priority_weights == {0: 0.5}


def test_a_failed_run_raises_flowers_status(flwr: Path) -> None:
    """The error has the status of ``flwr list`` with Flower's details."""
    (flwr / "status.json").write_text(
        json.dumps({"status": "finished:failed", "status-details": "out of luck"})
    )
    with pytest.raises(RunError, match="run 77 ended as finished:failed: out of luck"):
        submit_job(compose_settings("", "engine=flower"), str(flwr / "run"))


@pytest.mark.parametrize(
    ("status", "details", "shown"),
    [
        ("finished:failed", "Simulation failed with exception: no such file", False),
        ("finished:failed", "out of luck", True),
        ("finished:completed", "", True),
    ],
)
def test_the_last_line_is_shown_once(
    flwr: Path, capsys: pytest.CaptureFixture[str], status: str, details: str, *, shown: bool
) -> None:
    """Where the status repeats the ServerApp's error, it is not shown above as well."""
    (flwr / "last.txt").write_text("fedquorum: a tracker is left out\nfedquorum: no such file")
    (flwr / "status.json").write_text(json.dumps({"status": status, "status-details": details}))
    with nullcontext() if status.endswith("completed") else pytest.raises(RunError):
        submit_job(compose_settings("", "engine=flower"), str(flwr / "run"))
    first, second = "fedquorum: a tracker is left out", "fedquorum: no such file"
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == ([first, second] if shown else [first])


def interrupt_when_started(flwr: Path) -> threading.Thread:
    """Send this process SIGINT once the run has started, as Ctrl-C does."""

    def wait_and_interrupt() -> None:
        deadline = time.monotonic() + 60
        while not (flwr / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait_and_interrupt)
    thread.start()
    return thread


def test_ctrl_c_stops_the_flower_run(flwr: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run would otherwise continue; the command prints that it was stopped."""
    (flwr / "running").touch()
    thread = interrupt_when_started(flwr)
    with pytest.raises(KeyboardInterrupt):
        submit_job(compose_settings("", "engine=flower"), str(flwr / "run"))
    thread.join()
    assert (flwr / "calls.txt").read_text().splitlines()[1:] == ["stop 77"]
    assert capsys.readouterr().err == "fedquorum: stopped the Flower run 77\n"


@pytest.mark.parametrize("text", ["Successfully started run 77", "\n"])
def test_ctrl_c_at_any_moment_stops_the_flower_run(
    flwr: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Even between the line that has the run's id and what follows from it."""
    (flwr / "running").touch()
    write, moments = sys.stdout.write, [text]

    def write_or_stop(line: str) -> int:
        if moments and moments[0] in line:
            moments.clear()
            raise KeyboardInterrupt
        return write(line)

    monkeypatch.setattr(sys.stdout, "write", write_or_stop)
    with pytest.raises(KeyboardInterrupt):
        submit_job(compose_settings("", "engine=flower"), str(flwr / "run"))
    assert (flwr / "calls.txt").read_text().splitlines()[1:] == ["stop 77"]


def test_a_run_that_cannot_be_stopped_is_reported(
    flwr: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints that it is still running, with Flower's reason."""
    (flwr / "running").touch()
    (flwr / "unstoppable").touch()
    thread = interrupt_when_started(flwr)
    with pytest.raises(KeyboardInterrupt):
        submit_job(compose_settings("", "engine=flower"), str(flwr / "run"))
    thread.join()
    assert capsys.readouterr().err == (
        "fedquorum: the Flower run 77 is still running, flwr stop failed: no such run\n"
    )


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SuperLink has another working directory; addresses of servers do not change."""
    monkeypatch.chdir(tmp_path)
    local = make_paths_absolute(compose_settings("", "tracker=mlflow tracker.uri=runs.db"))
    assert f"tracker.uri={tmp_path / 'runs.db'}" in local.overrides
    server = make_paths_absolute(
        compose_settings("", "tracker=mlflow tracker.uri=http://host:5000")
    )
    assert "tracker.uri=http://host:5000" in server.overrides
    assert not any(
        override.endswith("host:5000") and str(tmp_path) in override
        for override in server.overrides
    )


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ("data=csv data.target=y data.path=t.csv data.test_path=test.csv", "data.test_path"),
        ("data=mqp data.path=t.csv data.tokenizer=bert", "data.tokenizer"),
        ("model=efficientnet model.pretrained=weights.pt", "model.pretrained"),
        ("response_time=trace response_time.path=seconds.csv", "response_time.path"),
        ("engine.node_keys=nodes", "engine.node_keys"),
        ("strategy=fedawe strategy.memory_dir=starts", "strategy.memory_dir"),
    ],
)
def test_every_path_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: str, key: str
) -> None:
    """Settings of paths say that they are; none is forgotten."""
    monkeypatch.chdir(tmp_path)
    found = asdict(make_paths_absolute(compose_settings("custom", overrides)).settings)
    group, name = key.split(".")
    assert Path(found[group][name]).parent == tmp_path


def test_an_id_on_a_hub_is_not_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a folder has that name, it is a path."""
    monkeypatch.chdir(tmp_path)
    composed = compose_settings("custom", "data=hf data.path=ylecun/mnist data.cache_dir=cache")
    found = asdict(make_paths_absolute(composed).settings.data)
    assert (found["path"], found["cache_dir"]) == ("ylecun/mnist", f"{tmp_path}/cache")
    address = compose_settings("custom", "data=hf 'data.path=\"hf://ylecun/mnist\"'")
    assert asdict(make_paths_absolute(address).settings.data)["path"] == "hf://ylecun/mnist"
    (tmp_path / "ylecun" / "mnist").mkdir(parents=True)
    found = asdict(make_paths_absolute(composed).settings.data)
    assert found["path"] == f"{tmp_path}/ylecun/mnist"


def test_a_folder_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name may contain characters with a meaning in Hydra's grammar."""
    folder = tmp_path / "a, {b} = 'c' [d]"
    folder.mkdir()
    monkeypatch.chdir(folder)
    found = make_paths_absolute(compose_settings("", "data=fmnist data.root=here")).settings.data
    assert asdict(found)["root"] == f"{folder}/here"


@pytest.mark.slow
def test_paths_of_custom_rules_and_models_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of files become absolute; import paths do not change."""
    monkeypatch.chdir(tmp_path)
    paths = {
        "strategy.selection.path": "./mine.py:Selection",
        "strategy.weighting.path": "package.rules.Weighting",
        "server_optimizer.path": "steps/mine.py:Step",
        "model.path": "nets.py:Net",
    }
    groups = (
        "strategy=composed strategy/selection=custom strategy/weighting=custom "
        "server_optimizer=custom model=module"
    )
    overrides = " ".join((groups, *(f"{key}={path}" for key, path in paths.items())))
    settings = make_paths_absolute(compose_settings("", overrides)).settings
    strategy, optimizer = asdict(settings.strategy), asdict(settings.server_optimizer)
    assert strategy["selection"]["path"] == f"{tmp_path}/mine.py:Selection"
    assert strategy["weighting"]["path"] == "package.rules.Weighting"
    assert optimizer["path"] == f"{tmp_path}/steps/mine.py:Step"
    assert asdict(settings.model)["path"] == f"{tmp_path}/nets.py:Net"
    single = make_paths_absolute(
        compose_settings("", "strategy=custom strategy.path=a/b.py:C")
    ).settings
    assert asdict(single.strategy)["path"] == f"{tmp_path}/a/b.py:C"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("absent", "it had not started; start the SuperLink again and repeat this command"),
        (
            "at work",
            (
                "its process flwr-simulation is still at work there: wait for its end, or end it; "
                "then "
            ),
        ),
        ("dead", "the records there hold all complete rounds; when the SuperLink runs again, "),
    ],
)
@pytest.mark.parametrize("status", ["running", None])
def test_a_lost_superlink_is_one_line_with_the_command_to_go_on(
    flwr: Path, state: str, expected: str, status: str | None
) -> None:
    """Flower's list says that the run is running, or nothing, for nobody reported its end."""
    run = flwr / "run"
    listed = {"status": status, "status-details": "N/A"} if status else {}
    (flwr / "status.json").write_text(json.dumps(listed))
    if state == "absent":
        (run / "manifest.json").unlink()
    with ExitStack() as stack:
        if state == "at work":
            stack.callback(os.close, lock_run(run))
        with pytest.raises(RunError) as caught:
            submit_job(compose_settings("", "engine=flower"), str(run))
    begin = (
        "the connection to the SuperLink was lost while the Flower run 77 was "
        f"{status or 'unknown'}: "
    )
    command = f"continue it with: fedquorum resume={run}"
    place = "" if state == "absent" else f"its folder is {run}; "
    assert str(caught.value) == f"{begin}{place}{expected}{'' if state == 'absent' else command}"
