"""The iteration with the steps ``bundle`` and ``line-search``: proposals for α."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.group_steps import GroupStep
from fedtrellis.dual.held_groups import HeldGroup
from fedtrellis.dual.local_passes import local_dual_passes
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import RestoreNeededError

from .base import Fit, IntArray, as_arrays, loss_of
from .preparation import Preparation

__all__ = ["Proposals"]


class Proposals(Preparation):
    """Inner products, proposals and mixtures of α, and backups of it."""

    def fit_inner_product(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        """enc(x_{k,i}ᵀ w_k) of the samples of some groups, and enc(α) of others."""
        self._learn(config)
        (w,) = parameters
        products = self.features @ w.T
        blobs: list[bytes] = []
        for g, version, row in zip(
            config["products"], config["versions"], config["rows"], strict=True
        ):
            held = self._held()[g]
            values = np.asarray(products[held.rows, row])
            drawn = self._drawn(config, held, version)
            if drawn is not None and config["slots"] == "chosen":
                # as few ciphertexts as they need; which samples these are is not said
                values = values[drawn]
            what = ("product", g, version)
            blobs += self._encrypt(config, what, values, held.holders)
        if config["backup"]:
            blobs += self._backups(config, self._points(config))
        return as_arrays(blobs), 0, {}

    def fit_propose(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        """Proposals for some groups: their v_k, and sums over their samples."""
        self._learn(config)
        (w,) = parameters
        loss = loss_of(config)
        scale = config["regularization"] * config["num-samples-all"]
        points = self._points(config)
        backups = self._backups(config, points)
        local_row = dict(zip(config["local"], config["rows"], strict=True))
        for kinds in (config["proposals"], config["local-proposals"]):
            if len(set(kinds)) != len(kinds):
                raise ValueError(f"the same is to be proposed twice: {kinds}")
        answer: list[NDArray[Any]] = []
        numbers: list[float] = []
        secure: FloatArray | None = None
        for g, version in zip(config["propose"], config["versions"], strict=True):
            held = self._held()[g]
            ids, known = points[g]
            alpha, y = known[-1], self.state["labels"][held.own]
            drawn = self._drawn(config, held, version)
            whole = np.array_equal(held.rows, np.arange(self.features.shape[0]))
            part = self.features if whole else self.features[held.rows]
            if g in local_row:
                z = np.asarray(part @ w[local_row[g]])
                kinds = config["local-proposals"]
            else:
                z = self._scores(config, held, version, drawn)
                kinds = config["proposals"]
            moves = np.arange(len(z)) if drawn is None else drawn
            new = []
            for kind in kinds:
                point = alpha.copy()
                point[moves] = self._moved(config, kind, held, version, moves, alpha, z)
                new.append(loss.feasible(point, y))
            proposals = np.stack(new)
            # v_k = (1/λN) Σ_i α_i x_{k,i}
            v = np.ascontiguousarray((part.T @ proposals.T).T) / scale
            if "openers" in config:
                secure = v if secure is None else secure + v
            else:
                answer.append(v)
            if g in config["report"]:
                numbers.append(float(loss.value(z, y).sum()))
                numbers += [
                    float(loss.conjugate(a, y).sum()) for a in [alpha, *proposals]
                ]
            first = int(ids[-1]) + 1
            self.state[f"points/{g}"] = np.vstack([known, proposals])
            self.state[f"ids/{g}"] = np.append(ids, np.arange(first, first + len(new)))
        blobs: list[bytes] = []
        if secure is not None:
            blobs += self._shares_of(secure, config)
        self.numbers = np.array(numbers)
        return [*answer, *as_arrays([*blobs, *backups])], 0, {}

    def _scores(
        self,
        config: dict[str, Any],
        held: HeldGroup,
        version: int,
        drawn: IntArray | None,
    ) -> FloatArray:
        """x_iᵀw of a shared group's samples, of all or of those drawn; else 0."""
        z = np.zeros(held.size)
        only = config["slots"] == "chosen" and drawn is not None
        where = drawn if only and drawn is not None else np.arange(held.size)
        z[where] = self._decrypt(
            config,
            f"scores/{held.group}",
            ("product", held.group, version),
            len(where),
            held.holders,
        )
        return z

    def _moved(
        self,
        config: dict[str, Any],
        kind: str,
        held: HeldGroup,
        version: int,
        moves: IntArray,
        alpha: FloatArray,
        z: FloatArray,
    ) -> FloatArray:
        """α of the samples that move, as one kind of proposal has it."""
        loss = loss_of(config)
        scale = config["regularization"] * config["num-samples-all"]
        y, q = self.state["labels"][held.own][moves], self.state["norms"][held.own]
        if kind == "dual-point":
            return loss.dual_point(z[moves], y)
        if kind == "coordinate":
            return alpha[moves] + loss.coordinate_step(
                alpha[moves], z[moves], q[moves], y, scale
            )
        return local_dual_passes(
            loss,
            self.features,
            held.rows[moves],
            alpha[moves],
            z[moves],
            y,
            q[moves],
            scale,
            aggregation=config["num-clients"],
            passes=config["local-passes"],
            rng=self._rng(config, f"passes/{held.group}/{version}"),
        )

    def _shares_of(self, v: FloatArray, config: dict[str, Any]) -> list[bytes]:
        """enc(v_k), cut by who will decrypt the sum of which feature."""
        blobs: list[bytes] = []
        version = config["versions"][0]
        for number, terms in zip(
            config["openers"], config["opener-terms"], strict=True
        ):
            where = np.asarray(config[f"opener/{number}"])
            for j, row in enumerate(v):
                values = np.where(where >= 0, row[where], 0.0)
                what = (f"sum-{number}-{j}", 0, version)
                blobs += self._encrypt(config, what, values, terms)
        return blobs

    def fit_open(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Decrypt the sum over all clients of v, at some of this client's features."""
        number, version = config["opener"], config["version"]
        sums = [
            self._decrypt(
                config,
                f"sum/{j}",
                (f"sum-{number}-{j}", 0, version),
                config["size"],
                config["terms"],
            )
            for j in range(config["count"])
        ]
        return [np.stack(sums)], 0, {}

    def fit_backup(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """enc(α) of some groups, for clients that lost it."""
        self._learn(config)
        points = self._points(config)
        return as_arrays(self._backups(config, points)), 0, {}

    def _backups(
        self, config: dict[str, Any], points: dict[int, tuple[IntArray, FloatArray]]
    ) -> list[bytes]:
        """enc(α) of the groups that the server wants to keep."""
        steps = {record.group: record.step for record in GroupStep.unpack(config)}
        blobs: list[bytes] = []
        for g in config["backup"]:
            alpha = points[g][1][-1]
            blobs += self._encrypt(config, ("alpha", g, steps[g]), alpha, 1)
        return blobs

    def _points(self, config: dict[str, Any]) -> dict[int, tuple[IntArray, FloatArray]]:
        """Ids and points of the groups, brought to where the server says they stand.

        Raises
        ------
        RestoreNeededError
            This client has not what the server thinks it has.
        """
        points: dict[int, tuple[IntArray, FloatArray]] = {}
        proposing = set(config.get("propose", []))
        needed = {*proposing, *config["backup"]}
        for record in GroupStep.unpack(config):
            g = record.group
            found = self._brought_to(config, record)
            if isinstance(found, str):
                if g in needed:
                    raise RestoreNeededError(found)
                continue
            points[g] = found
            same = self.state.get(f"step/{g}", -1) == record.step
            if same and g not in proposing and record.alpha is None:
                continue  # what it has proposed for this step may yet be used
            ids, known = found
            self.state[f"ids/{g}"] = ids  # type: ignore[assignment]
            self.state[f"points/{g}"] = known
            self.state[f"step/{g}"] = np.array(record.step)
        return points

    def _brought_to(
        self, config: dict[str, Any], record: GroupStep
    ) -> tuple[IntArray, FloatArray] | str:
        """Ids and points of one group, the last being α; or why this cannot be.

        For a group whose step the server has taken since, α ← Σ_j θ_j a_j.
        """
        g, step = record.group, record.step
        held = self._held()[g]
        alpha_id = np.array([record.alpha_id])
        if record.alpha is not None:
            what = ("alpha", g, step)
            alpha = self._decrypt(config, f"alpha/{g}", what, held.size, 1)
            y = self.state["labels"][held.own]
            return alpha_id, loss_of(config).feasible(alpha, y)[None]
        if step == 0:
            return alpha_id, np.zeros((1, held.size))
        if f"points/{g}" not in self.state:
            return f"this client has no α of group {g}"
        ids = self.state[f"ids/{g}"].astype(np.int64)
        known = self.state[f"points/{g}"]
        own_step = int(self.state[f"step/{g}"])
        if own_step == step - 1 and np.isin(record.ids, ids).all():
            # α ← Σ_j θ_j a_j
            alpha = np.asarray(record.weights) @ known[_positions(ids, record.ids)]
            kept = np.asarray(record.keep)[np.isin(record.keep, ids)]
            known = np.vstack([known[_positions(ids, kept)], alpha])
            ids = np.append(kept.astype(np.int64), record.alpha_id)
        elif own_step != step:
            return f"group {g} is at step {step}, this client at {own_step}"
        # what was proposed for this step before is proposed again
        at = int(np.flatnonzero(ids == record.alpha_id)[0])
        return ids[: at + 1], known[: at + 1]


def _positions(ids: IntArray, wanted: Any) -> IntArray:
    """Where the wanted ids stand among the ids."""
    order = np.argsort(ids)
    found: IntArray = order[np.searchsorted(ids, wanted, sorter=order)]
    return found
