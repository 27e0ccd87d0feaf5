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
