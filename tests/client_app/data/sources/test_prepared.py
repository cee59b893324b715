"""The files that the scripts of examples/datasets write."""

from pathlib import Path

import pytest

from client_app.data import load_data
from client_app.data.sources.prepared import PREPARE_SCRIPTS
from conf.compose import compose_settings
from tests.client_app.clients import assert_one_line

SCRIPT_FOLDER = Path(__file__).parents[4] / "examples" / "datasets"
PRESETS = {
    "aaggff/berka": "berka_loans.csv",
    "aaggff/celeba": "celeba.npz",
    "aaggff/heart": "heart_uci.csv",
    "aaggff/isic": "isic2019.npz",
    "aaggff/speech": "speech_commands.npz",
    "fedau/cinic10": "cinic10.npz",
    "fedawe/cinic10": "cinic10.npz",
}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_error_names_the_script(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preset looks where FEDQUORUM_DATA says; without its file, one line says how to get it."""
    monkeypatch.setenv("FEDQUORUM_DATA", str(tmp_path))
    path = tmp_path / PRESETS[preset]
    command = f"python examples/datasets/{PREPARE_SCRIPTS[path.name]} FOLDER"
    message = rf"^data\.path must be .*, got {path}: there is no such file; {command} writes it$"
    overrides = "rounds=777"  # a run's settings are composed once by their words, and kept
    assert_one_line(
        lambda: load_data(compose_settings(preset, overrides).settings.data, 1), message
    )


def test_every_script_is_there() -> None:
    """Each writes the file of a preset."""
    assert {path.name for path in SCRIPT_FOLDER.glob("prepare_*.py")} == set(
        PREPARE_SCRIPTS.values()
    )
    assert set(PRESETS.values()) == set(PREPARE_SCRIPTS)
