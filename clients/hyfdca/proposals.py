"""The iteration with the steps ``bundle`` and ``line-search``: proposals for α."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.group_steps import GroupStep, next_chain
from fedtrellis.dual.held_groups import MAX_SHARES, HeldGroup
from fedtrellis.dual.local_passes import local_dual_passes
from fedtrellis.dual.questions import query_of, weights_mark
from fedtrellis.encryption.labels import encode_items
from fedtrellis.objectives.losses import weighted
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import RestoreNeededError

from .base import Config, Fit, IntArray, as_arrays, loss_of
from .hidden_sums import HiddenSums

__all__ = ["Proposals"]


# g of the proximal proposal, in units of margins, or of the conjugate's curvature.
# Measured: `python -m reproduce hyfdca proposals`.
_PROXIMAL = 0.1


class Proposals(HiddenSums):
    """Inner products, proposals and mixtures of α, and backups of it.

    **Why proposals are mixed at random.** The server reads sums over all clients,
    V_t = Σ_i a_{t,i} x_i / λN. Were every a_{t,i} one of two numbers, as for the hinge
    loss's dual point, some tens of these sums would give whole rows away: which
    combinations of them are short is a problem of lattices that takes seconds (the
    hidden subset sum problem, Nguyen and Stern, CRYPTO 1999). So a client proposes
    α_i + r_i (u_i − α_i) with r_i uniform in [1/2, 1], from the holders' key and z:
    nobody but the holders of sample i knows its coefficient. D never falls with any
    proposal that is feasible.
    """

    def fit_inner_product(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        """enc(x_{k,i}ᵀ w_k) of the samples of some groups, and enc(α) of others."""
        pinned = self._learn(config)
        (w,) = parameters
        C = pinned["classes"]
        query = self._query(pinned, w) if pinned["secure-sum"] else ""
        for version, row in zip(pinned["versions"], pinned["rows"], strict=True):
            self._grant(pinned, version, w[row * C : (row + 1) * C], query)
        # by class: shape (r C, n_k)
        products = np.asarray(self.columns @ w.T).T
        blobs: list[bytes] = []
        for g, version, row in zip(
            pinned["products"], pinned["versions"], pinned["rows"], strict=True
        ):
            held = self._held()[g]
            values = products[row * C : (row + 1) * C, held.rows]
            drawn = self._drawn(pinned, held, version)
            if drawn is not None and pinned["slots"] == "chosen":
                # as few ciphertexts as they need; which samples these are is not sent
                values = values[:, drawn]
            # the paper's steps add up shares of several iterations: one label for all
            stale = pinned["step"] in ("practical", "theoretical")
            terms = MAX_SHARES if stale else None
            label = ("product", g, version, query)
            flat = values.reshape(-1)
            blobs += self._encrypt(self._holders(g), label, flat, terms)
        if pinned["backup"]:
            blobs += self._backups(pinned, self._points(pinned))
        return as_arrays(blobs), 0, {}

    def fit_propose(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        """Proposals for some groups: their v_k, and sums over their samples.

        With ``secure-sum`` one vector of words, in which all this is hidden, and the
        next nonce; else v_k of each group, shape (c, p_k), and the sums beside them.
        """
        pinned = self._learn(config, "propose")
        (w,) = parameters
        if not pinned["propose"]:  # it has to wait, and only takes where it stands
            points = self._points(pinned)
            return as_arrays(self._backups(pinned, points)), 0, {}
        tag = None
        if pinned["secure-sum"]:
            self._check_whole(pinned, w)
            tag = self._tag(pinned, w)
            if tag is None:
                # the server does not know the nonce that is next
                nonce = self._open_ledger(pinned).nonce
                return [np.zeros(0, np.uint64), *as_arrays([nonce])], 0, {}
        points = self._points(pinned)
        backups = self._backups(pinned, points)
        if tag is not None:
            self._granted(pinned, w)
            # what was proposed in another wave of this round is something else
            self.state["tag"] = np.frombuffer(tag, dtype=np.uint8)
        elif w.size:
            self._grant(pinned, pinned["versions"][0], w[: pinned["classes"]])
        scores = {
            g: self._scores(pinned, g, version, w)
            for g, version in zip(pinned["propose"], pinned["versions"], strict=True)
        }
        mark = self._mark(pinned, scores, points)
        self._count_answer(pinned, mark)
        vectors: list[FloatArray] = []
        sums: dict[str, list[FloatArray]] = {"report": [], "second-report": []}
        for g, version in zip(pinned["propose"], pinned["versions"], strict=True):
            v, numbers = self._propose(pinned, g, version, scores[g], points[g])
            vectors.append(v)
            for key, found in sums.items():
                if g in pinned[key]:
                    found.append(numbers)
        if tag is None:
            self._open_ledger(pinned).save()
            C = pinned["classes"]
            kept = 2 + len(vectors[0]) // C  # Σ l and Σ l*; those of a z are for sums
            by_class = (one.reshape(C, -1)[:, :kept] for one in sums["report"])
            self.numbers = np.concatenate(
                [np.zeros(0), *(one.reshape(-1) for one in by_class)]
            )
            return [*vectors, *as_arrays(backups)], 0, {}
        total = np.sum(vectors, axis=0)
        words = self._hidden(pinned, tag, mark, total, sums, scores)
        nonce = self._open_ledger(pinned).nonce
        return [words, *as_arrays([nonce, *backups])], 0, {}

    def _query(self, config: Config, w: FloatArray) -> str:
        """The digest of everybody's w, in which this client's is what it was sent."""
        agreement, marks = self.secrets.agreement, config["weights"]
        shape = config["classes"], len(self.feature_names)
        one_w = w.shape == shape and not any(config["rows"])
        if not one_w or len(marks) != len(agreement.members):
            raise ValueError("inner products are made at one w of all members")
        if marks[agreement.index(self.client_id)] != weights_mark(w):
            raise ValueError("this client's weights are not those that the server says")
        return query_of(marks)

    def _mark(
        self,
        config: Config,
        scores: Mapping[int, FloatArray],
        points: Mapping[int, tuple[IntArray, FloatArray]],
    ) -> bytes:
        """A digest of all that proposals follow from: w, z, and how α came about."""
        items: list[bytes | int] = []
        for (g, z), version in zip(scores.items(), config["versions"], strict=True):
            hidden = config["secure-sum"]
            alpha = self._chain(g) if hidden else points[g][1][-1].tobytes()
            items += [g, version, alpha, z.tobytes()]
        return hashlib.sha256(encode_items(*items)).digest()

    def _propose(
        self,
        config: Config,
        g: int,
        version: int,
        z: FloatArray,
        known: tuple[IntArray, FloatArray],
    ) -> tuple[FloatArray, FloatArray]:
        """One group's proposals, which it remembers.

        Returns
        -------
        (ndarray of shape (c C, p_k), ndarray of shape (C (2 + c + 1 + c),))
            v_k of each proposal, class by class; and of each class Σ l_i(z_i),
            Σ l_i*(−α_i) of α and of each proposal, and Σ α_i z_i of α and of each
            proposal.
        """
        held = self._held()[g]
        ids, remembered = known
        alpha = remembered[-1].reshape(config["classes"], held.size)
        y = self._targets(config, held)
        s = self._weights_of(config, held)
        loss = weighted(loss_of(config), s)
        scale = config["regularization"] * config["num-samples-all"]
        drawn = self._drawn(config, held, version)
        whole = np.array_equal(held.rows, np.arange(self.features.shape[0]))
        part = self.columns if whole else self.columns[held.rows]
        kinds = config["local-proposals" if g in config["local"] else "proposals"]
        moves = np.arange(held.size) if drawn is None else drawn
        new = []
        for number, kind in enumerate(kinds):
            point = alpha.copy()
            moved = self._moved(config, kind, held, version, moves, alpha, z)
            if config["secure-sum"]:
                # a'_i = α_i + r_i (u_i − α_i): see Proposals
                r = self._mixing(config, g, number, version, z)[:, moves]
                moved = alpha[:, moves] + r * (moved - alpha[:, moves])
            point[:, moves] = moved
            new.append(loss.feasible(point, y))
        proposals = np.stack(new)
        # v_k = (1/λN) Σ_i α_i x_{k,i}
        rows = proposals.reshape(-1, held.size)
        v = np.ascontiguousarray((part.T @ rows.T).T) / scale
        numbers = []
        for c in range(config["classes"]):
            every = [alpha[c], *proposals[:, c]]
            own = weighted(loss_of(config), None if s is None else s[c])
            numbers.append(float(own.value(z[c], y[c]).sum()))
            numbers += [float(own.conjugate(a, y[c]).sum()) for a in every]
            numbers += [float(a @ z[c]) for a in every]
        first = int(ids[-1]) + 1
        points = proposals.reshape(len(proposals), -1)
        self.state[f"points/{g}"] = np.vstack([remembered, points])
        self.state[f"ids/{g}"] = np.append(ids, np.arange(first, first + len(new)))
        return v, np.array(numbers)

    def _scores(
        self, config: Config, g: int, version: int, w: FloatArray
    ) -> FloatArray:
        """x_iᵀw of a group's samples, (C, n_g); of a shared one's not drawn, 0."""
        held, C = self._held()[g], config["classes"]
        if g in config["local"]:
            row = dict(zip(config["local"], config["rows"], strict=True))[g]
            whole = np.array_equal(held.rows, np.arange(self.features.shape[0]))
            part = self.columns if whole else self.columns[held.rows]
            return np.stack([part @ one for one in w[row * C : (row + 1) * C]])
        z = np.zeros((C, held.size))
        drawn = self._drawn(config, held, version)
        only = config["slots"] == "chosen" and drawn is not None
        where = drawn if only and drawn is not None else np.arange(held.size)
        z[:, where] = self._decrypt(
            config,
            self._holders(g),
            config[f"scores/{g}"],
            ("product", g, version, config.get("query", "")),
            C * len(where),
        ).reshape(C, len(where))
        return z

    def _moved(
        self,
        config: Config,
        kind: str,
        held: HeldGroup,
        version: int,
        moves: IntArray,
        alpha: FloatArray,
        z: FloatArray,
    ) -> FloatArray:
        """α of the samples that move, (C, n), as one kind of proposal has it."""
        s = self._weights_of(config, held)
        plain = loss_of(config)
        loss = weighted(plain, None if s is None else s[:, moves])
        scale = config["regularization"] * config["num-samples-all"]
        alpha, z = alpha[:, moves], z[:, moves]
        y = self._targets(config, held)[:, moves]
        if kind == "dual-point":
            return loss.dual_point(z, y)
        if kind == "proximal":
            # argmax of −l*(−a) − z a − (g/2)(a − α)²: as if ‖x_i‖² were g λN
            q = _PROXIMAL * scale * loss.dual_curvature(y)
            return alpha + loss.coordinate_step(alpha, z, q, y, scale)
        q = self.state["norms"][held.own][moves]
        if kind == "coordinate":
            return alpha + loss.coordinate_step(alpha, z, q, y, scale)
        cipher = self.secrets.cipher(self._holders(held.group))
        rng = self._rng(cipher, "passes", held.group, version)
        each = [
            local_dual_passes(
                plain,  # passes and weights do not go together
                self.columns,
                held.rows[moves],
                *(alpha[c], z[c], y[c]),
                q,
                scale,
                aggregation=config["num-clients"],
                passes=config["local-passes"],
                rng=rng,
            )
            for c in range(len(z))
        ]
        return np.stack(each)

    def fit_backup(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """enc(α) of some groups, for clients that lost it."""
        pinned = self._learn(config, "propose")
        points = self._points(pinned)
        return as_arrays(self._backups(pinned, points)), 0, {}

    def _backups(
        self, config: Config, points: dict[int, tuple[IntArray, FloatArray]]
    ) -> list[bytes]:
        """enc(α) of the groups that the server wants to keep."""
        records = GroupStep.unpack(config, config["classes"])
        steps = {record.group: record.step for record in records}
        blobs: list[bytes] = []
        for g in config["backup"]:
            alpha = points[g][1][-1]
            label = ("alpha", g, steps[g], self._chain(g).hex())
            blobs += self._encrypt(self._holders(g), label, alpha, 1)
        return blobs

    def _points(self, config: Config) -> dict[int, tuple[IntArray, FloatArray]]:
        """Ids and points of the groups, brought to where the server says they stand.

        Raises
        ------
        RestoreNeededError
            This client has not what the server thinks it has.
        """
        points: dict[int, tuple[IntArray, FloatArray]] = {}
        proposing = set(config.get("propose", []))
        needed = {*proposing, *config["backup"]}
        for record in GroupStep.unpack(config, config["classes"]):
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
            if config["secure-sum"] and config["chain"]:
                chain = np.frombuffer(config["chain"], dtype=np.uint8)
                self.state[f"chain/{g}"] = chain  # type: ignore[assignment]
            else:
                self.state.pop(f"chain/{g}", None)
        return points

    def _is_of(self, config: Config, record: GroupStep) -> bool:
        """Whether what this client proposed last is what a mixture is of.

        The number of a step is not enough: a wave may have been repeated, and after a
        loss a group may have gone back.
        """
        if not config["secure-sum"]:
            return True
        if "tag" not in self.state or self.state["tag"].tobytes() != config["tag"]:
            return False
        mixture = record.step, record.ids, record.weights, record.keep
        chain = next_chain(self._chain(record.group), config["tag"], *mixture)
        if chain != config["chain"]:
            raise ValueError(f"the mixture of group {record.group} is another one")
        return True

    def _is_at(self, config: Config, g: int) -> bool:
        """Whether this client's α came about as the server says."""
        return not config["secure-sum"] or self._chain(g) == config["chain"]

    def _brought_to(
        self, config: Config, record: GroupStep
    ) -> tuple[IntArray, FloatArray] | str:
        """Ids and points of one group, the last being α; or why this cannot be.

        For a group whose step the server has taken since, α ← Σ_j θ_j a_j.
        """
        g, step = record.group, record.step
        held, C = self._held()[g], config["classes"]
        alpha_id = np.array([record.alpha_id])
        if record.alpha is not None:
            alpha = self._decrypt(
                config,
                self._holders(g),
                record.alpha,
                ("alpha", g, step, config.get("chain", b"").hex()),
                C * held.size,
                None,
            )
            y, s = self._targets(config, held), self._weights_of(config, held)
            loss = weighted(loss_of(config), s)
            return alpha_id, loss.feasible(alpha.reshape(y.shape), y).reshape(1, -1)
        if step == 0:
            if config.get("chain"):
                raise ValueError("nothing has come before step 0")
            return alpha_id, np.zeros((1, C * held.size))
        if f"points/{g}" not in self.state:
            return f"this client has no α of group {g}"
        ids = self.state[f"ids/{g}"].astype(np.int64)
        known = self.state[f"points/{g}"]
        own_step = int(self.state[f"step/{g}"])
        before = own_step == step - 1 and self._is_of(config, record)
        if before and np.isin(record.ids, ids).all():
            weights = np.asarray(record.weights).reshape(C, -1)
            sums = weights.sum(axis=1)
            if not (weights.min() >= 0.0 and (np.abs(sums - 1.0) < 1e-6).all()):
                raise ValueError(f"the mixture of group {g} is none: {weights}")
            # α ← Σ_j θ_j a_j, of each class its own
            points = known[_positions(ids, record.ids)].reshape(-1, C, held.size)
            alpha = np.concatenate(
                [own @ points[:, c] for c, own in enumerate(weights)]
            )
            kept = np.asarray(record.keep)[np.isin(record.keep, ids)]
            known = np.vstack([known[_positions(ids, kept)], alpha])
            ids = np.append(kept.astype(np.int64), record.alpha_id)
        elif own_step != step or not self._is_at(config, g):
            return f"group {g} is at step {step}, this client at {own_step}"
        # what was proposed for this step before is proposed again
        at = int(np.flatnonzero(ids == record.alpha_id)[0])
        return ids[: at + 1], known[: at + 1]


def _positions(ids: IntArray, wanted: Any) -> IntArray:
    """Where the wanted ids stand among the ids."""
    order = np.argsort(ids)
    found: IntArray = order[np.searchsorted(ids, wanted, sorter=order)]
    return found
