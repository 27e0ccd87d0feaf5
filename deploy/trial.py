"""The whole deployment on this machine, for a trial: one command, and nothing is left.

    python -m deploy.trial                              # a method of each family
    python -m deploy.trial --all                        # every method
    python -m deploy.trial --methods fedfw hyfdca --rounds 5 --keep /tmp/trial

Makes certificates, keys and a data file for each node, starts a SuperLink (TLS, node
authentication) and four SuperNodes as processes, with the scripts of this folder, and
runs one method after the other with ``flwr run``. The models have to be those of
``LocalGrid`` on the same files (HyFDCA's clients draw from secrets of the run: of its
models P(w) has to be what the run says, to the same 10⁻⁹); four nodes that must not
get in try to. In the end everything is stopped. The exit status is 0 only if all of
that went well.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sim
from fedtrellis.app.command_line import read_config
from fedtrellis.server.callbacks import ENDINGS
from fedtrellis.wire.local_grid import LocalGrid

from .cases import FAMILIES, METHODS, NODES, SECRET_DRAWS, Files, primal
from .deployment import Deployment, TrialError

__all__ = ["command_line", "trial"]

TOLERANCE = 1e-9


def run(deployment: Deployment, method: str, rounds: int) -> float:
    """Run a method, deployed and on LocalGrid; return how far the models are apart.

    Of a method whose clients draw from secrets: how far P(w) is from what the run says.

    Raises
    ------
    TrialError
        One of the two did not end as it should.
    """
    files, settings = METHODS[method]
    config = (
        f'method="{method}" {settings} rounds={rounds} evaluate-every={rounds} '
        f"min-nodes={len(NODES)}"
    )
    records = deployment.folder / "records"
    deployed, local = records / "deployed" / method, records / "local" / method
    deployment.flwr(
        *("run", ".", "trial", "--stream"),
        *("--run-config", f'{config} results-dir="{deployed}"'),
        log=deployment.folder / "logs" / f"run-{method}.log",
    )
    here = sim.app.default_config() | read_config([f'{config} results-dir="{local}"'])
    node_configs = [deployment.node_config(node, files) for node in NODES]
    grid = LocalGrid(
        sim.client_app, len(NODES), run_config=here, node_configs=node_configs
    )
    sim.app.run(grid, here)
    log = f"\n{deployment.log(f'run-{method}')[-3000:]}"
    there, expected = (_model(path, rounds, log) for path in (deployed, local))
    if method in SECRET_DRAWS:
        return max(
            abs(primal(model["0"]) - _lowest_primal(path))
            for path, model in ((deployed, there), (local, expected))
        )
    if there.keys() != expected.keys():
        raise TrialError(f"{method}: arrays {list(there)}, not {list(expected)}")
    return max(float(np.abs(there[k] - expected[k]).max()) for k in expected)


def _model(parent: Path, rounds: int, log: str) -> dict[str, Any]:
    """Return the arrays of the one record in a folder, if its run went to the end."""
    records = list(parent.glob("*/summary.json"))
    if len(records) != 1:
        raise TrialError(f"{parent} has {len(records)} finished records{log}")
    summary = json.loads(records[0].read_text())
    if summary["status"] not in ENDINGS or summary["rounds"] != rounds:
        raise TrialError(f"{records[0]}: {summary['status']}, {summary['rounds']}{log}")
    with np.load(records[0].parent / "model.npz") as arrays:
        return dict(arrays)


def _lowest_primal(parent: Path) -> float:
    """Return the P of the model that a record's run ended with, as the run has it."""
    (history,) = parent.glob("*/history.jsonl")
    rounds = [json.loads(line) for line in history.read_text().splitlines()]
    return min(float(line["train"]["primal"]) for line in rounds if line["train"])


def trial(folder: Path, methods: Sequence[str], rounds: int) -> None:
    """Run all of it; a TrialError says what went wrong."""
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begin:4.0f} s] {text}", flush=True)

    deployment = Deployment(folder)
    try:
        deployment.make_files()
        deployment.make_encryption_keys()
        say(f"certificates, keys and data in {folder}")
        deployment.start_superlink()
        say(f"SuperLink at https://127.0.0.1:{deployment.port}, with a database")
        deployment.register()
        say(f"registered the keys of {len(NODES)} nodes")
        running: Files | None = None
        # the nodes of one kind of file first: for the other they are started anew
        for method in sorted(methods, key=lambda name: METHODS[name][0], reverse=True):
            files = METHODS[method][0]
            if files != running:
                if running is not None:
                    deployment.stop_nodes()
                    deployment.stop_superlink()
                    deployment.start_superlink()
                    say("SuperLink stopped and started: it knows its nodes and runs")
                deployment.start_nodes(files)
                say(f"{len(NODES)} SuperNodes online, each with its own {files} file")
                if running is None:
                    deployment.start_intruders()
                running = files
            apart = run(deployment, method, rounds)
            of = (
                "its own certificate" if method in SECRET_DRAWS else "LocalGrid's model"
            )
            if not apart <= TOLERANCE:
                raise TrialError(f"{method}: {apart} from {of}")
            say(f"{method}: {rounds} rounds, at most {apart:.1e} from {of}")
        deployment.check_runs(len(methods))
        deployment.check_intruders()
        say("kept out: an unregistered key, another authority, no key, no TLS")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        deployment.stop()
        say("everything is stopped")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def command_line(arguments: Sequence[str] | None = None) -> int:
    """``python -m deploy.trial``: exit status 0 if all went well."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.trial",
        description="A SuperLink and four SuperNodes on this machine, for a trial.",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--all", action="store_true", help="every method")
    chosen.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        default=FAMILIES,
        metavar="METHOD",
        help=f"some of {', '.join(METHODS)} [{', '.join(FAMILIES)}]",
    )
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each [2]")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="a new folder, which stays"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds} must be at least 1")
    if options.keep is not None:
        folder = options.keep.expanduser().resolve()
        if folder.exists():
            parser.error(f"--keep {folder}: there is one already")
        folder.mkdir(parents=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="fedtrellis-trial-")).resolve()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        trial(folder, list(METHODS) if options.all else options.methods, options.rounds)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    except Exception as error:
        print(f"trial failed: {error}\nlogs: {folder / 'logs'}", file=sys.stderr)
        return 1
    else:
        status = 0
    if options.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(command_line())
