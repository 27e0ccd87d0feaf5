"""What a run leaves: one directory with its settings, history, model and picture.

Its files are whole at every moment, and a run that is interrupted or fails has its end
on record, and says how to go on.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from importlib.util import find_spec
from itertools import count
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedtrellis.files import naming, read_arrays, replacing
from fedtrellis.server.callbacks import (
    CRITERIA,
    ENDINGS,
    QUALITIES,
    Callback,
    RoundRecord,
    how_it_ended,
    summarise,
)
from fedtrellis.settings import AUTO, SettingsError, need
from fedtrellis.signals import Interrupted, deferred, signals_interrupt
from fedtrellis.wire.arrays import decode
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.exchange import Key
from fedtrellis.wire.flower_internals import at_exit, log

# of python sim.py without --nodes
DEFAULT_NODES = 10
#: What curves are drawn over, and what the axis says.
AXES = {
    "rounds": "round",
    "bytes": "MB up and down, all nodes",
    "seconds": "seconds of the rounds",
}
_GAPS = [*CRITERIA][1:]
# what an axis has room for
_LARGEST = 1e100
# Seconds between two signs of life in a record, and without one until a run is dead.
_HEARTBEAT, _SILENCE = 5.0, 30.0


class History(Callback):
    """Writes the rounds to a file while a run goes on, a line each."""

    def __init__(self, path: Path) -> None:
        self.history = path
        #: Those that the file has.
        self.rounds: list[RoundRecord] = []

    def on_start(self, strategy: Any, first_round: int, num_rounds: int) -> None:
        """Begin with the rounds that a resumed run goes on from."""
        self.rounds = list(strategy.history)
        self.history.parent.mkdir(parents=True, exist_ok=True)
        self._write()  # it may be the file that they were read from

    def _write(self) -> None:
        with replacing(self.history) as file:
            file.writelines(map(_line_of, self.rounds))

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        """Append a whole line, or nothing."""
        size = self.history.stat().st_size if self.history.exists() else 0
        try:
            with naming(self.history), self.history.open("ab") as file:
                file.write(_line_of(record))
        except BaseException:
            with suppress(OSError):
                os.truncate(self.history, size)
            raise
        self.rounds.append(record)

    def on_end(self, strategy: Any, result: Result) -> None:
        """After a stop write all anew: its round is evaluated for who comes later."""
        if strategy.ending == "stopped":
            self._write()


def _line_of(record: RoundRecord) -> bytes:
    return f"{json.dumps(record.to_dict())}\n".encode()


def read_history(text: str) -> list[RoundRecord]:
    """The rounds of lines of JSON, but for a last one that is not whole."""
    found = []
    for line in text.splitlines(keepends=True):
        try:
            content = json.loads(line)
        except ValueError:
            if line.endswith("\n"):
                raise
            break
        found.append(RoundRecord.from_dict(content))
    return found


def default_results_dir() -> Path:
    """Where records go by default: a relative path might mean a bundle's directory."""
    return Path.home() / ".fedtrellis" / "runs"


def to_toml(config: Mapping[str, Any], in_order: bool = False) -> str:
    """Write a flat run config as TOML that ``--run-config`` takes, sorted or not."""

    def written(value: Any) -> str:
        value = value.item() if isinstance(value, np.generic) else value
        value = AUTO if value is None else value
        if isinstance(value, float):
            return repr(value)  # JSON's infinities have other names
        # JSON leaves U+007F as it is, TOML does not
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    keys = config if in_order else sorted(config)
    return "\n".join(f"{key} = {written(config[key])}" for key in keys) + "\n"


