"""Linear models: least squares and logistic regression on tables of examples."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.domains import Box, Domain, Product
from fedtrellis.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective
from fedtrellis.objectives.base import MeanObjective, is_sparse
from fedtrellis.objectives.linear_models import NonconvexLogistic
from fedtrellis.random import generator
from fedtrellis.settings import need, setting
from fedtrellis.tables import Preparation

from .base import Array, Point, data_path, derived_seed, once, stratified, toy
from .data.readers import is_dense, read_csv, read_libsvm
from .data.table import FILE, NODES, Schema, Table, dense, divide, fault, norms, scaled
from .data.task import (
    Dealt,
    Indices,
    Nonconvex,
    PartitionedTask,
    Task,
    arrange,
    data_of,
    starts_of,
)

_BITS = tuple(f"bit-{j}" for j in range(1, 1025))
_VARIABLES = tuple(f"var_{j}" for j in range(200))
#: Data sets that are the user's files, with what these must hold.
SCHEMAS = {
    "qsar": Schema(0, _BITS, "class", ("negative", "positive")),
    "santander": Schema(
        0, _VARIABLES, "class", ("0", "1"), "target", ignored=("ID_code",)
    ),
    "libsvm": Schema(0, target="class"),
}


@dataclass(frozen=True)
class RegressionTask(Task):
    """Least squares, on generated data with a known solution x* or on files.

    A csv or npz file's columns are standardised, and its target is centred, unless
    ``data.prepare`` is false: so the model has an intercept, which F does not show.
    """

    prepares = True

    dataset: str = setting(
        "generated",
        "the data set; 'file': a csv, npz or LIBSVM file; 'nodes': every node's own",
        choices=("generated", FILE, NODES),
    )
    path: str = setting(
        "", "the file, with dataset = 'file'", only={"dataset": (FILE,)}
    )
    sorted_by: str = setting(
        "",
        "column of the file in whose order its rows are dealt, consecutive ones to a "
        "client; the label column: by quantiles of the target; empty: at random",
        only={"dataset": (FILE,)},
    )
    uneven: bool = setting(
        False,
        "whether a file is dealt in shares of random sizes",
        only={"dataset": (FILE,)},
    )

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        if self.on_nodes:
            return [(self.nodes.num_features(),)]
        return [(data_of(self).features.shape[1],)]

    def domains(self) -> dict[str, float]:
        """Return balls with x* on their boundary; the default is ‖x‖₁ ≤ ‖x*‖₁.

        Without radii for a file or nodes' own data, whose x* nobody knows.
        """
        orders = {"l1-ball": 1, "l2-ball": 2, "linf-ball": np.inf}
        if self.dataset != "generated":
            return dict.fromkeys(orders, 0.0)
        x = self.solution()
        return {ball: float(np.linalg.norm(x, p)) for ball, p in orders.items()}

    def solution(self) -> Array:
        """Return x* of the generated data (read-only)."""
        solution: Array = self._generated()[1]
        return solution

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"solution-error": ‖x − x*‖₂}``; nothing where nobody knows x*."""
        if self.on_file:
            return {}
        error = self.argument(x) - self.solution()
        return {"solution-error": float(np.linalg.norm(error))}

    def baseline(self) -> dict[str, float]:
        """Return the loss of the target's mean."""
        made = self.preparation()
        return {"loss": self._loss_of_variance(made)} if made else {}

    def reference_optimum(self, domain: Domain) -> float | None:
        """Return F(x*) where the domain contains x*, as all of space does."""
        known = self.dataset == "generated" and domain.contains(self.solution())
        return self._least() if known else None

    def _least(self) -> float | None:
        return self.value(self.solution())

    def _load(self) -> Dealt:
        if not self.on_file:
            return self._generated()[0]
        table = self._own_table("number")
        shares = self._dealt(table)
        dealt = arrange(table.features, table.targets, shares)
        if not table.columns:
            return dealt
        features, targets, starts, *_ = dealt
        made = self._preparation_of(table, features, targets, starts)
        features, targets = made.scaled(features), targets - made.offset
        return Dealt(features, targets, starts, preparation=made)

    def _dealt(self, table: Table) -> list[Indices]:
        rng = generator(self.seed, "partition")
        order = rng.permutation(len(table.targets))
        if self.sorted_by == self.nodes.label_column:
            order = order[np.argsort(table.targets[order], kind="stable")]
        elif self.sorted_by:
            of = [c.name for c in table.columns for _ in c.features()] or table.names
            places = [j for j, name in enumerate(of) if name == self.sorted_by]
            if not places:
                raise self.refused("sorted_by", f"is no column of {self.path}")
            order = order[np.lexsort(dense(table.features[:, places])[order].T)]
        if self.uneven:
            return cut_at_random(order, self.num_clients, rng)
        return np.array_split(order, self.num_clients)

    def _loss_of_variance(self, made: Preparation) -> float:
        """Return F where the target is its mean."""
        return 0.5 * made.spread[0]

    @abstractmethod
    def _generated(self) -> tuple[Dealt, Any]:
        """Return generated data, dealt to the clients, and x* where it makes them."""


