"""Runs of HyFDCA on data split over the nodes of a LocalGrid, and looks into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, RecordDict
from numpy.typing import NDArray

from clients import HyFDCAClient
from clients.hyfdca.run import NodeRules
from fedtrellis import Callback, LocalGrid, RoundRecord, client_app
from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.encryption import node_secrets
from fedtrellis.encryption.cipher import write_key_pair
from fedtrellis.encryption.identity import write_identity, write_roster
from fedtrellis.objectives.losses import make_loss
from fedtrellis.server.callbacks import Call
from strategies import HyFDCA
from strategies.hyfdca.mixtures import MixtureSteps
from tests.harness import contexts, node_states, number_of

Array = NDArray[np.float64]
Part = tuple[NDArray[np.int64], NDArray[np.int64]]
#: Sample groups × feature groups.
CUTS = {"hybrid": (3, 2), "horizontal": (6, 1), "vertical": (1, 3)}
KINDS = tuple(CUTS)
# a group's α moves without the others', and v_k is no sum
APART: dict[str, Any] = {"secure_sum": False}


def grid_parts(n: int, p: int, sample_groups: int, feature_groups: int) -> list[Part]:
    """Every sample group with every feature group, one client each."""
    rows = [np.arange(g, n, sample_groups) for g in range(sample_groups)]
    columns = np.array_split(np.arange(p), feature_groups)
    return [(r, c) for r in rows for c in columns]


class Split:
    """Data, who holds what of it, and the problem as one computer sees it.

    ``change`` is given each client with its number, and may alter it.
    """

    change: Callable[[int, Any], Any] | None = None

    def __init__(
        self,
        X: Any,
        y: Array,
        parts: Sequence[Part],
        loss: str = "hinge",
        regularization: float = 1e-3,
    ) -> None:
        self.X, self.y, self.parts = X, y, list(parts)
        self.loss, self.regularization = loss, regularization
        self.weights: Array | None = None
        self.n, self.p = X.shape
        self.names = [f"feature-{i:04d}" for i in range(self.p)]
        self.ids = [f"patient-{i:06d}" for i in range(self.n)]

    @property
    def num_clients(self) -> int:
        return len(self.parts)

    @cached_property
    def problem(self) -> RegularizedLoss:
        loss, λ = make_loss(self.loss), self.regularization
        return RegularizedLoss(self.X, self.y, loss, λ, weights=self.weights)

    @cached_property
    def optimum(self) -> float:
        """P*, by a central solver to 1e-9."""
        return central_optimum(self.problem).value

    def relative(self, w: Array) -> float:
        return (self.problem.value(w) - self.optimum) / self.optimum

    def client(self, context: Context, **options: Any) -> HyFDCAClient:
        k = number_of(context)
        rows, columns = self.parts[k]
        if self.weights is not None:
            options = {"weights": self.weights[rows], **options}
        names, ids = [self.names[i] for i in columns], [self.ids[i] for i in rows]
        X = self.X[rows][:, columns]
        client = HyFDCAClient(context, X, names, ids, self.y[rows], **options)
        if self.change is not None:
            self.change(k, client)
        return client

    def app(self, **options: Any) -> Any:
        return client_app(lambda context: self.client(context, **options))


class Forgets(LocalGrid):
    """A grid whose nodes' states are no part of a checkpoint, as with a SuperLink."""

    def client_states(self) -> dict[str, bytes]:
        return {}

    def load_client_states(self, states: Mapping[str, bytes]) -> None:
        pass


