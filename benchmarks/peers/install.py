"""Install each peer into a virtual environment that reuses this environment's packages.

    python -m benchmarks.peers.install DIR [PEER ...]

Run it in the repository's root. The peers pin versions of packages that this project uses, and one
installs a package named ``benchmarks``, so each has its environment DIR/PEER. A path file makes the
packages of the present environment visible there, including torch. Every competitor therefore uses
the same torch, and an environment takes megabytes, not gigabytes. The peer's environment comes
first on the path, so it can have other versions of these packages.
"""

import argparse
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PEERS = {
    "pfl": "pfl==0.6.0",
    "fedlab": "fedlab==1.3.0",
    "fluke": "fluke-fl==0.8.1",
    "flgo": "flgo==0.4.4",
}
"""The requirement of each peer. They are no extras of this project, because pip and uv resolve all
extras together and the peers pin older versions of its dependencies."""

DEFAULT_ENVIRONMENTS = Path.home() / ".cache" / "fedquorum-peers"


def get_python(environments: Path, peer: str) -> Path:
    """Return the interpreter of a peer's environment."""
    return environments / peer / "bin" / "python"


def find_missing_peers(environments: Path, peers: list[str]) -> list[str]:
    """Return the peers that have no environment."""
    return [peer for peer in peers if not get_python(environments, peer).exists()]


def install_peer(environments: Path, peer: str) -> None:
    """Create a peer's environment and install the peer from the package index.

    Raises
    ------
    subprocess.CalledProcessError
        If the installation fails; pip prints the reason.
    """
    folder = environments / peer
    venv.create(folder, clear=True, with_pip=False, symlinks=True)
    python = get_python(environments, peer)
    packages = Path(_get_purelib(python))
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", PEERS[peer]]
    try:
        subprocess.run([*command, "--no-warn-conflicts"], check=True)
    except subprocess.CalledProcessError:
        python.unlink()  # so that ``find_missing_peers`` names the peer
        raise


def _get_purelib(python: Path) -> str:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    """Install the peers named on the command line, by default all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environments", metavar="DIR", type=Path, help="folder of the environments")
    parser.add_argument("peers", metavar="PEER", nargs="*", help=f"some of {', '.join(PEERS)}")
    options = parser.parse_args()
    for peer in options.peers:
        if peer not in PEERS:
            parser.error(f"PEER must be one of {', '.join(PEERS)}, got {peer}")
    failed = []
    for peer in options.peers or PEERS:
        try:
            install_peer(options.environments.resolve(), peer)
        except subprocess.CalledProcessError:
            failed.append(peer)
    if failed:
        sys.exit(f"not installed: {', '.join(failed)}; see the output of pip above")


if __name__ == "__main__":
    main()
