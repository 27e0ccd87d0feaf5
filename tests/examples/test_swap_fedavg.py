"""The patches from FedAvg are small, and their apps run in this process."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import not_daily

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "examples/swap-fedavg"
PATCHES = sorted(APP.glob("to-*.diff"))

# the ServerApp's and the ClientApp's files as they are, on a grid in this process
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from flwr.app import Context, RecordDict
from fedtrellis import LocalGrid
from fedavgapp.client_app import app
from fedavgapp.server_app import main
grid = LocalGrid(app, 4, seed=0)
config = {"num-server-rounds": 10}
main(grid, Context(1, 1, {}, RecordDict(), config))
"""


def run(app: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(app)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )


@pytest.mark.parametrize(
    "patch", [PATCHES[0], *not_daily(*PATCHES[1:])], ids=lambda path: str(path.stem)
)
def test_a_patch_is_small_and_its_app_learns(patch: Path, tmp_path: Path) -> None:
    text = patch.read_text(encoding="utf-8")
    added, gone = (
        len(re.findall(rf"^{sign}(?!{sign}).", text, re.MULTILINE))
        for sign in (r"\+", "-")
    )
    assert max(added, gone) <= 12
    ignore = shutil.ignore_patterns("__pycache__")
    app = shutil.copytree(APP, tmp_path / "app", ignore=ignore)
    subprocess.run(["git", "apply", "-p1", str(patch)], cwd=app, check=True)
    shown = run(app, tmp_path)
    found = re.search(r"([\d.]+) from the truth", shown.stdout)
    assert found, shown.stdout
    assert float(found[1]) < 0.5  # from 2.0
    # every round is logged; FedGiA stops by itself
    assert 5 <= len(re.findall(r"(?i)round [1-9]\d*/", shown.stderr)) <= 10
    if patch.stem == "to-secure-sums":  # with FedAvg's model
        assert added + gone <= 6
        assert "Secure sums over fixed blocks" in shown.stderr
        distances = [
            [float(d) for d in re.findall(r"'distance': ([\d.e-]+)", log)]
            for log in (run(APP, tmp_path).stderr, shown.stderr)
        ]
        assert distances[1] == pytest.approx(distances[0], abs=1e-9)
        assert len(distances[0]) >= 11


def test_the_page_shows_the_first() -> None:
    page = (ROOT / "docs/plug-in.md").read_text(encoding="utf-8")
    assert PATCHES[0].read_text(encoding="utf-8").rstrip() in page
