"""Flower's private modules are used in one file, which says when one has moved."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from fedtrellis.wire import flower_internals

ROOT = Path(__file__).resolve().parents[3]
#: What is public, and "flwr" itself is not: its modules are named.
PUBLIC = {
    *("flwr.app", "flwr.client", "flwr.clientapp", "flwr.serverapp"),
    *("flwr.clientapp.mod", "flwr.serverapp.strategy"),
}
OURS = "fedtrellis/wire/flower_internals.py"


def test_one_file_imports_what_is_private() -> None:
    folders = ("fedtrellis", "strategies", "clients", "tasks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    private = {}
    line = re.compile(r"(?m)^\s*(?:from|import) (flwr(?!_)[\w.]*)")
    for path in [ROOT / "sim.py", *files]:
        found = line.findall(path.read_text(encoding="utf-8"))
        if names := set(found) - PUBLIC:
            private[path.relative_to(ROOT).as_posix()] = names
    assert set(private) == {OURS}, private
    assert "flwr.common.logger" in private[OURS]  # the search finds something


def test_a_moved_module_is_one_clear_line() -> None:
    script = (
        "import sys, importlib.metadata as m\n"
        "import flwr.app, flwr.clientapp, flwr.serverapp.strategy\n"
        "del flwr.common.constant.ErrorCode\n"
        "m.version = {'flwr': '1.99.0'}.__getitem__\n"
        "from fedtrellis import LocalGrid\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert line.startswith("ImportError: flwr 1.99.0 does not fit fedtrellis: ")
    assert "cannot import name 'ErrorCode'" in line
    assert f"run with flwr {flower_internals.TESTED_FLOWER[-1]}" in line
