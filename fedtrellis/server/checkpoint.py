"""A run's state in one file, replaced in one step.

The file is a ``.npz`` of arrays and one JSON text: the model, the method's state, who
the clients are and which of their rounds were used. The rounds themselves, which only
ever grow, are appended to a file beside it. A grid in this process has its clients'
states saved too, so that such a run goes on exactly as it would have; clients on other
machines keep theirs, or are given back what the server can replay.
"""

from __future__ import annotations

import json
import secrets
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedtrellis.server.callbacks import RoundRecord
from fedtrellis.server.records import append_lines, replacing
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.exchange import Key

_FORMAT = 1
# What a checkpoint knows of its run.
_META = (
    *("format", "strategy", "round", "session", "epoch", "seed", "version"),
    *("layout", "dtype", "planned-rounds", "settings", "clients", "shapes"),
)

# A TypeError: say a single array, which is no archive.
_UNREADABLE = (OSError, EOFError, TypeError, ValueError, KeyError, zipfile.BadZipFile)


def _history_path(path: Path) -> Path:
    return path.with_name(path.name + ".history.jsonl")


def _of_run(strategy: Any, layout: Layout) -> dict[str, Any]:
    """What a run and a checkpoint that it goes on from have in common."""
    return {
        "format": _FORMAT,
        "strategy": type(strategy).__name__,
        "seed": strategy.seed,
        "layout": layout.to_list(),
        "dtype": layout.dtype,
        "settings": {n: getattr(strategy, n) for n in strategy._state_settings},
    }


