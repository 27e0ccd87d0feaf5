"""The patches from FedAvg are small, and their apps run in this process."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "examples/swap-fedavg"
PATCHES = sorted(APP.glob("to-*.diff"))
MOST = 12

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


def patched(patch: Path, folder: Path) -> Path:
    app = folder / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    text = patch.read_text(encoding="utf-8")
    subprocess.run(
        ["git", "apply", "-p1", "-"], cwd=app, input=text, text=True, check=True
    )
    return app


def run(app: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(app)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: str(path.stem))
def test_a_patch_is_small_and_its_app_learns(patch: Path, tmp_path: Path) -> None:
    lines = patch.read_text(encoding="utf-8").splitlines()
    for sign, header in (("+", "+++"), ("-", "---")):
        own = [line for line in lines if line[:1] == sign and line != sign]
        assert len([line for line in own if not line.startswith(header)]) <= MOST
    shown = run(patched(patch, tmp_path), tmp_path)
    found = re.search(r"([\d.]+) from the truth", shown.stdout)
    assert found, shown.stdout
    assert float(found[1]) < 0.5  # from 2.0
    # every round is logged; FedGiA stops by itself
    assert 5 <= len(re.findall(r"(?i)round [1-9]\d*/", shown.stderr)) <= 10


def test_secure_sums_take_six_lines_and_give_fedavg_s_model(tmp_path: Path) -> None:
    patch = APP / "to-secure-sums.diff"
    lines = patch.read_text("utf-8").splitlines()
    changed = [line for line in lines if line[0] in "+-"]
    assert len([one for one in changed if one[:3] not in ("+++", "---")]) <= 6
    shown = [run(app, tmp_path) for app in (APP, patched(patch, tmp_path))]
    assert shown[0].stdout == shown[1].stdout
    assert "Secure sums over fixed blocks" in shown[1].stderr
    distances = [re.findall(r"'distance': ([\d.e-]+)", one.stderr) for one in shown]
    plain, found = ([float(value) for value in one] for one in distances)
    assert found == pytest.approx(plain, abs=1e-9)
    assert len(found) >= 11


def test_the_page_shows_the_first() -> None:
    page = (ROOT / "docs/plug-in.md").read_text(encoding="utf-8")
    assert PATCHES[0].read_text(encoding="utf-8").rstrip() in page
