"""Made-up text of several sources, for models of characters; nothing is downloaded."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrellis.random import generator

__all__ = ["ALPHABET", "LETTERS", "SOURCES", "passages"]

#: The symbols that a text is made of; a symbol's number is its place here.
ALPHABET = " abcdefghijklmnopqrstuvwxyz,."

#: The source that no client holds.
LETTERS = "letters"

# Sentences, whose words in braces are drawn from the lists below.
_SENTENCES: dict[str, tuple[str, ...]] = {
    "kitchen": (
        "{cook} the {food} {slowly}, then add {number} spoons of {food}. ",
        "serve the {food} with {food} and {food}. ",
        "leave the {food} for {number} minutes. ",
    ),
    "weather": (
        "{sky} in the {place} {daytime}, {wind} wind from the {direction}. ",
        "the {daytime} will be {sky}, {number} degrees in the {place}. ",
    ),
    "station": (
        "the train to {town} leaves at {number} from platform {number}. ",
        "passengers for {town} change in {town}. ",
        "the {daytime} train from {town} is {number} minutes late. ",
    ),
    "chess": (
        "{side} moves the {piece} to {letter} {number}. ",
        "{side} takes the {piece} with the {piece}, check. ",
        "the {piece} on {letter} {number} is lost, {side} resigns. ",
    ),
    LETTERS: (
        "dear {name}, {who} saw the {food} and the {piece} in {town}. ",
        "{who} {cook} {food} {slowly} with {number} friends from {town}. ",
        "{name} moves to the {place} from {town} in the {daytime}. ",
        "it is {sky} here, and a {wind} wind from the {direction}. ",
        "{side} or {side}, takes {who} the {letter} train with {food} to {town}. ",
        "then the {piece} will leave at {number}, add {number} minutes. ",
    ),
}
_WORDS = {
    "cook": "mix fry boil roast stir bake",
    "food": "rice beans onions butter fish bread apples pepper honey carrots",
    "slowly": "slowly gently quickly briefly",
    "number": "two three four five six seven eight",
    "sky": "clear cloudy rainy foggy sunny",
    "place": "north south valley hills city",
    "daytime": "morning evening afternoon night",
    "wind": "light strong cold warm",
    "direction": "north south east west",
    "town": "milano geneva oslo porto vienna lyon krakow",
    "side": "white black",
    "piece": "queen king bishop knight rook pawn",
    "letter": "a b c d e f g h",
    "name": "anna peter maria john",
    "who": "we they you",
}
_CHOICES = {slot: words.split() for slot, words in _WORDS.items()}

#: The sources that clients hold, in the order of their labels.
SOURCES = tuple(source for source in _SENTENCES if source != LETTERS)


def passages(
    source: str, count: int, length: int, seed: int, part: str
) -> NDArray[np.int64]:
    """Return passages of a source's text, one behind the other, none overlapping.

    Parameters
    ----------
    source : str
        One of :data:`SOURCES`, or :data:`LETTERS`.
    count : int
    length : int
        Symbols of a passage.
    seed : int
        The run's.
    part : str
        What the text is for: texts of two parts are drawn independently.

    Returns
    -------
    ndarray of int64 of shape (count, length)
        Numbers of symbols in :data:`ALPHABET`.
    """
    rng = generator(seed, "text", source, part)

    def one_of(words: Sequence[str]) -> str:
        return words[int(rng.integers(len(words)))]

    sentences: list[str] = []
    missing = count * length
    while missing > 0:
        sentence = one_of(_SENTENCES[source])
        for slot in re.findall(r"\{(\w+)\}", sentence):
            sentence = sentence.replace("{" + slot + "}", one_of(_CHOICES[slot]), 1)
        sentences.append(sentence)
        missing -= len(sentence)
    text = "".join(sentences)[: count * length]
    numbers = [ALPHABET.index(symbol) for symbol in text]
    return np.array(numbers, dtype=np.int64).reshape(count, length)
