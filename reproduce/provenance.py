"""Where a stored result comes from: seeds, settings and versions."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["KEYS", "Ledger", "versions"]

#: What every stored result has under ``provenance``.
KEYS = ("seeds", "settings", "versions")
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


class Ledger:
    """Notes the configs of the runs that an item makes."""

    def __init__(self) -> None:
        self._configs: list[dict[str, Any]] = []

    def clear(self) -> None:
        """Forget the runs of the item before."""
        self._configs = []

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
