"""A run's state in one file, replaced in one step.

The file is a ``.npz`` of arrays and one JSON text: the model, the method's state, who
the clients are and which of their rounds were used. The rounds themselves, which only
ever grow, are appended to a file beside it. A grid in this process has its clients'
states saved too, so that such a run goes on exactly as it would have; clients on other
machines keep theirs, or are given back what the server can replay.
"""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedtrellis.server.callbacks import RoundRecord
from fedtrellis.server.files import append_lines, replacing
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.exchange import Key

if TYPE_CHECKING:
    from fedtrellis.server.loop import LoopStrategy

__all__ = [
    "checkpoint_clients",
    "load_checkpoint",
    "pack_checkpoint",
    "read_client_keys",
    "read_planned_rounds",
    "save_checkpoint",
    "write_checkpoint",
]

_FORMAT = 1
# What a checkpoint says of itself.
_META = (
    *("format", "strategy", "round", "session", "epoch", "seed", "version"),
    *("layout", "dtype", "planned-rounds", "settings", "clients", "shapes"),
)


def _history_path(path: Path) -> Path:
    return path.with_name(path.name + ".history.jsonl")


def save_checkpoint(
    path: Path, strategy: LoopStrategy, grid: Grid, server_round: int
) -> None:
    """Write the state after ``server_round``; a crash leaves the file before it."""
    write_checkpoint(path, strategy, pack_checkpoint(strategy, grid, server_round))


def pack_checkpoint(
    strategy: LoopStrategy, grid: Grid, server_round: int
) -> dict[str, Any]:
    """The arrays of a checkpoint; some are the strategy's own, which it may change."""
    meta = {
        "format": _FORMAT,
        "strategy": type(strategy).__name__,
        "round": server_round,
        "session": strategy.conversation.session,
        "epoch": strategy.conversation.epoch,
        "seed": strategy.seed,
        "version": strategy.broadcast.version,
        "layout": strategy.broadcast.layout.to_list(),
        "dtype": strategy.broadcast.layout.dtype,
        "planned-rounds": strategy.planned_rounds,
        "settings": _bound_settings(strategy),
        "clients": {
            name: {
                "used-round": client.used_round,
                "epoch": client.epoch,
                "ready": client.ready,
                **asdict(client.key),
            }
            for name, client in strategy.conversation.registry.clients.items()
        },
    }
    arrays: dict[str, Any] = {"model": strategy.broadcast.model}
    for name, array in strategy.state().items():
        arrays["state/" + name] = array
    snapshot = getattr(grid, "client_states", None)
    if snapshot is not None:
        for name, data in snapshot().items():
            arrays["client/" + name] = np.frombuffer(data, dtype=np.uint8)
    meta["shapes"] = {name: list(np.shape(array)) for name, array in arrays.items()}
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    return arrays


def _bound_settings(strategy: LoopStrategy) -> dict[str, Any]:
    return {name: getattr(strategy, name) for name in strategy.state_settings}


def write_checkpoint(
    path: Path, strategy: LoopStrategy, arrays: dict[str, Any]
) -> None:
    """Write a checkpoint's arrays, and the rounds so far into the history beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _append_history(_history_path(path), strategy)
    with replacing(path) as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())


def _append_history(path: Path, strategy: LoopStrategy) -> None:
    """Add the rounds since the last time; the first time, write a new file."""
    saved = strategy._history_saved
    lines = [json.dumps(record.to_dict()) for record in strategy.history[saved:]]
    if saved:
        append_lines(path, lines, sync=True)
    else:
        # a resumed run may be writing over the history that it was resumed from
        with replacing(path) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())
    strategy._history_saved = len(strategy.history)


def _read_history(path: Path, last_round: int) -> list[RoundRecord]:
    """The rounds up to ``last_round``; later ones were never part of a checkpoint."""
    records = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            record = RoundRecord.from_dict(json.loads(line))
            records.append(record)
            if record.round == last_round:
                return records
    raise ValueError(f"{path.name} ends before round {last_round}")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a checkpoint and what is said of them; SettingsError if none is."""
    if not path.is_file():
        raise SettingsError(f"resume = {str(path)!r}: there is no such checkpoint")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(arrays.pop("meta").tobytes())
        _check_whole(meta, arrays)
    except (
        OSError,
        EOFError,
        TypeError,  # say a single array, which is no archive
        ValueError,
        KeyError,
        zipfile.BadZipFile,
    ) as error:
        raise SettingsError(
            f"resume = {str(path)!r} is no checkpoint: {_said(error)}"
        ) from None
    return arrays, meta


def _said(error: Exception) -> str:
    """An error in one line; a KeyError is an entry that was looked up in vain."""
    if isinstance(error, KeyError):
        return f"it has no entry {error}"
    return " ".join(str(error).split()) or type(error).__name__


def _layout(meta: Mapping[str, Any]) -> Layout:
    """The model's; ValueError if a checkpoint does not say it rightly."""
    return Layout.from_list(meta["layout"], meta["dtype"])