def pack_checkpoint(strategy: Any, grid: Grid, server_round: int) -> dict[str, Any]:
    """The arrays of a checkpoint; some are the strategy's own, which it may change."""
    conversation, broadcast = strategy.conversation, strategy.broadcast
    arrays: dict[str, Any] = {"model": broadcast.model}
    arrays |= {f"state/{name}": array for name, array in strategy.state().items()}
    states = getattr(grid, "client_states", None)
    for name, data in ({} if states is None else states()).items():
        arrays[f"client/{name}"] = np.frombuffer(data, dtype=np.uint8)
    clients = {
        name: {
            **{"used-round": client.used_round, "epoch": client.epoch},
            **{"ready": client.ready, **asdict(client.key)},
        }
        for name, client in conversation.registry.clients.items()
    }
    meta = {
        **_of_run(strategy, broadcast.layout),
        "round": server_round,
        "session": conversation.session,
        "epoch": conversation.epoch,
        "version": broadcast.version,
        "planned-rounds": strategy.planned_rounds,
        "clients": clients,
        "shapes": {name: list(np.shape(array)) for name, array in arrays.items()},
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    return arrays


def write_checkpoint(
    path: Path, arrays: dict[str, Any], history: Sequence[RoundRecord], saved: int
) -> None:
    """Write a checkpoint; a crash leaves the one before it.

    The rounds are appended to the file beside it, which has the first ``saved``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record.to_dict()) for record in history[saved:]]
    if saved:
        append_lines(_history_path(path), lines, sync=True)
    else:
        # a resumed run may be writing over the history that it was resumed from
        with replacing(_history_path(path), sync=True) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
    with replacing(path, sync=True) as file:
        np.savez(file, **arrays)


class Checkpoint:
    """A checkpoint that was read; SettingsError if the file is none.

    It has the ``keys`` of the run's clients, by identity, and ``planned_rounds``, with
    which the run was planned when it began.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._name = path, f"resume = {str(path)!r}"
        if not path.is_file():
            raise SettingsError(f"{self._name}: there is no such checkpoint")
        try:
            with np.load(path, allow_pickle=False) as file:
                self._arrays = {name: file[name] for name in file.files}
            meta = self._meta = json.loads(self._arrays.pop("meta").tobytes())
            for name in _META:
                meta[name]  # a KeyError names the missing one
            self._layout = Layout.from_list(meta["layout"], meta["dtype"])
            for name, shape in meta["shapes"].items():
                if (found := self._arrays[name].shape) != tuple(shape):
                    raise ValueError(f"its entry {name!r} has shape {found}")
            self.planned_rounds = int(meta["planned-rounds"])
            self.keys = {
                name: Key(str(client["digest"]), bool(client["lasting"]))
                for name, client in meta["clients"].items()
            }
        except _UNREADABLE as error:
            why = f"is no checkpoint: {_in_a_line(error)}"
            raise SettingsError(f"{self._name} {why}") from None

    def load(self, strategy: Any, grid: Any) -> list[RoundRecord]:
        """Put a strategy that has been set up where it was; return the rounds so far.

        SettingsError if it is of another method or variant, model, seed or clients.
        """
        self._check_same_run(strategy)
        try:
            self._put_back(strategy, grid)
        except SettingsError:
            raise
        except Exception as error:  # whatever a method makes of arrays that do not fit
            why = f"does not fit this {type(strategy).__name__}: {_in_a_line(error)}"
            raise SettingsError(f"{self._name} {why}") from error
        try:
            return self._history()
        except (OSError, ValueError, TypeError) as error:
            why = f"its history cannot be read: {error}"
            raise SettingsError(f"{self._name}: {why}") from None

    def _history(self) -> list[RoundRecord]:
        """The rounds up to its own; later ones were never part of a checkpoint."""
        path, last_round = _history_path(self._path), self._meta["round"]
        records: list[RoundRecord] = []
        with path.open(encoding="utf-8") as file:
            for line in file:
                records.append(RoundRecord.from_dict(json.loads(line)))
                if records[-1].round == last_round:
                    return records
        raise ValueError(f"{path.name} ends before round {last_round}")

    def _check_same_run(self, strategy: Any) -> None:
        """Raise SettingsError where it is of another run."""
        meta, layout = self._meta, strategy.broadcast.layout
        settings, now = meta["settings"], _of_run(strategy, layout)
        del now["layout"]
        bound = {n: v for n, v in now.pop("settings").items() if n in settings}
        pairs = [(name, meta[name], value) for name, value in now.items()]
        pairs.append(("model shapes", self._layout.shapes, layout.shapes))
        pairs += [(name, settings[name], value) for name, value in bound.items()]
        saved, here = sorted(meta["clients"]), sorted(strategy.clients)
        if len(saved) == len(here):
            pairs.append(("clients", saved, here))
        else:
            pairs.append(("number of clients", len(saved), len(here)))
        for what, before, value in pairs:
            if before != value:
                hint = "; start as many nodes, with the same client-ids"
                raise SettingsError(
                    f"{self._name}: its {what} is {before}, this run's is {value}"
                    + hint * what.endswith("clients")
                )

    def _of(self, kind: str) -> dict[str, NDArray[Any]]:
        """The arrays of ``"state/"`` or of ``"client/"``, by their names in it."""
        return {
            name.removeprefix(kind): array
            for name, array in self._arrays.items()
            if name.startswith(kind)
        }

    def _put_back(self, strategy: Any, grid: Any) -> None:
        """Model, state and clients; any exception means that they do not fit."""
        state = self._of("state/")
        strategy.conversation.session = self._meta["session"]
        model, version = self._arrays["model"], self._meta["version"]
        strategy.broadcast = ModelBroadcast(self._layout, model, version)
        strategy.load_state(state)
        if foreign := sorted(set(state) - set(strategy.state())):
            raise ValueError(f"it has an entry {'state/' + foreign[0]!r} too many")
        meta, conversation = self._meta, strategy.conversation
        for name, saved in meta["clients"].items():
            # its version of the model is left open: whoever has one gets it whole
            client = conversation.client(name)
            client.used_round, client.epoch = saved["used-round"], saved["epoch"]
        # clients that are not set back too may have been through the rounds to come
        # already, with a server that got further: those are to be told apart from these
        conversation.epoch = secrets.token_hex(4)
        load = getattr(grid, "load_client_states", None)
        if load is None:
            return
        states = {name: a.tobytes() for name, a in self._of("client/").items()}
        load(states)
        for name in set(states).intersection(strategy.clients):
            # one that never took part has no state to go on from
            conversation.client(name).ready = meta["clients"][name]["ready"]
        if all(name in states for name in strategy.clients):
            conversation.epoch = meta["epoch"]


def _in_a_line(error: Exception) -> str:
    """An error in one line; a KeyError is an entry that was looked up in vain."""
    if isinstance(error, KeyError):
        return f"it has no entry {error}"
    return " ".join(str(error).split()) or type(error).__name__
