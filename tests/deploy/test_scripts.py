"""The scripts and examples of a deployment."""

import configparser
import re
import resource
import stat
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from flwr.common.config import parse_config_args

from conf import compose_settings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SCRIPTS = ("superlink.sh", "supernode.sh", "register.sh")


def keys(
    folder: Path, *words: str, file_size: int = resource.RLIM_INFINITY
) -> subprocess.CompletedProcess[str]:
    """Run keys.py, which may write files of at most ``file_size`` bytes."""
    limit = ["prlimit", f"--fsize={file_size}"] if file_size != resource.RLIM_INFINITY else []
    command = [*limit, sys.executable, str(DEPLOY / "keys.py"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    """Return a folder with an authority and a certificate."""
    made = keys(tmp_path, "server", "tls", "superlink.example.org", "127.0.0.1", "--days", "2")
    assert made.returncode == 0, made.stderr
    return tmp_path / "tls"


def test_the_certificate_is_of_the_authority_for_the_names_given(tls: Path) -> None:
    """A client that trusts the authority accepts it for these names, for as long as was asked."""
    authority, server = (
        x509.load_pem_x509_certificate((tls / name).read_bytes())
        for name in ("ca.pem", "server.pem")
    )
    policy = PolicyBuilder().store(Store([authority]))
    chain = policy.build_server_verifier(x509.DNSName("superlink.example.org")).verify(server, [])
    assert chain == [server, authority]
    later = policy.time(datetime.now(UTC) + timedelta(days=3))
    for verifier in (
        policy.build_server_verifier(x509.DNSName("elsewhere.example.org")),
        later.build_server_verifier(x509.DNSName("superlink.example.org")),
    ):
        with pytest.raises(VerificationError):
            verifier.verify(server, [])


def test_no_key_of_the_authority_is_left(tls: Path) -> None:
    """Nobody can make a second certificate; the server's key is for its owner alone."""
    assert sorted(path.name for path in tls.iterdir()) == ["ca.pem", "server.key", "server.pem"]
    assert stat.S_IMODE((tls / "server.key").stat().st_mode) == 0o600


def test_a_nodes_keys(tmp_path: Path) -> None:
    """A private key that only its owner reads, of a curve that Flower takes, and its public one."""
    assert keys(tmp_path, "node", "keys/node-3").returncode == 0
    path = tmp_path / "keys" / "node-3"
    private = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    public = path.with_name("node-3.pub")
    assert load_ssh_public_key(public.read_bytes()) == private.public_key()
    assert public.read_text().split()[2] == "node-3"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("words", [("node", "key"), ("server", ".", "localhost")])
def test_keys_are_not_overwritten(tmp_path: Path, words: tuple[str, ...]) -> None:
    """What exists stays as it is."""
    assert keys(tmp_path, *words).returncode == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = keys(tmp_path, *words)
    assert again.returncode == 1
    assert re.fullmatch(r"keys\.py: .* exists already and is not overwritten: .*\n", again.stderr)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("words", "there"),
    [
        *((("server", ".", "localhost"), name) for name in ("ca.pem", "server.pem", "server.key")),
        *((("node", "node-3"), name) for name in ("node-3", "node-3.pub")),
    ],
)
def test_no_file_appears_without_those_that_belong_to_it(
    tmp_path: Path, words: tuple[str, ...], there: str
) -> None:
    """A new authority beside an old certificate would make every node refuse the server."""
    (tmp_path / there).write_text("of before")
    done = keys(tmp_path, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"keys.py: {there} exists already and is not overwritten: give another name, or remove it "
        "to make it anew\n"
    )
    assert names_in(tmp_path) == [there]
    assert (tmp_path / there).read_text() == "of before"


@pytest.mark.parametrize("room", ["for none", "for the authority's certificate"])
def test_a_full_disk_leaves_no_file(tmp_path: Path, tls: Path, room: str) -> None:
    """Nor does it end in a trace."""
    authority, server = ((tls / name).stat().st_size for name in ("ca.pem", "server.pem"))
    assert server - authority > 20  # a signature's length varies by two bytes
    bytes_ = 100 if room == "for none" else (authority + server) // 2
    words = ("server", "new", "superlink.example.org", "127.0.0.1")
    done = keys(tmp_path, *words, file_size=bytes_)
    assert done.returncode == 1
    assert re.fullmatch(r"keys\.py: .*File too large\n", done.stderr), done.stderr
    assert names_in(tmp_path / "new") == []


LONG = "a" * 64
BAD_WORDS = {
    "--days: must be a whole number from 1 to 3650, got '-1'": "server new localhost --days -1",
    "--days: must be a whole number from 1 to 3650, got '10000000'": (
        "server new localhost --days 10000000"
    ),
    "--days: must be a whole number from 1 to 3650, got 'soon'": "server new localhost --days soon",
    "hosts: must be an address or a DNS name": "server new münchen.example",
    "hosts: must be an address or a DNS name of at most 253": f"server new {LONG}.example",
    "hosts: must be an address or a DNS name of at most 253 ": f"server new {'a.' * 150}example",
    "hosts: must be an address or a DNS name of": "server new ",
    "--nodes: must be a whole number from 1 to 10000, got '0'": "kubernetes new --nodes 0",
    "--nodes: must be a whole number from 1 to 10000, got '-3'": "kubernetes new --nodes -3",
    "--host: must be an address or a DNS name": "kubernetes new --nodes 1 --host a..b",
    "path: must be a path whose last part has printable characters": "node new/a\nb",
    "path: must be a path whose last part has printable characters only": "node .",
    "following arguments are required: hosts": "server new",
    "invalid choice: 'nodes'": "nodes new",
    "File name too long": f"node new/{'é' * 200}",
}


@pytest.mark.parametrize(("message", "words"), BAD_WORDS.items(), ids=range(len(BAD_WORDS)))
def test_mistakes_are_one_line(tmp_path: Path, message: str, words: str) -> None:
    """It names the argument, and leaves nothing behind."""
    done = keys(tmp_path, *words.split(" "))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"keys\.py.*: .*{re.escape(message)}.*\n", done.stderr), done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("place", "content", "message"),
    [
        ("keys/node-0.pub", b"\xff", "must be one line with an OpenSSH public key"),
        ("keys/node-0.pub", b"ssh-ed25519 AAAA\n", "must be one line with an OpenSSH public key"),
        (
            "keys/node-0",
            b"of before",
            "exists already and is not overwritten: give another name, .*",
        ),
        ("tls/server.key", b"of before", "No such file or directory"),
        ("tls", b"no folder", "exists already and is not overwritten: give another name, .*"),
    ],
)
def test_invalid_files_are_reported_in_one_line(
    tmp_path: Path, place: str, content: bytes, message: str
) -> None:
    """Whatever is wrong in the folder that manifests are made from."""
    path = tmp_path / "made" / place
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    done = keys(tmp_path, "kubernetes", "made", "--nodes", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"keys\.py: made/.*{message}\n", done.stderr), done.stderr


