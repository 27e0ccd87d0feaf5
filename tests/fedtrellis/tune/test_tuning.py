"""The search for settings: its space, metrics, grades, choice, and the command."""

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
import optuna
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from fedtrellis.command_line import main
from fedtrellis.runs import load_run
from fedtrellis.server.callbacks import RoundRecord
from fedtrellis.tune.grey_relational import pareto_front, ranked
from fedtrellis.tune.metrics import divergence, measure
from fedtrellis.tune.study import read_space

ROOT = Path(__file__).resolve().parents[3]


def test_the_metrics_of_a_run_worked_out_by_hand() -> None:
    """Losses 10, 6, 3, 2, 2, 1, 1.5; accuracy 0.5, 0.9, 0.7 in rounds 1, 3, 6.

    Last five: (3 + 2 + 2 + 1 + 1.5)/5 = 1.9. Differences −4, −3, −1, 0, −1, 0.5: mean
    −17/12, mean of squares 27.25/6. The lowest is 1, so 90 % of the way is at 1.9, and
    round 5 is the first below. Round trips 2, 3, 3, 3, 3 after round 1: 2.8. Each round
    takes a tenth of a second, but for the first.
    """
    records = [
        RoundRecord(round=i, seconds=[0.0, 9.0, *[0.1] * 5][i], evaluation={"loss": z})
        for i, z in enumerate([10, 6, 3, 2, 2, 1, 1.5])
    ]
    for number, accuracy in ((1, 0.5), (3, 0.9), (6, 0.7)):
        records[number].client_evaluation["accuracy"] = accuracy
    for record in records:
        record.round_trips = 2 if record.round <= 2 else 3
    expected = {
        "seconds-0": 0.1,
        "seconds-0.2575": 0.1 + 0.2575 * 2.8,
        "seconds-0.8": 0.1 + 0.8 * 2.8,
        "loss": 1.9,
        "accuracy": 0.9,
        "volatility": math.sqrt(27.25 / 6 - (17 / 12) ** 2),
        "rounds-to-90": 5.0,
    }
    assert measure(records) == pytest.approx(expected)
    assert divergence(records) == ""


CONFIG = {"steps": 5, "size": 0.1, "name": "a", "flag": True, "deep.size": 1.0}


def space(tmp_path: Path, text: str) -> tuple[dict[str, Any], int | None]:
    path = tmp_path / "search.toml"
    path.write_text(text, encoding="utf-8")
    return read_space(path, CONFIG | {"own": "auto"})


def test_a_search_file_s_distributions_have_the_defaults_types(tmp_path: Path) -> None:
    text = """
        trials = 7
        name.values = ["a", "b"]
        size.values = [1, 2.5]
        own.values = ["auto", 2]
        steps = {low = 1, high = 9}
        deep.size = {low = -1, high = 1, scale = "linear"}
        """
    found, trials = space(tmp_path, text)
    assert trials == 7
    assert found == {
        "name": CategoricalDistribution(["a", "b"]),
        "size": CategoricalDistribution([1.0, 2.5]),
        "own": CategoricalDistribution(["auto", 2]),
        "steps": IntDistribution(1, 9, log=True),
        "deep.size": FloatDistribution(-1.0, 1.0),
    }
    assert type(found["size"].choices[0]) is float
    # what finds itself says nothing of its kind
    auto = {"own": FloatDistribution(1.0, 10.0, log=True)}
    assert space(tmp_path, "own = {low = 1, high = 10}") == (auto, None)


APP = """
import json, time
from pathlib import Path
import fedtrellis
from flwr.serverapp import ServerApp
client_app = fedtrellis.client_app(lambda context: None)
server_app = ServerApp()

@server_app.main()
def main(grid, context):
    config = context.run_config
    number = int(config["results-dir"].partition("/runs/")[2][:3])
    while config["gate"] and number > 1 and not Path(config["gate"]).exists():
        time.sleep(0.05)
    folder = Path(config["results-dir"]) / "mine"
    folder.mkdir()
    with (folder / "history.jsonl").open("w") as file:
        for i in range(4):
            loss = (config["x"] - 3.0) ** 2 + 400.0 * 0.1**i + config["seed"]
            line = {"round": i, "seconds": 0.5, "evaluation": {"loss": loss}}
            file.write(json.dumps(line) + "\\n")
    (folder / "summary.json").write_text('{"status": "completed"}')
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app that writes its own record: its loss tends to (x − 3)²."""
    # every test has a module of its own
    name = f"app_{re.sub(r'[^a-z0-9]', '_', tmp_path.name.lower())}"
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / f"{name}.py").write_text(APP, encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        f"""
        project.name = "parabola"
        [tool.flwr.app]
        components.serverapp = "{name}:server_app"
        components.clientapp = "{name}:client_app"
        config = {{x = 0.0, gate = "", seed = 0, results-dir = ""}}
        """
    )
    (tmp_path / "search.toml").write_text(
        '[x]\nlow = -50.0\nhigh = 50.0\nscale = "linear"\n'
    )
    return folder


