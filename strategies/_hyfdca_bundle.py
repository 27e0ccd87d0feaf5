"""HyFDCA's iteration with the steps ``bundle`` and ``line-search``.

Samples that move together make a **unit**: a group, or with secure sums all of them. A
unit goes through its stages at its own pace, and each iteration takes it as far as the
clients that are there allow:

    collect   its holders send enc(x_{k,i}ᵀ w_k) for one w, the unit's snapshot;
    propose   they are sent the sum, and send v_k of their proposals;
    open      (secure sums) those who hold a feature decrypt the sum of the v_k.

When a unit is through, its proposals go into the server's bundle, and the search for
the best mixture is exact whatever w has become meanwhile. So a sample moves only when
all its holders have taken part, though not all in one iteration, D never falls, and
w = w(α) holds at every moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedtrellis.dual.bundle import DualBundle, Mixture
from fedtrellis.server.method import Answer
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.protocol import identity_order

from ._hyfdca_steps import Steps, as_array, read_blobs, split_blobs
from .hybrid import ROWS, Blobs, add_shares

if TYPE_CHECKING:
    from .hyfdca import HyFDCA

__all__ = ["BundleSteps"]

# A search over more points than this would take longer than the clients do.
_MAX_POINTS = 400
_MAX_UNITS = 100


@dataclass
class Unit:
    """Samples that move together, and how far they have come."""

    groups: list[int]
    step: int = 0  # mixtures applied so far
    mixture: Mixture | None = None  # the last one
    snapshot: FloatArray | None = None  # the w that the proposals are made at
    version: int = -1  # which w that is
    products: dict[tuple[str, int], Blobs] = field(default_factory=dict)
    scores: dict[int, Blobs] = field(default_factory=dict)  # enc(x_iᵀ w), by group
    answers: dict[tuple[str, int], FloatArray] = field(default_factory=dict)
    reports: dict[int, FloatArray] = field(default_factory=dict)
    shares: dict[str, dict[str, list[Blobs]]] = field(default_factory=dict)
    opened: dict[str, FloatArray] = field(default_factory=dict)
    # enc(α) of each group and the step it is of; what of them made one backup
    alphas: dict[int, tuple[int, Blobs]] = field(default_factory=dict)
    backup: tuple[dict[int, tuple[int, Blobs]], FloatArray | None, float] = field(
        default_factory=lambda: ({}, None, 0.0)
    )

    def begin(self, w: FloatArray, version: int) -> None:
        """Start over, at a new w."""
        self.snapshot, self.version = w, version
        for stage in (self.products, self.scores, self.answers, self.reports):
            stage.clear()
        self.shares.clear()
        self.opened.clear()


class BundleSteps(Steps):
    """The server's side of an iteration; see the module."""

    def __init__(self, method: HyFDCA) -> None:
        super().__init__(method)
        groups = range(len(self.alignment.groups))
        lists = [list(groups)] if method.secure_sum else self._lists()
        self.units = [Unit(group) for group in lists]
        self.unit_of = {g: u for u, unit in enumerate(self.units) for g in unit.groups}
        self.bundle = DualBundle(
            len(self.alignment.feature_names),
            len(self.units),
            method.regularization,
            min(method.remembered, max(3, _MAX_POINTS // len(self.units))),
        )
        # holders that lost what they remembered of a group
        self.bare: set[tuple[str, int]] = set()
        # groups of whose α each client was asked a backup in this wave
        self._wished: dict[str, list[int]] = {}
        self._unhealed: set[tuple[str, int]] = set()
        self.w = self.bundle.w
        self.version = 0
        self.certified = self.w
        self.openers = self._choose_openers() if method.secure_sum else {}
        # who has a share in the sum that each of them opens
        self.contributors = {
            opener: [
                name
                for name in method.clients
                if np.isin(columns, self.alignment.columns[name]).any()
            ]
            for opener, columns in self.openers.items()
        }

    def _lists(self) -> list[list[int]]:
        """The units' groups: one each, unless there are too many to search over."""
        groups = self.alignment.groups
        lists: list[list[int]] = []
        for shared in (True, False):  # they may differ in what they propose
            own = [g for g, group in enumerate(groups) if group.shared == shared]
            room = max(1, _MAX_UNITS * len(own) // len(groups))
            parts = np.array_split(own, min(len(own), room)) if own else []
            lists += [part.tolist() for part in parts]
        return lists

    # ------------------------------------------------------------------- the iteration

    def iterate(
        self,
        grid: Grid,
        server_round: int,
        extra: Mapping[str, Any],
        available: Sequence[str],
        timeout: float,
    ) -> tuple[set[str], dict[str, float]]:
        """One iteration; returns whose answers were used, and the metrics."""
        self._begin(grid, server_round, extra, timeout)
        for unit in self.units:
            if unit.snapshot is None:
                unit.begin(self.w, self.version)
        used = self._collect(available)
        self._heal(available)
        used |= self._propose(available)
        if self.method.secure_sum:
            used |= self._open(available)
        metrics = self._search()
        return used, metrics

    def _collect(self, available: Sequence[str]) -> set[str]:
        """Inner products of the units' snapshots, for the groups that are shared.

        Whether a ciphertext is whole is seen when it is added to the others: those
        that are not are asked for again at once, as if they had been lost.
        """
        taken: set[str] = set()
        asked: Sequence[str] = available
        for _ in range(1 + self.method.retries):
            missing = {name: self._missing_products(name) for name in asked}
            missing = {name: groups for name, groups in missing.items() if groups}
            if not missing:
                break
            taken |= self._ask_products(missing, available)
            asked = sorted(self._add_complete_products(), key=identity_order)
        return taken

    def _missing_products(self, name: str) -> list[int]:
        """The groups of which a client's inner products are not at hand."""
        missing = []
        for g in self._shared_groups(name):
            unit = self.units[self.unit_of[g]]
            if g not in unit.scores and (name, g) not in unit.products:
                missing.append(g)
        return missing

    def _ask_products(
        self, missing: Mapping[str, list[int]], available: Sequence[str]
    ) -> set[str]:
        def numbers(name: str) -> dict[str, Any]:
            groups = missing[name]
            vectors, rows = self._snapshots(groups)
            return {
                **self._extra,
                **self._instructions(name),
                **self._backup_wish(name, available),
                ROWS: self.method.own(name, *vectors),
                "products": groups,
                "versions": [self.units[self.unit_of[g]].version for g in groups],
                "rows": rows,
                "slots": self.method.slots,
            }

        def take(answer: Answer) -> None:
            wish = self._wished.get(answer.client, [])
            groups = missing[answer.client]
            counts = [self._blocks(g) for g in [*groups, *wish]]
            parts = split_blobs(read_blobs(answer.arrays), counts)
            for g, part in zip(groups, parts[: len(groups)], strict=True):
                unit = self.units[self.unit_of[g]]
                unit.products[answer.client, g] = part
            self._keep_alphas(wish, parts[len(groups) :])

        return self._ask("train.inner_product", numbers, list(missing), take)

    def _add_complete_products(self) -> set[str]:
        """Add up what is complete; returns whose products have to be had again."""
        again: set[str] = set()
        for unit in self.units:
            for g in unit.groups:
                holders = self.alignment.groups[g].holders
                if g not in unit.scores and all(
                    (name, g) in unit.products for name in holders
                ):
                    again |= self._add_products(unit, g, holders)
        return again

    def _add_products(self, unit: Unit, g: int, holders: Sequence[str]) -> set[str]:
        """enc(x_iᵀ w) = Σ over B_i of enc(x_{k,i}ᵀ w_k)."""
        shares = {name: unit.products[name, g] for name in holders}
        total, spoilt = self._add(shares)
        if total is not None:
            unit.scores[g] = total
        for name in spoilt or holders:
            del unit.products[name, g]
        return spoilt

    def _propose(self, available: Sequence[str]) -> set[str]:
        """Proposals of the groups whose inner products are known."""
        missing: dict[str, list[int]] = {}
        for name in available:
            wanted = [
                g
                for g in self.alignment.client_groups(name)
                if self._ready(g)
                and (name, g) not in self.units[self.unit_of[g]].answers
                and (name, g) not in self._unhealed
            ]
            if self._whole(name, wanted):
                missing[name] = wanted
        if not missing:
            return set()
        asked: dict[str, list[int]] = {}

        def numbers(name: str) -> dict[str, Any]:
            # one that turned out to have lost its state may have to wait
            groups = [g for g in missing[name] if self._has_alpha(name, g)]
            groups = groups if self._whole(name, groups) else []
            asked[name] = groups
            local = [g for g in groups if not self.alignment.groups[g].shared]
            vectors, rows = self._snapshots(local)
            config = {
                **self._extra,
                **self._instructions(name),
                **self._backup_wish(name, available),
                "propose": groups,
                "local": local,
                "rows": rows,
                "proposals": self._kinds(shared=True),
                "local-proposals": self._kinds(shared=self.method.secure_sum),
                "versions": [self.units[self.unit_of[g]].version for g in groups],
                "local-passes": self.method.local_passes,
                "slots": self.method.slots,
                "report": [g for g in groups if self._reporter(g) == name],
            }
            if vectors:
                config[ROWS] = self.method.own(name, *vectors)
            for g in groups:
                unit = self.units[self.unit_of[g]]
                if g in unit.scores:
                    config[f"scores/{g}"] = unit.scores[g]
            if self.method.secure_sum:
                config |= self._opening_of(name)
            return config

        def take(answer: Answer) -> None:
            self._take_proposals(answer, asked[answer.client])

        before = len(self.method._traffic.rejected)
        taken = self._ask("train.propose", numbers, list(missing), take)
        for name, reason in self.method._traffic.rejected[before:]:
            if "EncryptionError" in reason and name in missing:
                # what it was sent does not add up: these groups start over
                for g in missing[name]:
                    self.units[self.unit_of[g]].begin(self.w, self.version)
        return taken

    def _whole(self, name: str, groups: list[int]) -> bool:
        """Whether a client can propose for these: secure sums are over all it has."""
        if self.method.secure_sum:
            return groups == self.alignment.client_groups(name)
        return bool(groups)

    def _take_proposals(self, answer: Answer, groups: list[int]) -> None:
        """V of the proposals, and the sums of those groups that this client reports."""
        name = answer.client
        p_k = len(self.alignment.columns[name])
        arrays = list(answer.arrays)
        secure = self.method.secure_sum
        counts = {g: self._count(g) for g in groups}
        # everything is checked before anything is kept
        found: dict[int, FloatArray] = {}
        shares: dict[str, list[Blobs]] = {}
        if not secure:
            for g in groups:
                array = arrays.pop(0) if arrays else np.empty(0)
                if array.shape != (counts[g], p_k) or array.dtype != np.float64:
                    raise ValueError(
                        f"the answer has shape {array.shape} and dtype {array.dtype}, "
                        f"expected {(counts[g], p_k)} and float64"
                    )
                found[g] = array
        blobs = read_blobs(arrays)
        if secure:
            count = max(counts.values(), default=0)
            sizes = self._opening_sizes(name)
            per_opener = [n for n in sizes.values() for _ in range(count)]
            if len(blobs) < sum(per_opener):
                raise ValueError("the answer has too few ciphertexts")
            parts = split_blobs(blobs[: sum(per_opener)], per_opener)
            for i, opener in enumerate(sizes):
                shares[opener] = parts[i * count : (i + 1) * count]
            del blobs[: sum(per_opener)]
            found = {g: np.empty(0) for g in groups}
        wish = self._wished.get(name, [])
        backups = split_blobs(blobs, [self._blocks(g) for g in wish])
        report = [g for g in groups if self._reporter(g) == name]
        lengths = [2 + counts[g] for g in report]
        if len(answer.numbers) != sum(lengths):
            raise ValueError(
                f"the answer has {len(answer.numbers)} sums, expected {sum(lengths)}"
            )
        start = 0
        for g, length in zip(report, lengths, strict=True):
            unit = self.units[self.unit_of[g]]
            unit.reports[g] = answer.numbers[start : start + length]
            start += length
        for g, array in found.items():
            self.units[self.unit_of[g]].answers[name, g] = array
            self.bare.discard((name, g))
        if secure and groups:
            self.units[self.unit_of[groups[0]]].shares[name] = shares
        self._keep_alphas(wish, backups)
        self._used(name)

    def _search(self) -> dict[str, float]:
        """Put the complete units' proposals into the bundle, and move."""
        complete = [u for u, unit in enumerate(self.units) if self._complete(unit)]
        metrics: dict[str, float] = {"moved-groups": 0.0}
        if not complete:
            return metrics
        N = self.alignment.num_samples
        versions = {self.units[u].version for u in complete}
        losses = 0.0
        proposals = {}
        for u in complete:
            unit = self.units[u]
            report = np.sum([unit.reports[g] for g in unit.groups], axis=0)
            losses += report[0]
            # b of the current α, exactly, in the place of the mixture's bound
            self.bundle.set_alpha_value(u, -report[1] / N)
            proposals[u] = (self._assemble(unit), -report[2:] / N)
        λ = self.method.regularization
        everybody = len(complete) == len(self.units)
        if everybody and versions == {self.version} and self._certifies:
            # P(w) = (λ/2)‖w‖² + (1/N) Σ l_i, all at this iteration's w
            metrics["primal"] = 0.5 * λ * float(self.w @ self.w) + float(losses) / N
            self.certified = self.w
        dual = self.bundle.dual_value()
        metrics["dual"] = dual
        if "primal" in metrics:
            metrics["duality-gap"] = metrics["primal"] - dual
        mixtures = self.bundle.search(complete, proposals)
        for u, mixture in mixtures.items():
            unit = self.units[u]
            unit.mixture, unit.step, unit.snapshot = mixture, unit.step + 1, None
        self.w = self.bundle.w
        self.version += 1
        metrics["dual-bound"] = self.bundle.dual_value()
        metrics["moved-groups"] = float(
            sum(len(self.units[u].groups) for u in complete)
        )
        return metrics

    @property
    def _certifies(self) -> bool:
        # with only the drawn samples' inner products the losses of the rest are unknown
        return self.method.slots == "all" or self.method.local_fraction == 1.0

    def _assemble(self, unit: Unit) -> FloatArray:
        """V of a unit's proposals, from what its holders sent: shape (c, p)."""
        count = self._count(unit.groups[0])
        V = np.zeros((count, len(self.alignment.feature_names)))
        if self.method.secure_sum:
            for opener, values in unit.opened.items():
                V[:, self.openers[opener]] += values
        for (name, _), v in unit.answers.items():
            if v.size:
                V[:, self.alignment.columns[name]] += v
        return V

    # --------------------------------------------------------------------- secure sums

    def _choose_openers(self) -> dict[str, NDArray[np.int64]]:
        """For each feature one client that holds it, and few clients in all."""
        left = np.ones(len(self.alignment.feature_names), dtype=bool)
        openers = {}
        for name in self.method.clients:
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

        def numbers(name: str) -> dict[str, Any]:
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

        return self._ask("train.open", numbers, missing, take)

    # ------------------------------------------------------------ clients without state

    def restored(self, client: str) -> None:
        """A client has nothing any more: its groups go on from their α alone."""
        for g in self.alignment.client_groups(client):
            if (client, g) not in self.bare:
                log(WARNING, "client %s lost its state of group %d", client, g)
            self.bare.add((client, g))
            unit = self.units[self.unit_of[g]]
            # what it proposed is lost with it; what it sent of products is not
            if unit.answers.pop((client, g), None) is not None:
                if self._reporter(g) == client:
                    unit.reports.pop(g, None)
                if self.method.secure_sum:
                    unit.shares.pop(client, None)
                    unit.opened.clear()
            if unit.step:
                self.bundle.only_alpha(self.unit_of[g])

    def _has_alpha(self, name: str, g: int) -> bool:
        """Whether a client knows α of a group, or can be given it."""
        unit = self.units[self.unit_of[g]]
        return (name, g) not in self.bare or unit.step == 0 or self._alpha_is_current(g)

    def _alpha_is_current(self, g: int) -> bool:
        unit = self.units[self.unit_of[g]]
        return g in unit.alphas and unit.alphas[g][0] == unit.step

    def _backup_wish(self, name: str, available: Sequence[str]) -> dict[str, Any]:
        """Which groups' α a client is to send encrypted, for safekeeping."""
        wish = []
        for g in self.alignment.client_groups(name):
            unit = self.units[self.unit_of[g]]
            if not unit.step or self._alpha_is_current(g):
                continue
            age = unit.step - unit.alphas.get(g, (0, []))[0]
            if age >= self.method.backup_every and self._donor(g, available) == name:
                wish.append(g)
        self._wished[name] = wish
        return {"backup": wish}

    def _donor(self, g: int, available: Sequence[str]) -> str | None:
        """The holder to ask for α of a group."""
        for name in self.alignment.groups[g].holders:
            if name in available and (name, g) not in self.bare:
                return name
        return None

    def _keep_alphas(self, groups: list[int], parts: list[Blobs]) -> None:
        for g, part in zip(groups, parts, strict=True):
            if add_shares(self._cipher, {"": part})[0] is None:
                continue  # it arrived spoilt, and would be of no use to anybody
            unit = self.units[self.unit_of[g]]
            unit.alphas[g] = (unit.step, part)
            if all(self._alpha_is_current(other) for other in unit.groups):
                v, b = self.bundle.contribution(self.unit_of[g])
                unit.backup = (dict(unit.alphas), v, b)

    def _heal(self, available: Sequence[str]) -> None:
        """Get α for those who lost it from others who hold it, or go back a few steps.

        An extra wave, and only after a loss.
        """
        self._unhealed = set()
        wanted: dict[str, list[int]] = {}
        for g in sorted({g for _, g in self.bare}):
            unit = self.units[self.unit_of[g]]
            if unit.step == 0 or self._alpha_is_current(g):
                continue
            holders = self.alignment.groups[g].holders
            donor = self._donor(g, available)
            if donor is not None:
                wanted.setdefault(donor, []).append(g)
            elif all((name, g) in self.bare for name in holders):
                self._go_back(self.unit_of[g])

        def numbers(name: str) -> dict[str, Any]:
            self._wished[name] = wanted[name]
            config = {**self._extra, **self._instructions(name)}
            return {**config, "backup": wanted[name]}

        def take(answer: Answer) -> None:
            groups = wanted[answer.client]
            counts = [self._blocks(g) for g in groups]
            parts = split_blobs(read_blobs(answer.arrays), counts)
            self._keep_alphas(groups, parts)

        if wanted:
            self._ask("train.backup", numbers, list(wanted), take)
        self._unhealed = {
            (name, g) for name, g in self.bare if not self._has_alpha(name, g)
        }

    def _go_back(self, u: int) -> None:
        """All holders of a unit's group lost α: back to the last backup of the unit."""
        unit = self.units[u]
        alphas, v, b = unit.backup
        log(WARNING, "every holder lost its state: a group goes back to its backup")
        for g in unit.groups:
            # the others of the unit go back too
            self.bare |= {(n, g) for n in self.alignment.groups[g].holders}
        if v is None:
            v, b = np.zeros(len(self.alignment.feature_names)), 0.0
            unit.step = 0
            unit.alphas.clear()
        else:
            # the ciphertexts keep the step that they are labelled with
            unit.alphas = dict(alphas)
            unit.step = next(iter(alphas.values()))[0]
        unit.mixture = None
        self.bundle.only_alpha(u, v, b)
        self.w = self.bundle.w
        self.version += 1
        unit.begin(self.w, self.version)

    # ------------------------------------------------------------------------- helpers

    def _instructions(self, name: str) -> dict[str, Any]:
        """Where each of a client's groups stands: the mixture to apply, if it has not.

        Flat lists, one entry (or count) for each group.
        """
        config: dict[str, Any] = {
            "groups": [],
            "steps": [],
            "alpha-ids": [],
            "mix-counts": [],
            "mix-ids": [],
            "mix-weights": [],
            "keep-counts": [],
            "keep-ids": [],
        }
        for g in self.alignment.client_groups(name):
            u = self.unit_of[g]
            unit = self.units[u]
            config["groups"].append(g)
            config["steps"].append(unit.step)
            config["alpha-ids"].append(self.bundle.alpha_id(u))
            mixture = unit.mixture
            ids = [] if mixture is None else mixture.ids.tolist()
            keep = [] if mixture is None else mixture.keep.tolist()
            config["mix-counts"].append(len(ids))
            config["mix-ids"] += ids
            config["mix-weights"] += [] if mixture is None else mixture.weights.tolist()
            config["keep-counts"].append(len(keep))
            config["keep-ids"] += keep
            if (name, g) in self.bare and self._alpha_is_current(g) and unit.step:
                config[f"alpha/{g}"] = unit.alphas[g][1]
        return config

    def _snapshots(self, groups: Sequence[int]) -> tuple[list[FloatArray], list[int]]:
        """The different snapshots of some groups, and which of them is each group's."""
        vectors: list[FloatArray] = []
        versions: list[int] = []
        rows = []
        for g in groups:
            unit = self.units[self.unit_of[g]]
            if unit.version not in versions:
                assert unit.snapshot is not None
                versions.append(unit.version)
                vectors.append(unit.snapshot)
            rows.append(versions.index(unit.version))
        return vectors, rows

    def _kinds(self, shared: bool) -> list[str]:
        """What clients propose, in order."""
        kinds = ["dual-point" if self.method.step == "bundle" else "coordinate"]
        if not shared and self.method.local_passes:
            kinds = (
                ["passes"] if self.method.step == "line-search" else [*kinds, "passes"]
            )
        return kinds

    def _count(self, g: int) -> int:
        if self.method.secure_sum:  # all groups are one unit, with as many proposals
            return len(self._kinds(shared=True))
        return len(self._kinds(self.alignment.groups[g].shared))

    def _ready(self, g: int) -> bool:
        unit = self.units[self.unit_of[g]]
        return g in unit.scores or not self.alignment.groups[g].shared

    def _reporter(self, g: int) -> str:
        return self.alignment.groups[g].holders[0]

    def _answered(self, unit: Unit) -> bool:
        return all(g in unit.reports for g in unit.groups) and all(
            (name, g) in unit.answers
            for g in unit.groups
            for name in self.alignment.groups[g].holders
        )

    def _complete(self, unit: Unit) -> bool:
        if not self._answered(unit):
            return False
        return not self.method.secure_sum or set(unit.opened) == set(self.openers)

    # --------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, NDArray[Any]]:
        """The bundle and the units; a stage that was under way starts over."""
        arrays: dict[str, NDArray[Any]] = {
            f"bundle/{key}": array for key, array in self.bundle.state().items()
        }
        arrays["w"] = self.w
        arrays["version"] = np.array(self.version)
        names = self.method.clients
        bare = [(names.index(name), g) for name, g in sorted(self.bare)]
        arrays["bare"] = np.array(bare, dtype=np.int64).reshape(-1, 2)
        for u, unit in enumerate(self.units):
            arrays[f"{u}/step"] = np.array(unit.step)
            if unit.mixture is not None:
                arrays[f"{u}/mix-ids"] = unit.mixture.ids
                arrays[f"{u}/mix-weights"] = unit.mixture.weights
                arrays[f"{u}/keep"] = unit.mixture.keep
                arrays[f"{u}/alpha-id"] = np.array(unit.mixture.alpha_id)
            alphas, v, b = unit.backup
            for g, (step, blobs) in alphas.items():
                for i, blob in enumerate(blobs):
                    key = f"{u}/backup/{g}/{step}/{i}"
                    arrays[key] = as_array(blob)
            if v is not None:
                arrays[f"{u}/backup-v"], arrays[f"{u}/backup-b"] = v, np.array(b)
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        prefix = "bundle/"
        own = {k.removeprefix(prefix): a for k, a in state.items() if prefix in k}
        self.bundle.load_state(own)
        self.w, self.version = state["w"], int(state["version"])
        names = self.method.clients
        self.bare = {(names[int(k)], int(g)) for k, g in state["bare"]}
        for u, unit in enumerate(self.units):
            unit.step = int(state[f"{u}/step"])
            if f"{u}/mix-ids" in state:
                unit.mixture = Mixture(
                    state[f"{u}/mix-ids"],
                    state[f"{u}/mix-weights"],
                    state[f"{u}/keep"],
                    int(state[f"{u}/alpha-id"]),
                )
            alphas: dict[int, tuple[int, Blobs]] = {}
            for key, array in state.items():
                if key.startswith(f"{u}/backup/"):
                    _, _, g, step, _ = key.split("/")
                    blobs = alphas.setdefault(int(g), (int(step), []))[1]
                    blobs.append(array.tobytes())
            if f"{u}/backup-v" in state:
                v, b = state[f"{u}/backup-v"], float(state[f"{u}/backup-b"])
                unit.backup, unit.alphas = (alphas, v, b), dict(alphas)
