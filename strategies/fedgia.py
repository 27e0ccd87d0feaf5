"""FedGiA: inexact ADMM by some clients, one gradient step by the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrellis.admm.adapted_sigma import AdaptedSigma, common_scale
from fedtrellis.admm.quasi_newton import Separable
from fedtrellis.admm.shifted_systems import Hessian
from fedtrellis.local_steps import MOST_CURVED, hidden_bounds, largest_bound
from fedtrellis.random import generator
from fedtrellis.server.conversation import Answer, Conversation
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import SettingsError, entries_of, refused, setting
from fedtrellis.wire.arrays import DTYPES, FloatArray, Layout
from fedtrellis.wire.exchange import NO_ANSWER
from fedtrellis.wire.flower_internals import log


class _Bounds(NamedTuple):
    """What a client knows of f_i, or a block's mean: r_i, μ, a diagonal above H_i.

    ``one``: its own solve knows multiples of the identity only.
    """

    lipschitz: float
    modulus: float
    one: bool
    diagonal: FloatArray


class FedGiA(RoundStrategy):
    """Gradient descent and inexact ADMM: few rounds for smooth losses.

    Solves min over x of f(x) = (1/m) Σ_i f_i(x), without a constraint, over m clients.
    Client i keeps its Lagrange multiplier π_i, the server the last z_i = x_i + π_i/σ of
    every client. In a round, with C the clients selected for ADMM::

        server   x ← (1/m) Σ over all m clients of z_i                          (12)
        client   ḡ_i = (1/m) ∇f_i(x)
         in C    k_0 times:  x_i ← x − (H_i/m + σI)⁻¹ (ḡ_i + π_i)               (13)
                             π_i ← π_i + σ (x_i − x)                            (14)
                 sends z_i = x_i + π_i/σ                                        (15)
         else    x_i = x,  π_i = −ḡ_i;  sends z_i = x − ḡ_i/σ             (16)-(18)

    Everybody answers in every round; those outside C have one gradient to compute. An
    answer that is lost leaves the client's last z_i in the average. A client that lost
    its state needs no history: it comes back by the gradient branch.

    With ``sigma`` or ``sigma_scale`` given, σ is that number, as in the paper. By
    default there is none to guess. σ = θS/m has an entry for each parameter, S the mean
    of the diagonals above the clients' H_i, and the server looks where it goes: once
    everybody has answered at x, g = mσ(x − (1/m) Σ z_i) is ∇f(x), but for what the ADMM
    steps of those in C leave of it (34), and the next x is a quasi-Newton step from the
    best x so far (:mod:`fedtrellis.admm.quasi_newton`). Where that does not lower f the
    server goes back; where not even (12) does, θ grows. For answers that are missing x
    is held a few rounds; then, and with a robust average, the next x is (12). In round
    1, in the last one planned and to confirm that the stop rule holds, C is empty, and
    g the gradient itself. All this is ours: the paper's theorems are of (12) and a
    fixed σ.

    Source: Zhou and Li, "Efficient and Convergent Federated Learning", arXiv
    2205.01438, algorithm 1 and table II.

    Notes
    -----
    The matching client is ``FedGiAClient(context, objective)``. Metrics of a round:
    ``stop-residual``, the left side of the stop rule, once every client has answered;
    ``penalty``, h(x). Where C was empty and σ is adapted also ``gradient-norm``, ‖∇F‖
    at the best x, with F = f + h the length of the shortest of ∇f + ∂h; and where the
    clients know of a modulus μ of strong convexity ``suboptimality``, ‖∇F‖²/(2μ), which
    F(x) − F* is at most.

    Privacy: from the z_i of a client outside C the server gets its gradient back
    exactly, ḡ_i = σ(x − z_i). With ``aggregation="secure-sum"`` it gets those of
    blocks; C is empty then, and S, μ and r come from sums, too.

    Examples
    --------
    Run as :class:`FedAvgGD` is, with ``FedGiAClient`` on the nodes:

    >>> from fedtrellis.strategies import FedGiA
    >>> FedGiA().hessian
    'diagonal'
    """

    name = "fedgia"
    about = "inexact ADMM and gradient descent, without a constraint"
    # of every client the last is kept
    needs, _linear, _least_answers = "each", True, 1
    dtypes = DTYPES

    keep_model = False
    _state_settings = ("sigma", "sigma_scale", "hessian", "l1", "l2", "lower", "upper")
    _beside_f = ("_h",)

    sigma: float | None = setting(
        None,
        "penalty, one number for the whole run; auto: by sigma_scale",
        symbol="σ",
        above=0.0,
    )
    sigma_scale: float | None = setting(
        None,
        "of σ = t·r/m, one number for the whole run, with r the largest of the "
        "clients' Lipschitz constants r_i of ∇f_i, which they are asked for before "
        "round 1 (with a robust average at most twice their median); above 6 in "
        "theory; auto: σ is adapted, see above",
        only={"sigma": (None,)},
        note="with more than 6 rounds are many. With t ≥ 1 at least the gradient "
        "branch cannot overshoot: its step 1/(σm) is at most 1/r. The paper's "
        "experiments take 0.15 for least squares and max{0.1, (8/n) ln d} for logistic "
        "losses (n features, d examples), where every client has few examples, so that "
        "f is much smoother than the f_i; elsewhere so small a t diverges",
        symbol="t",
        above=0.0,
    )
    local_steps: int = setting(
        5, "ADMM steps of a client in C", symbol="k_0", minimum=1
    )
    selected_fraction: float = setting(
        0.5,
        "part of the clients in C, which take ADMM steps",
        note="C has ⌈s·m⌉ clients, drawn anew every round. A client whose node config "
        "says ``slow=true`` is never drawn",
        symbol="s",
        above=0.0,
        maximum=1.0,
    )
    hessian: Hessian = setting(
        "diagonal",
        "the largest eigenvalue of the bound Θ_i on ∇²f_i times the identity, or the "
        "diagonal above Θ_i where σ is adapted (FedGiA_D); or Θ_i itself (FedGiA_G)",
        note="for example A_iᵀA_i/d_i for least squares. A client with an H_i of its "
        "own uses that",
        symbol="H_i",
        choices=Hessian,
    )
    tolerance: float = setting(
        1e-9,
        "stop as soon as σ²m Σ_i ‖z_i − z_i before‖² ≤ n · tolerance, n the number of "
        "parameters; where σ is adapted, ‖∇f(x)‖² ≤ n · tolerance; 0: never",
        note="where σ is adapted, F(x) − F* is at most 10⁻⁶ (F(x_0) − F*) too, if f "
        "says how strongly convex it is; a tolerance above 10⁻⁹ allows for more. The "
        "rule stands in for the paper's ‖∇f(x)‖² ≤ n · 10⁻⁹, (30), which the server "
        "cannot see; it was never found to hold earlier than that",
        minimum=0.0,
    )

    l1: float = setting(
        0.0,
        "of h(x) = λ ‖x‖₁ + (ρ/2)‖x‖², which the server adds to f",
        note="then x ← argmin over x of h(x) + (mσ/2)‖x − (1/m) Σ z_i‖², not (12)",
        symbol="λ",
        minimum=0.0,
    )
    l2: float = setting(
        0.0, "of h: an elastic net with l1, ridge alone", symbol="ρ", minimum=0.0
    )
    lower: float | None = setting(None, "least value of every parameter; auto: none")
    upper: float | None = setting(None, "largest value of every parameter; auto: none")

    def __post_init__(self) -> None:
        super().__post_init__()
        lower = -inf if self.lower is None else self.lower
        upper = inf if self.upper is None else self.upper
        if not lower < upper:
            raise refused("lower", lower, f"must be less than upper = {upper}")
        self._h = Separable(self.l1, self.l2, lower, upper)

    def _check_aggregation(self) -> None:
        """Where σ is adapted the z_i of a round are all of one x."""
        fixed = self.sigma is not None or self.sigma_scale is not None
        self._late = "vector" if fixed else ""
        super()._check_aggregation()

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Settle σ, and start with z_i = x_i = x and π_i = 0."""
        # rounded as x is, which could not lie on a bound otherwise
        ends = map(float, map(layout.point_dtype.type, (self._h.lower, self._h.upper)))
        self._h = Separable(self.l1, self.l2, *ends)
        within = np.clip(point, self._h.lower, self._h.upper)
        if not np.array_equal(within, point):
            log(INFO, "the model to start from is moved to where lower and upper allow")
            self.broadcast.replace(within)
            point = self.broadcast.model
        m = self.num_clients
        # None: σ is one number for the run
        self._adapted: AdaptedSigma | None = None
        hidden = self.aggregator.seen_by == "client"
        if self.sigma is not None:
            self.settled_sigma = self.sigma
        elif hidden:  # until prepare has the clients' bounds
            if not self.sigma_scale:
                self._adapted = self._fresh(np.ones(point.size), 0.0)
            self.settled_sigma = inf
        else:
            self._settle({n: self._bounds_of(n, point.size) for n in self.clients})
        known = self.conversation.clients.items()
        slow = {name for name, client in known if client.properties.get("slow")}
        self._eligible = [name for name in self.clients if name not in slow]
        if hidden:
            self._eligible = []  # C is empty: an ADMM step would show its client's H_i
        if not self._eligible:
            log(WARNING, "C is empty: plain gradient descent, without ADMM")
        self._index = {name: i for i, name in enumerate(self.clients)}
        self._z = np.tile(point, (m, *[1] * point.ndim))
        # ‖z_i − z_i before‖² of each client's last answer, each entry times that of S
        self._changes = np.full(m, inf)
        self._first_residual = inf
        self._drawn: tuple[int, frozenset[str]] = (0, frozenset())

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """With secure sums, ask for sums of the clients' bounds."""
        if self.settled_sigma < inf:
            return
        try:
            found = hidden_bounds(self, conversation, "train.bounds", timeout, {})
        except SettingsError as error:
            raise SettingsError(f"{error}; or set sigma") from None
        layout, each = self.broadcast.layout, {}
        for answer in found:
            r, modulus, one = answer.numbers.tolist()
            diagonal = layout.from_wire(answer.arrays[0]).reshape(-1)
            each[answer.client] = _Bounds(r, modulus, one > 0.0, diagonal)
        self._settle(each)

    def _bounds_of(self, name: str, size: int) -> _Bounds:
        """What a client sent; one of somebody else's may know r_i only."""
        properties = self.conversation.clients[name].properties
        r, mu = (properties.get(key) for key in ("lipschitz", "strong-convexity"))
        if not isinstance(r, float) or not 0.0 < r < inf:
            why = properties.get("lipschitz-problem", f"it sent {r!r}")
            what = "gives no Lipschitz constant of its gradient"
            raise SettingsError(f"client {name} {what}: {why}; or set sigma")
        # as large as the model, and of no more use
        sent = properties.pop("majoriser", np.float64(r).tobytes())
        fits = isinstance(sent, bytes) and len(sent) in (8, 8 * size)
        diagonal = np.frombuffer(sent, dtype="<f8") if fits else np.zeros(1)
        good = diagonal.min() >= 0.0 and 0.0 < diagonal.max() < inf
        if self.sigma_scale is None and not good:
            what = f"gives no diagonal of {size} numbers above its Hessian"
            raise SettingsError(f"client {name} {what}; set sigma or sigma_scale")
        modulus = mu if isinstance(mu, float) and 0.0 <= mu < inf else 0.0
        one, whole = "one-sigma" in properties, np.broadcast_to(diagonal, (size,))
        return _Bounds(r, modulus, one, whole)

    def _settle(self, bounds: Mapping[str, _Bounds]) -> None:
        """Settle σ by what clients, or blocks of them, say of their f_i."""
        m, each = self.num_clients, list(bounds.values())
        if self.sigma_scale is not None:
            r = largest_bound(self, {name: b.lipschitz for name, b in bounds.items()})
            self.settled_sigma = self.sigma_scale * r / m
            log(INFO, "sigma σ = %.6g, from r = %.6g", self.settled_sigma, r)
            return
        most = MOST_CURVED if self.aggregator.robust else inf
        scale = common_scale([b.diagonal for b in each], most)
        if any(b.one for b in each):
            scale[:] = scale.max()
        log(INFO, "sigma mσ from %.6g to %.6g, adapted", scale.min(), scale.max())
        modulus = self._h.l2 + float(np.mean([b.modulus for b in each]))
        self._adapted = self._fresh(scale, modulus)
        self.settled_sigma = self._adapted.growth / m

    def _fresh(self, scale: FloatArray, modulus: float) -> AdaptedSigma:
        of = self._h, self.num_clients, self.tolerance
        return AdaptedSigma(scale, modulus, *of, self.broadcast.layout.point_dtype)

    def selected(self, server_round: int) -> frozenset[str]:
        """C, the clients of a round that take ADMM steps."""
        if self._without_admm(server_round):
            return frozenset()
        if self._drawn[0] != server_round:
            rng = generator(self.seed, "selection", server_round)
            # s·m may lie above a whole number by rounding alone
            count = int(np.ceil(self.selected_fraction * self.num_clients - 1e-9))
            count = min(count, len(self._eligible))
            drawn = rng.choice(len(self._eligible), size=count, replace=False)
            chosen = frozenset(self._eligible[index] for index in drawn)
            self._drawn = (server_round, chosen)
        return self._drawn[1]

    def _without_admm(self, server_round: int) -> bool:
        """Whether C is empty in a round because σ is adapted."""
        if self._adapted is None:
            return False
        return self._adapted.plainly or server_round == self.num_rounds

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """σ; and for those in C the number of steps and which H_i."""
        entries: dict[str, Any] = {"sigma": self.settled_sigma}
        if client in self.selected(server_round):
            entries |= entries_of(self, "local_steps", "hessian")
        return entries

    def check(self, answer: Answer) -> FloatArray:
        """z_i."""
        return self.take_point(answer)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average all clients' last z_i, or look where the gradients at x point to."""
        adapted, metrics = self._adapted, dict[str, float]()
        scale = 1.0 if adapted is None else adapted.scale.reshape(self._z.shape[1:])
        for name, z in answers.items():
            i = self._index[name]
            self._changes[i] = float((((z - self._z[i]) * scale) ** 2).sum())
            self._z[i] = z
        if adapted is None:
            # x ← (1/m) Σ z_i, or its prox
            weight = self.num_clients * self.settled_sigma
            mean = self._mean_of_z()
            self.broadcast.replace(self._h.prox(mean, weight) if self._h else mean)
        else:
            answered = [self._index[name] for name in answers]
            adapted.note(answered, self._without_admm(server_round))
            known = not self.aggregator.robust
            if known and adapted.waits:
                return {}
            mean = self._mean_of_z().reshape(-1)
            if known and adapted.answered.all():
                x = self.broadcast.model.astype(np.float64).reshape(-1)
                last = server_round == self.num_rounds
                x, metrics = adapted.step(x, mean, last)
            else:
                x, anew = adapted.averaged(mean, self._residual_of_z())
                if anew:
                    self._z[:] = x.reshape(self._z.shape[1:])
            self._go_to(x, adapted)
        residual = self.residual()
        if isfinite(residual):
            metrics = {"stop-residual": residual, **metrics}
            if not isfinite(self._first_residual):
                self._first_residual = residual
        if self._h:
            point = self.broadcast.model.astype(np.float64).reshape(-1)
            metrics["penalty"] = self._h.value(point)
        return metrics

    def _go_to(self, x: FloatArray, adapted: AdaptedSigma) -> None:
        self.broadcast.replace(x.reshape(self.broadcast.model.shape))
        sigma = adapted.growth / self.num_clients
        if sigma != self.settled_sigma:
            self.settled_sigma = sigma
            log(INFO, "sigma grows: θ/m = %.6g", sigma)

    def _use(
        self, server_round: int, answers: Sequence[Answer]
    ) -> dict[str, float] | None:
        metrics, adapted = super()._use(server_round, answers), self._adapted
        refused = [why for _, why in self.conversation.traffic.rejected]
        lost = metrics is None and any(why is not NO_ANSWER for why in refused)
        if lost and adapted is not None and (x := adapted.go_back()) is not None:
            self._go_to(x, adapted)
        return metrics

    def _mean_of_z(self) -> FloatArray:
        """(1/m) Σ z_i, or the robust average of the z_i."""
        return self.average(self._z[self._part_of], self.broadcast.model)

    @property
    def _part_of(self) -> list[int] | slice:
        away = self.away
        return [self._index[name] for name in self._members] if away else slice(None)

    def _residual_of_z(self) -> float:
        """σ²m Σ_i ‖z_i − z_i before‖²; infinite until everybody has answered once.

        As x⁺ − x is the mean of the z_i's changes, it is at least (σm)² ‖x⁺ − x‖². With
        C empty that is ‖∇f(x)‖² itself, as x⁺ = x − ∇f(x)/(σm); in general, by (34),
        σm (x − x⁺) = ∇f(x) + Σ over C of (H_i/m − σI)(x_i − x), and every x_i − x
        vanishes only as the z_i come to rest.
        """
        total = float(self._changes[self._part_of].sum())
        return self.settled_sigma**2 * self.num_clients * total

    def residual(self) -> float:
        """The left side of the stop rule, as of the last x that was changed."""
        adapted = self._adapted
        return self._residual_of_z() if adapted is None else adapted.residual

    def converged(self) -> bool:
        """Whether the residual is at most n · tolerance."""
        if self._adapted is not None:
            return self._adapted.stopped
        bound = self.tolerance * self.broadcast.model.size
        return self.tolerance > 0.0 and self.residual() <= bound

    def _diverged(self, risen: str) -> str:
        """A loss that rose and is all of F, or how the residual of a fixed σ did."""
        fixed = self._adapted is None
        mend = "; leave sigma and sigma_scale to 'auto', or take a larger one"
        if risen:
            return "" if self._h else risen + mend * fixed
        first, last = self._first_residual, self._residual_of_z()
        if fixed and isfinite(first) and not last <= first:
            ended = f"its stop-residual ended at {last:.3g} and was {first:.3g}"
            return f"{ended} at first{mend}"
        return ""

    def _replaces_state(self, client: str) -> bool:
        """Whether a client has no S yet, as it was asked for a part of it first."""
        hidden = self.aggregator.seen_by == "client" and self._adapted is not None
        return hidden and not self.conversation.clients[client].used_round

    @property
    def _lost(self) -> dict[str, str]:
        return {"pi": "takes the gradient branch once"}

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """S, where σ is adapted."""
        if self._adapted is None:
            return {}
        return {"scale": self._adapted.scale.reshape(self._z.shape[1:])}

    def state(self) -> dict[str, NDArray[Any]]:
        """σ, every client's z_i, and where σ is adapted what it goes by."""
        arrays: dict[str, NDArray[Any]] = {
            "sigma": np.array(self.settled_sigma),
            "first-residual": np.array(self._first_residual),
            "z": self._z,
            "changes": self._changes,
        }
        return arrays if self._adapted is None else arrays | self._adapted.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`; the clients' π_i are good for their own σ only."""
        self.settled_sigma = float(state["sigma"])
        self._first_residual = float(state["first-residual"])
        self._z, self._changes = np.array(state["z"]), np.array(state["changes"])
        if self._adapted is not None:
            self._adapted.load_state(state)
