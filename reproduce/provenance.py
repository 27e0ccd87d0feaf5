"""Where a stored result comes from: command, commit, seeds, settings and data."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["KEYS", "Ledger", "origin", "versions"]

#: What every stored result has under ``provenance``, beside its data's digests.
KEYS = ("seeds", "settings", "versions", "command", "commit", "processor")
_PACKAGES = ("fedtrellis", "flwr", "numpy", "scipy", "scikit-learn", "torch")


def versions() -> dict[str, str]:
    """Versions of what results depend on, of those packages that are there."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def origin(command: str) -> dict[str, str]:
    """The command, the commit (with what is not committed) and the processor."""
    told = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(told, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found = "unknown"
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = text.split("model name", 1)[1].split(":", 1)[1].split("\n", 1)[0]
    except (OSError, IndexError):
        name = platform.processor()
    return {"command": command, "commit": found.strip(), "processor": name.strip()}


class Ledger:
    """Notes the configs of the runs that an item makes, and the data files it reads."""

    def __init__(self) -> None:
        self._configs: list[dict[str, Any]] = []
        self._files: dict[str, Path] = {}

    def clear(self) -> None:
        """Forget the item before."""
        self._configs, self._files = [], {}

    def read(self, name: str, path: Path) -> None:
        """Note a data file, or a folder of them, down."""
        self._files[name] = path

    def digests(self) -> dict[str, str]:
        """SHA-256 of the data files, of a folder that of its files in order."""
        found = {}
        for name, path in self._files.items():
            inside = sorted(one for one in path.rglob("*") if one.is_file())
            hashed = sha256()
            for one in inside or [path]:
                hashed.update(one.read_bytes())
            found[name] = hashed.hexdigest()
        return found

    def note(self, configs: Iterable[dict[str, Any]]) -> None:
        """Note runs down."""
        self._configs += [dict(config) for config in configs]

    def describe(self, module: str) -> dict[str, Any]:
        """Seeds, settings and versions of what was noted.

        Parameters
        ----------
        module : str
            The item's; its constants are the settings where it made no runs of the
            app's.

        Returns
        -------
        dict
            ``seeds`` in order, ``settings`` with those that all runs ``shared`` and the
            values of those that ``varied``, ``versions``.
        """
        if not self._configs:
            return {
                "seeds": f"constants of {module}",
                "settings": f"constants of {module}",
                "versions": versions(),
            }
        names = dict.fromkeys(name for config in self._configs for name in config)

        def had(name: str) -> list[dict[str, Any]]:
            return [config for config in self._configs if name in config]

        values = {
            name: list({repr(c[name]): c[name] for c in had(name)}.values())
            for name in names
            # a path says where somebody keeps the data, not what they are
            if not name.endswith("path")
        }
        seeds = sorted(values.pop("seed", [0]))
        shared = {
            name: found[0]
            for name, found in values.items()
            if len(found) == 1 and len(had(name)) == len(self._configs)
        }
        varied = {name: v for name, v in values.items() if name not in shared}
        count = len(self._configs)
        settings = {"shared": shared, "varied": varied, "runs": count}
        return {"seeds": seeds, "settings": settings, "versions": versions()}
