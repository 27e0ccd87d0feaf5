"""What is learnt: a linear model of data that each node draws for itself."""

import numpy as np

SIZE, ROWS = 20, 100
TRUTH = np.where(np.arange(SIZE) < 4, 1.0, 0.0)


class Loss:
    """f_i(x) = ‖A_i x − b_i‖² / 2d, of this node's d rows."""

    def __init__(self, node):
        rng = np.random.default_rng(node)
        self.rows = rng.normal(size=(ROWS, SIZE))
        self.targets = self.rows @ TRUTH + 0.1 * rng.normal(size=ROWS)
        self.num_examples = ROWS

    def value(self, x):
        """Return f_i(x)."""
        return float(np.mean((self.rows @ x - self.targets) ** 2) / 2)

    def gradient(self, x):
        """Return the gradient of f_i at x."""
        return self.rows.T @ (self.rows @ x - self.targets) / ROWS


def train(loss, x):
    """Take five gradient steps."""
    for _ in range(5):
        x = x - 0.1 * loss.gradient(x)
    return x
