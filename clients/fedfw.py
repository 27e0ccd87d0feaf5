"""The client's half of federated Frank-Wolfe: FedFW, and the naive baseline."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.corrective import Form, Iterate, LocalProblem
from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import Atom, pack_atoms
from fedtrellis.domains.base import describe
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.privacy import LocalNoise
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout, join_arrays, split_arrays
from fedtrellis.wire.client import MethodClient, StatefulClient, speaks_for
from fedtrellis.wire.local_work import Gradient, MiniBatches, Request, Steps

__all__ = ["FedFWClient", "NaiveFrankWolfeClient"]


class FedFWClient(StatefulClient):
    """One client of federated Frank-Wolfe; see ``FedFW`` for the algorithm.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``, for the stochastic variant
        ``stochastic_gradient(x, rng, batch_size)``, and for evaluation ``value(x)`` and
        ``num_examples``. ``x`` is one ndarray, or the list of the model's arrays.
    domain : Domain
        D, or this client's own D_i ⊇ D (§4.3: a set with a cheaper oracle, or with
        smaller atoms), which the strategy has to know of (``client_domains``). The
        intersection of all D_i must be D.

    Notes
    -----
    State: x (x_i), y (y_i, FedFW+), d (d_i, FedFW-sto).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedFWClient
    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return FedFWClient(context, loss, L1Ball(1.0))
    >>> app = client_app(client_fn)
    """

    def __init__(
        self, context: Context, objective: DifferentiableLoss, domain: Domain
    ) -> None:
        super().__init__(context)
        self.objective = objective
        self.domain = domain

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """What the server is told before round 1: the set that the client works on."""
        return {"domain": describe(self.domain)}

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The round's steps from x_i: s_i of each, or what they correct of x_i."""
        if config.get("variant") == "corrective":
            layers = self.layout.layers(x)
            arrays, self.numbers = correct(
                self.objective, self.domain, layers, config, self.state
            )
            return arrays, 0, {}
        atoms = yield from oracle_steps(self, x, self.domain, config)
        return pack_atoms(atoms), 0, {}


def correct(
    objective: Any,
    domain: Domain,
    parameters: list[NDArray[Any]],
    config: Mapping[str, Any],
    state: dict[str, NDArray[Any]],
) -> tuple[list[NDArray[Any]], FloatArray | None]:
    """One round: k corrective steps on L_i, then the dual variable's.

    Parameters
    ----------
    objective : object
        f_i.
    domain : Domain
        The client's set.
    parameters : list of ndarray
        z, in the model's layers.
    config : mapping
        The request's.
    state : dict
        "x", the iterate packed (or the first model itself), and "y"; both are replaced.

    Returns
    -------
    (list of ndarray, ndarray or None)
        What travels: the iterate's corrections, and as scalars the curvature of f_i/n
        if there is no ρ yet, and φ_i and γ_i if they are wanted.
    """
    layout = Layout.of(parameters)
    z = layout.point(parameters)
    steps = int(config["local-steps"])
    correction = config.get("correction")
    iterate, y = _iterate(domain, state["x"], layout, correction), state["y"]
    # nobody knows yet how F bends: the first round has no penalty
    penalty, n = float(config.get("penalty", 0.0)), int(config["num-clients"])
    problem = LocalProblem(objective, layout, n, y, z, penalty)
    corrections = iterate.corrections(problem, domain, steps)
    after = iterate.changed(corrections, domain, steps)
    x = after.dense()
    # y_i ← y_i + ρ (x_i − z)
    y = y + penalty * (x - z)
    state["x"], state["y"] = join_arrays(after.arrays()), y
    numbers: list[float] = []
    if "penalty" not in config:
        numbers.append(problem.bend_between(x, iterate.dense()))
    if config.get("certificate", False):
        # φ_i = f_i(x_i) / n
        # γ_i = max over v in D of ⟨∇f_i(x_i) / n + y_i, x_i − v⟩
        numbers += [problem.loss(x), domain.gap(problem.loss_gradient(x) + y, x)]
    return corrections, np.array(numbers) if numbers else None


def _iterate(
    domain: Domain, x: NDArray[Any], layout: Layout, correction: str | None
) -> Iterate:
    form = Form(domain, correction, layout.point_dtype)
    if x.dtype == np.uint8:
        return form.unpack(split_arrays(x), layout.point_shape)
    # not a step yet: this is the first model itself
    return form.start_at(x)


