"""The client's half of FedGiA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context

from fedtrellis.admm.hessians import call_method, lipschitz_of, majoriser_of
from fedtrellis.admm.shifted_systems import cached_system
from fedtrellis.local_steps import mini_batches
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.settings import SettingsError, setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.client import StatefulClient
from fedtrellis.wire.local_work import Gradient, Steps
from fedtrellis.wire.summing import hides


class FedGiAClient(StatefulClient):
    """One client of FedGiA; see ``FedGiA`` for the algorithm.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given. Node config: ``slow=true`` keeps this client out
        of C.
    objective : object
        f_i, with ``gradient(x)``; for H_i and r_i ``lipschitz()`` and
        ``hessian_bound()`` (or ``hessian_factor()``), as the objectives of
        :mod:`fedtrellis.objectives` have them, unless ``hessian`` is given. Make it
        behind a module-level ``functools.lru_cache``: the factor is kept with it.
    hessian : float, ndarray of shape (n,) or object, optional
        H_i of one's own: a number h for h·I, a diagonal, or an object whose
        ``solve(v, shift)`` returns (H_i + shift·I)⁻¹ v for a vector v of all n
        parameters, and whose ``lipschitz`` (a number) is r_i.
    curvature : float, optional
        h of H_i = h·I, as a run config gives it; the same as ``hessian=h``.

    Notes
    -----
    State: pi (π_i), float64 whatever the model is of, and where σ is a diagonal scale
    (S), which the server sends once. x_i need not be kept: every round starts from the
    server's x.

    Examples
    --------
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import FedGiAClient
    >>> app = client_app(lambda context: FedGiAClient(context, my_loss(context)))
    """

    @dataclass(frozen=True)
    class Settings:
        """What a run config says to the client alone."""

        curvature: float | None = setting(
            None,
            "h of H_i = h·I, where a loss knows no bound; auto: its own",
            above=0.0,
        )

    def __init__(
        self,
        context: Context,
        objective: DifferentiableLoss,
        hessian: Any = None,
        curvature: float | None = None,
    ) -> None:
        super().__init__(context)
        self.objective = objective
        self.hessian = curvature if hessian is None else hessian

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """r_i, a diagonal above H_i, and whether this client is to be spared.

        Asked for before round 1. ``majoriser`` is the diagonal, as the bytes of
        float64, or of the one number r_i.
        """
        properties: dict[str, Any] = {}
        if self.context.node_config.get("slow"):
            properties["slow"] = True
        if hides(self.context):  # see fit_bounds
            properties["lipschitz-problem"] = "its node has a key, and hides it"
            return properties
        return properties | self._bounds()

    def _bounds(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        # of the objective, whatever H_i a user gives
        modulus = call_method(self.objective, "strong_convexity")
        if modulus is not None:
            properties["strong-convexity"] = float(modulus)
        try:
            properties["lipschitz"] = lipschitz_of(self.objective, self.hessian)
            majoriser = majoriser_of(self.objective, self.hessian)
            properties["majoriser"] = np.asarray(majoriser, dtype="<f8").tobytes()
            if hasattr(self.hessian, "solve"):
                properties["one-sigma"] = True
        except ValueError as error:
            # a server that is given σ does without
            properties["lipschitz-problem"] = str(error)
        return properties

    def fit_bounds(
        self, parameters: list[Any], config: dict[str, Any]
    ) -> tuple[list[Any], int, dict[str, Any]]:
        """The diagonal; r_i, the modulus and whether σ is one number, to be hidden."""
        found, layout = self._bounds(), Layout.of(parameters)
        if "lipschitz-problem" in found:
            raise SettingsError(f"{found['lipschitz-problem']}; or set sigma")
        diagonal = np.broadcast_to(np.frombuffer(found["majoriser"]), (layout.size,))
        numbers = [found["lipschitz"], found.get("strong-convexity", 0.0)]
        self.numbers = np.array([*numbers, float("one-sigma" in found)])
        point = diagonal.reshape(layout.point_shape)
        return [layout.to_wire(point)], 0, {}

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """ADMM steps, or one gradient step, from x; the answer is z_i."""
        batches = mini_batches(self.objective, self.client_id, config)
        gradient = yield Gradient(x, batches)
        lost = "pi" not in self.state and config["used-round"] > 0
        steps = 0 if lost else config.get("local-steps", 0)
        m, number = config["num-clients"], config["sigma"]
        # σ is that number, or that times S where the server has sent a scale S
        scale = self.state.get("scale")
        sigma = number if scale is None else number * scale
        # ḡ_i = (1/m) ∇f_i(x); from here on in float64, as H_i and π_i are
        g = gradient.astype(np.float64, copy=False) / m
        pi = self.state.get("pi")
        if steps:
            # with u = ḡ_i + π_i and d = (H_i/m + σI)⁻¹ u, k_0 times:
            #     x_i ← x − d
            #     π_i ← π_i + σ (x_i − x), that is u ← u − σ d
            u = (g if pi is None else g + pi).reshape(-1)
            system = cached_system(
                self.objective,
                config["hessian"],
                weight=1.0 / m,
                shift=number,
                scale=None if scale is None else scale.reshape(-1),
                user_hessian=self.hessian,
            )
            u, d = system.admm_steps(u, steps)
            d = d.reshape(x.shape)
            x_i = x - d
            pi = u.reshape(x.shape) - sigma * d - g
            # z_i = x_i + π_i/σ
            z: FloatArray = x_i + pi / sigma
        else:
            # x_i = x, π_i = −ḡ_i, z_i = x − ḡ_i/σ
            pi = -g
            z = x + pi / sigma
        self.state["pi"] = pi
        return z
