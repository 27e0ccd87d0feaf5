"""A small transformer that reads made-up text character by character."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.random import generator
from fedtrellis.settings import setting

from .base import check_torch, derived_seed
from .classification import NetworkTask, device_setting
from .data.task import Dealt, Nonconvex, arrange

#: The symbols that a text is made of; a symbol's number is its place here.
ALPHABET = " abcdefghijklmnopqrstuvwxyz,."
#: The source that no client holds.
LETTERS = "letters"
# of its text, on which the network is trained before the clients have it
_LETTERS = 2000

# Sentences of each source, and the words that one is drawn of where braces are. It is
# beside this module, whichever of its two names the package is imported under.
_TEXT = resources.files(__package__).joinpath("data/characters.json").read_text()
_SENTENCES, _WORDS = json.loads(_TEXT).values()
_CHOICES = {slot: words.split() for slot, words in _WORDS.items()}
#: The sources that clients hold, in the order of their labels.
SOURCES = tuple(source for source in _SENTENCES if source != LETTERS)


def passages(
    source: str, count: int, length: int, seed: int, part: str
) -> NDArray[np.int64]:
    """Return passages of a source's text, one behind the other, none overlapping.

    ``source`` is one of :data:`SOURCES`, or :data:`LETTERS`; ``length`` counts the
    symbols of a passage; texts of two parts, such as training and test, are drawn
    independently. Of shape (count, length), numbers of symbols in :data:`ALPHABET`.
    """
    rng = generator(seed, "text", source, part)

    def one_of(words: Sequence[str]) -> str:
        return words[int(rng.integers(len(words)))]

    text = ""
    while len(text) < count * length:
        sentence = one_of(_SENTENCES[source])
        text += re.sub(r"\{(\w+)\}", lambda slot: one_of(_CHOICES[slot[1]]), sentence)
    numbers = [ALPHABET.index(symbol) for symbol in text[: count * length]]
    return np.array(numbers, dtype=np.int64).reshape(count, length)


@dataclass(frozen=True)
class Characters(Nonconvex, NetworkTask):
    """F = the mean cross-entropy of the next character over all training passages.

    f_i is n·d_i/d times the mean over the client's d_i passages, so that
    F = (1/n) Σ f_i. A passage has ``context`` characters and what follows each.

    The text is made of templates and word lists by the run's seed: recipes, weather
    reports, a station's announcements and games of chess. These four sources are the
    labels that ``partition`` deals by. Letters, a fifth source, are held by no client:
    with ``pretrained-steps`` the network is first trained on them, in one place, and
    the run starts there.

    The model is a transformer in PyTorch with 4 heads a block, causal attention and
    layer norms in front (:class:`~.networks.CharacterTransformer`), in
    float32.
    """

    name = "characters"
    summary = "generated text by characters, a small transformer"

    partition: str = setting(
        "iid",
        "how passages are dealt to clients; 'labels': by the sources of the text",
        choices=("iid", "labels", "dirichlet"),
    )
    labels_per_client: int = setting(
        1, "sources, of four, that a client holds, with partition = 'labels'", minimum=1
    )
    train_passages: int = setting(
        2000, "training passages of all clients, as many of each source", minimum=1
    )
    test_passages: int = setting(400, "test passages", minimum=4)
    context: int = setting(32, "characters of a passage", minimum=2)
    width: int = setting(32, "of the transformer, a multiple of 4", minimum=4)
    blocks: int = setting(2, "of the transformer", minimum=1)
    pretrained_steps: int = setting(
        0,
        "steps of Adam on the letters, which no client holds, before the run; 0: the "
        "run starts from random weights",
        minimum=0,
    )
    device: str = device_setting("the clients' models")

    def check_settings(self) -> None:  # noqa: D102
        check_torch(self.name, "task = 'characters'", self.device)
        from .networks import HEADS

        if self.width % HEADS:
            why = f"must be a multiple of {HEADS}, the number of attention heads"
            raise self.refused("width", why)

    def check(self) -> None:  # noqa: D102
        super().check()
        self.deal(_labels(self.train_passages))

    def num_examples(self) -> int:  # noqa: D102
        return self.train_passages

    def _make_model(self) -> Any:
        from .networks import make_transformer

        sizes = len(ALPHABET), self.context, self.width, self.blocks
        return make_transformer(*sizes, derived_seed(self.seed, "initial model"))

    def _pretrain(self, model: Any) -> None:
        """Train on the letters, in about 10 ms a step."""
        from .networks import train

        if self.pretrained_steps:
            text = passages(LETTERS, _LETTERS, self.context + 1, self.seed, "training")
            seed = derived_seed(self.seed, "letters")
            train(model, text, self.pretrained_steps, seed)

    def _load(self) -> Dealt:
        train, test = map(_labels, (self.train_passages, self.test_passages))
        text, others = self._text(train, "training"), self._text(test, "test")
        # what is to be learnt is the text itself, and not its source
        split = text[:, :-1], text[:, 1:], self.deal(train)
        return arrange(*split, others[:, :-1], others[:, 1:])

    def _text(self, labels: Any, part: str) -> Any:
        """Return passages of the sources that the labels name."""
        counts = np.bincount(labels, minlength=len(SOURCES)).tolist()
        texts = [
            passages(source, count, self.context + 1, self.seed, part)
            for source, count in zip(SOURCES, counts, strict=True)
        ]
        return np.concatenate(texts)


def _labels(count: int) -> Any:
    """The sources of ``count`` passages: 0, …, 3, as many of each as can be."""
    return np.sort(np.arange(count) % len(SOURCES))
