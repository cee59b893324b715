"""Find the files of a table, and the client that each belongs to."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from client_app.data.sources.prepared import describe_missing_file

TABLE_ENDINGS = ((".csv", ".parquet", ".pq", ".tsv"), (".txt",), (".xlsx",))
"""The endings of tables, perhaps before .gz; files of the first kind that there is are read."""

COMPRESSED_ENDING = ".gz"
HIDDEN = re.compile(r"\.|~\$|__MACOSX$|Thumbs\.db$|desktop\.ini$", re.IGNORECASE)
"""The beginning of the names of files that no person made."""

MAX_DEPTH = 5
"""Folders at most this deep below ``data.path`` are searched."""

MAX_LISTED = 5
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
TRAINING, TESTING = {"train", "training"}, {"test", "testing", "val", "valid", "validation", "eval"}


@dataclass(frozen=True)
class FoundFile:
    """A file of a table.

    Parameters
    ----------
    path : Path
    name : str
        The path below ``data.path``, or the name of a single file.
    client : str
        The client whose rows it has if no column names it: the first folder below ``data.path``,
        or else the file's name without ending. A folder ``site=North`` means the client North.
    columns : mapping of str to str or None
        The values of the columns that the names of the folders hold, as ``site=North``.
    """

    path: Path
    name: str
    client: str
    columns: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class FoundFiles:
    """The files of a table, in the order of their names, and the others beside them."""

    files: tuple[FoundFile, ...]
    passed_over: tuple[str, ...] = ()


def find_files(path: Path) -> FoundFiles:
    """Return the files of ``data.path``.

    A folder means the tables directly in it, or if there is none, all tables in folders below it. A
    pattern with ``*`` means all tables that it matches, and those in folders that it matches.
    Hidden files such as ``.DS_Store`` do not count.

    Raises
    ------
    ValueError
        If there is none, or two files differ in the ending only.
    """
    if path.is_file():
        return FoundFiles((FoundFile(path, path.name, get_stem(path)),))
    if path.is_dir():
        root, found = path, sorted(_list_files(path, MAX_DEPTH))
        direct = [file for file in found if file.parent == root]
        chosen = _select_tables(direct) or _select_tables(found)
    else:
        root = _find_fixed_part(path)
        matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        visible = [match for match in matches if not HIDDEN.match(match.name)]
        found = sorted(
            {
                file
                for match in visible
                for file in (_list_files(match, MAX_DEPTH) if match.is_dir() else [match])
            }
        )
        chosen = _select_tables(found)
    if not chosen:
        raise ValueError(_describe_no_tables(path, found))
    passed_over = [str(file.relative_to(root)) for file in found if file not in set(chosen)]
    files = [_build_file(file, root) for file in chosen]
    keys = Counter(str(file.parent / get_stem(file)) for file in chosen)
    repeated = [Path(key).name for key, count in keys.items() if count > 1]
    if repeated:
        raise ValueError(f"there are several files called {repeated[0]}")
    return FoundFiles(tuple(files), tuple(passed_over))


def get_stem(file: Path) -> str:
    """Return a file's name without its endings."""
    return Path(file.stem).stem if file.suffix.lower() == COMPRESSED_ENDING else file.stem


def has_table_ending(path: Path) -> bool:
    """Say whether a file's name ends as a table's does."""
    return any(_get_ending(path) in endings for endings in TABLE_ENDINGS)


def find_test_file(names: Sequence[str]) -> tuple[str, str] | None:
    """Return two names that differ in the words train and test only, or None."""
    by_words = {tuple(re.split(r"[\W_]+", name.lower())): name for name in names}
    for words, name in by_words.items():
        for i, word in enumerate(words):
            for other in sorted(TESTING) if word in TRAINING else []:
                if test := by_words.get((*words[:i], other, *words[i + 1 :])):
                    return name, test
    return None


def _list_files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the files of a folder and of those below it, without hidden ones."""
    for entry in folder.iterdir():
        if HIDDEN.match(entry.name):
            continue
        if not entry.is_dir():
            yield entry
        elif depth:
            yield from _list_files(entry, depth - 1)


def _get_ending(file: Path) -> str:
    suffix = file.suffix.lower()
    return Path(file.stem).suffix.lower() if suffix == COMPRESSED_ENDING else suffix


def _select_tables(files: Sequence[Path]) -> list[Path]:
    for endings in TABLE_ENDINGS:
        if chosen := [file for file in files if _get_ending(file) in endings]:
            return chosen
    return []


def _find_fixed_part(pattern: Path) -> Path:
    """Return the last folder above a pattern's first sign."""
    fixed = pattern
    while fixed != fixed.parent and any(sign in str(fixed) for sign in "*?["):
        fixed = fixed.parent
    return fixed if fixed != pattern else pattern.parent


def _build_file(file: Path, root: Path) -> FoundFile:
    relative = file.relative_to(root)
    folders = relative.parts[:-1]
    pairs = [folder.partition("=")[::2] for folder in folders if "=" in folder]
    columns = {
        unquote(key): None if value == NULL_FOLDER else unquote(value) for key, value in pairs
    }
    client = unquote(folders[0].partition("=")[2] or folders[0]) if folders else get_stem(file)
    return FoundFile(file, relative.as_posix(), client, columns)


def _describe_no_tables(path: Path, others: Sequence[Path]) -> str:
    if not path.is_dir():
        return describe_missing_file(path)
    endings = ", ".join(ending for endings in TABLE_ENDINGS for ending in endings)
    names = [file.name for file in others]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return (
        f"the folder has no table, a file that ends in {endings} or one of these and "
        f"{COMPRESSED_ENDING}, but {', '.join(names[:MAX_LISTED]) or 'nothing'}{more}"
    )