def test_a_certificate_for_every_kind_of_name(tmp_path: Path) -> None:
    """Long ones too: the common name, which has at most 64 characters, is not one of them."""
    hosts = [
        ".".join([LONG[:63]] * 3),
        "*.example.org",
        "xn--mnchen-3ya.example",
        "::1",
        "10.0.0.1",
    ]
    assert keys(tmp_path, "server", "tls", *hosts).returncode == 0
    pem = (tmp_path / "tls" / "server.pem").read_bytes()
    names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    found = [*names.value.get_values_for_type(x509.DNSName)]
    found += map(str, names.value.get_values_for_type(x509.IPAddress))
    assert found == hosts


NEEDED = {
    "superlink.sh": {"TLS": ".", "STATE": "."},
    "supernode.sh": {
        "SUPERLINK": "here:1",
        "CA": "ca.pem",
        "KEY": "key",
        "CLIENT": "3",
        "DATA": "own data.csv",
    },
    "register.sh": {"NODES": "nodes", "READY": "ready"},
}


def start(script: str, folder: Path, **given: str) -> tuple[int, str]:
    """Start a script in a folder with its files; return its status and its errors."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("flower-superlink", "flower-supernode", "flwr"):
        (folder / "bin" / name).write_text("#!/bin/sh\necho started\nexit 7\n")
        (folder / "bin" / name).chmod(0o755)
    done = subprocess.run(
        ["sh", str(DEPLOY / script)],
        cwd=folder,
        env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin", **NEEDED[script], **given},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with all files that the scripts need."""
    for name in ("ca.pem", "server.pem", "server.key", "key", "own data.csv", "nodes"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("script", "name"), [(script, name) for script in SCRIPTS for name in NEEDED[script]]
)
def test_scripts_name_what_they_need(files: Path, script: str, name: str) -> None:
    """Without a setting a script starts nothing and names it, in one line."""
    status, errors = start(script, files, **{name: ""})
    assert status == 2
    assert errors.startswith(f"{script}: {name} must be ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("script", "name", "given", "line"),
    [
        ("supernode.sh", "CA", "x/ca.pem", "ca.pem of the server, got x/ca.pem: there is no such"),
        ("supernode.sh", "CA", "bin", "ca.pem of the server, got bin: there is no such file"),
        ("supernode.sh", "KEY", "x y", "the private key of this node, got x y: there is no such"),
        ("supernode.sh", "DATA", "/no/own.csv", "a file or a folder, got /no/own.csv: there is no"),
        ("supernode.sh", "POLICY", "node.yml", "this device allows, got node.yml: there is no "),
        ("supernode.sh", "CLIENT", "-1", "the client id, a whole number from 0, got -1"),
        ("supernode.sh", "CLIENT", "North", "the client id, a whole number from 0, got North"),
        ("supernode.sh", "CLIENT", "1 2", "the client id, a whole number from 0, got 1 2"),
        ("supernode.sh", "PRELOAD", "yes", "0 or 1, got yes"),
        ("superlink.sh", "TLS", "bin", "deploy/keys.py server writes, got bin/ca.pem: there is no"),
        ("superlink.sh", "STATE", "key/x", "a folder that can be written, got key/x"),
        ("register.sh", "NODES", "none", "client ids and public keys, got none: there is no such"),
    ],
)
def test_scripts_name_the_path_that_is_wrong(
    files: Path, script: str, name: str, given: str, line: str
) -> None:
    """The last line of the errors is the script's; nothing starts."""
    status, errors = start(script, files, **{name: given})
    assert status == 2
    last = errors.splitlines()[-1]
    assert last.startswith(f"{script}: {name}")
    assert line in last