def command(app: Path, *more: Any) -> list[str]:
    search, out = app.parent / "search.toml", app.parent / "out"
    common = ["tune", app, "--search", search, "--out", out, "--nodes", 2, *more]
    return [str(word) for word in common]


def study_in(out: Path) -> optuna.Study:
    storage = f"sqlite:///{out / 'study.db'}"
    return optuna.load_study(study_name="fedtrellis", storage=storage)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trials(app: Path, tmp_path: Path) -> None:
    def search(out: str, trials: int, seed: int = 0, jobs: int = 1) -> list[Any]:
        more = ("--out", tmp_path / out, "--trials", trials)
        assert main(command(app, *more, "--seed", seed, "--jobs", jobs)) == 0
        return [trial.params for trial in study_in(tmp_path / out).trials]

    whole = search("whole", 3)
    assert len(whole) == 3
    search("parts", 1)
    # it goes on, with more trials
    assert search("parts", 3) == whole
    assert search("other", 1, seed=1) != whole[:1]
    assert search("jobs", 3, jobs=2) == whole


def test_a_trial_over_seeds_has_the_mean_of_its_runs(app: Path, tmp_path: Path) -> None:
    """The app's loss has its seed added: 0, 1 and 5 are 2 on average."""
    assert main(command(app, "--trials", 2)) == 0
    alone = [trial.user_attrs["loss"] for trial in study_in(tmp_path / "out").trials]
    out = tmp_path / "seeds"
    assert main(command(app, "--trials", 2, "--out", out, "--seeds", "0,1,5")) == 0
    found = [trial.user_attrs for trial in study_in(out).trials]
    assert_allclose([each["loss"] for each in found], np.add(alone, 2.0))
    # t with two degrees of freedom, and a deviation of √7 over √3 runs
    assert_allclose(found[0]["loss-interval"], 4.302653 * math.sqrt(7 / 3), rtol=1e-6)
    assert len(list(out.glob("runs/000/seed-*/mine/history.jsonl"))) == 3
    assert main(command(app, "--out", out, "--seeds", "0..2")) == 1  # another search