class RunRecord(History):
    """Writes a run down while it goes on.

    ============================ =====================================================
    ``config.toml``              all settings; ``--run-config`` takes the file
    ``resume.toml``              the same, and ``resume``: goes on from the checkpoint
    ``history.jsonl``            a line a round, see ``RoundRecord``
    ``summary.json``             status, rounds, last metrics, totals, error if any
    ``model.npz``                the model's arrays, by the names they had
    ``model.json``               what they mean, of a linear model of a table
    ``checkpoint.npz``           what ``resume`` needs
    ``convergence.png``          loss, gap and quality over rounds and bytes, if
                                 ``picture``: by default where Matplotlib is
    ============================ =====================================================

    ``directory`` is made if it is not there; ``config`` is the run config, flat;
    ``reference``, for the picture and the summary, is F*; ``title`` is the picture's.
    ``status`` is one of ``STATUSES`` of :mod:`fedtrellis.server.callbacks`; ``picture``
    says whether one is drawn in the end. While the run goes on the summary says which
    process of which host it is, and is refreshed with checkpoints, at most once a
    second and in a twentieth of the time; its file is touched every few seconds
    (:func:`is_alive`).
    """

    def __init__(
        self,
        directory: str | Path,
        config: Mapping[str, Any],
        reference: float | None = None,
        title: str = "",
    ) -> None:
        self.directory = Path(directory).expanduser().resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        super().__init__(self.directory / "history.jsonl")
        #: Where the run's checkpoint belongs, whose rounds are the record's.
        self.checkpoint = self.directory / "checkpoint.npz"
        self.reference, self.title = reference, title
        self.picture = find_spec("matplotlib") is not None
        #: The metrics of a constant model, which a run must do better than.
        self.baseline: Mapping[str, float] = {}
        #: What the model's arrays mean, if the task says so.
        self.meaning: Mapping[str, Any] = {}
        #: What a reader of the summary must not overlook.
        self.warnings: list[str] = []
        #: The command that goes on from the record, if it is known.
        self.resume = ""
        self._clients: int | None = None  # those of the start
        self._began, self._over = time.time(), threading.Event()
        again = {**config, "resume": str(self.directory)}
        for name, values in (("config.toml", config), ("resume.toml", again)):
            with replacing(self.directory / name) as file:
                file.write(to_toml(values).encode())
        self._write_summary({"status": "running"})
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        """Give a sign of life every few seconds, until the run has ended."""
        while not self._over.wait(_HEARTBEAT):
            with suppress(OSError):
                os.utime(self.directory / "summary.json")

    @classmethod
    def create(cls, parent: Path, name: str, config: Mapping[str, Any]) -> RunRecord:
        """Make a record in a new directory ``TIME-NAME`` under ``parent``."""
        first = parent.expanduser() / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
        first.parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            directory = Path(f"{first}-{number}") if number > 1 else first
            with suppress(FileExistsError):
                directory.mkdir()
                break
        return cls(directory, config)

    def on_start(self, strategy: Any, first_round: int, num_rounds: int) -> None:
        """Open the history; a resumed run's begins with the rounds it goes on from."""
        super().on_start(strategy, first_round, num_rounds)
        self._clients = strategy.num_clients
        self._write_summary({"status": "running"})

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        """Append a line; with a checkpoint the summary is refreshed."""
        super().on_round(strategy, record)
        due = record.round % strategy.checkpoint_every == 0
        # its sums are over all rounds: they get a twentieth of the time
        if due and time.monotonic() - self._refreshed >= max(1.0, 20.0 * self._took):
            self._write_summary({"status": "running"})

    def on_end(self, strategy: Any, result: Result) -> None:
        """Write model, summary and, where it is wanted, the picture."""
        super().on_end(strategy, result)
        arrays: dict[str, Any] = {n: decode(one) for n, one in result.arrays.items()}
        with replacing(self.directory / "model.npz") as file:
            np.savez(file, **arrays)
        if self.meaning:
            with replacing(self.directory / "model.json") as file:
                file.write(json.dumps(self.meaning, indent=1).encode())
        if self.picture:
            title = self.title or type(strategy).__name__
            with naming(picture := self.directory / "convergence.png"):
                runs = {title: [(strategy.history, self.reference)]}
                plot_convergence(runs, picture)
        self.warnings += [strategy.caution] if strategy.caution else []
        last = summarise(strategy.history)["metrics"]
        self.warnings += no_better(last, self.baseline)
        self._write_summary({"status": strategy.ending})

    def on_failure(self, strategy: Any, error: BaseException) -> None:
        """Say that the run ended early, and why; a record that has its end keeps it."""
        if self.status == "running":
            try:
                self._write_summary(how_it_ended(error))
            except OSError as again:  # such as the full disk that ended the run
                log(WARNING, "the summary has the run as still going on: %s", again)

    def _write_summary(self, how: Mapping[str, str]) -> None:
        self.status, self._refreshed = how["status"], time.monotonic()
        summary: dict[str, Any] = {**how, **summarise(self.rounds)}
        if self._clients is not None:
            summary["clients"] = self._clients
        if self.status == "running":
            me, host = os.getpid(), socket.gethostname()
            summary["process"] = {"host": host, "id": me, "started": _started(me)}
        else:
            self._over.set()
        if self.resume and self.status not in ENDINGS:
            summary["resume"] = self.resume
        if self.reference is not None:
            summary["reference_optimum"] = self.reference
            if "loss" in summary["metrics"]:
                summary["residual"] = summary["metrics"]["loss"] - self.reference
        if self.warnings:
            summary["warnings"] = self.warnings
        summary["wall_seconds"] = round(time.time() - self._began, 3)
        with replacing(self.directory / "summary.json") as file:
            file.write(f"{json.dumps(summary, indent=2)}\n".encode())
        self._took = time.monotonic() - self._refreshed


