"""Records read back, listed and compared: three runs of three methods, made once."""

import os
import pickle
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

import fedtrellis
import sim
from fedtrellis.command_line import main
from fedtrellis.runs import (
    Run,
    compare,
    find_runs,
    grouped,
    interval,
    load_run,
    names,
    spread,
)
from tests.harness import history_of, model_of, refused

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


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings, over seeds 0, 1, 2 and 1, 2, 3; nobody reads what is printed."""
    path = tmp_path_factory.mktemp("seeded")
    read, write = os.pipe()
    os.close(read)
    for config, seeds in zip((CONFIGS[0], CONFIGS[2]), ("0..2", "1,2,3"), strict=True):
        common = f'task="lasso" rounds={ROUNDS} reference=true picture=false '
        words = ["--nodes", "3", "--out", str(path), "--seeds", seeds]
        with redirect_stdout(os.fdopen(os.dup(write), "w")):
            assert main(["run", *words, "-c", common + config]) == 0
    os.close(write)
    return path


def test_runs_of_several_seeds_are_one_line_a_mean_and_an_interval(
    seeded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = find_runs(seeded)
    groups = grouped(runs[::-1])
    assert [sorted(run.seed for run in group) for group in groups] == [
        [1, 2, 3],
        [0, 1, 2],
    ]
    assert main(["runs", str(seeded)]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    losses = [run.summary["metrics"]["loss"] for run in runs[:3]]
    assert len(lines) == 2
    assert f"0..2    {spread(losses)} " in lines[0]
    # by SciPy's own interval
    low, high = stats.t.interval(0.95, 2, np.mean(losses), stats.sem(losses))
    assert np.allclose(interval(losses), (np.mean(losses), (high - low) / 2))

    csv = tmp_path / "runs.csv"
    assert main(["compare", str(seeded), "--csv", str(csv), "--metric", "loss"]) == 0
    shown = capsys.readouterr().out
    frame = pd.read_csv(csv)
    assert frame["seed"].tolist() == [0, 1, 2, 1, 2, 3]
    assert frame["bytes_up"].tolist() == [
        run.columns()["bytes_up"].sum() for run in runs
    ]
    one, other = (
        part.set_index("seed")["loss"] for _, part in frame.groupby("setting")
    )
    pairs = spread((other - one).dropna().tolist())
    assert "Difference from fedfw, paired by seed" in shown
    (line,) = (x for x in shown.splitlines() if x.startswith("projected-fedavg  1..2"))
    assert line.endswith(pairs)


def test_a_curve_is_the_median_of_its_seeds_in_a_band_over_what_was_asked_for(
    seeded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: figures.append(figure)
    )
    groups = grouped(find_runs(seeded))
    compare(groups, tmp_path / "a.png", "bytes", "gap")
    line, columns = figures[0].axes[0].lines[1], groups[1][0].columns()
    sent = np.cumsum(columns["bytes_up"] + columns["bytes_down"])
    assert line.get_label() == names(groups)[1]
    assert np.array_equal(line.get_xdata(), sent / 1e6)
    ended = groups[0][0]
    del ended.history[-1]  # one that needed a round less stays where it was
    compare(groups, tmp_path / "b.png")
    (axes,) = figures[1].axes
    assert axes.get_ylabel() == "F(x̄) − F*"  # all know that of the one problem
    found = [
        run.columns()["loss"] - run.summary["reference_optimum"] for run in groups[0]
    ]
    found[0] = np.append(found[0], found[0][-1])
    assert len(axes.lines) == len(axes.collections) == 2
    assert np.allclose(axes.lines[0].get_ydata(), np.median(found, axis=0))
    band = axes.collections[0].get_paths()[0].get_extents()
    assert np.allclose((band.ymin, band.ymax), (np.min(found), np.max(found)))


def test_what_was_cut_short_is_counted_and_not_averaged(
    seeded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(seeded, tmp_path / "runs")
    runs = find_runs(folder)
    summary = runs[0].directory / "summary.json"
    summary.write_text(summary.read_text().replace("round limit", "diverged"))
    assert main(["compare", *(str(run.directory) for run in runs[:3])]) == 0
    kept = [run.columns()["loss"][-1] for run in runs[1:3]]
    shown = capsys.readouterr().out
    assert "1 diverged, 2 round limit" in shown
    assert main(["runs", str(folder)]) == 0
    assert f"1 diverged, 2 round limit {ROUNDS} " in capsys.readouterr().out
    assert spread(kept) in shown
    # a killed run's summary is as old as its last checkpoint
    summary.write_text('{"status": "running", "rounds": 0, "process": {}}')
    os.utime(summary, (0, 0))
    main(["runs", str(folder)])
    assert re.search(f"dead +{ROUNDS} ", capsys.readouterr().out)


def test_runs_on_different_data_are_refused_by_what_differs(
    runs: list[Run], seeded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = str(runs[0].directory)
    others = [run.directory for run in find_runs(seeded)]
    assert main(["compare", first, str(others[0])]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    why = "the runs are on different data: clients = 4 and 3; --different-data"
    assert why in line
    assert main(["compare", first, str(others[0]), "--different-data"]) == 0
    assert "clients=4" in capsys.readouterr().out
    assert main(["compare", str(others[0]), str(others[-1])]) == 1
    assert "seed = 0 and 3" in capsys.readouterr().err


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
    refused(r"history\.jsonl cannot be read", lambda: load_run(record))


def test_a_record_of_junk_takes_one_line_and_the_others_are_listed(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, junk in (
        ("summary.json", b"{"),
        ("summary.json", b"[1]"),
        ("summary.json", b'{"metrics": 3}'),
        ("summary.json", b'{"metrics": {"loss": "x"}}'),
        ("config.toml", b"x = "),
        ("history.jsonl", b"\xff\x00"),
        ("history.jsonl", b"3\n"),
    ):
        record = shutil.copytree(runs[0].directory, tmp_path / "record")
        (record / name).write_bytes(junk)
        shutil.copytree(runs[1].directory, tmp_path / "whole")
        assert main(["runs", str(tmp_path)]) == 0
        bad, _, good = capsys.readouterr().out.splitlines()
        assert bad.startswith("unreadable ")
        assert f"{record / name} cannot be read: " in bad
        assert good.startswith("round limit ")
        shutil.rmtree(tmp_path)


@pytest.mark.parametrize("junk", [b"hello", pickle.dumps({}), b"PK\x03\x04", b""])
def test_what_is_no_archive_is_never_advised_to_be_loaded_unsafely(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], junk: bytes
) -> None:
    record = shutil.copytree(runs[0].directory, tmp_path / "record")
    (record / "model.npz").write_bytes(junk)
    (record / "checkpoint.npz").write_bytes(junk)
    for arguments in (
        ["predict", str(record), "table.csv"],
        ["resume", str(record)],
        ["run", "--nodes", "4", "-c", f'task="lasso" initial-model="{record}"'],
    ):
        assert main([*arguments]) == 1
        line = capsys.readouterr().err.splitlines()[-1]
        assert "it is no .npz file" in line
        assert "pickle" not in line


def test_a_config_holds_the_settings_of_its_run_alone(runs: list[Run]) -> None:
    for run in runs:
        groups = {key.split(".")[0] for key in run.settings if "." in key}
        assert groups == {run.settings["method"], "lasso", "data"}
