"""The Flower App Bundle of this repository in the format that Flower Hub takes.

``python -m scripts.hub_bundle`` writes it to build/hub. Format 1 wants a licence file
in a form that build tools warn about, and a version of Flower that the app is made for:
so the bundle's pyproject.toml differs from ours in these lines, and in nothing else.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from flwr.cli.build import build_fab_from_disk

from fedtrellis.wire.flower_internals import TESTED_FLOWER

__all__ = ["bundle", "hub_project"]

ROOT = Path(__file__).resolve().parents[1]

_LICENSE = 'license = "Apache-2.0"\nlicense-files = ["LICENSE"]\n'
_APP = "[tool.flwr.app]\n"


def hub_project(text: str) -> str:
    """A pyproject.toml with what format 1 wants.

    Raises
    ------
    ValueError
        It has no such lines as are to be replaced.
    """
    for line in (_LICENSE, _APP):
        if text.count(line) != 1:
            raise ValueError(f"pyproject.toml must have {line!r} once")
    app = f'fab-format-version = 1\nflwr-version-target = "{TESTED_FLOWER[-1]}"\n'
    return text.replace(_LICENSE, 'license = { file = "LICENSE" }\n').replace(
        _APP, _APP + app
    )


def bundle(folder: Path) -> bytes:
    """Lay the app out in a folder, and return its bundle."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in ("fedtrellis", "strategies", "clients", "tasks"):
        shutil.copytree(
            ROOT / part,
            folder / part,
            ignore=lambda _, names: [n for n in names if n == "__pycache__"],
        )
    for name in ("sim.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(hub_project(project), encoding="utf-8")
    return build_fab_from_disk(folder)


if __name__ == "__main__":
    target = ROOT / "build/hub"
    made = bundle(target / "app")
    (target / "fedtrellis.fab").write_bytes(made)
    print(f"{target / 'fedtrellis.fab'}: {len(made) / 1e6:.1f} MB")
