"""A simulation whose workers would import another copy of the app is refused."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from fedtrellis import LocalGrid
from fedtrellis.server.loop import check_same_code
from fedtrellis.settings import SettingsError


class InMemoryGrid:
    """Called as Flower's."""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where the SuperLink was started, and what Flower unpacked."""
    here, app = tmp_path / "mine", tmp_path / "apps" / "you.app.1.0.0.12345678"
    for folder in (here, app):
        (folder / "package").mkdir(parents=True)
        (folder / "package" / "__init__.py").touch()
        (folder / "package" / "task.py").write_text("SIZE = 3\n")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(app))
    return here, app


def test_one_app_runs(folders: tuple[Path, Path]) -> None:
    check_same_code(InMemoryGrid())
    # what the folder has besides is no matter
    (folders[0] / "package" / "notes.py").write_text("SIZE = 4\n")
    check_same_code(InMemoryGrid())


@pytest.mark.parametrize("change", ["differs", "is missing"])
def test_another_copy_of_it_is_named(folders: tuple[Path, Path], change: str) -> None:
    here, _ = folders
    file = here / "package" / "task.py"
    file.unlink()
    if change == "differs":
        file.write_text("SIZE = 4\n")
    with pytest.raises(SettingsError) as caught:
        check_same_code(InMemoryGrid())
    said = str(caught.value)
    assert f"run {here / 'package'} instead" in said
    assert "task.py differs" in said
    assert "pgrep -af flower-superlink" in said
    assert "\n" not in said
    # no workers, no search path of theirs
    check_same_code(LocalGrid.__new__(LocalGrid))


def test_a_folder_without_such_a_package_is_no_matter(
    folders: tuple[Path, Path],
) -> None:
    here, _ = folders
    (here / "package" / "__init__.py").unlink()
    (here / "package" / "task.py").unlink()
    check_same_code(InMemoryGrid())


def test_flowers_grid_still_has_that_name() -> None:
    # where it is renamed, the check looks at nothing
    assert hasattr(import_module("flwr.superlink.grid"), InMemoryGrid.__name__)