def _check_whole(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Raise ValueError or KeyError unless all that was saved is there."""
    for name in _META:
        meta[name]  # a KeyError says which is missing
    _layout(meta)
    for name, shape in meta["shapes"].items():
        if list(arrays[name].shape) != shape:
            raise ValueError(
                f"its entry {name!r} has shape {arrays[name].shape}, expected "
                f"{tuple(shape)}"
            )


def checkpoint_clients(path: Path) -> list[str]:
    """Identities of the clients of the run that a checkpoint is of.

    Raises
    ------
    SettingsError
        If the file is none.
    """
    return list(_read(path)[1]["clients"])


def read_client_keys(path: Path) -> dict[str, Key]:
    """The keys of the clients of the run that a checkpoint is of, by identity.

    Raises
    ------
    SettingsError
        If the file is none.
    """
    return {
        name: Key(str(client["digest"]), bool(client["lasting"]))
        for name, client in _read(path)[1]["clients"].items()
    }


def read_planned_rounds(path: Path) -> int:
    """The rounds that a checkpoint's run was planned with when it began.

    Raises
    ------
    SettingsError
        If the file is none.
    """
    return int(_read(path)[1]["planned-rounds"])


def load_checkpoint(
    path: Path, strategy: LoopStrategy, grid: Grid, result: Result
) -> int:
    """Put a strategy that has been set up where the checkpoint was; return its round.

    Raises
    ------
    SettingsError
        If the file is none, or is of another method, model, seed or set of clients, or
        of another variant of the method.
    """
    arrays, meta = _read(path)
    _check_same_run(path, meta, strategy)
    try:
        _load_strategy(arrays, meta, strategy)
        _load_clients(arrays, meta, strategy, grid)
    except SettingsError:
        raise
    except Exception as error:  # whatever a method makes of arrays that do not fit
        raise SettingsError(
            f"resume = {str(path)!r} does not fit this {type(strategy).__name__}: "
            f"{_said(error)}"
        ) from error
    last_round = cast(int, meta["round"])
    try:
        strategy.history = _read_history(_history_path(path), last_round)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(
            f"resume = {str(path)!r}: its history cannot be read: {error}"
        ) from None
    for record in strategy.history:
        for metrics, by_round in (
            (record.train, result.train_metrics_clientapp),
            (record.client_evaluation, result.evaluate_metrics_clientapp),
            (record.evaluation, result.evaluate_metrics_serverapp),
        ):
            if metrics:
                by_round[record.round] = MetricRecord({**metrics})
    return last_round


def _check_same_run(path: Path, meta: dict[str, Any], strategy: LoopStrategy) -> None:
    """Raise SettingsError where the checkpoint is of another run."""
    layout = _layout(meta)
    bound = meta["settings"]
    for what, saved, now in (
        ("format", meta["format"], _FORMAT),
        ("strategy", meta["strategy"], type(strategy).__name__),
        ("seed", meta["seed"], strategy.seed),
        ("model shapes", layout.shapes, strategy.broadcast.layout.shapes),
        ("dtype", layout.dtype, strategy.broadcast.layout.dtype),
        ("clients", sorted(meta["clients"]), sorted(strategy.clients)),
        *(
            (name, bound[name], value)
            for name, value in _bound_settings(strategy).items()
            if name in bound
        ),
    ):
        if saved != now:
            hint = ""
            if what == "clients":
                if len(meta["clients"]) != strategy.num_clients:
                    what = "number of clients"
                    saved, now = len(meta["clients"]), strategy.num_clients
                hint = "; start as many nodes, with the same client-ids"
            raise SettingsError(
                f"resume = {str(path)!r}: its {what} is {saved}, this run's is {now}"
                + hint
            )


def _load_strategy(
    arrays: dict[str, Any], meta: dict[str, Any], strategy: LoopStrategy
) -> None:
    """Load model and state; any exception says that they do not fit."""
    layout = _layout(meta)
    state = {
        name.removeprefix("state/"): array
        for name, array in arrays.items()
        if name.startswith("state/")
    }
    for name, fresh in _fresh_state(strategy).items():
        array = state.get(name, fresh)
        grows = not fresh.size and array.ndim == fresh.ndim
        if array.shape != fresh.shape and not grows:
            raise ValueError(
                f"its entry {'state/' + name!r} has shape {array.shape}, expected "
                f"{fresh.shape}"
            )
    strategy.conversation.session = meta["session"]
    strategy.broadcast = ModelBroadcast(layout, arrays["model"], meta["version"])
    strategy.load_state(state)
    foreign = sorted(set(state) - set(strategy.state()))
    if foreign:
        raise ValueError(f"it has an entry {'state/' + foreign[0]!r} too many")


def _fresh_state(strategy: LoopStrategy) -> dict[str, NDArray[Any]]:
    """A strategy's state before round 1, as far as it is known without its clients."""
    try:
        return {name: np.asarray(a) for name, a in strategy.state().items()}
    except (AssertionError, AttributeError):  # they have to be asked first
        return {}


def _load_clients(
    arrays: dict[str, Any], meta: dict[str, Any], strategy: LoopStrategy, grid: Grid
) -> None:
    """Note down what the clients are known to have, and load theirs into the grid."""
    for name, saved_client in meta["clients"].items():
        # its version of the model is left open: whoever has one, has it whole anyway
        strategy.conversation.client(name).used_round = saved_client["used-round"]
        strategy.conversation.client(name).epoch = saved_client["epoch"]
    # clients that are not set back too may have been through the rounds to come
    # already, with a server that got further: those are to be told apart from these
    strategy.conversation.epoch = secrets.token_hex(4)
    load = getattr(grid, "load_client_states", None)
    if load is not None:
        states = {
            name.removeprefix("client/"): array.tobytes()
            for name, array in arrays.items()
            if name.startswith("client/")
        }
        load(states)
        for name in states:
            if name in strategy.clients:
                # one that never took part has no state to go on from
                client = strategy.conversation.client(name)
                client.ready = meta["clients"][name]["ready"]
        if all(name in states for name in strategy.clients):
            strategy.conversation.epoch = meta["epoch"]