def _started(process: int) -> str:
    """When a process began, as its kernel counts; empty: there is none, or no /proc."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # what is only there to be waited for has ended
    return "" if fields[0] in "ZX" else fields[19]


def is_alive(process: Mapping[str, Any], summary: Path) -> bool:
    """Whether a run goes on, by what its summary says of its ``process``.

    That is there, on this host; or the file was touched within half a minute.
    """
    started = process.get("started")
    here = process.get("host") == socket.gethostname()
    if here and started and _started(process.get("id", 0)) == started:
        return True
    return time.time() - summary.stat().st_mtime < _SILENCE


def no_better(metrics: Mapping[str, float], baseline: Mapping[str, float]) -> list[str]:
    """A line for each metric that is worse than a constant model's, or of X = 0."""
    errors, found = {"loss": "a constant's", "rmse": "that of X = 0"}, []
    for name, simple in baseline.items():
        value = metrics.get(name, np.nan)
        where = f"above {errors[name]}" if name in errors else ""
        if value > simple * (1.0 + 1e-9) if where else value < simple:
            where = where or "below the most frequent class's"
            found.append(f"the {name}, {value:.6g}, is {where}, {simple:.6g}")
    return found


def plot_convergence(
    runs: Mapping[str, Sequence[tuple[Sequence[RoundRecord], float | None]]],
    path: str | Path,
    panels: Sequence[tuple[str, str]] = (),
) -> None:
    """Draw loss (or its distance to F*), gap and quality of runs to a file.

    ``runs`` are histories by name, each with its F* or None; those of one name, over
    several seeds, are drawn as their median, and a band from the least to the largest.
    One that ended before the others stays where it was. ``panels`` are metrics, each
    with a key of :data:`AXES`, to draw instead. With F* and for a gap the axis is
    logarithmic, which has no place for what rounding made negative.
    """
    need("matplotlib", f"the picture {path}", "plots")
    # the object interface: no global state, no display; slow to load
    from matplotlib.figure import Figure

    every = [run for several in runs.values() for run in several]
    if not panels:
        names = {name for history, _ in every for r in history for name in r.metrics}
        firsts = [[n for n in all_ if n in names][:1] for all_ in (_GAPS, QUALITIES)]
        more = [(name, "rounds") for first in firsts for name in first]
        panels = [("loss", "rounds"), *more, ("loss", "bytes")]
    known = any(best is not None for _, best in every)
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    everywhere = figure.subplots(1, len(panels), squeeze=False)
    for axes, (metric, against) in zip(everywhere[0], panels, strict=True):
        certified = known and metric == "loss"
        distance = certified or metric in _GAPS
        label = CRITERIA.get(metric, metric) + " − F*" * certified
        scale = "log" if distance else "linear"
        axes.set(xlabel=AXES[against], ylabel=label, yscale=scale)
        axes.grid(True, alpha=0.3)
        for name, several in runs.items():
            lines = [
                _line(history, metric, against, best if certified else 0.0)
                for history, best in several
            ]
            x, middle, low, high = _spread(lines)
            there = (middle > (0.0 if distance else -_LARGEST)) & (middle < _LARGEST)
            (line,) = axes.plot(x[there], middle[there], label=name)
            if len(several) > 1:
                look: Any = {"color": line.get_color(), "alpha": 0.2, "lw": 0}
                axes.fill_between(x[there], low[there], high[there], **look)
    if len(runs) > 1:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center")
    else:
        figure.suptitle(next(iter(runs)))
    figure.savefig(path, dpi=120)