@pytest.mark.parametrize(
    "given", [{}, {"DATA": "bin"}, {"DATA": "site=*/own.csv"}, {"POLICY": "nodes"}]
)
def test_a_node_with_all_it_needs_starts(files: Path, given: dict[str, str]) -> None:
    """Data may be a folder or a pattern, too."""
    assert start("supernode.sh", files, **given) == (7, "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, " "),
        ({"no_proxy": "a"}, "a "),
        ({"https_proxy": "http://p"}, "127.0.0.1,localhost 127.0.0.1,localhost"),
        (
            {"HTTP_PROXY": "http://p", "NO_PROXY": ".org,b"},
            ".org,b,127.0.0.1,localhost .org,b,127.0.0.1,localhost",
        ),
        ({"all_proxy": "http://p", "no_proxy": "*"}, "* *"),
    ],
)
@pytest.mark.parametrize("script", ["superlink.sh", "supernode.sh"])
def test_this_machine_is_reached_without_a_proxy(
    files: Path, script: str, given: dict[str, str], expected: str
) -> None:
    """The operator's own hosts stay in the list."""
    tell = files / "tell" / f"flower-{script.removesuffix('.sh')}"
    tell.parent.mkdir()
    tell.write_text('#!/bin/sh\necho "$no_proxy $NO_PROXY" >&2\n')
    tell.chmod(0o755)
    status, printed = start(script, files, PATH=f"{tell.parent}:/usr/bin:/bin", **given)
    assert (status, printed) == (0, f"{expected}\n")


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_read(shell: str, script: str) -> None:
    """By the shell of the first line, and by the one that many call instead."""
    done = subprocess.run([shell, "-n", str(DEPLOY / script)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_run_of_the_guide() -> None:
    """Flower's parser takes the guide's ``flwr run``, and our settings what is in it."""
    guide = (DEPLOY.parent / "docs" / "deployment.md").read_text()
    (block,) = re.findall(r"```bash\n((?:(?!```).)*flwr run.*?)```", guide, re.DOTALL)
    show_the_last_word = 'flwr() { printf %s "${@: -1}"; }\n'
    printed = subprocess.check_output(["bash", "-c", show_the_last_word + block], text=True)
    given = parse_config_args([printed])
    settings = compose_settings(given["experiment"], given["overrides"]).settings
    assert (settings.data.name, settings.data.num_clients) == ("npz", 5)
    assert settings.engine.node_keys == "/etc/fedquorum/nodes"


@pytest.mark.parametrize(
    ("unit", "script"), [("superlink.service", SCRIPTS[0]), ("supernode@.service", SCRIPTS[1])]
)
def test_units_set_what_their_script_needs(unit: str, script: str) -> None:
    """Every setting of the script is in the unit, or in the device's own file."""
    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    parser.read(DEPLOY / unit)
    assert parser["Service"]["ExecStart"] == f"/opt/fedquorum/{script}"
    given = (DEPLOY / unit).read_text() + (DEPLOY / "node.env").read_text()
    needed = re.findall(r'^: "\$\{(\w+):\?', (DEPLOY / script).read_text(), re.MULTILINE)
    assert [name for name in needed if f"{name}=" not in given] == []


def test_the_network_reaches_the_nodes_part_alone() -> None:
    """The proxy's example hands on what nodes ask for; the SuperLink listens on loopback."""
    locations = re.findall(r"location (\S+) {\s+(\w+) +(\S+);", (DEPLOY / "nginx.conf").read_text())
    assert [(path, does) for path, does, _ in locations] == [
        ("/v1/fleet/", "proxy_pass"),
        ("/", "return"),
    ]
    assert "${HOST:-127.0.0.1}" in (DEPLOY / SCRIPTS[0]).read_text()
    config = tomllib.loads((DEPLOY / "config.toml").read_text())["superlink"]
    assert config["deployment"]["address"].startswith("127.0.0.1:")
    assert Path(config["deployment"]["root-certificates"]).is_absolute()
