"""Tasks whose model is a matrix: components, ratings and assignments."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.domains import BirkhoffPolytope, Domain, Product
from fedtrellis.domains.singular import kept_pairs
from fedtrellis.manifolds import Stiefel
from fedtrellis.objectives import MatrixCompletion, QuadraticAssignment
from fedtrellis.objectives.matrices import PrincipalComponents
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Array, Point, data_path, held_out, once, once_per_file, toy
from .data.readers import read_ratings, read_table
from .data.table import FILE, NODES, DataSettings, Schema, Table, dense, fault
from .data.task import Dealt, Indices, Nonconvex, Task, data_of, starts_of

# The generated ratings, few enough for an LMO in milliseconds.
_USERS, _ITEMS, _RANK, _OBSERVED, _NOISE = 60, 50, 3, 0.5, 0.1
# The radius that the paper takes for MovieLens-100k, ratings as they are.
_RADIUS = 7000.0
# What a user's or an item's bias is drawn to 0 by: so many ratings of that.
_DAMPING = 5.0
# Nuclear norm of what biases leave, over its deviation · √(users · items): from a
# quarter to twice of it the test RMSE was within 0.004.
_SHARE = 0.4


@dataclass(frozen=True)
class KernelPCA(Nonconvex):
    """F(x) = −(1/2N) Σ_j Tr(xᵀ H_j x) over the p × r matrices with xᵀx = I.

    H_j = a_j a_jᵀ, a_j the centred examples, so that F(x) = −½ Tr(xᵀ C x) with C their
    covariance, and f_i(x) = −(n/2N) Tr(xᵀ A_iᵀA_i x) with A_i the client's rows, so
    that F = (1/n) Σ f_i. The minimum is known: −½ Σ of the r largest eigenvalues of C.

    ``partition = "sorted"``: the examples by label, of one label in their order, in
    equal consecutive shares, so that clients see different classes; the rows of a file
    have no labels and keep their order. ``"iid"``: shuffled first.

    ``scale`` divides the examples by √‖C‖₂, after which C has norm 1 and one step size
    suits all data sets. The mean and ‖C‖₂ are those of all examples together: real
    clients would have to agree on them.

    Notes
    -----
    §5.1 of arXiv 2507.22855, which is not federated: ``dataset = "iris"``,
    ``components = 2``; ``dataset = "digits"``, ``components = 4``, ``samples = 200``.
    It does not say how the data is centred or scaled.
    """

    name = "kernel-pca"
    summary = "principal components of digits, iris or a file's matrix"
    bounded_below = False

    not_on_nodes = (*Task.not_on_nodes, "samples")
    label_kind = "none"

    dataset: str = setting(
        "digits",
        "the data set; 'nodes': every node's own file",
        choices=("digits", "iris", FILE, NODES),
    )
    path: str = setting(
        "", "a matrix, .npy, .csv or the features of a .npz", only={"dataset": (FILE,)}
    )
    components: int = setting(4, "r, the number of components", minimum=1)
    samples: int = setting(0, "take the first examples only; 0 for all", minimum=0)
    scale: bool = setting(True, "divide the examples so that the covariance has norm 1")
    partition: str = setting(
        "sorted", "how examples are dealt to clients", choices=("sorted", "iid")
    )

    def check_settings(self) -> None:  # noqa: D102
        features = self.shapes()[0][0]
        if self.components > features:
            why = f"is too many: the examples have {features} features"
            raise self.refused("components", why)
        if self.on_nodes and self.scale:
            raise SettingsError(
                "kernel-pca.scale = true does not fit kernel-pca.dataset = "
                f"{NODES!r}: ‖C‖₂ is that of the examples of all nodes; allowed: false"
            )

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        nodes = self.nodes
        inputs = nodes.num_features() if self.on_nodes else self._examples()[0].shape[1]
        return [(inputs, self.components)]

    def domains(self) -> dict[str, float]:
        """Return the convex hull of the manifold, and a ball as large."""
        return {"spectral-norm-ball": 1.0, "l2-ball": float(np.sqrt(self.components))}

    def manifold(self) -> Stiefel:
        """Return the p × r matrices with orthonormal columns."""
        return Stiefel(self.shapes()[0])

    def metrics(self, x: Point) -> dict[str, float]:
        """Return the optimality gap and the subspace's error, on the training data."""
        return self.objective().metrics(self.argument(x))

    def _prepared(self, features: Any) -> Any:
        return dense(features)

    def _loss(self, features: Any, targets: Any, weight: float) -> PrincipalComponents:
        return PrincipalComponents(features, self.components, weight=weight)

    def _load(self) -> Dealt:
        rows, labels = self._examples()
        self.check_clients(len(rows))
        order = np.argsort(labels, kind="stable")
        if self.partition == "iid":
            order = generator(self.seed, "partition").permutation(len(rows))
        centred = rows[order] - rows.mean(axis=0)
        if self.scale:
            # √‖C‖₂
            norm = math.sqrt(max(0.0, PrincipalComponents(centred, 1).lipschitz()))
            # what centring equal rows leaves is rounding
            if norm <= 1e-12 * np.abs(rows).max():
                data = f"kernel-pca.dataset = {self.dataset!r}"
                raise SettingsError(f"{data}: there is no covariance to scale")
            centred /= norm
        starts = starts_of(np.array_split(order, self.num_clients))
        return Dealt(centred, labels[order], starts)

    @once(4)
    def _examples(self) -> tuple[Array, Indices]:
        """Return the examples as they come, and their labels."""
        if self.on_file:
            path = data_path("kernel-pca.path", self.path)
            rows = dense(read_table(path, Schema(0, label_column="")).features)
            labels = np.zeros(len(rows), dtype=np.intp)
        else:
            rows, labels = toy(self.dataset, f"kernel-pca.dataset = {self.dataset!r}")
        limit = self.samples or len(rows)
        return rows[:limit].astype(np.float64), labels[:limit].astype(np.intp)


