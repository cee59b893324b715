"""Run the scripts of examples/datasets."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "datasets"


@dataclass(frozen=True)
class Script:
    """One script, and the beginning of its errors."""

    module: Any
    wanted: str

    def run(self, folder: Path, *options: str) -> Path:
        """Return the file that it writes from a folder."""
        output = folder / "prepared"
        self.module.main([str(folder), "--output", str(output), *options])
        return output

    def assert_refused(self, folder: Path, reason: str, *options: str) -> None:
        """Check for one line with what is wanted, the folder and the reason, and for no file."""
        with pytest.raises(SystemExit, match=reason) as caught:
            self.run(folder, *options)
        text = str(caught.value.code)
        assert text.startswith(f"FOLDER must be a folder with {self.wanted}")
        assert f", got {folder}: " in text
        assert "\n" not in text
        assert not list(folder.glob("*prepared*"))


def load_script(
    name: str, wanted: str, monkeypatch: pytest.MonkeyPatch, constants: Mapping[str, Any]
) -> Script:
    """Return a script, with other constants than those of the whole data set."""
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module(name)
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    return Script(module, wanted)
