"""The client's half of federated Frank-Wolfe: FedFW, and the naive baseline."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.corrective import Form, Iterate, LocalProblem
from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import Atom, pack_atoms
from fedtrellis.domains.base import check_domain, describe
from fedtrellis.local_steps import mini_batches
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.privacy import LocalNoise
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray, Layout, join_arrays, split_arrays
from fedtrellis.wire.client import MethodClient, StatefulClient
from fedtrellis.wire.local_work import Gradient, Request, Steps


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
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedFWClient
    >>> from fedtrellis.domains import L1Ball
    >>> app = client_app(
    ...     lambda context: FedFWClient(context, my_loss(context), L1Ball(1.0))
    ... )
    """

    def __init__(
        self, context: Context, objective: DifferentiableLoss, domain: Domain
    ) -> None:
        check_domain(domain)
        super().__init__(context)
        self.objective = objective
        self.domain = domain

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """What is sent before round 1: the set that the client works on."""
        return {"domain": describe(self.domain)}

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The round's steps from x_i: s_i of each, or what they correct of x_i."""
        if config.get("variant") == "corrective":
            return self._corrected(x, config), 0, {}
        atoms = yield from self._oracle_steps(x, config)
        return pack_atoms(atoms), 0, {}

    def _corrected(self, z: FloatArray, config: dict[str, Any]) -> list[NDArray[Any]]:
        """The iterate's corrections by k steps on L_i; then y_i's step."""
        domain, steps = self.domain, int(config["local-steps"])
        state: dict[str, NDArray[Any]] = self.state
        iterate, y = self._iterate(), state["y"]
        # nobody knows yet how F bends: the first round has no penalty
        penalty, n = float(config.get("penalty", 0.0)), int(config["num-clients"])
        problem = LocalProblem(self.objective, self.layout, n, y, z, penalty)
        corrections = iterate.corrections(problem, domain, steps)
        after = iterate.changed(corrections, domain, steps)
        x = after.dense()
        # y_i ← y_i + ρ (x_i − z)
        y = y + penalty * (x - z)
        state["x"], state["y"] = join_arrays(after.arrays()), y
        numbers: list[float] = []
        if "penalty" not in config:
            bend = problem.bend_between(x, before := iterate.dense())
            if bend == 0.0 and not np.array_equal(x, before):
                # f_i is linear: the size of a penalty is G/D, as the paper has it
                slope = float(np.linalg.norm(problem.loss_gradient(x)))
                bend = slope / domain.diameter(x.shape)
            numbers.append(bend)
        if config.get("certificate", False):
            # φ_i = f_i(x_i) / n
            # γ_i = max over v in D of ⟨∇f_i(x_i) / n + y_i, x_i − v⟩
            numbers += [problem.loss(x), domain.gap(problem.loss_gradient(x) + y, x)]
        self.numbers = np.array(numbers) if numbers else None
        return corrections

    def _iterate(self) -> Iterate:
        """x_i, which the state has packed, or as the first model itself."""
        x, layout = self.state["x"], self.layout
        form = Form(self.domain, layout.point_dtype)
        if x.dtype == np.uint8:
            return form.unpack(split_arrays(x), layout.point_shape)
        return form.start_at(x)

    def _oracle_steps(
        self, x_bar: FloatArray, config: dict[str, Any]
    ) -> Generator[Request, Any, list[Atom]]:
        """Return s_i of each step of a round, all with the same x̄."""
        state, dtype = self.state, self.layout.point_dtype
        # x_i and y_i in float64, as the server replays them for the whole run
        x = state["x"].astype(np.float64, copy=False)
        variant, n = config.get("variant", "plain"), float(config["num-clients"])
        stochastic = variant == "stochastic"
        batches = mini_batches(self.objective, self.client_id, config)
        penalties = _each_of(config, "penalty")
        noise = _each_of(config, "lmo-noise") if "lmo-noise" in config else []
        noise_rng = None
        if noise:
            use = "oracle noise", self.client_id, config["server-round"]
            noise_rng = generator(config["seed"], *use)
        private = LocalNoise.asked_for(config)

        atoms: list[Atom] = []
        for j, eta in enumerate(_each_of(config, "step-size")):
            # the oracle does not mind a positive factor, and n g_i takes one pass less
            # over a long vector than g_i
            factor = 1.0 if stochastic else n
            # factor · g_i = factor · ((1/n) ∇f_i(x_i) + λ_t (x_i − x̄) [+ y_i])
            g = x - x_bar
            if variant == "augmented" and j == 0:
                # y_i ← y_i + λ_0 (x_i − x̄), while x̄ is the mean of the x_i: with an
                # older one Σ y_i would not stay 0, and the limit would be another
                y = state["y"] + config["dual-penalty"] * g
                state["y"] = y
            g *= factor * penalties[j]
            own = yield Gradient(x, batches)
            if stochastic:
                own, d = own / n, state.get("d")
                if d is not None:  # a client's first step has ρ = 1
                    # d_i ← (1 − ρ_t) d_i + ρ_t (1/n) ∇f_i(x_i, ω)
                    rho = _each_of(config, "averaging")[j]
                    own = (1.0 - rho) * d + rho * own
                state["d"] = own
            if private is None:
                g += own
            if variant == "augmented":
                g += factor * y
            if noise_rng is not None:
                g += factor * noise_rng.normal(scale=noise[j], size=g.shape)
            if j == 0 and config.get("gradient-norm", False):  # noise included
                self.numbers = np.array([np.linalg.norm(g) / factor])

            atom = None
            if private is not None:
                # what g_i has besides ∇f_i follows from the atoms that were sent
                g, atom = private.answer(self.domain, g, own)
            # s_i = argmin over s in D of ⟨g_i, s⟩, from where the last one was found
            start = state.get("start")
            if atom is None:
                atom, start = yield _Minimiser(self.domain, g, start)
            atom = atom.of_dtype(dtype)
            if start is not None:
                state["start"] = start
            # x_i ← (1 − η_t) x_i + η_t s_i
            x = (1.0 - eta) * x
            atom.add_to(x, eta)
            atoms.append(atom)
        x.setflags(write=False)  # nobody has to copy it to keep it
        state["x"] = x
        return atoms


def _each_of(config: dict[str, Any], key: str) -> list[float]:
    """A number of each step, which comes as a list where there are several."""
    value = config[key]
    return list(value) if isinstance(value, list) else [value]


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
        kind, oracles = type(domain), {"lmo", "lmo_many"}
        # a subclass may have overridden the one for one gradient alone
        owner = next(c for c in kind.__mro__ if oracles & vars(c).keys())
        if (
            any(one.domain is not domain and one.domain != domain for one in asked)
            or kind.lmo_from is not Domain.lmo_from
            or "lmo_many" not in vars(owner)
        ):
            return None
        gradients = np.array([one.gradient for one in asked])
        return [(atom, None) for atom in domain.lmo_many(gradients)]


class NaiveFrankWolfeClient(MethodClient):
    """Answers with the oracle of its own gradient at x̄; see ``NaiveFrankWolfe``.

    Parameters are those of :class:`FedFWClient`; of the objective ``gradient(x)`` is
    enough.

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
        check_domain(domain)
        self.context = context
        self.objective = objective
        self.domain = domain

    get_properties = FedFWClient.get_properties

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The atom s_i = argmin over s in D of ⟨∇f_i(x̄), s⟩, with x̄ in ``x``."""
        gradient = yield Gradient(x)
        atom = self.domain.lmo(gradient).of_dtype(self.layout.point_dtype)
        return pack_atoms([atom]), 0, {}
