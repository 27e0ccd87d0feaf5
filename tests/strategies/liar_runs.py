"""One liar of ten, in every method: refused, or how far it moves the model.

``python -m tests.strategies.liar_runs`` prints the table ``docs/measured/liars.csv``;
names of methods make it shorter.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedtrellis import LocalGrid, client_app
from fedtrellis.wire.arrays import array_record, record_arrays
from tests.harness import Array, number_of
from tests.strategies.methods import EVERY, METHODS, NODES, RULES, SEED

#: The last to answer: it has seen what everybody else says.
LIAR = NODES - 1
#: With a robust rule the liar moves the model by at most this, as a part of the way
#: that the honest run goes.
BOUND = 0.25


# ----------------------------------------------------------------------------- the lies


Arrays = list[NDArray[Any]]


@dataclass
class Said:
    """An answer: its arrays, the numbers beside them, and who says it when."""

    arrays: Arrays
    numbers: Array
    status: dict[str, Any]

    @classmethod
    def by(cls, content: RecordDict) -> Said:
        status: dict[str, Any] = dict(content.config_records["status"])
        numbers = np.frombuffer(status.get("numbers", b""), dtype="<f8")
        return cls(record_arrays(content.array_records["arrays"]), numbers, status)

    def content(self, like: RecordDict) -> RecordDict:
        records, status = dict(like), dict(self.status)
        status.pop("numbers", None)
        if "numbers" in like.config_records["status"]:
            status["numbers"] = self.numbers.astype("<f8").tobytes()
        join = "joined" in like.array_records["arrays"]
        records["arrays"] = array_record(self.arrays, join=join)
        return RecordDict({**records, "status": ConfigRecord(status)})

    def each(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Said:
        with np.errstate(over="ignore"):
            arrays = [change(a) if a.dtype.kind == "f" else a for a in self.arrays]
            numbers = change(self.numbers) if self.numbers.size else self.numbers
        return replace(self, arrays=arrays, numbers=numbers)


@dataclass
class Scene:
    """What the liar knows: its own answers, the others', the model and the round."""

    own: Said
    before: Said  # of the round before
    others: list[Said]
    model: Array
    server_round: int

    def about(self, array: NDArray[Any]) -> NDArray[Any]:
        return self.model if array.shape == self.model.shape else np.zeros(array.shape)

    def together(self, combine: Callable[[Array], Array]) -> Said:
        def of(own: NDArray[Any], theirs: Arrays) -> NDArray[Any]:
            alike = [array for array in theirs if array.shape == own.shape]
            real = own.dtype.kind == "f" and own.size and alike
            return combine(np.array(alike)) if real else own

        pairs = (
            (own, [said.arrays[k] for said in self.others if len(said.arrays) > k])
            for k, own in enumerate(self.own.arrays)
        )
        numbers = of(self.own.numbers, [said.numbers for said in self.others])
        return replace(self.own, arrays=[of(*p) for p in pairs], numbers=numbers)


Lie = Callable[[Scene], Said]


def _other_arrays(
    change: Callable[[NDArray[Any]], NDArray[Any]], numbers: int | None
) -> Lie:
    def lie(scene: Scene) -> Said:
        own = scene.own
        arrays = [change(array) for array in own.arrays]
        return replace(own, arrays=arrays, numbers=own.numbers[:numbers])

    return lie


def _random(scene: Scene) -> Said:
    rng = np.random.default_rng([SEED, scene.server_round])

    def draw(array: NDArray[Any]) -> NDArray[Any]:
        noise = rng.standard_normal(array.shape)
        size = np.linalg.norm(array) / max(float(np.linalg.norm(noise)), 1e-300)
        return np.asarray(size * noise, dtype=array.dtype)

    return scene.own.each(draw)


def _step(factor: float) -> Lie:
    """The honest step, so many times as long."""

    def lie(scene: Scene) -> Said:
        def change(array: NDArray[Any]) -> NDArray[Any]:
            about = scene.about(array)
            return np.asarray(about + factor * (array - about), dtype=array.dtype)

        return scene.own.each(change)

    return lie


def _two_faced(scene: Scene) -> Said:
    return scene.own if scene.server_round % 2 else _step(-10.0)(scene)


def _against(scene: Scene) -> Said:
    """Xie, Koyejo, Gupta, UAI 2019, arXiv 1903.03936: the inner product is negative."""

    def change(answers: Array) -> Array:
        about = scene.about(answers[0])
        return np.asarray(about - 5.0 * (answers.mean(axis=0) - about))

    return scene.together(change)


def _a_little(scene: Scene) -> Said:
    """Baruch, Baruch, Goldberg, NeurIPS 2019, arXiv 1902.06156: within the scatter."""
    return scene.together(lambda a: np.asarray(a.mean(axis=0) - 1.5 * a.std(axis=0)))


