"""A Flower app with NumPy alone."""
