"""The checkout's app, whose clients and server fail where a test says so.

It is copied into a bundle of its own (:func:`fault_runs.make_bundle`) and takes
``sim`` from the checkout, which is on the path of all of Flower's processes. A fault
is a file in the folder ``FEDTRELLIS_FAULTS`` named ``PARTITION-ROUND-TYPE-KIND``; it
strikes once, because whoever meets it renames it first.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supernode.runtime import run_clientapp

import sim
from fedtrellis.wire.arrays import array_record, record_arrays
from fedtrellis.wire.client import client_app as make_client_app

__all__ = ["client_app", "server_app"]

FOLDER = Path(os.environ["FEDTRELLIS_FAULTS"])


def die(*_: Any, **__: Any) -> NoReturn:
    """End this process as ``kill -9`` would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def kill_node(partition: Any) -> NoReturn:
    """End the SuperNode of this ClientApp, then this process."""
    os.kill(int((FOLDER / f"{partition}.pid").read_text()), signal.SIGKILL)
    die()


def spoil(reply: Message, request: Message, how: str) -> Message:
    """The reply with its arrays cut short, not finite, or without any record."""
    records: dict[str, Any] = {}
    for name, record in reply.content.items() if how != "empty" else ():
        if isinstance(record, ArrayRecord):
            spoilt = [
                np.full_like(array, np.nan)
                if how == "nan" and array.dtype.kind == "f"
                else array.reshape(-1)[:-1]
                for array in record_arrays(record)
            ]
            record = array_record(spoilt, join="joined" in record)
        elif isinstance(record, ConfigRecord) and "numbers" in record:
            record["numbers"] = cast(bytes, record["numbers"])[:-1]
        records[name] = record
    return Message(RecordDict(records), reply_to=request)


def fault_of(partition: Any, server_round: Any, kind: str) -> tuple[str, str]:
    """The fault that strikes here, with its argument; two empty texts if none does."""
    prefix = f"{partition}-{server_round}-{kind}-"
    for path in sorted(FOLDER.glob(f"{prefix}*")):
        argument = path.read_text()
        path.rename(FOLDER / f"struck-{path.name}")
        return path.name.removeprefix(prefix), argument
    return "", ""


def strike(
    message: Message, context: Context, call_next: Callable[..., Message]
) -> Message:
    """A Flower mod: handle the message, and let something go wrong."""
    config = cast(ConfigRecord, message.content.get("config", ConfigRecord()))
    partition = context.node_config["partition-id"]
    fault, argument = fault_of(
        partition, config.get("server-round", 0), message.metadata.message_type
    )
    if fault == "kill-unread":
        die()
    reply = call_next(message, context)
    match fault:
        case "kill":
            die()
        case "kill-node":
            kill_node(partition)
        case "kill-after-push":
            # Flower's ClientApp process pushes its reply, and then, on its way out,
            # its state: this is in between
            run_clientapp.push_task_output = die
        case "slow":
            time.sleep(float(argument))
        case "raise":
            raise RuntimeError("injected: after the state was written")
        case "garbage":
            reply = spoil(reply, message, argument)
    return reply


client_app = make_client_app(sim.app.client_fn, mods=[strike])

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run as the checkout's app does."""
    (FOLDER / "server.pid").write_text(str(os.getpid()))
    sim.app.run(grid, context.run_config)
