"""A simulation whose workers would import another copy of the app is refused."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from fedtrellis import LocalGrid
from fedtrellis.server.loop import check_same_code
from tests.harness import refused


class InMemoryGrid:
    """Called as Flower's."""


def test_another_copy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # where Flower's is renamed, the check looks at nothing
    assert hasattr(import_module("flwr.superlink.grid"), InMemoryGrid.__name__)
    # where the SuperLink was started, and what Flower unpacked
    here, app = tmp_path / "mine", tmp_path / "apps" / "you.app.1.0.0.12345678"
    for folder in (here, app):
        (folder / "package").mkdir(parents=True)
        (folder / "package" / "__init__.py").touch()
        (folder / "package" / "task.py").write_text("SIZE = 3\n")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(app))
    check_same_code(InMemoryGrid())
    (here / "package" / "task.py").write_text("SIZE = 4\n")
    copy = re.escape(f"run {here / 'package'} instead")
    refused(f"{copy}.*task.py differs", lambda: check_same_code(InMemoryGrid()))
    # no workers, no search path of theirs
    check_same_code(LocalGrid.__new__(LocalGrid))
