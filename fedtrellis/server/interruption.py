"""A run that is interrupted, or fails, ends in order: its record, and how to go on."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedtrellis.server.progress import print_json
from fedtrellis.server.records import RunRecord
from fedtrellis.signals import Interrupted, deferred, signals_interrupt

__all__ = ["ending_in_order", "fedtrellis_command", "flwr_command", "sim_command"]

# of python sim.py without --nodes
DEFAULT_NODES = 10


def sim_command(
    directory: Path, nodes: int = DEFAULT_NODES, node_configs: Sequence[str] = ()
) -> str:
    """The ``python sim.py`` that goes on from a record, to be pasted into a shell.

    The record knows all settings of the run, but not the grid's: how many nodes, and
    the arguments of ``--node-config``.
    """
    again = ["-c", f'resume="{directory}"']
    return shlex.join(["python", "sim.py", *_of_grid(nodes, node_configs), *again])


def fedtrellis_command(
    directory: Path, nodes: int = DEFAULT_NODES, node_configs: Sequence[str] = ()
) -> str:
    """The ``fedtrellis resume`` that does; parameters as of :func:`sim_command`."""
    command = ["fedtrellis", "resume", str(directory)]
    return shlex.join([*command, *_of_grid(nodes, node_configs)])


def _of_grid(nodes: int, node_configs: Sequence[str]) -> list[str]:
    words = [] if nodes == DEFAULT_NODES else ["--nodes", str(nodes)]
    return words + [w for text in node_configs for w in ("--node-config", text)]


def flwr_command(directory: Path) -> str:
    """The ``flwr run`` that goes on from a record."""
    path = str(directory / "resume.toml")
    return shlex.join(["flwr", "run", ".", "--stream", "--run-config", path])


@contextmanager
def ending_in_order(
    record: RunRecord, command: Callable[[Path], str], as_json: bool = False
) -> Iterator[None]:
    """Run what is inside so that it can be interrupted, and its record has its end.

    SIGINT, SIGTERM and SIGHUP raise :class:`~fedtrellis.signals.Interrupted` where a
    strategy's state is whole, so that it saves a last checkpoint. Then, and after any
    other KeyboardInterrupt, a line on the standard error, or with ``as_json`` an object
    with event ``"interrupted"``, names the record and the ``command`` that resumes it.
    """
    with signals_interrupt():
        try:
            yield
        except BaseException as error:
            with deferred():
                record.fail(error)
            if not isinstance(error, KeyboardInterrupt):
                raise
            finished = record.status == "completed"
            resumable = record.checkpoint.is_file() and not finished
            how = command(record.directory) if resumable else None
            if as_json:
                where = str(record.directory)
                print_json("interrupted", file=sys.stderr, record=where, resume=how)
            else:
                rest = (
                    f"to go on: {how}"
                    if how
                    else (
                        "all rounds were finished"
                        if finished
                        else "no round was finished: start it again"
                    )
                )
                line = f"interrupted; record: {record.directory}; {rest}"
                print(line, file=sys.stderr, flush=True)
            if isinstance(error, Interrupted):
                raise
            raise Interrupted(signal.SIGINT) from error
