"""Corrupt the objects of an honest reply, as a hostile node might."""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    UnexpectedObjectContentError,
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    validate_object_content,
)

Generator = np.random.Generator


def corrupt_bytes(content: bytes, rng: Generator) -> bytes:
    """Change a few bytes, cut some off, or add some."""
    corrupted = bytearray(content)
    for index in rng.integers(len(corrupted), size=int(rng.integers(1, 6))).tolist():
        corrupted[index] = int(rng.integers(256))
    end = int(rng.integers(len(corrupted) + 1))
    change = rng.integers(3)
    if change == 1:
        return bytes(corrupted[:end])
    return bytes(corrupted) + (rng.bytes(end) if change == 2 else b"")


def corrupt_header(content: bytes, rng: Generator) -> bytes:
    """Change an object's kind, its children or its length."""
    head, _, body = content.partition(b"\0")
    kind, children, length = head.split(b" ")
    names = children.split(b",")
    kinds = (b"Message", b"RecordDict", b"ArrayRecord", b"Array", b"ArrayChunk", b"MetricRecord")
    changes = (
        (kinds[int(rng.integers(len(kinds)))], children, length),
        (b"\xff\xfe", children, length),
        (b"", children, length),
        (kind, b"", length),
        (kind, b",".join(names * 3), length),
        (kind, b",".join([b"0" * 64, *names]), length),
        (kind, children + b"," + b"x" * 10_000, length),
        (kind, children, b"-1"),
        (kind, children, b"9" * 5000),
        (kind, children, b"1e9"),
    )
    return b" ".join(changes[int(rng.integers(len(changes)))]) + b"\0" + body


def corrupt_body(content: bytes, rng: Generator) -> bytes:
    """Replace an object's body with an invalid one."""
    head, _, body = content.partition(b"\0")
    kind, children, _ = head.split(b" ")
    bodies = (
        b"",
        b"[]",
        b"{}",
        b"null",
        b"1" * 5000,
        b"[" * 5000,
        b'{"a":' * 2000,
        b'{"w": NaN}',
        b"\xff" * 100,
        body * 2,
        body.replace(b'"', b"'"),
        body.replace(b"float32", b"object"),
        body.replace(b"float32", b"S1000000000"),
        body.replace(b"[5, 3]", b"[-5, -3]"),
        body.replace(b"[5, 3]", b"[1e400]"),
        body.replace(b"[0]", b"[" + b"0," * 100_000 + b"0]"),
        body.replace(b"[0]", b"[-1]"),
        body.replace(b"[0]", b"[999999999999]"),
        body.replace(b"numpy.ndarray", b"\\ud800"),
        body.replace(b"numpy.ndarray", b"x" * 100_000),
        body.replace(b"(5, 3)", b"(5, 99999999999)"),
        body.replace(b"<f4", b"|O"),
        body.replace(b"NUMPY", b"PICKL"),
    )
    corrupted = bodies[int(rng.integers(len(bodies)))]
    return b" ".join((kind, children, str(len(corrupted)).encode())) + b"\0" + corrupted


CORRUPTIONS: Sequence[Callable[[bytes, Generator], bytes]] = (
    corrupt_bytes,
    corrupt_header,
    corrupt_body,
)


@dataclass(frozen=True)
class Objects:
    """The objects of a reply by id, and their tree."""

    root: str
    contents: Mapping[str, bytes]
    tree: ObjectTree


def list_reply_objects(reply: Message) -> Objects:
    """Return an honest reply's objects, those inside of others first."""
    contents = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
    return Objects(reply.object_id, contents, get_object_tree(reply))


def corrupt_one_object(objects: Objects, rng: Generator) -> Objects:
    """Corrupt one object, and rename its id in the objects around it."""
    target = list(objects.contents)[int(rng.integers(len(objects.contents)))]
    corrupt = CORRUPTIONS[int(rng.integers(len(CORRUPTIONS)))]
    renamed: dict[str, str] = {}
    contents = {}
    for name, original in objects.contents.items():
        content = original
        for old, new in renamed.items():
            content = content.replace(old.encode(), new.encode())
        if name == target:
            content = corrupt(content, rng)
        renamed[name] = get_object_id(content)
        contents[renamed[name]] = content
    return Objects(renamed[objects.root], contents, _rename_tree(objects.tree, renamed))


def _rename_tree(tree: ObjectTree, names: Mapping[str, str]) -> ObjectTree:
    children = [_rename_tree(child, names) for child in tree.children]
    return ObjectTree(object_id=names[tree.object_id], children=children)


def is_taken(objects: Objects) -> bool:
    """Say whether a SuperLink stores all objects; refused ones never arrive."""
    with suppress(UnexpectedObjectContentError):
        for content in objects.contents.values():
            validate_object_content(content)
        return True
    return False


def is_valid_reply(objects: Objects) -> bool:
    """Say whether objects form a valid reply, checked without FedQuorum."""
    try:
        message = inflate_object_from_contents(objects.root, dict(objects.contents))
        content = message.content  # type: ignore[attr-defined]
        return _is_usable(content)
    except Exception:
        return False


def _is_usable(content: RecordDict) -> bool:
    metrics = content.metric_records["metrics"]
    numbers = [value for value in metrics.values() if not isinstance(value, list)]
    arrays = content.array_records.get("arrays")
    read = {k: np.load(io.BytesIO(a.data)) for k, a in (arrays or {}).items()}
    return len(numbers) == len(metrics) and all(np.isfinite(a).all() for a in read.values())
