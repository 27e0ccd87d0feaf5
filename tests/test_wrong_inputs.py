"""Every wrong command is answered in one line, at once, and not with success."""

import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedtrellis.command_line import main
from fedtrellis.runs import find_runs

TABLE = tomllib.loads(Path(__file__).with_name("wrong_inputs.toml").read_text())
PLOT = "fedtrellis.server.records.plot_convergence"


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Go to a folder with the table's files and records, which is the home, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home := tmp_path_factory.mktemp("wrong"))
        patch.setenv("HOME", str(home))
        patch.setattr(PLOT, lambda *rest, **options: None)
        for name, text in TABLE["files"].items():
            Path(name).write_text(text)
        for name, config in TABLE["runs"].items():
            config = config.replace("$PWD", str(home))
            assert main(["run", "--nodes", "4", "--out", "new", "-c", config]) == 0
            next(Path("new").iterdir()).rename(name)
        for name, (file, text) in TABLE["broken"].items():
            path = Path(shutil.copytree("lasso", name), file)
            path.write_text(text) if text else path.unlink()
        whole = Path("lasso/checkpoint.npz").read_bytes()
        for name, data in {
            "cut": whole[:-300],
            "other": Path("fedgia/checkpoint.npz").read_bytes(),
        }.items():
            record = shutil.copytree("lasso", f"{name}_checkpoint")
            Path(record, "checkpoint.npz").write_bytes(data)
        yield


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("line", "why"), TABLE["cases"])
def test_it_is_one_line(line: str, why: str, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        status: Any = main(shlex.split(line.replace("$PWD", os.getcwd())))
    except SystemExit as usage:
        status = usage.code
    (said,) = capfd.readouterr().err.splitlines()
    assert status in (1, 2)
    assert re.match(r"fedtrellis( [a-z-]+)?: error: ", said)
    assert why in said
    errors = [run.summary["error"] for run in find_runs()]  # a refused one leaves none
    assert not any(error.startswith("SettingsError") for error in errors)
