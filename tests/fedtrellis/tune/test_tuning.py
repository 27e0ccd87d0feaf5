"""The search for settings: its space, its metrics, its choice, and the command."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import sim
from fedtrellis.app.directory import read_config
from fedtrellis.command_line import main
from fedtrellis.server.callbacks import RoundRecord
from fedtrellis.settings import SettingsError
from fedtrellis.tune.ranking import METRICS, Ranking, Trial, divergence, measure, rank
from fedtrellis.tune.report import plot_front, show
from fedtrellis.tune.search_space import Dimension, SearchSpace
from fedtrellis.tune.trials import Job, perform

ROOT = Path(__file__).resolve().parents[3]


# -------------------------------------------------------------------------- metrics


def history(losses: list[float], **more: Any) -> list[RoundRecord]:
    """Round 0 and so on, a tenth of a second each, but for the first: nine."""
    return [
        RoundRecord(
            round=i,
            seconds=0.0 if i == 0 else 9.0 if i == 1 else 0.1,
            evaluation={"loss": loss},
            **more,
        )
        for i, loss in enumerate(losses)
    ]


def test_the_metrics_of_a_run_worked_out_by_hand() -> None:
    """Losses 10, 6, 3, 2, 2, 1, 1.5; accuracy 0.5, 0.9, 0.7 in rounds 1, 3, 6.

    Last five: (3 + 2 + 2 + 1 + 1.5)/5 = 1.9. Differences −4, −3, −1, 0, −1, 0.5: mean
    −17/12, mean of squares 27.25/6. The lowest is 1, so 90 % of the way is at 1.9, and
    round 5 is the first below. Round trips 2, 3, 3, 3, 3 after round 1: 2.8.
    """
    records = history([10, 6, 3, 2, 2, 1, 1.5])
    for number, accuracy in ((1, 0.5), (3, 0.9), (6, 0.7)):
        records[number].client_evaluation["accuracy"] = accuracy
    for record in records:
        record.round_trips = 2 if record.round <= 2 else 3
    assert measure(records) == pytest.approx(
        {
            "seconds-0": 0.1,
            "seconds-0.2575": 0.1 + 0.2575 * 2.8,
            "seconds-0.8": 0.1 + 0.8 * 2.8,
            "loss": 1.9,
            "accuracy": 0.9,
            "volatility": math.sqrt(27.25 / 6 - (17 / 12) ** 2),
            "rounds-to-90": 5.0,
        }
    )
    assert divergence(records) == ""


def test_a_short_run_and_one_evaluated_now_and_then() -> None:
    short = measure(history([4.0, 2.0]))
    # round 1 is all there is; the start's loss is no result
    assert short["seconds-0"] == 9.0
    assert short["loss"] == 2.0
    assert "accuracy" not in short
    records = history([8.0, math.nan, 4.0, math.nan, 2.0])
    for record in records[1::2]:
        record.evaluation = {}
    metrics = measure(records)
    assert metrics["rounds-to-90"] == 4.0
    assert metrics["loss"] == 3.0
    assert metrics["volatility"] == 1.0  # of −4 and −2


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ([1.0, 2.0, math.nan, 0.5], "loss nan in round 2"),
        ([1.0, 0.5, math.inf], "loss inf in round 2"),
        ([1.0, 0.1, 3.0, 3.0, 3.0, 3.0, 3.0], "not below the first 1"),
        ([1.0, 1.0, 1.0], "not below the first 1"),
    ],
)
def test_divergent_runs_are_told(losses: list[float], reason: str) -> None:
    assert reason in divergence(history(losses))


def test_a_run_without_losses_is_refused() -> None:
    with pytest.raises(SettingsError, match="1 rounds with the metric 'loss'"):
        measure(history([1.0]))


# ---------------------------------------------------------------------------- space

CONFIG = {"steps": 5, "size": 0.1, "name": "a", "flag": True, "deep.size": 1.0}


def space(tmp_path: Path, text: str) -> SearchSpace:
    path = tmp_path / "search.toml"
    path.write_text(text, encoding="utf-8")
    return SearchSpace.read(path, CONFIG)


def test_a_search_file_gives_settings_of_the_types_of_the_defaults(
    tmp_path: Path,
) -> None:
    search = space(
        tmp_path,
        """
        trials = 7
        name = { values = ["a", "b"] }
        flag = { values = [true, false] }
        [steps]
        low = 1
        high = 9
        [size]
        low = 1
        high = 1000
        [deep.size]
        low = -1
        high = 1.0
        scale = "linear"
        """,
    )
    assert search.trials == 7
    drawn = search.draw(400, seed=3)
    assert len(drawn) == 400
    assert drawn[:50] == search.draw(50, seed=3)
    assert drawn[:50] != search.draw(50, seed=4)
    assert {type(one["steps"]) for one in drawn} == {int}
    assert {type(one["size"]) for one in drawn} == {float}
    assert {one["name"] for one in drawn} == {"a", "b"}
    assert {one["flag"] for one in drawn} == {True, False}
    sizes = np.array([one["size"] for one in drawn])
    assert 1 <= sizes.min() < sizes.max() <= 1000
    # a third of log-uniform values in each decade: 133 of 400, standard deviation 9.4
    counts, _ = np.histogram(np.log10(sizes), bins=[0, 1, 2, 3])
    assert (np.abs(counts - 400 / 3) < 5 * 9.5).all()
    deep = np.array([one["deep.size"] for one in drawn])
    # uniform on [−1, 1]: standard deviation of the mean 0.58/20
    assert abs(deep.mean()) < 5 * 0.03
    steps = {one["steps"] for one in drawn}
    assert steps == set(range(1, 10))


def test_a_small_space_is_gone_through_once(tmp_path: Path) -> None:
    search = space(tmp_path, 'name.values = ["a", "b"]\nsteps.values = [1, 2, 3]')
    drawn = search.draw(100, seed=0)
    assert sorted((one["name"], one["steps"]) for one in drawn) == [
        (name, steps) for name in "ab" for steps in (1, 2, 3)
    ]
    whole = Dimension("steps", (), 1, 4, "linear", True)
    assert sorted(one["steps"] for one in SearchSpace((whole,)).draw(100, seed=0)) == [
        1,
        2,
        3,
        4,
    ]


def test_a_setting_that_finds_itself_is_searched_like_others(tmp_path: Path) -> None:
    """Its default, "auto", says nothing of its kind."""
    path = tmp_path / "search.toml"
    path.write_text(
        "fedfw.penalty = {low = 1, high = 10}\n"
        'fedfw.schedule.values = ["auto", "constant"]\n'
        'fedfw.dual-penalty.values = ["auto", 2]\n'
    )
    search = SearchSpace.read(path, sim.app.default_config())
    drawn = search.draw(50, seed=0)
    assert all(1.0 <= one["fedfw.penalty"] <= 10.0 for one in drawn)
    assert {type(one["fedfw.penalty"]) for one in drawn} == {float}
    assert {one["fedfw.schedule"] for one in drawn} == {"auto", "constant"}
    assert {one["fedfw.dual-penalty"] for one in drawn} == {"auto", 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step.values = [1]", r"'step' is not known to the app \(did you mean 'steps'"),
        ("deep.sise.values = [1]", "'deep.sise' is not known .* 'deep.size'"),
        ("steps = 3", "steps = 3 must be a table"),
        ("steps.values = []", r"steps: values = \[\] must be a list with an entry"),
        ("steps.values = [1.5]", "steps = 1.5 must be a whole number"),
        ("steps.values = [true]", "steps = True must be a whole number"),
        ("name.values = [1]", "name = 1 must be a text"),
        ("size.values = [nan]", "size = nan must be a number"),
        ("name.low = 1", "name: its default 'a' is no number; give values"),
        ("flag.low = 1", "flag: its default True is no number; give values"),
        ("size.low = 1", "size: high is missing"),
        ("size = {low = 2, high = 1}", r"size: low = 2.0 must be below high = 1.0"),
        ("size = {low = 0, high = 1}", "low = 0.0 must be above 0 for scale = 'log'"),
        ("size = {low = 1, hihg = 2}", r"'hihg' is not known \(did you mean 'high'"),
        ("size = {low = 1, high = 2, scale = 'lin'}", "scale = 'lin' .* log"),
        ("size = {low = 1, values = [2]}", "values goes without low"),
        ("trials = 0\nsize.values = [1]", "trials = 0 must be .* at least 1"),
        ("trials = 5", "names no key"),
        ("size = ", "Invalid value"),
    ],
)
def test_a_bad_search_file_is_one_clear_error(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        space(tmp_path, text)
    assert "\n" not in str(caught.value)


# --------------------------------------------------------------------------- choice


def trial(number: int, status: str = "completed", **metrics: float) -> Trial:
    values = dict.fromkeys(METRICS, 1.0) | {
        key.replace("_", "-"): value for key, value in metrics.items()
    }
    return Trial(number, {"size": number / 10}, status, "so", values)


def test_the_front_comes_first_by_grade_then_the_others_by_loss() -> None:
    """Only loss and volatility differ: trials 1, 4, 5 trade one for the other.

    Scaled they are (0, 1), (1/2, 0.9) and (1, 0) as in the test of the grades, so the
    other five metrics have coefficient 1 and trial 4 the largest sum.
    """
    trials = [
        trial(5, loss=1.0, volatility=6.0),
        trial(2, loss=4.0, volatility=6.0),
        trial(1, loss=3.0, volatility=1.0),
        trial(7, "failed"),
        trial(4, loss=2.0, volatility=1.5),
        trial(3, loss=3.5, volatility=6.0),
    ]
    ranking = rank(trials)
    assert [one.number for one in ranking.trials] == [4, 1, 5, 3, 2]
    assert ranking.front == [True, True, True, False, False]
    assert ranking.grades[:3] == pytest.approx(
        [(5 + 1 / 1.5 + 1 / 1.1) / 7, (5 + 1.5) / 7, (5 + 1.5) / 7]
    )
    assert ranking.metrics == list(METRICS)


def test_accuracy_is_left_out_where_a_run_has_none() -> None:
    without = trial(2)
    del without.metrics["accuracy"]
    assert "accuracy" not in rank([trial(1), without]).metrics
    with pytest.raises(SettingsError, match="none of 2 trials is left; trial 1 failed"):
        rank([trial(2, "diverged"), trial(1, "failed")])


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_fits_the_terminal(width: int) -> None:
    trials = [trial(1), trial(2, loss=2.0), trial(3, "diverged")]
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    show(console, rank(trials), trials)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert ("at 0.8 s" in text) == (width == 160)
    assert "at 0.2575 s" in text
    assert "left out: trial 3 diverged: so" in text
    assert text.index("1.000") < text.index("│     2 │")


@pytest.mark.parametrize("count", [1, 2, 30])
def test_the_picture_is_drawn_for_any_number_of_trials(
    tmp_path: Path, count: int
) -> None:
    rng = np.random.default_rng(count)
    trials = [
        trial(i, loss=10 ** rng.uniform(-3, 1), seconds_0=rng.uniform())
        for i in range(1, count + 1)
    ]
    ranking: Ranking = rank(trials)
    plot_front(tmp_path / "pareto.png", ranking, "a title")
    assert (tmp_path / "pareto.png").read_bytes()[:4] == b"\x89PNG"


# -------------------------------------------------------------------------- command

SEARCH = """
[fedgia.selected-fraction]
low = 0.1
high = 1.0

