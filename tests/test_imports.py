"""What the app loads, and what it leaves alone until something needs it."""

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
check("the app")

def run(method, task, **settings):
    config = {"method": method, "task": task, "rounds": 2} | settings
    experiment = sim.app.experiment(sim.app.default_config() | config, 2)
    grid = experiment.grid()
    for context in grid._contexts.values():
        sim.app.client_fn(context)
    check(f"a client of {method} on {task}", ALLOWED)
    arrays = experiment.initial_arrays()
    strategy = experiment.strategy()
    strategy.start(grid, arrays, num_rounds=2)
    used = [record.used for record in strategy.history]
    assert used == [2, 2], (method, used, strategy.history[0].rejected)
    check(f"a round of {method} on {task}", ALLOWED)

MORE = {
    # given its curvature FedGiA need not compute eigenvalues
    "fedgia": {"fedgia.selected-fraction": 1.0, "fedgia.curvature": 1e4},
    # nor need those whose steps are set; short enough that they do not diverge
    **{
        name: {f"{name}.step-size": 1e-5}
        for name in (
            "compressed-sgd fedavg fedavg-gd fedopt fedprox local-sgd scaffold".split()
        )
    },
    "feddr": {"feddr.local-step-size": 1e-5, "feddr.proximal-step": 1e-4},
    "projected-fedavg": {"projected-fedavg.local-step-size": 1e-5},
    "first-order-rfl": {"first-order-rfl.step-size": 1e-6},
    "zeroth-order-rfl": {"zeroth-order-rfl.step-size": 1e-6},
    "hyfdca": {"hyfdca.encryption": "none", "hyfdca.exposed": "accept"},
}
ALLOWED = ()
methods = sim.app.registry.methods
split = [name for name, entry in methods.items() if entry.strategy.space == "split"]
for method in methods.keys() - split:
    run(method, "lasso", **MORE.get(method, {}))
# the data of these is read by scikit-learn, which loads all of SciPy
sim.app.registry.tasks["hybrid-svm"].from_config({}, 2, 0).check()
ALLOWED = ("sklearn", "pandas", *(name for name in HEAVY if name.startswith("scipy")))
for method in split:
    run(method, "hybrid-svm", **MORE.get(method, {}))
"""


def run(script: str) -> str:
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_app_loads_only_what_the_run_needs() -> None:
    run(SCRIPT)


def test_the_package_loads_little_beside_flower() -> None:
    def count(names: str) -> int:
        return int(run(f"import {names}, sys; print(len(sys.modules))"))

    flower = count("flwr")
    assert count("fedtrellis") < 0.3 * flower
    # a node's half brings nothing of the server's
    node = "import sys; from fedtrellis import client_app; import fedtrellis.clients;"
    server = "(m for m in sys.modules if m.startswith('fedtrellis.server'))"
    assert run(f"{node} print(*{server})").split() == []
    assert count("fedtrellis.clients") < 1.3 * flower
