"""Fixtures that start Flower's processes, and the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flower_process import ROOT, Flower


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    command = Flower(tmp_path_factory.mktemp("flower"))
    yield command
    command.stop()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it would be published."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir")
    subprocess.run(
        [sys.executable, "-m", *build, str(folder), str(ROOT)],
        env=os.environ
        | {"FEDTRELLIS_REPOSITORY": "https://example.org/us/fedtrellis/"},
        check=True,
        timeout=250,
    )
    (path,) = folder.glob("*.whl")
    return path
