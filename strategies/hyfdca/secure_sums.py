"""Sums of all clients' v_k that nobody can take apart (``secure_sum``).

Clients encrypt v_k too, cut by who will decrypt the sum of which feature; the server
adds the shares, and one holder of each feature opens its part of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.server.answers import Answer

from ..hybrid import Blobs
from .units import Unit, UnitSteps

if TYPE_CHECKING:
    from .strategy import HyFDCA

__all__ = ["SecureSums"]


class SecureSums(UnitSteps):
    """Who opens which feature's sum, and the wave that has it opened."""

    def __init__(self, strategy: HyFDCA) -> None:
        super().__init__(strategy)
        self.openers = self._choose_openers() if strategy.secure_sum else {}
        # who has a share in the sum that each of them opens
        self.contributors = {
            opener: [
                name
                for name in strategy.clients
                if np.isin(columns, self.alignment.columns[name]).any()
            ]
            for opener, columns in self.openers.items()
        }

    def _choose_openers(self) -> dict[str, NDArray[np.int64]]:
        """For each feature one client that holds it, and few clients in all."""
        left = np.ones(len(self.alignment.feature_names), dtype=bool)
        openers = {}
        for name in self.strategy.clients:
            own = np.sort(self.alignment.columns[name])
            own = own[left[own]]
            if len(own):
                openers[name] = own
                left[own] = False
        return openers

    def _opening_sizes(self, name: str) -> dict[str, int]:
        """How many ciphertexts a client's share of each opener's features takes."""
        return {
            opener: self._cipher.blocks(len(columns))
            for opener, columns in self.openers.items()
            if name in self.contributors[opener]
        }

    def _opening_of(self, name: str) -> dict[str, Any]:
        """Where a client's features stand in the vectors that are added up."""
        held = self.alignment.columns[name]
        where = {int(column): i for i, column in enumerate(held)}
        config: dict[str, Any] = {"openers": [], "opener-terms": []}
        for number, (opener, columns) in enumerate(self.openers.items()):
            contributors = self.contributors[opener]
            if name in contributors:
                config["openers"].append(number)
                config["opener-terms"].append(len(contributors))
                config[f"opener/{number}"] = [where.get(int(c), -1) for c in columns]
        return config

    def _open(self, available: Sequence[str]) -> set[str]:
        """Have the sums of all clients' v decrypted by those who hold the features."""
        (unit,) = self.units
        if not self._answered(unit):
            return set()
        count = self._count(unit.groups[0])
        missing = [o for o in self.openers if o not in unit.opened and o in available]
        totals: dict[str, list[Blobs]] = {}
        for opener in missing:
            for j in range(count):
                own = {n: s[opener][j] for n, s in unit.shares.items() if opener in s}
                total, _ = self._add(own)
                if total is None:
                    unit.begin(self.w, self.version)
                    return set()
                totals.setdefault(opener, []).append(total)
        number = {opener: i for i, opener in enumerate(self.openers)}

        def entries(name: str) -> dict[str, Any]:
            config = {
                **self._extra,
                "opener": number[name],
                "size": len(self.openers[name]),
                "terms": len(self.contributors[name]),
                "version": unit.version,
                "count": count,
            }
            for j in range(count):
                config[f"sum/{j}"] = totals[name][j]
            return config

        def take(answer: Answer) -> None:
            shape = (count, len(self.openers[answer.client]))
            arrays = answer.arrays
            if len(arrays) != 1 or arrays[0].shape != shape:
                raise ValueError(f"the answer is not one array of shape {shape}")
            if arrays[0].dtype != np.float64:
                raise ValueError(f"the answer has dtype {arrays[0].dtype}")
            unit.opened[answer.client] = arrays[0]

        return self._ask("train.open", entries, missing, take)

    def _complete(self, unit: Unit) -> bool:
        if not self._answered(unit):
            return False
        return not self.strategy.secure_sum or set(unit.opened) == set(self.openers)