@pytest.mark.slow
def test_an_interrupted_search_goes_on_where_it_was(app: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = command(app, "--jobs", 2, "--trials", 6)
    gate = tmp_path / "gate"
    slow = [*words, "-c", f'gate="{gate}"']
    process = subprocess.Popen(
        [sys.executable, "-m", "fedtrellis", *slow],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for _ in range(2):
        assert process.stderr.readline().startswith("trial")
    process.terminate()
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, stderr
    assert "are kept" in stderr
    assert "Traceback" not in stderr
    # its workers have gone too: nobody is left in its process group
    with pytest.raises(ProcessLookupError):  # noqa: PT012
        for _ in range(1000):
            os.killpg(process.pid, 0)
            time.sleep(0.1)
    assert not (out / "best.toml").exists()

    done = {t.number: t for t in study_in(out).trials if t.state.is_finished()}
    assert sorted(done) == [0, 1]  # the others wait for the gate
    gate.touch()
    assert main(slow) == 0
    after = study_in(out).trials
    # what was complete was not run again
    assert done.items() <= {trial.number: trial for trial in after}.items()
    whole = tmp_path / "whole"
    assert main(command(app, "--trials", 6, "--out", whole)) == 0
    expected = [(t.number, t.state, t.params, t.value) for t in study_in(whole).trials]
    assert [(t.number, t.state, t.params, t.value) for t in after] == expected


SEARCH = "fedgia.selected-fraction = {low = 0.1, high = 1.0}\n"
SEARCH += "fedgia.local-steps.values = [1, 5]"


def test_trials_that_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of 1 000 diverge, and a batch fraction of 3 is refused by the app."""
    search, out = tmp_path / "search.toml", tmp_path / "out"
    search.write_text(
        "fedavg-gd.step-size.values = [0.1, 1e3]\n"
        "fedavg-gd.batch-fraction.values = [0.5, 3.0]"
    )
    arguments = ["tune", str(ROOT), "--search", str(search), "--nodes", "3"]
    config = 'method="fedavg-gd" task="logistic-regression" rounds=6'
    assert main([*arguments, "--out", str(out), "-c", config]) == 0
    states = {tuple(t.params.values()): t for t in study_in(out).trials}
    assert states[0.1, 0.5].user_attrs["status"] == "completed"
    diverged, failed = states[1e3, 0.5], states[0.1, 3.0]
    assert diverged.user_attrs["status"] == "diverged"
    # a sampler sees how bad it was
    assert diverged.value is not None
    assert diverged.value > states[0.1, 0.5].user_attrs["loss"]
    assert failed.user_attrs["status"] == "failed"
    assert failed.value == math.inf
    assert "fedavg-gd.batch-fraction = 3.0 must be" in failed.user_attrs["reason"]
    shown = capsys.readouterr().out
    assert "diverged: " in shown
    assert "fedavg-gd.batch-fraction = 3.0 must be" in shown
    table = pd.read_csv(out / "trials.csv")
    assert table["status"].tolist()[:2] == ["completed", "diverged"]
    assert table["grade"].isna().tolist() == [False, True, True, True]


def test_no_trial_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "search.toml").write_text(SEARCH, encoding="utf-8")
    common = ["tune", ROOT, "--search", tmp_path / "search.toml", "--trials", 2]
    words = [*common, "--out", tmp_path / "out", "-c", 'method="fedgai"']
    assert main([str(word) for word in words]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.match("fedtrellis tune: error: none of 2 trials .* 'fedgia'", error)


@pytest.mark.slow
def test_the_documentations_own_app_is_tuned(tmp_path: Path) -> None:
    page = (ROOT / "docs/tuning.md").read_text(encoding="utf-8")
    found = re.findall(r"```\w+\n# (\S+)\n(.*?)```", page, flags=re.DOTALL)
    app, out = tmp_path / "my-app", tmp_path / "out"
    app.mkdir()
    for name, text in found:
        # as it is written from inside the repository
        own = re.sub(r"from fedtrellis\.(strategies|clients) ", r"from \1 ", text)
        (app / name).write_text(own, encoding="utf-8")
    search = str(app / "search.toml")
    options = ["--search", search, "--out", str(out), "-c", "rounds=10"]
    assert main(["tune", str(app), *options, "--pruner", "median"]) == 0
    # its strategy reports its rounds; five are complete before one is pruned
    *first, _, _, last = study_in(out).trials
    assert [(t.state, t.last_step) for t in first] == [(TrialState.COMPLETE, 10)] * 5
    assert (last.state, last.user_attrs["reason"]) == (TrialState.PRUNED, "in round 1")
    assert load_run(out / last.user_attrs["record"]).summary["rounds"] == 1
    best = tomllib.loads((out / "best.toml").read_text(encoding="utf-8"))
    assert set(best) == {"penalty", "rounds"}
    assert (out / "pareto.png").read_bytes()[:4] == b"\x89PNG"


def test_grades_of_three_points_worked_out_by_hand() -> None:
    """A cost to minimise and a yield to maximise; what is not finite is left out.

    Cost 10, 20, 30 scales to F = 1, 1/2, 0 and yield 1, 4, 5 to F = 0, 3/4, 1. The
    ideal is (1, 1), so Δ = (0, 1), (1/2, 1/4), (1, 0), Δmin = 0 and Δmax = 1. The
    coefficients 1/(Δ + 1) are (1, 1/2), (2/3, 4/5), (1/2, 1), and their means
    3/4, 11/15, 3/4.
    """
    points = [[10, 1], [np.nan, 100], [20, 4], [30, 5], [-np.inf, 9], [0, np.inf]]
    senses = {"cost": "min", "yield": "max"}
    table = ranked(pd.DataFrame(points, columns=[*senses], dtype=float), senses)
    grades = table["grade"].sort_index()
    assert_allclose(grades[[0, 2, 3]], [3 / 4, 11 / 15, 3 / 4], rtol=1e-15)
    assert np.isnan(grades[[1, 4, 5]]).all()
    assert table.index[0] == 0  # the first of equal grades
    # a tie in one is dominated by the other
    tied = -np.array([[1, 5], [2, 2], [4, 1], [2, 3], [5, 5], [4, 1.5]])
    assert_array_equal(pareto_front(tied), [1, 1, 1, 0, 0, 0])
