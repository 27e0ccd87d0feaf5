"""What ``pip install`` puts on a machine, and that it works without the checkout."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

# The surface that users write against; from outside it is fedtrellis.strategies.
PROGRAM = """
import sys
import numpy as np
from flwr.app import ArrayRecord
from fedtrellis import LocalGrid, client_app
from fedtrellis.clients import FedFWClient
from fedtrellis.domains import L1Ball
from fedtrellis.strategies import FedFW
from fedtrellis.tasks import make_task

class MyLoss:
    num_examples = 1
    def __init__(self, index):
        self.centre = np.eye(3)[index % 3]
    def value(self, x):
        return 0.5 * float(((x - self.centre) ** 2).sum())
    def gradient(self, x):
        return x - self.centre

def client_fn(context):
    objective = MyLoss(context.node_config["partition-id"])
    return FedFWClient(context, objective=objective, domain=L1Ball(radius=1.0))

app = client_app(client_fn)
strategy = FedFW(domain=L1Ball(radius=1.0), penalty=1e-2, variant="augmented",
                 schedule="convex", participation=0.5, seed=0)
grid = LocalGrid(app, num_nodes=9, seed=0, request_loss=0.3, reply_loss=0.3,
                 encode=True)
result = strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]),
                        num_rounds=300)
x = result.arrays.to_numpy_ndarrays()[0]
assert np.abs(x - 1 / 3).max() < 0.1, x
assert make_task("quadratic-assignment", {}, num_clients=4, seed=0).shapes()
assert not any(name in sys.modules for name in ("strategies", "clients", "tasks"))
assert "torch" not in sys.modules
assert "datasets" not in sys.modules
"""


def test_the_public_surface_works_from_the_wheel_alone(
    wheel: Path, tmp_path: Path
) -> None:
    target = tmp_path / "site"
    install = ("pip", "install", "--quiet", "--no-deps", "--target")
    command = [sys.executable, "-m", *install, str(target), str(wheel)]
    subprocess.run(command, check=True, timeout=250)
    # what lands there: the package, its metadata, and commands of that name
    (metadata,) = target.glob("fedtrellis-*.dist-info")
    landed = {path.name for path in target.iterdir()} - {"bin", metadata.name}
    assert landed == {"fedtrellis"}
    for name in ("strategies/hyfdca/strategy.py", "tasks/data/chr12a.json", "py.typed"):
        assert (target / "fedtrellis" / name).is_file()
    commands = {path.name for path in (target / "bin").glob("*")}
    assert all(re.fullmatch("fedtrellis(-[a-z]+)?", name) for name in commands)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    program = [sys.executable, "-c", PROGRAM]
    subprocess.run(program, cwd=tmp_path, env=environment, timeout=200, check=True)
