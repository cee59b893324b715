"""A SuperNode that pushes spoilt objects: Flower's own command, with its last step replaced.

    python hostile_supernode.py --superlink HOST:PORT ...

Every second reply is honest, so that the run can tell that the node is still there.
"""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import ObjectStore
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from tests.builders_objects import Objects, corrupt_one_object, is_taken, is_valid_reply

NUMBERS = itertools.count()
push_messages = start_client_internal._push_messages


def corrupt_objects(objects: Objects, number: int) -> Objects:
    """Return objects, one of them spoilt, that the SuperLink accepts."""
    rng = np.random.default_rng([7, number])
    while True:
        found = corrupt_one_object(objects, rng)
        if is_taken(found) and not is_valid_reply(found):
            return found


def push_spoilt(
    state: Any,
    object_store: ObjectStore,
    send: Callable[[Message, ObjectTree, float], tuple[set[str], str]],
    push_object: Callable[[int, str, str, bytes], None],
) -> None:
    """Push one honest reply, and then one that is spoilt, in turn."""

    def send_spoilt(message: Message, tree: ObjectTree, seconds: float) -> tuple[set[str], str]:
        number = next(NUMBERS)
        if message.metadata.message_type == "query" or number % 2 == 0:
            return send(message, tree, seconds)
        contents = {
            each.object_id: object_store.get(each.object_id) or b""
            for each in iterate_object_tree(tree)  # those inside of others first
        }
        objects = corrupt_objects(Objects(tree.object_id, contents, tree), number)
        message.metadata.__dict__["_message_id"] = objects.root
        names, session = send(message, objects.tree, seconds)
        for name in names:
            push_object(message.metadata.run_id, session, name, objects.contents[name])
        print(f"pushed reply {number} spoilt", flush=True)
        return set(), session

    push_messages(state, object_store, send_spoilt, push_object)


if __name__ == "__main__":
    start_client_internal._push_messages = push_spoilt
    sys.argv[0] = "flower-supernode"
    flower_supernode()
