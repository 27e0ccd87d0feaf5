"""Differential privacy: mechanisms, secret noise, and a library's accountant.

What a run's settings ``privacy``, ``privacy-clip`` and so on are made of; the page
docs/privacy.md says what they guarantee. The accountant is dp-accounting's, an extra:
``pip install "fedtrellis[privacy]"``.
"""

from fedtrellis.privacy.accountant import Accountant, noise_multiplier_for
from fedtrellis.privacy.mechanisms import (
    LocalNoise,
    PrivateMean,
    SecretNoise,
    clipped,
    report_noisy_max,
)

__all__ = [
    "Accountant",
    "LocalNoise",
    "PrivateMean",
    "SecretNoise",
    "clipped",
    "noise_multiplier_for",
    "report_noisy_max",
]
