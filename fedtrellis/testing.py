"""Contracts that every method keeps, for the tests of one's own.

``contract(strategy, client)`` for each of :data:`CONTRACTS`: ``strategy`` is the class,
or a function of its keywords, such as ``partial(MyMethod, L1Ball(1.0))``, and
``client(context, objective)`` its client. They run it on small least squares in this
process; an AssertionError says what does not hold.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context

from fedtrellis.objectives import LeastSquares
from fedtrellis.server.aggregation import Mean
from fedtrellis.server.callbacks import Callback
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid

__all__ = ["CONTRACTS"]

Strategy = Callable[..., Any]
Client = Callable[[Context, Any], Any]

_NODES, _ROUNDS, _SIZE = 5, 12, 3
_FAULTS = ("request_loss", "crash", "reply_loss", "late_reply", "garbage", "duplicate")


class _Watch(Callback):
    """Notes down every round's model and whose answers were used; may stop the run."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.models: list[Any] = []
        self.used: list[list[str]] = []

    def on_round(self, strategy: Any, record: Any) -> bool:
        if record.round:
            self.models.append(strategy.broadcast.model.copy())
            self.used.append(list(strategy.used))
        return bool(record.round == self.last)


class _Spoilt(LeastSquares):
    """A loss whose gradients are no numbers."""

    def gradient(self, x: Any) -> Any:
        return np.nan * super().gradient(x)

    def stochastic_gradient(self, x: Any, rng: Any, batch_size: int) -> Any:
        return np.nan * super().gradient(x)


class _Sealing(Mean):
    """The mean, of answers that a method cannot look at."""

    name = "sealing"
    seen_by = "server"


def _losses(spoilt: int = 0) -> list[Any]:
    rng = np.random.default_rng(7)
    return [
        (_Spoilt if i < spoilt else LeastSquares)(
            rng.normal(size=(8, _SIZE)), rng.normal(size=8), scale="half-mean"
        )
        for i in range(_NODES)
    ]


def _play(
    strategy: Strategy,
    client: Client,
    *,
    used: Sequence[Sequence[str]] | None = None,
    losses: Sequence[Any] = (),
    last: int = _ROUNDS,
    grid: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, _Watch]:
    """Run it; ``used`` says who is asked, by round, ``last`` when it stops."""
    own, watch = losses or _losses(), _Watch(last)
    app = client_app(lambda c: client(c, own[int(c.node_config["partition-id"])]))
    settled = {"seed": 3, "max_failed_rounds": 10**6, "callbacks": [watch], **options}
    made = strategy(**settled)
    if used is not None:
        made.sample = lambda t: list(used[t - 1])
    start = ArrayRecord([np.ones(_SIZE)])
    made.start(LocalGrid(app, _NODES, **(grid or {})), start, num_rounds=_ROUNDS)
    return made, watch


def _same(one: Sequence[Any], other: Sequence[Any], near: float, what: str) -> None:
    for t, (mine, theirs) in enumerate(zip(one, other, strict=True), start=1):
        far = np.abs(mine - theirs).max()
        assert far <= near, f"{what}: {t} rounds later the models differ by {far:.1e}"


def the_loss_falls(strategy: Strategy, client: Client) -> None:
    """With the settings' defaults, from the first round to the last."""
    _, watch = _play(strategy, client)
    first, last = (
        sum(f.value(x) for f in _losses()) for x in (np.ones(_SIZE), watch.models[-1])
    )
    assert last < first, f"the sum of the losses went from {first} to {last}"


def the_seed_decides_everything(strategy: Strategy, client: Client) -> None:
    """Two runs with one seed are one run, whatever nodes are called."""
    one, other = (
        _play(strategy, client, participation=0.6, grid={"seed": seed})[1]
        for seed in (0, 1)
    )
    _same(one.models, other.models, 0.0, "another run with the same seed")


def bytes_change_nothing(strategy: Strategy, client: Client) -> None:
    """Messages that are encoded give the same run, of as many bytes."""
    (made, direct), (other, encoded) = (
        _play(strategy, client, grid={"encode": encode}) for encode in (False, True)
    )
    _same(direct.models, encoded.models, 0.0, "encoded")
    sums, real = ([r.bytes_up + r.bytes_down for r in x.history] for x in (made, other))
    assert sums == real, f"bytes a round: {sums}, and {real} encoded"


def who_was_not_used_was_not_asked(strategy: Strategy, client: Client) -> None:
    """Lost and repeated messages, and lost state, leave nothing behind."""
    faults = dict.fromkeys(_FAULTS, 0.1)
    if strategy(seed=0).stateful:
        faults |= {"state_loss": 0.1, "wipe": 0.1}
    _, rough = _play(strategy, client, grid=faults)
    _, calm = _play(strategy, client, used=rough.used)
    _same(rough.models, calm.models, 1e-9, "after lost messages")


def a_resumed_run_is_the_same(strategy: Strategy, client: Client) -> None:
    """From a checkpoint, to the last bit."""
    _, whole = _play(strategy, client, participation=0.6)
    with tempfile.TemporaryDirectory() as folder:
        path, half = Path(folder) / "checkpoint", _ROUNDS // 2
        more: dict[str, Any] = {"participation": 0.6}
        _play(strategy, client, last=half, checkpoint=path, **more)
        _, rest = _play(strategy, client, resume=path, **more)
    _same(whole.models[half:], rest.models, 0.0, "resumed")


def numbers_that_are_none_are_dropped(strategy: Strategy, client: Client) -> None:
    """A client whose gradients are NaN is left out with a reason; the others go on."""
    made, watch = _play(strategy, client, losses=_losses(1))
    assert np.isfinite(watch.models[-1]).all(), "the model is not finite"
    for record in made.history:
        assert record.used == _NODES - 1, f"round {record.round}: {record.rejected}"


def what_it_needs_is_declared(strategy: Strategy, client: Client) -> None:
    """With ``needs = "sum"`` no answer is used alone, as a secure sum gives none."""
    made = strategy(seed=0)
    if made.needs != "sum" or not made._one_wave:
        return  # then no secure sum is accepted
    try:
        _play(strategy, client, aggregation=_Sealing())
    except TypeError as error:
        raise AssertionError(f"needs = 'sum' does not hold: {error}") from error


#: What a method's tests run, each by itself.
CONTRACTS = (
    the_loss_falls,
    the_seed_decides_everything,
    bytes_change_nothing,
    who_was_not_used_was_not_asked,
    a_resumed_run_is_the_same,
    numbers_that_are_none_are_dropped,
    what_it_needs_is_declared,
)
