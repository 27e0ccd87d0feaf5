"""The checkout's app, whose nodes can be killed where a test says so.

It takes ``sim`` from the checkout, which is on the path of all of Flower's processes. A
fault is a file of ``FEDTRELLIS_FAULTS``, ``PARTITION-ROUND-TYPE``; it strikes once.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import cast

from flwr.app import ConfigRecord, Context, Message

import sim
from fedtrellis.wire.client import client_app as make_client_app

__all__ = ["client_app", "server_app"]

FOLDER = Path(os.environ["FEDTRELLIS_FAULTS"])


def strike(
    message: Message, context: Context, call_next: Callable[..., Message]
) -> Message:
    """A Flower mod: handle the message, and end SuperNode and ClientApp."""
    config = cast(ConfigRecord, message.content.get("config", ConfigRecord()))
    partition = context.node_config["partition-id"]
    kind = message.metadata.message_type
    fault = FOLDER / f"{partition}-{cast(int, config.get('server-round', 0))}-{kind}"
    reply = call_next(message, context)
    if fault.exists():
        fault.rename(FOLDER / f"struck-{fault.name}")
        for pid in (int((FOLDER / f"{partition}.pid").read_text()), os.getpid()):
            os.kill(pid, signal.SIGKILL)
    return reply


client_app = make_client_app(sim.app.client_fn, mods=[strike])

server_app = sim.server_app