def oracle_steps(
    client: StatefulClient, x_bar: FloatArray, domain: Domain, config: Mapping[str, Any]
) -> Generator[Request, Any, list[Atom]]:
    """Take the steps that a request asks for, all with the x̄ that it brings.

    Parameters
    ----------
    client : StatefulClient
        With ``objective``. Its ``state`` is afterwards as the steps leave it. Where the
        request asks for it, its ``numbers`` are ‖g_i‖ of the first step, noise
        included.
    x_bar : ndarray of shape ``client.layout.point_shape``
        x̄.
    domain : Domain
        D, or this client's own.
    config : mapping
        The request's. What changes from step to step is a number where there is one
        step, and else a list.

    Returns
    -------
    list of Atom
        s_i of each step.
    """
    state, dtype = client.state, client.layout.point_dtype
    # x_i and y_i in float64, as the server replays them: it does so for the whole run
    x = state["x"].astype(np.float64, copy=False)
    variant, n = config.get("variant", "plain"), float(config["num-clients"])
    stochastic, batches = variant == "stochastic", None
    if stochastic:
        rng = _generator(client, "mini-batch", config)
        batches = MiniBatches(rng, config["batch-size"])
    penalties = each_of(config, "penalty")
    noise = each_of(config, "lmo-noise") if "lmo-noise" in config else []
    noise_rng = _generator(client, "oracle noise", config) if noise else None
    private = LocalNoise.asked_for(config)

    atoms: list[Atom] = []
    for j, eta in enumerate(each_of(config, "step-size")):
        # the oracle does not mind a positive factor, and n g_i takes one pass less
        # over a long vector than g_i
        factor = 1.0 if stochastic else n
        # factor · g_i = factor · ((1/n) ∇f_i(x_i) + λ_t (x_i − x̄) [+ y_i])
        g = x - x_bar
        if variant == "augmented" and j == 0:
            # y_i ← y_i + λ_0 (x_i − x̄), while x̄ is the mean of the x_i: with an older
            # one Σ y_i would not stay 0, and the limit would be another
            y = state["y"] + config["dual-penalty"] * g
            state["y"] = y
        g *= factor * penalties[j]
        own = yield Gradient(x, batches)
        if stochastic:
            own = state["d"] = _averaged(own / n, state.get("d"), config, j)
        if private is None:
            g += own
        if variant == "augmented":
            g += factor * y
        if noise_rng is not None:
            g += factor * noise_rng.normal(scale=noise[j], size=g.shape)
        if j == 0 and config.get("gradient-norm", False):
            client.numbers = np.array([np.linalg.norm(g) / factor])

        drawn = None
        if private is not None:
            # what g_i has besides ∇f_i follows from the atoms that were sent
            g, drawn = private.answer(domain, g, own)
        # s_i = argmin over s in D of ⟨g_i, s⟩, from where the last one was found
        atom, start = drawn, state.get("start")
        if atom is None:
            atom, start = yield _Minimiser(domain, g, start)
        atom = atom.of_dtype(dtype)
        if start is not None:
            state["start"] = start
        # x_i ← (1 − η_t) x_i + η_t s_i
        x = (1.0 - eta) * x
        atom.add_to(x, eta)
        atoms.append(atom)
    state["x"] = x
    return atoms


@dataclass(slots=True, eq=False)
class _Minimiser:
    """Ask for argmin over s in D of ⟨g, s⟩, as ``Domain.lmo_from`` answers."""

    domain: Domain
    gradient: FloatArray
    start: FloatArray | None

    def answer(self, objective: Any, layout: Layout) -> tuple[Atom, FloatArray | None]:
        return self.domain.lmo_from(self.gradient, self.start)

    @staticmethod
    def answer_many(
        asked: Sequence[_Minimiser], peers: Any
    ) -> list[tuple[Atom, None]] | None:
        """Of one set, whose oracle has nothing to keep and nothing of its own."""
        domain = asked[0].domain
        kind = type(domain)
        if (
            any(one.domain is not domain and one.domain != domain for one in asked)
            or kind.lmo_from is not Domain.lmo_from
            or not speaks_for(kind, "lmo_many", "lmo")
        ):
            return None
        gradients = np.array([one.gradient for one in asked])
        return [(atom, None) for atom in domain.lmo_many(gradients)]


def _averaged(
    gradient: FloatArray, d: FloatArray | None, config: Mapping[str, Any], j: int
) -> FloatArray:
    """d_i of the stochastic variant after step j, given (1/n) ∇f_i(x_i, ω)."""
    if d is None:
        # a client that takes part for the first time uses ρ = 1
        return gradient
    # d_i ← (1 − ρ_t) d_i + ρ_t (1/n) ∇f_i(x_i, ω)
    rho = each_of(config, "averaging")[j]
    return (1.0 - rho) * d + rho * gradient


def each_of(config: Mapping[str, Any], key: str) -> list[float]:
    """What a request says for each step, where it says one number for one step."""
    value = config[key]
    return list(value) if isinstance(value, list) else [value]


def _generator(
    client: StatefulClient, purpose: str, config: Mapping[str, Any]
) -> np.random.Generator:
    return generator(config["seed"], purpose, client.client_id, config["server-round"])


class NaiveFrankWolfeClient(MethodClient):
    """Answers with the oracle of its own gradient at x̄; see ``NaiveFrankWolfe``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``.
    domain : Domain
        D.

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import NaiveFrankWolfeClient
    >>> from fedtrellis.domains import L1Ball
    >>> def client_fn(context):
    ...     return NaiveFrankWolfeClient(context, my_loss(context), L1Ball(1.0))
    >>> app = client_app(client_fn)
    """

    def __init__(
        self, context: Context, objective: DifferentiableLoss, domain: Domain
    ) -> None:
        self.context = context
        self.objective = objective
        self.domain = domain

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """What the server is told before round 1: the set that the client works on."""
        return {"domain": describe(self.domain)}

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The atom s_i = argmin over s in D of ⟨∇f_i(x̄), s⟩, with x̄ in ``x``."""
        gradient = yield Gradient(x)
        atom = self.domain.lmo(gradient).of_dtype(self.layout.point_dtype)
        return pack_atoms([atom]), 0, {}
