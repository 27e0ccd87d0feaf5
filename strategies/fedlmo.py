"""Local linear minimisation oracle steps on networks: federated Muon and Scion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrellis.compressors import Compression, compressor
from fedtrellis.domains import Domain, WholeSpace
from fedtrellis.domains.atoms import rounding
from fedtrellis.domains.product import towards
from fedtrellis.layer_steps import (
    LayerOracle,
    Orthogonalization,
    Scaling,
    StepSchedule,
    moved,
    scheduled,
    settle_kinds,
    with_momentum,
)
from fedtrellis.server.conversation import Answer
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import entries_of, given, refused, setting
from fedtrellis.wire.arrays import DTYPES, FloatArray, Layout

from .fedavg import unpacked

Variant = Literal["corrected", "averaged", "local", "server", "ef21"]
# what the server sends beside the model: c, or m
_BESIDE = {"corrected": "control", "averaged": "mean-momentum"}


class FedLMO(RoundStrategy):
    """Steps along linear minimisation oracles, one for each layer of a network.

    For min over x of f(x) = (1/n) Σ_i f_i(x). lmo(D) is, layer by layer, the point of
    the unit ball of that layer's norm with the least ⟨D, s⟩: −scale · U Vᵀ for matrices
    and convolutions, −sign(D) for vectors
    (:class:`~fedtrellis.layer_steps.LayerOracle`). In round t::

        client   x_i = x;  k times, on mini-batches:
                     g ← ∇f_i(x_i; ξ) + (c − c_i)          (c = c_i = 0 in ``local``)
                     m_i ← μ m_i + (1 − μ) g
                     x_i ← x_i + γ_t lmo(m_i)              (radius 0)
                     x_i ← (1 − γ_t) x_i + γ_t r lmo(m_i)  (radius r)
                 sends x_i, and in ``corrected`` h_i, the mean of its ∇f_i(x_i; ξ)
        server   x ← (1/|S|) Σ over S of x_i;  c_i ← h_i for i in S;  c ← (1/n) Σ c_i

    In ``averaged`` c = c_i = 0, and the clients' momenta begin where their mean ended:
    a client sends m_i beside x_i, the server m = (1/|S|) Σ over S of m_i beside x, and
    the client's steps begin with m_i = m.

    In ``server`` a client sends h_i, the mean of k mini-batch gradients at x, and the
    server takes the step: m ← μ m + (1 − μ) (1/|S|) Σ h_i, x ← x + γ_t lmo(m).

    Layers with a set D_l of their own (``domain``, made by ``constrain``) take the
    steps x_i ← x_i + γ_t (a − x_i), a = argmin over D_l of ⟨m_i, a⟩, and start in D_l.

    In ``ef21`` the momentum is the clients', who send what the server lacks of it,
    compressed: D_i is m_i or Nesterov's, v_i what the server has of it::

        client   d_i = C(D_i − v_i);  v_i ← v_i + d_i;  sends d_i
        server   v_i ← v_i + d_i for i in S;  x ← x + γ_t lmo((1/n) Σ over all n of v_i)

    An LMO is not linear: ``local`` stands still where the clients' steps cancel, which
    is no critical point of f when the clients differ. ``corrected`` removes that bias
    by SCAFFOLD's control variates; ``averaged`` makes it smaller while μ^k is near 1,
    without a vector a client on the server; both at twice the bytes in both directions.
    No rate of convergence has been shown for the three in this form.

    Source: Pethick et al., arXiv 2502.07529 (Scion), algorithms 1 and 2, for a step;
    Jordan et al., "Muon", 2024, for Nesterov's momentum and Newton-Schulz; Karimireddy
    et al., "SCAFFOLD", ICML 2020, option I, for the control variates, with the mean
    gradient of the local steps instead of the gradient at x; Gruntkowska, Gaponov,
    Tovmasyan, Richtárik, "Error Feedback for Muon and Friends", arXiv 2510.00643
    (EF21-Muon), for compressed momentum, of which only the way up is compressed here.

    Notes
    -----
    The matching client is ``FedLMOClient(context, objective)``, with the same
    ``domain`` if there is one. With one client, all of
    its examples, ``local``, ``scaling="muon"``, ``nesterov=True`` and
    ``orthogonalization="bfloat16"`` its steps are those of ``torch.optim.Muon`` without
    weight decay.

    Examples
    --------
    Run as :class:`FedAvgGD` is, with ``FedLMOClient`` on the nodes:

    >>> from fedtrellis.strategies import FedLMO
    >>> FedLMO(batch_size=0, step_size=0.1, momentum=0.0).variant
    'corrected'
    """

    name = "fedlmo"
    about = "Muon's and Scion's steps in federated learning of networks"
    dtypes = DTYPES

    _linear, _kept = True, ("_vectors",)
    keep_model = False
    _state_settings = ("variant", "compressor", "kept_fraction", "rank")
    _beside_f = ("radius",)

    domain: Domain = given(
        "what layers are kept in, see :func:`~fedtrellis.domains.constrain`",
        default=WholeSpace(),
        shown=False,
    )
    variant: Variant = setting(
        "corrected",
        "local steps with control variates; with the mean of the clients' momenta; "
        "plain local steps, whose mean is biased where clients differ; steps of the "
        "server along the mean gradient; or along the clients' compressed momentum, "
        "with error feedback",
        choices=Variant,
    )
    local_steps: int = setting(
        5,
        "LMO steps of a client in a round; with variants server and ef21 the "
        "mini-batches of its gradient",
        symbol="k",
        minimum=1,
    )
    step_size: float = setting(
        0.03, "of the first step, see step_schedule", symbol="γ", above=0.0
    )
    step_schedule: StepSchedule = setting(
        "linear",
        "γ_t over the T rounds: γ; or γ (1 − (t − 1)/T)",
        symbol="γ_t",
        choices=StepSchedule,
    )
    momentum: float = setting(
        0.9,
        "of the clients, or with variant server of the server, averaged of both; kept "
        "across rounds",
        symbol="μ",
        minimum=0.0,
        below=1.0,
    )
    nesterov: bool = setting(
        False, "whether the oracle is asked at (1 − μ) g + μ m instead of m"
    )
    radius: float = setting(
        0.0,
        "of the balls that the layers are drawn into, in units of their norms; 0: "
        "steps without a constraint",
        symbol="r",
        minimum=0.0,
    )
    batch_size: int = setting(32, "examples in a local mini-batch; 0: all", minimum=0)
    layers: str = setting(
        "",
        "the oracle of each of the model's arrays, by commas: spectral, sign, or rows "
        "for embeddings; empty: spectral for arrays of two and more axes, else sign",
    )
    scaling: Scaling = setting(
        "scion",
        "of the spectral oracle: √(outputs/inputs), by the kernel's pixels for "
        "convolutions; or √max(1, rows/columns)",
        choices=Scaling,
    )
    orthogonalization: Orthogonalization = setting(
        "newton-schulz",
        "how U Vᵀ is computed: Newton-Schulz in the model's dtype, or in bfloat16 "
        "(PyTorch), or by a singular value decomposition",
        choices=Orthogonalization,
    )
    compressor: Compression = setting(
        "top-k",
        "what is sent of D_i − v_i: the largest entries; of each layer the largest "
        "singular triples; or of each entry its power of two, in one byte",
        symbol="C",
        choices=Compression,
        only={"variant": ("ef21",)},
    )
    kept_fraction: float = setting(
        0.05,
        "part of the entries that top-k keeps",
        above=0.0,
        maximum=1.0,
        only={"variant": ("ef21",), "compressor": ("top-k",)},
    )
    rank: int = setting(
        1,
        "singular triples of a layer that rank keeps",
        minimum=1,
        only={"compressor": ("rank",)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius and not isinstance(self.domain, WholeSpace):
            raise refused("radius", self.radius, "does not go with a domain", ["0"])
        points = int(self.variant not in ("server", "ef21"))
        self._sent_arrays = points, 1 + (self.variant in _BESIDE)

    def _check_aggregation(self) -> None:
        """One vector is enough where nothing travels beside it."""
        self._late = "" if self.variant in ("server", "ef21") else "change"
        if self.variant in ("local", "server"):
            self.needs = "sum"
        elif self.variant != "ef21":
            self.needs = "each"
        # ef21: a liar's small changes add up in its v_i, and the oracle knows no size
        super()._check_aggregation()

    def _check_model(self, layout: Layout) -> None:
        """Check that ``layers`` names an oracle for every array of the model."""
        settle_kinds(self.layers, layout.shapes)

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start with all control variates and momentum at zero."""
        self._oracle = LayerOracle(
            settle_kinds(self.layers, layout.shapes),
            self.scaling,
            self.orthogonalization,
        )
        start = self.broadcast.model
        if (inside := self._inside(start)) is not start:
            self.broadcast.replace(inside)
        zero = np.zeros_like(self.broadcast.model)
        # c_i, or with ef21 v_i
        self._vectors: dict[str, FloatArray] = {}
        if self.variant in ("corrected", "ef21"):
            self._vectors = dict.fromkeys(self.clients, zero)
        self._compressor = compressor(
            self.compressor, self.kept_fraction, rank=self.rank
        )
        self._momentum = zero
        if self.variant in ("server", "averaged"):
            self._kept = ("_momentum",)
        self._publish()

    def step_size_at(self, server_round: int) -> float:
        """γ_t."""
        planned = server_round, self.planned_rounds
        return scheduled(self.step_schedule, self.step_size, *planned)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """What the local steps need, γ_t and with control variates c."""
        entries = entries_of(self, "variant", "local_steps", "batch_size", "seed")
        if self.variant == "server":
            return entries
        entries |= entries_of(self, "momentum", "nesterov")
        if self.variant == "ef21":
            return entries | entries_of(self, "compressor", "kept_fraction", "rank")
        entries |= {
            "step-size": self.step_size_at(server_round),
            "radius": self.radius,
            "layers": ",".join(self._oracle.kinds),
        }
        entries |= entries_of(self, "scaling", "orthogonalization")
        if self.variant in _BESIDE:
            entries[_BESIDE[self.variant]] = self._beside
        return entries

    def _local_point(self, answer: Answer) -> FloatArray:
        point = self.take_point(answer)
        return point if answer.basis is None else self._aged(answer, point)

    def check(self, answer: Answer) -> Any:
        """x_i and h_i or m_i, one of them, or C(D_i − v_i)."""
        shape = self.broadcast.model.shape
        if self.variant == "local":
            return self._local_point(answer)
        # a gradient is in no proportion to the model
        if self.variant == "server":
            return self._only_array(answer, shape)
        if self.variant == "ef21":
            return unpacked(self, answer, self._compressor)
        if len(answer.arrays) != 2:
            raise ValueError(f"the answer has {len(answer.arrays)} arrays instead of 2")
        point, mean = answer.arrays
        beside = self._only_array(replace(answer, arrays=[mean]), shape)
        if answer.basis is not None:
            # no step is shorter where gradients are small: an old one, as long as it
            # was then, would lead all of them
            beside = self.broadcast.layout.rounded(self._weight_of(answer) * beside)
        return self._local_point(replace(answer, arrays=[point])), beside

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the models, or step along the mean gradient's oracle."""
        x = self.broadcast.model
        if self.variant == "server":
            # m ← μ m + (1 − μ) (1/|S|) Σ h_i
            g = self.mean_of(answers, np.zeros_like(x))
            self._momentum, d = with_momentum(
                self._momentum, g, self.momentum, self.nesterov
            )
            self._step(d, server_round)
        elif self.variant == "ef21":
            for name, change in answers.items():
                # v_i ← v_i + d_i
                self._vectors[name] = self._vectors[name] + change
            # D = (1/n) Σ over all n of v_i
            self._step(self._mean_vector(), server_round)
        else:
            points = answers
            if self.variant in _BESIDE:
                points = {name: point for name, (point, _) in answers.items()}
                beside = {name: vector for name, (_, vector) in answers.items()}
            if self.variant == "averaged":
                # m ← (1/|S|) Σ over S of m_i
                self._momentum = self.average(list(beside.values()), np.zeros_like(x))
            elif self.variant == "corrected":
                # c_i ← h_i;  c ← (1/n) Σ c_i over all clients
                self._vectors.update(beside)
            self._publish()
            # x ← (1/|S|) Σ over S of x_i
            self.broadcast.replace(self._inside(self.mean_of(points, x)))
        return {}

    def _inside(self, x: FloatArray) -> FloatArray:
        """A point of D: x itself, unless a client, a rule or rounding took it out."""
        tolerance = rounding(self.broadcast.layout.point_dtype)
        inside = self.domain.contains(x, tolerance)
        return x if inside else self.domain.project(x)

    def _step(self, d: FloatArray, server_round: int) -> None:
        """Take the server's own step along lmo(D)."""
        x, layout = self.broadcast.model, self.broadcast.layout
        s = towards(self.domain, d, x, layout.point(self._oracle(layout.layers(d))))
        # x ← x + γ_t lmo(D), or (1 − γ_t) x + γ_t r lmo(D)
        gamma = self.step_size_at(server_round)
        x = moved(x, s, gamma, self.radius)
        self.broadcast.replace(self._inside(x) if gamma > 1.0 else x)

    def _mean_vector(self) -> FloatArray:
        zero = np.zeros_like(self.broadcast.model)
        return self.average(list(self._vectors.values()), zero)

    def _publish(self) -> None:
        """Settle what is sent beside the model: m, or c."""
        if self.variant in _BESIDE:
            averaged = self.variant == "averaged"
            beside = self._momentum if averaged else self._mean_vector()
            self._beside = self.broadcast.layout.to_wire(beside).tobytes()

    @property
    def _replayed(self) -> str:  # type: ignore[override]
        """v_i; every c_i is another one in each round."""
        return "_vectors" if self.variant == "ef21" else ""

    @property
    def _lost(self) -> dict[str, str]:
        keeps = self.variant not in ("averaged", "server")
        return {"momentum": "begins with m_i = 0"} if keeps else {}

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """c_i or v_i."""
        key = "control" if self.variant == "corrected" else "estimate"
        return {key: self._vectors[client]} if self._vectors else {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        super().load_state(state)
        self._publish()
