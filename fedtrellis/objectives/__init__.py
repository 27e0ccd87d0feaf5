"""Objectives: the smooth function a client holds, with its gradients and bounds."""

from fedtrellis.objectives.smooth import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    MultinomialLogistic,
    Objective,
    QuadraticAssignment,
)

__all__ = [
    "LeastSquares",
    "Logistic",
    "MatrixCompletion",
    "MultinomialLogistic",
    "Objective",
    "QuadraticAssignment",
]
