"""The examples, from the wheel, in an environment that has nothing of the checkout."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_process import ROOT, Flower

import owndomain.task
import splitconstraint.task

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

NODES = 4


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Folder of the programs of a new environment: the wheel and what it needs.

    By uv, which comes with Flower and is what Flower itself installs with.
    """
    folder = tmp_path_factory.mktemp("clean")
    # where this machine keeps wheels of its own
    links = [str(wheel.parent), *os.environ.get("PIP_FIND_LINKS", "").split()]
    # the system's certificates, which pip finds by itself and uv does not
    uv = [sys.executable, "-m", "uv", "--quiet", "--native-tls"]
    subprocess.run(
        [*uv, "venv", "--python", sys.executable, str(folder / "env")], check=True
    )
    programs = folder / "env" / "bin"
    subprocess.run(
        [
            *(*uv, "pip", "install", "--python", str(programs / "python")),
            *(f"--find-links={place}" for place in links),
            *("--constraint", str(ROOT / "constraints.txt")),
            f"fedtrellis[simulation,torch] @ {wheel.as_uri()}",
        ],
        cwd=folder,
        check=True,
        timeout=500,
    )
    return programs


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the examples, away from the checkout."""
    folder = tmp_path_factory.mktemp("apps")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "uv.lock")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=ignore)
    return folder / "examples"


@pytest.fixture(scope="module")
def installed(
    tmp_path_factory: pytest.TempPathFactory, clean: Path
) -> Iterator[Flower]:
    """Flower that takes an app's packages from its own environment."""
    home = tmp_path_factory.mktemp("home")
    flower = Flower(
        home, clean, cwd=home, FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1"
    )
    flower.environment.pop("PYTHONPATH", None)
    # starts the SuperLink outside of any app: Ray's nodes look for modules first in
    # the folder where it started, and would find the first app's for all others
    flower("list")
    yield flower
    flower.stop()


def run_app(flower: Flower, app: Path, config: str = "") -> str:
    flower.cwd = app
    output = flower.run(config, NODES)
    assert flower.status() == "finished:completed", output[-3000:]
    return output


def learnt(flower: Flower, app: Path, shown: str) -> list[float]:
    """The numbers of the line in which an app shows what it has learnt."""
    found = re.search(shown, output := run_app(flower, app))
    assert found, output[-3000:]
    return [float(number) for number in found.groups()]


def test_the_quickstart_learns_a_sparse_model(installed: Flower, apps: Path) -> None:
    shown = r"accuracy ([\d.]+), .* (\d+) of 640 weights are not 0, .* up to ([\d.]+)"
    accuracy, nonzeros, norm = learnt(installed, apps / "quickstart-pytorch", shown)
    # with other initial weights: accuracy 0.75 to 0.83, 55 to 58 weights
    assert accuracy > 0.6
    assert nonzeros < 150
    assert 20.0 < norm <= 30.0


def test_the_quickstart_with_a_constrained_layer(installed: Flower, apps: Path) -> None:
    app = apps / "one-layer"
    shutil.copytree(apps / "quickstart-pytorch", app)
    patch = ["git", "apply", "-p1", "one-layer.diff"]
    subprocess.run(patch, cwd=app, check=True)
    shown = r"accuracy ([\d.]+), .* rank (\d+) of 64, .* up to ([\d.]+)"
    accuracy, rank, norm = learnt(installed, app, shown)
    assert accuracy > 0.85
    assert rank < 40
    assert 15.0 < norm <= 20.01


def gap(task: Any, domain: Any, x: Any) -> float:
    """A bound of F(x) − F*."""
    objectives = [task.load_objective(i) for i in range(NODES)]
    return float(domain.gap(np.mean([f.gradient(x) for f in objectives], axis=0), x))


#: The losses' task, the set, and bounds of F(x) − F* in the end and at the start.
OWN: dict[str, tuple[Any, Any, float, float]] = {
    "own-domain": (owndomain.task, owndomain.task.make_domain(), 0.5, 5.0),
    "split-constraint": (splitconstraint.task, splitconstraint.task.DOMAIN, 2e-3, 1e-2),
}


@pytest.mark.parametrize("app", OWN)
def test_own_sets_and_losses_and_nodes_with_different_sets(
    installed: Flower, apps: Path, tmp_path: Path, app: str
) -> None:
    file, (task, domain, near, far) = tmp_path / "x.npy", OWN[app]
    run_app(installed, apps / app, f'save-to="{file}"')
    x = np.load(file)
    assert domain.contains(x)
    assert gap(task, domain, x) < near < far < gap(task, domain, domain.centre(x.shape))
