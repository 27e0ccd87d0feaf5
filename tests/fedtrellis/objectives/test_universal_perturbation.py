"""The objective of an attack by one perturbation for all images."""

from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from fedtrellis.objectives.demonstrations import (
    PerceptronClassifier,
    UniversalPerturbation,
)
from tests.fedtrellis.objectives.cases import classifier


def images(d: int = 17) -> np.ndarray:
    return np.random.default_rng(1).uniform(size=(d, 2, 3))


def made(**changes: Any) -> UniversalPerturbation:
    settings = {"balance": 0.3, "weight": 1.4, "confidence": 2.0} | changes
    return UniversalPerturbation(classifier(), images(), 2, **settings)


def points(m: int) -> np.ndarray:
    return 0.5 * np.random.default_rng(2).standard_normal((m, 2, 3))


class OutputsOnly:
    """A black box, that counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def logits(self, images: np.ndarray) -> np.ndarray:
        self.asked += len(images)
        return classifier().logits(images)


@pytest.mark.parametrize("clip", [False, True])
def test_values_are_those_of_the_definition(clip: bool) -> None:
    f, batch = made(clip=clip), points(5)
    expected = []
    for delta in batch:
        losses = []
        for a in images():
            seen = np.clip(a + delta, 0, 1) if clip else a + delta
            # the scores' differences are those of the log-probabilities
            p = log_softmax(classifier().logits(seen[None])[0])
            rival = max(p[k] for k in range(4) if k != 2)
            losses.append(max(p[2] - rival, -2.0))
        expected.append(1.4 * (np.mean(losses) + 0.3 * (delta**2).sum()))
    np.testing.assert_allclose(f.values(batch), expected, rtol=1e-12)
    assert [f.value(delta) for delta in batch] == pytest.approx(expected, rel=1e-12)


def test_values_need_outputs_only() -> None:
    box = OutputsOnly()
    f = UniversalPerturbation(box, images(), 2, balance=0.3, weight=1.4, confidence=2.0)
    box.asked = 0
    np.testing.assert_array_equal(f.values(points(5)), made().values(points(5)))
    assert box.asked == 5 * 17
    with pytest.raises(NotImplementedError, match="OutputsOnly has no pullback"):
        f.gradient(points(1)[0])


def test_the_margin_ends_at_the_confidence() -> None:
    # a direction that makes the scores of class 2 as low as one likes
    W = np.zeros((6, 4))
    W[:, 2] = -1.0
    model = PerceptronClassifier([W], [np.zeros(4)])
    f = UniversalPerturbation(model, images(), 2, confidence=0.5, balance=0.0)
    far = np.full((2, 3), 10.0)
    assert f.value(far) == -0.5
    np.testing.assert_array_equal(f.gradient(far), np.zeros((2, 3)))
    assert f.metrics(far) == {"misclassified": 1.0}
    assert f.metrics(-far) == {"misclassified": 0.0}


def test_what_is_refused() -> None:
    for label in (-1, 4, 1.5):
        with pytest.raises(ValueError, match="from 0 to 3"):
            UniversalPerturbation(classifier(), images(), label)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        UniversalPerturbation(classifier(), images()[:0], 0)
    with pytest.raises(ValueError, match="confidence"):
        made(confidence=-1.0)
    with pytest.raises(ValueError, match="do not make a perceptron"):
        PerceptronClassifier([np.ones((2, 3)), np.ones((2, 3))], [np.ones(3)] * 2)
    with pytest.raises(ValueError, match="do not make a perceptron"):
        PerceptronClassifier([np.ones((2, 3))], [np.ones(2)])
