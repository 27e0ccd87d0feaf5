"""Which libraries a file needs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedtrellis.settings import SettingsError
from tasks.data.readers import read_csv, read_libsvm
from tasks.data.table import Schema

BLOCKED = """
import sys
sys.modules.update(pandas=None, sklearn=None)
from tasks import make_task
config = {"logistic-regression.dataset": "nodes", "data.features": 2}
task = make_task("logistic-regression", config, 1, 0)
[objective] = task.node_parts({"data": sys.argv[1]}).values()
print(objective.value(objective.gradient([0.5, -1.0])))
"""


def test_numpys_archives_need_neither_pandas_nor_scikit_learn(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, features=[[1.0, 2.0], [3.0, -1.0]], labels=[0, 1])
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert np.isfinite(float(done.stdout))


@pytest.mark.parametrize(
    ("library", "name", "extra"),
    [("pandas", "pandas", "data"), ("sklearn", "scikit-learn", "sklearn")],
)
def test_what_a_text_file_needs(
    monkeypatch: pytest.MonkeyPatch, library: str, name: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    path = Path("a.csv")
    match = rf'a\.csv, .* needs {name}: pip install "fedtrellis\[{extra}\]"'
    with pytest.raises(SettingsError, match=match):
        (read_csv if name == "pandas" else read_libsvm)(path, Schema(0))


@pytest.mark.parametrize("rows", [3, 12_000])
def test_a_file_of_several_blocks(tmp_path: Path, rows: int) -> None:
    """Blocks are joined in order, and count rows over their bounds."""
    path = tmp_path / "a.csv"
    lines = [f"{i},{i / 7!r},{-i}" for i in range(rows)]
    path.write_text("\n".join(["a,b,label", *lines, "", ""]) + "\n")
    table = read_csv(path, Schema(2, target="number"))
    numbers = np.arange(rows)
    np.testing.assert_array_equal(
        table.features, np.column_stack([numbers, numbers / 7])
    )
    np.testing.assert_array_equal(table.targets, -numbers)
    assert table.features.flags.c_contiguous
    lines[-1] = f"{rows},x,1"
    path.write_text("\n".join(["a,b,label", *lines]) + "\n")
    with pytest.raises(SettingsError, match=rf"row {rows}, column 'b': must be a"):
        read_csv(path, Schema(2, target="number"))
