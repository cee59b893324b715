"""The files that the scripts of examples/datasets write."""

from pathlib import Path

PREPARE_SCRIPTS = {
    "berka_loans.csv": "prepare_berka.py",
    "celeba.npz": "prepare_celeba.py",
    "cinic10.npz": "prepare_cinic10.py",
    "heart_uci.csv": "prepare_heart.py",
    "isic2019.npz": "prepare_isic2019.py",
    "speech_commands.npz": "prepare_speech_commands.py",
}
"""Which script writes the file that a preset names."""


def describe_missing_file(path: Path) -> str:
    """Return in words that a file is missing, and the script that writes it if there is one."""
    if path.name not in PREPARE_SCRIPTS:
        return "there is no such file"
    return f"there is no such file; python examples/datasets/{PREPARE_SCRIPTS[path.name]} FOLDER writes it"