def _line(
    history: Sequence[RoundRecord], metric: str, against: str, optimum: float | None
) -> NDArray[np.float64]:
    """Where a curve is drawn, and its values, of shape (rounds with the metric, 2)."""
    along = {
        "rounds": np.array([r.round for r in history]),
        "bytes": np.cumsum([r.bytes_up + r.bytes_down for r in history]) / 1e6,
        "seconds": np.cumsum([r.seconds for r in history]),
    }[against]
    values = np.array([r.metrics.get(metric, np.nan) for r in history])
    values = np.clip(values - (optimum or 0.0), -2 * _LARGEST, 2 * _LARGEST)
    curve: NDArray[np.float64] = np.column_stack([along, values])[~np.isnan(values)]
    return curve


def _spread(curves: Sequence[NDArray[np.float64]]) -> Any:
    """Median places of several curves; their median, least and largest values."""
    some = [curve for curve in curves if len(curve)] or [np.full((1, 2), np.nan)]
    longest = max(map(len, some))
    padded = [np.pad(c, ((0, longest - len(c)), (0, 0)), "edge") for c in some]
    along, values = np.moveaxis(np.array(padded), -1, 0)
    middle = np.median(values, axis=0)
    return np.median(along, axis=0), middle, values.min(axis=0), values.max(axis=0)


# -------------------------------------------------------------------------- checkpoints

# The file is a ``.npz`` of arrays and one JSON text: the model, the method's state, who
# the clients are, which of their rounds were used, and on a local grid their states.
# Its rounds, which only ever grow, are appended to a file beside it; where a record has
# them already, in the same folder, that is the file.

_FORMAT = 2


def _of_run(strategy: Any) -> dict[str, Any]:
    """What a run and a checkpoint that it goes on from have in common, as of JSON."""
    layout, clients = strategy.broadcast.layout, sorted(strategy.clients)
    return {
        "format": _FORMAT,
        "strategy": type(strategy).__name__,
        "seed": strategy.seed,
        "dtype": layout.dtype,
        "model shapes": [list(shape) for shape in layout.shapes],
        **{name: getattr(strategy, name) for name in strategy._state_settings},
        "number of clients": len(clients),
        "clients": clients,
    }


def beside(path: Path, callbacks: Sequence[Callback]) -> History:
    """What writes a checkpoint's rounds: a record in its folder, or one of its own."""
    for one in callbacks:
        if isinstance(one, History) and one.history.parent == path.parent:
            return one
    return History(path.with_name(path.name + ".history.jsonl"))


