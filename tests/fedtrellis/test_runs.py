"""Records read back, listed and compared: three runs of three methods, made once."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedtrellis
import sim
from fedtrellis.command_line import main
from fedtrellis.runs import Run, compare, find_runs, load_run, names
from fedtrellis.settings import SettingsError
from tests.harness import history_of, model_of

ROUNDS = 4
CONFIGS = (
    "",
    'fedfw.variant="plain"',
    'method="projected-fedavg" projected-fedavg.local-step-size=1e-5',
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    path = tmp_path_factory.mktemp("records")
    for config in CONFIGS:
        common = f'task="lasso" rounds={ROUNDS} reference=true '
        assert not sim.app.command_line(
            ["--nodes", "4", "--out", str(path), "-c", common + config]
        )
    return find_runs(path)


def test_a_run_is_read_back_as_its_files_have_it(runs: list[Run]) -> None:
    for run in runs:
        again, raw = fedtrellis.load_run(str(run.directory)), history_of(run.directory)
        assert (again.status, again.settings["task"]) == ("round limit", "lasso")
        columns = again.columns()
        assert columns["round"].tolist() == list(range(ROUNDS + 1))
        assert columns["bytes_up"].tolist() == [line["bytes_up"] for line in raw]
        losses = [line["evaluation"]["loss"] for line in raw]
        assert columns["loss"].tolist() == losses
        assert again.reference == pytest.approx(again.summary["reference_optimum"])
        assert again.model is not None
        assert np.array_equal(again.model["0"], model_of(run.directory))


def test_curves_are_the_runs_over_what_was_asked_for(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: figures.append(figure)
    )
    compare(runs, tmp_path / "a.png", "bytes", "gap")
    compare(runs, tmp_path / "b.png")
    columns = runs[1].columns()
    line = figures[0].axes[0].lines[1]
    sent = np.cumsum(columns["bytes_up"] + columns["bytes_down"])
    assert line.get_label() == names(runs)[1]
    assert np.array_equal(line.get_xdata(), sent / 1e6)
    assert np.array_equal(line.get_ydata(), columns["gap"])
    # all know F* of the one problem
    assert figures[1].axes[0].get_ylabel() == "F(x̄) − F*"
    losses = figures[1].axes[0].lines[1].get_ydata()
    assert runs[1].reference is not None
    assert np.allclose(losses, columns["loss"] - runs[1].reference)


def test_what_cannot_be_compared_is_said_in_one_line(
    runs: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(runs[0].directory)
    for arguments, message in (
        (["compare", "/nowhere"], "'/nowhere' is not the record of a run"),
        (["compare", run, "--metric", "accuracy"], "--metric = 'accuracy'"),
        (["compare", run, "--out", "/nowhere/x.png"], "No such file or directory:"),
        (["runs", "/nowhere"], "'/nowhere' is not a directory"),
    ):
        assert main(arguments) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_half_a_line_is_a_run_that_goes_on_and_a_broken_file_is_named(
    runs: list[Run], tmp_path: Path
) -> None:
    record = shutil.copytree(runs[0].directory, tmp_path / "record")
    history = record / "history.jsonl"
    text = history.read_text()
    history.write_text(text[: len(text) - 20])
    assert len(load_run(record).history) == ROUNDS
    history.write_text(text.rstrip("\n"))  # whole, though somebody left the end out
    assert len(load_run(record).history) == ROUNDS + 1
    history.write_text("{}\n" + text)
    with pytest.raises(SettingsError, match=r"history\.jsonl cannot be read"):
        load_run(record)