@dataclass(frozen=True)
class Lasso(RegressionTask):
    """F(x) = ‖Ax − b‖² with b = Ax* + noise, x* sparse.

    A is Gaussian with a diagonal covariance drawn from U[1, 2], x* has standard normal
    entries in random places. The rows are dealt evenly, in order, and
    f_i(x) = n ‖A_i x − b_i‖², so that F = (1/n) Σ f_i.

    Notes
    -----
    Figure 1a of the FedFW workshop paper (2022), which has 200 rows and 400 columns
    and names neither the number of non-zeros nor that of clients.
    """

    name = "lasso"
    sums_rows = True
    summary = "sparse linear regression on generated data"
    not_of_file = ("rows", "columns", "nonzeros", "noise")
    not_on_nodes = not_of_file

    rows: int = setting(200, "examples, the rows of A", minimum=1)
    columns: int = setting(400, "unknowns, the columns of A", minimum=1)
    nonzeros: int = setting(20, "non-zero entries of the true x*", minimum=1)
    noise: float = setting(0.0, "standard deviation of the noise on b", minimum=0.0)

    def check_settings(self) -> None:  # noqa: D102
        if self.nonzeros > self.columns and self.dataset == "generated":
            why = f"must be at most lasso.columns = {self.columns}"
            raise self.refused("nonzeros", why)

    def _weight(self, examples: int, total: int) -> float:
        # f_i is a sum already; with n, F = ‖Ax − b‖², where d is not given 1/n of it
        return float(self.num_clients) if total else 1.0

    def _loss_of_variance(self, made: Preparation) -> float:
        each = self.on_nodes and not self.nodes.examples
        return made.spread[0] * made.rows / (self.num_clients if each else 1)

    @once(4)
    def _generated(self) -> tuple[Dealt, Array]:
        """Return the rows, dealt in order, and x*."""
        rng = generator(self.seed, "lasso")
        variances = rng.uniform(1.0, 2.0, self.columns)
        A = rng.standard_normal((self.rows, self.columns)) * np.sqrt(variances)
        solution = np.zeros(self.columns)
        support = rng.choice(self.columns, self.nonzeros, replace=False)
        solution[support] = rng.standard_normal(self.nonzeros)
        b = A @ solution + self.noise * rng.standard_normal(self.rows)
        solution.setflags(write=False)
        shares = np.array_split(np.arange(self.rows), self.num_clients)
        return Dealt(A, b, starts_of(shares)), solution

    def _loss(self, features: Any, targets: Any, weight: float) -> LeastSquares:
        return LeastSquares(features, targets, weight=weight)

    def _least(self) -> float | None:
        # with noise on b another x may be better than x*
        return None if self.noise else 0.0