class Sums(list[Array]):
    """Σ v_k of each iteration as the server gets it, its w, and clients' own words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weights: list[Array] = []
        self.words: list[NDArray[np.uint64]] = []
        honest = MixtureSteps._complete_sum

        def listening(steps: MixtureSteps, words: Any) -> Any:
            found = honest(steps, words)
            self.append(found[0])
            self.weights.append(steps.w.copy())
            self.words.extend(words.values())
            return found

        monkeypatch.setattr(MixtureSteps, "_complete_sum", listening)


class View:
    """What the clients and the server of a run have."""

    def __init__(self, split: Split, grid: LocalGrid, strategy: HyFDCA) -> None:
        self.split, self.grid, self.strategy = split, grid, strategy

    @property
    def steps(self) -> Any:
        """The server's side of the iteration."""
        return self.strategy.steps

    # what the nodes know

    def wipe(self, name: str) -> None:
        contexts(self.grid)[int(name)].state = RecordDict()

    def client_state(self, name: str) -> dict[str, Array]:
        """A client's state as of the last of its rounds that was used."""
        return node_states(self.strategy, self.grid).get(name, {})

    def alphas(self) -> dict[str, Array]:
        """By client, α of all samples as it knows it; NaN where it knows none."""
        found = {}
        for name in self.strategy.clients:
            found[name] = alpha = np.full(self.split.n, np.nan)
            state = self.client_state(name)
            own = self.split.parts[int(name)][0]
            for g, rows in self.strategy.alignment.rows[name].items():
                known = self._alpha_of(state, g, len(rows))
                if known is not None:
                    alpha[own[rows]] = known
        return found

    def _alpha_of(self, state: dict[str, Array], g: int, size: int) -> Array | None:
        if not self.strategy.safe:  # of all its groups, one after the other
            if "alpha" not in state:
                return None
            i = state["groups"].astype(int).tolist().index(g)
            stop = int(state["sizes"][: i + 1].sum())
            return state["alpha"][stop - size : stop]
        steps = self.steps
        unit = steps.units[steps.unit_of[g]]
        if unit.step == 0:
            return np.zeros(size)
        if f"points/{g}" not in state:
            return None
        ids = state[f"ids/{g}"].astype(int).tolist()
        points = state[f"points/{g}"]
        own = int(state[f"step/{g}"])
        if own == unit.step:
            alpha_id = steps.bundle.alpha_id(steps.unit_of[g])
            return points[ids.index(alpha_id)] if alpha_id in ids else None
        mixture = unit.mixture
        if own != unit.step - 1 or not set(mixture.ids.tolist()) <= set(ids):
            return None
        rows = [ids.index(i) for i in mixture.ids.tolist()]
        mixed_point: Array = mixture.weights @ points[rows]
        return mixed_point

    def check(self, tolerance: float = 1e-9) -> Array:
        """w = (1/λN) Σ α_i x_i, and all holders of a sample agree; returns α."""
        known = np.stack(list(self.alphas().values()))
        assert not np.isnan(known).all(axis=0).any()
        alpha: Array = np.nanmin(known, axis=0)
        assert (np.nanmax(known, axis=0) - alpha).max() < tolerance
        w = self.split.problem.primal_of(alpha)
        assert np.abs(w - self.steps.w).max() < tolerance
        return alpha

    def check_reported(self, tolerance: float = 1e-9) -> None:
        """w is made of what each client last reported, stale or not."""
        w = np.zeros(self.split.p)
        scale = self.split.regularization * self.split.n
        for name, alpha in self.alphas().items():
            rows, columns = self.split.parts[int(name)]
            known = np.nan_to_num(alpha[rows])
            w[columns] += self.split.X[rows][:, columns].T @ known / scale
        assert np.abs(w - self.steps.w).max() < tolerance


class LastDigits(Callback):
    """Ends a run twenty rounds after the gap has come to 1e-11.

    Hidden sums let D be known to 1e-13 or so, and a tolerance near that is met or not
    as their rounding has it; P, and with it the model, is known to more.
    """

    left = 20

    def on_round(self, strategy: Any, record: RoundRecord) -> bool:
        gap, primal = (record.train.get(k, np.inf) for k in ("duality-gap", "primal"))
        self.left -= bool(self.left < 20 or gap <= 1e-11 * abs(primal) < np.inf)
        return self.left < 0


def last_digits() -> dict[str, Any]:
    """Options of a run to the last digits."""
    return {"callbacks": [LastDigits()], "tolerance": 1e-15}


