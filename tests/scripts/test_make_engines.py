"""The script that makes other engines' environments, without what it downloads."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from benchmarks.engines.comparison import ENGINES

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/make-engines.sh"


def test_an_engine_that_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), "another"],
        env={**os.environ, "FEDTRELLIS_ENGINES": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no engine another" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_script_makes_every_environment_that_a_row_needs() -> None:
    made = set(re.findall(r"^ +(\w+)\) packages=", SCRIPT.read_text(), re.MULTILINE))
    assert made == {engine.environment for engine in ENGINES} - {""}
