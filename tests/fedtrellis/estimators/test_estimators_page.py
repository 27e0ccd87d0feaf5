"""The page on estimators: its program runs."""

import re
from pathlib import Path
from typing import Any

import sim

PAGE = Path(sim.__file__).parent / "docs" / "estimators.md"


def test_ten_lines_from_split_columns_to_a_score() -> None:
    (program,) = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert len([line for line in program.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["accuracy"] > 0.95
    assert names["model"].gap_ < 1e-8
