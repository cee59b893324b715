"""The example: Flower's quickstart with one line changed, on real Flower."""

import re
import shutil
from pathlib import Path

import pytest

from tests.cases import is_long
from tests.integration.conftest import ROOT, Shell

QUICKSTART = ROOT / "examples" / "quickstart"
README = (QUICKSTART / "README.md").read_text()
SERVER = (QUICKSTART / "quickstart" / "server_app.py").read_text()
CLIENT = (QUICKSTART / "quickstart" / "client_app.py").read_text()
BLOCKS = dict(re.findall(r"<!-- (\w+) -->\n```python\n(.*?)```", README, re.DOTALL))
LINES = BLOCKS["strategies"].splitlines()
(COMMAND,) = re.findall(r"```bash\n(.*?)\n```", README, re.DOTALL)
ARGUMENTS = re.findall(r'"[^"]*"|\S+', COMMAND.partition("flwr ")[2])


def name_in(line: str) -> str:
    """Return the strategy's name in ``strategy = Name(...)``."""
    return line.partition("(")[0].rpartition(" ")[2]


def test_the_readme_has_the_line_that_is_in_the_code() -> None:
    """The first of the lines is the example's; only the ServerApp knows of FedQuorum."""
    assert f"    {LINES[0]}\n" in SERVER
    for other in ("client_app.py", "task.py"):
        assert "import fedquorum" not in (QUICKSTART / "quickstart" / other).read_text()
        assert "from fedquorum" not in (QUICKSTART / "quickstart" / other).read_text()


def test_the_query_is_that_of_the_documentation() -> None:
    """The lines by which nodes say who they are stand on two pages."""
    assert BLOCKS["query"] in (ROOT / "docs" / "drop-in.md").read_text()


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.parametrize("line", LINES if is_long() else LINES[-1:], ids=name_in)
def test_the_quickstart_learns_with_each_strategy(line: str, flower: Shell, tmp_path: Path) -> None:
    """``flwr run`` on Ray with the README's command: better than guessing one class in ten."""
    app = tmp_path / "quickstart"
    shutil.copytree(QUICKSTART, app)
    name = name_in(line)
    code = SERVER.replace(LINES[0], line).replace("import FedAU\n", f"import {name}\n")
    (app / "quickstart" / "server_app.py").write_text(code)
    if 'client_ids="query"' in line:
        (app / "quickstart" / "client_app.py").write_text(f"{CLIENT}\n\n{BLOCKS['query']}")
    words = [word.strip('"') for word in ARGUMENTS]
    assert words[:2] == ["run", "."]
    done = flower("flwr", "run", str(app), *words[2:])
    found = re.search(r"Mean accuracy at the end: ([\d.]+)", done.stdout)
    assert found, done.stdout[-4000:] + done.stderr[-2000:]
    assert float(found[1]) > 0.3
    assert f"Starting {name} strategy" in done.stdout
    assert "configure_train: Sampled 4 nodes (out of 4)" in done.stdout
