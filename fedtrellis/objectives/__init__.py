"""Objectives: the smooth function a client holds, with its gradients and bounds."""

from fedtrellis.objectives.base import DifferentiableLoss, Loss, Objective
from fedtrellis.objectives.linear_models import (
    LeastSquares,
    Logistic,
    MultinomialLogistic,
)
from fedtrellis.objectives.matrices import MatrixCompletion, QuadraticAssignment

__all__ = [
    "DifferentiableLoss",
    "LeastSquares",
    "Logistic",
    "Loss",
    "MatrixCompletion",
    "MultinomialLogistic",
    "Objective",
    "QuadraticAssignment",
]
