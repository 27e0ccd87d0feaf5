"""What ``pip install`` puts on a machine, and that it works without the checkout."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from flower_process import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

# what the page shows, which imports from fedtrellis alone
(PROGRAM,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
PROGRAM += """
import sys
assert L1Ball(2.0).contains(x, 1e-9) and np.abs(x).sum() > 0.1
from fedtrellis.tasks import make_task
assert make_task("quadratic-assignment", {}, num_clients=4, seed=0).shapes()
unwanted = {"strategies", "clients", "tasks", "torch", "datasets"}
assert not unwanted & set(sys.modules)
"""


def test_the_public_surface_works_from_a_wheel(wheel: Path, tmp_path: Path) -> None:
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
