"""What the app loads, and what it leaves alone until something needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A SuperNode starts a process for every message: what it imports is paid every time.
SCRIPT = """
import sys
import flwr.app, flwr.client, flwr.clientapp, flwr.serverapp.strategy
HEAVY = {
    "torch", "tenseal", "flwr_datasets", "datasets", "sklearn", "matplotlib", "pandas",
    "ray", "rich.progress", "rich.table", "scipy.linalg", "scipy.optimize",
    "scipy.sparse", "scipy.special", "scipy.stats",
} - set(sys.modules)
assert len(HEAVY) > 10, HEAVY

def check(what, allowed=()):
    loaded = sorted(HEAVY & set(sys.modules) - set(allowed))
    assert not loaded, f"{what} loads {', '.join(loaded)}"

import sim
from fedtrellis.wire.arrays import Layout, array_record
from fedtrellis.wire.local_grid import LocalGrid
check("the app")

def run(method, task, **settings):
    config = sim.app.default_config() | {"method": method, "task": task} | settings
    grid = LocalGrid(sim.client_app, 2, run_config=config)
    for context in grid._contexts.values():
        sim.app.client_fn(context)
    check(f"a client of {method} on {task}", ALLOWED)
    setup = sim.app.experiment(config, 2)
    layout = Layout(tuple(setup.task.shapes()))
    arrays = array_record(layout.layers(layout.point(setup.task.initial_point())))
    strategy = sim.make_strategy(setup)
    strategy.start(grid, arrays, num_rounds=2)
    assert [record.used for record in strategy.history] == [2, 2]
    check(f"a round of {method} on {task}", ALLOWED)

ALLOWED = ()
done = set()
for method in sim.app.registry.methods:
    if method not in sim.HYBRID:
        # given its curvature FedGiA need not compute eigenvalues
        run(method, "lasso", **{"selected-fraction": 1.0, "curvature": 1e4})
        done.add(method)
# the data of these is read by scikit-learn, which loads all of SciPy
sim.make_task("hybrid-svm", sim.app.default_config(), 2, 0).check()
ALLOWED = ("sklearn", "pandas", *(name for name in HEAVY if name.startswith("scipy")))
for method in sim.HYBRID:
    run(method, "hybrid-svm", encryption="none")
    done.add(method)
assert done == set(sim.app.registry.methods)
"""


def test_the_app_loads_only_what_the_run_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
