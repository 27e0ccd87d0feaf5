"""Methods for networks, on digits, MNIST and CIFAR-10; see :mod:`.comparison`."""

from .comparison import FULL, QUICK, Size, compare

__all__ = ["FULL", "QUICK", "Size", "compare"]
