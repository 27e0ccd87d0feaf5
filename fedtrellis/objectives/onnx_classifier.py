"""A classifier in an ONNX file, of which only the outputs are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.extras import need
from fedtrellis.objectives.checks import Array

__all__ = ["SCORES", "OnnxClassifier"]

SCORES = ("logits", "probabilities")

_FLOATS = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
}
# Images that are put through the network at once.
_AT_ONCE = 256
# A probability that rounding has made 0 still has a logarithm.
_LEAST = 1e-30


class OnnxClassifier:
    """Scores of images by ONNX Runtime, on the CPU: a black box.

    Parameters
    ----------
    path : str or Path
        A model with one input of floating-point numbers, of shape (batch, ...), and an
        output of shape (batch, classes); of several, the first such.
    shape : tuple of int
        Of one image, as the attack has it. The model may want axes of length 1 beside
        these, or all numbers in one axis; it gets them in the same order.
    scores : str
        What the output is: ``"logits"``, or ``"probabilities"``, whose logarithms
        count.

    Raises
    ------
    SettingsError
        ONNX Runtime is not installed.
    ValueError
        The file is no ONNX model, or one that does not fit, in one line.

    Examples
    --------
    A model that sums up the pixels of 2 × 2 images, with and without a sign:

    >>> import tempfile, numpy as np, onnx
    >>> from onnx import TensorProto, helper
    >>> from fedtrellis.objectives.onnx_classifier import OnnxClassifier
    >>> weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 2], [1.0, -1.0] * 4)
    >>> real = TensorProto.FLOAT
    >>> graph = helper.make_graph(
    ...     [helper.make_node("MatMul", ["x", "w"], ["z"])], "sums",
    ...     [helper.make_tensor_value_info("x", real, ["n", 4])],
    ...     [helper.make_tensor_value_info("z", real, ["n", 2])], [weight])
    >>> model = helper.make_model(
    ...     graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    >>> with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
    ...     onnx.save(model, file.name)
    ...     OnnxClassifier(file.name, (2, 2)).logits(np.ones((1, 2, 2)))
    array([[ 4., -4.]])
    """

    def __init__(
        self, path: str | Path, shape: tuple[int, ...], scores: str = "logits"
    ) -> None:
        need("onnxruntime", f"the model {str(path)!r}", "onnx")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # many nodes share a machine
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the library's own kinds have no common one
            why = str(error).splitlines()[0]
            raise ValueError(
                f"{path} is no ONNX model that can be run: {why}"
            ) from None
        self.path, self.shape, self.scores = Path(path), tuple(shape), scores
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        kinds = [(one.name, one.type, one.shape) for one in inputs]
        if len(inputs) != 1 or inputs[0].type not in _FLOATS:
            raise ValueError(
                f"{path} has the inputs {kinds}, expected one of floating-point numbers"
            )
        self._input, self._dtype = inputs[0].name, _FLOATS[inputs[0].type]
        wanted = list(inputs[0].shape)
        self._batch = wanted[0] if wanted and isinstance(wanted[0], int) else None
        fitted = self._fit(wanted[1:]) if wanted else self.shape
        if fitted is None:
            raise ValueError(
                f"{path} takes arrays of shape {_shown(wanted)}, which does not fit "
                f"images of shape {self.shape}"
            )
        self._fitted = fitted
        tables = [
            one.name
            for one in outputs
            if one.type in _FLOATS and len(one.shape or ()) == 2
        ]
        if not tables:
            found = [(one.name, one.type, one.shape) for one in outputs]
            raise ValueError(
                f"{path} has the outputs {found}, expected one of floating-point "
                "numbers and shape (batch, classes)"
            )
        self._output = tables[0]
        classes = self._scores(np.zeros((1, *self.shape))).shape[1]
        if classes < 2:
            raise ValueError(f"{path} has {classes} class, expected at least 2")
        self.classes = classes

    def _fit(self, wanted: list[Any]) -> tuple[int, ...] | None:
        """The shape that an image goes in with, or None if it does not fit."""
        size = int(np.prod(self.shape))
        if len(wanted) == 1:
            return (size,) if _alike(wanted, (size,)) else None
        if len(wanted) == len(self.shape):
            return self.shape if _alike(wanted, self.shape) else None
        # axes of length 1 may be there or not, the others stand in one order
        image = tuple(n for n in self.shape if n != 1)
        if not _alike([n for n in wanted if n != 1], image):
            return None
        rest = iter(image)
        return tuple(1 if n == 1 else next(rest) for n in wanted)

    def logits(self, images: Array) -> Array:
        """Scores of shape (n, classes), float64, for images of shape (n, ...)."""
        parts = [
            self._scores(np.asarray(images[start : start + self._together]))
            for start in range(0, len(images), self._together)
        ]
        scores: Array = np.concatenate(parts)
        return scores

    @property
    def _together(self) -> int:
        return self._batch or _AT_ONCE

    def _scores(self, images: Array) -> Array:
        count = len(images)
        given = np.ascontiguousarray(
            images.reshape(count, *self._fitted), dtype=self._dtype
        )
        if self._batch and count < self._batch:
            # a model of a fixed batch gets it filled up
            more = np.repeat(given[-1:], self._batch - count, axis=0)
            given = np.concatenate([given, more])
        try:
            (found,) = self._session.run([self._output], {self._input: given})
        except Exception as error:  # as above
            why = str(error).splitlines()[0]
            raise ValueError(
                f"{self.path} fails at images of shape {self.shape}: {why}"
            ) from None
        scores = np.asarray(found, dtype=np.float64)[:count]
        if scores.ndim != 2 or len(scores) != count:
            raise ValueError(
                f"{self.path} gives an array of shape {np.shape(found)} for "
                f"{count} images, expected ({count}, classes)"
            )
        if self.scores == "probabilities":
            if scores.min() < -1e-6 or scores.max() > 1.0 + 1e-6:
                raise ValueError(
                    f"{self.path} gives numbers from {scores.min():.3g} to "
                    f"{scores.max():.3g}, which are no probabilities"
                )
            scores = np.log(np.maximum(scores, _LEAST))
        return scores


def _alike(wanted: list[Any], shape: tuple[int, ...]) -> bool:
    """Whether each axis is as long as wanted, where that is said."""
    return len(wanted) == len(shape) and all(
        n == size for n, size in zip(wanted, shape, strict=True) if isinstance(n, int)
    )


def _shown(shape: list[Any]) -> str:
    axes = (str(n) if isinstance(n, int) else "any" for n in shape)
    return f"({', '.join(axes)})"
