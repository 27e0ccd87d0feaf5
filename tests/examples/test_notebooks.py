"""The notebooks run: as scripts, and under Jupyter's kernel with the slow tests."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import sim

ROOT = Path(sim.__file__).parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_as_a_script(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for cell in cells(path):
        exec("".join(cell["source"]), names)
    assert names["model"].gap_ < 1e-4
    printed = capsys.readouterr().out
    assert "largest difference" in printed
    pooled = names["pooled"].coef_
    assert names["model"].coef_ == pytest.approx(pooled, abs=1e-3 * abs(pooled).max())


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_under_jupyter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT)]))
    read: Any = nbformat.read
    notebook = read(path, as_version=4)
    NotebookClient(notebook, timeout=300).execute()
    ran = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in ran)