@dataclass(frozen=True)
class LinearRegression(RegressionTask):
    """F(x) = (1/n) Σ f_i(x), least squares on generated samples.

    Client i has d_i samples (a, b), d_i uniform among the whole numbers from
    ``rows-min`` to ``rows-max``. All entries of a sample, b among them, are independent
    and come from one of three distributions: the standard normal, Student's t with 5
    degrees of freedom, and U[−5, 5].

    - ``partition = "shuffled"``: a third of all samples from each (give or take one),
      in random order, dealt to the clients;
    - ``partition = "by-distribution"``: client i's are all from distribution i mod 3.

    - ``weighting = "clients"``: f_i(x) = (1/2d_i) ‖A_i x − b_i‖²; every client counts
      the same;
    - ``weighting = "examples"``: that times n·d_i/d, so that every example counts the
      same, F(x) = (1/2d) ‖Ax − b‖².

    Notes
    -----
    Example V.1 of FedGiA, arXiv 2205.01438, with 100 features, d_i from 50 to 150 and
    every client counting the same. The paper does not say how large the parts of the
    distributions are. Its features all have one variance (``condition = 1``), with
    which ∇²F has the condition number 2.
    """

    name = "linear-regression"
    summary = "least squares on generated data of three distributions"
    not_of_file = ("features", "rows_min", "rows_max", "partition", "condition")
    not_on_nodes = (*not_of_file, "weighting")

    features: int = setting(100, "unknowns, the features of a sample", minimum=1)
    rows_min: int = setting(50, "the fewest examples of a client", minimum=1)
    rows_max: int = setting(150, "the most examples of a client", minimum=1)
    partition: str = setting(
        "shuffled",
        "how examples are dealt to clients",
        choices=("shuffled", "by-distribution"),
    )
    weighting: str = setting(
        "clients",
        "what counts the same: every client, or every example",
        choices=("clients", "examples"),
    )
    condition: float = setting(
        1.0,
        "the largest variance of a feature over the smallest: feature j of p is "
        "multiplied by condition^(−(j−1)/(2(p−1)))",
        minimum=1.0,
    )

    def check_settings(self) -> None:  # noqa: D102
        if self.rows_min > self.rows_max:
            why = f"must be at most linear-regression.rows-max = {self.rows_max}"
            raise self.refused("rows_min", why)

    @once(4)
    def solution(self) -> Array:
        """Return x*, F's minimiser of smallest norm on all of space (read-only)."""
        solution = np.asarray(np.linalg.lstsq(*self._weighted(), rcond=None)[0])
        solution.setflags(write=False)
        return solution

    def _weighted(self) -> tuple[Array, Array]:
        """Return W^½ A and W^½ b with F(x) = ‖W^½ (Ax − b)‖²."""
        A, b, starts, *_ = data_of(self)
        sizes = np.diff(starts)
        weights = np.full(len(b), 0.5 / len(b))
        if self.weighting == "clients":
            # 1/(2 n d_i) for each of client i's rows
            weights = np.repeat(0.5 / (len(sizes) * sizes), sizes)
        roots = np.sqrt(weights)
        column = roots[:, None]
        return A.multiply(column) if is_sparse(A) else A * column, b * roots

    def _loss(self, features: Any, targets: Any, weight: float) -> LeastSquares:
        return LeastSquares(features, targets, weight=weight, scale="half-mean")

    def _build_objective(self) -> LeastSquares:
        if self.weighting == "examples":
            return super()._build_objective()  # type: ignore[no-any-return]
        # (1/n) Σ_i (1/2d_i) ‖A_i x − b_i‖² = ‖W^½ (Ax − b)‖², one product for all
        return LeastSquares(*self._weighted())

    @once(4)
    def _generated(self) -> tuple[Dealt, Any]:
        rng = generator(self.seed, "linear-regression sizes")
        sizes = rng.integers(self.rows_min, self.rows_max + 1, self.num_clients)
        rng = generator(self.seed, "linear-regression")
        count = int(sizes.sum())
        kinds = np.repeat(np.arange(len(sizes)) % 3, sizes)
        if self.partition == "shuffled":
            kinds = rng.permutation(np.arange(count) % 3)
        A, b = np.empty((count, self.features)), np.empty(count)
        draws: tuple[Callable[[tuple[int, int]], Any], ...] = (
            rng.standard_normal,
            lambda shape: rng.standard_t(5.0, shape),
            lambda shape: rng.uniform(-5.0, 5.0, shape),
        )
        for kind, draw in enumerate(draws):
            rows = np.flatnonzero(kinds == kind)
            samples = draw((len(rows), self.features + 1))
            A[rows], b[rows] = samples[:, :-1], samples[:, -1]
        if self.condition > 1.0:
            # column j is multiplied by κ^(−(j−1)/(2(p−1)))
            A *= self.condition ** -np.linspace(0.0, 0.5, self.features)
        return Dealt(A, b, np.cumsum([0, *sizes]).astype(np.intp)), None


