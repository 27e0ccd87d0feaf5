"""A run that ends badly ends in order: what its record says, and how it goes on."""

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import sim
from clients import FedFWClient
from fedtrellis import Callback, LocalGrid, Progress, RoundStrategy
from fedtrellis.command_line import main
from fedtrellis.server.records import RunRecord
from fedtrellis.signals import Interrupted
from strategies import FedFW
from tests.harness import history_of, model_of, run_app, saved_round, wait_for

pytestmark = pytest.mark.usefixtures("no_pictures")

ROOT = Path(__file__).resolve().parents[1]


def run(parent: Path, loss: float = 0.2, **settings: Any) -> Path:
    """Run a small Lasso with some answers lost, and return its record."""
    config = {"task": "lasso", "lasso.rows": 40, "rounds": 3, "stop-metric": "loss"}
    return run_app(config | settings, 4, parent, reply_loss=loss)


def check_summary(record: Path, status: str) -> list[dict[str, Any]]:
    """Its summary tells of the rounds that its history has, and of no others."""
    summary = json.loads((record / "summary.json").read_text())
    lines = history_of(record)
    assert summary["status"] == status
    assert summary["rounds"] == (lines[-1]["round"] if lines else 0)
    reasons = Counter(why for line in lines for _, why in line["rejected"])
    assert summary["rejected_by_reason"] == dict(reasons)
    for name in ("sampled", "used", "bytes_up", "bytes_down"):
        assert summary[name] == sum(line[name] for line in lines)
    return lines


@pytest.mark.parametrize("moment", ["on_start", "on_round", "on_end"])
@pytest.mark.parametrize("error", [ValueError("why"), KeyboardInterrupt()])
def test_a_summary_is_of_the_history_however_a_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, error: Any
) -> None:
    first = run(tmp_path / "first", rounds=1)

    def fail(self: Callback, strategy: RoundStrategy, *rest: Any) -> None:
        if moment != "on_round" or rest[0].round == 2:
            raise error

    monkeypatch.setattr(Progress, moment, fail)
    for number, resume in enumerate(("", str(first))):
        with pytest.raises(type(error)):
            run(tmp_path / str(number), resume=resume)
        (record,) = (tmp_path / str(number)).iterdir()
        status = "failed" if isinstance(error, ValueError) else "interrupted"
        lines = check_summary(record, "round limit" if moment == "on_end" else status)
        expected = {"on_start": 2 * number, "on_round": 3, "on_end": 4}
        assert len(lines) == expected[moment]


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
    assert len(check_summary(cut, "interrupted")) == last + 1
    assert saved_round(cut) == last
    assert f"record: {cut}; to go on: flwr run " in capsys.readouterr().err
    assert main(["runs", str(tmp_path / "cut")]) == 0
    assert " to go on: flwr run " in capsys.readouterr().out
    rest = run(tmp_path / "rest", loss=0.0, resume=str(cut), **settings)
    assert np.array_equal(model_of(rest), model_of(whole))


