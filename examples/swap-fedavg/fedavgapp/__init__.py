"""A Flower app with NumPy and FedAvg."""
