"""Tamper with run directories, in a named way chosen by a seed."""

import hashlib
import json
import math
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors import safe_open
from safetensors.numpy import save_file

Tamper = Callable[[Path, Path, random.Random], object]
"""Changes a run's directory; is given another folder, to which links may lead."""

WEIRD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63, 10**30, 10**400, 0.5, 1e300, -1e300, math.nan, math.inf),
    *("", "x" * 5000, "\ud800", "=1+1", "<img src=x>", "\x1b[31m", "../../x", "os.system"),
    *([], {}, [[[]]], [None], {"": None}, {"name": "custom", "path": "os.system"}),
)
RECORDS = ("config.yaml", "manifest.json", "population.parquet", "rounds.jsonl")
FOLDERS = ("clients", "evaluations", "checkpoints", "tensorboard")
BOMB = "\n".join(
    [
        "a: &a [x, x, x, x]",
        *(f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    ]
)
TAGS = (
    "!!python/object/apply:os.system [touch ran]",
    "!!python/name:os.system",
    "!!set {a, b}",
    "!!binary aGk=",
    "!!timestamp 2001-01-01",
)


def tamper(run: Path, outside: Path, seed: int) -> str:
    """Change a run's directory in one of the ways, and return its name."""
    rng, name = _draw_way(seed)
    WAYS[name](run, outside, rng)
    return name


def name_way(seed: int) -> str:
    """Return the name of the way in which ``tamper`` changes a directory."""
    return _draw_way(seed)[1]


def _draw_way(seed: int) -> tuple[random.Random, str]:
    rng = random.Random(seed)
    return rng, rng.choice(sorted(WAYS))


def _choose_file(run: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(path for path in run.rglob("*") if path.is_file()))


def _truncate(run: Path, _: Path, rng: random.Random) -> None:
    path = _choose_file(run, rng)
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def _flip(run: Path, _: Path, rng: random.Random) -> None:
    path = _choose_file(run, rng)
    content = bytearray(path.read_bytes())
    for _flipped in range(rng.choice([1, 1, 8])):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _remove(run: Path, _: Path, rng: random.Random) -> None:
    path = rng.choice(sorted(run.rglob("*")))
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _swap(run: Path, _: Path, rng: random.Random) -> None:
    """Replace one file with the content of another."""
    shutil.copy(_choose_file(run, rng), run / "swapped")
    (run / "swapped").replace(_choose_file(run, rng))


def _add_link(run: Path, outside: Path, rng: random.Random) -> None:
    """Replace a file or folder with a link."""
    path = rng.choice(sorted(run.rglob("*")))
    target = outside / ("folder" if path.is_dir() else "file")
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if path.suffix != "" and rng.random() < 0.3:
        path.hardlink_to(target)
    else:
        path.symlink_to(target)


def _add_pipe(run: Path, _: Path, rng: random.Random) -> None:
    path = _choose_file(run, rng)
    path.unlink()
    os.mkfifo(path)


def _replace_kind(run: Path, _: Path, rng: random.Random) -> None:
    """Replace a file with a folder, or a folder with a file."""
    path = rng.choice(sorted(run.rglob("*")))
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("x")
    else:
        path.unlink()
        path.mkdir()


def _add_foreign(run: Path, outside: Path, rng: random.Random) -> None:
    """Add files and links that no run has."""
    folder = rng.choice([run, *(run / name for name in FOLDERS)])
    for name in (".manifest.json.part", "part-00099.parquet", "round-999999.safetensors", "\udcff"):
        path = folder / name
        if rng.random() < 0.5:
            path.symlink_to(outside / "file")
        else:
            path.write_bytes(rng.randbytes(100))


def _change(node: Any, rng: random.Random) -> None:
    """Change one value of a nested record, or drop it."""
    while True:
        key = rng.choice(sorted(node)) if isinstance(node, dict) else rng.randrange(len(node))
        inside = node[key]
        if isinstance(inside, dict | list) and inside and rng.random() < 0.7:
            node = inside
            continue
        if rng.random() < 0.2:
            del node[key]
        else:
            node[key] = rng.choice(WEIRD)
        return


def _change_manifest(run: Path, _: Path, rng: random.Random) -> None:
    _change_file(run / "manifest.json", json.loads, json.dumps, rng)


def _change_rounds(run: Path, _: Path, rng: random.Random) -> None:
    path = run / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    way = rng.choice(["change", "change", "change", "shuffle", "double", "drop", "junk", "deep"])
    if way == "change":
        _change(rng.choice(lines), rng)
    elif way == "shuffle":
        rng.shuffle(lines)
    elif way == "double":
        lines += lines
    elif way == "drop":
        del lines[rng.randrange(len(lines))]
    texts = [json.dumps(line) for line in lines]
    if way in ("junk", "deep"):
        junk = "[" * 100_000 if way == "deep" else rng.choice(["{}", "null", "NaN", "\x00", "1"])
        texts.insert(rng.randrange(len(texts) + 1), junk)
    path.write_text("\n".join(texts) + rng.choice(["", "\n"]))


def _change_config(run: Path, _: Path, rng: random.Random) -> None:
    _change_file(run / "config.yaml", yaml.safe_load, yaml.safe_dump, rng)


def _change_file(
    path: Path, load: Callable[[str], Any], dump: Callable[[Any], str], rng: random.Random
) -> None:
    """Change one value of a file."""
    fields = load(path.read_text())
    _change(fields, rng)
    path.write_text(dump(fields))


def _extend_yaml(run: Path, _: Path, rng: random.Random) -> None:
    """Add YAML that settings never have: aliases, tags, depth, huge numbers, duplicate keys."""
    path = run / "config.yaml"
    added = rng.choice(
        [
            *(BOMB, "deep: " + "[" * 5000, "big: 1" + "0" * 5000, "rounds: 1\nrounds: 2"),
            *(f"x: {tag}" for tag in TAGS),
            *("? [a]\n: b", "? {a: b}\n: c", 'x: "\\ud800"', "x: .inf", "x: 1e999", "- 1", "\x00"),
            *("<<: {seed: 5}", '"\\ud800": 1', f"{'x' * 5000}: 1", "\"\\e[31m\": '\x1b[31m'"),
        ]
    )
    path.write_text(f"{path.read_text()}{added}\n", encoding="utf-8")


def _change_table(run: Path, _: Path, rng: random.Random) -> None:
    """Change a table: other values, types, columns, rows."""
    parts = [run / "population.parquet", *run.glob("clients/*"), *run.glob("evaluations/*")]
    path = rng.choice(sorted(parts))
    table = pq.read_table(path)
    name = rng.choice(table.column_names)
    index = table.column_names.index(name)
    way = rng.choice(["value", "value", "value", "type", "drop", "double", "empty", "rename"])
    if way == "value":
        rows = table[name].to_pylist()
        for _row in range(rng.choice([1, len(rows)]) if rows else 0):
            rows[rng.randrange(len(rows))] = _make_value(table.schema.field(name).type, rng)
        column = pa.array(rows, table.schema.field(name).type)
        table = table.set_column(index, name, column)
    elif way == "type":
        kind = rng.choice([pa.string(), pa.float64(), pa.bool_(), pa.null(), pa.binary()])
        value = None if kind == pa.null() else _make_value(kind, rng)
        table = table.set_column(index, name, pa.array([value] * len(table), kind))
    elif way == "drop":
        table = table.drop_columns([name])
    elif way == "double":
        table = pa.concat_tables([table, table])
    elif way == "empty":
        table = table.slice(0, 0)
    else:
        table = table.rename_columns([n if n != name else "other" for n in table.column_names])
    pq.write_table(table, path)


def _make_value(kind: pa.DataType, rng: random.Random) -> Any:
    """Return a value of a type that no table should have."""
    if pa.types.is_floating(kind):
        return rng.choice([math.nan, math.inf, -math.inf, 1e308, -1.0, 0.0, None])
    if pa.types.is_integer(kind):
        largest = 2 ** (kind.bit_width - 1) - 1
        return rng.choice([-1, 0, largest, -largest, None])
    if pa.types.is_boolean(kind):
        return rng.choice([True, False, None])
    text = rng.choice(["", "trained", "x" * 10_000, "\x1b[31m=1+1<b>", "late"])
    return text.encode() if pa.types.is_binary(kind) else text


def _change_checkpoint(run: Path, _: Path, rng: random.Random) -> None:
    """Change the content of a checkpoint, and its checksum accordingly."""
    path = rng.choice(sorted(run.glob("checkpoints/*.safetensors")))
    with safe_open(path, framework="numpy") as file:
        metadata = json.loads(file.metadata()["checkpoint"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    way = rng.choice(["metadata", "metadata", "tensor", "shape", "drop", "none"])
    name = rng.choice(sorted(tensors))
    if way == "metadata":
        _change(metadata, rng)
    elif way == "tensor":
        tensors[name] = np.full_like(tensors[name], rng.choice([0, 1, 255]))
    elif way == "shape":
        tensors[name] = np.zeros(rng.choice([0, 1, 7]), rng.choice(["float32", "int64", "uint8"]))
    elif way == "drop":
        del tensors[name]
    stored = None if way == "none" else {"checkpoint": json.dumps(metadata)}
    save_file(tensors, path, stored)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".sha256").write_text(f"{digest}  {path.name}\n")


WAYS: dict[str, Tamper] = {
    "a file truncated": _truncate,
    "bits flipped": _flip,
    "a file or folder removed": _remove,
    "files swapped": _swap,
    "a link out of the run": _add_link,
    "a pipe": _add_pipe,
    "a folder for a file": _replace_kind,
    "foreign files": _add_foreign,
    "the manifest changed": _change_manifest,
    "the rounds changed": _change_rounds,
    "the settings changed": _change_config,
    "hostile YAML": _extend_yaml,
    "a table changed": _change_table,
    "a checkpoint changed": _change_checkpoint,
}
"""Every way to tamper with a run, by what was done."""
