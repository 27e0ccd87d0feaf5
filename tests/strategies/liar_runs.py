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
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedtrellis import LocalGrid
from fedtrellis.wire.arrays import array_record, record_arrays
from tests.harness import Array, number_of, play
from tests.strategies.methods import EVERY, METHODS, NODES, RULES, SEED

#: The last to answer: it has seen what everybody else says.
LIAR = NODES - 1
#: With a robust rule the liar moves the model by at most this, as a part of the way
#: that the honest run goes.
BOUND = 0.25


Arrays = list[NDArray[Any]]
Change = Callable[[Array], Any]


@dataclass
class Said:
    """An answer: its arrays, at last its numbers; and who says it when."""

    parts: Arrays
    status: dict[str, Any]

    @classmethod
    def by(cls, content: RecordDict) -> Said:
        status: dict[str, Any] = dict(content.config_records["status"])
        numbers = np.frombuffer(status.get("numbers", b""), dtype="<f8")
        return cls([*record_arrays(content.array_records["arrays"]), numbers], status)

    def content(self, like: RecordDict) -> RecordDict:
        status, (*arrays, numbers) = dict(self.status), self.parts
        status.pop("numbers", None)
        if "numbers" in like.config_records["status"]:
            status["numbers"] = numbers.tobytes()
        join = "joined" in like.array_records["arrays"]
        records = {**like, "arrays": array_record(arrays, join=join)}
        return RecordDict({**records, "status": ConfigRecord(status)})

    def each(self, change: Change) -> Said:
        def of(part: Any) -> NDArray[Any]:
            real = part.dtype.kind == "f" and part.size
            return np.asarray(change(part), dtype=part.dtype) if real else part

        with np.errstate(over="ignore"):
            return replace(self, parts=[of(part) for part in self.parts])


@dataclass
class Scene:
    """What the liar knows: its own answers, the others', the model and the round."""

    own: Said
    others: list[Said]
    model: Array
    server_round: int

    def about(self, part: Array) -> Array:
        return self.model if part.shape == self.model.shape else np.zeros(part.shape)

    def together(self, combine: Change) -> Said:
        """What is made of all the others' answers, part by part."""
        parts = iter(zip(*(said.parts for said in self.others), strict=False))

        def of(part: Array) -> Any:
            alike = [other for other in next(parts) if other.shape == part.shape]
            return combine(np.array(alike)) if alike else part

        return self.own.each(of)


Lie = Callable[[Scene], Said]


def _random(scene: Scene) -> Said:
    rng = np.random.default_rng([SEED, scene.server_round])

    def draw(part: Array) -> Any:
        noise = rng.standard_normal(part.shape)
        return np.linalg.norm(part) / max(float(np.linalg.norm(noise)), 1e-300) * noise

    return scene.own.each(draw)


def _step(factor: float) -> Lie:
    """The honest step, so many times as long."""

    def lie(scene: Scene) -> Said:
        about = scene.about
        return scene.own.each(lambda a: about(a) + factor * (a - about(a)))

    return lie


def _against(scene: Scene) -> Said:
    """Xie, Koyejo, Gupta, UAI 2019, arXiv 1903.03936: the inner product is negative."""

    def change(answers: Array) -> Any:
        about = scene.about(answers[0])
        return about - 5.0 * (answers.mean(axis=0) - about)

    return scene.together(change)


def _a_little(scene: Scene) -> Said:
    """Baruch, Baruch, Goldberg, NeurIPS 2019, arXiv 1902.06156: within the scatter."""
    return scene.together(lambda a: a.mean(axis=0) - 1.5 * a.std(axis=0))


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
    "honest every other round": lambda scene: (
        scene.own if scene.server_round % 2 else _step(-10.0)(scene)
    ),
    "within the scatter": _a_little,
    "against the others": _against,
}
#: How many examples it declares before round 1.
DECLARED = {"10¹⁵ examples": 10**15, "no examples": 0}
#: Honest about a loss that nobody else has.
OWN_LOSS = "another loss"
KINDS = (*ANSWERS, *DECLARED, OWN_LOSS)


class Lying(LocalGrid):
    """A grid whose last node lies."""

    lie: Lie | None = None
    declared: int | None = None
    strategy: Any = None

    def _lies(self, message: Message) -> bool:
        return number_of(self._contexts[message.metadata.dst_node_id]) == LIAR

    def _strikes(self, message: Message) -> set[str]:
        kind = message.metadata.message_type
        return {"garbage"} if kind in ("train", "query.hello") else set()

    def _spoil(self, reply: Message, message: Message) -> Message:
        lies, content = self._lies(message), reply.content
        if message.metadata.message_type == "query.hello":
            if lies and self.declared is not None:
                content.config_records["config"]["num-examples"] = self.declared
            return reply
        if self.lie is None or not content.config_records["status"]["in-sync"]:
            return reply
        heard: dict[int, list[Said]] = self.__dict__.setdefault("heard", {})
        said, t = Said.by(content), int(message.metadata.group_id)
        others = heard.setdefault(t, [])
        others.append(said)
        if not lies:
            return reply
        scene = Scene(said, others[:-1], self.strategy.broadcast.model, t)
        return Message(self.lie(scene).content(content), reply_to=message)


def run(name: str, kind: str = "", rule: str = "mean") -> Array:
    """The model; ``kind`` is empty in a run without a liar."""
    method, losses = EVERY[name], [*EVERY[name].losses]
    if kind == OWN_LOSS:
        losses[LIAR] = losses[-1]
    grid = replace(method, losses=losses).grid(NODES, Lying, seed=1)
    grid.lie, grid.declared = ANSWERS.get(kind), DECLARED.get(kind)
    grid.strategy = strategy = method.make(seed=SEED, aggregation=rule)
    return play(strategy, grid, method.start, method.rounds).model


@cache
def honest(name: str) -> Array:
    """The model of the run without a liar, by the mean."""
    return run(name)


def apart(name: str, model: Array) -> float:
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
            far, kind = max((apart(name, run(name, k, rule)), k) for k in KINDS)
            cells.append(f"{far:.2f} ({kind})" if far < 100 else f"{far:.0e} ({kind})")
            failed |= rule != "mean" and far > BOUND
        print(",".join([name, *cells, *[""] * (len(RULES) - len(cells))]), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