@dataclass(frozen=True)
class MatrixCompletionTask(Task):
    """F(X) = mean over the training ratings of (X_user,item − rating)².

    The ratings are shuffled by the seed; ``test-fraction`` of them are test data and
    the rest is dealt evenly. f_i is n·d_i/d times the mean over the client's d_i
    ratings, so that F = (1/n) Σ f_i. (The mean is ours; the paper has the sum, so that
    its λ_0 is d times ours.) With ``centred`` every rating has the training ratings'
    mean taken off, and with ``biases`` the user's and the item's, too: the prediction
    is then mean + user's bias + item's bias + X, and the RMSE of round 0 that of the
    biases alone. They are damped means, of sums and counts that nodes would have to
    add up. The radius follows from what they leave.

    Without a file the ratings are generated: half the entries of a 60 × 50 matrix of
    rank 3 with standard normal factors, plus noise of standard deviation 0.1.

    Notes
    -----
    Figure 1c of the FedFW workshop paper (2022): MovieLens-100k (its ``u.data``, see
    F. M. Harper, J. A. Konstan, "The MovieLens datasets: history and context", 2015),
    ‖X‖_* ≤ 7000, 40 clients. Its terms forbid passing the data on, so it is not here.
    """

    name = "matrix-completion"
    summary = "low-rank matrix completion, generated or MovieLens-100k"

    not_on_nodes = (*Task.not_on_nodes, "centred", "biases")

    dataset: str = setting(
        "auto",
        "'auto': path's ratings, or generated ones; 'nodes': every node's own file",
        choices=("auto", NODES),
    )
    path: str = setting(
        "", "u.data of MovieLens-100k, or a csv file of ratings; empty: generated ones"
    )
    test_fraction: float = setting(
        0.2, "share of the ratings kept for testing", above=0.0, maximum=0.9
    )
    validation_fraction: float = setting(
        0.0,
        "share of the training ratings to test on instead",
        minimum=0.0,
        maximum=0.9,
    )
    centred: bool = setting(False, "take the training ratings' mean off all ratings")
    biases: bool | None = setting(
        None, "take mean, users' and items' biases off; auto: of a file, unless centred"
    )

    users: int = setting(0, "users, with dataset = 'nodes' only", minimum=0)
    items: int = setting(0, "items, with dataset = 'nodes' only", minimum=0)

    def check_nodes(self) -> None:  # noqa: D102
        for name in ("users", "items"):
            if not getattr(self, name):
                raise SettingsError(
                    f"matrix-completion.{name} = 0: say how many {name} there are"
                )
        if self.nodes != DataSettings(examples=self.nodes.examples):
            why = "takes data.examples and no other of the settings data.*"
            raise SettingsError(f"task {self.name!r} {why}")
        super().check_nodes()

    def node_schema(self) -> Schema:
        """Return the schema of one rating: a user and an item, and the rating."""
        return Schema(2, ("user", "item"), "number")

    @once_per_file(1024)
    def node_table(self, path: Path) -> Table:  # noqa: D102
        return read_ratings(path, self.users, self.items)

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        return [(self.users, self.items) if self.on_nodes else self._ratings()[2]]

    def domains(self) -> dict[str, float]:
        """Return the nuclear norm ball that suits, the paper takes, or X is in."""
        if self.on_nodes:
            return {"nuclear-norm-ball": 0.0}
        _, _, shape, radius = self._ratings()
        if self.path and self._takes_biases():
            left = float(data_of(self).targets.std())
            radius = _SHARE * left * math.sqrt(math.prod(shape))
        return {"nuclear-norm-ball": radius}

    def _takes_biases(self) -> bool:
        if self.biases is None:
            return bool(self.path) and not self.centred
        return self.biases

    def _loss(self, features: Any, targets: Any, weight: float) -> MatrixCompletion:
        rows, columns = features.astype(np.intp).T
        users, items = self.shapes()[0]
        return MatrixCompletion(rows, columns, targets, (users, items), weight=weight)

    def parts(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return factors with X = left rightᵀ, and the shortest ones."""
        (x,) = arrays.values()
        left, values, right = kept_pairs(x.astype(np.float64))
        return {"left": left * values, "right": right}

    def meaning(self) -> dict[str, Any]:
        """Return what was taken off the ratings, if anything was."""
        if self.on_nodes or not (self.centred or self._takes_biases()):
            return {}
        names = ("mean", "user-biases", "item-biases")
        offsets = dict(zip(names, map(np.ndarray.tolist, self._offsets()), strict=True))
        return offsets if self._takes_biases() else {"mean": offsets["mean"]}

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``"rmse"`` on the test ratings and ``"rmse-train"``."""
        train = math.sqrt(self.value(self.argument(x)))
        return {**super().metrics(x), "rmse-train": train}

    def baseline(self) -> dict[str, float]:
        """Return the RMSE of X = 0, which is what the mean and the biases leave."""
        if not self.path:
            return {}
        measured = self.metrics(np.zeros(self.shapes()[0]))
        return {name: value for name, value in measured.items() if name == "rmse"}

    def _load(self) -> Dealt:
        cells, values = self._ratings()[:2]
        held, kept = self._split()
        if self.centred or self._takes_biases():
            mean, users, items = self._offsets()
            i, j = cells.astype(np.intp).T
            values = values - mean - users[i] - items[j]
        # The ratings are shuffled already: equal consecutive shares are random.
        starts = starts_of(np.array_split(kept, self.num_clients))
        return Dealt(cells[kept], values[kept], starts, cells[held], values[held])

    def _split(self) -> tuple[Indices, Indices]:
        """Return the ratings that are held out, and the others, shuffled."""
        split = generator(self.seed, "matrix-completion split")
        held = kept = split.permutation(len(self._ratings()[1]))
        # the order is random: any share of it will do
        for share in filter(None, (self.test_fraction, self.validation_fraction)):
            held, kept = np.split(kept, [held_out(len(kept), share)])
        return held, kept

    def _offsets(self) -> tuple[Array, Array, Array]:
        """Return the training ratings' mean, and users' and items' biases or zeros."""
        cells, values, sizes, _ = self._ratings()
        _, kept = self._split()
        of, rated = cells[kept].astype(np.intp).T, values[kept]
        mean = np.array(rated.mean())
        found = [np.zeros(size) for size in sizes]
        for k in (1, 0, 1, 0) if self._takes_biases() else ():
            rest = rated - mean - found[1 - k][of[1 - k]]
            counts = _DAMPING + np.bincount(of[k], minlength=sizes[k])
            found[k] = np.bincount(of[k], rest, sizes[k]) / counts
        return mean, found[0], found[1]

    @once(4)
    def _ratings(self) -> tuple[Any, Array, tuple[int, int], float]:
        """Return users and items, (d, 2), ratings, the matrix's shape and a radius."""
        if not self.path:
            return synthetic_ratings(self.seed)
        path = data_path("matrix-completion.path", self.path)
        cells, values, *_ = read_ratings(path)
        if len(values) < 2:
            fault(path, f"{len(values)} ratings; at least 2 are needed")
        users, items = (int(number) + 1 for number in cells.max(axis=0))
        radius = 0.0 if ".csv" in path.suffixes else _RADIUS
        return cells, values, (users, items), radius


def synthetic_ratings(seed: int) -> tuple[Any, Array, tuple[int, int], float]:
    """Generate noisy ratings of random entries of a 60 × 50 matrix of rank 3.

    As :meth:`MatrixCompletionTask._ratings`; the radius is its norm without noise.
    """
    rng = generator(seed, "matrix-completion")
    factors = [rng.standard_normal((size, _RANK)) for size in (_USERS, _ITEMS)]
    truth = factors[0] @ factors[1].T
    count = round(_OBSERVED * truth.size)
    entries = np.sort(rng.choice(truth.size, count, replace=False))
    values = truth.flat[entries] + _NOISE * rng.standard_normal(count)
    cells = np.column_stack(np.divmod(entries, _ITEMS))
    radius = float(np.linalg.norm(truth, "nuc"))
    return cells, values, (_USERS, _ITEMS), radius


class Instance(NamedTuple):
    """A QAPLIB instance: minimise Σ_ij A_ij B_{p(i), p(j)} over permutations p."""

    A: Array
    B: Array
    #: the best cost, where it is known
    optimum: float | None


@dataclass(frozen=True)
class QuadraticAssignmentTask(Nonconvex):
    """F(X) = trace(A X Bᵀ Xᵀ) over the doubly stochastic matrices; not convex.

    F is linear in A and in B. The non-zero entries of the one of the two that has
    more of them (A if equal) are shuffled by the seed and dealt evenly, and f_i is n
    times the cost with the client's entries alone, so that F = (1/n) Σ f_i. (chr12a:
    A has 22 and B 130, so A's could not be dealt to the paper's 72 clients.)

    With k ``starts`` the model is k matrices, one from the barycentre and the others
    from :meth:`BirkhoffPolytope.random_point`, and F the mean of theirs: one run goes
    from all of them, and the result is the best permutation.

    Notes
    -----
    Figure 1d of the FedFW workshop paper (2022): chr12a, 72 clients; it does not say
    how the cost is split.
    """

    name = "quadratic-assignment"
    summary = "relaxed quadratic assignment, chr12a of QAPLIB or a file"
    bounded_below = False
    # FedFW+ ends at lower costs than corrective steps, in a tenth of the time
    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **Nonconvex.suggested,
        "fedfw": {"schedule": "nonconvex", "variant": "augmented"},
    }
    rounds = 500

    path: str = setting("", "a QAPLIB .dat file; empty for the built-in chr12a")
    starts: int = setting(
        1, "starting points, whose best permutation is the result", minimum=1
    )

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        return [self.instance().A.shape] * self.starts

    def domains(self) -> dict[str, float]:  # noqa: D102
        return {"birkhoff-polytope": 0.0}

    def instance(self) -> Instance:
        """Return A, B and the best cost known."""
        return _instance(self.path)

    def initial_point(self) -> list[Array]:
        """Return the barycentre of the permutation matrices, (1/n) 11ᵀ, and others."""
        n = len(self.instance().A)
        rngs = (generator(self.seed, "start", k) for k in range(1, self.starts))
        draw = BirkhoffPolytope().random_point
        return [np.full((n, n), 1.0 / n), *(draw((n, n), rng) for rng in rngs)]

    def model_set(self, domain: Domain) -> Domain:
        """Return the set of each matrix."""
        if self.starts == 1 or isinstance(domain, Product):
            return domain
        return Product([domain] * self.starts, self.shapes())

    def _deals_a(self) -> bool:
        A, B, _ = self.instance()
        return bool(np.count_nonzero(A) >= np.count_nonzero(B))

    def _load(self) -> Dealt:
        A, B, _ = self.instance()
        dealt = A if self._deals_a() else B
        entries = np.flatnonzero(dealt)
        order = generator(self.seed, self.name).permutation(len(entries))
        starts = starts_of(np.array_split(order, self.num_clients))
        return Dealt(entries[order], dealt.flat[entries[order]], starts)

    def _weight(self, examples: int, total: int) -> float:
        return float(self.num_clients)

    def _loss(self, features: Any, targets: Any, weight: float) -> QuadraticAssignment:
        A, B, _ = self.instance()
        mask = np.zeros(A.shape, dtype=np.bool_)
        mask.flat[features] = True
        if self._deals_a():
            options: dict[str, Any] = {"mask": mask}
        else:
            B, options = np.where(mask, B, 0.0), {}
        return QuadraticAssignment(A, B, weight=weight, copies=self.starts, **options)

    def round(self, x: Point) -> NDArray[np.intp]:
        """Return the permutation p nearest to X, the one with the largest Σ X_i,p(i).

        All permutation matrices have one norm, so that this linear assignment problem
        is the Euclidean projection onto them. Of several X the one of least cost.
        """
        matrices = [x] if isinstance(x, np.ndarray) else x
        solve = scipy.optimize.linear_sum_assignment
        return min((solve(X, maximize=True)[1] for X in matrices), key=self.cost)

    def parts(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Return the nearest permutation p, and its cost."""
        p = self.round(list(arrays.values()))
        return {"permutation": p, "cost": np.array(self.cost(p))}

    def cost(self, permutation: NDArray[np.intp]) -> float:
        """Return Σ_ij A_ij B_{p(i), p(j)}."""
        A, B, _ = self.instance()
        return float(np.sum(A * B[np.ix_(permutation, permutation)]))

    def metrics(self, x: Point) -> dict[str, float]:
        """Return the rounded point's cost, and its relative excess over the best."""
        cost, optimum = self.cost(self.round(x)), self.instance().optimum
        measures = {"assignment-cost": cost}
        if optimum:
            measures["assignment-excess"] = cost / optimum - 1.0
        return measures


@once_per_file(8)
def _instance(path: str) -> Instance:
    if path:
        instance = read_instance(data_path("quadratic-assignment.path", path))
    else:
        # beside this module, whichever of its two names the package is imported under
        text = resources.files(__package__).joinpath("data/chr12a.json").read_text()
        found = json.loads(text)
        A, B = (np.array(found[name], dtype=np.float64) for name in "AB")
        instance = Instance(A, B, float(found["optimum"]))
    instance.A.setflags(write=False)
    instance.B.setflags(write=False)
    return instance


def read_instance(path: Path) -> Instance:
    """Read a QAPLIB ``.dat`` file: n, then the n × n matrices A and B, in any lines."""
    texts, values = path.read_text(encoding="latin-1").replace(",", " ").split(), None
    with suppress(ValueError):
        values = np.array(texts, dtype=np.float64)
    if values is None or not np.isfinite(values).all():
        fault(path, "must hold finite numbers, and nothing else")
    if not len(values) or values[0] < 1 or values[0] % 1:
        fault(path, "must start with the order n, a whole number >= 1")
    n, values = int(values[0]), values[1:]
    if len(values) != 2 * n * n:
        asked = f"order {n} asks for {2 * n * n} entries of A and B"
        fault(path, f"{asked}, the file has {len(values)}")
    A, B = values.reshape(2, n, n)
    if not A.any() or not B.any():
        fault(path, "A or B has zeros only")
    return Instance(A, B, None)
