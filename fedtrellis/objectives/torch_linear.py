"""One linear layer and its cross-entropy, whose gradient needs no autograd.

PyTorch's graph takes longer to make than the gradient of a small linear model takes to
compute: for 65 × 10 parameters and 17 examples about five times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedtrellis.objectives.torch_data import CollatedExamples, TensorExamples
from fedtrellis.objectives.torch_module import FlatModule

__all__ = ["is_softmax_regression", "minus_labels", "softmax_slopes"]

_DTYPES = (torch.float32, torch.float64)


def is_softmax_regression(
    flat: FlatModule, loss: Any, examples: TensorExamples | CollatedExamples
) -> bool:
    """Whether the mean loss is ln Σ_c exp(z_c) − z_y, with z = W a + b, and no more.

    That is ``nn.Linear`` itself, all of whose parameters are learnt, under
    ``nn.CrossEntropyLoss`` or ``cross_entropy`` as they are by default, for one label
    an example; nothing may be hooked to either. Everything else is autograd's.
    """
    module = flat.module
    if type(module) is not nn.Linear or not _is_plain(module):
        return False
    if len(flat.parameters) != 1 + (module.bias is not None):
        return False
    if loss is not nn.functional.cross_entropy:
        if type(loss) is not nn.CrossEntropyLoss or not _is_plain(loss):
            return False
        usual = loss.reduction == "mean" and loss.label_smoothing == 0.0
        if not usual or loss.weight is not None or loss.ignore_index >= 0:
            return False
    if not isinstance(examples, TensorExamples) or flat.dtype not in _DTYPES:
        return False
    inputs, targets = examples.inputs, examples.targets
    return (
        isinstance(inputs, Tensor)
        and inputs.ndim == 2
        and inputs.shape[1] == module.in_features
        and inputs.dtype == flat.dtype
        and targets.ndim == 1
        and targets.dtype == torch.int64
        and int(targets.min()) >= 0
        and int(targets.max()) < module.out_features
    )


def _is_plain(module: nn.Module) -> bool:
    """Whether calling a module does what its class's ``forward`` does."""
    hooks = (value for name, value in vars(module).items() if name.endswith("_hooks"))
    return not any(hooks) and "forward" not in vars(module)


def minus_labels(targets: Tensor, like: Tensor) -> Tensor:
    """−e_y of each example, of shape (d, c), where ``like`` is one model's layer W."""
    labels = like.new_zeros((len(targets), like.shape[0]))
    return labels.scatter_(1, targets.unsqueeze(1), -1.0)


def softmax_slopes(
    layers: Sequence[Tensor], inputs: Tensor, labels: Tensor
) -> list[Tensor]:
    r"""The gradient of the mean cross-entropy by W, and by b if there is one.

    Parameters
    ----------
    layers : sequence of Tensor
        W of shape (\*n, c, q) and b of shape (\*n, c), without a gradient of their own;
        n is nothing, or the number of models.
    inputs : Tensor of shape (\*n, d, q)
        The a_k.
    labels : Tensor of shape (\*n, d, c)
        Their :func:`minus_labels`.

    Returns
    -------
    list of Tensor
        New ones, of the layers' shapes.
    """
    weight, *bias = layers
    turned = weight.transpose(-1, -2)
    if bias:
        add = torch.addmm if weight.ndim == 2 else torch.baddbmm
        scores = add(bias[0].unsqueeze(-2), inputs, turned)
    else:
        scores = inputs @ turned
    # s_k = (1/d) (softmax(W a_k + b) − e_y)
    slopes = torch.softmax(scores, -1).add_(labels).div_(inputs.shape[-2])
    # ∇_W = Σ_k s_k a_kᵀ,  ∇_b = Σ_k s_k
    found = [slopes.transpose(-1, -2) @ inputs]
    if bias:
        found.append(slopes.sum(-2))
    return found
