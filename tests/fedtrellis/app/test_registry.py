"""What there is, by name: ours and plug-ins', their keys and pyproject's block."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sim
from clients import FedProxClient
from fedtrellis.app import App, Plugin, pairs
from fedtrellis.app.command_line import flatten
from fedtrellis.app.registry import config_block, write_config_block
from fedtrellis.domains import L2Ball
from fedtrellis.settings import setting
from strategies import FedProx
from tasks import Lasso

ROOT = Path(sim.__file__).parent


class Harder(FedProx):
    name = "harder"
    about = "one setting more"

    hardness: float = setting(0.5, "how hard it is", minimum=0.0, below=1.0)


class HarderClient(FedProxClient):
    """Its client."""


@dataclass(frozen=True)
class Shorter(Lasso):
    name = "shorter"
    summary = "a short lasso"

    cut: int = setting(4, "how short", minimum=1)


class Blob(L2Ball):
    name = "blob"


class Entry:
    def __init__(self, name: str, load: Callable[[], Any]) -> None:
        self.name, self.load, self.value = name, load, f"{name}:plugin"


WHOLE = Plugin([(Harder, HarderClient)], [Shorter], [Blob])


def app_with(monkeypatch: pytest.MonkeyPatch, **plugins: Callable[[], Any]) -> App:
    import clients
    import strategies
    from tasks import TASKS

    # what is installed here, which the checkout's app looks for only once
    sim.app.default_config()
    entries = [Entry(name, load) for name, load in plugins.items()]

    def entry_points(*, group: str) -> list[Entry]:
        assert group == "fedtrellis.plugins"
        return entries

    monkeypatch.setattr("fedtrellis.app.registry.entry_points", entry_points)
    return App(methods=pairs(strategies, clients), tasks=TASKS.values())


def test_a_plug_in_that_is_broken_stops_nobody_and_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise ImportError("no such thing")

    app = app_with(
        monkeypatch, bad=broken, good=lambda: WHOLE, odd=lambda: "not a plug-in"
    )
    assert "harder" in app.registry.methods
    assert [record.getMessage() for record in caplog.records] == [
        "plug-in 'bad' cannot be loaded: ImportError: no such thing",
        "plug-in 'odd' cannot be loaded: TypeError: odd:plugin is no "
        "fedtrellis.app.Plugin",
    ]
    assert app.command_line(["-c", 'method="worse"']) == 1


# ------------------------------------------------------------------------- pyproject


def test_pyprojects_block_is_the_registrys() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    start = text.index("[tool.flwr.app.config]\n") + len("[tool.flwr.app.config]\n")
    assert text[start:].startswith(config_block(sim.app.registry) + "[")
    assert flatten(tomllib.loads(config_block(sim.app.registry))) == (
        sim.app.default_config()
    )


def test_writing_the_block_leaves_the_rest_and_changes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    copy = tmp_path / "pyproject.toml"
    copy.write_text(whole, encoding="utf-8")
    assert not write_config_block(sim.app.registry, copy)
    assert copy.read_text(encoding="utf-8") == whole
    old = whole.replace('method = "fedfw"\n', 'method = "gone"\nolder = 1\n')
    assert old != whole
    copy.write_text(old, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert sim.app.command_line(["--write-config"]) == 0
        assert copy.read_text(encoding="utf-8") == whole
    # also where the block is the last thing in the file
    copy.write_text('[a]\nb = "€"\n[tool.flwr.app.config]\nx = 1\n', encoding="utf-8")
    assert write_config_block(sim.app.registry, copy)
    assert not write_config_block(sim.app.registry, copy)
    read = tomllib.loads(copy.read_text(encoding="utf-8"))
    assert read["a"] == {"b": "€"}
    assert flatten(read["tool"]["flwr"]["app"]["config"]) == sim.app.default_config()
    copy.write_text("[project]\n", encoding="utf-8")
    assert sim.app.command_line(["--write-config"]) == 1
    assert "has no [tool.flwr.app.config]" in capsys.readouterr().err
    assert copy.read_text(encoding="utf-8") == "[project]\n"
