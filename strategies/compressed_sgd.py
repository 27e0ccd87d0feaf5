"""FedAvg whose clients send their changes compressed."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtrellis.compressors import ChangeCompression, compressor
from fedtrellis.server.aggregation import Aggregation
from fedtrellis.server.answers import Answer
from fedtrellis.server.private import Private
from fedtrellis.settings import setting
from fedtrellis.wire.arrays import FloatArray

from .fedopt import FedOpt

__all__ = ["CompressedSGD"]


class CompressedSGD(FedOpt):
    """:class:`FedOpt` with a fraction of the bytes up; the model goes down dense.

    ::

        client   x_i after k_0 local steps from x, as in FedAvg; Δ_i = x_i − x
        top-k    sends d_i = C(e_i + Δ_i), keeps e_i ← e_i + Δ_i − d_i
        qsgd     sends d_i = Q(Δ_i), each entry at random to a level, unbiased
        sign     sends d_i = sign(Δ_i), a bit an entry
        server   Δ = (1/|S|) Σ over S of d_i;  for sign its sign, the clients' majority;
                 then momentum, Adam or Yogi on Δ as in FedOpt

    Baselines for methods that save bytes. e_i is the client's alone: one that has lost
    its state begins with zero.

    Source: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv
    1809.07599, and Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019, arXiv
    1901.09847, for top-k; Alistarh et al., "QSGD", NeurIPS 2017, arXiv 1610.02132;
    Bernstein et al., "signSGD", ICML 2018, arXiv 1802.04434, for the majority. Local
    steps, and momentum on the server, are FedOpt's.

    Notes
    -----
    The matching client is ``CompressedSGDClient(context, objective)``. With ``sign``
    the server's steps have the length of ``server_step_size``, whatever the gradients.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import CompressedSGDClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import CompressedSGD
    >>> loss = LeastSquares(np.eye(3), np.ones(3), scale="half-mean")
    >>> app = client_app(lambda context: CompressedSGDClient(context, loss))
    >>> strategy = CompressedSGD(
    ...     step_size=0.5, batch_fraction=1.0, server_momentum=0.0, kept_fraction=0.3
    ... )
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(LocalGrid(app, 2), start, num_rounds=50)
    >>> [x] = result.arrays.to_numpy_ndarrays()
    >>> bool(abs(x - 1.0).max() < 0.1)
    True
    """

    name = "compressed-sgd"
    about = "FedAvg whose changes go up as few entries, levels or signs"
    stateful = True
    state_settings: tuple[str, ...] = ("optimizer", "compressor")

    compressor: ChangeCompression = setting(
        "top-k",
        "of the changes: the largest entries, with error feedback; random levels; or "
        "signs, of which the majority counts",
        symbol="C",
        choices=ChangeCompression,
    )
    kept_fraction: float = setting(
        0.05,
        "part of the entries that top-k keeps",
        above=0.0,
        maximum=1.0,
        only={"compressor": ("top-k",)},
    )
    levels: int = setting(
        7,
        "of an entry's size with qsgd: 1 takes 2 bits an entry, up to 7 take four, "
        "more take eight",
        symbol="s",
        minimum=1,
        maximum=127,
        only={"compressor": ("qsgd",)},
    )

    def admits(self, kind: type[Aggregation]) -> bool:
        """No noise for changes that carry what was left of earlier ones."""
        return super().admits(kind) and not issubclass(kind, Private)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps, and how to compress where they lead."""
        return {
            **super().instruction(server_round, client),
            "seed": self.seed,
            "compressor": self.compressor,
            "kept-fraction": self.kept_fraction,
            "levels": self.levels,
        }

    def check(self, answer: Answer) -> FloatArray:
        """The change d_i; in proportion to the model, but for signs."""
        x, layout = self.broadcast.model, self.broadcast.layout
        by = compressor(self.compressor, self.kept_fraction, levels=self.levels)
        change = by.unpack(answer.arrays, layout)
        if not np.isfinite(change).all():
            raise ValueError("the answer is not finite")
        if self.compressor != "sign":
            self.check_proportion(x + change, x)
        return change

    def mean_change(self, answers: dict[str, Any]) -> FloatArray:
        """Δ, the mean of the d_i, or its sign."""
        mean = self.mean_of(answers, np.zeros_like(self.broadcast.model))
        # the majority; 0 where it is a draw
        return np.sign(mean) if self.compressor == "sign" else mean