def write_checkpoint(path: Path, strategy: Any, grid: Grid, history: Path) -> None:
    """Write a checkpoint of the rounds that the ``history`` has."""
    conversation, broadcast = strategy.conversation, strategy.broadcast
    arrays: dict[str, Any] = {"model": broadcast.model}
    arrays |= {f"state/{name}": array for name, array in strategy.state().items()}
    states = getattr(grid, "client_states", None)
    for name, data in ({} if states is None else states()).items():
        arrays[f"client/{name}"] = np.frombuffer(data, dtype=np.uint8)
    clients = {
        name: {
            **{"used-round": client.used_round, "ready": client.ready},
            **asdict(client.key),
        }
        for name, client in conversation.clients.items()
    }
    meta = {
        "run": _of_run(strategy),
        "round": strategy.history[-1].round,
        "history": history.name,
        "session": conversation.session,
        "epoch": conversation.epoch,
        "version": broadcast.version,
        "planned-rounds": strategy.planned_rounds,
        "clients": clients,
        "silent": conversation.silent,
        "away": sorted(strategy.away),
        "zeroed": sorted(strategy._zeroed),
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    with history.open("rb") as rounds:
        os.fsync(rounds.fileno())
    with replacing(path) as file:
        np.savez(file, **arrays)


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Make any error a SettingsError of one line."""
    try:
        yield
    except SettingsError:
        raise
    except Exception as error:  # whatever is made of what does not fit
        why = " ".join(str(error).split()) or type(error).__name__
        why = f"it has no entry {error}" if isinstance(error, KeyError) else why
        raise SettingsError(f"{what}: {why}") from error


class Checkpoint:
    """A checkpoint that was read; SettingsError if the file is none."""

    def __init__(self, path: Path) -> None:
        self._path, self._name = path, f"resume = {str(path)!r}"
        if not path.is_file():
            raise SettingsError(f"{self._name}: there is no such checkpoint")
        with refusing(f"{self._name} is no checkpoint"):
            self._arrays = read_arrays(path)
            meta = self._meta = json.loads(self._arrays.pop("meta").tobytes())
            self.planned_rounds = int(meta["planned-rounds"])
            self._last_round = int(meta["round"])
            #: What the SuperLink knew the clients' nodes by.
            self.keys = {
                name: Key(client["digest"], client["lasting"])
                for name, client in meta["clients"].items()
            }

    def load(self, strategy: Any, grid: Any) -> list[RoundRecord]:
        """Put a strategy that has been set up where it was; the rounds so far."""
        with refusing(f"{self._name} does not fit this {type(strategy).__name__}"):
            now = _of_run(strategy)
            for what, before in self._meta["run"].items():
                if before != now.get(what):
                    hint = "; start as many nodes, with the same client-ids"
                    raise SettingsError(
                        f"{self._name}: its {what} is {before}, this run's is "
                        f"{now.get(what)}" + hint * what.endswith("clients")
                    )
            self._put_back(strategy, grid)
        # later rounds were never part of a checkpoint
        last_round = self._last_round
        path = self._path.with_name(self._meta.get("history", "history.jsonl"))
        with refusing(f"{self._name}: its history cannot be read"):
            records = read_history(path.read_text(encoding="utf-8"))
            records = [record for record in records if record.round <= last_round]
            if not records or records[-1].round != last_round:
                raise ValueError(f"{path.name} ends before round {last_round}")
            return records

    def _put_back(self, strategy: Any, grid: Any) -> None:
        """Model, state and clients; any exception means that they do not fit."""
        meta, conversation = self._meta, strategy.conversation
        conversation.session = meta["session"]
        model, layout = self._arrays["model"], strategy.broadcast.layout
        strategy.broadcast = ModelBroadcast(layout, model, meta["version"])
        strategy.load_state(self._under("state/"))
        for name, saved in meta["clients"].items():
            # its version of the model is left open: whoever has one gets it whole
            conversation.clients[name].used_round = saved["used-round"]
        conversation.silent = dict(meta["silent"])
        strategy.away, strategy._zeroed = set(meta["away"]), set(meta["zeroed"])
        # clients that are not set back too may have been through the rounds to come
        # already, with a server that got further
        conversation.epoch = secrets.token_hex(4)
        load = getattr(grid, "load_client_states", None)
        states = {name: a.tobytes() for name, a in self._under("client/").items()}
        if load is None or not states.keys() >= set(strategy.clients):
            return
        load(states)
        conversation.epoch = meta["epoch"]
        for name in strategy.clients:
            # one that never took part has no state to go on from
            conversation.clients[name].ready = meta["clients"][name]["ready"]

    def _under(self, prefix: str) -> dict[str, NDArray[Any]]:
        there = self._arrays.items()
        return {n.removeprefix(prefix): a for n, a in there if n.startswith(prefix)}


def sim_command(directory: Path, node_configs: Sequence[str], program: str) -> str:
    """The command that goes on from a record; the grid's options are not in it."""
    words = [word for text in node_configs for word in ("--node-config", text)]
    return shlex.join([*program.split(), *words, "-c", f'resume="{directory}"'])


def flwr_command(directory: Path, nodes: int = 0) -> str:
    """The ``flwr run`` that goes on from a record; with so many simulated nodes."""
    # what the user calls a deployment's SuperLink is not known here
    words = ["flwr", "run", ".", *([] if nodes else ["CONNECTION"]), "--stream"]
    if nodes:
        words += ["--federation-config", f"num-supernodes={nodes}"]
    return shlex.join([*words, "--run-config", str(directory / "resume.toml")])


@contextmanager
def ending_in_order(record: RunRecord) -> Iterator[None]:
    """Run what is inside so that it can be interrupted, and its record has its end.

    A signal waits until a strategy's state is whole. A line on the standard error names
    the record and the command that resumes it.
    """
    with signals_interrupt(at_exit):
        try:
            yield
        except BaseException as error:
            with deferred():
                record.on_failure(None, error)
                # what is refused before its first round leaves no record
                if isinstance(error, SettingsError) and record._clients is None:
                    shutil.rmtree(record.directory)
            if not isinstance(error, KeyboardInterrupt):
                raise
            where, rest = record.directory, "all rounds were finished"
            if record.status not in ENDINGS:
                rest = "no round was finished: start it again"
                if record.checkpoint.is_file():
                    rest = f"to go on: {record.resume}"
            line = f"interrupted; record: {where}; {rest}"
            print(line, file=sys.stderr, flush=True)
            if isinstance(error, Interrupted):
                raise
            raise Interrupted(signal.SIGINT) from error
