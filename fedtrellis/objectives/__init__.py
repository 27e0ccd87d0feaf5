"""Objectives: the smooth function a client holds, with its gradients and bounds."""

from fedtrellis.objectives.base import Objective
from fedtrellis.objectives.linear_models import LeastSquares, Logistic
from fedtrellis.objectives.matrix_completion import MatrixCompletion
from fedtrellis.objectives.multinomial_logistic import MultinomialLogistic
from fedtrellis.objectives.protocols import DifferentiableLoss, Loss
from fedtrellis.objectives.quadratic_assignment import QuadraticAssignment

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