class Run(View):
    """One run, and what its clients and its server have at the end.

    Its nodes accept whatever sums give away: what they refuse has tests of its own.
    """

    def __init__(
        self,
        split: Split,
        rounds: int,
        *,
        grid: LocalGrid | None = None,
        faults: dict[str, Any] | None = None,
        each: Callable[[Run, int], Any] | None = None,
        client: dict[str, Any] | None = None,
        strategy: type[HyFDCA] = HyFDCA,
        **options: Any,
    ) -> None:
        self.split = split
        self.grid = grid or LocalGrid(
            split.app(**(client or {})), split.num_clients, **(faults or {})
        )
        self.duals: list[float] = []
        settings: dict[str, Any] = {
            "encryption": "none",
            "tolerance": 0.0,
            "feature_names": split.names,
            "max_failed_rounds": 10**6,
            "exposed": "accept",
            **options,
        }
        callbacks = list(settings.pop("callbacks", []))
        if each is not None:
            look = each
            callbacks.append(Call(lambda r: r.round > 0 and look(self, r.round)))
        self.strategy = strategy(
            split.loss, split.regularization, callbacks=callbacks, **settings
        )
        C = self.strategy.classes
        start = np.zeros((split.p, C) if C > 1 else split.p)
        result = self.strategy.start(self.grid, ArrayRecord([start]), num_rounds=rounds)
        self.model: Array = result.arrays.to_numpy_ndarrays()[0]

    def note_dual(self) -> None:
        """D of the clients' α, exactly."""
        alpha = self.check()
        alpha = self.split.problem.loss.feasible(alpha, self.split.y)
        self.duals.append(self.split.problem.dual_value(alpha))

    def metric(self, name: str) -> Array:
        return np.array([r.train[name] for r in self.strategy.history])

    @property
    def rejected(self) -> list[tuple[str, str]]:
        return [one for r in self.strategy.history for one in r.rejected]


class Nodes:
    """Nodes with files: one key for all, or an identity each and a roster each."""

    def __init__(self, folder: Path, split: Split, kind: str = "roster") -> None:
        self.split, self.kind, self.folder = split, kind, folder
        self.rules = NodeRules(exposed="accept")
        folder.mkdir()
        self.key, self.names = folder / "key", [str(k) for k in range(len(split.parts))]
        write_key_pair(self.key, folder / "context")
        publics = {
            name: write_identity(self.of(name, "identity"), name).public
            for name in self.names
        }
        for name in self.names:  # each node pins it by itself
            write_roster(self.of(name, "roster"), publics)

    def of(self, name: str, what: str) -> Path:
        return self.folder / f"{name}.{what}"

    def client(self, context: Context) -> HyFDCAClient:
        name = str(number_of(context))
        own: dict[str, Any] = {"ledger": self.of(name, "ledgers"), "key": self.key}
        if self.kind == "roster":
            del own["key"]
            own |= {what: self.of(name, what) for what in ("identity", "roster")}
        return self.split.client(context, rules=self.rules, **own)

    def run(self, rounds: int, **options: Any) -> Run:
        node_secrets._cached.cache_clear()
        grid = Forgets(client_app(self.client), len(self.names))
        return Run(self.split, rounds, grid=grid, **options)


def small(
    loss: str = "hinge",
    parts: Sequence[Part] | str = "hybrid",
    n: int = 96,
    p: int = 12,
) -> Split:
    """A noisy two-class problem (or a regression), 3 × 2 groups by default.

    "irregular" is a chain: each client but the last two shares samples with two others.
    In "with one alone" a client has samples that nobody shares.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p)) / np.sqrt(p)
    z = X @ rng.standard_normal(p) + 0.3 * rng.standard_normal(n)
    y = z if loss == "squared" else np.where(z > 0, 1.0, -1.0)
    if loss == "poisson":
        y = np.maximum(np.round(3.0 * z), 0.0)
    if parts == "irregular":
        rows = [np.arange(64), np.arange(32), np.arange(32, 96), np.arange(64, 96)]
        first, second = np.arange(6), np.arange(6, 12)
        parts = list(zip(rows, [first, second, second, first], strict=True))
    elif parts == "with one alone":
        parts = [*grid_parts(90, p, 3, 2), (np.arange(90, 96), np.arange(p))]
    elif isinstance(parts, str):
        parts = grid_parts(n, p, *CUTS[parts])
    return Split(X, y, parts, loss, 1e-2)
