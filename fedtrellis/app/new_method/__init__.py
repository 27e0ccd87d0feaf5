"""``fedtrellis new-method NAME``: a package with a method, its client and its tests."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from keyword import iskeyword
from pathlib import Path

from fedtrellis.app.application import installed_app
from fedtrellis.settings import SettingsError


def new_method(options: argparse.Namespace) -> None:
    """Write a package in the folder NAME: both halves, entry point, tests."""
    name: str = options.name
    fits = re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name)
    if not fits or iskeyword(name):
        raise SettingsError(f"NAME {name!r} must be like my-method: a-z, 0-9 and -")
    if name in installed_app().registry.methods:
        raise SettingsError(f"NAME {name!r}: there is a method of that name already")
    top, package = Path(name), name.replace("-", "_")
    source = top / "src" / package
    words = {
        "CLASS": "".join(word.capitalize() for word in name.split("-")),
        "PACKAGE": package,
        "METHOD": name,
    }
    if top.exists():
        raise SettingsError(f"NAME {name!r}: {str(top)!r} is there already")
    for template, target in (
        ("project", top / "pyproject.toml"),
        ("init", source / "__init__.py"),
        ("method", source / "method.py"),
        ("test", top / "tests" / f"test_{package}.py"),
    ):
        found = files(__package__).joinpath(f"{template}.txt")
        text = found.read_text(encoding="utf-8")
        for word, value in words.items():
            text = text.replace(word, value)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    print(f"Written: {top}. Then: pip install -e {top} pytest; pytest {top}")
