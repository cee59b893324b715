"""What is received is read as data, never as code."""

import ast
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from fedquorum.errors import ProtocolError
from fedquorum.flower.codec import NamedArrays, decode_arrays, view_arrays
from flwr.app import Array, ArrayRecord

from conf.compose import options

ROOT = Path(__file__).parent.parent
PACKAGES = ("strategies", "client_app", "server_app", "conf", "deploy", "benchmarks")
LOADERS_OF_CODE = {
    *("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"),
}
CALLS = {
    *("torch.save", "yaml.load", "yaml.unsafe_load", "yaml.full_load"),
    *("eval", "exec", "os.system", "os.popen", "runpy.run_path", "pd.read_pickle"),
}


def sources() -> list[Path]:
    """Return every Python file that is not a test."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found.append(ROOT / "fedquorum_app.py")
    assert len(found) > 80
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_loaded_that_can_run(path: Path) -> None:
    """No pickle and its like, torch.load and np.load without pickles, no shell."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [module or "", *(alias.name for alias in node.names)]
            # How a sweep starts its own processes; joblib's files are what may not be loaded.
            names = [name for name in names if not name.startswith("joblib.externals.loky")]
            assert not {name.partition(".")[0] for name in names} & LOADERS_OF_CODE
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert called not in CALLS, called
            assert given.get("shell", "False") == "False"
            assert given.get("allow_pickle", "False") == "False"
            if called == "torch.load":  # of files of one's own: weights of published models
                assert given.get("weights_only") == "True"


class Planted:
    """When unpickled, makes a file: what an attacker would make run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("decode", [view_arrays, decode_arrays])
def test_a_pickle_in_an_update_is_refused(
    tmp_path: Path, decode: Callable[[ArrayRecord], NamedArrays]
) -> None:
    """An array of objects is a protocol error, and nothing of it runs."""
    planted = np.array([Planted(tmp_path / "ran")], dtype=object)
    buffer = BytesIO()
    np.save(buffer, planted, allow_pickle=True)
    array = Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=buffer.getvalue())
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode(ArrayRecord({"w": array}))
    assert not (tmp_path / "ran").exists()
    np.load(BytesIO(buffer.getvalue()), allow_pickle=True)
    assert (tmp_path / "ran").exists()  # so it would have run


@pytest.mark.parametrize(
    "section", ["What each rule must believe", "Differential privacy", "Secure aggregation"]
)
def test_the_threat_model_has_every_strategy(section: str) -> None:
    """Each table of SECURITY.md says of every strategy what holds for it."""
    text = (ROOT / "SECURITY.md").read_text()
    (body,) = re.findall(rf"^#+ {section}\n(.*?)(?:^#|\Z)", text, re.DOTALL | re.MULTILINE)
    rows = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(options("strategy"))
