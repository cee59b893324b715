"""A SuperNode without a process for every message, so that thousands of rounds end within minutes.

    python quick_supernode.py --superlink HOST:PORT ...

Flower's own command, connection and loop, with two things replaced: the app answers in this
process, and the loop looks for a message every 0.5 s, or as the variable LOOP_SECONDS says, not
every 3 s. Training lasts as long as the file in the variable HOLD exists. The node is killed after
its reply to the message whose group is in the variable DIE.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Message, MessageType
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStore
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from client_app.app import app

LOOP_SECONDS = float(os.environ.get("LOOP_SECONDS", "0.5"))
HOLD, DIE = os.environ.get("HOLD", ""), os.environ.get("DIE", "")
push_messages = start_client_internal._push_messages


def pull_inflated_message(stored: Message, object_store: ObjectStore) -> Message:
    """Return a message with its content, which leaves the store."""
    name = stored.metadata.message_id
    tree = object_store.get_object_tree(name)
    contents = {
        each.object_id: object_store.get(each.object_id) or b""
        for each in iterate_object_tree(tree)
    }
    message = inflate_object_from_contents(name, contents)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = name
    object_store.delete(name)
    return message


def answer_and_push(state: Any, object_store: ObjectStore, *args: Any, **ways: Any) -> None:
    """Let the app reply to the stored message, and push the reply as Flower does."""
    vars(state)["create_task"] = lambda **_: 1  # no other process asks for it
    groups = []
    for stored in state.get_messages_legacy(is_reply=False):
        if not object_store.get(stored.metadata.message_id):
            continue  # of a run that was stopped before its content came
        message = pull_inflated_message(stored, object_store)
        state.record_message_processing_start(message.metadata.message_id)
        run = state.get_run(message.metadata.run_id)
        context = state.get_run_series_context(run.series_id)
        reply = app(message=message, context=context)
        groups.append(message.metadata.group_id)
        if message.metadata.message_type == MessageType.TRAIN and HOLD:
            print(f"training: {groups[-1]}", flush=True)
            while Path(HOLD).exists() and groups[-1].startswith("train "):
                time.sleep(0.1)
        start_client_internal._insert_message(reply, state, object_store)
        state.record_message_processing_end(message.metadata.message_id)
    push_messages(state, object_store, *args, **ways)
    if DIE and DIE in groups:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    start_client_internal._push_messages = answer_and_push
    # Flower's loop sleeps for 3 s, and its other waits are shorter.
    brief = SimpleNamespace(
        sleep=lambda seconds: time.sleep(LOOP_SECONDS if seconds >= 3 else min(seconds, 0.5))
    )
    vars(start_client_internal)["time"] = brief
    sys.argv[0] = "flower-supernode"
    flower_supernode()
