"""The guide to a weighting rule of one's own, followed in a copy of the repository."""

import re
import shlex
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Shell

GUIDE = (ROOT / "docs" / "own-rule.md").read_text()
BLOCKS = dict(re.findall(r"^`(\S+)`\n\n```\w+\n(.*?)```", GUIDE, re.DOTALL | re.MULTILINE))
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]
TABLE = "tests/strategies/test_fair_baselines.py"


def test_it_is_short() -> None:
    """One file, one YAML and one row of tests with its import: under 40 lines."""
    assert [Path(path).suffix for path in BLOCKS] == [".py", ".yaml", ".py"]
    assert sum(len(block.splitlines()) for block in BLOCKS.values()) < 40
    assert len(BLOCKS[TABLE].splitlines()) == 2


@pytest.fixture(scope="module")
def followed(clone: Path) -> Shell:
    """Return a shell where the guide was followed."""
    for path, block in BLOCKS.items():
        if path != TABLE:
            assert not (clone / path).exists()
            (clone / path).write_text(block)
    import_line, row = BLOCKS[TABLE].splitlines(keepends=True)
    table = (clone / TABLE).read_text()
    head = "FULL: dict[str, Weighting[Any]] = {\n"
    before, after = table.split(head)
    end = before.rindex("from strategies.weighting.")
    changed = before[:end] + import_line + before[end:] + head + row + after
    (clone / TABLE).write_text(changed)
    return Shell(clone, {"PYTHONPATH": str(clone)})


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_guide_works(followed: Shell, command: str) -> None:
    """The tests of all rules, a training by the new name, its audit, and one without a file."""
    done = followed(*shlex.split(command))
    assert done.status == 0, done.stdout[-4000:] + done.stderr[-4000:]
    if "--audit" in command:
        assert "one_plus_loss, seed 1, completed: 5 of 5 rounds" in done.stdout
        assert "all of them fit" in done.stdout
