"""The notebooks run, as scripts."""

import json
from pathlib import Path
from typing import Any

import pytest

import sim

ROOT = Path(sim.__file__).parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_as_a_script(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert "largest difference" in capsys.readouterr().out
    if "record" in names:  # which compares with what is exported, too
        assert names["record"].status == "converged"
        assert names["difference"] < 1e-4
        return
    assert names["model"].gap_ < 1e-4
    pooled = names["pooled"].coef_
    assert names["model"].coef_ == pytest.approx(pooled, abs=1e-3 * abs(pooled).max())
