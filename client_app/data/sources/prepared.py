"""Name the files that the scripts of examples/datasets write."""

from pathlib import Path

PREPARE_SCRIPTS = {
    "berka_loans.csv": "prepare_berka.py",
    "celeba.npz": "prepare_celeba.py",
    "cinic10.npz": "prepare_cinic10.py",
    "heart_uci.csv": "prepare_heart.py",
    "isic2019.npz": "prepare_isic2019.py",
    "speech_commands.npz": "prepare_speech_commands.py",
}
"""The script that writes each file that a preset names."""


def describe_missing_file(path: Path) -> str:
    """Return a message that a file is missing, with the script that writes it if there is one."""
    if path.name not in PREPARE_SCRIPTS:
        return "there is no such file"
    script = PREPARE_SCRIPTS[path.name]
    return f"there is no such file; python examples/datasets/{script} FOLDER writes it"
