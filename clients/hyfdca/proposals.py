"""The steps ``bundle`` and ``line-search`` on a client: proposals for α.

**Why proposals are mixed at random.** The server reads sums over all clients,
V_t = Σ_i a_{t,i} x_i / λN. Were every a_{t,i} one of two numbers, as for the hinge
loss's dual point, some tens of these sums would give whole rows away: which
combinations of them are short is a problem of lattices that takes seconds (the hidden
subset sum problem, Nguyen and Stern, CRYPTO 1999). So a client proposes
α_i + r_i (u_i − α_i) with r_i uniform in [1/2, 1], from the holders' key and z: nobody
but the holders of sample i knows its coefficient. D never falls with any proposal that
is feasible.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from fedtrellis.dual.alignment import MAX_SHARES, GroupStep, HeldGroup
from fedtrellis.dual.weights import (
    BITS,
    OPEN_SUMS,
    SUMS,
    Shifted,
    in_parts,
    report_exponents,
)
from fedtrellis.encryption.fixed_point import Coding, RangeError, Words
from fedtrellis.objectives.losses import weighted
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.broadcast import RestoreNeededError

from .preparation import learn
from .run import Arrays, ClientRun, IntArray, as_arrays, as_bytes, uniform_of

#: Ids and points of a group, the last being α.
Points = tuple[IntArray, FloatArray]

# g of the proximal proposal, in units of margins, or of the conjugate's curvature.
_PROXIMAL = 0.1

# Fractional bits of a sum with which no client asks for fewer: 10^30 has room.
_COARSEST = -40


# ------------------------------------------------------------------------------ phases


def inner_product(run: ClientRun) -> Arrays:
    """enc(x_{k,i}ᵀ w_k) of the samples of some groups, and enc(α) of others."""
    learn(run)
    config, C = run.config, run.config["classes"]
    # by class: shape (r C, n_k)
    products = np.asarray(run.columns @ run.w.T).T
    blobs: list[bytes] = []
    asked = config["products"], config["versions"], config["rows"]
    for g, version, row in zip(*asked, strict=True):
        values = products[row * C : (row + 1) * C, run.held[g].rows]
        # the paper's steps add up shares of several iterations: one label for all
        stale = config["step"] in ("practical", "theoretical")
        sent = (
            ("product", g, version),
            values.reshape(-1),
            MAX_SHARES if stale else None,
        )
        blobs += run.encrypt(run.holders(g), *sent)
    # without any the paper's steps have no points
    kept = _backups(run, _points(run)) if config["backup"] else []
    return as_arrays(blobs) + kept


def propose(run: ClientRun) -> Arrays:
    """Proposals for some groups: their v_k, and sums over their samples.

    With ``secure-sum`` one vector of words, in which all this is hidden; else v_k of
    each group, shape (C, p_k), and the sums beside them.
    """
    learn(run)
    config, C = run.config, run.config["classes"]
    points = _points(run)
    backups = _backups(run, points)
    if not config["propose"]:  # it has to wait, and only takes where it stands
        return backups
    versions = dict(zip(config["propose"], config["versions"], strict=True))
    scores = {g: _scores(run, g, version) for g, version in versions.items()}
    found = {g: _proposal(run, g, versions[g], scores[g], points[g]) for g in versions}
    vectors = [v for v, _ in found.values()]
    reports = [found[g][1] for g in config["report"]]
    if config["secure-sum"]:
        # what was proposed in another wave of this round is something else
        run.state["proposed"] = as_bytes(config["attempt"])
        second = [found[g][1] for g in config["second-report"]]
        return [_hidden(run, vectors, (reports, second)), *backups]
    by_class = [one.reshape(C, SUMS)[:, :OPEN_SUMS].reshape(-1) for one in reports]
    run.numbers = np.concatenate([np.zeros(0), *by_class])
    return [*vectors, *backups]


def backup(run: ClientRun) -> Arrays:
    """enc(α) of some groups, for clients that lost it."""
    learn(run)
    return _backups(run, _points(run))


# --------------------------------------------------------------------------- proposals


def _scores(run: ClientRun, g: int, version: int) -> FloatArray:
    """x_iᵀw of a group's samples, (C, n_g)."""
    config, held = run.config, run.held[g]
    C = config["classes"]
    if g in config["local"]:
        z = np.empty((C, held.size))
        row = dict(zip(config["local"], config["rows"], strict=True))[g]
        part = run.rows_of(held)
        z[:, held.by_row] = [part @ one for one in run.w[row * C : (row + 1) * C]]
        return z
    blobs, label = config[f"scores/{g}"], ("product", g, version)
    return run.decrypt(run.holders(g), blobs, label, C * held.size).reshape(C, -1)