def cut_at_random(
    order: Indices, clients: int, rng: np.random.Generator
) -> list[Indices]:
    """Cut rows into shares, none below a fortieth of the mean.

    So it is in the FedGiA authors' code, which draws all cuts again until no share is
    too small. For many clients this takes for ever: here every share has its least, and
    the rest is cut.
    """
    least = min(math.ceil(0.025 * len(order) / clients), len(order) // clients)
    spare = len(order) - clients * least
    cuts = np.sort(rng.integers(0, spare + 1, clients - 1))
    sizes = np.diff([0, *cuts, spare]) + least
    return np.split(order, np.cumsum(sizes)[:-1])


def load_table(dataset: str, path: Path) -> Table:
    """Load a data set from the user's file; csv files may be in a zip archive.

    QSAR's lines are 1 024 times 0 or 1 and the label, with ``;`` between and without a
    header, Santander's ``train.csv`` has an identifier, the label and 200 numbers. QSAR
    and LIBSVM's format give CSR features, the latter as many as its largest index says.

    Notes
    -----
    D. Ballabio, F. Grisoni, V. Consonni, R. Todeschini, "Integrated QSAR models to
    predict acute oral systemic toxicity", 2019.
    """
    schema = SCHEMAS[dataset]
    if dataset == "libsvm":
        return read_libsvm(path, schema)
    if dataset == "santander":
        return read_csv(path, schema)
    table = read_csv(path, schema, header=(*_BITS, "label"))
    return table._replace(features=scipy.sparse.csr_array(table.features))


@dataclass(frozen=True)
class LogisticRegression(PartitionedTask):
    """The mean logistic loss over training examples, plus a regulariser.

    ``regularizer = "l2"``: f_i is weight times the mean over the client's d_i examples
    of ln(1 + exp(aᵀx)) − b aᵀx, plus (μ/2)‖x‖² with μ = ``l2``;
    ``regularizer = "nonconvex"``: with (μ/2) Σ x_j²/(1 + x_j²) instead.

    ``weighting = "examples"``: weight n·d_i/d, so that F = (1/n) Σ f_i is the mean over
    all training examples; ``weighting = "clients"``: weight 1, F = (1/n) Σ f_i counts
    every client the same. Either way the regulariser counts once.

    Data sets: ``breast-cancer`` comes with scikit-learn (569 × 30), the others are the
    user's files: ``qsar`` (UCI's QSAR oral toxicity, 8 992 × 1 024, sparse),
    ``santander`` (Kaggle's, 200 000 × 200) and ``file``, any csv or npz file with
    ``classes`` labels, or one in LIBSVM's text format, which is sparse (``libsvm``, of
    any name, with two). The smallest label, or the first in the alphabet, is 0.

    With more than two classes the loss is the cross-entropy of a linear softmax, and
    the model one array of shape (features, classes).

    ``intercept`` adds a constant to the scores, the model's last row, which the
    regulariser leaves alone. In a set it has an interval of its own that contains its
    minimiser for every w in the set; with more than two classes and a set there is
    none.

    Scaling: ``unit-rows`` and ``unit-columns`` divide by Euclidean norms, ``standard``
    gives every feature zero mean and unit variance; ``auto`` is ``standard`` for
    breast-cancer and prepared files, ``none`` for files with ``data.prepare`` false,
    ``unit-rows`` for the others. Columns are measured on all training examples: real
    clients would have to agree on that. Texts, dates and missing values of prepared
    files become numbers first, see :mod:`fedtrellis.tables`.

    Notes
    -----
    Example V.2 of FedGiA, arXiv 2205.01438: *qot* (qsar) and *sct* (santander), l2,
    μ = 0.001, every client counting the same. The paper does not say how it scales
    its data or whether it has test data; the authors' public code has columns of norm
    1, uneven shares, and μ/d_i instead of μ.
    """

    name = "logistic-regression"
    summary = "logistic regression: breast cancer, QSAR, Santander, a file"
    suggested = Nonconvex.suggested
    not_on_nodes = (*PartitionedTask.not_on_nodes, "weighting", "classes")
    prepares, table_loss = True, "logistic"
    node_labels: ClassVar[tuple[str, ...]] = ("0", "1")

    # There are two labels: a base class's 3 would never do.
    labels_per_client: int = setting(
        1,
        "labels a client holds, with partition = 'labels'",
        minimum=1,
        only={"partition": ("labels",)},
    )
    dataset: str = setting(
        "breast-cancer",
        "the data set; 'file': a csv, npz or LIBSVM file; 'libsvm': the last, of any "
        "name and with two labels; 'nodes': every node's own file",
        choices=("breast-cancer", FILE, *SCHEMAS, NODES),
    )
    path: str = setting("", "the data set's file", only={"dataset": (FILE, *SCHEMAS)})
    classes: int = setting(
        2,
        "labels in your file; more than two: multinomial logistic regression",
        minimum=2,
        only={"dataset": (FILE,)},
    )
    partition: str = setting(
        "iid",
        "how examples are dealt to clients; 'uneven': shuffled, cut in random places",
        choices=("iid", "uneven", "labels", "dirichlet"),
    )
    l2: float = setting(0.001, "μ, the factor of the regulariser", minimum=0.0)
    l2_per_example: bool = setting(
        False, "μ/d_i instead of μ, d_i the client's number of examples"
    )
    regularizer: str = setting(
        "l2",
        "the regulariser: the squared norm or a bounded one that is not convex",
        choices=("l2", "nonconvex"),
    )
    scaling: str = setting(
        "auto",
        "how features are scaled",
        choices=("auto", "none", "unit-rows", "unit-columns", "standard"),
    )
    intercept: bool | None = setting(
        None, "add an intercept, which is not regularised; auto: for files of yours"
    )
    test_fraction: float = setting(
        0.2,
        "share of the examples kept for testing; 0 for none",
        minimum=0.0,
        maximum=0.9,
    )
    weighting: str = setting(
        "examples",
        "what counts the same: every example, or every client",
        choices=("examples", "clients"),
    )

    @property
    def convex(self) -> bool:  # type: ignore[override]
        """Whether F is convex, which its regulariser decides."""
        return self.regularizer == "l2" or self.l2 == 0.0

    def check_settings(self) -> None:  # noqa: D102
        self._scaling()
        if self.classes > 2 and self.regularizer != "l2":
            why = f"does not fit logistic-regression.classes = {self.classes}"
            raise self.refused("regularizer", f"{why}; allowed: l2")
        if self.intercept and not self._fits_intercept():
            why = "does not fit a set, with several classes or nodes' raw columns"
            raise self.refused("intercept", f"{why}; allowed: false")

    def _fits_intercept(self) -> bool:
        """Whether, in a set, the intercept's bounds are known."""
        scaled = self.nodes.agreed and self._scaling() in ("standard", "unit-rows")
        known = scaled or not self.on_nodes
        return not self.in_set or (self.classes == 2 and bool(known))

    def has_intercept(self) -> bool:
        """Whether the model has one."""
        if self.intercept is None:
            own = self.on_file and self.nodes.prepare
            agreed = self.on_nodes and bool(self.nodes.agreed)
            return (own or agreed) and self._fits_intercept()
        return self.intercept

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        if self.on_nodes:
            return [(self.nodes.num_features() + self.has_intercept(),)]
        rows = data_of(self).features.shape[1] + self.has_intercept()
        return [(rows,) if self.classes == 2 else (rows, self.classes)]

    def model_set(self, domain: Domain) -> Domain:
        """Return the set for w, times an interval for the intercept."""
        if not self.has_intercept():
            return domain
        features = self.shapes()[0][0] - 1
        return Product([domain, self._interval(domain)], [(features,), (1,)])

    def _interval(self, domain: Domain) -> Box:
        """Return where the minimiser b of F(w, b) is for every w of the best model.

        With the shares π_c of the classes, their means μ_c and the entropy H of π,
        F(0, ·) is H at its least. At the minimum the loss of class 1 is at most that:
        π_1 ln(1 + exp(−μ_1ᵀw − b)) ≤ H by Jensen's inequality, so that
        b ≥ −max_w μ_1ᵀw − ln(exp(H/π_1) − 1), and of class 0 likewise. Of nodes' files
        the shares are known, and (μ_1ᵀw)² ≤ ‖w‖₁² π_0/π_1 as no standardised column
        has a variance above 1; or |μ_1ᵀw| ≤ ‖w‖₂ for rows of norm 1.
        """
        agreed = self.nodes.preparation() if self.on_nodes else None
        if agreed is None:
            self._need_central_data()
            data = data_of(self)
            weights = self._row_weights(data.starts)
            shares = np.bincount(data.targets, weights, 2)
        else:
            shares = np.array(agreed.spread)
            rows = agreed.scaling == "unit-rows"
            shape = (len(agreed.names()),)
            norms = domain.largest_norms(shape)
            if norms is None or not shares.all():
                why = "has no bounds for this set and data; allowed: false"
                raise self.refused("intercept", why)
            largest = norms[1] if rows else norms[0]
        ends = []
        for label in (1, 0):
            share, sign = float(shares[label]), 2.0 * label - 1.0
            if agreed is None:
                s = sign * np.where(data.targets == label, weights, 0.0)
                mean = np.asarray(data.features.T @ s).ravel() / share
                reach = domain.lmo(-mean).dot(mean)
            else:
                reach = largest * (1.0 if rows else math.sqrt((1.0 - share) / share))
            entropy = float(scipy.special.entr(shares).sum()) / share
            # ln(e^h − 1) = h + ln(1 − e^−h)
            log = entropy + math.log(-math.expm1(-entropy))
            ends.append(-sign * (reach + log))
        return Box(*ends)

    def domains(self) -> dict[str, float]:  # noqa: D102
        return {"l1-ball": 10.0, "l2-ball": 5.0, "linf-ball": 1.0}

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``"accuracy"`` on test examples, without any ``"train-accuracy"``."""
        if len(data_of(self).test_targets):
            return super().metrics(x)
        measures = self.objective().metrics(self.argument(x))
        return {"train-accuracy": measures["accuracy"]}

    def baseline(self) -> dict[str, float]:
        """Return the classes' entropy, and how often the most frequent one is right."""
        made = self.preparation()
        if made is None:
            return {}
        loss = {"loss": float(scipy.special.entr(made.spread).sum())}
        if self.on_nodes:
            return loss | {"accuracy": max(made.spread)}
        data, first = data_of(self), int(np.argmax(made.spread))
        tests, name = data.test_targets, "accuracy"
        if not len(tests):
            tests, name = data.targets, "train-accuracy"
        return loss | {name: float(np.mean(tests == first))}

    def deal(self, labels: NDArray[Any]) -> list[Indices]:
        """Deal examples to the clients; ``uneven`` cuts a random order at random."""
        if self.partition != "uneven":
            return super().deal(labels)
        self.check_clients(len(labels))
        rng = generator(self.seed, "partition")
        return cut_at_random(rng.permutation(len(labels)), self.num_clients, rng)

    def _loss(
        self, features: Any, targets: Any, weight: float, examples: float = 1.0
    ) -> Logistic | MultinomialLogistic:
        l2 = self.l2 / examples if self.l2_per_example else self.l2
        more: Any = {"intercept": self.has_intercept(), "l2": l2, "weight": weight}
        if self.classes > 2:
            more["free_intercept"] = more["intercept"]
            return MultinomialLogistic(features, targets, self.classes, **more)
        kind = Logistic if self.regularizer == "l2" else NonconvexLogistic
        return kind(features, targets, **more)

    def _client_loss(self, features: Any, targets: Any, weight: float) -> Any:
        return self._loss(features, targets, weight, len(targets))

    def _build_objective(self) -> Objective:
        if self.weighting == "clients":
            clients = range(self.num_clients)
            return MeanObjective([self.client_objective(i) for i in clients])
        data = data_of(self)
        # (1/n) Σ (n d_i/d) (μ/d_i) = n μ/d
        examples = len(data.targets) / self.num_clients
        return self._loss(data.features, data.targets, 1.0, examples)

    def _prepared(self, features: Any) -> Any:
        if self._scaling() == "unit-rows":
            features = divide(features.copy(), norms(features, 0), 0)
        return features

    def _load(self) -> Dealt:
        table = self._table()
        labels = table.targets.astype(np.intp)
        train, test = np.arange(len(labels)), np.arange(0)
        if self.test_fraction:
            need("sklearn", "logistic-regression.test-fraction", "sklearn")
            seed = derived_seed(self.seed, "logistic-regression split")
            try:
                train, test = stratified(labels, self.test_fraction, seed)
            except ValueError as error:
                counts = " and ".join(map(str, np.bincount(labels)))
                why = f"does not suit {counts} examples of the labels"
                raise self.refused("test_fraction", why) from error
        shares = self.deal(labels[train])
        order, starts = train[np.concatenate(shares)], starts_of(shares)
        # copies, so that they can be scaled in place
        features, tests, made = table.features[order], table.features[test], None
        if table.columns:
            made = self._preparation_of(table, features, labels[order], starts)
            features, tests = made.scaled(features), made.scaled(tests)
        else:
            features, tests = scaled(features, tests, self._scaling())
        return Dealt(features, labels[order], starts, tests, labels[test], made)

    def _scaling(self) -> str:
        """Return the scaling that ``auto`` stands for, or the one that was chosen."""
        raw = self.on_nodes and not self.nodes.agreed
        sparse = self.on_file and not is_dense(self.path)
        sparse = sparse or self.dataset in ("qsar", "libsvm")
        unfit: tuple[str, ...] = ("standard",) if sparse else ()
        why = "sparse data would not stay so"
        if raw:
            unfit = ("standard", "unit-columns")
            why = "it is measured on the examples of all nodes"
        if self.scaling in unfit:
            every = ("auto", "none", "unit-columns", "unit-rows")
            allowed = ", ".join(name for name in every if name not in unfit)
            data = f"logistic-regression.dataset = {self.dataset!r}"
            why = f"does not fit {data}: {why}; allowed: {allowed}"
            raise self.refused("scaling", why)
        if self.scaling != "auto":
            return self.scaling
        rows = sparse or self.dataset == "santander"
        raw |= self.on_file and not self.nodes.prepare
        return "none" if raw else "unit-rows" if rows else "standard"

    def _table_scaling(self) -> str:
        return "standard" if self.scaling == "auto" else self.scaling

    def _table(self) -> Table:
        if self.dataset in SCHEMAS:
            path = data_path("logistic-regression.path", self.path)
            table = load_table(self.dataset, path)
        elif self.on_file:
            table = self._own_table("class")
        else:
            what = "logistic-regression.dataset = 'breast-cancer'"
            features, classes = toy("breast_cancer", what)
            return Table(features, classes)
        if table.labels and len(table.labels) != self.classes:
            kind = f"{len(table.labels)} labels; there must be {self.classes}"
            mend = f", or logistic-regression.classes = {len(table.labels)}"
            mend *= self.on_file and len(table.labels) > 1
            fault(Path(self.path), kind + mend)
        return table
