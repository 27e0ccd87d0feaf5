"""What pyproject.toml cannot say: the description that a package index shows.

The README's links lead to files beside it. An index shows the README alone, so a build
that is told the repository's address in FEDTRELLIS_REPOSITORY, such as
https://github.com/NAME/fedtrellis, makes them absolute, and lists the address.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
_LINK = re.compile(r"(!?)(\[[^\]]*\])\(([^):#][^):]*)\)")


def described(text: str, repository: str, tag: str) -> str:
    """A page of the repository's root, with links to files as they are at a tag."""

    def absolute(link: re.Match[str]) -> str:
        picture, label, path = link.groups()
        # what shows the picture's bytes, and what shows a page about the file
        kind = "raw" if picture else "blob"
        return f"{picture}{label}({repository}/{kind}/{tag}/{path})"

    return _LINK.sub(absolute, text) if repository else text


def urls(repository: str, tag: str) -> dict[str, str]:
    """What an index lists beside the description."""
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/tree/{tag}/docs",
        "Changes": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


if __name__ == "__main__":
    address = os.environ.get("FEDTRELLIS_REPOSITORY", "").rstrip("/")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    release = f"v{project['project']['version']}"
    setup(
        long_description=described(
            (ROOT / "README.md").read_text(encoding="utf-8"), address, release
        ),
        long_description_content_type="text/markdown",
        project_urls=urls(address, release),
    )