def _proposal(
    run: ClientRun, g: int, version: int, z: FloatArray, known: Points
) -> tuple[FloatArray, FloatArray]:
    """One group's proposal, which it remembers.

    Returns its v_k, shape (C, p_k); and of each class ``SUMS``.
    """
    config, held = run.config, run.held[g]
    ids, remembered = known
    alpha = remembered[-1].reshape(config["classes"], held.size)
    y, s = run.targets(held), run.weights_of(held)
    loss = weighted(run.loss, s)
    moves = run.drawn(held, version)
    point, moved = alpha.copy(), _moved(run, held, moves, alpha, z)
    if config["secure-sum"]:
        # a'_i = α_i + r_i (u_i − α_i): see the module
        r = _mixing(run, g, version, z)[:, moves]
        moved = alpha[:, moves] + r * (moved - alpha[:, moves])
    point[:, moves] = moved
    point, order = loss.feasible(point, y), held.by_row
    # v_k = (1/λN) Σ_i α_i x_{k,i}
    v = np.ascontiguousarray((run.rows_of(held).T @ point[:, order].T).T) / run.scale
    numbers = []
    for c in range(config["classes"]):
        every = [a[order] for a in (alpha[c], point[c])]
        own = weighted(run.loss, None if s is None else s[c, order])
        z_c, y_c = z[c, order], y[c, order]
        numbers.append(float(own.value(z_c, y_c).sum()))
        numbers += [float(own.conjugate(a, y_c).sum()) for a in every]
        numbers += [float(a @ z_c) for a in every]
    run.state[f"points/{g}"] = np.vstack([remembered, point.reshape(1, -1)])
    run.state[f"ids/{g}"] = np.append(ids, ids[-1] + 1)
    return v, np.array(numbers)


def _moved(
    run: ClientRun, held: HeldGroup, moves: IntArray, alpha: FloatArray, z: FloatArray
) -> FloatArray:
    """α of the samples that move, (C, n), as the step proposes it."""
    s, scale, config = run.weights_of(held), run.scale, run.config
    loss = weighted(run.loss, None if s is None else s[:, moves])
    alpha, z, y = alpha[:, moves], z[:, moves], run.targets(held)[:, moves]
    if config["step"] == "line-search":
        q = run.state["norms"][held.own][moves]
    # the Poisson loss's dual point has no bound: e^z of a w that is far off
    elif config["secure-sum"] or config["loss"] == "poisson":
        # argmax of −l*(−a) − z a − (g/2)(a − α)²: as if ‖x_i‖² were g λN
        q = _PROXIMAL * scale * loss.dual_curvature(y)
    else:
        return loss.dual_point(z, y)
    return alpha + loss.coordinate_step(alpha, z, q, y, scale)


# -------------------------------------------------------------------------- hidden sums


def _mixing(run: ClientRun, g: int, version: int, z: FloatArray) -> FloatArray:
    """R of a group's samples, in [1/2, 1], shape (C, n_g): the same on all holders.

    With one r for all classes the difference of two classes' sums would be one over the
    samples of these two classes alone. They follow from z: asked the same again,
    clients propose the same; asked anything else, they take other numbers.
    """
    if run.config["encryption"] == "none":
        # nothing is hidden: the same in every run, in whatever order a key puts the
        # samples
        rng = np.random.default_rng([0, version])
        return rng.uniform(0.5, 1.0, size=z.shape)[:, run.ranks(run.held[g])]
    step = int(run.state[f"step/{g}"])
    u = run.uniform(g, z.size, "proposal", version, step, z.tobytes())
    return 0.5 + 0.5 * u.reshape(z.shape)


