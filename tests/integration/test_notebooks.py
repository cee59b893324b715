"""The notebooks in examples/: they run as they stand there, and what they show is committed."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.integration.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
MOST_BYTES = 250_000
SHOWN = {"text/plain", "text/html", "image/png"}


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code(notebook: Any) -> list[Any]:
    """Return the cells with code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> Iterator[tuple[str, ...]]:
    """Yield of what kind each output of a cell is."""
    for output in cell.outputs:
        yield (output.output_type, output.get("name", ""), *sorted(output.get("data", ())))


def test_both_notebooks_are_there() -> None:
    """And none that nobody executes."""
    assert [path.name for path in NOTEBOOKS] == ["first_steps.ipynb", "own_app.ipynb"]
    assert set(ROOT.rglob("examples/**/*.ipynb")) == set(NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_shows_its_outputs(path: Path) -> None:
    """All of one execution: text, tables and small pictures, and no path of its author's."""
    notebook = read(path)
    nbformat.validate(notebook)
    cells = code(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {kind for output in outputs for kind in output.get("data", ())} == SHOWN
    assert "stderr" not in {output.get("name") for output in outputs}
    text = path.read_text()
    assert len(text.encode()) < MOST_BYTES
    assert not re.search(r"/(home|root|tmp|work|Users)/|[A-Z]:\\\\", text)
    assert all("execution" not in cell.metadata for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    """Files of the repository, from the folder of the notebook."""
    texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    links = re.findall(r"\]\(([^)\s]+)\)", "\n".join(texts))
    assert links
    for link in links:
        assert (path.parent / link).exists(), link


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell, in a real kernel; each shows outputs of the kinds that are committed."""
    from nbclient import NotebookClient

    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "notebook").mkdir()
    done = read(path)
    client = NotebookClient(
        done, timeout=300, resources={"metadata": {"path": str(tmp_path / "notebook")}}
    )
    client.execute(env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    for cell, committed in zip(code(done), code(read(path)), strict=True):
        assert list(kinds(cell)) == list(kinds(committed)), cell.source
