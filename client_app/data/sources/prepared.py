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


HIDDEN_NAMES = ("__macosx", "thumbs.db", "desktop.ini")
"""Names that Windows and macOS give to their own files and folders, in lower case."""


def is_hidden(path: Path) -> bool:
    """Return whether a file or folder is the operating system's, not the user's."""
    return path.name.startswith(".") or path.name.lower() in HIDDEN_NAMES