def _hidden(
    run: ClientRun,
    vectors: Sequence[FloatArray],
    reports: Sequence[Sequence[FloatArray]],
) -> Words:
    """The client's term of the sum over all, shape (C p_k + 4 C ``SUMS`` + 1,).

    v row by row, then whole parts and rests of the two lists of sums, then a count.
    """
    # what this attempt got before, if it is the last that got anything
    answered = run.block.answered(run.config["attempt"])
    if answered is not None:
        return answered
    v = np.sum(vectors, axis=0)
    if run.rules.noise:
        v = v + run.rules.noise * _noise(run, v.shape)
    terms, zero = len(run.agreement.members), np.zeros(run.config["classes"] * SUMS)
    sums = np.stack([np.sum([zero, *own], axis=0) for own in reports])
    bits = run.config.get("bits", BITS)
    try:
        rows = Coding(bits).words(v, terms)
        ends = in_parts(sums, terms, report_exponents(bits))
    except RangeError:
        if bits > _COARSEST:
            raise RangeError(
                f"{run.who}: its part of a sum is too large for {bits} fractional bits"
            ) from None
        # α of a loss of numbers is as large as the labels
        signs = run.loss.labels == "signs"
        what = "the features" if signs else "the features or the labels"
        raise SettingsError(
            f"{run.who}: its part of a sum is too large to be hidden; scale {what} "
            "down, raise regularization, or set hyfdca.standardize = true, which "
            "brings raw columns to one scale"
        ) from None
    return run.hidden(rows, ends.reshape(-1))


def _noise(run: ClientRun, shape: tuple[int, ...]) -> FloatArray:
    """Gaussian numbers, in units of the most that one sample adds to v_k."""
    from scipy.special import ndtri

    u = uniform_of(secrets.token_bytes(32), int(np.prod(shape))).reshape(shape)
    columns = run.columns.features if isinstance(run.columns, Shifted) else run.columns
    values = getattr(columns, "data", columns)
    largest = float(np.abs(np.asarray(values)).max(initial=0.0))
    if run.weighs:
        found = [run.weights_of(held) for held in run.held.values()]
        largest *= max(float(s.max()) for s in found if s is not None)
    noise: FloatArray = ndtri(u + 2.0**-54) * (largest / run.scale)
    return noise


# ---------------------------------------------------------------------- where α stands


def _backups(run: ClientRun, points: Mapping[int, Points]) -> Arrays:
    """enc(α) of the groups that the server wants to keep."""
    records = GroupStep.unpack(run.config, run.config["classes"])
    steps = {record.group: record.step for record in records}
    blobs: list[bytes] = []
    for g in run.config["backup"]:
        label = ("alpha", g, steps[g], run.config.get("tag", b"").hex())
        blobs += run.encrypt(run.holders(g), label, points[g][1][-1], 1)
    return as_arrays(blobs)


def _points(run: ClientRun) -> dict[int, Points]:
    """Ids and points of the groups, brought to where the server says they stand."""
    points: dict[int, Points] = {}
    proposing = set(run.config.get("propose", []))
    needed = {*proposing, *run.config["backup"]}
    for record in GroupStep.unpack(run.config, run.config["classes"]):
        g = record.group
        found = _brought_to(run, record)
        if isinstance(found, str):
            if g in needed:
                raise RestoreNeededError(found)
            continue
        points[g] = found
        same = run.state.get(f"step/{g}", -1) == record.step
        if same and g not in proposing and record.alpha is None:
            continue  # what it has proposed for this step may yet be used
        run.state[f"ids/{g}"], run.state[f"points/{g}"] = found
        run.state[f"step/{g}"] = np.array(record.step)
        run.state[f"tag/{g}"] = as_bytes(run.config.get("tag", b""))
    return points


def _brought_to(run: ClientRun, record: GroupStep) -> Points | str:
    """Ids and points of one group, the last being α; or why this cannot be.

    A step's number is not enough to know it by: a wave may have been repeated, or a
    group gone back. With secure sums ``tag`` is the attempt whose proposals were mixed.
    """
    g, step, state = record.group, record.step, run.state
    held, C = run.held[g], run.config["classes"]
    tag = run.config.get("tag", b"")
    alpha_id = np.array([record.alpha_id])
    if record.alpha is not None:
        opened = record.alpha, ("alpha", g, step, tag.hex()), C * held.size
        alpha = run.decrypt(run.holders(g), *opened, whole=False)
        y, loss = run.targets(held), weighted(run.loss, run.weights_of(held))
        return alpha_id, loss.feasible(alpha.reshape(y.shape), y).reshape(1, -1)
    if step == 0:
        return alpha_id, np.zeros((1, C * held.size))
    if f"points/{g}" not in state:
        return f"this client has no α of group {g}"
    ids, known = state[f"ids/{g}"].astype(np.int64), state[f"points/{g}"]
    own_step, secure = int(state[f"step/{g}"]), run.config["secure-sum"]
    proposed = state.get("proposed", np.zeros(0, np.uint8)).tobytes()
    before = own_step == step - 1 and (not secure or proposed == tag)
    if before and len(record.ids) and np.isin(record.ids, ids).all():
        # α ← Σ_j θ_j a_j, of each class its own
        points = known[_positions(ids, record.ids)].reshape(-1, C, held.size)
        weights = np.asarray(record.weights).reshape(C, -1)
        alpha = np.einsum("cj,jcn->cn", weights, points).reshape(-1)
        stay = np.asarray(record.keep)[np.isin(record.keep, ids)]
        known = np.vstack([known[_positions(ids, stay)], alpha])
        ids = np.append(stay.astype(np.int64), record.alpha_id)
    elif own_step != step or (secure and state[f"tag/{g}"].tobytes() != tag):
        return f"group {g} is at step {step}, this client at {own_step}"
    # what was proposed for this step before is proposed again
    at = int(np.flatnonzero(ids == record.alpha_id)[0])
    return ids[: at + 1], known[: at + 1]