def test_a_run_beside_flowers_main_thread_ends_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a simulation: Flower asks what it was given to end, and then exits."""
    handlers: list[Callable[[], None]] = []
    monkeypatch.setattr(
        "fedtrellis.server.records.at_exit", lambda handler: handlers.append(handler)
    )

    def ends() -> None:
        with pytest.raises(Interrupted):
            run(tmp_path, loss=0.0, **{"rounds": 10**6, "stop-metric": ""})

    thread = threading.Thread(target=ends)
    thread.start()
    wait_for(lambda: list(tmp_path.glob("*/checkpoint.npz")), 60, "no checkpoint")
    handlers[0]()
    (record,) = tmp_path.iterdir()
    assert check_summary(record, "interrupted")[-1]["round"] == saved_round(record)
    thread.join(60)
    handlers[0]()  # a second time there is nothing to wait for


def test_flower_has_no_frames_to_print_of_a_run_without_answers(tmp_path: Path) -> None:
    config = sim.app.default_config() | {"results-dir": str(tmp_path)}
    grid = LocalGrid(sim.client_app, 2, run_config=config, reply_loss=1.0)
    with pytest.raises(RuntimeError, match="no usable answer") as caught:
        sim.app._main(grid, Context(1, 1, {}, RecordDict(), config))
    assert len(caught.traceback) == 2  # this call, and the line that raises it anew


# what is mixed at random for secure sums is another in each run
HYFDCA = (
    'method="hyfdca" task="hybrid-svm" hybrid-svm.dataset="breast-cancer" rounds=60 '
    'hyfdca.tolerance=0.0 hyfdca.secure-sum=false hyfdca.exposed="accept" '
    "checkpoint-every=1000"
)


def sim_py(*arguments: str, before: Callable[[], Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "sim.py", *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )


def test_a_process_that_is_told_to_end_goes_on_where_it_was(tmp_path: Path) -> None:
    """By the command that it prints; with its own key."""
    arguments = ["--nodes", "3", "-c", HYFDCA]
    assert sim.app.command_line([*arguments, "--out", str(tmp_path / "whole")]) == 0
    (whole,) = (tmp_path / "whole").iterdir()
    # a shell's background, or nohup, may ignore signals, and children would too
    process = sim_py(
        *(*arguments, "--out", str(tmp_path / "cut")),
        before=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    )

    def goes_on() -> bool:
        return any(len(history_of(one)) > 3 for one in (tmp_path / "cut").glob("*/"))

    wait_for(goes_on, 120, "no third round", every=0.01)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    (cut,) = (tmp_path / "cut").iterdir()
    last = check_summary(cut, "interrupted")[-1]["round"]
    assert 2 <= last == saved_round(cut) < history_of(whole)[-1]["round"]
    (line,) = [one for one in said.splitlines() if one.startswith("interrupted")]
    assert str(cut) in line
    assert "Traceback" not in said
    command = line.partition("to go on: ")[2]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {**os.environ, "PATH": path}
    subprocess.run(command, shell=True, cwd=ROOT, env=environment, check=True)
    (rest,) = set((tmp_path / "cut").iterdir()) - {cut}
    rounds = [line["round"] for line in check_summary(rest, "round limit")]
    assert rounds == [line["round"] for line in history_of(whole)]
    np.testing.assert_allclose(model_of(rest), model_of(whole), rtol=0, atol=1e-9)


def test_a_killed_run_is_dead_and_its_line_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = 'task="lasso" lasso.rows=30 fedfw.variant="plain" rounds=100000'

    def listed() -> list[str]:
        capsys.readouterr()
        assert main(["runs", str(tmp_path)]) == 0
        return capsys.readouterr().out.splitlines()[1:]

    arguments = ("--nodes", "3", "--out", str(tmp_path), "-c", config)
    process = sim_py(*arguments, before=lambda: None)

    def rounds() -> list[int]:
        paths = tmp_path.glob("*/summary.json")
        return [json.loads(path.read_text())["rounds"] for path in paths]

    wait_for(lambda: any(rounds()), 120, "no round")
    (record,) = tmp_path.iterdir()
    assert rounds()[0] % 10 == 0 < saved_round(record)
    monkeypatch.setattr("fedtrellis.server.records._SILENCE", 0.0)
    assert [line.split()[0] for line in listed()] == ["running"]  # by its process
    process.kill()
    process.communicate(timeout=60)
    dead, how = listed()
    assert dead.startswith("dead ")
    command = how.strip().removeprefix("to go on: python sim.py ")
    again = ["-c", f"rounds={(last := saved_round(record)) + 2}"]
    assert sim.app.command_line([*shlex.split(command), *again]) == 0
    (rest,) = set(tmp_path.iterdir()) - {record}
    assert history_of(rest)[-1]["round"] == last + 2
    # of another host there is only the last sign of life
    monkeypatch.undo()
    assert listed()[0].startswith("running ")
    os.utime(record / "summary.json", times=(0.0, 0.0))
    assert listed()[0].startswith("dead ")


@pytest.mark.parametrize("full", ["history.jsonl", "checkpoint.npz"])
def test_after_a_full_disk_a_run_goes_on_elsewhere(tmp_path: Path, full: str) -> None:
    """Files that may not grow beyond a size are what every user can have."""
    # the history grows by some 300 bytes a round; the checkpoint has 2 or 70 kB
    config = 'task="lasso" fedfw.variant="plain" rounds=100 checkpoint-every=5'
    if full == "history.jsonl":
        config += " lasso.rows=20 lasso.columns=20 lasso.nonzeros=3"
    arguments = ["--nodes", "4", "-c", config]
    process = sim_py(
        *(*arguments, "--out", str(tmp_path / "cut")),
        before=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY)
        ),
    )
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    (cut,) = (tmp_path / "cut").iterdir()
    last = said.splitlines()[-1]
    assert last == f"sim.py: error: [Errno 27] File too large: '{cut / full}'"
    rounds = [line["round"] for line in check_summary(cut, "failed")]
    assert rounds == list(range(len(rounds)))
    assert (cut / "history.jsonl").read_text().endswith("}\n")
    assert not list(cut.glob("*.tmp"))
    if full == "checkpoint.npz":
        assert rounds[-1] == 5
        return
    assert rounds[-1] > 20
    resume = ["-c", f'resume="{cut}"', "--out", str(tmp_path / "rest")]
    assert sim.app.command_line(resume) == 0
    assert sim.app.command_line([*arguments, "--out", str(tmp_path / "whole")]) == 0
    (rest,), (whole,) = (tmp_path / "rest").iterdir(), (tmp_path / "whole").iterdir()
    assert np.array_equal(model_of(rest), model_of(whole))
