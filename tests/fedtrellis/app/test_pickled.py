"""What Ray is handed of an app with every message, and what an actor makes of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from ray import cloudpickle

import sim
from clients import FedAvgGDClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.app import App
from fedtrellis.objectives import LeastSquares

ROOT = Path(sim.__file__).parent
#: Bytes of an app, whatever it caches. A closure's own variables come on top.
MOST = 1_000
CONFIG = {"task": "lasso", "lasso.rows": 40, "lasso.columns": 30, "rounds": 2}

# A project's module with an app of its own, and a plug-in's method and task in it.
OWN = """
from dataclasses import dataclass
from fedtrellis.app import App, Plugin
from clients import FedProxClient
from strategies import FedProx
from tasks import Lasso

class Harder(FedProx):
    name = "harder"
    about = "one more"

class HarderClient(FedProxClient):
    pass

@dataclass(frozen=True)
class Shorter(Lasso):
    name = "shorter"
    summary = "a short lasso"

plugin = Plugin(methods=[(Harder, HarderClient)], tasks=[Shorter])
app = App([(Harder, HarderClient)], [Shorter])
client_app = app.client_app
"""
# A process like an actor's: each message, context and app arrives pickled.
ACTOR = """
import pickle, sys
from fedtrellis.app import App, application
made, experiments = [], []
init, make = App.__init__, application.Experiment
def noted(self, *a, **k):
    made.append(1)
    init(self, *a, **k)
def counted(*a):
    experiments.append(1)
    return make(*a)
App.__init__, application.Experiment = noted, counted
context = None
for app, message, first in pickle.load(open(sys.argv[1], "rb")):
    context = pickle.loads(first if context is None else context)
    reply = pickle.loads(app)(pickle.loads(message), context)
    assert not reply.has_error()
    context = pickle.dumps(context)
print(len(made), len(experiments))
"""


def dumps(thing: object) -> bytes:
    """As Ray pickles it."""
    pickled: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
    return pickled


class Recording(LocalGrid):
    """Keeps what one node was sent, with its context from before."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sent: list[tuple[Message, bytes]] = []

    def _deliver(self, messages: Any) -> None:
        node = next(iter(self._contexts))
        for message in messages:
            if message.metadata.dst_node_id == node:
                given = self._contexts[node]
                config = self.whole_config
                plain = Context(
                    given.run_id, node, given.node_config, given.state, dict(config)
                )
                self.sent.append((message, dumps(plain)))
        super()._deliver(messages)

    whole_config: Mapping[str, Any] = {}


def run(app: App, config: dict[str, Any]) -> Recording:
    """A run in this process, which fills what the app caches."""
    whole = app.default_config() | config
    experiment = app.experiment(whole, 3)
    grid = Recording(app.client_app, 3, run_config=whole)
    grid.whole_config = whole
    experiment.start(experiment.strategy(), grid)
    return grid


def own_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "own_project"
) -> Any:
    (folder / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__(name)


@pytest.mark.parametrize("kind", ["sim", "own", "plug-in"])
def test_an_app_is_its_name_and_an_actor_makes_one_of_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, config = sim.app, dict(CONFIG)
    if kind != "sim":
        module = own_module(tmp_path, monkeypatch)
        config = {"method": "harder", "task": "shorter", "rounds": 2}
        config["harder.step-size"] = 1e-5
        if kind == "own":
            app = module.app
        else:
            installed = tmp_path / "own_project-1.dist-info"
            installed.mkdir()
            (installed / "METADATA").write_text("Name: own-project\nVersion: 1\n")
            (installed / "entry_points.txt").write_text(
                "[fedtrellis.plugins]\nown = own_project:plugin\n"
            )
            (tmp_path / "with_plugin.py").write_text(
                "from fedtrellis.app import App, pairs\n"
                "import clients, strategies\nfrom tasks import TASKS\n"
                "app = App(pairs(strategies, clients), TASKS.values())\n"
                "client_app = app.client_app\n"
            )
            app = __import__("with_plugin").app
    grid = run(app, config)
    pickled = dumps(app.client_app)
    assert len(pickled) <= MOST
    assert len(dumps(app)) <= MOST
    assert pickle.loads(pickled) is app.client_app
    calls = [(pickled, dumps(message), context) for message, context in grid.sent]
    assert len(calls) >= 3
    (tmp_path / "calls").write_bytes(pickle.dumps(calls))
    done = subprocess.run(
        [sys.executable, "-c", ACTOR, str(tmp_path / "calls")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    apps, experiments = map(int, done.stdout.split())
    # the own module has an app, and so has the plug-in's beside the one in use
    assert apps == (2 if kind == "plug-in" else 1)
    assert experiments == 1


def closure(rows: np.ndarray[Any, Any]) -> ClientApp:
    def client_fn(context: Context) -> FedAvgGDClient:
        return FedAvgGDClient(context, LeastSquares(rows, np.ones(len(rows))))

    return client_app(client_fn)


def test_a_name_that_now_means_another_app_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = own_module(tmp_path, monkeypatch, "replaced_project")
    app = module.client_app
    assert pickle.loads(dumps(app)) is app
    module.client_app = None
    again = pickle.loads(dumps(app))
    assert again is not app
    assert again.client_fn.__self__ is module.app
