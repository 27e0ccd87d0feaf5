"""A run that ends badly ends in order: what its record says, and how it goes on."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from clients import FedFWClient
from fedtrellis import Callback, EarlyStop, RoundStrategy
from fedtrellis.server.records import RunRecord
from fedtrellis.signals import Interrupted
from strategies import FedFW
from tests.harness import run_app

pytestmark = pytest.mark.usefixtures("no_pictures")

ROOT = Path(__file__).resolve().parents[1]


def run(parent: Path, loss: float = 0.2, **settings: Any) -> Path:
    """Run a small Lasso with some answers lost, and return its record."""
    config = {"task": "lasso", "lasso.rows": 40, "rounds": 3, "stop-metric": "loss"}
    return run_app(config | settings, 4, parent, reply_loss=loss)


def history(record: Path) -> list[dict[str, Any]]:
    path = record / "history.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def check_summary(record: Path, status: str) -> None:
    """Its summary tells of the rounds that its history has, and of no others."""
    summary = json.loads((record / "summary.json").read_text())
    lines = history(record)
    assert summary["status"] == status
    assert summary["rounds"] == (lines[-1]["round"] if lines else 0)
    reasons = Counter(why for line in lines for _, why in line["rejected"])
    assert summary["rejected_by_reason"] == dict(reasons)
    for name in ("sampled", "used", "bytes_up", "bytes_down"):
        assert summary[name] == sum(line[name] for line in lines)


@pytest.mark.parametrize("moment", ["on_start", "on_round", "on_end"])
@pytest.mark.parametrize("error", [ValueError("why"), KeyboardInterrupt()])
def test_a_summary_is_of_the_history_however_a_run_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    error: BaseException,
) -> None:
    first = run(tmp_path / "first", rounds=1)

    def fail(self: Callback, strategy: RoundStrategy, *rest: Any) -> None:
        if moment != "on_round" or rest[0].round == 2:
            raise error

    monkeypatch.setattr(EarlyStop, moment, fail)
    for number, resume in enumerate(("", str(first))):
        with pytest.raises(type(error)):
            run(tmp_path / str(number), resume=resume)
        (record,) = (tmp_path / str(number)).iterdir()
        status = "failed" if isinstance(error, ValueError) else "interrupted"
        check_summary(record, "round limit" if moment == "on_end" else status)
        assert len(history(record)) == {"on_start": 2 * number, "on_round": 3}.get(
            moment, 4
        )


# ---------------------------------------------------------------------------- signals


def model(record: Path) -> Any:
    with np.load(record / "model.npz") as file:
        return file["0"]


def checkpoint_round(record: Path) -> int:
    with np.load(record / "checkpoint.npz") as file:
        return int(json.loads(file["meta"].tobytes())["round"])


@pytest.mark.parametrize(
    ("where", "last"),
    [
        ((FedFWClient, "fit"), 1),  # round 2 has changed nothing yet
        ((FedFW, "aggregate"), 2),
        ((FedFW, "_result_point"), 2),  # the evaluation
        ((RunRecord, "on_round"), 2),
    ],
)
def test_a_signal_leaves_the_last_finished_round(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: tuple[type[Any], str],
    last: int,
) -> None:
    settings = {"rounds": 5, "fedfw.variant": "augmented", "stop-metric": ""}
    whole = run(tmp_path / "whole", loss=0.0, **settings)
    kind, name = where
    function, calls = getattr(kind, name), 0

    def interrupted(self: Any, *rest: Any) -> Any:
        nonlocal calls
        calls += 1
        # in round 2: of the four clients the third; round 0 is evaluated too
        if calls == {"fit": 7, "aggregate": 2}.get(name, 3):
            signal.raise_signal(signal.SIGTERM)
        return function(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, interrupted)
        with pytest.raises(Interrupted):
            run(tmp_path / "cut", loss=0.0, **settings)
    (cut,) = (tmp_path / "cut").iterdir()
    check_summary(cut, "interrupted")
    assert len(history(cut)) == last + 1
    assert checkpoint_round(cut) == last
    assert f"record: {cut}; to go on: flwr run " in capsys.readouterr().err
    rest = run(tmp_path / "rest", loss=0.0, resume=str(cut), **settings)
    assert np.array_equal(model(rest), model(whole))


HYFDCA = (
    'method="hyfdca" task="hybrid-svm" hybrid-svm.dataset="breast-cancer" '
    'hyfdca.encryption="none" hyfdca.tolerance=0.0 '
    # what is mixed at random for secure sums is another in each run
    'hyfdca.secure-sum=false hyfdca.exposed="accept"'
)


@pytest.mark.parametrize(
    ("number", "config"),
    [
        (signal.SIGINT, 'task="lasso" fedfw.variant="stochastic" participation=0.7'),
        (signal.SIGTERM, HYFDCA),
        (signal.SIGHUP, 'method="fedgia" task="linear-regression"'),
    ],
)
def test_a_process_that_is_told_to_end_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals, config: str
) -> None:
    """And the command that it prints goes on to the same end."""
    config += " rounds=300 checkpoint-every=1000 evaluate-every=50"
    arguments = ["--nodes", "3", "-c", config]
    assert sim.app.command_line([*arguments, "--out", str(tmp_path / "whole")]) == 0
    (whole,) = (tmp_path / "whole").iterdir()
    process = subprocess.Popen(
        [sys.executable, "sim.py", *arguments, "--out", str(tmp_path / "cut")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # a shell's background, or nohup, may ignore them, and children would too
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if any(len(history(r)) > 3 for r in (tmp_path / "cut").glob("*/")):
            break
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    (cut,) = (tmp_path / "cut").iterdir()
    check_summary(cut, "interrupted")
    last = history(cut)[-1]["round"]
    assert 2 <= last == checkpoint_round(cut) < history(whole)[-1]["round"]
    (line,) = [line for line in said.splitlines() if line.startswith("interrupted")]
    assert str(cut) in line
    assert "Traceback" not in said
    subprocess.run(
        line.partition("to go on: ")[2],
        shell=True,
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (rest,) = set((tmp_path / "cut").iterdir()) - {cut}
    solved = "fedgia" in config
    check_summary(rest, "converged" if solved else "round limit")
    assert [line["round"] for line in history(rest)] == [
        line["round"] for line in history(whole)
    ]
    np.testing.assert_allclose(model(rest), model(whole), rtol=0, atol=1e-9)


# -------------------------------------------------------------------------- full disk


@pytest.mark.parametrize("full", ["history.jsonl", "checkpoint.npz"])
def test_a_full_disk_is_named_and_the_run_goes_on_elsewhere(
    tmp_path: Path, full: str
) -> None:
    """Files that may not grow beyond a size are what every user can have."""
    # the history grows by some 300 bytes a round; the checkpoint has 70 kB
    limit = 75_000 if full == "history.jsonl" else 20_000
    config = 'task="lasso" fedfw.variant="plain" rounds=300 checkpoint-every=5'
    arguments = ["--nodes", "4", "-c", config]
    done = subprocess.run(
        [sys.executable, "sim.py", *arguments, "--out", str(tmp_path / "cut")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)
        ),
    )
    assert done.returncode == 1
    (cut,) = (tmp_path / "cut").iterdir()
    last = done.stderr.splitlines()[-1]
    assert last == f"sim.py: error: [Errno 27] File too large: '{cut / full}'"
    check_summary(cut, "failed")
    rounds = [line["round"] for line in history(cut)]
    assert rounds == list(range(len(rounds)))
    assert not list(cut.glob("*.tmp"))
    if full == "checkpoint.npz":
        assert rounds[-1] == 5
        return
    assert rounds[-1] > 20
    resume = ["--nodes", "4", "-c", f'resume="{cut}"', "--out", str(tmp_path / "rest")]
    assert sim.app.command_line(resume) == 0
    assert sim.app.command_line([*arguments, "--out", str(tmp_path / "whole")]) == 0
    (rest,), (whole,) = (tmp_path / "rest").iterdir(), (tmp_path / "whole").iterdir()
    assert np.array_equal(model(rest), model(whole))
