"""What there is, by name: ours and plug-ins', their keys and pyproject's block."""

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clients
import sim
import strategies
from clients import FedProxClient
from fedtrellis.app import App, Plugin, pairs
from fedtrellis.app.command_line import flatten
from fedtrellis.app.registry import config_block
from strategies import FedProx
from tasks import TASKS

ROOT = Path(sim.__file__).parent


def test_a_plug_in_that_is_broken_stops_nobody_and_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise ImportError("no such thing")

    class Harder(FedProx):
        name, about = "harder", "the same"

    class HarderClient(FedProxClient):
        """Its client."""

    whole = Plugin([(Harder, HarderClient)], [], [])
    loads = {"bad": broken, "good": lambda: whole, "odd": lambda: "not a plug-in"}
    entries = [SimpleNamespace(name=k, load=v, value="x:y") for k, v in loads.items()]
    # what is installed here, which the checkout's app looks for only once
    sim.app.default_config()
    monkeypatch.setattr(
        "fedtrellis.app.registry.entry_points",
        lambda *, group: {"fedtrellis.plugins": entries}[group],
    )
    app = App(methods=pairs(strategies, clients), tasks=TASKS.values())
    assert "harder" in app.registry.methods
    bad, odd = (record.getMessage() for record in caplog.records)
    assert bad == "plug-in 'bad' cannot be loaded: ImportError: no such thing"
    assert odd.startswith("plug-in 'odd' cannot be loaded: TypeError: x:y is no ")


def test_writing_the_block_leaves_the_rest_and_changes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    start = whole.index("[tool.flwr.app.config]\n") + len("[tool.flwr.app.config]\n")
    assert whole[start:].startswith(config_block(sim.app.registry) + "[")
    copy = tmp_path / "pyproject.toml"
    old = whole.replace('method = "fedfw"\n', 'method = "gone"\nolder = 1\n')
    assert old != whole
    copy.write_text(old, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert sim.app.command_line(["--write-config"]) == 0
        assert copy.read_text(encoding="utf-8") == whole
    read = tomllib.loads(whole)["tool"]["flwr"]["app"]["config"]
    assert flatten(read) == sim.app.default_config()
    copy.write_text("[project]\n", encoding="utf-8")
    assert sim.app.command_line(["--write-config"]) == 1
    assert "has no [tool.flwr.app.config]" in capsys.readouterr().err