def _positions(ids: IntArray, wanted: Any) -> IntArray:
    """Where the wanted ids stand among the ids."""
    order = np.argsort(ids)
    found: IntArray = order[np.searchsorted(ids, wanted, sorter=order)]
    return found


# -------------------------------------------------------------------- the paper's steps


def dual(run: ClientRun) -> Arrays:
    """LocalDualMethod: enc(γ_t/|B_n| Δα) of H samples (algorithms 3 and 5)."""
    learn(run, openly=True)
    config, loss, n = run.config, run.loss, run.features.shape[0]
    λ, γ, c_k = config["regularization"], config["gamma"], config["c"]
    if config["moved"] and "alpha" not in run.state:
        raise RestoreNeededError("this client has no α")
    alpha_all = run.state.get("alpha", np.zeros(n))
    # H samples, drawn without replacement, of all that this client has
    H = max(1, ceil(config["local-fraction"] * n - 1e-9))
    key = run.cipher((run.part.client_id,)).derive("draw", config["iteration"])
    drawn = np.zeros(n, dtype=bool)
    drawn[np.argsort(uniform_of(key, n))[:H]] = True
    local = np.asarray(run.columns @ run.w[0])
    blobs: list[bytes] = []
    numbers: list[float] = []
    for g in config["dual"]:
        held, holders = run.held[g], run.holders(g)
        alpha, y = alpha_all[held.own], run.state["labels"][held.own]
        if len(holders) == 1:
            z = local[held.rows]
        elif f"scores/{g}" in config:
            blobs_of, label = config[f"scores/{g}"], ("product", g, 0)
            z = run.decrypt(holders, blobs_of, label, len(alpha), whole=False)
        else:
            z = np.zeros(len(alpha))
        if config["step"] == "practical":
            delta = loss.coordinate_step(alpha, z, 1.0, y, run.scale)
        else:
            delta = loss.theoretical_step(alpha, z, y, c_k, γ, λ)
        delta = np.where(drawn[held.rows], delta, 0.0)
        share = γ / len(holders) * delta
        blobs += run.encrypt(holders, ("dual", g), share, MAX_SHARES)
        if g in config["report"]:
            conjugates = loss.conjugate(loss.feasible(alpha, y), y)
            sums = loss.value(z, y), conjugates
            numbers += [float(one[held.by_row].sum()) for one in sums]
    run.numbers = np.array(numbers)
    return as_arrays(blobs)


def primal(run: ClientRun) -> Arrays:
    """PrimalAggregation: ŵ_k/(λN) = (1/λN) Σ_i α_i x_{k,i} (algorithm 4)."""
    learn(run, openly=True)
    n = run.features.shape[0]
    alpha, in_rows = np.zeros(n), np.empty(n)
    for g in run.config["moved"]:
        held, blobs_of = run.held[g], run.config[f"alpha/{g}"]
        alpha[held.own] = run.decrypt(
            run.holders(g), blobs_of, ("dual", g), held.size, whole=False
        )
    run.state["alpha"] = alpha
    in_rows[run.state["rows"].astype(int)] = alpha
    blobs: list[bytes] = []
    for g in run.config["renew"]:
        renewed = ("dual", g), alpha[run.held[g].own], MAX_SHARES
        blobs += run.encrypt(run.holders(g), *renewed)
    v = np.asarray(run.columns.T @ in_rows) / run.scale
    return [v, *as_arrays(blobs)]