#: Those that are seen for what they are in every method.
REFUSED: dict[str, Lie] = {
    "not a number": lambda scene: scene.own.each(lambda a: a * np.nan),
    "infinite": lambda scene: scene.own.each(lambda a: a * 0.0 - np.inf),
    "another shape": _other_arrays(lambda a: a.reshape(-1)[:-1], -1),
    "another dtype": _other_arrays(
        lambda a: a.astype("f4" if a.dtype == "f8" else "i8"), 0
    ),
    "under another's name": lambda scene: replace(
        scene.own, status=scene.others[0].status
    ),
    "the last round's answer": lambda scene: scene.before,
}
#: Those that may pass.
ANSWERS: dict[str, Lie] = {
    "times 10⁶": lambda scene: scene.own.each(lambda a: 1e6 * a),
    "step reversed": _step(-1.0),
    "no step at all": _step(0.0),
    "shifted by 5": lambda scene: scene.own.each(lambda a: a + 5.0),
    "random, as long": _random,
    "somebody else's answer": lambda scene: replace(
        scene.others[0], status=scene.own.status
    ),
    "further every round": lambda scene: scene.own.each(
        lambda a: a + 0.05 * scene.server_round
    ),
    "honest every other round": _two_faced,
    "within the scatter": _a_little,
    "against the others": _against,
}
#: How many examples it declares before round 1.
DECLARED = {"10¹⁵ examples": 10**15, "no examples": 0}
#: Honest about a loss that nobody else has.
OWN_LOSS = "another loss"
KINDS = (*REFUSED, *ANSWERS, *DECLARED, OWN_LOSS)
EACH_REFUSED = "each that is refused, in turn"
#: Nothing is heard of its answers.
SILENT = "silent"


def _in_turn(scene: Scene) -> Said:
    lies = list(REFUSED.values())
    return lies[scene.server_round % len(lies)](scene)


class Lying(LocalGrid):
    """A grid whose last node lies."""

    lie: Lie | None = None
    declared: int | None = None
    silent = False
    strategy: Any = None

    def _lies(self, message: Message) -> bool:
        return number_of(self._contexts[message.metadata.dst_node_id]) == LIAR

    def _strikes(self, message: Message) -> set[str]:
        kind = message.metadata.message_type
        if self.silent:
            return {"reply_loss"} if kind == "train" and self._lies(message) else set()
        return {"garbage"} if kind in ("train", "query.hello") else set()

    def _spoil(self, reply: Message, message: Message) -> Message:
        lies = self._lies(message)
        content = reply.content
        if message.metadata.message_type == "query.hello":
            if lies and self.declared is not None:
                content.config_records["config"]["num-examples"] = self.declared
            return reply
        if self.lie is None or not content.config_records["status"]["in-sync"]:
            return reply
        heard: dict[int, list[Said]] = self.__dict__.setdefault("heard", {})
        t = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        said = Said.by(content)
        others = heard.setdefault(t, [])
        others.append(said)
        if not lies:
            return reply
        before = heard.get(t - 1, others)[-1]
        scene = Scene(said, before, others[:-1], self.strategy.broadcast.model, t)
        return Message(self.lie(scene).content(content), reply_to=message)


# ----------------------------------------------------------------------------- the runs


@dataclass
class Outcome:
    """A run with a liar: the model, and how many of its answers were refused."""

    model: Array
    refused: int
    rounds: int


def run(name: str, kind: str = "", rule: str = "mean", rounds: int = 0) -> Outcome:
    """Run a method; ``kind`` is empty in a run without a liar."""
    method = EVERY[name]
    lies = {**REFUSED, **ANSWERS, EACH_REFUSED: _in_turn}

    def client(context: Context) -> Any:
        poisoned = kind == OWN_LOSS and number_of(context) == LIAR
        return method.client(
            context, method.losses[-1 if poisoned else number_of(context)]
        )

    grid = Lying(client_app(client), NODES, seed=1)
    grid.lie, grid.declared = lies.get(kind), DECLARED.get(kind)
    grid.silent = kind == SILENT
    grid.strategy = strategy = method.make(seed=SEED, aggregation=rule)
    rounds = rounds or method.rounds
    result = strategy.start(grid, ArrayRecord([method.start]), num_rounds=rounds)
    (model,) = result.arrays.to_numpy_ndarrays()
    refused = [who for r in strategy.history for who, _ in r.rejected]
    return Outcome(model, refused.count(str(LIAR)), rounds)


@cache
def honest(name: str) -> Array:
    """The model of the run without a liar, by the mean."""
    return run(name).model


def distance(name: str, model: Array) -> float:
    """How far a model is from the honest run's, as a part of how far that has come."""
    goal = honest(name)
    way = float(np.linalg.norm(goal - EVERY[name].start))
    return float(np.linalg.norm(model - goal)) / way


def main() -> int:
    """Print the table; 1 if a robust rule let the liar have more than BOUND."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(METHODS)}")
    names = parser.parse_args().names or METHODS
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    print(f"method,{','.join(RULES)}")
    failed = False
    for name in names:
        cells = []
        for rule in METHODS[name].rules:
            every = [(distance(name, run(name, k, rule).model), k) for k in KINDS]
            far, kind = max(every)
            cells.append(f"{far:.2f} ({kind})" if far < 100 else f"{far:.0e} ({kind})")
            failed |= rule != "mean" and far > BOUND
        print(",".join([name, *cells, *[""] * (len(RULES) - len(cells))]), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
