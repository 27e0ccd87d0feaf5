"""Where a stored result comes from: seeds, settings and versions."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["KEYS", "UNKNOWN", "Ledger", "older", "versions"]

#: What every stored result has under ``provenance``.
KEYS = ("seeds", "settings", "versions")
#: Of results that were measured before they kept it.
UNKNOWN = "unknown: measured before results kept it"
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
        shared: dict[str, Any] = {}
        varied: dict[str, list[Any]] = {}
        seeds: list[Any] = []
        for name in names:
            # a path says where somebody keeps the data, not what they are
            if name.endswith("path"):
                continue
            values = [config[name] for config in self._configs if name in config]
            different = list({repr(value): value for value in values}.values())
            if name == "seed":
                seeds = sorted(different)
            elif len(different) == 1 and len(values) == len(self._configs):
                shared[name] = different[0]
            else:
                varied[name] = different
        return {
            "seeds": seeds or [0],
            "settings": {
                "shared": shared,
                "varied": varied,
                "runs": len(self._configs),
            },
            "versions": versions(),
        }


def older(results: dict[str, Any]) -> dict[str, Any]:
    """What is known of a result that was stored without its provenance."""
    seeds = results.get("seeds", UNKNOWN)
    return {
        "seeds": list(range(seeds)) if isinstance(seeds, int) else seeds,
        "settings": UNKNOWN,
        "versions": {
            name: value
            for name, value in results["machine"].items()
            if name not in ("cores", "python")
        },
    }