[fedgia.local-steps]
values = [1, 5]
"""
FIXED = 'method="fedgia" task="logistic-regression" rounds=8'


def tune(*arguments: str | int | Path) -> list[str]:
    return [sys.executable, "-m", "fedtrellis", "tune", *map(str, arguments)]


def lines(out: Path) -> list[dict[str, Any]]:
    text = (out / "trials.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def search(tmp_path: Path) -> Path:
    path = tmp_path / "search.toml"
    path.write_text(SEARCH, encoding="utf-8")
    return path


def test_a_search_on_this_repository_from_end_to_end(
    tmp_path: Path, search: Path
) -> None:
    out = tmp_path / "out"
    options = ("--search", search, "--nodes", "4", "-c", FIXED, "--out", out)
    done = subprocess.run(
        tune(*options, "--trials", "3"), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Recommended first" in done.stdout
    first = lines(out)
    assert [line["trial"] for line in first] == [1, 2, 3]
    for line in first:
        assert line["status"] == "completed"
        assert set(line["metrics"]) == set(METRICS)
        record = out / line["record"]
        config = read_config([str(record / "config.toml")])
        assert config["rounds"] == 8
        for key, value in line["settings"].items():
            assert config[key] == value
        summary = json.loads((record / "summary.json").read_text(encoding="utf-8"))
        assert len(list(record.glob("history.jsonl"))) == 1
        assert summary["rounds"] == 8
    assert (out / "pareto.png").read_bytes()[:4] == b"\x89PNG"

    # the recommended settings are a run config
    best = read_config([str(out / "best.toml")])
    assert best["method"] == "fedgia"
    searched = ("fedgia.selected-fraction", "fedgia.local-steps")
    settings = {key: best[key] for key in searched}
    (chosen,) = [line for line in first if line["settings"] == settings]
    assert (
        sim.app.command_line(
            [
                "--nodes",
                "4",
                "-c",
                str(out / "best.toml"),
                "--out",
                str(tmp_path / "again"),
            ]
        )
        == 0
    )
    (again,) = (tmp_path / "again").iterdir()
    losses = [
        [json.loads(line)["evaluation"]["loss"] for line in path.open()]
        for path in (again / "history.jsonl", out / chosen["record"] / "history.jsonl")
    ]
    assert losses[0] == losses[1]

    # it goes on, in two processes, after a line that was cut off
    text = (out / "trials.jsonl").read_text(encoding="utf-8")
    (out / "trials.jsonl").write_text(text[:-40], encoding="utf-8")
    done = subprocess.run(
        tune(*options, "--trials", "5", "--jobs", "2"),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "2 trials are already in" in done.stderr
    after = lines(out)
    assert after[:2] == first[:2]
    assert sorted(line["trial"] for line in after) == [1, 2, 3, 4, 5]
    (third,) = [line for line in after if line["trial"] == 3]
    # the same run again, in another process: equal but for its times and its name
    assert third["settings"] == first[2]["settings"]
    assert third["metrics"]["loss"] == first[2]["metrics"]["loss"]


@pytest.mark.parametrize(
    ("number", "jobs"),
    [
        (signal.SIGINT, 1),
        (signal.SIGTERM, 2),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_search_keeps_what_was_done(
    tmp_path: Path, search: Path, number: int, jobs: int
) -> None:
    out = tmp_path / "out"
    command = tune("--search", search, "--out", out, "--jobs", jobs, "--nodes", "4")
    command += ["-c", FIXED.replace("rounds=8", "rounds=60"), "--trials", "500"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell's background jobs ignore it, and so would this one
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "trials.jsonl").exists() and len(lines_so_far(out)) >= 2:
            break
        time.sleep(0.05)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr
    assert "are kept" in stderr
    assert "Traceback" not in stderr
    assert 2 <= len(lines(out)) < 500
    assert not (out / "best.toml").exists()
    # its workers have gone too: nobody is left in its process group
    for _ in range(100):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("a worker is still there")


def lines_so_far(out: Path) -> list[str]:
    return (out / "trials.jsonl").read_text(encoding="utf-8").splitlines()


def test_diverged_and_failed_trials_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of 1 000 diverge, and a batch fraction of 3 is refused by the app."""
    search = tmp_path / "search.toml"
    search.write_text(
        "fedavg-gd.step-size.values = [0.1, 1e3]\n"
        "fedavg-gd.batch-fraction.values = [0.5, 3.0]"
    )
    arguments = ["tune", str(ROOT), "--search", str(search), "--nodes", "3"]
    arguments += ["--out", str(tmp_path / "out"), "-c"]
    config = 'method="fedavg-gd" task="logistic-regression" rounds=6'
    assert main([*arguments, config]) == 0
    status = {
        tuple(line["settings"].values()): (line["status"], line["reason"])
        for line in lines(tmp_path / "out")
    }
    assert status[0.1, 0.5] == ("completed", "")
    assert status[1e3, 0.5][0] == "diverged"
    failed, reason = status[0.1, 3.0]
    assert failed == "failed"
    assert "fedavg-gd.batch-fraction = 3.0 must be" in reason
    shown = capsys.readouterr().out
    assert "left out: trial" in shown
    assert "diverged: " in shown
    assert "fedavg-gd.batch-fraction = 3.0 must be" in shown
    logs = [path.read_text() for path in (tmp_path / "out").glob("runs/*/log.txt")]
    assert sum("SettingsError" in log for log in logs) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "metod=1"], "key = 'metod' is not known .* 'method'"),
        (["-c", "fedgia.local-steps=3"], "local-steps = 3: the search is over it"),
        (["-c", 'results-dir="x"'], "results-dir cannot be set here"),
        (["-c", 'resume="x"'], "resume cannot be set here"),
        (["-c", "nonsense"], "-c 'nonsense'"),
        (["--trials", "0"], "--trials 0 must be at least 1"),
        (["--nodes", "0"], "--nodes 0 must be at least 1"),
        (["--jobs", "0"], "--jobs 0 must be at least 1"),
        (["--search", "nowhere.toml"], "--search 'nowhere.toml': .*No such file"),
        (["-c", 'method="fedgai"'], "none of 2 trials is left; .* 'fedgia'"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path,
    search: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    common = ["tune", str(ROOT), "--search", str(search), "--trials", "2"]
    assert main([*common, "--out", str(tmp_path / "out"), *arguments]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("fedtrellis tune: error: ")
    assert re.search(message, error)


@pytest.mark.parametrize(
    ("project", "message"),
    [
        (None, "is no app"),
        ("", r"serverapp = None must be 'module:object'"),
        (
            '[tool.flwr.app.components]\nserverapp = "no_such:a"\nclientapp = "b:b"',
            "serverapp = 'no_such:a' .* ModuleNotFoundError",
        ),
        (
            '[tool.flwr.app.components]\nserverapp = "json:dumps"\nclientapp = "b:b"',
            "is a function, not a ServerApp",
        ),
        (
            '[tool.flwr.app.components]\nserverapp = "sim:server_app"\n'
            'clientapp = "sim:client_app"\n[tool.flwr.app.config]\nrounds = 3',
            "has no key 'results-dir'",
        ),
    ],
)
def test_a_directory_that_cannot_be_tuned_is_named(
    tmp_path: Path,
    search: Path,
    capsys: pytest.CaptureFixture[str],
    project: str | None,
    message: str,
) -> None:
    app = tmp_path / "app"
    app.mkdir()
    if project is not None:
        (app / "pyproject.toml").write_text(project)
    assert main(["tune", str(app), "--search", str(search)]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert re.search(message, error)


def test_another_search_is_not_mixed_into_an_old_one(
    tmp_path: Path, search: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    common = ["tune", str(ROOT), "--search", str(search), "--out", str(out)]
    common += ["--nodes", "3", "--trials", "1", "-c", FIXED]
    assert main(common) == 0
    before = (out / "trials.jsonl").read_text()
    for more, message in (
        (["--nodes", "2"], "nodes = 3 instead of 2"),
        (["--seed", "7"], "seed = 0 instead of 7"),
        (["-c", "fedgia.sigma-scale=2.0"], "config = "),
    ):
        assert main([*common, *more]) == 1
        assert message in capsys.readouterr().err.splitlines()[-1]
    search.write_text(SEARCH.replace("low = 0.1", "low = 0.2"))
    assert main(common) == 1
    assert "another search" in capsys.readouterr().err
    assert (out / "trials.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "out cannot be written: .*File exists"),
        ("[1]", "search.json cannot be read: it says nothing of a search"),
        ("{", "search.json cannot be read"),
    ],
)
def test_what_lies_in_the_way_of_a_search_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    found: str | None,
    message: str,
) -> None:
    out, search = tmp_path / "out", tmp_path / "search.toml"
    search.write_text("[rounds]\nvalues = [1]\n")
    if found is None:
        out.touch()
    else:
        out.mkdir()
        (out / "search.json").write_text(found)
    assert main(["tune", str(ROOT), "--search", str(search), "--out", str(out)]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert re.search(message, error)


# ------------------------------------------------------------------ an app of one's own


def blocks() -> dict[str, str]:
    """The files of the documentation's app, by the names in their first lines."""
    page = (ROOT / "docs/tuning.md").read_text(encoding="utf-8")
    found = re.findall(r"```\w+\n# (\S+)\n(.*?)```", page, flags=re.DOTALL)
    # as it is written from inside the repository
    return {
        name: re.sub(r"from fedtrellis\.(strategies|clients) ", r"from \1 ", text)
        for name, text in found
    }


@pytest.fixture
def own_app(tmp_path: Path) -> Path:
    app = tmp_path / "my-app"
    app.mkdir()
    for name, text in blocks().items():
        (app / name).write_text(text, encoding="utf-8")
    # every test has a module of its own
    unique = f"my_app_{tmp_path.name.replace('-', '_')}"
    (app / "my_app.py").rename(app / f"{unique}.py")
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace("my_app:", f"{unique}:"))
    return app


def test_the_documentations_own_app_is_tuned(own_app: Path, tmp_path: Path) -> None:
    assert {path.name for path in own_app.iterdir()} >= {
        "pyproject.toml",
        "search.toml",
    }
    out = tmp_path / "out"
    search = str(own_app / "search.toml")
    options = ["--search", search, "--out", str(out), "-c", "rounds=30"]
    assert main(["tune", str(own_app), *options]) == 0
    assert len(lines(out)) == 8
    assert {"completed"} <= {line["status"] for line in lines(out)}
    best = tomllib.loads((out / "best.toml").read_text(encoding="utf-8"))
    assert set(best) == {"penalty", "rounds"}


def test_an_app_that_exits_or_leaves_no_record_fails_its_trial(
    own_app: Path, tmp_path: Path
) -> None:
    (source,) = own_app.glob("my_app_*.py")
    text = source.read_text(encoding="utf-8")
    body = "    config = context.run_config\n"
    assert body in text
    quitting = '    if config["rounds"] == 1:\n        raise SystemExit("enough")\n'
    silent = '    if config["rounds"] == 2:\n        return\n'
    source.write_text(text.replace(body, body + quitting + silent), encoding="utf-8")
    reasons = [
        perform(Job(own_app, rounds, {}, {"rounds": rounds}, 2, tmp_path)).reason
        for rounds in (1, 2)
    ]
    assert reasons[0] == "SystemExit: enough"
    assert "left no history.jsonl" in reasons[1]


def test_records_of_other_strategies_may_say_more_or_less(
    own_app: Path, tmp_path: Path
) -> None:
    (source,) = own_app.glob("my_app_*.py")
    source.write_text(
        """
import json
from pathlib import Path
import fedtrellis
from flwr.serverapp import ServerApp
client_app = fedtrellis.client_app(lambda context: None)
server_app = ServerApp()

@server_app.main()
def main(grid, context):
    folder = Path(context.run_config["results-dir"]) / "mine"
    folder.mkdir()
    print("hello from the app")
    with (folder / "history.jsonl").open("w") as file:
        for i in range(4):
            line = {"round": i, "seconds": 0.5, "evaluation": {"loss": 4.0 - i}}
            file.write(json.dumps(line | {"weather": "fair"}) + "\\n")
    (folder / "summary.json").write_text('{"status": "completed"}')
""",
        encoding="utf-8",
    )
    done = perform(Job(own_app, 1, {"penalty": 1.0}, {}, 2, tmp_path))
    assert done.status == "completed"
    assert done.record == "runs/001/mine"
    assert done.metrics["seconds-0.8"] == pytest.approx(1.3)
    assert (tmp_path / "runs/001/log.txt").read_text() == "hello from the app\n"
